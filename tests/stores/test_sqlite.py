"""Opening, refusing and running out of room: every trouble of a SQLite store is one clear sentence."""

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from retinue.ports import Batch, Page, RunFilter, StoreError
from retinue.stores import schema
from retinue.stores.connection import statements
from retinue.stores.sqlite import SQLiteStore, open_reading
from retinue.testing.samples import ROOT, Numbering, run, session_row

NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def _filled(path: Path, events: int = 3) -> None:
    store = SQLiteStore(path)
    numbers = Numbering()
    for _ in range(events):
        store.commit([Batch(events=(numbers.says("x" * 100),), runs=(run(1),), sessions=(session_row(),))])
    store.close()


def _files(folder: Path) -> dict[str, bytes]:
    # The shared-memory file is the readers' and writers' lock table, not part of what is stored.
    return {file.name: file.read_bytes() for file in folder.iterdir() if not file.name.endswith("-shm")}


def _sql(path: Path, script: str) -> list[tuple]:
    connection = apsw.Connection(str(path))
    try:
        return connection.execute(script).fetchall()
    finally:
        connection.close()


# ------------------------------------------------------------------------------------------------------------ opening


def test_a_new_store_syncs_every_commit_and_has_our_schema(path: Path) -> None:
    store = SQLiteStore(path)
    assert store.read_only is None
    assert store._writer is not None
    assert store._writer.rows("version") == [(schema.VERSION,)]
    assert store._writer._sqlite.pragma("journal_mode") == "wal"
    assert store._writer._sqlite.pragma("synchronous") == 2
    store.close()


def test_every_named_statement_is_used_somewhere() -> None:
    sources = Path(schema.__file__).parent.glob("*.py")
    code = "".join(source.read_text("utf-8") for source in sources)
    assert [name for name in statements() if f'"{name}"' not in code] == []


def test_migrations_are_numbered_without_a_gap_and_the_last_one_makes_our_version() -> None:
    names = sorted(file.name for file in (Path(schema.__file__).parent / "migrations").glob("*.sql"))
    assert [int(name.split("_")[0]) for name in names] == list(range(1, schema.VERSION + 1))


def test_lists_and_logs_are_read_through_an_index_and_never_sorted(path: Path) -> None:
    _filled(path)
    names = (
        "session_id",
        "parent_id",
        "root_id",
        "run_id",
        "after",
        "before",
        "limit",
        "roots_only",
        "digest",
        "output_id",
        "number",
    )
    connection = apsw.Connection(str(path))
    for name, text in statements().items():
        if text.startswith("SELECT") and "sqlite_schema" not in text:
            plan = connection.execute("EXPLAIN QUERY PLAN " + text, dict.fromkeys(names, 1)).fetchall()
            steps = [str(row[3]) for row in plan]
            assert not any("TEMP B-TREE" in step for step in steps), (name, steps)
            assert not any(re.match("SCAN (?!CONSTANT)", step) for step in steps), (name, steps)
    connection.close()


def test_a_long_read_does_not_hold_up_a_commit(path: Path) -> None:
    _filled(path)
    store = SQLiteStore(path)
    numbers = Numbering(store.position())
    numbers.resume(ROOT, 3)
    with store._reader._lock:  # a reader that is in the middle of something
        writer = threading.Thread(target=store.commit, args=([Batch(events=(numbers.says("y"),))],))
        writer.start()
        writer.join(60)
        assert not writer.is_alive()
    assert store.position() == 4
    store.close()


def test_a_store_whose_making_was_killed_is_made_anew(path: Path) -> None:
    live = path.with_name("live.db")
    connection = apsw.Connection(str(live))
    connection.execute("BEGIN IMMEDIATE")
    for script in schema.migrations():
        connection.execute(script)
    connection.cache_flush()  # as in the middle of a commit: the pages are on disk, and so is the journal
    shutil.copy(live, path)
    shutil.copy(f"{live}-journal", f"{path}-journal")
    connection.close()
    assert path.stat().st_size > 0
    _filled(path)
    store = open_reading(path)
    assert store.position() == 3
    store.close()


def test_what_this_version_cannot_read_is_named_with_the_store_and_the_position(path: Path) -> None:
    _filled(path)
    _sql(path, """UPDATE events SET type = 'moon.landed', body = '{"type":"moon.landed"}' WHERE position = 2""")
    store = SQLiteStore(path)
    with pytest.raises(StoreError, match=rf"{path}: The event at position 2 is a 'moon.landed'.* with a newer Retinue"):
        store.tail(0)
    assert len(store.read(ROOT, after=2)) == 1
    store.close()


