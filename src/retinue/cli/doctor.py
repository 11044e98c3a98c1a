"""`doctor`: looks at everything Retinue needs and says what to do about what is missing; it changes nothing."""

import os
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from retinue.app import DATABASE
from retinue.cli import printing
from retinue.cli.options import Where
from retinue.core.errors import RetinueError
from retinue.core.policy import named, with_changes
from retinue.models.registry import ConnectionRow, ModelRegistry
from retinue.ports import StoreError
from retinue.settings import CONFIG, Settings, read_settings, user_config_file
from retinue.stores.connection import MEMORY
from retinue.stores.filesystem import network_file_system, warning
from retinue.stores.owner import read_owner
from retinue.stores.schema import VERSION
from retinue.stores.sqlite import SQLiteStore, open_reading
from retinue.tools.connectors import servers_of
from retinue.tools.mcplink import require_sdk

PYTHON_LEAST: Final = (3, 11)
SQLITE_LEAST: Final = (3, 51, 3)
"""The first that has the WAL-reset corruption fixed."""
MIB: Final = 1024 * 1024
FREE_LEAST_BYTES: Final = 10 * MIB
_FAILED: Final = 1
_STORE: Final = 5

Grade = Literal["ok", "warn", "fail"]


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at; `remedy` is empty where nothing is to be done."""

    check: str
    status: Grade
    detail: str
    remedy: str = ""


def doctor(options: Where, file_system: Callable[[Path], str | None] = network_file_system) -> int:
    """Print every check; exit 0 unless one fails, 5 where that is the record."""
    checks = [_python(), _sqlite(), *_places(options, file_system)]
    if options.json:
        printing.document({"items": [msgspec.to_builtins(check) for check in checks], "next": None})
    else:
        width = max(len(check.check) for check in checks)
        for check in checks:
            printing.text(f"{check.status.ljust(4)}  {check.check.ljust(width)}  {check.detail}")
            if check.remedy:
                printing.text(f"{' ' * (width + 8)}{check.remedy}")
    failed = [check.check for check in checks if check.status == "fail"]
    if not failed:
        return 0
    return _STORE if any(name in ("data directory", "record", "owner") for name in failed) else _FAILED


def _python() -> Check:
    detail = f"Python {platform.python_version()} at {sys.executable}"
    if sys.version_info[:2] < PYTHON_LEAST:
        return Check("python", "fail", detail, "Install Python 3.11 or newer.")
    return Check("python", "ok", detail)


def _sqlite() -> Check:
    store = SQLiteStore(MEMORY)
    version, _ = store.versions()
    store.close()
    if tuple(int(part) for part in version.split(".")[:3]) < SQLITE_LEAST:
        return Check("sqlite", "fail", f"SQLite {version}", "Install the package apsw 3.51.3 or newer.")
    return Check("sqlite", "ok", f"SQLite {version}")


def _places(options: Where, file_system: Callable[[Path], str | None]) -> list[Check]:
    try:
        settings = read_settings(options.data_dir)
        with_changes(named("standard"), settings.policy)
    except RetinueError as error:
        return [Check("settings", "fail", error.detail, error.hint)]
    user = user_config_file()
    project = settings.data_dir / CONFIG
    return [
        Check("settings", "ok", f"project: {project}{_none(project)}; user: {user}{_none(user)}"),
        _folder(settings),
        *room(settings.data_dir),
        *_mount(settings.data_dir, file_system(settings.data_dir)),
        *_record(settings),
        _model(settings),
        *_keys(settings),
        *_servers(settings),
    ]


def _none(file: Path) -> str:
    return "" if os.path.exists(file) else " (there is none)"


def room(folder: Path, usage: Callable[[Path], Any] = shutil.disk_usage) -> list[Check]:
    """Return a warning about a disk that is as good as full, else nothing; `usage` says how many bytes are `free`."""
    place = next((place for place in (folder, *folder.parents) if os.path.isdir(place)), Path("/"))
    try:
        free_bytes: int = usage(place).free
    except OSError:
        return []  # what hinders that hinders more, and other checks name it
    if free_bytes >= FREE_LEAST_BYTES:
        return []
    detail = f"{place} has {free_bytes / MIB:.1f} MiB left"
    return [Check("room", "warn", detail, f"Free some space: below {FREE_LEAST_BYTES // MIB} MiB a run may not end.")]


def _folder(settings: Settings) -> Check:
    folder, source = settings.data_dir, settings.sources["data_dir"]
    detail = f"{folder} ({source})"
    remedy = "Get the right to write there, or name another one with --data-dir or RETINUE_DATA_DIR."
    if folder.is_dir():
        if not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            return Check("data directory", "fail", f"{detail} cannot be written to", remedy)
        return Check("data directory", "ok", detail)
    if folder.exists():
        return Check("data directory", "fail", f"{detail} is no folder", "Name another one with --data-dir.")
    above = next((parent for parent in folder.parents if parent.exists()), folder)
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        return Check("data directory", "fail", f"{detail} cannot be made: no right to write to {above}", remedy)
    return Check("data directory", "ok", f"{detail}; the first run makes it")


def _mount(folder: Path, kind: str | None) -> list[Check]:
    """Warn about a network file system: SQLite's locks and its log need a local one."""
    if kind is None:
        return []
    return [Check("file system", "warn", warning(folder, kind), "Name a local folder with --data-dir.")]


