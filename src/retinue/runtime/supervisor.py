"""Starts bodies, waits for them, settles them; the task that runs a child never settles it (law 2).

Cancel reaches only the body: once, again after a grace, then the body is given up, its slot is freed and a warning
names it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

import msgspec

from retinue.core.decide.base import AGAIN, Decision, Ending, judge_empty, owes_a_step
from retinue.core.decide.runs import Settle, decide_settle
from retinue.core.decide.stops import (
    PARENT_CANCELLED,
    CancelChildren,
    CancelRuns,
    bound,
    decide_cancel_children,
    decide_cancel_runs,
)
from retinue.core.decide.turns import CloseTurn, Note, decide_close_turn, decide_note
from retinue.core.errors import RetinueError
from retinue.core.events import Usage, Warned
from retinue.core.ids import RunId, SessionId
from retinue.core.run import working_s
from retinue.runtime.journal import Journal
from retinue.runtime.mailbox import Mailboxes
from retinue.runtime.work import Work, unreleased

T = TypeVar("T")
Body = Callable[[Work], Awaitable[Ending]]

GRACE_S: Final = 5.0
"""Seconds a body has to stop before it is told again, and once more before it is given up."""
SHUTDOWN_GRACE_S: Final = 1.5
"""The same while the process shuts down: twice this is well under the 5 s that SHAPES gives to SIGTERM."""
DEADLINE_RECHECK_S: Final = 1.0
QUIET_S: Final = 1.0
"""Seconds that handles have at the end to learn how their turns and children ended."""
CLOCK_TICK_S: Final = 0.001
"""Seconds that a sum of stretches may be short of the limit by rounding; a timer that short would not move a clock."""
_CHILD_STATUS: Final = {"shutdown": "interrupted", "restart": "interrupted"}
_CHILD_REASONS: Final = frozenset({"shutdown", "restart", "budget", "switched_off", "deleted"})
SHUTDOWN: Final = Ending(status="interrupted", reason="shutdown", detail="The process was shut down.", whole=True)


class Supervisor:
    """Owns every body task."""

    def __init__(self, journal: Journal, mailboxes: Mailboxes, body: Body, grace_s: float = GRACE_S) -> None:
        """Wire it; `body` runs one turn and says how it ended."""
        self.works: Final[dict[SessionId, Work]] = {}
        self.closing = False
        self._journal = journal
        self._mailboxes = mailboxes
        self._body = body
        self._grace_s = grace_s
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._next: dict[SessionId, tuple[RunId, Ending | None]] = {}
        self._own: dict[asyncio.Task[Any], None] = {}
        self._given_up: dict[asyncio.Task[Any], None] = {}

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Run a coroutine of the runtime itself as a task; this is the one place that makes tasks."""
        task = asyncio.create_task(coroutine)
        self._own[task] = None
        task.add_done_callback(self._end_own)
        return task

    def _end_own(self, task: "asyncio.Task[Any]") -> None:
        self._own.pop(task, None)
        if not task.cancelled():
            # Whoever wanted its error asked for it; nobody else needs the warning.
            task.exception()

    def start_run(self, run_id: RunId) -> None:
        """Start the body of a run that has its slot; a run that ended meanwhile is left alone.

        While the body of the child's run before is still being put away it waits for that.
        """
        run = self._journal.state.runs.get(run_id)
        if run is None or run.status != "running":
            return
        if run.session_id in self.works:
            if self.works[run.session_id].run_id != run_id:
                self._next[run.session_id] = (run_id, None)
            return
        self._launch(Work(run.session_id, run.root_id, run_id))

    def start_turn(self, session_id: SessionId) -> Work:
        """Start the body of a root's open turn; one that was started already is returned."""
        work = self.works.get(session_id)
        session = self._journal.state.sessions.get(session_id)
        turn = 0 if session is None else session.turns
        if work is None or work.turn != turn:
            work = Work(session_id, session_id, None, turn)
            self._launch(work)
        return work

    def stop_run(self, run_id: RunId, ending: Ending) -> None:
        """Stop a run that is running, also one whose body is about to start."""
        run = self._journal.state.runs.get(run_id)
        if run is None:
            return
        work = self.works.get(run.session_id)
        if work is not None and work.run_id == run_id:
            self.stop(run.session_id, ending)
        elif run.session_id in self._next:
            self._next[run.session_id] = (run_id, ending)

    def _launch(self, work: Work) -> None:
        self.works[work.session_id] = work
        # The store may have failed since the turn was opened.
        work.error = self._journal.error
        task = asyncio.create_task(self._supervise(work), name=f"supervise {work.session_id}")
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        if self.closing:
            self.stop(work.session_id, SHUTDOWN)

    def stop(self, session_id: SessionId, ending: Ending) -> bool:
        """Stop a turn and at once everything below it; return whether there was one. The first reason stays."""
        work = self.works.get(session_id)
        if work is None or work.stop is not None:
            return work is not None
        work.stop = ending
        self._cancel_children(work, ending)
        if work.body is not None:
            work.body.cancel()
        self._later(work, self._cancel_again)
        return True

    def is_stopping(self, session_id: SessionId) -> bool:
        """Return whether a session's open turn is being stopped; the body of an earlier turn does not count."""
        work = self.works.get(session_id)
        session = self._journal.state.sessions.get(session_id)
        if work is None or work.stop is None or session is None or session.turn is None:
            return False
        same = session.turn.opened.run_id == work.run_id
        return same and (work.run_id is not None or work.turn == session.turns)

    @property
    def grace_s(self) -> float:
        """Seconds that whoever is told to stop has before the next word."""
        return min(self._grace_s, SHUTDOWN_GRACE_S) if self.closing else self._grace_s

    def _later(self, work: Work, act: Callable[[Work], None]) -> None:
        work.timers.append(asyncio.get_running_loop().call_later(self.grace_s, act, work))

    def fail(self, error: RetinueError) -> None:
        """Nothing can be stored any more: cancel every body; their turns end `store_failed`, unstored."""
        for work in list(self.works.values()):
            work.error = error
            if work.body is not None:
                work.body.cancel()

    async def shutdown(self) -> None:
        """Stop all turns top-down and return when every one is settled."""
        self.closing = True
        # Also what waits in the queue below a session that is idle itself. A second shutdown finds nothing open.
        open_runs = tuple(run.run_id for run in self._journal.state.runs.values() if run.is_open)
        if open_runs and self._journal.error is None:
            stop = CancelRuns(run_ids=open_runs, ending=SHUTDOWN, stamp=self._journal.stamp())
            self._journal.submit(decide_cancel_runs, stop)
        for work in list(self.works.values()):
            if work.stop is not None:
                self._later(work, self._cancel_again)
            self.stop(work.session_id, SHUTDOWN)
        while self._tasks:
            await asyncio.wait(list(self._tasks))
        for body in list(self._given_up):
            body.cancel()

    async def quiet(self, writer: "asyncio.Task[None] | None") -> None:
        """Let what waits for endings learn them while the record is still open."""
        waiting = [task for task in self._own if task is not writer and task not in self._given_up]
        if waiting:
            await asyncio.wait(waiting, timeout=QUIET_S)

    def _cancel_again(self, work: Work) -> None:
        if work.body is None or work.body.done():
            return
        work.body.cancel()
        self._later(work, self._give_up)

    def _give_up(self, work: Work) -> None:
        if not work.given_up.done():
            work.given_up.set_result(None)

    async def _supervise(self, work: Work) -> None:
        try:
            await self._to_the_end(work)
        except RetinueError as error:
            work.error = error
            session = self._journal.state.sessions.get(work.session_id)
            turn = None if session is None else session.turn
            work.said = work.text or ("" if turn is None else turn.last_text)
        except Exception as error:  # noqa: BLE001 - a fault of ours must leave no parent, wait or letter hanging
            await self._close_after_fault(work, error)
        finally:
            for timer in work.timers:
                timer.cancel()
            if self.works.get(work.session_id) is work:
                del self.works[work.session_id]
            work.done.set()
            self._mailboxes.wake(work.session_id)
            self._mailboxes.wake(work.root_id)
            self._start_next(work.session_id)

    def _start_next(self, session_id: SessionId) -> None:
        run_id, ending = self._next.pop(session_id, (None, None))
        if run_id is not None and self._journal.error is None:
            self.start_run(run_id)
            if ending is not None:
                self.stop(session_id, ending)

    async def _to_the_end(self, work: Work) -> None:
        self._watch_deadline(work)
        while True:
            ending = self._judged(work, await self._run_body(work))
            work.note_ending(ending, self._journal.state.sessions[work.session_id])
            if ending.status != "completed":
                await self._end_children(work, ending)
            elif self._journal.state.policy(work.root_id)["result.turn_end"] == "cancel":
                await self._end_children(work, PARENT_CANCELLED)
            decision = await self._close(work, ending)
            if decision.value is not AGAIN:
                work.closed = decision.value
                return

    def _judged(self, work: Work, ending: Ending) -> Ending:
        """Return an ending as it will be stored: whom it takes along depends on whether it is a success."""
        state = self._journal.state
        session = state.sessions[work.session_id]
        if ending.status == "completed" and not ending.final and owes_a_step(state, session):
            return ending
        return judge_empty(state, session, ending)

    async def _close_after_fault(self, work: Work, error: Exception) -> None:
        detail = f"A fault of the runtime: {type(error).__name__}: {error}"
        ending = Ending(status="failed", reason="internal", detail=detail, final=True)
        try:
            await self._end_children(work, ending)
            work.closed = (await self._close(work, ending)).value
        except RetinueError as failed:
            work.error = failed

    async def _run_body(self, work: Work) -> Ending:
        if work.error is not None:
            raise work.error
        if work.stop is not None:
            return self._with_stream(work, work.stop)
        body = asyncio.create_task(_as_coroutine(self._body, work), name=f"body {work.session_id}")
        work.body = body
        await asyncio.wait((body, work.given_up), return_when=asyncio.FIRST_COMPLETED)
        if not body.done():
            self.leave(work.session_id, body, "The turn's body")
            return self._with_stream(work, work.stop or SHUTDOWN)
        if work.error is not None:
            self._gone(body)
            raise work.error
        return self._with_stream(work, _outcome(work, body))

    async def put_away(self, session_id: SessionId, task: "asyncio.Task[Any]", what: str) -> bool:
        """Cancel a task of a turn, again after a grace, then leave it behind; return whether it stopped."""
        try:
            for _ in range(2):
                task.cancel()
                await asyncio.wait((task,), timeout=self.grace_s)
                if task.done():
                    break
        finally:
            if not task.done():
                self.leave(session_id, task, what)
        return task.done()

    def leave(self, session_id: SessionId, task: "asyncio.Task[Any]", what: str) -> None:
        """Leave a task behind that did not stop when told: the turn goes on without it, and a warning names it."""
        task.cancel()
        self._given_up[task] = None
        task.add_done_callback(self._gone)
        text = f"{what} of {session_id} did not stop when it was told to and was left behind."
        if self._journal.error is None:
            fact = Warned(code="detached", text=text)
            self._journal.submit(decide_note, Note(session_id=session_id, fact=fact))

    def _gone(self, task: "asyncio.Task[Any]") -> None:
        self._given_up.pop(task, None)
        if not task.cancelled():
            task.exception()

    def _with_stream(self, work: Work, ending: Ending) -> Ending:
        usage, retries = _spent(work)
        return msgspec.structs.replace(
            ending, streamed=work.text, reasoning=work.reasoning, usage=usage, retries=retries
        )

    async def _end_children(self, work: Work, ending: Ending) -> None:
        """End the children that go with this turn and return once they have: release is child-first."""
        self._cancel_children(work, ending)
        state = self._journal.state
        session = state.sessions[work.session_id]
        await self._mailboxes.until((work.session_id,), lambda: not bound(state, session, _for_children(ending)))

    def _cancel_children(self, work: Work, ending: Ending) -> None:
        if self._journal.error is not None:
            return
        command = CancelChildren(session_id=work.session_id, ending=_for_children(ending), stamp=self._journal.stamp())
        self._journal.submit(decide_cancel_children, command)

    async def _close(self, work: Work, ending: Ending) -> Decision:
        stamp = self._journal.stamp()
        if work.run_id is not None:
            return await self._journal.submit(decide_settle, Settle(run_id=work.run_id, ending=ending, stamp=stamp))
        command = CloseTurn(session_id=work.session_id, ending=ending, stamp=stamp)
        return await self._journal.submit(decide_close_turn, command)

    def _watch_deadline(self, work: Work) -> None:
        """Stop a run that has worked for longer than it may; it does not age while it waits for its own descendants."""
        run = None if work.run_id is None else self._journal.state.runs.get(work.run_id)
        if run is None or run.spec.timeout_s is None or work.done.is_set():
            return
        left = run.spec.timeout_s - working_s(run, self._journal.stamp().clock_s)
        if left <= CLOCK_TICK_S:
            detail = f"It worked for {run.spec.timeout_s:g} s, which is its limit."
            self.stop(work.session_id, Ending(status="failed", reason="timeout", detail=detail))
            return
        delay = max(left, DEADLINE_RECHECK_S) if run.is_yielded else left
        work.timers = [*work.timers[-4:], asyncio.get_running_loop().call_later(delay, self._watch_deadline, work)]


