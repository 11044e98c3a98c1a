"""Which MCP servers the files of a project and a person name, and which of those files act; it starts nothing.

A project's file can start commands, so it acts only when the person trusted what it holds now (`retinue trust`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from retinue.core.errors import RetinueError
from retinue.definitions.places import project_folders
from retinue.trust import Trust, content_of

PROJECT_FILE: Final = ".mcp.json"
_TRANSPORTS: Final = {
    "stdio": "stdio",
    "http": "http",
    "streamable-http": "http",
    "streamableHttp": "http",
    "sse": "sse",
}
_KEYS: Final = frozenset({"command", "args", "env", "cwd", "url", "headers"})
_QUIET: Final = frozenset({"type", "transport", "disabled", "enabled", "description"})

Tables = dict[str, dict[str, Any]]


class _ProjectFile(msgspec.Struct):
    servers: dict[str, dict[str, Any]] = msgspec.field(name="mcpServers", default_factory=dict[str, dict[str, Any]])


def project_servers(start: Path, home: Path | None, notes: list[str]) -> Tables:
    """Return the servers of the nearest `.mcp.json` from a folder up to its project's root, as `[mcp.NAME]` tables.

    None where the file is not trusted or wrong; `notes` says so. Blocks.
    """
    here = start.resolve()
    folders = project_folders(here, None if home is None else home.resolve())
    path = next((folder / PROJECT_FILE for folder in folders if (folder / PROJECT_FILE).exists()), None)
    if path is None:
        return {}
    try:
        content = content_of(path)
        if not is_trusted(path, content, notes):
            return {}
        found = msgspec.json.decode(content.removeprefix(b"\xef\xbb\xbf"), type=_ProjectFile)
    except RetinueError as error:
        notes.append(f"The MCP servers of {path} are left out: {error.detail}")
        return {}
    except (msgspec.DecodeError, RecursionError) as error:
        notes.append(f"The MCP servers of {path} are left out: the file is no JSON of that form: {error}.")
        return {}
    return {name: _table(name, said, path, notes) for name, said in found.servers.items()}


def is_trusted(path: Path, content: bytes, notes: list[str]) -> bool:
    """Return whether a file may act; where not, `notes` says what to do. Blocks."""
    if Trust().holds(path, content):
        return True
    notes.append(
        f"The MCP servers of {path} are not started: nobody has trusted this content yet. "
        "Look at it, then call 'retinue trust'."
    )
    return False


def _table(name: str, said: Mapping[str, Any], path: Path, notes: list[str]) -> dict[str, Any]:
    """Return a server of the public format in our own words; keys that mean nothing here are named in `notes`."""
    table = {key: value for key, value in said.items() if key in _KEYS}
    kind = said.get("type", said.get("transport"))
    if kind is not None:
        table["transport"] = _TRANSPORTS.get(cast("Any", str(kind)), kind)
    if said.get("disabled") is True or said.get("enabled") is False:
        table["enabled"] = False
    odd = sorted(set(said) - _KEYS - _QUIET)
    if odd:
        notes.append(f"{path}: {', '.join(odd)} of the MCP server {name!r} mean nothing here.")
    return table
