"""The head: everything a decision reads, folded from facts in queue order; `State.apply` is the only mutator.

What is over leaves memory by itself: a session when its turn is closed and nothing below it is open, a run when its
result went home or its parent left. Whoever is in memory has its ancestors there too.
"""

from collections import Counter
from collections.abc import Sequence
from typing import assert_never

from retinue.core import run as runs
from retinue.core.budget import Ledger
from retinue.core.events import (
    AnyFact,
    BudgetExceeded,
    ContextCompacted,
    ContextSeeded,
    Event,
    HookFailed,
    LetterAbsorbed,
    LetterQueued,
    MessageAssistant,
    MessageUser,
    NotesAsked,
    PolicyChanged,
    RunQueued,
    RunResumed,
    RunSettled,
    RunStarted,
    RunWaiting,
    SessionDeleted,
    SessionOpened,
    StepClosed,
    StepOpened,
    SwitchChanged,
    ToolFinished,
    ToolStarted,
    TurnClosed,
    TurnOpened,
    Usage,
    Warned,
)
from retinue.core.ids import RunId, SessionId
from retinue.core.policy import Policy, stored, with_stored
from retinue.core.run import Run
from retinue.core.schedule import Caps, ScheduleBook, Seat
from retinue.core.session import Session, SessionRow

HOME = frozenset({"absorbed", "collected"})
Request = StepOpened | NotesAsked | StepClosed | ContextCompacted
"""Facts of one model request; see `_fold_tokens`."""


class Tree:
    """What all sessions of one root share while any of them is in memory."""

    def __init__(self, policy: Policy) -> None:
        """Begin with the policy of the root's header."""
        self.policy = policy
        self.size = 0
        self.created: dict[RunId, set[RunId]] = {}
        self.ledgers: dict[RunId, Ledger] = {}
        self.auto_turns: Counter[RunId] = Counter()
        self.is_read = False
        """Whether it is being read from its logs: what its root's log says of tokens counts then."""

    def ledger(self, root_run_id: RunId) -> Ledger:
        """Return the token count of a root run."""
        return self.ledgers.setdefault(root_run_id, Ledger())


