"""`retinue trust`: says which files of a project may start commands; it starts none itself."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from retinue.cli import printing
from retinue.cli.plain import safe
from retinue.core.errors import RetinueError
from retinue.definitions.places import project_folders
from retinue.settings import CONFIG, DATA_DIR
from retinue.trust import Trust, TrustedFile, content_of

MCP_FILE: Final = ".mcp.json"
SHOWN_MAX_CHARS: Final = 4_000


def trust(paths: Sequence[str], *, show: bool, revoke: bool, yes: bool, as_json: bool) -> int:
    """Trust files, by default those of the project here that need it; or list them, or take the trust back."""
    kept = Trust()
    if show:
        _print([_row(one) for one in kept.all()], as_json=as_json, none="No file is trusted.")
        return 0
    chosen = [Path(path) for path in paths] or _here(revoke=revoke, kept=kept)
    if revoke:
        rows = [{"path": str(path), "state": "revoked" if kept.remove(path) else "was not trusted"} for path in chosen]
        _print(rows, as_json=as_json, none="Nothing here is trusted.")
        return 0
    contents = [(path, content_of(path)) for path in chosen]
    fresh = [(path, content) for path, content in contents if not kept.holds(path, content)]
    if fresh and not yes and not as_json and sys.stdin is not None and sys.stdin.isatty():
        _ask(fresh)
    for path, content in fresh:
        kept.add(path, content)
    rows = [{"path": str(path), "state": "trusted"} for path, _ in contents]
    _print(rows, as_json=as_json, none="Nothing here needs trust.")
    return 0


def _here(*, revoke: bool, kept: Trust) -> list[Path]:
    """Return the files of the project here that act only when trusted; to revoke, those below it that are."""
    home = Path.home().resolve()
    folders = project_folders(Path.cwd().resolve(), home)
    found = [folder / name for folder in folders for name in (MCP_FILE, f"{DATA_DIR}/{CONFIG}")]
    if revoke:
        known = {one.path for one in kept.all()}
        return [path for path in found if str(path.resolve()) in known]
    return [path for path in found if path.is_file() and _starts_commands(path)]


def _starts_commands(path: Path) -> bool:
    return path.name == MCP_FILE or b"mcp" in content_of(path)


def _ask(fresh: Sequence[tuple[Path, bytes]]) -> None:
    """Show what would be trusted, and raise `denied` unless the person at the terminal says yes."""
    for path, content in fresh:
        printing.note(f"{path}:\n{safe(content.decode(errors='replace')[:SHOWN_MAX_CHARS])}\n")
    printing.mark("These files can start commands as you. Trust them as they are now? [y/N] ")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise RetinueError("denied", "Nothing was trusted.", "Say y, or give --yes.")


def _row(one: TrustedFile) -> dict[str, Any]:
    try:
        same = Trust().holds(one.path, content_of(one.path))
        state = "trusted" if same else "changed since"
    except RetinueError:
        state = "not readable"
    return {**msgspec.to_builtins(one), "state": state}


def _print(rows: Sequence[dict[str, Any]], *, as_json: bool, none: str) -> None:
    if as_json:
        printing.document({"items": list(rows), "next": None})
    elif not rows:
        printing.note(none)
    else:
        printing.table(("STATE", "FILE"), [(row["state"], row["path"]) for row in rows], SHOWN_MAX_CHARS)
