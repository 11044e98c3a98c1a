"""Decisions that end runs from outside: cancel, interrupt, what a turn takes along; no body settles through them."""

from retinue.core.decide.base import Decision, Effect, Ending, Stamp, StopRun
from retinue.core.decide.runs import settlement
from retinue.core.events import Draft, StoredOutput, Value
from retinue.core.ids import RunId, SessionId
from retinue.core.run import Run
from retinue.core.session import Session
from retinue.core.state import State

PARENT_CANCELLED = Ending(
    status="cancelled", reason="parent_cancelled", detail="The turn that started it ended before it did.", whole=True
)


class CancelRun(Value):
    """End one run, the messages queued behind it, and everything below it."""

    run_id: RunId
    ending: Ending
    stamp: Stamp


class EndRun(Value):
    """End one run only; an interrupt sets the messages behind it aside."""

    run_id: RunId
    ending: Ending
    stamp: Stamp


class CancelChildren(Value):
    """End the open children that go with a session's turn; with a `whole` ending every one."""

    session_id: SessionId
    ending: Ending
    stamp: Stamp


class CancelRuns(Value):
    """End just these runs."""

    run_ids: tuple[RunId, ...]
    ending: Ending
    stamp: Stamp


def decide_cancel_run(state: State, command: CancelRun) -> Decision:
    """End a run with its queue and its descendants: queued ones settle here, running ones through their supervisors.

    A run that has ended stays as it is.
    """
    run = state.runs.get(command.run_id)
    if run is None or not run.is_open:
        return Decision(value=run)
    stop = _Stop(state, command.stamp)
    mine = _from(state, run)
    for run_id in mine:
        stop.end(run_id, command.ending)
    if len(mine) == len(state.sessions[run.parent_id].kids[run.session_id].open):
        # Else an earlier run of the child goes on, and what is below belongs to that one.
        stop.end_below(run.session_id)
    return stop.decision(value=stop.ended.get(run.run_id, run))


def decide_end_run(state: State, command: EndRun) -> Decision:
    """Stop one run: a queued one settles here; what waits behind it is set aside with its settlement."""
    run = state.runs.get(command.run_id)
    if run is None or not run.is_open:
        return Decision(value=run)
    stop = _Stop(state, command.stamp)
    stop.end(run.run_id, command.ending)
    return stop.decision(value=stop.ended.get(run.run_id, run))


def decide_cancel_children(state: State, command: CancelChildren) -> Decision:
    """End the children that go with their parent's turn, queued ones at once and in one commit."""
    session = state.sessions.get(command.session_id)
    stop = _Stop(state, command.stamp)
    for run_id in [] if session is None else bound(state, session, command.ending):
        stop.end(run_id, command.ending)
    return stop.decision()


def decide_cancel_runs(state: State, command: CancelRuns) -> Decision:
    """End several runs in one commit, the latest first: so none of them starts because another one settles."""
    stop = _Stop(state, command.stamp)
    for run_id in reversed(command.run_ids):
        run = state.runs.get(run_id)
        if run is not None and run.is_open:
            stop.end(run_id, command.ending)
    return stop.decision()


def bound(state: State, session: Session, ending: Ending) -> list[RunId]:
    """Return the open children of a session that end with its turn (CONTRACT section 4, Turn end)."""
    return [run_id for run_id in session.open_runs if _goes_along(state, state.runs[run_id], ending)]


def _goes_along(state: State, run: Run, ending: Ending) -> bool:
    rule = state.policy(run.root_id)["life.cancel_with_parent"]
    if ending.whole or rule == "always" or run.spec.delivery == "await":
        return True
    return rule == "opt_in" and run.spec.cancel_with_parent is True


def _from(state: State, run: Run) -> list[RunId]:
    """Return a run and those of the same child that were accepted after it, the latest first.

    In this order none of them starts because the one before it settles.
    """
    open_runs = list(state.sessions[run.parent_id].kids[run.session_id].open)
    return open_runs[open_runs.index(run.run_id) :][::-1]


def open_below(state: State, session_id: SessionId) -> list[RunId]:
    """Return every open run below a session, parents before children; also below children whose own turn has ended."""
    found: list[RunId] = []
    wanted = [session_id]
    while wanted:
        session = state.sessions.get(wanted.pop())
        if session is not None:
            found += [run_id for kid in session.kids.values() for run_id in kid.open]
            wanted += session.kids
    return found


class _Stop:
    """Collects the facts and effects of ending several runs at once."""

    def __init__(self, state: State, stamp: Stamp) -> None:
        self.ended: dict[RunId, Run] = {}
        """The runs that settle here, as they will be."""
        self._state = state
        self._stamp = stamp
        self._drafts: list[Draft] = []
        self._effects: list[Effect] = []
        self._outputs: list[StoredOutput] = []
        self._seen: set[RunId] = set()

    def end(self, run_id: RunId, ending: Ending) -> None:
        run = self._state.runs[run_id]
        if run_id in self._seen:
            return
        self._seen.add(run_id)
        if run.status == "running":
            self._effects.append(StopRun(run_id=run_id, ending=ending))
            return
        one = settlement(self._state, run, (ending, None, ()), self._stamp)
        self.ended[run_id] = one.value
        self._drafts.extend(one.drafts)
        self._effects.extend(one.effects)
        self._outputs.extend(one.outputs)

    def end_below(self, session_id: SessionId) -> None:
        for run_id in open_below(self._state, session_id):
            self.end(run_id, PARENT_CANCELLED)

    def decision(self, value: Run | None = None) -> Decision:
        return Decision(
            drafts=tuple(self._drafts), effects=tuple(self._effects), outputs=tuple(self._outputs), value=value
        )
