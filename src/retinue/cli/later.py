"""The commands and flags that are designed but not built yet: so that nobody looks for a typing error; it runs none."""

from collections.abc import Sequence
from typing import Final

from retinue.core.errors import RetinueError

COMMANDS: Final = frozenset({"approvals", "attach", "serve", "timeline"})
BELOW: Final = {
    "sessions": frozenset({"changes", "diff", "export", "import", "prune", "rewind"}),
}
"""Group → its commands; a person may also name one without its group."""
FLAGS: Final = {"runs show": frozenset({"--rights"})}


def later(tokens: Sequence[str]) -> RetinueError | None:
    """Return the refusal of a command line that a later version understands; null for any other."""
    name = _command(tokens) or _flag(tokens)
    if name is None:
        return None
    return RetinueError("unsupported", f"'{name}' is not in this version.", "See 'retinue --help' for what is.")


def _command(tokens: Sequence[str]) -> str | None:
    first, second = (*tokens[:2], "", "")[:2]
    if second in BELOW.get(first, ()):
        return f"{first} {second}"
    known = COMMANDS.union(*BELOW.values())
    return first if first in known else None


def _flag(tokens: Sequence[str]) -> str | None:
    flags = FLAGS.get(" ".join(tokens[:2]), ())
    return next((token for token in tokens if token.partition("=")[0] in flags), None)