# -------------------------------------------------------------------------------------------------------- reading only


def test_reading_creates_and_writes_nothing(path: Path) -> None:
    _filled(path)
    before = _files(path.parent)
    store = open_reading(path)
    assert (store.position(), len(store.tail(0)), store.session(ROOT) is not None) == (3, 3, True)
    with pytest.raises(StoreError, match="open for reading only; its owner writes to it"):
        store.commit([Batch(events=(Numbering(9).says("x"),))])
    store.close()
    assert _files(path.parent) == before


def test_reading_what_is_not_there_creates_nothing(path: Path) -> None:
    with pytest.raises(StoreError, match=r"store\.db cannot be opened: there is no such file"):
        open_reading(path)
    with pytest.raises(StoreError, match="cannot be opened: there is no "):
        open_reading(path.parent / "folder" / "store.db")
    assert list(path.parent.iterdir()) == []


def test_another_process_reads_while_the_owner_writes(path: Path) -> None:
    owner = SQLiteStore(path)
    numbers = Numbering()
    owner.commit([Batch(events=(numbers.says("one"),))])
    look = f"from retinue.stores.sqlite import open_reading; print(open_reading({str(path)!r}).position())"
    for wanted in (1, 2):
        found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
        assert found.stdout == f"{wanted}\n"
        owner.commit([Batch(events=(numbers.says("more"),))])
    owner.close()


def test_reading_an_older_store_says_what_to_do(path: Path) -> None:
    path.touch()
    with pytest.raises(StoreError, match=r"has schema 0 and this Retinue reads \d+\. Start one that writes"):
        open_reading(path)


def test_a_newer_store_opens_for_reading_only_and_is_left_alone(path: Path) -> None:
    _filled(path)
    newer = schema.VERSION + 1
    _sql(path, f"PRAGMA user_version = {newer}; ALTER TABLE runs ADD COLUMN moon TEXT")
    before = path.read_bytes()
    for store in (SQLiteStore(path), open_reading(path)):
        sentence = rf"{path} was written by a newer Retinue \(schema {newer}, this one knows {schema.VERSION}\)"
        assert store.read_only is not None
        assert store.position() == 3
        assert len(store.runs(RunFilter(), Page())[0]) == 1
        with pytest.raises(StoreError, match=sentence):
            store.commit([Batch(events=(Numbering(9).says("x"),))])
        store.close()
    assert path.read_bytes() == before


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("opened", [SQLiteStore, open_reading])
def test_a_file_that_is_no_database_is_refused_and_left_alone(opened, path: Path) -> None:
    path.write_bytes(b"This is a diary, not a database.\n" * 200)
    before = _files(path.parent)
    with pytest.raises(StoreError, match=r"store\.db is not a Retinue store: it is no SQLite database"):
        opened(path)
    assert _files(path.parent) == before


@pytest.mark.parametrize("opened", [SQLiteStore, open_reading])
@pytest.mark.parametrize(
    "script",
    [
        "CREATE TABLE a (b)",
        "PRAGMA user_version = 7; CREATE TABLE a (b)",
        "PRAGMA user_version = 1; CREATE TABLE meta (key, value)",
    ],
)
def test_a_database_of_another_program_is_refused_and_left_alone(opened, script: str, path: Path) -> None:
    _sql(path, script)
    before = _files(path.parent)
    with pytest.raises(StoreError, match=r"store\.db is a database of another program"):
        opened(path)
    assert _files(path.parent) == before


def _use_everything(path: Path) -> None:
    store = SQLiteStore(path)
    try:
        numbers = Numbering(store.position())
        numbers.resume(ROOT, store.last_seq(ROOT))
        _ = (
            store.tail(0),
            store.tail(0, ROOT),
            store.read(ROOT),
            store.sessions(Page()),
            store.runs(RunFilter(), Page()),
        )
        store.commit([Batch(events=(numbers.says("x"),), runs=(run(2),), sessions=(session_row(),))])
    finally:
        store.close()


