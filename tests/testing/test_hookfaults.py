"""Planned hooks do what their plan says, the same each time; every rule about hooks catches a log that breaks it."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from retinue.core.events import (
    Event,
    HookFailed,
    RunQueued,
    RunSettled,
    RunStarted,
    SessionOpened,
    ToolFinished,
    ToolStarted,
    TurnClosed,
    TurnOpened,
)
from retinue.core.ids import SessionId
from retinue.ports import DECIDING, Deny, HookEvent
from retinue.runtime.hooking import POINTS
from retinue.testing.checkhooks import TELLS, check_hooks
from retinue.testing.hookfaults import (
    DEAF_S,
    FAILURES,
    HOOK_FAULTS,
    IDENTITY,
    SLOW_S,
    Heard,
    HookPlan,
    PlannedHook,
    planned_hooks,
    random_hooks,
)
from retinue.testing.world import World, run_world
from tests.testing.tale import changed, index, told

Story = tuple[list[Event], list[Heard]]


def event_at(point: Any, **data: Any) -> HookEvent:
    keys: dict[str, Any] = {"session_id": "s_1", "root_id": "s_1", "agent": None}
    return HookEvent(point=point, depth=0, cwd="/", data={IDENTITY[point] or "name": 1, **data}, **keys)


def asked(plan: HookPlan, point: Any = "agent.tool.before", **data: Any) -> tuple[Any, list[Heard], float]:
    """Ask the hooks of a plan once; return the answer, what was kept, and the virtual seconds it took."""
    heard: list[Heard] = []

    async def main(world: World) -> tuple[Any, float]:
        (hook,) = (one for one in planned_hooks(plan, heard, world.clock, lambda: 7) if point in one.points)
        began = world.clock.monotonic()
        task = asyncio.ensure_future(hook.call(event_at(point, **data), world.executor.run))
        done, _ = await asyncio.wait((task,), timeout=100)
        if not done:
            task.cancel()
            await asyncio.wait((task,))
        answer: Any = asyncio.CancelledError() if task.cancelled() else task.exception() or task.result()
        return answer, world.clock.monotonic() - began

    value = run_world(main, 1).value
    assert value is not None
    return value[0], heard, value[1]


WHAT: dict[str, Callable[[Any, float], bool]] = {
    "deny": lambda answer, took_s: isinstance(answer, Deny) and not took_s,
    "error": lambda answer, took_s: isinstance(answer, ValueError) and not took_s,
    "unreadable": lambda answer, took_s: answer == {"decision": "whatever"} and not took_s,
    "slow": lambda answer, took_s: answer is None and took_s == SLOW_S,
    "hang": lambda answer, took_s: isinstance(answer, asyncio.CancelledError) and took_s == 100,
    "deaf": lambda answer, took_s: answer is None and took_s == DEAF_S,
}


@pytest.mark.parametrize("fault", HOOK_FAULTS)
def test_a_planned_hook_does_what_its_fault_says_and_keeps_what_it_heard(fault: Any) -> None:
    answer, heard, took_s = asked(HookPlan(standing=True, rate=1.0, kinds=(fault,)))
    assert WHAT[fault](answer, took_s)
    keys: dict[str, Any] = {"session_id": "s_1", "root_id": "s_1"}
    assert heard == [Heard(point="agent.tool.before", which=1, fault=fault, position=7, **keys)]


def test_a_deaf_hook_ignores_its_cancel() -> None:
    async def main(world: World) -> float:
        plan = HookPlan(standing=True, rate=1.0, kinds=("deaf",))
        hook = PlannedHook(plan, "guard", DECIDING, (world.clock, lambda: 0))
        began = world.clock.monotonic()
        task = asyncio.ensure_future(hook.call(event_at("agent.tool.before"), world.executor.run))
        for _ in range(3):
            await world.clock.sleep(1)
            task.cancel()
        assert await task is None
        return world.clock.monotonic() - began

    assert run_world(main, 1).value == DEAF_S


def test_the_same_question_gets_the_same_answer_and_a_share_of_them_goes_wrong() -> None:
    plan = HookPlan(seed=3, standing=True, rate=0.3, kinds=("deny",))
    answers = [[asked(plan, call_id=n)[0] for n in range(60)] for _ in range(2)]
    assert answers[0] == answers[1]
    assert 5 < sum(isinstance(answer, Deny) for answer in answers[0]) < 35


def test_every_point_has_one_of_the_two_hooks_and_without_a_plan_there_is_none() -> None:
    for point in POINTS:
        answer, heard, _ = asked(HookPlan(standing=True), point)
        assert (answer, [said.point for said in heard]) == (None, [point])
    assert set(IDENTITY) == set(POINTS)
    assert run_world(_no_hooks, 1).value == ()


async def _no_hooks(world: World) -> object:
    return planned_hooks(HookPlan(), [], world.clock, lambda: 0)


def test_random_plans_are_repeatable_and_varied() -> None:
    plans = [random_hooks(random.Random(seed)) for seed in range(50)]
    assert plans == [random_hooks(random.Random(seed)) for seed in range(50)]
    assert {plan.standing for plan in plans} == {True, False}
    assert {plan.rate for plan in plans if plan.standing} == {0.05, 0.3}


# -- the rules


def story() -> Story:
    """Return a legal log, and what hooks heard of it that were asked and told at once."""
    events, heard = told(), []
    for event in events:
        fact: Any = event.fact
        match fact:
            case RunQueued():
                heard.append(said("agent.subagent.spawn.before", event, fact.child_id, early=1))
            case ToolStarted():
                heard.append(said("agent.tool.before", event, fact.call_id, early=1))
            case TurnOpened():
                heard.append(said("agent.turn.before", event, fact.turn))
            case SessionOpened() | RunStarted() | RunSettled() | TurnClosed() | ToolFinished():
                point, which = TELLS[type(fact)]
                heard.append(said(point, event, which(fact)))
            case _:
                pass
    return events, heard


def said(point: Any, event: Event, which: Any, early: int = 0) -> Heard:
    return Heard(
        point=point,
        session_id=event.session_id,
        root_id=event.root_id,
        which=which,
        fault=None,
        position=event.position - early,
    )


def edited(heard: list[Heard], point: str, **fields: Any) -> list[Heard]:
    """Return what was heard with the first of a point changed."""
    place = next(n for n, one in enumerate(heard) if one.point == point)
    return [*heard[:place], msgspec.structs.replace(heard[place], **fields), *heard[place + 1 :]]


def passing_over(events: list[Event]) -> list[Event]:
    header = index(events, SessionOpened, depth=0)
    fact: Any = events[header].fact
    policy = {**fact.policy, "set": {**fact.policy["set"], "hooks.on_failure": "allow"}}
    return changed(events, header, policy=policy)


def test_a_legal_log_has_no_problem() -> None:
    assert check_hooks(*story()) == []


@pytest.mark.parametrize("point", ["agent.subagent.spawn.before", "agent.tool.before", "agent.turn.before"])
def test_what_happens_unasked_denied_or_before_the_answer_is_a_problem(point: str) -> None:
    events, heard = story()
    unasked = [one for one in heard if one.point != point]
    assert any(f"nobody was asked at {point}" in problem for problem in check_hooks(events, unasked))
    late = edited(heard, point, position=10_000)
    assert any(f"nobody was asked at {point}" in problem for problem in check_hooks(events, late))
    for fault in ("deny", *FAILURES):
        denied = edited(heard, point, fault=fault)
        assert any(f"it was denied at {point} ({fault})" in problem for problem in check_hooks(events, denied))
        problems = check_hooks(passing_over(events), denied)
        assert bool(problems) == (fault == "deny")
    assert check_hooks(events, edited(heard, point, fault="slow")) == []


@pytest.mark.parametrize("point", sorted({point for point, _ in TELLS.values()}))
def test_what_is_told_twice_early_or_of_nothing_is_a_problem(point: str) -> None:
    events, heard = story()
    (first, *_) = [one for one in heard if one.point == point]
    assert any("was told twice" in problem for problem in check_hooks(events, [*heard, first]))
    early = edited(heard, point, position=first.position - 1)
    assert any("was told before it was stored" in problem for problem in check_hooks(events, early))
    nothing = edited(heard, point, which="no such thing")
    assert any("was told before it was stored" in problem for problem in check_hooks(events, nothing))
    gone = edited(heard, point, session_id=SessionId("s_deleted"))
    assert check_hooks(events, gone) == []


def test_more_failures_on_record_than_there_were_are_a_problem() -> None:
    events, heard = story()
    fact = HookFailed(hook="guard", code="error", detail="broken")
    last = events[-1]
    more = [*events, msgspec.structs.replace(last, seq=last.seq + 1, position=last.position + 1, fact=fact)]
    assert any("1 failures are on record, 0 hooks failed" in problem for problem in check_hooks(more, heard))
    failing = said("agent.turn.stop", last, 1)
    assert check_hooks(more, [*heard, msgspec.structs.replace(failing, fault="hang")]) == []
