"""The model names of other dialects and what they are called here; it knows no connection and asks for no model."""

import re
from collections.abc import Mapping
from typing import Final

INHERITED: Final = frozenset({"", "inherit", "default", "null", "~", "none"})
"""Words that say: as the parent."""
_FAMILIES: Final = frozenset(
    {"sonnet", "opus", "haiku", "opusplan", "flash", "flash-lite", "pro", "mini", "auto", "smol", "slow", "best"}
)
"""Words for a kind of model; which one that is, only a table of aliases can say."""
_PROVIDERS: Final = (
    (re.compile(r"claude-", re.IGNORECASE), "anthropic"),
    (re.compile(r"(?:gpt-|chatgpt-|codex-|o[1-9](?:-|$))", re.IGNORECASE), "openai"),
    (re.compile(r"gemini-", re.IGNORECASE), "google"),
)
_SUFFIX: Final = re.compile(r"\[[^\]]{0,20}\]$")
"""What one dialect adds for a longer context: `sonnet[1m]`."""


def model_name(written: str, aliases: Mapping[str, str]) -> tuple[str | None, str | None]:
    """Return the model's name here (null = the parent's model), and why it is another one than written, if so.

    `aliases` come first, in any case; what they lead to is read as if it had been written, and leads to no other alias.
    """
    text = written.strip()
    meant = {alias.casefold(): name for alias, name in aliases.items()}.get(text.casefold())
    name, why = _named((text if meant is None else meant).strip())
    if meant is None:
        return name, why
    return name, why or f"the setting [models] says what {text!r} means"


def _named(text: str) -> tuple[str | None, str | None]:
    if text.lower() in INHERITED:
        return None, None
    family = _SUFFIX.sub("", text.lower()).partition(":")[0]
    if family in _FAMILIES or text.lower().startswith("pi/"):
        return None, f"The model {text!r} names no connection here."
    if any(char.isspace() for char in text):
        return None, f"The model {text[:80]!r} is a title, not a name."
    return _connected(text)


def _connected(text: str) -> tuple[str, str | None]:
    """Return a name with the connection that it goes to in front, as far as the name tells it."""
    slash, colon = text.find("/"), text.find(":")
    if slash > 0 and not 0 <= colon < slash:
        return f"{text[:slash]}:{text[slash + 1 :]}", f"written as {text!r}"
    if colon >= 0:
        return text, None
    for pattern, provider in _PROVIDERS:
        if pattern.match(text):
            return f"{provider}:{_SUFFIX.sub('', text).lower()}", f"written as {text!r}"
    return text, None
