"""Deadlines of runs and tools, tools that do not stop, a loop that stands still, clocks that jump."""

from typing import Any

import pytest

from retinue.core.events import Event, RunSettled, ToolFinished, TurnClosed, Warned
from retinue.models.scripted import ScriptedModel
from retinue.ports import Tool
from retinue.runtime.kernel import Kernel
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.checkers import all_events, check_all
from retinue.testing.fakes import deaf_tool, hanging_tool, slow_tool
from retinue.testing.world import World, run_world
from tests.sim.lives import kernel_in, open_root

TOOL_TIMEOUT_S = 10.0
DEAF_S = 300.0


def script(agent: str, tool: str) -> list[dict[str, Any]]:
    """The main session or its child calls one tool and then answers."""
    spawn = {"agent": "parent", "tool_calls": [{"name": "spawn_agent", "arguments": {"prompt": "do it"}}]}
    call = {"agent": agent, "tool_calls": [{"name": tool, "arguments": {}}]}
    noted = {"agent": "parent", "text": "noted"}
    answers = [{"agent": agent, "text": "went on without it"}, noted, noted]
    return [call, *answers] if agent == "parent" else [spawn, call, *answers]


def play(agent: str, tool: str, policy: dict[str, Any] | None = None, seed: int = 1) -> list[Event]:
    store = SQLiteStore(":memory:")

    def tools(world: World) -> list[Tool]:
        return [hanging_tool(), deaf_tool(world.clock, DEAF_S), slow_tool(world.clock, 60.0)]

    async def main(world: World) -> None:
        model = ScriptedModel(script(agent, tool), sleep=world.clock.sleep)
        kernel = kernel_in(world, store, model, tools=tools(world), tool_timeout_s=TOOL_TIMEOUT_S)
        await kernel.start()
        work = await kernel.prompt(await open_root(kernel, policy), "go")
        await work.done.wait()
        await kernel.close()
        await world.clock.sleep(DEAF_S)

    run_world(main, seed)
    events = all_events(store)
    assert check_all(events) == []
    return events


def facts(events: list[Event], kind: type[Any]) -> list[Any]:
    return [event.fact for event in events if isinstance(event.fact, kind)]


@pytest.mark.parametrize("agent", ["parent", "child"])
def test_B60_a_tool_that_never_ends_is_an_error_result_and_the_model_goes_on(agent: str) -> None:
    events = play(agent, "hangs")
    answer = next(fact for fact in facts(events, ToolFinished) if "hangs" in fact.text)
    assert answer.outcome == "error"
    assert "10 s" in answer.text
    assert [fact.status for fact in facts(events, TurnClosed)] == ["completed"] * len(facts(events, TurnClosed))


@pytest.mark.parametrize("agent", ["parent", "child"])
def test_a_tool_that_ignores_its_cancel_is_left_behind_and_named(agent: str) -> None:
    events = play(agent, "deaf")
    assert any("did not stop" in fact.text for fact in facts(events, ToolFinished))
    warning = facts(events, Warned)[0]
    assert warning.code == "detached"
    assert "The tool deaf" in warning.text
    assert facts(events, TurnClosed)[-1].status == "completed"


def test_a_run_over_its_time_is_failed_with_its_reason_and_frees_its_slot() -> None:
    events = play("child", "slow", {"life.run_timeout_s": 5, "caps.running.root": 1})
    settled = facts(events, RunSettled)[0]
    assert (settled.status, settled.reason) == ("failed", "timeout")
    assert settled.elapsed_s == pytest.approx(5, abs=0.1)
    assert facts(events, TurnClosed)[-1].status == "completed"


def test_a_loop_that_stood_still_is_on_record_with_what_ran() -> None:
    store = SQLiteStore(":memory:")

    async def main(world: World) -> None:
        model = ScriptedModel(script("parent", "slow"), sleep=world.clock.sleep)
        kernel: Kernel = kernel_in(world, store, model, tools=[slow_tool(world.clock, 8.0)])
        await kernel.start()
        work = await kernel.prompt(await open_root(kernel), "go")
        await world.clock.sleep(2.5)
        world.loop.stand_still(7.0)
        await work.done.wait()
        await kernel.close()

    run_world(main, 1)
    warning = facts(all_events(store), Warned)[0]
    assert warning.code == "loop_stalled"
    assert "slow of s_0001" in warning.text
