"""Decisions about one run: accept it, start it, settle it, let it give up its slot; never about a root's own turns."""

from collections.abc import Sequence
from typing import Any

import msgspec

from retinue.core.decide.admission import CHILDREN, EARLIER, PARKED, SLOT, admit, admit_after, admit_now, waits
from retinue.core.decide.base import (
    AGAIN,
    Closing,
    Decision,
    Ending,
    Stamp,
    Wake,
    arrival,
    close_turn,
    judge_empty,
    open_session,
    open_turn_of,
    owed_letters,
    owes_a_step,
    result_output_id,
    settled_letter,
)
from retinue.core.errors import RetinueError
from retinue.core.events import (
    Draft,
    RunQueued,
    RunSettled,
    RunSpec,
    StoredOutput,
    Usage,
    Value,
)
from retinue.core.ids import CallId, Digest, RunId, SessionId
from retinue.core.mailbox import DIAGNOSTIC_MAX_BYTES
from retinue.core.policy import Policy
from retinue.core.run import Run, run_fact_keys, working_s
from retinue.core.run import queued as run_as_queued
from retinue.core.schedule import Plan
from retinue.core.session import Session
from retinue.core.state import State, depth_cap, seat_of
from retinue.core.text import fit_bytes, fit_chars

End = tuple[Ending, Closing | None, tuple[Draft, ...]]
"""How a run ended, the closing of its turn where it had one, and the facts of its own log."""


class Spawn(Value):
    """Accept a child. Its ids are reserved by the caller; `root_run_id` is used where the parent has no open turn."""

    run_id: RunId
    session_id: SessionId
    parent_id: SessionId
    root_run_id: RunId
    call_id: CallId | None
    name: str
    model: str
    cwd: str
    continuable: bool
    spec: RunSpec
    stamp: Stamp
    provider: str = "spawn"
    blobs: tuple[tuple[Digest, bytes], ...] = ()


class Settle(Value):
    """Turn a body's ending into the run's settlement."""

    run_id: RunId
    ending: Ending
    stamp: Stamp


class YieldSlot(Value):
    """A run only waits for its own descendants from here on."""

    run_id: RunId
    stamp: Stamp


class WantSlot(Value):
    """A run that had yielded has work again."""

    run_id: RunId
    stamp: Stamp


def decide_spawn(state: State, command: Spawn) -> Decision:
    """Accept a child and start it when a slot is free; refuse it over a cap, over budget, too deep, or switched off."""
    parent = open_session(state, command.parent_id)
    require_delegation(state, parent, _root_run(parent, command))
    _require_right(parent)
    require_depth(parent.header.depth + 1, depth_cap(parent, state.policy(parent.header.root_id)))
    require_depth(parent.header.depth + 1, command.spec.rights.max_depth)
    _require_created_caps(state, parent, command)
    _require_fresh_id(state, parent, command.session_id)
    run = run_as_queued(_queued_fact(parent, command))
    return accepted(state, run, command.stamp, blobs=command.blobs)


def accepted(
    state: State,
    run: Run,
    stamp: Stamp,
    *,
    back: Sequence[Run] = (),
    blobs: tuple[tuple[Digest, bytes], ...] = (),
    patient: bool = False,
) -> Decision:
    """Return the acceptance of a run, with its start where a slot is free; the value is the run as committed.

    At a full cap it is refused where `caps.on_full` says so; a `patient` one never is, nor one behind an earlier run
    of its own child. `back` are runs that were set aside and stand in the queue again, before it.
    """
    run = msgspec.structs.replace(run, queue_position=state.book.queue_length(run.root_id) + len(back) + 1)
    plan = Plan(state.book, state.caps)
    for joins in (*back, run):
        plan.join(seat_of(joins))
    admitted = [seat.run_id for seat in plan.admit()]
    policy = state.policy(run.root_id)
    refusable = not (patient or _siblings(state, run))
    if run.run_id not in admitted and refusable and policy["caps.on_full"] == "reject":
        raise _no_slot(state, policy, run)
    queued = Draft(session_id=run.parent_id, fact=RunQueued(**run_fact_keys(run), spec=run.spec))
    drafts, effects = admit(state, plan_order=admitted, stamp=stamp, fresh=run)
    status = "running" if run.run_id in admitted else "queued"
    position = None if status == "running" else run.queue_position
    value = msgspec.structs.replace(run, status=status, queue_position=position)
    before = tuple(waits(sibling, SLOT, stamp) for sibling in back)
    return Decision(drafts=(*before, queued, *drafts), effects=tuple(effects), blobs=blobs, value=value)


