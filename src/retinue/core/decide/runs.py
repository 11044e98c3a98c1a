"""Decisions about runs: spawn, settle, cancel, give up a slot and want it back; never about a root's own turns."""

from collections.abc import Iterable
from typing import Any

import msgspec

from retinue.core.decide.base import (
    AGAIN,
    Closing,
    Decision,
    Effect,
    Ending,
    ResumeRun,
    Stamp,
    StartRun,
    StopRun,
    Wake,
    close_turn,
    judge_empty,
    open_session,
    open_turn_of,
    owed_letters,
    result_output_id,
    settled_letter,
)
from retinue.core.decide.turns import owes_a_step
from retinue.core.errors import RetinueError
from retinue.core.events import (
    Draft,
    MessageUser,
    RunQueued,
    RunResumed,
    RunSettled,
    RunSpec,
    RunStarted,
    RunWaiting,
    SessionOpened,
    StoredOutput,
    TurnOpened,
    Usage,
    Value,
    WaitingFor,
)
from retinue.core.ids import CallId, Digest, RunId, SessionId, TurnNo
from retinue.core.mailbox import DIAGNOSTIC_MAX_BYTES
from retinue.core.policy import Policy
from retinue.core.run import Run, run_fact_keys, working_s
from retinue.core.run import queued as run_as_queued
from retinue.core.schedule import Plan, Seat
from retinue.core.session import Session
from retinue.core.state import State
from retinue.core.text import fit_bytes, fit_chars

CHILDREN = WaitingFor(kind="children", what="its own children")
SLOT = WaitingFor(kind="slot", what="a free slot")


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


class CancelRun(Value):
    """End one run: at once when it is queued, through its supervisor when it runs."""

    run_id: RunId
    ending: Ending
    stamp: Stamp


class CancelChildren(Value):
    """End every open child of a session."""

    session_id: SessionId
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
    """Accept a child and start it when a slot is free; refuse it over a cap or too deep."""
    parent = open_session(state, command.parent_id)
    require_depth(parent.header.depth + 1, command.spec.rights.max_depth)
    _require_created_caps(state, parent, command)
    run = run_as_queued(_queued_fact(state, parent, command))
    plan = Plan(state.book, state.caps)
    plan.join(Seat(run_id=run.run_id, root_id=run.root_id, parent_id=run.parent_id))
    admitted = [seat.run_id for seat in plan.admit()]
    policy = state.policy(run.root_id)
    if run.run_id not in admitted and policy["caps.on_full"] == "reject":
        raise _no_slot(state, policy, run)
    queued = Draft(session_id=run.parent_id, fact=RunQueued(**run_fact_keys(run), spec=run.spec))
    drafts, effects = _admit(state, plan_order=admitted, stamp=command.stamp, fresh=run)
    status = "running" if run.run_id in admitted else "queued"
    position = None if status == "running" else run.queue_position
    value = msgspec.structs.replace(run, status=status, queue_position=position)
    return Decision(drafts=(queued, *drafts), effects=tuple(effects), blobs=command.blobs, value=value)


