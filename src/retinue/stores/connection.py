"""One SQLite connection behind its lock, the named statements, and what SQLite's errors mean; it knows no table."""

import ctypes
import os
import threading
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from stat import S_ISDIR
from typing import Any, Final

import apsw

from retinue.ports import StoreError

MEMORY: Final = ":memory:"
BUSY_TIMEOUT_MS: Final = 5_000
"""How long a statement waits for another process's lock before it fails."""

_MARK: Final = "-- name: "


def named_statements(text: str) -> dict[str, str]:
    """Return the blocks of a SQL file by name; a block runs from its `-- name:` line to the next one."""
    blocks: dict[str, str] = {}
    for block in ("\n" + text).split("\n" + _MARK)[1:]:
        name, _, statements = block.partition("\n")
        blocks[name.strip()] = statements.strip()
    return blocks


@cache
def statements() -> dict[str, str]:
    """Return the named statements of `queries.sql`; read when the first store opens, not on import."""
    return named_statements(files("retinue.stores").joinpath("queries.sql").read_text("utf-8"))


class Connection:
    """A connection that any thread may use: one statement or one transaction at a time."""

    def __init__(self, path: str, *, writing: bool) -> None:
        """Open the database; a writing one is created when it is missing.

        Raises `StoreError` with the path and the cause.
        """
        self.path: Final = path
        self._lock: Final = threading.RLock()
        wanted = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        with self._explained():
            # Any: apsw's stubs use a Buffer type that the typing module has only from 3.12 on.
            self._sqlite: Final[Any] = apsw.Connection(path, flags=wanted) if writing else _opened_to_read(path)
            self._sqlite.set_busy_timeout(BUSY_TIMEOUT_MS)
        if writing and self._sqlite.readonly("main"):
            self._sqlite.close()
            raise StoreError(f"The store {path} cannot be opened for writing: {_os_cause(path) or 'it is read-only'}.")

    def rows(self, name: str, bindings: Mapping[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Return all rows of a named statement; raise `StoreError`."""
        with self._lock, self._explained():
            return self._sqlite.execute(statements()[name], bindings or {}).fetchall()

    def value(self, name: str, bindings: Mapping[str, Any] | None = None) -> Any:
        """Return the first column of the first row, or `None` without a row."""
        found = self.rows(name, bindings)
        return found[0][0] if found else None

    def many(self, name: str, rows: Iterable[tuple[Any, ...]]) -> None:
        """Run a named statement once for each row."""
        with self._lock, self._explained():
            self._sqlite.executemany(statements()[name], rows)

    def script(self, text: str) -> None:
        """Run the statements of a migration."""
        with self._lock, self._explained():
            self._sqlite.execute(text)

    @contextmanager
    def transaction(self) -> Generator[None]:
        """Hold the connection and the database's write lock; commit durably, or leave everything as it was."""
        with self._lock:
            self.rows("begin")
            try:
                yield
                self.rows("commit")
            except BaseException:
                # A failed commit may have rolled back by itself; what is left open here must not stay so.
                with suppress(StoreError):
                    if self._sqlite.in_transaction:
                        self.rows("rollback")
                raise

    def keep_wal(self) -> None:
        """Leave the write-ahead log's (empty) files in place on close, so that readers never have to create them."""
        keep = ctypes.c_int(1)
        with self._lock, self._explained():
            self._sqlite.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, ctypes.addressof(keep))

    def close(self) -> None:
        """Close; idempotent."""
        with self._lock, self._explained():
            self._sqlite.close()

    @contextmanager
    def _explained(self) -> Generator[None]:
        try:
            yield
        except apsw.Error as cause:
            raise StoreError(_sentence(self.path, cause)) from cause
        except UnicodeDecodeError as cause:
            raise StoreError(f"The store {self.path} is damaged: a text in it is not UTF-8 ({cause}).") from cause
        except UnicodeEncodeError as cause:
            raise StoreError(
                f"A text holds half a character (a lone surrogate), so nothing was stored: {cause}."
            ) from cause


def _opened_to_read(path: str) -> Any:
    """Open a database to read, also where SQLite cannot make the files it shares with a writer: there is none then."""
    plain: Any = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        plain.set_busy_timeout(BUSY_TIMEOUT_MS)
        plain.execute("PRAGMA schema_version").fetchall()
    except (apsw.ReadOnlyError, apsw.CantOpenError):
        plain.close()
        if not _is_at_rest(path):
            raise
    except apsw.Error:
        plain.close()
        raise
    else:
        return plain
    uri = f"{Path(path).absolute().as_uri()}?immutable=1"
    return apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)


def _is_at_rest(path: str) -> bool:
    """Return whether nobody can be writing and all that was committed stands in the file itself."""
    log, index, journal = (Path(f"{path}-{end}") for end in ("wal", "shm", "journal"))
    try:
        if any(file.exists() and file.stat().st_size for file in (log, journal)):
            return False
        return Path(path).exists() and not (log.exists() and index.exists())
    except OSError:
        return False


_SENTENCES: Final[tuple[tuple[type[apsw.Error], str], ...]] = (
    (
        apsw.NotADBError,
        "{path} is not a Retinue store: it is no SQLite database. Move it away or name another data directory.",
    ),
    (apsw.CorruptError, "The store {path} is damaged ({cause}). Move it away, or put a copy in its place."),
    (apsw.FullError, "The store {path} could not be written: the disk is full. Make room and start again."),
    (apsw.BusyError, "The store {path} is locked by another process ({cause}). Try again when it has ended."),
    (apsw.CantOpenError, "The store {path} cannot be opened: {os_cause}."),
    (apsw.ReadOnlyError, "The store {path} cannot be written: {os_cause}."),
    (apsw.IOError, "The store {path} failed: {os_cause}."),
    (apsw.ConnectionClosedError, "The store {path} is closed."),
)


def _sentence(path: str, cause: apsw.Error) -> str:
    known = (text for kind, text in _SENTENCES if isinstance(cause, kind))
    template = next(known, "The store {path} failed: {cause}.")
    return template.format(path=path, cause=cause, os_cause=_os_cause(path) or cause)


def _os_cause(path: str) -> str | None:
    """Return the system's reason, which SQLite does not pass on.

    It only asks: closing a second descriptor of an open database would drop the locks that SQLite holds on it.
    """
    file = Path(path).absolute()
    try:
        is_folder = S_ISDIR(file.stat().st_mode)
    except FileNotFoundError:
        return "there is no such file" if file.parent.is_dir() and _may_write(file.parent) else _why_not(file.parent)
    except OSError as cause:
        return (cause.strerror or str(cause)).lower()
    if is_folder:
        return "it is a folder"
    return _why_not(file) or _why_not(file.parent)


def _why_not(place: Path) -> str | None:
    if not place.exists():
        return f"there is no {place}"
    return None if _may_write(place) else f"no right to write to {place}"


def _may_write(place: Path) -> bool:
    return os.access(place, os.W_OK, effective_ids=os.access in os.supports_effective_ids)
