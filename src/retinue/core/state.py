"""The head: everything a decision reads, folded from facts in queue order; `State.apply` is the only mutator.

What is over leaves memory by itself: a session when its turn is closed and none of its children is open, a run when
its result went home or its parent left.
"""

from collections.abc import Sequence
from typing import assert_never

from retinue.core import run as runs
from retinue.core.events import (
    AnyFact,
    ContextCompacted,
    Event,
    LetterAbsorbed,
    LetterQueued,
    MessageAssistant,
    MessageUser,
    RunQueued,
    RunResumed,
    RunSettled,
    RunStarted,
    RunWaiting,
    SessionOpened,
    StepClosed,
    StepOpened,
    ToolFinished,
    ToolStarted,
    TurnClosed,
    TurnOpened,
    Warned,
)
from retinue.core.ids import RunId, SessionId
from retinue.core.policy import Policy, stored
from retinue.core.run import Run
from retinue.core.schedule import Caps, ScheduleBook, Seat
from retinue.core.session import Session, SessionRow

HOME = frozenset({"absorbed", "collected"})


class State:
    """All that is open in one store, and the rows that the last facts changed."""

    def __init__(self) -> None:
        """Begin empty; loading is folding."""
        self.sessions: dict[SessionId, Session] = {}
        self.runs: dict[RunId, Run] = {}
        self.policies: dict[SessionId, Policy] = {}
        self.created: dict[SessionId, dict[RunId, set[RunId]]] = {}
        self.tree_sizes: dict[SessionId, int] = {}
        self.book = ScheduleBook()
        self.run_rows: dict[RunId, Run] = {}
        self.session_rows: dict[SessionId, SessionRow] = {}
        self._maybe_over: dict[SessionId, None] = {}
        self._past: frozenset[RunId] = frozenset()

    def policy(self, root_id: SessionId) -> Policy:
        """Return the policy of a tree that is in memory."""
        return self.policies[root_id]

    def caps(self, root_id: SessionId) -> Caps:
        """Return a tree's caps on working runs."""
        policy = self.policies[root_id]
        return Caps(
            process=policy.number("caps.running.process"),
            root=policy.number("caps.running.root"),
            parent=policy.number("caps.running.parent"),
        )

    def created_below(self, root_id: SessionId, root_run_id: RunId) -> int:
        """Return how many children a root run has created while its tree was in memory."""
        return len(self.created.get(root_id, {}).get(root_run_id, ()))

    def end_batch(self) -> tuple[tuple[Run, ...], tuple[SessionRow, ...]]:
        """Return the projections changed since the last call, and let what is over leave memory."""
        rows = tuple(self.run_rows.values()), tuple(self.session_rows.values())
        self.run_rows = {}
        self.session_rows = {}
        for session_id in self._maybe_over:
            session = self.sessions.get(session_id)
            if session is not None and session.turn is None and not session.open_runs:
                self._forget(session)
        self._maybe_over = {}
        return rows

    def load(self, events: Sequence[Event]) -> None:
        """Fold stored logs: their rows are written already, and runs that settled in them queue for nothing any more.

        What is idle leaves memory with the next batch.
        """
        self._past = frozenset(event.fact.run_id for event in events if isinstance(event.fact, RunSettled))
        for event in events:
            self.apply(event)
        self._past = frozenset()
        self.run_rows = {}
        self.session_rows = {}

    def apply(self, event: Event) -> None:
        """Fold one event."""
        fact = event.fact
        if isinstance(fact, SessionOpened):
            self._open_session(event, fact)
        session = self.sessions[event.session_id]
        session.seq = event.seq
        self._fold(session, fact)
        if isinstance(fact, SessionOpened | TurnOpened | StepClosed | TurnClosed):
            self.session_rows[session.session_id] = session.row()
        if isinstance(fact, TurnClosed | RunSettled):
            self._maybe_over[session.session_id] = None

    def _open_session(self, event: Event, fact: SessionOpened) -> None:
        self.sessions[event.session_id] = Session(event.session_id, fact, event.time)
        self.policies.setdefault(fact.root_id, stored(fact.policy))
        self.tree_sizes[fact.root_id] = self.tree_sizes.get(fact.root_id, 0) + 1

    def _fold(self, session: Session, fact: AnyFact) -> None:
        match fact:
            case SessionOpened() | ToolStarted() | Warned():
                pass
            case RunQueued() | RunStarted() | RunSettled() | RunWaiting() | RunResumed():
                self._fold_run(session, fact)
            case LetterQueued() | LetterAbsorbed():
                self._fold_letter(session, fact)
            case StepOpened() | MessageAssistant() | StepClosed() | ToolFinished() | ContextCompacted():
                self._fold_step(session, fact)
            case TurnOpened():
                session.open_turn(fact)
            case MessageUser():
                session.admit(fact)
            case TurnClosed():
                session.close_turn(fact)
            case _:
                assert_never(fact)

    def _fold_step(
        self, session: Session, fact: StepOpened | MessageAssistant | StepClosed | ToolFinished | ContextCompacted
    ) -> None:
        match fact:
            case StepOpened():
                session.open_step(fact)
            case MessageAssistant():
                session.answer(fact)
            case StepClosed():
                session.close_step(fact)
                if fact.run_id is not None and fact.run_id in self.runs:
                    self._set(runs.stepped(self.runs[fact.run_id], fact))
            case ContextCompacted():
                session.compact(fact)
                if fact.run_id is not None and fact.run_id in self.runs:
                    self._set(runs.compacted(self.runs[fact.run_id], fact))
            case ToolFinished():
                session.finish_call(fact)
                if fact.run_id is not None and fact.run_id in self.runs:
                    self._set(runs.went_home(self.runs[fact.run_id], fact))
            case _:
                assert_never(fact)

    def _fold_letter(self, session: Session, fact: LetterQueued | LetterAbsorbed) -> None:
        if isinstance(fact, LetterQueued):
            session.queue_letter(fact)
            return
        session.absorb(fact)
        if fact.run_id is not None and fact.run_id in self.runs:
            self._set(runs.went_home(self.runs[fact.run_id], fact))

    def _fold_run(self, session: Session, fact: RunQueued | RunStarted | RunSettled | RunWaiting | RunResumed) -> None:
        match fact:
            case RunQueued():
                self._set(runs.queued(fact))
                # A set: a log that is read again counts nobody twice.
                self.created.setdefault(fact.root_id, {}).setdefault(fact.root_run_id, set()).add(fact.run_id)
                session.spawn(fact)
            case RunStarted():
                self._set(runs.changed(self.runs[fact.run_id], fact))
            case RunSettled():
                session.settle(fact)
                self._set(runs.changed(self.runs[fact.run_id], fact))
            case RunWaiting():
                self._set(runs.waiting(self.runs[fact.run_id], fact))
            case RunResumed():
                self._set(runs.resumed(self.runs[fact.run_id], fact))
            case _:
                assert_never(fact)
        if fact.run_id not in self._past:
            self._fold_book(fact)

    def _fold_book(self, fact: RunQueued | RunStarted | RunSettled | RunWaiting | RunResumed) -> None:
        match fact:
            case RunQueued():
                self.book.enqueue(_seat(self.runs[fact.run_id]))
            case RunStarted() | RunResumed():
                self.book.start(fact.run_id)
            case RunSettled():
                self.book.release(fact.run_id)
            case RunWaiting():
                self.book.release(fact.run_id)
                if fact.waiting_for.kind == "slot":
                    self.book.enqueue(_seat(self.runs[fact.run_id]), front=True)
            case _:
                assert_never(fact)

    def _set(self, run: Run) -> None:
        self.run_rows[run.run_id] = run
        if run.result_state in HOME:
            self.runs.pop(run.run_id, None)
            # In memory as long as the run is: see `_forget`.
            self.sessions[run.parent_id].not_home.pop(run.run_id, None)
        else:
            self.runs[run.run_id] = run

    def _forget(self, session: Session) -> None:
        del self.sessions[session.session_id]
        for run_id in session.not_home:
            self.runs.pop(run_id, None)
        root_id = session.header.root_id
        self.tree_sizes[root_id] -= 1
        if not self.tree_sizes[root_id]:
            del self.tree_sizes[root_id]
            del self.policies[root_id]
            self.created.pop(root_id, None)


def _seat(run: Run) -> Seat:
    return Seat(run_id=run.run_id, root_id=run.root_id, parent_id=run.parent_id)