def _record(settings: Settings) -> list[Check]:
    path = settings.data_dir / DATABASE
    try:
        if not path.exists():
            return [Check("record", "ok", "none yet; the first run makes it")]
        owner = read_owner(settings.data_dir)
        checks = [_opened(path)]
    except RetinueError as error:
        return [Check("owner", "fail", error.detail, error.hint)]
    except OSError as error:
        return [
            Check("record", "fail", f"{path}: {(error.strerror or str(error)).lower()}", "Get the right to read it.")
        ]
    if owner is not None:
        checks.append(Check("owner", "ok", f"process {owner['pid']} since {owner['started_at']}: {owner['command']}"))
    return checks


def _opened(path: Path) -> Check:
    try:
        store = open_reading(path)
    except StoreError as error:
        return Check("record", "fail", str(error), "Put a copy in its place, or name another --data-dir.")
    try:
        damage = store.check()
        _, schema = store.versions()
    except StoreError as error:
        return Check("record", "fail", str(error), "Put a copy in its place, or name another --data-dir.")
    finally:
        store.close()
    if damage is not None:
        return Check("record", "fail", f"{path} is damaged: {damage}", "Put a copy in its place.")
    if schema > VERSION:
        detail = f"{path} was written by a newer Retinue (schema {schema}, this one knows {VERSION}); it can be read"
        return Check("record", "fail", detail, "Update Retinue, or name another --data-dir.")
    return Check("record", "ok", f"{path}, schema {schema}, not damaged")


def _model(settings: Settings) -> Check:
    if settings.model is None:
        remedy = "Set RETINUE_MODEL or give --model; --model offline needs no key."
        return Check("model", "warn", "no model is named", remedy)
    source = settings.sources["model"]
    try:
        ModelRegistry(settings.connections, environment=settings.environ).find(settings.model)
    except RetinueError as error:
        return Check("model", "fail", f"{settings.model} ({source}): {error.detail}", error.hint)
    return Check("model", "ok", f"{settings.model} ({source})")


def _keys(settings: Settings) -> list[Check]:
    try:
        registry = ModelRegistry(settings.connections, environment=settings.environ)
    except RetinueError as error:
        return [Check("connections", "fail", error.detail, error.hint)]
    rows = registry.rows()
    return [
        _providers(registry),
        *(
            Check(f"packages of {row.name}", "warn", f"models of {row.kind} are not installed", f"Run: {row.needs}")
            for row in rows
            if row.needs is not None
        ),
        *_keys_of(rows),
    ]


def _providers(registry: ModelRegistry) -> Check:
    """Say which providers of the extra can be asked; one that nobody named is no fault."""
    rows = registry.kinds()
    ready = ", ".join(row.kind for row in rows if row.needs is None)
    lacking = ", ".join(f"{row.kind} ({row.needs})" for row in rows if row.needs is not None)
    return Check("providers", "ok", f"ready: {ready or 'none'}; not installed: {lacking or 'none'}")


def _keys_of(rows: list[ConnectionRow]) -> list[Check]:
    return [
        Check(f"key of {row.name}", "ok", f"{row.api_key_env} is set")
        if row.key_set
        else Check(f"key of {row.name}", "warn", f"{row.api_key_env} is not set", "Set it where its models are used.")
        for row in rows
        if row.api_key_env is not None
    ]


def _servers(settings: Settings) -> list[Check]:
    """Return what is known of MCP servers without starting any."""
    found, problems = servers_of(settings.mcp, settings.environ, str(settings.project))
    said = [Check("mcp", "warn", problem) for problem in (*settings.notes, *problems)]
    if found:
        names = ", ".join(server.name for server, _ in found)
        try:
            require_sdk()
        except RetinueError as error:
            return [*said, Check("mcp", "fail", error.detail, error.hint)]
        return [*said, Check("mcp", "ok", f"{names} (not started by this check)")]
    return said