def _spent(work: Work) -> tuple[Usage | None, int]:
    """Return what was reported of a request that was cut off, and its retries: cancelled work counts too."""
    spent = work.spent
    if spent.usage is None or spent.usage.requests:
        return spent.usage, spent.retries
    return msgspec.structs.replace(spent.usage, requests=1), spent.retries


async def _as_coroutine(body: Body, work: Work) -> Ending:
    return await body(work)


def _outcome(work: Work, body: "asyncio.Task[Ending]") -> Ending:
    failed = unreleased(work)
    if failed is not None:
        return failed
    if body.cancelled():
        return work.stop or Ending(status="failed", reason="internal", detail="The turn's body cancelled itself.")
    error = body.exception()
    if error is None:
        ending = body.result()
        # A body that swallowed the cancel and says later that its request failed was stopped all the same.
        return work.stop if work.stop is not None and ending.status != "completed" else ending
    if isinstance(error, RetinueError):
        if error.code == "store_failed":
            raise error
        return Ending(
            status="failed",
            reason="provider_error" if error.code == "unknown_model" else "internal",
            detail=error.detail,
        )
    # After it was told to stop a body only puts away what it holds.
    reason = "internal" if work.stop is None else "release_failed"
    return Ending(status="failed", reason=reason, detail=f"{type(error).__name__}: {error}")


def _for_children(ending: Ending) -> Ending:
    if ending.reason not in _CHILD_REASONS:
        return msgspec.structs.replace(PARENT_CANCELLED, whole=ending.whole)
    status = "interrupted" if ending.reason in _CHILD_STATUS else "cancelled"
    return Ending(status=status, reason=ending.reason, detail=ending.detail, whole=True)
