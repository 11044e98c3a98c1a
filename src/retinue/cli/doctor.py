"""`doctor`: looks at everything Retinue needs and says what to do about what is missing; it changes nothing."""

import os
import platform
import sys
from pathlib import Path
from typing import Final, Literal

import msgspec

from retinue.app import DATABASE, Settings, read_settings, user_config_file
from retinue.cli import printing
from retinue.cli.options import Where
from retinue.core.errors import RetinueError
from retinue.models.registry import ModelRegistry
from retinue.ports import StoreError
from retinue.stores.connection import MEMORY
from retinue.stores.owner import read_owner
from retinue.stores.sqlite import SQLiteStore, open_reading

PYTHON_LEAST: Final = (3, 11)
SQLITE_LEAST: Final = (3, 51, 3)
"""The first that has the WAL-reset corruption fixed."""
MOUNTS: Final = Path("/proc/self/mounts")
NETWORK_FILE_SYSTEMS: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "fuse.sshfs", "davfs", "ncpfs"}
)
_FAILED: Final = 1
_STORE: Final = 5

Grade = Literal["ok", "warn", "fail"]


class Check(msgspec.Struct, frozen=True):
    """One thing that was looked at; `remedy` is empty where nothing is to be done."""

    check: str
    status: Grade
    detail: str
    remedy: str = ""


def doctor(options: Where) -> int:
    """Print every check; exit 0 unless one fails, 5 where that is the record."""
    checks = [_python(), _sqlite(), *_places(options)]
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


def _places(options: Where) -> list[Check]:
    try:
        settings = read_settings(options.data_dir)
    except RetinueError as error:
        return [Check("settings", "fail", error.detail, error.hint)]
    user = user_config_file()
    found = "" if user.exists() else " (there is none)"
    return [
        Check("settings", "ok", f"project: {settings.data_dir / 'config.toml'}; user: {user}{found}"),
        _folder(settings),
        *_mount(settings.data_dir),
        *_record(settings),
        _model(settings),
        *_keys(settings),
    ]


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


def _mount(folder: Path) -> list[Check]:
    """Warn about a network file system: SQLite's locks and its log need a local one."""
    kind = _file_system(folder)
    if kind not in NETWORK_FILE_SYSTEMS:
        return []
    detail = f"The data directory lies on a network file system ({kind}), where SQLite's locks may not hold."
    return [Check("file system", "warn", detail, "Name a local folder with --data-dir.")]


def _file_system(folder: Path) -> str:
    """Return the type of the file system a folder lies on, empty where the system does not say."""
    try:
        mounts = [entry.split() for entry in MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return ""
    real = os.path.realpath(folder)
    inside = [(entry[1], entry[2]) for entry in mounts if len(entry) > 2 and _is_inside(real, entry[1])]
    return max(inside, key=lambda entry: len(entry[0]), default=("", ""))[1]


def _is_inside(path: str, mount: str) -> bool:
    return path == mount or path.startswith(mount.rstrip("/") + "/")


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
    return Check("record", "ok", f"{path}, schema {schema}, not damaged")


def _model(settings: Settings) -> Check:
    if settings.model is None:
        remedy = "Set RETINUE_MODEL or give --model; --model offline needs no key."
        return Check("model", "warn", "None is named.", remedy)
    source = settings.sources["model"]
    try:
        ModelRegistry(settings.connections, environment=settings.environ).find(settings.model)
    except RetinueError as error:
        return Check("model", "fail", f"{settings.model} ({source}): {error.detail}", error.hint)
    return Check("model", "ok", f"{settings.model} ({source})")


def _keys(settings: Settings) -> list[Check]:
    try:
        rows = ModelRegistry(settings.connections, environment=settings.environ).rows()
    except RetinueError as error:
        return [Check("connections", "fail", error.detail, error.hint)]
    return [
        Check(f"key of {row.name}", "ok", f"{row.api_key_env} is set")
        if row.key_set
        else Check(f"key of {row.name}", "warn", f"{row.api_key_env} is not set", "Set it where its models are used.")
        for row in rows
        if row.api_key_env is not None
    ]