def test_a_damaged_database_is_one_sentence_wherever_the_damage_is(path: Path) -> None:
    _filled(path, events=400)
    whole = path.read_bytes()
    page = 4096
    pages = len(whole) // page
    sentences = []
    for number in range(pages):
        broken = path.with_name(f"{number}.db")
        broken.write_bytes(whole[: number * page] + b"\xa5" * page + whole[(number + 1) * page :])
        try:
            _use_everything(broken)
        except StoreError as error:
            sentences.append(str(error))
    assert len(sentences) > pages - 10  # what no statement comes by (blobs, outputs, free pages) is not noticed
    assert [sentence for sentence in sentences if ".db" not in sentence] == []
    assert sum("is damaged" in sentence for sentence in sentences) > pages - 12


def test_a_database_that_was_cut_off_is_damaged(path: Path) -> None:
    _filled(path, events=400)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(StoreError, match=r"The store .*store\.db is damaged"):
        SQLiteStore(path).tail(0, limit=10_000)


@pytest.mark.parametrize("opened", [SQLiteStore, open_reading])
def test_a_folder_or_a_file_in_the_wrong_place_is_named(opened, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match=r"file/store\.db cannot be opened: not a directory"):
        opened(tmp_path / "file" / "store.db")
    with pytest.raises(StoreError, match=r"folder failed: it is a folder\."):
        opened(tmp_path / "folder")


@contextmanager
def _without_rights() -> Generator[Path]:
    """Give a readable folder in which the process, for the time being nobody, may not write."""
    folder = Path(tempfile.mkdtemp())
    try:
        _filled(folder / "store.db")
        for file in folder.iterdir():
            file.chmod(0o444)
        folder.chmod(0o555)
        if os.geteuid() == 0:
            os.seteuid(NOBODY)
        yield folder
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_folder_without_rights_is_named_with_the_cause() -> None:
    with _without_rights() as folder:
        with pytest.raises(StoreError, match=rf"new\.db cannot be opened: no right to write to {folder}"):
            SQLiteStore(folder / "new.db")
        with pytest.raises(
            StoreError, match=r"store\.db cannot be opened for writing: no right to write to .*store\.db"
        ):
            SQLiteStore(folder / "store.db")
        assert sorted(file.name for file in folder.iterdir()) == ["store.db", "store.db-shm", "store.db-wal"]


def test_a_store_without_rights_can_still_be_read() -> None:
    with _without_rights() as folder:
        store = open_reading(folder / "store.db")
        assert store.position() == 3
        store.close()


# --------------------------------------------------------------------------------------------------------- out of room


def _commit_until_full(store: SQLiteStore, sentence: str) -> int:
    """Commit until it fails; check that nothing of the failed commit shows; return the last position stored."""
    numbers = Numbering()
    last = 0

    def fill() -> None:
        nonlocal last
        while last < 10_000:
            store.commit([Batch(events=(numbers.says("x" * 20_000), numbers.says("y")), runs=(run(last),))])
            last = numbers.position

    with pytest.raises(StoreError, match=sentence):
        fill()
    assert store.position() == last
    assert len(store.runs(RunFilter(), Page(limit=10_000))[0]) == last // 2
    return last


def test_a_full_disk_stores_nothing_of_the_commit_and_loses_nothing(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"needs the right to mount a small tmpfs: {mounted.stderr.strip()}")
    try:
        store = SQLiteStore(tmp_path / "store.db")
        last = _commit_until_full(store, r"store\.db could not be written: the disk is full\. Make room")
        store.close()
        store = SQLiteStore(tmp_path / "store.db")
        assert [event.position for event in store.tail(0)] == list(range(1, last + 1))
        store.close()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_file_size_limit_stores_nothing_of_the_commit_and_loses_nothing(path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    store = SQLiteStore(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    try:
        last = _commit_until_full(store, r"The store .*store\.db (failed|could not be written)")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    numbers = Numbering(last)
    numbers.resume(ROOT, last)
    store.commit([Batch(events=(numbers.says("room again"),))])
    store.close()
    store = SQLiteStore(path)
    assert [event.position for event in store.tail(0)] == list(range(1, last + 2))
    store.close()


def test_another_writer_in_the_middle_of_a_commit_is_a_sentence(path: Path) -> None:
    _filled(path)
    store = SQLiteStore(path)
    assert store._writer is not None
    store._writer._sqlite.set_busy_timeout(0)
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="is locked by another process"):
        store.commit([Batch(events=(Numbering(9).says("x"),))])
    other.close()
    store.close()
