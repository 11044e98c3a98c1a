"""What went wrong elsewhere when something never ends (B11, B15), and slots in a child (B133), in virtual time."""

import asyncio
from typing import Any

import pytest

from retinue.core.events import Event, RunSettled, RunStarted, ToolStarted, Warned
from retinue.core.ids import RunId
from retinue.runtime.supervisor import GRACE_S
from retinue.testing.fakes import deaf_tool, echo_tool
from tests.scenarios.stage import (
    AGAIN,
    Life,
    Stage,
    call,
    child,
    each_seed,
    parent,
    place,
    play,
    play_turn,
    script,
    seconds_between,
    spawn,
)

HOUR_MS = 3_600_000
DEAF_S = 120.0
"""Virtual seconds that the tool ignores every cancel; the scenes wait them out in the end, so that nothing is left."""
SLACK_S = 1.0


@each_seed
def test_B11_a_child_whose_last_request_never_answers_ends_at_its_deadline_with_what_it_did(seed: int) -> None:
    life = play_turn(
        parent("", spawn("c1")),
        parent("done"),
        AGAIN,
        child("c1", "wrote the files", call("echo", path="a"), call("echo", path="b")),
        child("c1", "never", delay_ms=HOUR_MS),
        policy={"life.run_timeout_s": 30},
        tools=lambda _: [echo_tool()],
        seed=seed,
    )
    _require_timed_out(life, "c1")
    assert "wrote the files" in life.letter("c1").text
    assert life.value is not None
    assert (life.value.status, life.value.text) == ("completed", "done")


@each_seed
def test_B11_inside_a_child_the_grandchilds_deadline_frees_the_child_that_waits_for_it(seed: int) -> None:
    life = play_turn(
        parent("", spawn("c1", mode="await")),
        parent("done"),
        child("c1", "", spawn("g1", mode="await", timeout_s=30)),
        child("c1", "g1 was too slow"),
        child("g1", "wrote the files", call("echo", path="a")),
        child("g1", "never", delay_ms=HOUR_MS),
        policy={"caps.max_depth": 2},
        tools=lambda _: [echo_tool()],
        seed=seed,
    )
    _require_timed_out(life, "g1")
    assert life.settled("c1").output == "g1 was too slow"
    assert life.value is not None
    assert life.value.status == "completed"


def _require_timed_out(life: Life[Any], name: str) -> None:
    settled = life.settled(name)
    assert (settled.status, settled.reason, settled.partial, settled.steps) == (
        "failed",
        "timeout",
        "wrote the files",
        2,
    )
    started = place(life.events, RunStarted, name=name)
    took = seconds_between(life.events, started, place(life.events, RunSettled, name=name))
    assert 30 <= took <= 30 + SLACK_S


@each_seed
@pytest.mark.parametrize("inside", [False, True])
def test_B15_children_that_ignore_their_cancel_give_their_slots_back_after_the_grace(inside: bool, seed: int) -> None:
    async def scene(stage: Stage) -> float:
        root = await stage.root({"caps.running.root": 3 if inside else 2, "caps.max_depth": 3})
        above = root
        if inside:
            above = (await stage.start(root, "middle")).session_id
        deaf = [await stage.start(above, f"deaf{number}") for number in range(2)]
        await stage.until(lambda events: _called(events) == 2)
        waiting = await stage.start(above, "c3")
        began = stage.world.clock.monotonic()
        await asyncio.gather(*(one.dispose() for one in deaf))
        assert (await waiting.result).output == "c3 had its turn"
        took = stage.world.clock.monotonic() - began
        await stage.world.clock.sleep(DEAF_S)
        return took

    life = play(
        script(
            child("middle", "", delay_ms=HOUR_MS),
            child("c3", "c3 had its turn"),
            child(None, "", call("deaf")),
            child(None, "late"),
        ),
        scene,
        tools=lambda world: [deaf_tool(world.clock, DEAF_S)],
        seed=seed,
    )
    assert life.value is not None
    assert 2 * GRACE_S <= life.value <= 2 * GRACE_S + SLACK_S
    assert [life.settled(f"deaf{number}").status for number in range(2)] == ["cancelled"] * 2
    told = [fact.text for fact in life.told(Warned) if fact.code == "detached"]
    for number in range(2):
        named = f"The tool deaf of {life.settled(f'deaf{number}').child_id} "
        assert sum(text.startswith(named) for text in told) == 1, told


def _called(events: list[Event]) -> int:
    return sum(isinstance(event.fact, ToolStarted) and event.fact.name == "deaf" for event in events)


@each_seed
def test_B15_each_child_has_a_grace_of_its_own(seed: int) -> None:
    async def scene(stage: Stage) -> list[float]:
        root = await stage.root()
        kids = [await stage.start(root, f"deaf{number}") for number in range(2)]
        await stage.until(lambda events: _called(events) == 2)
        took: list[float] = []

        async def cancel(run_id: RunId, after_s: float) -> None:
            await stage.world.clock.sleep(after_s)
            began = stage.world.clock.monotonic()
            await stage.kernel.scheduler.cancel(run_id)
            took.append(stage.world.clock.monotonic() - began)

        await asyncio.gather(*(cancel(kid.run_id, 4.0 * number) for number, kid in enumerate(kids)))
        await stage.world.clock.sleep(DEAF_S)
        return took

    life = play(
        script(child(None, "", call("deaf")), child(None, "late")),
        scene,
        tools=lambda world: [deaf_tool(world.clock, DEAF_S)],
        seed=seed,
    )
    assert life.value is not None
    assert all(2 * GRACE_S <= took <= 2 * GRACE_S + SLACK_S for took in life.value), life.value


@each_seed
def test_B133_inside_a_child_ended_grandchildren_count_against_no_limit(seed: int) -> None:
    rounds = [
        line
        for number in range(4)
        for line in (
            child("c1", "", spawn(f"a{number}"), spawn(f"b{number}")),
            child("c1", "", call("wait_agent", timeout_s=600)),
        )
    ]
    life = play_turn(
        parent("", spawn("c1", mode="await")),
        parent("done"),
        *rounds,
        child("c1", "c1 is done"),
        AGAIN,
        child(None, "found", delay_ms=300),
        policy={"caps.max_depth": 2, "caps.running.root": 3, "caps.running.process": 3, "caps.on_full": "reject"},
        seed=seed,
    )
    settled = life.told(RunSettled)
    assert [fact.status for fact in settled] == ["completed"] * 9
    assert life.settled("c1").output == "c1 is done"
