"""A row that cannot be read is named, and takes no other one with it."""

import logging
from pathlib import Path

import apsw
import pytest

from retinue.core.ids import RunId, SessionId
from retinue.core.run import Run
from retinue.ports import Batch, Page, RunFilter, StoreError
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.samples import ROOT, Numbering, run, session_row

BAD, GOOD, LAST = SessionId("s_1"), SessionId("s_2"), SessionId("s_3")
DAMAGES = {
    "no JSON": "'{'",
    "no object": "'[]'",
    "a key is missing": "'{}'",
    "a value of another type": "json_set(body, '$.usage', 7)",
    "an unknown word": "json_set(body, '$.status', 'moon')",
    "nothing": "''",
    "no text": "CAST(x'7bff227d' AS TEXT)",
    "garbled text": "CAST(CAST(body AS BLOB) || x'fffe' AS TEXT)",
    "endless nesting": "CAST(replace(hex(zeroblob(100000)), '00', '[') AS TEXT)",
}
ROWS = {"an unknown word": ("runs",)}  # a session's status is a plain text


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    store = SQLiteStore(path)
    numbers = Numbering()
    runs = (run(1, status="running", waiting_for=None), run(2), run(3, status="completed", waiting_for=None))
    sessions = tuple(session_row(session_id, parent_id=ROOT, status="running") for session_id in (BAD, GOOD, LAST))
    store.commit([Batch(events=(numbers.says("x"),), runs=runs, sessions=(session_row(), *sessions))])
    store.close()
    return path


def _sql(path: Path, script: str) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(script)
    connection.close()


def _runs(store: SQLiteStore, where: RunFilter | None = None) -> list[Run]:
    return store.runs(where or RunFilter(), Page())[0]


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_run_is_a_diagnostic_row_and_the_others_stay_listed(damage: str, path: Path) -> None:
    _sql(path, f"UPDATE runs SET body = {damage} WHERE run_id = 'r_1'")
    store = SQLiteStore(path)
    found, second, third = _runs(store)
    assert (second.run_id, third.run_id, second.queue_position) == ("r_2", "r_3", 1)
    assert second == store.run(RunId("r_2"))
    ids = (found.run_id, found.session_id, found.parent_id, found.root_id)
    assert ids == ("r_1", "s_1", ROOT, ROOT)
    assert (found.name, found.status, found.reason, found.is_open) == ("(damaged)", "failed", "internal", False)
    assert found.detail is not None
    assert found.detail.startswith("The stored row of this run cannot be read (")
    assert found.detail.endswith("; all others are as they were.")
    assert found.to_dict()["run_id"] == "r_1"
    store.close()


def test_a_damaged_run_is_found_by_every_filter_and_keeps_its_place_between_pages(path: Path) -> None:
    _sql(path, "UPDATE runs SET body = '{' WHERE run_id = 'r_1'")
    store = SQLiteStore(path)
    for where in (
        RunFilter(open_only=True),
        RunFilter(parent_id=ROOT),
        RunFilter(root_id=ROOT),
        RunFilter(session_id=BAD),
    ):
        assert _runs(store, where)[0].name == "(damaged)", where
    seen, cursor = store.runs(RunFilter(), Page(limit=1))
    while cursor is not None:
        page, cursor = store.runs(RunFilter(), Page(limit=1, cursor=cursor))
        seen += page
    assert [found.run_id for found in seen] == ["r_1", "r_2", "r_3"]
    store.close()


def test_a_damaged_run_asked_for_alone_is_an_error_that_names_store_and_cause(path: Path) -> None:
    _sql(path, "UPDATE runs SET body = '{' WHERE run_id = 'r_1'")
    store = SQLiteStore(path)
    with pytest.raises(StoreError, match=rf"{path}: A stored run cannot be read: .+\. Open this store with"):
        store.run(RunId("r_1"))
    assert store.run(RunId("r_2")) is not None
    store.close()


def test_ids_that_are_no_text_any_more_do_not_hide_the_other_runs(path: Path) -> None:
    _sql(path, "UPDATE runs SET body = '{', session_id = CAST(x'735fff' AS TEXT) WHERE run_id = 'r_1'")
    store = SQLiteStore(path)
    found = _runs(store)
    assert [row.run_id for row in found] == ["r_1", "r_2", "r_3"]
    assert found[0].session_id == "s_\ufffd"
    store.close()


