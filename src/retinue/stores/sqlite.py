"""The SQLite store: one durable transaction per commit group, and reads beside it; it never folds a log."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from retinue.core.errors import RetinueError
from retinue.core.events import Event, StoredOutput
from retinue.core.ids import Digest, OutputId, Position, RunId, SessionId
from retinue.core.run import Run
from retinue.core.session import SessionRow
from retinue.ports import Batch, Deletion, Page, RunFilter, StoreError
from retinue.stores import schema
from retinue.stores.codec import StoredEvent, damaged_run, decode_event, decode_run, decode_session
from retinue.stores.connection import MEMORY, Connection
from retinue.stores.rows import Group, groups_of
from retinue.stores.samefiles import SameFiles

_LOG: Final = logging.getLogger("retinue")
_NUMBER_MAX: Final = 2**63 - 1
_NO_LIMIT: Final = -1
_ON: Final = "on"
_OFF: Final = "off"
_Row = tuple[Any, ...]

T = TypeVar("T")


class SQLiteStore:
    """A `Store` in one SQLite file, or in memory.

    Commits go through one connection and reads through another, so a long read never holds up a commit. Any thread
    may call it. Everything raises `StoreError` with the path and the cause.

    Attributes:
        path: the file as it was named.
        read_only: why it takes no commits, one sentence; null for a store that does.
    """

    def __init__(self, path: str | Path, *, reading: bool = False) -> None:
        """Open the store for its owner, made or brought up to date when needed; or for `reading` what is there."""
        self.path: Final = str(path)
        self.read_only: str | None = None
        self._writer: Connection | None = None
        self._files: SameFiles | None = None
        if self.path == MEMORY:
            self._reader = self._writer = Connection(MEMORY, writing=True)
            schema.migrate(self._writer)
            return
        version = _version_on_disk(self.path, must_exist=reading)
        if version > schema.VERSION:
            self.read_only = schema.newer(self.path, version)
        elif reading:
            self.read_only = schema.reading(self.path, version)
        else:
            self._writer = _open_writer(self.path, version)
        self._reader = _open_reader(self.path)
        if self._writer is not None:
            self._files = SameFiles(self.path)

    def commit(self, batches: Sequence[Batch]) -> None:
        """Store the batches in order in one durable transaction.

        Raises `SeqConflict` when they do not continue the stored log or belong to a deleted session, and
        `StoreError` for everything else; nothing is stored then.
        """
        if self._writer is None:
            raise StoreError(self.read_only or "")
        groups = groups_of(batches)
        writer = self._writer
        self._require_files()
        with writer.transaction():
            for group in groups:
                _store(writer, group)
        # Once more: what was committed to a file without a name is not stored, and nobody is told that it is.
        self._require_files()

    def _require_files(self) -> None:
        if self._files is not None:
            self._files.require()

    def read(self, session_id: SessionId, after: int = 0, limit: int | None = None) -> list[Event]:
        """Return a session's events with `seq` > `after`, in order."""
        wanted = {"session_id": session_id, "after": after, "limit": _NO_LIMIT if limit is None else _at_least_0(limit)}
        return self._decoded(_event, self._reader.rows("read", wanted))

    def tail(self, after: int, root_id: SessionId | None = None, limit: int = 1000) -> list[Event]:
        """Return events with `position` > `after`, in order, of one tree where `root_id` is given."""
        name, wanted = "tail", {"after": after, "limit": _at_least_0(limit)}
        if root_id is not None:
            name, wanted = "tail_of_tree", {**wanted, "root_id": root_id}
        return self._decoded(_event, self._reader.rows(name, wanted))

    def position(self) -> Position:
        """Return the highest position ever stored, 0 for a new store; deleting events does not lower it."""
        return Position(self._reader.value("position"))

    def switch(self) -> bool:
        """Return whether the master switch is on; it is in a new store."""
        return self._reader.value("switch") != _OFF

    def last_seq(self, session_id: SessionId) -> int:
        """Return a session's last `seq`, 0 for an unknown one."""
        return self._reader.value("last_seq", {"session_id": session_id}) or 0

    def session(self, session_id: SessionId) -> SessionRow | None:
        """Return one session's row."""
        found = self._reader.rows("session", {"session_id": session_id})
        return self._decoded(_session, found)[0] if found else None

    def sessions(
        self, page: Page, *, roots_only: bool = True, open_only: bool = False
    ) -> tuple[list[SessionRow], str | None]:
        """Return rows, newest first, and the cursor of the next page; `open_only` keeps those with an open turn.

        A damaged row is left out, with a warning in the program's log.
        """
        wanted = {"before": _number(page, _NUMBER_MAX), "limit": _at_least_0(page.limit) + 1}
        if open_only:
            found = self._reader.rows("sessions_open", {**wanted, "roots_only": roots_only})
        else:
            found = self._reader.rows("sessions_of_roots" if roots_only else "sessions", wanted)
        shown, cursor = _cut(found, page)
        return self._readable_sessions(shown), cursor

    def run(self, run_id: RunId) -> Run | None:
        """Return one run; raise `StoreError` when its row is damaged."""
        found = self._reader.rows("run", {"run_id": run_id})
        return self._decoded(_run, found)[0] if found else None

    def runs(self, where: RunFilter, page: Page) -> tuple[list[Run], str | None]:
        """Return runs in the order they were created, and the cursor of the next page.

        A damaged row is a run named `(damaged)` that failed with reason `internal`; `open_only` goes by what the row
        was before.
        """
        ids = {"root_id": where.root_id, "parent_id": where.parent_id, "session_id": where.session_id}
        wanted = {**ids, "after": _number(page, 0), "limit": _at_least_0(page.limit) + 1}
        shown, cursor = _cut(self._reader.rows(_runs_statement(where), wanted), page)
        return [run for row in shown for run in self._run_or_damaged(row)], cursor

    def blob(self, digest: Digest) -> bytes | None:
        """Return a stored blob."""
        return self._reader.value("blob", {"digest": digest})

    def output(self, output_id: OutputId) -> StoredOutput | None:
        """Return a text that was stored whole."""
        found = self._reader.rows("output", {"output_id": output_id})
        if not found:
            return None
        stored_id, session_id, text = found[0]
        return StoredOutput(output_id=stored_id, session_id=session_id, text=text)

    def check(self) -> str | None:
        """Return what is damaged in the file's structure, in SQLite's words; null when nothing is. Reads all of it."""
        found = str(self._reader.value("quick_check"))
        return None if found == "ok" else found

    def versions(self) -> tuple[str, int]:
        """Return SQLite's version and the schema's."""
        return str(self._reader.value("sqlite")), int(self._reader.value("version"))

    def close(self) -> None:
        """Close the files; idempotent."""
        self._reader.close()
        if self._writer is not None:
            self._writer.close()

    def _run_or_damaged(self, row: _Row) -> list[Run]:
        try:
            return [_run(row)]
        except StoreError as cause:
            # Asked for only now: reading all the columns of every row would cost more than damage is worth.
            found = self._reader.rows("damaged_run", {"number": row[0]})
            return [damaged_run(ids, cause) for ids in found]

    def _readable_sessions(self, rows: Sequence[_Row]) -> list[SessionRow]:
        shown: list[SessionRow] = []
        damaged: list[StoreError] = []
        for row in rows:
            try:
                shown.append(_session(row))
            except StoreError as cause:
                damaged.append(cause)
        if damaged:
            _LOG.warning("%s: %d damaged session row(s) left out of a list: %s", self.path, len(damaged), damaged[0])
        return shown

    def _decoded(self, decode: Callable[[_Row], T], rows: Sequence[_Row]) -> list[T]:
        try:
            return [decode(row) for row in rows]
        except StoreError as cause:
            raise StoreError(f"{self.path}: {cause}") from cause


