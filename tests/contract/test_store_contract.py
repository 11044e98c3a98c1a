"""The store contract on every store we have, and proof that it finds a broken one."""

from pathlib import Path

import pytest

from retinue.core.events import Event
from retinue.core.ids import Position, SessionId
from retinue.core.run import Run
from retinue.ports import Batch, Page, RunFilter
from retinue.stores.sqlite import SQLiteStore
from retinue.testing import contracts
from retinue.testing.contracts import Check, store_contract


def _name(check: Check) -> str:
    return check.__name__


@pytest.mark.parametrize("check", store_contract(durable=False), ids=_name)
def test_sqlite_in_memory_keeps_the_contract(check: Check) -> None:
    check(lambda: SQLiteStore(":memory:"))


@pytest.mark.parametrize("check", store_contract(durable=True), ids=_name)
def test_sqlite_on_file_keeps_the_contract(check: Check, tmp_path: Path) -> None:
    check(lambda: SQLiteStore(tmp_path / "store.db"))


class StoresBatchByBatch(SQLiteStore):
    def commit(self, batches) -> None:
        for batch in batches:
            super().commit([batch])


class ForgetsTheRoot(SQLiteStore):
    def tail(self, after: int, root_id: SessionId | None = None, limit: int = 1000) -> list[Event]:
        return super().tail(after, None, limit)


class ReadsInclusively(SQLiteStore):
    def read(self, session_id: SessionId, after: int = 0, limit: int | None = None) -> list[Event]:
        return super().read(session_id, max(0, after - 1), limit)


class KeepsTheFirstRow(SQLiteStore):
    def commit(self, batches) -> None:
        known = {run.run_id for run in self.runs(RunFilter(), Page())[0]}
        kept = [
            Batch(
                events=batch.events,
                runs=tuple(run for run in batch.runs if run.run_id not in known),
                sessions=batch.sessions,
                blobs=batch.blobs,
                outputs=batch.outputs,
            )
            for batch in batches
        ]
        super().commit(kept)


class PagesByOffset(SQLiteStore):
    def sessions(self, page: Page, *, roots_only: bool = True, open_only: bool = False):
        rows, _ = super().sessions(Page(limit=1000), roots_only=roots_only, open_only=open_only)
        start = int(page.cursor or 0)
        end = start + page.limit
        return rows[start:end], str(end) if end < len(rows) else None


class CountsParkedRuns(SQLiteStore):
    def runs(self, where: RunFilter, page: Page) -> tuple[list[Run], str | None]:
        found, cursor = super().runs(where, page)
        waiting = [run.run_id for run in found if run.status == "queued"]
        place = {run_id: number for number, run_id in enumerate(waiting, 1)}
        return [Run(**{**_keys(run), "queue_position": place.get(run.run_id)}) for run in found], cursor


class CachesThePosition(SQLiteStore):
    def position(self) -> Position:
        self._seen: Position = getattr(self, "_seen", super().position())
        return self._seen


def _keys(run: Run) -> dict:
    return {name: getattr(run, name) for name in run.__struct_fields__}


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (StoresBatchByBatch, contracts.one_bad_batch_leaves_its_whole_group_out),
        (ForgetsTheRoot, contracts.the_tail_is_in_the_order_of_positions),
        (ReadsInclusively, contracts.a_session_reads_in_order_after_a_seq),
        (KeepsTheFirstRow, contracts.rows_are_what_was_committed_last),
        (PagesByOffset, contracts.sessions_are_listed_newest_first),
        (CountsParkedRuns, contracts.queued_runs_know_their_place),
        (CachesThePosition, contracts.everything_is_there_after_reopening),
    ],
)
def test_the_contract_finds_a_store_that(broken: type[SQLiteStore], check: Check, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="broken rule"):
        check(lambda: broken(tmp_path / "store.db"))
