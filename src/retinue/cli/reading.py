"""Opens the record for reading commands: never makes one, and lets nothing look alive whose process is gone."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from retinue.app import DATABASE, Runtime, run_async
from retinue.cli import printing
from retinue.cli.options import Where
from retinue.cli.owning import RECOVERING
from retinue.core.errors import RetinueError, not_found
from retinue.core.events import TurnClosed
from retinue.core.ids import RunId, SessionId
from retinue.core.run import Run
from retinue.core.session import SessionRow
from retinue.ports import Page, RunFilter, StoreError
from retinue.settings import Settings, read_settings, without_servers
from retinue.stores.owner import read_owner
from retinue.stores.sqlite import SQLiteStore, open_reading

PAGE_ROWS = 1000


@contextmanager
def record(where: Where) -> Generator[SQLiteStore | None]:
    """Give the store open for reading; null where there is no record yet.

    What a crash left open is closed first where that is possible; else a note says that its process is gone.
    Raises `store_failed`.
    """
    with record_of(read_settings(where.data_dir)) as store:
        yield store


@contextmanager
def record_of(settings: Settings) -> Generator[SQLiteStore | None]:
    """Give what `record` gives, where the settings are known."""
    store = _open(settings)
    try:
        yield store
    finally:
        if store is not None:
            store.close()


def _open(settings: Settings) -> SQLiteStore | None:
    folder = settings.data_dir
    if folder.exists() and not folder.is_dir():
        raise RetinueError("store_failed", f"{folder} is a file, not a data directory.", "Move it, or use --data-dir.")
    path = folder / DATABASE
    if not _is_there(path):
        return None
    store = _reading(path)
    if read_owner(settings.data_dir) is not None or not _left_open(store):
        return store
    store.close()
    try:
        run_async(recover(settings))
    except RetinueError as error:
        if error.code != "store_owned":
            printing.note(
                f"What is shown as running is not: its process is gone, and it cannot be closed: {error.detail}"
            )
    return _reading(path)


async def recover(settings: Settings) -> None:
    """Become the owner for a moment: that closes what a crash left open."""
    async with Runtime(without_servers(settings), command=RECOVERING):
        pass


def newest_root(settings: Settings, folder: str) -> SessionId:
    """Return the root session opened last in a folder (a real path); `not_found` otherwise, and nothing is made."""
    with record_of(settings) as store:
        cursor: str | None = None
        while store is not None:
            rows, cursor = store.sessions(Page(limit=PAGE_ROWS, cursor=cursor))
            found = next((row.session_id for row in rows if row.header.cwd == folder), None)
            if found is not None:
                return found
            if cursor is None:
                break
    detail = f"No session was opened in {folder} yet (record: {settings.data_dir}), so there is none to continue."
    raise RetinueError("not_found", detail, "Leave --continue out, or name one with --session.")


def _is_there(path: Path) -> bool:
    try:
        return path.stat().st_size > 0 or _is_there_log(path)
    except (FileNotFoundError, NotADirectoryError):
        return _is_there_log(path)
    except OSError as error:
        detail = f"The record {path} cannot be opened: {(error.strerror or str(error)).lower()}."
        raise RetinueError("store_failed", detail, "Get the right to read it, or name another --data-dir.") from error


def _is_there_log(path: Path) -> bool:
    """Return whether the log of a record that is empty or gone holds something: opening it says what is wrong."""
    try:
        return Path(f"{path}-wal").stat().st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False


def _reading(path: Path) -> SQLiteStore:
    try:
        return open_reading(path)
    except StoreError as error:
        raise RetinueError("store_failed", str(error), "Nothing was changed.") from error


def _left_open(store: SQLiteStore) -> bool:
    one = Page(limit=1)
    return bool(
        store.runs(RunFilter(open_only=True), one)[0] or store.sessions(one, roots_only=False, open_only=True)[0]
    )


def is_text(name: str) -> bool:
    """Return whether a word of the command line is text at all; what is not names nothing on record."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def find_session(store: SQLiteStore | None, session_id: str) -> SessionRow:
    """Return a session; `not_found` otherwise."""
    row = None if store is None or not is_text(session_id) else store.session(SessionId(session_id))
    if row is None:
        raise not_found("session", session_id)
    return row


def find_run(store: SQLiteStore | None, name: str) -> Run:
    """Return the run that an id means: `r_…`, or `s_…` for that session's latest run; `not_found` otherwise."""
    run = None
    if store is not None and is_text(name):
        run = _latest(store, SessionId(name)) if name.startswith("s_") else store.run(RunId(name))
    if run is None:
        raise not_found("run", name)
    return run


def last_answer(store: SQLiteStore, session_id: str) -> str | None:
    """Return what the last turn of a root session that has ended said; null where there is no such turn."""
    row = store.session(SessionId(session_id)) if is_text(session_id) else None
    if row is None or row.header.parent_id is not None:
        return None
    after = row.stored_events
    while after > 0:
        after = max(0, after - PAGE_ROWS)
        for event in reversed(store.read(row.session_id, after, PAGE_ROWS)):
            if isinstance(event.fact, TurnClosed):
                return event.fact.text if event.fact.text is not None else event.fact.partial or ""
    return None


def _latest(store: SQLiteStore, session_id: SessionId) -> Run | None:
    found = _all(store, RunFilter(session_id=session_id))
    return found[-1] if found else None


def below(store: SQLiteStore, row: SessionRow) -> list[Run]:
    """Return every run below a session, in the order they were created."""
    inside = {row.session_id}
    found: list[Run] = []
    for run in _all(store, RunFilter(root_id=row.header.root_id)):
        # A parent's run was created before those of its children.
        if run.parent_id in inside:
            inside.add(run.session_id)
            found.append(run)
    return found


def _all(store: SQLiteStore, where: RunFilter) -> list[Run]:
    rows: list[Run] = []
    cursor: str | None = None
    while True:
        page, cursor = store.runs(where, Page(limit=PAGE_ROWS, cursor=cursor))
        rows.extend(page)
        if cursor is None:
            return rows
