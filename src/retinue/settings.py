"""Settings and where they come from: flags, environment, config files; it wires and starts nothing.

The only reader of the environment and of config files.
"""

import os
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, cast

import msgspec
import platformdirs

from retinue.core.errors import RetinueError
from retinue.mcpfiles import is_trusted, project_servers
from retinue.runtime.kernel import TOOL_TIMEOUT_S
from retinue.tools.connectors import ServerTable

DATA_DIR: Final = ".retinue"
CONFIG: Final = "config.toml"
TOOL_TIMEOUT_MAX_S: Final = 31_536_000
"""Seconds of a year: more is a typing error."""


class ToolSettings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`[tools]`: `timeout_s` bounds each call; `"none"` is no bound."""

    timeout_s: Annotated[float, msgspec.Meta(gt=0, le=TOOL_TIMEOUT_MAX_S)] | Literal["none"] = TOOL_TIMEOUT_S


class Config(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a config file says; a key that nothing reads is an error, never ignored."""

    model: str | None = None
    policy: dict[str, Any] = {}
    connections: dict[str, dict[str, Any]] = {}
    tools: ToolSettings | None = None
    models: dict[str, str] = {}
    hooks: dict[str, Any] = {}
    mcp: dict[str, dict[str, Any]] = {}


class Settings(msgspec.Struct, kw_only=True):
    """Everything a runtime is made from, and where each of it came from."""

    data_dir: Path
    environ: dict[str, str]
    model: str | None = None
    policy: dict[str, Any] = {}
    connections: dict[str, dict[str, Any]] = {}
    model_aliases: dict[str, str] = {}
    """What the model names of definitions mean here: `[models]`, as `sonnet = "anthropic:NAME"`."""
    mcp: dict[str, dict[str, Any]] = {}
    """MCP servers by name: `[mcp.NAME]`, and those of a project's `.mcp.json` that is trusted."""
    project: Path = Path()
    """Where MCP servers work: the folder that settings were looked for from."""
    notes: tuple[str, ...] = ()
    """What a person should know of files that were left out, in sentences."""
    home: Path | None = None
    tool_timeout_s: float | None = TOOL_TIMEOUT_S
    sources: dict[str, str] = {}
    """Setting → where it came from: a flag, a variable, a file."""

    def to_dict(self) -> dict[str, Any]:
        """Return what `retinue config show` prints; keys stay in the environment, and what headers hold is hidden."""
        return {
            "data_dir": str(self.data_dir),
            "model": self.model,
            "policy": self.policy,
            "connections": {name: _without_secrets(table) for name, table in self.connections.items()},
            "tools": {"timeout_s": self.tool_timeout_s},
            "models": self.model_aliases,
            "mcp": {name: _without_secrets(table) for name, table in self.mcp.items()},
            "sources": self.sources,
        }


def find_data_dir(named_dir: str | Path | None, start: str | Path, environ: Mapping[str, str]) -> Path:
    """Return the data directory: the named one, `RETINUE_DATA_DIR`, the nearest `.retinue/` upwards, or a new one.

    Raises `denied` for one that was found, not named, and that somebody else may have written: its settings say where
    keys are sent.
    """
    chosen = named_dir or environ.get("RETINUE_DATA_DIR")
    if chosen:
        return Path(chosen).expanduser().absolute()
    here = Path(start).absolute()
    for folder in (here, *here.parents):
        if (folder / DATA_DIR).is_dir():
            _require_own(folder / DATA_DIR)
            return folder / DATA_DIR
    return here / DATA_DIR


def _require_own(folder: Path) -> None:
    if not hasattr(os, "getuid"):
        return
    for path in (folder, folder / CONFIG):
        try:
            found = path.stat()
        except OSError:
            continue
        if found.st_uid != os.getuid() or found.st_mode & stat.S_IWOTH:
            who = "belongs to another user" if found.st_uid != os.getuid() else "can be written by everybody"
            detail = f"{path} {who}, so its settings are not trusted: they say where your keys are sent."
            raise RetinueError("denied", detail, "If you trust it, name it with --data-dir; else work elsewhere.")


