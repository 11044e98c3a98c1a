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
from retinue.runtime.kernel import TOOL_TIMEOUT_S

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
    hooks: dict[str, Any] = {}
    mcp: dict[str, Any] = {}


class Settings(msgspec.Struct, kw_only=True):
    """Everything a runtime is made from, and where each of it came from."""

    data_dir: Path
    environ: dict[str, str]
    model: str | None = None
    policy: dict[str, Any] = {}
    connections: dict[str, dict[str, Any]] = {}
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
    policy: dict[str, Any] = {}
    connections: dict[str, dict[str, Any]] = {}
    tools = ToolSettings()
    models = [(model, "--model"), (environ.get("RETINUE_MODEL"), "RETINUE_MODEL")]
    sources = {"data_dir": _data_dir_source(data_dir, folder, environ), "model": "not set"}
    for file in (str(user_config_file()), str(folder / CONFIG)):
        found = _read_config(Path(file))
        changes = _flat(found.policy)
        policy.update(changes)
        connections.update(found.connections)
        tools = found.tools or tools
        models.insert(2, (found.model, file))
        sources.update({f"policy.{key}": file for key in changes})
        sources.update({f"connections.{name}": file for name in found.connections})
    chosen = next(((name, where) for name, where in models if name), None)
    if chosen is not None:
        sources["model"] = chosen[1]
    return Settings(
        data_dir=folder,
        environ=environ,
        model=None if chosen is None else chosen[0],
        policy=policy,
        connections=connections,
        home=Path(environ["HOME"]) if environ.get("HOME") else None,
        tool_timeout_s=None if tools.timeout_s == "none" else tools.timeout_s,
        sources=sources,
    )


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
    """Return a connection to be shown: what its headers hold and who its address lets in may be secret."""
    shown = dict(table)
    if isinstance(shown.get("headers"), dict):
        shown["headers"] = dict.fromkeys(shown["headers"], "…")
    if isinstance(shown.get("base_url"), str):
        shown["base_url"] = without_login(shown["base_url"])
    return shown


def without_login(url: str) -> str:
    """Return an address without user and password."""
    scheme, separator, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"


def _read_config(path: Path) -> Config:
    if not os.access(path.parent, os.X_OK):
        return Config()  # no such folder, or one that opening the record refuses with its own sentence
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return Config()
    except (OSError, ValueError) as error:
        detail = f"The settings file {path} cannot be read: {error}."
        raise RetinueError("invalid", detail, "Mend or move it.") from error
    try:
        config = msgspec.convert(table, Config)
    except msgspec.ValidationError as error:
        detail = f"The settings file {path} is wrong: {error}."
        raise RetinueError("invalid", detail, "See docs/settings.md.") from error
    for name, table in (("hooks", config.hooks), ("mcp", config.mcp)):
        if table:
            detail = f"The settings file {path} has [{name}], which this version does not act on yet."
            raise RetinueError("unsupported", detail, "Take the table out; nothing would run it.")
    return config


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return dotted keys: `[policy] caps.running.root = 2` is a table of tables in TOML."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat.update(_flat(cast("Mapping[str, Any]", value), f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