@pytest.mark.parametrize(
    "damage", [text for name, text in DAMAGES.items() if "sessions" in ROWS.get(name, ("sessions",))]
)
def test_a_damaged_session_row_is_left_out_with_a_warning_and_nothing_else_is_lost(
    damage: str, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _sql(path, f"UPDATE sessions SET body = {damage} WHERE session_id IN ('{BAD}', '{LAST}')")
    store = SQLiteStore(path)
    with caplog.at_level(logging.WARNING, "retinue"):
        rows, cursor = store.sessions(Page(), roots_only=False)
    assert ([row.session_id for row in rows], cursor) == ([GOOD, ROOT], None)
    assert len(caplog.records) == 1  # once a call, not once a row
    assert f"{path}: 2 damaged session row(s) left out" in caplog.text
    assert [row.session_id for row in store.sessions(Page(), roots_only=False, open_only=True)[0]] == [GOOD]
    seen, cursor = store.sessions(Page(limit=1), roots_only=False)
    while cursor is not None:
        page, cursor = store.sessions(Page(limit=1, cursor=cursor), roots_only=False)
        seen += page
    assert [row.session_id for row in seen] == [GOOD, ROOT]  # a page of damage alone is no end
    with pytest.raises(StoreError, match=f"{path}: A stored session cannot be read"):
        store.session(BAD)
    store.close()


def test_a_list_without_damage_warns_of_nothing(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = SQLiteStore(path)
    with caplog.at_level(logging.DEBUG, "retinue"):
        assert len(store.sessions(Page(), roots_only=False)[0]) == 4
    assert caplog.records == []
    store.close()


def test_a_read_that_failed_is_tried_anew_at_the_next_call(path: Path) -> None:
    store = SQLiteStore(path)
    whole = store.run(RunId("r_1")), store.session(BAD), _runs(store), store.sessions(Page(), roots_only=False)
    assert whole[0] is not None
    _sql(
        path, "CREATE TABLE kept AS SELECT run_id AS id, body FROM runs UNION ALL SELECT session_id, body FROM sessions"
    )
    _sql(path, "UPDATE runs SET body = '{'; UPDATE sessions SET body = '{'")
    for _ in range(2):
        with pytest.raises(StoreError):
            store.run(RunId("r_1"))
        with pytest.raises(StoreError):
            store.session(BAD)
        assert [found.name for found in _runs(store)] == ["(damaged)"] * 3
        assert store.sessions(Page(), roots_only=False) == ([], None)
    _sql(path, "UPDATE runs SET body = (SELECT body FROM kept WHERE id = run_id)")
    _sql(path, "UPDATE sessions SET body = (SELECT body FROM kept WHERE id = session_id)")
    again = store.run(RunId("r_1")), store.session(BAD), _runs(store), store.sessions(Page(), roots_only=False)
    assert again == whole
    store.close()


def test_a_new_row_of_a_damaged_run_or_session_repairs_it(path: Path) -> None:
    _sql(path, "UPDATE runs SET body = '{'; UPDATE sessions SET body = '{'")
    store = SQLiteStore(path)
    store.commit([Batch(events=(), runs=(run(1, status="failed", waiting_for=None),), sessions=(session_row(),))])
    assert [found.status for found in _runs(store)] == ["failed"] * 3
    repaired = store.run(RunId("r_1"))
    assert (repaired and repaired.name) == run(1).name
    assert [row.session_id for row in store.sessions(Page(), roots_only=False)[0]] == [ROOT]
    store.close()


def test_an_event_that_is_no_text_any_more_is_named_with_its_position(path: Path) -> None:
    _sql(path, "UPDATE events SET body = CAST(x'7bff' AS TEXT)")
    store = SQLiteStore(path)
    with pytest.raises(StoreError, match=rf"{path}: The event at position 1 \(message\.user\) cannot be read"):
        store.tail(0)
    _sql(path, "UPDATE events SET time = CAST(x'ff' AS TEXT)")
    with pytest.raises(StoreError, match=rf"The store {path} is damaged: a text in it is not UTF-8"):
        store.tail(0)
    store.close()