class State:
    """All that is open in one store, and the rows that the last facts changed."""

    def __init__(self) -> None:
        """Begin empty; loading is folding."""
        self.sessions: dict[SessionId, Session] = {}
        self.runs: dict[RunId, Run] = {}
        self.trees: dict[SessionId, Tree] = {}
        self.book = ScheduleBook()
        self.switch_on = True
        self.run_rows: dict[RunId, Run] = {}
        self.session_rows: dict[SessionId, SessionRow] = {}
        self._below: Counter[SessionId] = Counter()
        self._maybe_over: dict[SessionId, None] = {}
        self._past: frozenset[RunId] = frozenset()
        self._fresh: frozenset[RunId] = frozenset()
        self._loading = False

    def policy(self, root_id: SessionId) -> Policy:
        """Return the policy of a tree that is in memory."""
        return self.trees[root_id].policy

    def caps(self, root_id: SessionId) -> Caps:
        """Return a tree's caps on working runs."""
        return caps_of(self.policy(root_id))

    def created_below(self, root_id: SessionId, root_run_id: RunId) -> int:
        """Return how many children a root run has created while its tree was in memory."""
        return len(self.trees[root_id].created.get(root_run_id, ()))

    def parent_of(self, session: Session) -> Session | None:
        """Return a child's parent, which is in memory as long as the child is."""
        parent_id = session.header.parent_id
        return None if parent_id is None else self.sessions[parent_id]

    def refuses_new(self, root_id: SessionId, root_run_id: RunId) -> bool:
        """Return whether a root run is over its budget and may start nothing more."""
        tree = self.trees[root_id]
        ledger, limit = tree.ledger(root_run_id), tree.policy.number("budget.tree_tokens_max")
        return (ledger.exceeded or ledger.is_over(limit)) and tree.policy["budget.on_exceed"] != "warn"

    def rouses(self, session: Session) -> bool:
        """Return whether letters that found this session idle will start a turn of it."""
        if session.turn is not None or not session.rousing:
            return False
        tree = self.trees[session.header.root_id]
        if tree.policy["result.idle_parent"] != "start_turn" or not self._may_continue(session):
            return False
        root_run_id = next(iter(session.rousing.values())).root_run_id
        if root_run_id is None or self.refuses_new(session.header.root_id, root_run_id):
            return False
        most = tree.policy.number("result.auto_turns_max")
        return most is None or tree.auto_turns[root_run_id] < most

    def _may_continue(self, session: Session) -> bool:
        parent = self.parent_of(session)
        if parent is None:
            return True
        kid = parent.kids[session.session_id]
        return kid.continuable and not kid.open and self.switch_on

    def tree_rests(self, root_id: SessionId) -> bool:
        """Return whether nothing of a tree works, waits for a slot, or is about to start."""
        return not any(
            session.turn is not None or session.awaits_children or self.rouses(session)
            for session in self.sessions.values()
            if session.header.root_id == root_id
        )

    def end_batch(self) -> tuple[tuple[Run, ...], tuple[SessionRow, ...]]:
        """Return the projections changed since the last call, and let what is over leave memory."""
        rows = tuple(self.run_rows.values()), tuple(self.session_rows.values())
        self.run_rows = {}
        self.session_rows = {}
        while self._maybe_over:
            session = self.sessions.get(self._maybe_over.popitem()[0])
            if session is not None and self._is_over(session):
                self._forget(session)
        return rows

    def _is_over(self, session: Session) -> bool:
        parent = self.parent_of(session)
        wanted = parent is not None and bool(parent.kids[session.session_id].open)
        below = self._below[session.session_id]
        return session.turn is None and not (session.open_runs or below or wanted or self.rouses(session))

    def load(self, events: Sequence[Event]) -> None:
        """Fold stored logs: their rows are written already, and runs that settled in them queue for nothing any more.

        What is idle leaves memory with the next batch. Letters that nobody has read wake nobody.
        """
        self._past = frozenset(event.fact.run_id for event in events if isinstance(event.fact, RunSettled))
        self._fresh = frozenset(event.fact.run_id for event in events if isinstance(event.fact, RunQueued))
        self._loading = True
        for event in events:
            self.apply(event)
        for session_id in {event.session_id for event in events}:
            self.sessions[session_id].rousing = {}
            self._tree(self.sessions[session_id]).is_read = False
        self._loading = False
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
        if isinstance(fact, RunSettled):
            self._maybe_over[fact.child_id] = None
        if isinstance(fact, BudgetExceeded | PolicyChanged | SwitchChanged):
            # Letters that keep an idle session here may start nothing any more.
            self._maybe_over.update((kept.session_id, None) for kept in self.sessions.values() if kept.rousing)

    def _open_session(self, event: Event, fact: SessionOpened) -> None:
        self.sessions[event.session_id] = Session(event.session_id, fact, event.time)
        if fact.root_id not in self.trees:
            self.trees[fact.root_id] = Tree(stored(fact.policy))
            self.trees[fact.root_id].is_read = self._loading
        self.trees[fact.root_id].size += 1
        if fact.parent_id is not None:
            self._below[fact.parent_id] += 1

    def _fold(self, session: Session, fact: AnyFact) -> None:
        match fact:
            case SessionOpened() | ToolStarted() | HookFailed() | Warned() | SwitchChanged():
                pass
            case RunQueued() | RunStarted() | RunSettled() | RunWaiting() | RunResumed():
                self._fold_run(session, fact)
            case LetterQueued() | LetterAbsorbed():
                self._fold_letter(session, fact)
            case StepOpened() | MessageAssistant() | StepClosed() | ToolFinished() | ContextCompacted() | NotesAsked():
                self._fold_step(session, fact)
            case TurnOpened() | TurnClosed():
                self._fold_turn(session, fact)
            case MessageUser() | ContextSeeded() | SessionDeleted():
                self._fold_context(session, fact)
            case BudgetExceeded() | PolicyChanged():
                self._fold_tree(self._tree(session), fact)
            case _:
                assert_never(fact)

    def _fold_context(self, session: Session, fact: MessageUser | ContextSeeded | SessionDeleted) -> None:
        match fact:
            case MessageUser():
                session.admit(fact)
            case ContextSeeded():
                session.seed(fact)
            case SessionDeleted():
                session.delete_kid(fact)
            case _:
                assert_never(fact)

    def _fold_tree(self, tree: Tree, fact: BudgetExceeded | PolicyChanged) -> None:
        if isinstance(fact, BudgetExceeded):
            tree.ledger(fact.root_run_id).mark_exceeded()
        else:
            tree.policy = with_stored(tree.policy, fact.changes)

    def _tree(self, session: Session) -> Tree:
        return self.trees[session.header.root_id]

    def _fold_turn(self, session: Session, fact: TurnOpened | TurnClosed) -> None:
        if isinstance(fact, TurnClosed):
            self._fold_tokens(session, None)
            session.close_turn(fact)
            if self._tree(session).policy["budget.include_root"]:
                self._read_tokens(session, fact.root_run_id, fact.usage)
            return
        session.open_turn(fact)
        if fact.cause == "letter" and fact.run_id is None and not self._loading:
            self._tree(session).auto_turns[fact.root_run_id] += 1

    def _read_tokens(self, session: Session, root_run_id: RunId, usage: Usage) -> None:
        """Count what a root's log says of turns that are over, when its tree comes back into memory."""
        if self._tree(session).is_read and session.header.parent_id is None:
            ledger = self._tree(session).ledger(root_run_id)
            ledger.settle(session.session_id, usage.total or usage.input + usage.output)

    def _fold_tokens(
        self, session: Session, fact: StepOpened | NotesAsked | StepClosed | ContextCompacted | None
    ) -> None:
        """Count a request of a tree with a budget; a log that is read again counts nothing twice."""
        tree = self._tree(session)
        counted = session.header.parent_id is not None or tree.policy["budget.include_root"]
        if self._loading or session.turn is None or not counted:
            return
        ledger = tree.ledger(session.turn.opened.root_run_id)
        match fact:
            case StepOpened() | NotesAsked():
                if fact.reserved is not None:
                    ledger.reserve(session.session_id, fact.reserved)
            case StepClosed() | ContextCompacted():
                ledger.settle(session.session_id, runs.tokens_reported(fact))
            case None:
                if session.session_id in ledger.open:
                    ledger.settle(session.session_id, None)
            case _:
                assert_never(fact)

    def _fold_step(self, session: Session, fact: Request | MessageAssistant | ToolFinished) -> None:
        if isinstance(fact, MessageAssistant):
            session.answer(fact)
            return
        if isinstance(fact, ToolFinished):
            session.finish_call(fact)
            for run_id in fact.carries:
                if run_id in self.runs:
                    self._set(runs.went_home(self.runs[run_id], fact))
            return
        self._fold_tokens(session, fact)
        self._fold_request(session, fact)

    def _fold_request(self, session: Session, fact: Request) -> None:
        match fact:
            case StepOpened():
                session.open_step(fact)
            case NotesAsked():
                pass
            case StepClosed():
                session.close_step(fact)
                if fact.run_id is not None and self._counts(fact.run_id):
                    self._set(runs.stepped(self.runs[fact.run_id], fact))
            case ContextCompacted():
                session.compact(fact)
                if fact.run_id is not None and self._counts(fact.run_id):
                    self._set(runs.compacted(self.runs[fact.run_id], fact))
            case _:
                assert_never(fact)

    def _counts(self, run_id: RunId) -> bool:
        """Return whether a request counts for its run: not when only the child's log is read again."""
        return run_id in self.runs and (not self._loading or run_id in self._fresh)

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
                session.accept_run(fact)
                self._count_run(session, fact)
            case RunStarted():
                self._set(runs.changed(self.runs[fact.run_id], fact))
                session.start_run(fact)
            case RunSettled():
                session.settle(fact)
                self._read_tokens(session, fact.root_run_id, fact.usage_tree)
                self._set(runs.changed(self.runs[fact.run_id], fact))
            case RunWaiting():
                if self.runs[fact.run_id].status == "queued":
                    session.park(fact)
                self._set(runs.waiting(self.runs[fact.run_id], fact))
            case RunResumed():
                self._set(runs.resumed(self.runs[fact.run_id], fact))
            case _:
                assert_never(fact)
        if fact.run_id not in self._past:
            self._fold_book(fact)

    def _count_run(self, session: Session, fact: RunQueued) -> None:
        tree = self._tree(session)
        if fact.spec.cause == "prompt":
            # A set: a log that is read again counts nobody twice.
            tree.created.setdefault(fact.root_run_id, set()).add(fact.run_id)
        elif fact.spec.cause == "letter" and not self._loading:
            tree.auto_turns[fact.root_run_id] += 1

    def _fold_book(self, fact: RunQueued | RunStarted | RunSettled | RunWaiting | RunResumed) -> None:
        match fact:
            case RunQueued():
                self.book.enqueue(seat_of(self.runs[fact.run_id]))
            case RunStarted() | RunResumed():
                self.book.start(fact.run_id)
            case RunSettled():
                self.book.settle(fact.run_id)
            case RunWaiting():
                self._fold_wait(fact)
            case _:
                assert_never(fact)

    def _fold_wait(self, fact: RunWaiting) -> None:
        run = self.runs[fact.run_id]
        if run.status == "queued":
            if run.is_parked:
                self.book.park(fact.run_id)
            else:
                self.book.unpark(fact.run_id)
        elif run.is_yielded:
            self.book.release(fact.run_id)
            if fact.waiting_for.kind == "slot":
                self.book.enqueue(seat_of(run), front=True)

    def _set(self, run: Run) -> None:
        self.run_rows[run.run_id] = run
        if run.result_state in HOME:
            self.runs.pop(run.run_id, None)
            # In memory as long as the run is: see `_forget`.
            self.sessions[run.parent_id].not_home.pop(run.run_id, None)
        else:
            self.runs[run.run_id] = run

    def forget_tree(self, session_ids: Sequence[SessionId]) -> None:
        """Let deleted sessions leave memory; nothing of theirs is open any more."""
        for session_id in session_ids:
            if session_id in self.sessions:
                self._forget(self.sessions[session_id])

    def _forget(self, session: Session) -> None:
        del self.sessions[session.session_id]
        del self._below[session.session_id]
        for run_id in session.not_home:
            self.runs.pop(run_id, None)
        tree = self._tree(session)
        tree.size -= 1
        if not tree.size:
            del self.trees[session.header.root_id]
        parent_id = session.header.parent_id
        if parent_id is not None and parent_id in self.sessions:
            self._below[parent_id] -= 1
            self._maybe_over[parent_id] = None


def depth_cap(session: Session, policy: Policy) -> int | None:
    """Return the deepest depth a child of this session may have: its own right, within what the policy says now."""
    now, own = policy.number("caps.max_depth"), session.header.rights.max_depth
    if session.header.parent_id is None or own is None:
        return now
    return own if now is None else min(own, now)


def caps_of(policy: Policy) -> Caps:
    """Return the caps on working runs that a policy sets."""
    return Caps(
        process=policy.number("caps.running.process"),
        root=policy.number("caps.running.root"),
        parent=policy.number("caps.running.parent"),
    )


def seat_of(run: Run) -> Seat:
    """Return a run as the book knows it."""
    return Seat(run_id=run.run_id, root_id=run.root_id, parent_id=run.parent_id, session_id=run.session_id)