def _store(writer: Connection, group: Group) -> None:
    """Store a group inside a transaction; its deletion comes last."""
    group.check_alive(lambda session_id: writer.value("is_deleted", {"session_id": session_id}) is not None)
    group.check_continues(
        writer.value("position"),
        lambda session_id: writer.value("last_seq", {"session_id": session_id}) or 0,
    )
    writer.many("add_event", group.events)
    writer.many("put_session", group.sessions)
    writer.many("put_run", group.runs)
    writer.many("add_blob", group.blobs)
    writer.many("add_output", group.outputs)
    if group.switch is not None:
        writer.many("put_meta", [("switch", _ON if group.switch else _OFF)])
    if group.deleted is not None:
        _delete(writer, group.deleted)


def _delete(writer: Connection, deletion: Deletion) -> None:
    # The highest position may be among the events that go, and no later one may repeat it.
    writer.many("put_meta", [("position", str(writer.value("position")))])
    ids = [(session_id,) for session_id in deletion.session_ids]
    for name in ("add_deleted", "delete_events", "delete_session", "delete_outputs", "delete_runs"):
        writer.many(name, ids)


def open_reading(path: str | Path) -> SQLiteStore:
    """Return the store for reading only, beside an owner or without one; nothing is created or written.

    Raises `StoreError` for a missing, damaged or foreign database, and for one of an older version.
    """
    return SQLiteStore(path, reading=True)