def read_settings(data_dir: str | Path | None = None, *, start: str | Path = ".", model: str | None = None) -> Settings:
    """Return the settings: flag, then environment, then the project's file, then the user's, then the default.

    Raises `invalid` for a config file that cannot be read, naming it.
    """
    environ = dict(os.environ)
    folder = find_data_dir(data_dir, start, environ)
    made = Settings(
        data_dir=folder,
        environ=environ,
        project=Path(start).absolute(),
        home=Path(environ["HOME"]) if environ.get("HOME") else None,
        sources={"data_dir": _data_dir_source(data_dir, folder, environ), "model": "not set"},
    )
    notes: list[str] = []
    models = [(model, "--model"), (environ.get("RETINUE_MODEL"), "RETINUE_MODEL")]
    is_found = not (data_dir or environ.get("RETINUE_DATA_DIR"))
    for file in (str(user_config_file()), str(folder / CONFIG)):
        found, content = _read_config(Path(file))
        if file == str(folder / CONFIG):
            made.mcp.update(project_servers(made.project, made.home, notes))
            if found.mcp and is_found and not is_trusted(Path(file), content, notes):
                found.mcp = {}
        _take(made, found, file)
        models.insert(2, (found.model, file))
    made.notes = tuple(notes)
    chosen = next(((name, where) for name, where in models if name), None)
    if chosen is not None:
        made.model, made.sources["model"] = chosen
    return made


def _take(made: Settings, found: Config, file: str) -> None:
    """Let what a file says hold instead of what earlier ones said."""
    changes = _flat(found.policy)
    made.policy.update(changes)
    made.connections.update(found.connections)
    made.model_aliases.update(found.models)
    made.mcp.update(found.mcp)
    if found.tools is not None:
        made.tool_timeout_s = None if found.tools.timeout_s == "none" else found.tools.timeout_s
    made.sources.update({f"policy.{key}": file for key in changes})
    made.sources.update({f"connections.{name}": file for name in found.connections})
    made.sources.update({f"mcp.{name}": file for name in found.mcp})


def without_servers(settings: Settings) -> Settings:
    """Return the settings of an owner that runs no turn: it has no use for MCP servers."""
    return msgspec.structs.replace(settings, mcp={}, notes=())


def user_config_file() -> Path:
    """Return where the user's own settings lie, whether there are any or not."""
    return Path(platformdirs.user_config_dir("retinue", appauthor=False)) / CONFIG


def _data_dir_source(named_dir: str | Path | None, folder: Path, environ: Mapping[str, str]) -> str:
    if named_dir:
        return "--data-dir"
    if environ.get("RETINUE_DATA_DIR"):
        return "RETINUE_DATA_DIR"
    return "nearest .retinue/" if folder.is_dir() else "not made yet"


def _without_secrets(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a connection or server to be shown: its headers, its environment, its address's login may be secret."""
    shown = dict(table)
    for key in ("headers", "env"):
        if isinstance(shown.get(key), dict):
            shown[key] = dict.fromkeys(shown[key], "…")
    for key in ("base_url", "url"):
        if isinstance(shown.get(key), str):
            shown[key] = without_login(shown[key])
    return shown


def without_login(url: str) -> str:
    """Return an address without user and password."""
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"


def _read_config(path: Path) -> tuple[Config, bytes]:
    """Return what a file says and the bytes that say it; nothing where there is none."""
    if not os.access(path.parent, os.X_OK):
        return Config(), b""  # no such folder, or one that opening the record refuses with its own sentence
    try:
        content = path.read_bytes()
        table = tomllib.loads(content.decode())
    except (FileNotFoundError, NotADirectoryError):
        return Config(), b""
    except (OSError, ValueError) as error:
        detail = f"The settings file {path} cannot be read: {error}."
        raise RetinueError("invalid", detail, "Mend or move it.") from error
    try:
        config = msgspec.convert(table, Config)
    except msgspec.ValidationError as error:
        detail = f"The settings file {path} is wrong: {error}."
        raise RetinueError("invalid", detail, "See docs/settings.md.") from error
    for name, table in config.mcp.items():
        try:
            msgspec.convert(table, ServerTable)
        except msgspec.ValidationError as error:
            detail = f"The settings file {path} is wrong in [mcp.{name}]: {error}."
            raise RetinueError("invalid", detail, "See docs/howto/mcp.md.") from error
    if config.hooks:
        detail = f"The settings file {path} has [hooks], which this version does not act on yet."
        raise RetinueError("unsupported", detail, "Take the table out; nothing would run it.")
    return config, content


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return dotted keys: `[policy] caps.running.root = 2` is a table of tables in TOML."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat.update(_flat(cast("Mapping[str, Any]", value), f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
