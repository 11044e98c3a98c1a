"""Hooks that are only told: of what is on record, in order, and whatever they do changes nothing."""

import asyncio
from typing import Any

from retinue.core.events import (
    RunStarted,
    TurnClosed,
)
from retinue.core.ids import SessionId
from retinue.ports import Deny, HookEvent
from retinue.testing.fakes import FakeTool, echo_tool
from retinue.testing.simloop import SimCrash
from tests.scenarios.hookstage import (
    TELLING,
    Heard,
    failures,
    forever,
    log_of,
    with_hooks,
)
from tests.scenarios.stage import (
    AGAIN,
    Stage,
    Theatre,
    call,
    child,
    each_seed,
    parent,
    places,
    play,
    play_turn,
    script,
    second_of,
    spawn,
)

SPAWN = "agent.subagent.spawn.before"
TOOL = "agent.tool.before"
TURN = "agent.turn.before"
STOP = "agent.turn.stop"
NO = Deny(reason="not today")


def echo(_: Any) -> list[FakeTool]:
    return [echo_tool()]


@each_seed
def test_an_observer_that_hangs_delays_nothing_and_is_cut_at_its_limit(seed: int) -> None:
    heard = Heard()

    async def scene(stage: Stage) -> TurnClosed:
        closed = await stage.to_rest()
        await stage.world.clock.sleep(600)
        return closed

    lines = (parent("", call("echo", n=1), spawn("kid")), parent("done"), AGAIN, child("kid", "found"))
    hooks = with_hooks(
        heard.hook(*TELLING, name="slow", says=forever, timeout_s=20), heard.hook(*TELLING, name="quick")
    )
    life = play(script(*lines), scene, tools=echo, parts=hooks, seed=seed)
    (end,) = [event for event in life.events if isinstance(event.fact, TurnClosed) and event.fact.run_id is None]
    assert second_of(end) - second_of(life.events[0]) < 5
    assert heard.points("slow") == heard.points("quick")
    assert [fact.code for fact in failures(life)] == ["timeout"] * len(heard.points("slow"))
    assert {fact.detail for fact in failures(life)} == {
        "It did not answer within 20 s. It only observes: nothing was stopped."
    }


def test_what_observers_say_changes_nothing() -> None:
    lines = (parent("", call("echo", n=1), spawn("kid", mode="await")), parent("done"), child("kid", "found"))
    plain = play_turn(*lines, tools=echo)
    denying = play_turn(*lines, tools=echo, parts=with_hooks(Heard().hook(*TELLING, says=NO)))
    assert [event.fact for event in denying.events] == [event.fact for event in plain.events]


@each_seed
def test_the_failure_of_an_observer_is_recorded_also_when_its_session_is_idle_by_then(seed: int) -> None:
    async def scene(stage: Stage) -> SessionId:
        root = await stage.root()
        await stage.turn(root)
        other = await stage.root()  # a further batch: the idle session leaves memory
        assert root not in stage.kernel.journal.state.sessions
        await stage.world.clock.sleep(10)
        await stage.turn(other)
        return root

    async def late(event: HookEvent) -> None:
        await asyncio.sleep(5)
        raise ValueError(f"no {event.session_id}")

    hooks = with_hooks(Heard().hook("agent.turn.closed", says=late))
    life = play(script(parent("done"), AGAIN), scene, parts=hooks, seed=seed)
    assert life.value is not None
    (failed,) = [event.fact for event in log_of(life, life.value) if event.fact in failures(life)]
    assert f"ValueError: no {life.value}." in failed.detail


def test_observers_are_told_of_what_a_restart_closed() -> None:
    theatre = Theatre()
    heard = Heard()
    lines = (parent("", spawn("kid")), parent("done"), AGAIN, child("kid", "found", delay_ms=5000))

    async def cut_off(stage: Stage) -> None:
        await stage.kernel.prompt(await stage.root(), "go")
        await stage.until(lambda events: bool(places(events, RunStarted)))
        raise SimCrash

    assert theatre.live(script(*lines), cut_off).crashed
    theatre.live(script(*lines), lambda stage: stage.world.clock.sleep(1), parts=with_hooks(heard.hook(*TELLING)))
    told = {(event.point, event.data["reason"]) for _, event in heard.events}
    assert told == {("agent.subagent.complete", "restart"), ("agent.turn.closed", "restart")}
