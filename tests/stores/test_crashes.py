"""Whatever ends the writer, what it had acknowledged is there and what remains is a gapless prefix."""

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from retinue.core.ids import RunId
from retinue.ports import Page, RunFilter, Store
from retinue.stores.sqlite import SQLiteStore, open_reading
from retinue.testing.samples import ROOT, Numbering
from tests.stores import writer

KILLS = 20
WAL_HEADER_BYTES = 32


def _require_gapless_prefix(store: Store) -> int:
    """Check everything that must hold of a store after a crash and return its last position."""
    events = store.tail(0, limit=1_000_000)
    last = len(events)
    assert [event.position for event in events] == list(range(1, last + 1))
    assert [event.seq for event in store.read(ROOT)] == list(range(1, last + 1))
    assert last % (writer.EVENTS_PER_BATCH * writer.BATCHES_PER_COMMIT) == 0  # a commit is there whole or not at all
    assert store.position() == store.last_seq(ROOT) == last
    newest = store.run(RunId("r_0"))
    assert (newest and newest.detail) == (str(last) if last else None)  # rows and events are of one commit
    assert len(store.runs(RunFilter(), Page(limit=1_000_000))[0]) == (
        last // writer.EVENTS_PER_BATCH + 1 if last else 0
    )
    row = store.session(ROOT)
    assert (row and row.stored_events) == (last or None)
    return last


def _write_and_kill(path: Path, commits: int) -> int:
    """Run a writer until it has acknowledged some commits, kill it, and return the last position it acknowledged."""
    command = [sys.executable, "-m", "tests.stores.writer", str(path)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
    assert child.stdout is not None
    with child, child.stdout:
        lines = [child.stdout.readline() for _ in range(commits)]
        child.kill()
        lines += child.stdout.readlines()
    whole = [line for line in lines if line.endswith(b"\n")]
    assert whole, "the writer never committed"
    return int(whole[-1])


def test_a_killed_writer_loses_no_acknowledged_event(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    chance = random.Random(7)
    before = 0
    for _ in range(KILLS):
        acknowledged = _write_and_kill(path, chance.randint(1, 40))
        assert acknowledged > before
        reader = open_reading(path)  # the first to look after the crash may be somebody who only reads
        found = reader.position()
        reader.close()
        store = SQLiteStore(path)
        before = _require_gapless_prefix(store)
        store.close()
        assert before == found >= acknowledged


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store as a power cut leaves it: the database file and its write-ahead log, never closed."""
    folder = tmp_path_factory.mktemp("crashed")
    store = SQLiteStore(folder / "live.db")
    numbers = Numbering()
    for _ in range(12):
        store.commit([writer.batch_of(numbers) for _ in range(writer.BATCHES_PER_COMMIT)])
    shutil.copy(folder / "live.db", folder / "store.db")
    shutil.copy(folder / "live.db-wal", folder / "store.db-wal")
    store.close()
    assert (folder / "store.db-wal").stat().st_size > 100_000
    return folder


def _copy(crashed: Path, tmp_path: Path) -> tuple[Path, Path]:
    for name in ("store.db", "store.db-wal"):
        shutil.copy(crashed / name, tmp_path / name)
    return tmp_path / "store.db", tmp_path / "store.db-wal"


def _cuts(size: int) -> list[int]:
    chance = random.Random(11)
    fixed = [0, 1, WAL_HEADER_BYTES - 1, WAL_HEADER_BYTES, WAL_HEADER_BYTES + 1, size - 4096, size - 1, size]
    return sorted([*fixed, *(chance.randrange(size) for _ in range(22))])


def test_a_torn_tail_loses_no_committed_event_before_it(crashed: Path, tmp_path: Path) -> None:
    found = []
    for cut in _cuts((crashed / "store.db-wal").stat().st_size):
        path, wal = _copy(crashed, tmp_path)
        with wal.open("r+b") as file:
            file.truncate(cut)
        store = SQLiteStore(path)
        found.append(_require_gapless_prefix(store))
        numbers = Numbering(store.position())
        numbers.resume(ROOT, store.last_seq(ROOT))
        store.commit([writer.batch_of(numbers) for _ in range(writer.BATCHES_PER_COMMIT)])  # it goes on from there
        assert _require_gapless_prefix(store) == found[-1] + 6
        store.close()
    assert found == sorted(found)
    assert found[0] == 0
    assert found[-1] == 72
    assert len(set(found)) > 5


def test_a_garbled_tail_loses_no_committed_event_before_it(crashed: Path, tmp_path: Path) -> None:
    size = (crashed / "store.db-wal").stat().st_size
    chance = random.Random(13)
    found = []
    for place in (chance.randrange(WAL_HEADER_BYTES, size) for _ in range(15)):
        path, wal = _copy(crashed, tmp_path)
        with wal.open("r+b") as file:
            file.seek(place)
            old = file.read(64)
            file.seek(place)
            file.write(bytes(byte ^ 0x5A for byte in old))
        store = SQLiteStore(path)
        found.append(_require_gapless_prefix(store))
        store.close()
    assert len(set(found)) > 3
