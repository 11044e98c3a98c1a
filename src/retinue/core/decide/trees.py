"""Decisions about whole trees: a policy set while it lives, the master switch, deletion; never about one turn."""

from collections.abc import Mapping
from typing import Any

import msgspec

from retinue.core.decide.admission import admit_now
from retinue.core.decide.base import Decision, Deletion, Effect, Ending, Stamp, Wake, open_session
from retinue.core.decide.stops import CancelRuns, decide_cancel_runs
from retinue.core.errors import RetinueError
from retinue.core.events import Draft, PolicyChanged, SessionDeleted, SwitchChanged, Value
from retinue.core.ids import SessionId
from retinue.core.policy import Policy, with_stored
from retinue.core.schedule import Caps, Plan
from retinue.core.state import State, caps_of

SWITCHED_OFF = Ending(status="cancelled", reason="switched_off", detail="Delegation was switched off.", whole=True)


class ChangePolicy(Value):
    """Set switches of a tree that lives; `changes` are checked already."""

    root_id: SessionId
    changes: Mapping[str, Any]
    stamp: Stamp


class SetSwitch(Value):
    """Set the master switch."""

    on: bool
    stamp: Stamp


class Delete(Value):
    """Delete sessions that are at rest, children first; the runs of the last one stay with its parent."""

    session_ids: tuple[SessionId, ...]
    parent_id: SessionId | None = None


def decide_change_policy(state: State, command: ChangePolicy) -> Decision:
    """Set switches of a tree; a lowered cap stops nobody, a raised one admits at once."""
    root = open_session(state, command.root_id)
    new = with_stored(state.policy(root.session_id), command.changes)

    def caps(root_id: SessionId) -> Caps:
        return caps_of(new) if root_id == root.session_id else state.caps(root_id)

    drafts, effects = admit_now(state, command.stamp, Plan(state.book, caps))
    fact = PolicyChanged(changes=dict(command.changes))
    wakes: list[Effect] = [Wake(session_id=run_id) for run_id in state.trees[root.session_id].ledgers]
    wakes += _wakes(state)
    changed = Draft(session_id=root.session_id, fact=fact)
    value: Policy = new
    return Decision(drafts=(changed, *drafts), effects=(*wakes, *effects), value=value)


def decide_set_switch(state: State, command: SetSwitch) -> Decision:
    """Set the master switch; off ends every queued and running child, each root that is open has it in its log."""
    roots = [session for session in state.sessions.values() if session.header.parent_id is None]
    drafts = [Draft(session_id=root.session_id, fact=SwitchChanged(on=command.on)) for root in roots]
    if command.on:
        return Decision(drafts=tuple(drafts), effects=_wakes(state), switch=True, value=True)
    open_runs = tuple(run.run_id for run in state.runs.values() if run.is_open)
    ended = decide_cancel_runs(state, CancelRuns(run_ids=open_runs, ending=SWITCHED_OFF, stamp=command.stamp))
    return msgspec.structs.replace(ended, drafts=(*drafts, *ended.drafts), switch=False, value=False)


def decide_wake(state: State, _: None) -> Decision:
    """Wake every session whose letters may start a turn: what kept them from it is over."""
    return Decision(effects=_wakes(state))


def _wakes(state: State) -> tuple[Wake, ...]:
    """Return the wakes for sessions with letters that may start a turn now and might not before."""
    return tuple(Wake(session_id=session.session_id) for session in state.sessions.values() if session.rousing)


def decide_delete(state: State, command: Delete) -> Decision:
    """Delete sessions; whoever is still open is refused (`turn_open`)."""
    for session_id in command.session_ids:
        session = state.sessions.get(session_id)
        if session is not None and (session.turn is not None or session.open_runs):
            raise RetinueError("turn_open", f"The session {session_id} still works.", "Stop it first.")
    deleted = Deletion(session_ids=command.session_ids)
    if command.parent_id is None or command.parent_id not in state.sessions:
        return Decision(deleted=deleted)
    fact = SessionDeleted(child_id=command.session_ids[-1])
    return Decision(drafts=(Draft(session_id=command.parent_id, fact=fact),), deleted=deleted)