def _siblings(state: State, run: Run) -> list[RunId]:
    """Return the open runs of the same child, in the order they were accepted."""
    kid = state.sessions[run.parent_id].kids.get(run.session_id)
    return [] if kid is None else [run_id for run_id in kid.open if run_id != run.run_id]


def require_delegation(state: State, parent: Session, root_run_id: RunId) -> None:
    """Refuse new work for children while the master switch is off, or when the tree's tokens are used up."""
    if not state.switch_on:
        raise RetinueError(
            "switched_off",
            "Delegation is switched off: no child is started or continued.",
            "Do the task yourself, or have it switched on with 'retinue switch on'.",
        )
    root_id = parent.header.root_id
    if state.refuses_new(root_id, root_run_id):
        limit = state.policy(root_id).number("budget.tree_tokens_max")
        raise RetinueError(
            "budget_exceeded",
            f"This root run has used up its budget of {limit} tokens: no child is started or continued.",
            "Finish with what is there, or raise budget.tree_tokens_max for the next prompt.",
        )


def _require_fresh_id(state: State, parent: Session, session_id: SessionId) -> None:
    taken = session_id in state.sessions or session_id in parent.kids
    if taken or any(run.session_id == session_id for run in state.runs.values() if run.status == "queued"):
        raise RetinueError("invalid", f"The session id {session_id} is taken.", "Reserve a fresh one.")


def next_run(state: State, last: Run, spec: RunSpec, ids: tuple[RunId, RunId], stamp: Stamp) -> Run:
    """Return a further run of a child, not accepted yet, with everything frozen as in an earlier run of it.

    `ids` are the run's own and its root run's.
    """
    waits = SLOT if state.sessions[last.parent_id].kids[last.session_id].open == {} else EARLIER
    run_id, root_run_id = ids
    return msgspec.structs.replace(
        last,
        run_id=run_id,
        root_run_id=root_run_id,
        call_id=None,
        status="queued",
        reason=None,
        detail=None,
        waiting_for=waits,
        queue_position=None,
        steps=0,
        usage=Usage(),
        created_at=stamp.wall,
        started_at=None,
        ended_at=None,
        queued_s=None,
        elapsed_s=None,
        output=None,
        output_cut=False,
        output_id=None,
        partial=None,
        files=(),
        result_state="none",
        spec=spec,
        clock_s=stamp.clock_s,
        worked_s=0.0,
        usage_tree=Usage(),
    )


def require_depth(depth: int, cap: int | None) -> None:
    """Refuse a child that would be deeper than its cap, with both numbers (`depth_exceeded`)."""
    if cap is not None and depth > cap:
        raise RetinueError(
            "depth_exceeded",
            f"A child of this session would have depth {depth}; the cap is {cap}.",
            "Do the task yourself, without a child.",
        )


def _require_right(parent: Session) -> None:
    """Refuse a child of a child that may not delegate, whoever asks for it (`denied`): no path widens rights."""
    if parent.header.parent_id is not None and not parent.header.rights.may_delegate:
        raise RetinueError(
            "denied", f"The child {parent.session_id} may not delegate.", "Do the task yourself, without a child."
        )