def _version_on_disk(path: str, *, must_exist: bool) -> int:
    """Return a file's schema version without changing it, 0 for one that is empty or missing."""
    if not _has_content(path):
        _require_no_log(path)
        if not must_exist:
            return 0
    # An owner that was killed while it made the store leaves a journal, which only a writer can roll back.
    found = Connection(path, writing=not must_exist and Path(f"{path}-journal").exists())
    try:
        return schema.version_of(found)
    finally:
        found.close()


def _has_content(path: str) -> bool:
    try:
        return Path(path).stat().st_size > 0
    except OSError:
        return False  # opening it will say why, in its own sentence


def _require_no_log(path: str) -> None:
    """Refuse to begin anew beside a log that holds something: SQLite would throw it away."""
    if _has_content(f"{path}-wal"):
        raise StoreError(
            f"The store {path} is damaged: it is empty or missing, but its log {path}-wal is not. "
            "Put a copy of both in their place, or move the log away to begin anew."
        )


def _open_writer(path: str, version: int) -> Connection:
    writer = Connection(path, writing=True)
    try:
        writer.rows("set_up_writer")
        # A new schema is written before the write-ahead log is switched on: no torn tail can take it away.
        if version < schema.VERSION:
            schema.migrate(writer)
        writer.rows("use_wal")
        writer.keep_wal()
    except StoreError:
        writer.close()
        raise
    return writer


def _open_reader(path: str) -> Connection:
    reader = Connection(path, writing=False)
    try:
        reader.rows("set_up_reader")
    except StoreError:
        reader.close()
        raise
    return reader


def _runs_statement(where: RunFilter) -> str:
    if where.open_only:
        return "runs_open"
    if where.session_id is not None:
        return "runs_of_session"
    if where.parent_id is not None:
        return "runs_of_parent"
    return "runs" if where.root_id is None else "runs_of_tree"


def _event(row: _Row) -> Event:
    return decode_event(StoredEvent._make(row))


def _session(row: _Row) -> SessionRow:
    _, body, updated_at, stored_events = row
    return decode_session(body, updated_at, stored_events)


def _run(row: _Row) -> Run:
    _, body, queue_position = row
    return decode_run(body, queue_position)


def _cut(found: list[_Row], page: Page) -> tuple[list[_Row], str | None]:
    """Return the rows of the page and the cursor after its last row when more follow."""
    shown = found[: page.limit]
    return shown, str(shown[-1][0]) if shown and len(found) > len(shown) else None


def _number(page: Page, start: int) -> int:
    if page.cursor is None:
        return start
    if not (page.cursor.isascii() and page.cursor.isdigit() and len(page.cursor) < len(str(_NUMBER_MAX))):
        raise RetinueError("invalid", f"{page.cursor!r} is no cursor of this list.", "Use 'next' of the page before.")
    return int(page.cursor)


def _at_least_0(limit: int) -> int:
    if limit < 0:
        raise RetinueError("invalid", f"A limit of {limit} rows makes no sense.", "Ask for at least 1.")
    return limit
