"""A store that an older Retinue wrote is brought up to date with nothing lost."""

from pathlib import Path
from typing import NamedTuple

import apsw
import pytest

from retinue.core.events import StoredOutput, tag_of
from retinue.core.ids import Digest, OutputId
from retinue.ports import Batch, Deletion, Page, RunFilter, StoreError
from retinue.stores import schema
from retinue.stores.codec import encode
from retinue.stores.sqlite import SQLiteStore, open_reading
from retinue.testing.samples import ROOT, Numbering, every_fact, run, session_row

EVENT = "INSERT INTO events (position, session_id, root_id, seq, time, type, body) VALUES (?, ?, ?, ?, ?, ?, ?)"
SESSION = "INSERT INTO sessions (session_id, is_root, is_open, body) VALUES (?, ?, ?, ?)"
RUN = """INSERT INTO runs (run_id, session_id, parent_id, root_id, is_open, in_queue, body)
    VALUES (?, ?, ?, ?, ?, ?, ?)"""


class Old(NamedTuple):
    path: Path
    numbers: Numbering
    events: list


@pytest.fixture
def old(tmp_path: Path) -> Old:
    """A store of schema 1 with rows of every kind, written as its version did, and left open by a crash."""
    path = tmp_path / "store.db"
    numbers = Numbering()
    events = [numbers.event(fact) for fact in every_fact()]
    row = session_row()
    connection = apsw.Connection(str(path))
    connection.execute(schema.migrations()[0])
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executemany(
        EVENT,
        [(e.position, e.session_id, e.root_id, e.seq, e.time, tag_of(e.fact), encode(e.fact)) for e in events],
    )
    connection.execute(SESSION, (row.session_id, True, False, encode(row)))
    connection.executemany(
        RUN, [(r.run_id, r.session_id, r.parent_id, r.root_id, True, True, encode(r)) for r in (run(1), run(2))]
    )
    connection.execute("INSERT INTO blobs VALUES ('d', x'00ff'); INSERT INTO outputs VALUES ('o_1', 's_root', 'whole')")
    connection.close()
    return Old(path, numbers, events)


def test_a_store_of_the_first_version_opens_with_nothing_lost(old: Old) -> None:
    for _ in range(2):  # the second time it is up to date
        store = SQLiteStore(old.path)
        assert store.read_only is None
        assert store.versions()[1] == schema.VERSION
        assert store.tail(0) == store.read(ROOT) == old.events
        assert (store.position(), store.last_seq(ROOT), store.switch()) == (len(old.events), len(old.events), True)
        found = store.session(ROOT)
        assert (found and found.stored_events, found and found.header) == (len(old.events), session_row().header)
        runs = store.runs(RunFilter(open_only=True), Page())[0]
        assert [(row.run_id, row.queue_position) for row in runs] == [("r_1", 1), ("r_2", 2)]
        assert store.blob(Digest("d")) == b"\x00\xff"
        assert store.output(OutputId("o_1")) == StoredOutput(output_id=OutputId("o_1"), session_id=ROOT, text="whole")
        store.close()


def test_a_store_of_the_first_version_takes_what_is_new(old: Old) -> None:
    store = SQLiteStore(old.path)
    store.commit([Batch(events=(old.numbers.says("more"),), switch=False)])
    assert (store.tail(0)[:-1], store.switch()) == (old.events, False)
    store.commit([Batch(events=(), deleted=Deletion(session_ids=(ROOT,)))])
    assert (store.tail(0), store.runs(RunFilter(), Page()), store.output(OutputId("o_1"))) == ([], ([], None), None)
    assert store.position() == len(old.events) + 1
    store.close()


def test_a_migration_that_fails_leaves_the_store_as_it_was(old: Old) -> None:
    connection = apsw.Connection(str(old.path))
    connection.execute("CREATE TABLE deleted (in_the_way)")
    with pytest.raises(StoreError, match="already exists"):
        SQLiteStore(old.path)
    assert connection.pragma("user_version") == 1
    assert connection.execute("SELECT count(*) FROM events").get == len(old.events)
    connection.execute("DROP TABLE deleted")
    connection.close()
    store = SQLiteStore(old.path)
    assert store.tail(0) == old.events
    store.close()


def test_reading_a_store_of_the_first_version_says_what_to_do(old: Old) -> None:
    with pytest.raises(StoreError, match=r"has schema 1 and this Retinue reads \d+\. Start one that writes"):
        open_reading(old.path)