def require_depth(depth: int, cap: int | None) -> None:
    """Refuse a child that would be deeper than its cap, with both numbers (`depth_exceeded`)."""
    if cap is not None and depth > cap:
        raise RetinueError(
            "depth_exceeded",
            f"A child of this session would have depth {depth}; the cap is {cap}.",
            "Do the task yourself, without a child.",
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
    return parent.turn.opened.root_run_id if parent.turn is not None else command.root_run_id


def _queued_fact(state: State, parent: Session, command: Spawn) -> RunQueued:
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
        queue_position=state.book.queue_length(root_id) + 1,
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


def _admit(
    state: State, *, plan_order: Iterable[RunId], stamp: Stamp, fresh: Run | None = None
) -> tuple[list[Draft], list[Effect]]:
    """Return the facts and effects that give slots to runs, new ones and returning ones, in order."""
    drafts: list[Draft] = []
    effects: list[Effect] = []
    for run_id in plan_order:
        run = fresh if fresh is not None and fresh.run_id == run_id else state.runs[run_id]
        if run.status == "running":
            fact = RunResumed(run_id=run_id, child_id=run.session_id, clock_s=stamp.clock_s)
            drafts.append(Draft(session_id=run.parent_id, fact=fact))
            effects.append(ResumeRun(run_id=run_id))
        else:
            drafts.extend(_start(state, run, stamp))
            effects.append(StartRun(run_id=run_id))
    return drafts, effects


def _admit_after(state: State, run: Run, stamp: Stamp) -> tuple[list[Draft], list[Effect]]:
    plan = Plan(state.book, state.caps)
    plan.leave(run.run_id)
    return _admit(state, plan_order=[seat.run_id for seat in plan.admit()], stamp=stamp)


def _start(state: State, run: Run, stamp: Stamp) -> list[Draft]:
    spec = run.spec
    turn = TurnNo(1)
    opened = TurnOpened(turn=turn, root_run_id=run.root_run_id, cause="prompt", run_id=run.run_id)
    task = MessageUser(turn=turn, text=spec.prompt, source="agent", sender_id=run.parent_id)
    changes: dict[str, Any] = {
        "status": "running",
        "started_at": stamp.wall,
        "queued_s": max(0.0, stamp.clock_s - run.clock_s),
        "waiting_for": None,
        "queue_position": None,
        "clock_s": stamp.clock_s,
    }
    started = RunStarted(**run_fact_keys(msgspec.structs.replace(run, **changes)))
    child = run.session_id
    return [
        Draft(session_id=child, fact=_child_header(state, run)),
        Draft(session_id=child, fact=opened),
        Draft(session_id=child, fact=task),
        Draft(session_id=run.parent_id, fact=started),
    ]


def _child_header(state: State, run: Run) -> SessionOpened:
    spec = run.spec
    definition = spec.definition
    return SessionOpened(
        parent_id=run.parent_id,
        root_id=run.root_id,
        depth=run.depth,
        name=run.name,
        agent=run.agent,
        agent_digest=None if definition is None else definition.digest,
        provider=run.provider,
        model=run.model,
        profile=spec.profile,
        approval=spec.approval,
        cwd=run.cwd,
        policy=state.policy(run.root_id).to_dict(),
        rights=spec.rights,
        environment_digest=spec.environment_digest,
        call_id=run.call_id,
        effort=spec.effort,
        system_prompt=spec.system_prompt,
        definition=definition,
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
    if ending.status == "completed" and not ending.final and owes_a_step(child):
        return Decision(value=AGAIN)
    ending = judge_empty(state, child, ending)
    closing = close_turn(child, turn, ending)
    letters, outputs = owed_letters(state, child)
    decision = _settlement(state, run, (ending, closing, (*letters, *closing.drafts)), command.stamp)
    return msgspec.structs.replace(decision, outputs=(*outputs, *decision.outputs))


def _settlement(
    state: State, run: Run, end: tuple[Ending, Closing | None, tuple[Draft, ...]], stamp: Stamp
) -> Decision:
    ending, closing, child_drafts = end
    whole = closing.text if closing is not None else ""
    settled, cut = _settled_run(state, run, ending, (closing, whole), stamp)
    parent_drafts: list[Draft] = []
    if _goes_by_letter(run, ending):
        letter, letter_cut = settled_letter(state, settled, whole)
        cut = cut or letter_cut
        parent_drafts.append(letter)
    # A queued run frees no slot; and where several are cancelled in one commit, none may start another of them.
    admitted, effects = _admit_after(state, run, stamp) if run.status == "running" else ([], [])
    fact = RunSettled(**run_fact_keys(settled), usage_tree=settled.usage_tree)
    drafts = (*child_drafts, Draft(session_id=run.parent_id, fact=fact), *parent_drafts, *admitted)
    outputs = (
        (StoredOutput(output_id=result_output_id(run.run_id), session_id=run.parent_id, text=whole),) if cut else ()
    )
    return Decision(
        drafts=drafts,
        effects=(Wake(session_id=run.parent_id), Wake(session_id=run.session_id), *effects),
        outputs=outputs,
        value=settled,
    )


def _goes_by_letter(run: Run, ending: Ending) -> bool:
    # A handle does not outlive its process: after a restart the parent is told by letter instead.
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


def decide_cancel_run(state: State, command: CancelRun) -> Decision:
    """End a run: a queued one settles here, without a slot or a session; a running one is stopped by its supervisor."""
    run = state.runs.get(command.run_id)
    if run is None or not run.is_open:
        return Decision(value=run)
    if run.status == "queued":
        return _settlement(state, run, (command.ending, None, ()), command.stamp)
    return Decision(effects=(StopRun(run_id=run.run_id, ending=command.ending),), value=run)


def decide_cancel_children(state: State, command: CancelChildren) -> Decision:
    """End every open child of a session, queued ones at once and in one commit."""
    session = state.sessions.get(command.session_id)
    drafts: list[Draft] = []
    effects: list[Effect] = []
    outputs: list[StoredOutput] = []
    for run_id in () if session is None else tuple(session.open_runs):
        cancel = CancelRun(run_id=run_id, ending=command.ending, stamp=command.stamp)
        one = decide_cancel_run(state, cancel)
        drafts.extend(one.drafts)
        effects.extend(one.effects)
        outputs.extend(one.outputs)
    return Decision(drafts=tuple(drafts), effects=tuple(effects), outputs=tuple(outputs))


def decide_yield(state: State, command: YieldSlot) -> Decision:
    """Give up a run's slot while it only waits for its own descendants; somebody else may have it."""
    run = state.runs.get(command.run_id)
    if run is None or run.status != "running" or run.waiting_for is not None:
        return Decision()
    admitted, effects = _admit_after(state, run, command.stamp)
    return Decision(drafts=(_waits(run, CHILDREN, command.stamp), *admitted), effects=tuple(effects))


def decide_want_slot(state: State, command: WantSlot) -> Decision:
    """Ask for a yielded run's slot back, at the front of its root's queue; it is never refused."""
    run = state.runs.get(command.run_id)
    if run is None or not run.is_yielded or run.waiting_for == SLOT:
        return Decision()
    plan = Plan(state.book, state.caps)
    plan.join(Seat(run_id=run.run_id, root_id=run.root_id, parent_id=run.parent_id), front=True)
    admitted, effects = _admit(state, plan_order=[seat.run_id for seat in plan.admit()], stamp=command.stamp)
    return Decision(drafts=(_waits(run, SLOT, command.stamp), *admitted), effects=tuple(effects))


def _waits(run: Run, what: WaitingFor, stamp: Stamp) -> Draft:
    fact = RunWaiting(run_id=run.run_id, child_id=run.session_id, waiting_for=what, clock_s=stamp.clock_s)
    return Draft(session_id=run.parent_id, fact=fact)
