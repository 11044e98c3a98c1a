"""How text is cut and cleaned, whole characters only; it knows nothing of sessions or letters."""

from typing import Final

BYTES_PER_TOKEN: Final = 3
"""The only estimate of tokens where none is reported (CONTRACT section 4, Letters)."""
CUT_MARK: Final = "…[truncated]"


def estimate_tokens(text: str) -> int:
    """Return ceil(UTF-8 bytes / 3)."""
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


def fit_tokens(text: str, tokens_max: int | None) -> tuple[str, bool]:
    """Return the longest prefix of whole characters within `tokens_max`, marked when cut."""
    if tokens_max is None:
        return text, False
    bytes_max = tokens_max * BYTES_PER_TOKEN
    head = text[: bytes_max + 1]
    if len(head) == len(text) and len(head.encode()) <= bytes_max:
        return text, False
    low, high = 0, min(len(head), bytes_max)
    while low < high:
        middle = (low + high + 1) // 2
        if len(head[:middle].encode()) <= bytes_max:
            low = middle
        else:
            high = middle - 1
    return head[:low] + CUT_MARK, True


def fit_bytes(text: str, bytes_max: int) -> str:
    """Return the text within `bytes_max` bytes (at least the mark's own 14), marked when cut, characters whole."""
    raw = text.encode()
    if len(raw) <= bytes_max:
        return text
    room = max(0, bytes_max - len(CUT_MARK.encode()))
    return raw[:room].decode(errors="ignore") + CUT_MARK


def fit_chars(text: str, chars_max: int | None) -> tuple[str, bool]:
    """Return the first `chars_max` characters, and whether that cut anything."""
    if chars_max is None or len(text) <= chars_max:
        return text, False
    return text[:chars_max], True


def is_storable(text: str) -> bool:
    """Return whether text can be stored as UTF-8, which lone surrogates cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def clean(text: str) -> str:
    """Return text that can be stored as UTF-8: lone surrogates become replacement characters."""
    if is_storable(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
