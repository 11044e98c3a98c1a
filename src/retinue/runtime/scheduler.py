"""Spawns, cancels, waits for and reads runs, for every door; it runs no body and keeps no state.

Each entry checks that the caller owns what it names: unknown and foreign ids get the same answer.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Final, Literal

import msgspec

from retinue.core.decide.base import Decision, Ending
from retinue.core.decide.runs import Spawn, WantSlot, YieldSlot, decide_spawn, decide_want_slot, decide_yield
from retinue.core.decide.stops import CancelRun, EndRun, decide_cancel_run, decide_end_run
from retinue.core.errors import RetinueError, not_found
from retinue.core.ids import CallId, RunId, SessionId
from retinue.core.run import Run
from retinue.ports import RunFilter
from retinue.runtime.journal import Journal
from retinue.runtime.mailbox import Mailboxes
from retinue.runtime.record import Record
from retinue.runtime.supervisor import Supervisor
from retinue.runtime.work import Work

CANCELLED: Final = Ending(status="cancelled", reason="cancelled", detail="It was cancelled.")
INTERRUPTED: Final = Ending(status="interrupted", reason="interrupted", detail="The turn was stopped.")
EVERYWHERE: Final = SessionId("")
"""No session's id: everything is being drained."""
LINEAGE_MAX: Final = 1000
"""Sessions on the way from a run up to its root; more is a damaged log."""


class Waited(msgspec.Struct, frozen=True):
    """What a wait found: the runs in the order asked, and whether its time ran out."""

    runs: list[Run]
    timed_out: bool


class OutputSlice(msgspec.Struct, frozen=True):
    """A slice of an output, in characters (SHAPES, HTTP bodies)."""

    text: str
    offset: int
    total_chars: int
    next_offset: int | None


