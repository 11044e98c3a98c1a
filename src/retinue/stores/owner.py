"""The data directory and the lock of its one owner process; it never opens the store or the control socket."""

import errno
import fcntl
import json
import os
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from retinue.core.errors import RetinueError

LOCK_NAME: Final = "owner.lock"
_TRIES: Final = 100
"""How often a lock that is held, but names no living owner, is looked at again."""
_PAUSE_S: Final = 0.005
_CONTENT_BYTES_MAX: Final = 65_536
_NO_ROOM: Final = "Free some space there, or name another --data-dir or RETINUE_DATA_DIR."
_NO_RIGHT: Final = "Give this user the right to write there, or name another one with --data-dir or RETINUE_DATA_DIR."
_NO_WRITING: Final = "Nothing can be written there: name another one with --data-dir or RETINUE_DATA_DIR."
_NO_FILES: Final = "Close some programs or raise the limit of open files, then try again."
_REMEDIES: Final = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EFBIG: "Raise the limit of a file's size (ulimit -f), or name another --data-dir.",
    errno.EACCES: _NO_RIGHT,
    errno.EPERM: _NO_RIGHT,
    errno.EROFS: _NO_WRITING,
    errno.EMFILE: _NO_FILES,
    errno.ENFILE: _NO_FILES,
}


class OwnerLock:
    """The right to write to one data directory: an flock on `owner.lock`, which the system frees when we die.

    While it is held the file says in JSON who holds it: `pid`, `command`, `started_at`, `socket`. The file is never
    removed, so no two processes can hold locks on two files of that name.
    """

    def __init__(self, data_dir: str | Path) -> None:
        """Name the directory; nothing is locked yet."""
        self._path: Final = Path(data_dir) / LOCK_NAME
        self._fd: int | None = None
        self._content: dict[str, Any] = {}

    def acquire(self, command: str, socket: str | None = None) -> None:
        """Become the owner.

        Raises `store_owned` naming the owner's pid and command, `store_failed` when the lock file cannot be written.
        """
        if self._fd is not None:
            return
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as cause:
            raise _failed(self._path, cause) from cause
        try:
            self._content = _take(fd, self._path.parent, command, socket)
        except OSError as cause:
            os.close(fd)
            raise _failed(self._path, cause) from cause
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def announce(self, socket: str) -> None:
        """Say where the owner listens; only while the lock is held."""
        if self._fd is None:
            raise RuntimeError("announce() without acquire()")
        self._content["socket"] = socket
        try:
            _write(self._fd, self._content)
        except OSError as cause:
            raise _failed(self._path, cause) from cause

    def release(self) -> None:
        """Give the directory back; idempotent."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        with suppress(OSError):  # what stays in the file counts for nothing once the lock is free
            os.ftruncate(fd, 0)
        os.close(fd)


def read_owner(data_dir: str | Path) -> dict[str, Any] | None:
    """Return who owns the directory now: `pid`, `command`, `started_at`, `socket`; `None` when nobody does.

    An owner that cannot be named (it keeps the lock but wrote nothing) has null in every key. Raises `store_failed`
    when the lock file cannot be read.
    """
    path = Path(data_dir) / LOCK_NAME
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError as cause:
        raise _failed(path, cause) from cause
    try:
        return _lock_or_owner(fd, shared=True)
    finally:
        os.close(fd)


def prepare_data_dir(path: str | Path) -> Path:
    """Return the data directory, made with mode 0700 and a `.gitignore` of `*` where it is missing.

    Raises `store_failed` with one sentence for a place where no such folder can be.
    """
    folder = Path(path)
    ignore = folder / ".gitignore"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not ignore.exists():
            ignore.write_text("*\n", encoding="utf-8")
        if not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    except OSError as cause:
        raise RetinueError(
            "store_failed",
            f"The data directory {folder} cannot be used: {_reason(cause)}.",
            _remedy(cause, "Name another one with --data-dir or RETINUE_DATA_DIR."),
        ) from cause
    return folder


def _take(fd: int, data_dir: Path, command: str, socket: str | None) -> dict[str, Any]:
    owner = _lock_or_owner(fd)
    if owner is not None:
        raise _owned(data_dir, owner)
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    content = {"pid": os.getpid(), "command": command, "started_at": started_at, "socket": socket}
    _write(fd, content)
    return content


def _lock_or_owner(fd: int, *, shared: bool = False) -> dict[str, Any] | None:
    """Take the lock and return `None`, or return who holds it.

    Between an owner's lock and its first line the file is empty or names a dead one, and somebody who only asks holds
    the shared lock for an instant: so an owner is believed when it was seen living twice, with a pause between.
    """
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    before: dict[str, Any] | None = None
    for _ in range(_TRIES):
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = _living(fd)
            if owner is not None and before is not None and owner["pid"] == before["pid"]:
                return owner
            before = owner
            time.sleep(_PAUSE_S)
        else:
            return None
    return {"pid": None, "command": None, "started_at": None, "socket": None}


def _living(fd: int) -> dict[str, Any] | None:
    try:
        owner: dict[str, Any] = json.loads(os.pread(fd, _CONTENT_BYTES_MAX, 0))
        return owner if _lives(owner["pid"]) else None
    except (ValueError, KeyError, TypeError):
        return None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # it lives, and is somebody else's
    except (ProcessLookupError, OverflowError):
        return False
    return True


def _write(fd: int, content: dict[str, Any]) -> None:
    data = json.dumps(content).encode()
    os.pwrite(fd, data, 0)
    os.ftruncate(fd, len(data))


def _owned(data_dir: Path, owner: dict[str, Any]) -> RetinueError:
    who = "another process" if owner["pid"] is None else f"process {owner['pid']} ({owner['command']})"
    hint = "Wait until it has ended, stop it, or name another --data-dir. Reading commands work meanwhile."
    return RetinueError("store_owned", f"The data directory {data_dir} is owned by {who}.", hint)


def _failed(path: Path, cause: OSError) -> RetinueError:
    hint = _remedy(cause, "See what stands there, or name another --data-dir.")
    return RetinueError("store_failed", f"The owner's lock {path} cannot be used: {_reason(cause)}.", hint)


def _remedy(cause: OSError, other: str) -> str:
    """Return what to do about a cause; `other` where the system names none of those that are known."""
    return _REMEDIES.get(cause.errno or 0, other)


def _reason(cause: OSError) -> str:
    if isinstance(cause, FileExistsError | NotADirectoryError):
        return "a file stands in its place"
    return (cause.strerror or str(cause)).lower()
