"""Slots are for work: a run that only waits for its own descendants gives its slot up."""

from typing import Any

import pytest

from retinue.core.events import Event, RunResumed, RunSettled, RunStarted, RunWaiting
from retinue.models.scripted import ScriptedModel
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.checkers import all_events, check_all
from retinue.testing.world import World, run_world
from tests.sim.lives import kernel_in, open_root

CHILDREN = 3


def script(waiting: str) -> list[dict[str, Any]]:
    """Every child delegates its task and waits: in the call, in `wait_agent`, or by being held open."""
    mode = {"mode": "await"} if waiting == "await" else {}
    spawn = [{"name": "spawn_agent", "arguments": {"prompt": "deeper", "name": "grandchild", **mode}}]
    wait = [{"agent": "name:child", "tool_calls": [{"name": "wait_agent", "arguments": {"timeout_s": 3600}}]}]
    return [
        {
            "agent": "parent",
            "tool_calls": [
                {"name": "spawn_agent", "arguments": {"prompt": f"task {number}", "name": "child"}}
                for number in range(CHILDREN)
            ],
        },
        {"agent": "name:child", "tool_calls": spawn, "delay_ms": 5},
        *(wait if waiting == "wait_agent" else []),
        *({"agent": "name:child", "text": "the child is done", "delay_ms": 5} for _ in range(3)),
        {"agent": "name:grandchild", "text": "the grandchild is done", "delay_ms": 20},
        *({"agent": "parent", "text": "noted"} for _ in range(6)),
    ]


def most_working(events: list[Event]) -> int:
    """Return how many runs held a slot at once, at most."""
    working: set[str] = set()
    most = 0
    for event in events:
        fact = event.fact
        if isinstance(fact, RunStarted | RunResumed):
            working.add(fact.run_id)
        if isinstance(fact, RunSettled | RunWaiting):
            working.discard(fact.run_id)
        most = max(most, len(working))
    return most


@pytest.mark.parametrize("waiting", ["await", "wait_agent", "hold_open"])
@pytest.mark.parametrize("seed", range(10))
def test_a_tree_of_two_levels_ends_with_one_slot_and_never_two_work(waiting: str, seed: int) -> None:
    store = SQLiteStore(":memory:")

    async def main(world: World) -> str:
        kernel = kernel_in(world, store, ScriptedModel(script(waiting), sleep=world.clock.sleep))
        await kernel.start()
        root = await open_root(kernel, {"caps.running.root": 1, "caps.max_depth": 2})
        work = await kernel.prompt(root, "go")
        await work.done.wait()
        await kernel.close()
        return work.closed.status if work.closed is not None else "not closed"

    assert run_world(main, seed).value == "completed"
    events = all_events(store)
    assert check_all(events) == []
    assert most_working(events) == 1
    settled = [event.fact for event in events if isinstance(event.fact, RunSettled)]
    assert len(settled) == 2 * CHILDREN
    assert all(fact.reason == "done" for fact in settled)
