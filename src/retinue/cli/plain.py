"""Makes text of models and files fit for a terminal; it prints nothing.

No control character, escape sequence or direction override of a model may reach a terminal: it could hide text, move
the cursor, or answer in the person's name.
"""

import re
from typing import Final

from retinue.core.events import Usage

_SEQUENCE: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]?")
_CONTROL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
_ESCAPED: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb]")


def safe(text: str) -> str:
    """Return the text without anything that steers a terminal; line ends and tabs stay."""
    return _CONTROL.sub("", _SEQUENCE.sub("", text.replace("\r\n", "\n")))


def line(text: str, chars_max: int = 200) -> str:
    """Return the text as one safe line of at most `chars_max` characters, `…` at its end when cut."""
    plain = " ".join(safe(text[: chars_max * 8]).split())
    return plain if len(plain) <= chars_max else plain[: chars_max - 1] + "…"


def safe_json(data: bytes) -> bytes:
    """Return the same JSON with what steers a terminal written as an escape of JSON."""
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", data.decode()).encode()


def duration(seconds: float) -> str:
    """Return seconds as a person reads them: `0.4 s`, `12 s`, `3:05 min`, `1:02 h`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min"
    return f"{whole // 3600}:{whole % 3600 // 60:02d} h"


def amount(number: int) -> str:
    """Return a count of tokens in at most five characters: `812`, `12.3k`, `4.1M`."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return str(number)


def tokens(usage: Usage) -> str:
    """Return the reported tokens; `?` where nothing was reported, `+?` behind a sum that is not whole."""
    if usage.requests == usage.unreported:
        return "? tokens" if usage.requests else "0 tokens"
    return f"{amount(usage.total)}{'+?' if usage.unreported else ''} tokens"


def steps(number: int) -> str:
    """Return `1 step`, `2 steps`."""
    return f"{number} step{'' if number == 1 else 's'}"
