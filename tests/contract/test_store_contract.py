"""The store contract on every store we have, and proof that it finds a broken one."""

from pathlib import Path

import msgspec
import pytest

from retinue.core.events import Event
from retinue.core.ids import Position, SessionId
from retinue.core.run import Run
from retinue.ports import Batch, Page, RunFilter
from retinue.stores.rows import Group
from retinue.stores.sqlite import SQLiteStore
from retinue.testing import contracts, deletions
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


class RemembersNoDeletion(SQLiteStore):
    def commit(self, batches) -> None:
        super().commit(batches)
        assert self._writer is not None
        self._writer.script("DELETE FROM deleted")


class TakesPositionsBack(SQLiteStore):
    def commit(self, batches) -> None:
        super().commit(batches)
        assert self._writer is not None
        self._writer.script("DELETE FROM meta WHERE key = 'position'")


class DeletesWhenTheCommitEnds(SQLiteStore):
    def commit(self, batches) -> None:
        deletions = [Batch(events=(), deleted=batch.deleted) for batch in batches if batch.deleted is not None]
        super().commit([*(msgspec.structs.replace(batch, deleted=None) for batch in batches), *deletions])


class DeletesApart(SQLiteStore):
    def commit(self, batches) -> None:
        for batch in batches:
            if batch.deleted is not None:
                super().commit([Batch(events=(), deleted=batch.deleted)])
        super().commit([msgspec.structs.replace(batch, deleted=None) for batch in batches])


class KeepsEveryRun(SQLiteStore):
    def commit(self, batches) -> None:
        deletions = [batch.deleted for batch in batches if batch.deleted is not None]
        gone = {session_id for deletion in deletions for session_id in deletion.session_ids}
        kept = [row for row in self.runs(RunFilter(), Page())[0] if row.parent_id in gone]
        super().commit(batches)
        assert self._writer is not None
        self._writer.many("put_run", Group([Batch(events=(), runs=tuple(kept))]).runs)


class SwitchesInMemory(SQLiteStore):
    _on = True

    def commit(self, batches) -> None:
        for batch in batches:
            self._on = self._on if batch.switch is None else batch.switch
        super().commit(batches)

    def switch(self) -> bool:
        return self._on


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
        (RemembersNoDeletion, deletions.nothing_late_recreates_a_deleted_session),
        (RemembersNoDeletion, deletions.a_deletion_survives_reopening),
        (TakesPositionsBack, deletions.the_position_never_falls_back),
        (TakesPositionsBack, deletions.a_deletion_survives_reopening),
        (DeletesWhenTheCommitEnds, deletions.nothing_late_recreates_a_deleted_session),
        (DeletesApart, deletions.a_deletion_is_atomic_with_its_commit),
        (KeepsEveryRun, deletions.a_deleted_tree_takes_its_runs_with_it),
        (SwitchesInMemory, contracts.a_batch_that_fails_leaves_the_switch_as_it_was),
        (SwitchesInMemory, contracts.the_switch_survives_reopening),
    ],
)
def test_the_contract_finds_a_store_that(broken: type[SQLiteStore], check: Check, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="broken rule"):
        check(lambda: broken(tmp_path / "store.db"))