def _require_created_caps(state: State, parent: Session, command: Spawn) -> None:
    policy = state.policy(parent.header.root_id)
    in_turn = parent.turn.spawned if parent.turn is not None else 0
    below_root = state.created_below(parent.header.root_id, _root_run(parent, command))
    for count, key, where in (
        (in_turn, "caps.created.turn", "this turn"),
        (below_root, "caps.created.root_run", "this root run"),
    ):
        cap = policy.number(key)
        if cap is not None and count >= cap:
            raise RetinueError(
                "cap_created",
                f"{count} children were created in {where} and {key} is {cap}.",
                "Do the rest yourself, or wait for the next turn.",
            )


def _no_slot(state: State, policy: Policy, run: Run) -> RetinueError:
    parts = [
        f"{count} of {cap} {where}"
        for count, cap, where in (
            (state.book.total, policy.number("caps.running.process"), "in the process"),
            (state.book.by_root[run.root_id], policy.number("caps.running.root"), "below this root"),
            (state.book.by_parent[run.parent_id], policy.number("caps.running.parent"), "of this parent"),
        )
        if cap is not None
    ]
    return RetinueError(
        "cap_running",
        f"No slot is free: {', '.join(parts)} are running.",
        "Wait until a child has ended, then spawn again.",
    )


def _root_run(parent: Session, command: Spawn) -> RunId:
    return parent.root_run(command.root_run_id)


def _queued_fact(parent: Session, command: Spawn) -> RunQueued:
    root_id, rights = parent.header.root_id, command.spec.rights
    definition = command.spec.definition
    return RunQueued(
        run_id=command.run_id,
        child_id=command.session_id,
        parent_id=command.parent_id,
        root_id=root_id,
        root_run_id=_root_run(parent, command),
        call_id=command.call_id,
        name=command.name,
        agent=None if definition is None else definition.ref,
        model=command.model,
        depth=parent.header.depth + 1,
        provider=command.provider,
        status="queued",
        reason=None,
        detail=None,
        waiting_for=SLOT,
        queue_position=None,
        steps=0,
        usage=Usage(),
        created_at=command.stamp.wall,
        started_at=None,
        ended_at=None,
        queued_s=None,
        elapsed_s=None,
        access=rights.access,
        paths=rights.paths,
        cwd=command.cwd,
        continuable=command.continuable,
        output=None,
        output_cut=False,
        output_id=None,
        partial=None,
        files=(),
        result_state="none",
        clock_s=command.stamp.clock_s,
        spec=command.spec,
    )


def decide_settle(state: State, command: Settle) -> Decision:
    """Settle a running run once: its turn, its settlement, its letter, its slot and who gets that, in one commit.

    A run that has ended already stays as it is. A completed ending that still owes a step is answered `AGAIN`.
    """
    run = state.runs.get(command.run_id)
    if run is None or run.status != "running":
        return Decision(value=run)
    child, turn = open_turn_of(state, run.session_id)
    ending = command.ending
    if ending.status == "completed" and not ending.final and owes_a_step(state, child):
        return Decision(value=AGAIN)
    ending = judge_empty(state, child, ending)
    closing = close_turn(child, turn, ending)
    letters, outputs = owed_letters(state, child)
    decision = settlement(state, run, (ending, closing, (*letters, *closing.drafts)), command.stamp)
    return msgspec.structs.replace(decision, outputs=(*outputs, *decision.outputs))