class Scheduler:
    """One door for everything about runs."""

    def __init__(self, journal: Journal, record: Record, supervisor: Supervisor, mailboxes: Mailboxes) -> None:
        """Wire it."""
        self._journal = journal
        self._record = record
        self._supervisor = supervisor
        self._mailboxes = mailboxes
        self.draining: Final[set[SessionId]] = set()
        """Sessions below which nothing is admitted; `EVERYWHERE` stands for all."""
        self.leaving: Final[set[SessionId]] = set()
        """Children that are let go: they get no message either."""
        self.deleting: Final[set[SessionId]] = set()
        """Sessions that are deleted: nothing of theirs starts any more."""

    def accept(self, command: Spawn) -> "asyncio.Future[Decision]":
        """Accept a child, or refuse it; refused too while its parent is being stopped. `published` must follow."""
        self.require_admission(command.parent_id)
        return self._journal.submit(decide_spawn, command)

    def is_stopping(self, session_id: SessionId) -> bool:
        """Return whether a session is being stopped, or drained with what is above it."""
        return self._supervisor.closing or self._supervisor.is_stopping(session_id) or self.is_drained(session_id)

    def is_ending(self, session_id: SessionId) -> bool:
        """Return whether a session's own turn is being ended, by itself or with what is above it."""
        session = self._journal.state.sessions.get(session_id)
        above = None if session is None else session.header.parent_id
        stopped = self._supervisor.closing or self._supervisor.is_stopping(session_id) or self.is_leaving(session_id)
        return stopped or (above is not None and self.is_drained(above))

    def is_drained(self, session_id: SessionId) -> bool:
        """Return whether something below a session is being ended, or below what is above it."""
        return EVERYWHERE in self.draining or self._is_in(session_id, self.draining) or self.is_leaving(session_id)

    def is_leaving(self, session_id: SessionId) -> bool:
        """Return whether a session goes itself, or with what is above it."""
        return self._is_in(session_id, self.leaving) or self._is_in(session_id, self.deleting)

    def _is_in(self, session_id: SessionId, marked: set[SessionId]) -> bool:
        session = self._journal.state.sessions.get(session_id)
        found = session_id in marked
        while session is not None and not found:
            found = session.session_id in marked
            session = self._journal.state.parent_of(session)
        return found

    def require_admission(self, parent_id: SessionId) -> None:
        """Refuse new work below a session that is being stopped or drained (`stopping`)."""
        if self.is_stopping(parent_id):
            raise RetinueError("stopping", "This session is being stopped; it starts no more children.", "")

    async def published(self, command: Spawn, accepted: "asyncio.Future[Decision]") -> Run:
        """Return an accepted child's run as committed.

        Cancelling the caller before this returns undoes it: the run ends `cancelled` and stays listed.
        """
        try:
            run: Run = (await accepted).value
        except asyncio.CancelledError:
            self._cancel(command.run_id, CANCELLED)
            raise
        return run

    def _cancel(self, run_id: RunId, ending: Ending) -> "asyncio.Future[Decision] | None":
        if self._journal.error is not None:
            return None
        command = CancelRun(run_id=run_id, ending=ending, stamp=self._journal.stamp())
        return self._journal.submit(decide_cancel_run, command)

    async def cancel(self, run_id: RunId, ending: Ending = CANCELLED) -> tuple[Run, str | None]:
        """End a run and everything below it; return it after it has ended, and "already ended: STATUS" where it had."""
        before = await self.run(run_id)
        if not before.is_open:
            return before, f"already ended: {before.status}"
        self._cancel(run_id, ending)
        await self.ended([run_id])
        return await self.run(run_id), None

    async def interrupt(self, name: str, owner: SessionId | None) -> tuple[Run, str | None]:
        """Stop a child's current run only; return it after it has ended, and "already ended: STATUS" where it had.

        Messages that wait for the child stay parked until the next waking one.
        """
        run_id = await self.resolve(name, owner, current=True)
        before = await self.run(run_id)
        if not before.is_open:
            return before, f"already ended: {before.status}"
        self._journal.submit(decide_end_run, EndRun(run_id=run_id, ending=INTERRUPTED, stamp=self._journal.stamp()))
        await self.ended([run_id])
        return await self.run(run_id), None

    async def run(self, run_id: RunId) -> Run:
        """Return a run as the record has it, everything accepted so far included."""
        await self._journal.flushed()
        return await self._stored(run_id)

    async def resolve(
        self, name: str, owner: SessionId | None, *, current: bool = False, within: RunId | None = None
    ) -> RunId:
        """Return the run that an id means: `r_…`, or `s_…` for that session's latest run.

        With `current` a session's id means the run it works on, or the next one, where one is open. With an `owner`,
        only runs below that session exist; with `within`, only those of that root run.
        """
        run = await self._find(name, current=current)
        if run is None:
            # Only what was accepted a moment ago is worth waiting for the store.
            await self._journal.flushed()
            run = await self._find(name, current=current)
        if run is None or (owner is not None and not await self._is_below(run, owner)):
            raise not_found("run", name)
        if within is not None and run.root_run_id != within:
            raise not_found("run", name)
        return run.run_id

    async def _find(self, name: str, *, current: bool) -> Run | None:
        if name.startswith("s_"):
            found = await self._record.all_runs(RunFilter(session_id=SessionId(name)))
            open_ones = [run for run in found if self.is_open(run.run_id)] if current else []
            return (open_ones or found[-1:] or [None])[0]
        return await self._record.run(RunId(name))

    async def latest(self, session_id: SessionId) -> Run | None:
        """Return a child's latest run, null for a root or an unknown session."""
        await self._journal.flushed()
        found = await self._record.all_runs(RunFilter(session_id=session_id))
        return found[-1] if found else None

    async def _is_below(self, run: Run, owner: SessionId) -> bool:
        parent: SessionId | None = run.parent_id
        for _ in range(LINEAGE_MAX):
            if parent is None or parent == owner:
                break
            row = await self._record.session(parent)
            parent = None if row is None else row.header.parent_id
        return parent == owner

    def open_runs(self, parent_id: SessionId) -> list[RunId]:
        """Return a session's open runs, in the order they were created."""
        session = self._journal.state.sessions.get(parent_id)
        return [] if session is None else list(session.open_runs)

    def is_open(self, run_id: RunId) -> bool:
        """Return whether a run is queued or running at this moment."""
        run = self._journal.state.runs.get(run_id)
        return run is not None and run.is_open

    def _is_parked(self, run_id: RunId) -> bool:
        run = self._journal.state.runs.get(run_id)
        return run is not None and run.is_parked

    async def wait(self, run_ids: Sequence[RunId], mode: Literal["all", "any"], timeout_s: float) -> Waited:
        """Wait until all (or any) of the runs are delivered, at most `timeout_s` seconds; expiry stops nobody.

        The time is kept also while the store takes no commit: what is told then is what is durable.
        """
        in_time = await self.ended(run_ids, mode, timeout_s) if run_ids else True
        runs = [await self._stored(run_id) for run_id in run_ids]
        return Waited(runs, timed_out=not in_time)

    async def _stored(self, run_id: RunId) -> Run:
        run = await self._record.run(run_id)
        if run is None:
            raise not_found("run", run_id)
        return run

    async def ended(
        self, run_ids: Sequence[RunId], mode: Literal["all", "any"] = "all", timeout_s: float | None = None
    ) -> bool:
        """Return True once the settlements are durable, False when the time ran out first."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._delivered(run_ids, mode)
        except TimeoutError:
            return False
        return True

    async def _delivered(self, run_ids: Sequence[RunId], mode: Literal["all", "any"]) -> None:
        parents = {run.parent_id: None for run_id in run_ids if (run := self._journal.state.runs.get(run_id))}
        wanted = any if mode == "any" else all

        def is_so() -> bool:
            # Nobody waits for what was set aside: it goes on only with the next message.
            awaited = [run_id for run_id in run_ids if not self._is_parked(run_id)]
            return not awaited or wanted(not self.is_open(run_id) for run_id in awaited)

        if parents:
            # Every settlement wakes its parent.
            await self._mailboxes.until(tuple(parents), is_so)
        await self._journal.flushed()

    @asynccontextmanager
    async def waiting(self, work: Work, call_id: CallId | None = None) -> AsyncGenerator[None, None]:
        """Mark that an activity of a turn only waits for its own descendants: no slot, no place in the tool pool."""
        if call_id is not None:
            work.leave_place(call_id)
        if not work.begin_wait(call_id):
            yield
            return
        self.rest(work)
        try:
            yield
        finally:
            work.end_wait(call_id)
            self._want_slot(work)

    def rest(self, work: Work) -> None:
        """Give the slot up if nothing but waits is left."""
        if work.run_id is not None and work.only_waits and self._journal.error is None and work.stop is None:
            self._journal.submit(decide_yield, YieldSlot(run_id=work.run_id, stamp=self._journal.stamp()))

    def _want_slot(self, work: Work) -> None:
        run = None if work.run_id is None else self._journal.state.runs.get(work.run_id)
        if run is not None and run.is_yielded and self._journal.error is None and work.stop is None:
            self._journal.submit(decide_want_slot, WantSlot(run_id=run.run_id, stamp=self._journal.stamp()))

    async def slot(self, work: Work) -> None:
        """Return once the turn has its slot again; roots need none."""
        if work.run_id is None:
            return
        run_id = work.run_id
        self._want_slot(work)
        await self._mailboxes.until((work.session_id,), lambda: not self._is_yielded(run_id))

    def _is_yielded(self, run_id: RunId) -> bool:
        run = self._journal.state.runs.get(run_id)
        return run is not None and run.is_yielded

    async def children(self, owner: SessionId, *, descendants: bool = False) -> list[Run]:
        """Return the runs below a session: its own children, or pre-order all descendants."""
        await self._journal.flushed()
        own = await self._record.all_runs(RunFilter(parent_id=owner))
        if not descendants:
            return own
        seen: dict[SessionId, None] = {owner: None}
        rows: list[Run] = []
        stack = list(reversed(own))
        while stack:
            run = stack.pop()
            rows.append(run)
            if run.session_id not in seen:
                seen[run.session_id] = None
                below = await self._record.all_runs(RunFilter(parent_id=run.session_id))
                stack.extend(reversed(below))
        return rows

    async def output(self, run_id: RunId, offset: int, limit: int) -> OutputSlice:
        """Return a slice of a run's current or final output, whole where only a part of it was shown."""
        run = await self.run(run_id)
        text = run.output if run.output is not None else run.partial or ""
        if run.is_open:
            text = self._live_text(run)
        elif run.output_id is not None:
            text = await self._whole(run, text)
        return cut_slice(text, offset, limit)

    async def _whole(self, run: Run, shown: str) -> str:
        kept = None if run.output_id is None else await self._record.output(run.output_id)
        return shown if kept is None else kept.text

    def _live_text(self, run: Run) -> str:
        work = self._supervisor.works.get(run.session_id)
        session = self._journal.state.sessions.get(run.session_id)
        last = session.turn.last_text if session is not None and session.turn is not None else ""
        return (work.text if work is not None else "") or last


def cut_slice(text: str, offset: int, limit: int) -> OutputSlice:
    """Return characters `offset` to `offset + limit`, and where the next slice begins."""
    end = min(len(text), offset + limit)
    return OutputSlice(text[offset:end], offset, len(text), end if end < len(text) else None)
