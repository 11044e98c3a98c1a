"""What a start does with what a crash left open: which decisions close it, in which order; it starts nothing."""

from collections.abc import Callable
from typing import Any, Final

from retinue.core.decide.base import Decision, Ending, Stamp
from retinue.core.decide.runs import Settle, decide_settle
from retinue.core.decide.stops import EndRun, decide_end_run
from retinue.core.decide.turns import CloseTurn, decide_close_turn
from retinue.core.ids import SessionId
from retinue.core.run import Run
from retinue.core.state import State

DETAIL: Final = "The process that ran it ended before it did; nothing is run again by itself."

Owed = tuple[Callable[[State, Any], Decision], Any]


def restart_ending(state: State, root_id: SessionId) -> Ending:
    """Return how an unfinished run reads after a crash, as `life.on_restart` says."""
    status = state.policy(root_id)["life.on_restart"]
    return Ending(status=status, reason="restart", detail=DETAIL, final=True)


def owed_closings(state: State, stamp: Stamp) -> list[Owed]:
    """Return the decisions, in order, that close everything open: queued runs, runs from the deepest up, root turns."""
    open_runs = [run for run in state.runs.values() if run.is_open]
    waiting = [run for run in open_runs if run.status == "queued"]
    working = sorted((run for run in open_runs if run.status == "running"), key=_deepest_first)
    owed: list[Owed] = [
        (decide_end_run, EndRun(run_id=run.run_id, ending=restart_ending(state, run.root_id), stamp=stamp))
        for run in waiting
    ]
    owed += [
        (decide_settle, Settle(run_id=run.run_id, ending=restart_ending(state, run.root_id), stamp=stamp))
        for run in working
    ]
    owed += [
        (
            decide_close_turn,
            CloseTurn(session_id=session.session_id, ending=restart_ending(state, session.session_id), stamp=stamp),
        )
        for session in state.sessions.values()
        if session.turn is not None and session.header.parent_id is None
    ]
    return owed


def _deepest_first(run: Run) -> int:
    return -run.depth