def settlement(state: State, run: Run, end: End, stamp: Stamp) -> Decision:
    """Return a run's settlement: its ending, its letter, and whoever gets the slot it leaves, in one batch."""
    ending, closing, child_drafts = end
    whole = closing.text if closing is not None else ""
    settled, cut = _settled_run(state, run, ending, (closing, whole), stamp)
    told: list[Draft] = []
    if _goes_by_letter(state, run, ending):
        letter, letter_cut = settled_letter(state, settled, whole)
        cut = cut or letter_cut
        told = arrival(state, letter)
    parked = _parked(state, run, ending, stamp)
    # A queued run frees no slot; and where several are cancelled in one commit, none may start another of them.
    moves_up = run.status == "running"
    admitted, effects = admit_after(state, run, stamp, settled=not parked) if moves_up else ([], [])
    fact = RunSettled(**run_fact_keys(settled), usage_tree=settled.usage_tree)
    kept = StoredOutput(output_id=result_output_id(run.run_id), session_id=run.parent_id, text=whole)
    return Decision(
        drafts=(*child_drafts, Draft(session_id=run.parent_id, fact=fact), *told, *parked, *admitted),
        effects=(*(Wake(session_id=key) for key in (run.parent_id, run.session_id, run.root_run_id)), *effects),
        outputs=(kept,) if cut else (),
        value=settled,
    )


def _parked(state: State, run: Run, ending: Ending, stamp: Stamp) -> list[Draft]:
    """Return the facts that set the messages aside which wait behind a run that was interrupted."""
    if ending.reason != "interrupted" or run.status != "running":
        return []
    waiting = [state.runs[run_id] for run_id in _siblings(state, run)]
    return [waits(sibling, PARKED, stamp) for sibling in waiting if not sibling.is_parked]


def _goes_by_letter(state: State, run: Run, ending: Ending) -> bool:
    # A handle does not outlive its process: after a restart the parent is told by letter instead.
    if state.policy(run.root_id)["result.delivery"] == "pull":
        return False
    delivery = run.spec.delivery
    return delivery == "letter" or (delivery == "handle" and ending.reason == "restart")


def _settled_run(
    state: State, run: Run, ending: Ending, told: tuple[Closing | None, str], stamp: Stamp
) -> tuple[Run, bool]:
    closing, whole = told
    text, cut = fit_chars(whole, state.policy(run.root_id).number("result.output_max_chars"))
    completed = ending.status == "completed"
    started = run.status == "running"
    changes: dict[str, Any] = {
        "status": ending.status,
        "reason": ending.reason,
        "detail": fit_bytes(ending.detail, DIAGNOSTIC_MAX_BYTES),
        "waiting_for": None,
        "queue_position": None,
        "ended_at": stamp.wall,
        "queued_s": run.queued_s if started else max(0.0, stamp.clock_s - run.clock_s),
        "elapsed_s": working_s(run, stamp.clock_s) if started else None,
        "output": text if completed else None,
        "partial": None if completed else text or None,
        "output_cut": cut,
        "output_id": result_output_id(run.run_id) if cut else None,
        "result_state": "stored",
        "clock_s": stamp.clock_s,
    }
    if closing is not None:
        changes["usage"] = closing.usage
        changes["usage_tree"] = closing.usage_tree
        changes["steps"] = closing.steps
    return msgspec.structs.replace(run, **changes), cut


def decide_yield(state: State, command: YieldSlot) -> Decision:
    """Give up a run's slot while it only waits for its own descendants; somebody else may have it."""
    run = state.runs.get(command.run_id)
    # One that wanted its slot back meanwhile, and only waits again, gives its place in the line up as well.
    if run is None or run.status != "running" or run.waiting_for == CHILDREN:
        return Decision()
    admitted, effects = admit_after(state, run, command.stamp, settled=False)
    return Decision(drafts=(waits(run, CHILDREN, command.stamp), *admitted), effects=tuple(effects))


def decide_want_slot(state: State, command: WantSlot) -> Decision:
    """Ask for a yielded run's slot back, at the front of its root's queue; it is never refused."""
    run = state.runs.get(command.run_id)
    if run is None or not run.is_yielded or run.waiting_for == SLOT:
        return Decision()
    plan = Plan(state.book, state.caps)
    plan.join(seat_of(run), front=True)
    admitted, effects = admit_now(state, command.stamp, plan)
    return Decision(drafts=(waits(run, SLOT, command.stamp), *admitted), effects=tuple(effects))
