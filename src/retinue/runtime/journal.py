"""The one writer: decide, enqueue, apply on the loop; commit off it; act once it is durable (law 1 of the design).

Between deciding and applying there is no await, so no decision is ever stale. Effects, answers and everything a reader
can see wait until the batch that holds them is durable, in queue order. After a failed commit nothing more is
accepted: what was decided and not stored is refused with `store_failed`.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol, TypeVar

from retinue.core.decide.base import Decision, Effect, Stamp
from retinue.core.errors import RetinueError
from retinue.core.events import AnyFact, Draft, Event
from retinue.core.ids import Position, Seq, SessionId
from retinue.core.state import State
from retinue.ports import Batch, Clock, StoreError

Command = TypeVar("Command")
Decide = Callable[[State, Command], Decision]


class BatchCommitter(Protocol):
    """The part of the store that the journal needs."""

    async def commit(self, batches: Sequence[Batch]) -> None:
        """Store the batches, all or none."""
        ...


class Listener(Protocol):
    """Who learns of durable facts: it publishes, then acts."""

    def released(self, events: tuple[Event, ...], effects: tuple[Effect, ...]) -> None:
        """Take one durable decision."""
        ...

    def failed(self, error: RetinueError) -> None:
        """Learn that nothing will be stored any more."""
        ...


class _Pending:
    """One decision between acceptance and its release."""

    def __init__(self, batch: Batch, decision: Decision, answer: "asyncio.Future[Decision]") -> None:
        self.batch = batch
        self.decision = decision
        self.answer = answer


class Journal:
    """Accepts decisions and facts, and releases them when they are durable."""

    def __init__(self, store: BatchCommitter, clock: Clock, position: int) -> None:
        """Begin behind `position`, the last one stored."""
        self.state = State()
        self.error: RetinueError | None = None
        self.loading: Final = asyncio.Lock()
        """Held by whoever reads logs to fold them into the head."""
        self._store = store
        self._clock = clock
        self._position = position
        self._queue: deque[_Pending] = deque()
        self._touched: list[set[SessionId]] = []
        self._listener: Listener | None = None
        self._work = asyncio.Event()
        self._busy = False
        self._stopping = False

    @property
    def position(self) -> int:
        """The last position accepted; what comes later is new."""
        return self._position

    def listen(self, listener: Listener) -> None:
        """Name the one who publishes and acts."""
        self._listener = listener

    def stamp(self) -> Stamp:
        """Return the time for a decision."""
        return Stamp(wall=self._clock.wall(), clock_s=self._clock.monotonic())

    def submit(self, decide: Decide[Command], command: Command) -> "asyncio.Future[Decision]":
        """Decide and accept; the future ends when it is durable. A refusal is raised at once and leaves nothing.

        Cancelling the wait for the future cancels nothing else (law 3).
        """
        if self.error is not None:
            raise self.error
        decision = decide(self.state, command)
        return self._accept(decision)

    def append(
        self, session_id: SessionId, facts: Sequence[AnyFact], extra: Decision | None = None
    ) -> "asyncio.Future[Decision]":
        """Accept facts of the one turn that owns a session; `extra` brings outputs and blobs along."""
        drafts = tuple(Draft(session_id=session_id, fact=fact) for fact in facts)
        more = Decision() if extra is None else extra
        if self.error is not None:
            raise self.error
        return self._accept(Decision(drafts=drafts, outputs=more.outputs, blobs=more.blobs, value=more.value))

    async def flushed(self) -> None:
        """Return when everything accepted so far is durable; raise `store_failed` when it never will be."""
        if self.error is not None:
            raise self.error
        if self._queue or self._busy:
            # An empty decision is released in order like every other.
            await self._accept(Decision())

    async def run_writer(self) -> None:
        """Commit what was accepted, group by group, until stopped or failed."""
        while not (self._stopping and not self._queue):
            await self._work.wait()
            self._work.clear()
            while self._queue:
                await self._write_group()
                if self.error is not None:
                    return

    def stop_writer(self) -> None:
        """Let the writer end once the queue is empty."""
        self._stopping = True
        self._work.set()

    @contextmanager
    def touched(self) -> Generator[set[SessionId]]:
        """Yield a set that fills with the sessions whose logs change meanwhile: what was read of them is old."""
        seen: set[SessionId] = set()
        self._touched.append(seen)
        try:
            yield seen
        finally:
            self._touched = [other for other in self._touched if other is not seen]

    def load(self, events: Sequence[Event]) -> None:
        """Fold a stored log into the head; its rows are not written again."""
        self.state.load(events)

    def _accept(self, decision: Decision) -> "asyncio.Future[Decision]":
        if self._stopping:
            raise RetinueError("stopping", "The runtime has been shut down.", "Start it again.")
        answer: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        # Whoever submitted may be gone by the time the answer comes; its error is then nobody's loss.
        answer.add_done_callback(_retrieve)
        events = self._number(decision.drafts)
        for seen in self._touched:
            seen.update(draft.session_id for draft in decision.drafts)
            seen.update(() if decision.deleted is None else decision.deleted.session_ids)
        if decision.switch is not None:
            self.state.switch_on = decision.switch
        if decision.deleted is not None:
            self.state.forget_tree(decision.deleted.session_ids)
        runs, sessions = self.state.end_batch()
        batch = Batch(
            events=events,
            runs=runs,
            sessions=sessions,
            blobs=decision.blobs,
            outputs=decision.outputs,
            switch=decision.switch,
            deleted=decision.deleted,
        )
        self._queue.append(_Pending(batch, decision, answer))
        self._work.set()
        return answer

    def _number(self, drafts: tuple[Draft, ...]) -> tuple[Event, ...]:
        events: list[Event] = []
        wall = self._clock.wall() if drafts else ""
        for draft in drafts:
            event = self._event(draft, wall)
            self.state.apply(event)
            events.append(event)
        return tuple(events)

    def _event(self, draft: Draft, wall: str) -> Event:
        self._position += 1
        session = self.state.sessions.get(draft.session_id)
        root_id = getattr(draft.fact, "root_id", None) if session is None else session.header.root_id
        return Event(
            session_id=draft.session_id,
            root_id=SessionId(root_id or draft.session_id),
            seq=Seq(1 if session is None else session.seq + 1),
            position=Position(self._position),
            time=wall,
            fact=draft.fact,
        )

    async def _write_group(self) -> None:
        group = list(self._queue)
        self._queue.clear()
        self._busy = True
        batches = [pending.batch for pending in group if _holds_something(pending.batch)]
        try:
            if batches:
                await self._store.commit(batches)
        except StoreError as error:
            self._fail(group, str(error))
            return
        except Exception as error:  # noqa: BLE001 - whatever a store raises, nobody may be left waiting
            self._fail(group, f"{type(error).__name__}: {error}")
            return
        finally:
            self._busy = False
        for pending in group:
            self._release(pending)

    def _release(self, pending: _Pending) -> None:
        if self._listener is not None and (pending.batch.events or pending.decision.effects):
            self._listener.released(pending.batch.events, pending.decision.effects)
        if not pending.answer.done():
            pending.answer.set_result(pending.decision)

    def _fail(self, group: list[_Pending], reason: str) -> None:
        self.error = RetinueError(
            "store_failed",
            f"The record could not be written: {reason}",
            "Nothing more is accepted; free space or repair the store, then start again: committed work is safe.",
        )
        for pending in (*group, *self._queue):
            if not pending.answer.done():
                pending.answer.set_exception(self.error)
        self._queue.clear()
        if self._listener is not None:
            self._listener.failed(self.error)


def _holds_something(batch: Batch) -> bool:
    texts = batch.blobs or batch.outputs
    return bool(batch.events or batch.runs or batch.sessions or texts or batch.deleted) or batch.switch is not None


def _retrieve(answer: "asyncio.Future[Decision]") -> None:
    if not answer.cancelled():
        answer.exception()
