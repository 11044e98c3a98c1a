"""Who gets a slot, and what a run begins with when it has one; it accepts and settles nothing."""

from collections.abc import Iterable
from typing import Any

import msgspec

from retinue.core.decide.absorb import absorb
from retinue.core.decide.base import Effect, ResumeRun, Stamp, StartRun
from retinue.core.events import (
    AnyFact,
    ContextSeeded,
    Draft,
    MessageUser,
    RunResumed,
    RunStarted,
    RunWaiting,
    SessionOpened,
    TurnOpened,
    WaitingFor,
)
from retinue.core.ids import RunId, StepNo, TurnNo
from retinue.core.run import Run, run_fact_keys
from retinue.core.schedule import Plan
from retinue.core.session import Session
from retinue.core.state import State

CHILDREN = WaitingFor(kind="children", what="its own children")
SLOT = WaitingFor(kind="slot", what="a free slot")
EARLIER = WaitingFor(kind="slot", what="the end of an earlier message to the same child")
PARKED = WaitingFor(kind="parked", what="the next message to this child, since it was interrupted")


def waits(run: Run, what: WaitingFor, stamp: Stamp) -> Draft:
    """Return the fact that a run waits."""
    fact = RunWaiting(run_id=run.run_id, child_id=run.session_id, waiting_for=what, clock_s=stamp.clock_s)
    return Draft(session_id=run.parent_id, fact=fact)


def admit(
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


def admit_after(state: State, run: Run, stamp: Stamp, *, settled: bool) -> tuple[list[Draft], list[Effect]]:
    """Return the facts and effects once a run gave its slot up, or settled: whoever gets it."""
    plan = Plan(state.book, state.caps)
    plan.leave(run.run_id, settled=settled)
    return admit(state, plan_order=[seat.run_id for seat in plan.admit()], stamp=stamp)


def admit_now(state: State, stamp: Stamp, plan: Plan) -> tuple[list[Draft], list[Effect]]:
    """Return the facts and effects that give slots to whoever a plan admits."""
    return admit(state, plan_order=[seat.run_id for seat in plan.admit()], stamp=stamp)


def _start(state: State, run: Run, stamp: Stamp) -> list[Draft]:
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
    facts = (*_opened(state, run), *_begun(state.sessions.get(child), run))
    return [*(Draft(session_id=child, fact=fact) for fact in facts), Draft(session_id=run.parent_id, fact=started)]


def _opened(state: State, run: Run) -> list[SessionOpened | ContextSeeded]:
    """Return the header of a child that has not run yet, and the history it begins with."""
    if run.session_id in state.sessions:
        return []
    header = _child_header(state, run)
    if run.spec.seed_seq is None:
        return [header]
    return [header, ContextSeeded(from_id=run.parent_id, up_to_seq=run.spec.seed_seq, messages=run.spec.seed)]


def _begun(child: Session | None, run: Run) -> list[AnyFact]:
    """Return the facts that open a run's turn: its instruction, then the letters that waited for the child."""
    spec = run.spec
    turn = TurnNo(1 if child is None else child.turns + 1)
    facts: list[AnyFact] = [TurnOpened(turn=turn, root_run_id=run.root_run_id, cause=spec.cause, run_id=run.run_id)]
    if child is None and spec.opening is not None:
        facts.append(MessageUser(turn=turn, text=spec.opening, source="context"))
    if spec.prompt:
        sender = spec.sender_id or run.parent_id
        facts.append(MessageUser(turn=turn, text=spec.prompt, source="agent", sender_id=sender))
    if child is not None:
        facts += absorb(child, turn, StepNo(1))
    return facts


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
        output_schema=spec.output_schema,
        system_digest=spec.system_digest,
    )
