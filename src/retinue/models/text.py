"""Joins streamed text so that no character is ever cut; it knows nothing of providers."""

import re
from typing import Final

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def counted(number: int, thing: str) -> str:
    """Return `1 file`, `2 files`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def mended(text: str) -> str:
    """Return the text with surrogate halves joined, and lone ones replaced, so that it can be encoded."""
    if _SURROGATE.search(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class TextJoin:
    """Collects the pieces of one text; a character that a provider cut in two halves is held until it is whole."""

    def __init__(self) -> None:
        """Start empty."""
        self._parts: list[str] = []
        self._held = ""

    def add(self, piece: str) -> str:
        """Take a piece and return what of it can be shown now."""
        piece, self._held = self._held + piece, ""
        if "\ud800" <= piece[-1:] <= "\udbff":
            piece, self._held = piece[:-1], piece[-1]
        piece = mended(piece)
        self._parts.append(piece)
        return piece

    def whole(self) -> str:
        """Return everything so far."""
        return "".join(self._parts) + mended(self._held)
