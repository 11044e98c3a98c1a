"""A stop at every pass of the loop: nothing is lost, no slot leaks, memory equals the folded disk."""

from collections.abc import Callable

import pytest

from retinue.core.decide.stops import CancelRun, decide_cancel_run
from retinue.core.events import RunQueued, RunSettled
from retinue.core.ids import SessionId
from retinue.core.state import State
from retinue.models.scripted import ScriptedModel
from retinue.runtime.kernel import INTERRUPTED, Kernel
from retinue.runtime.scheduler import CANCELLED
from retinue.runtime.supervisor import SHUTDOWN
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.checkers import all_events, check_all, check_projections
from retinue.testing.fakes import slow_tool
from retinue.testing.world import World, WorldOptions, run_world
from tests.sim.lives import kernel_in, open_root

SCRIPT: list[dict[str, object]] = [
    {
        "agent": "parent",
        "tool_calls": [
            {"name": "spawn_agent", "arguments": {"prompt": "one", "name": "one"}},
            {"name": "spawn_agent", "arguments": {"prompt": "two", "name": "two"}},
            {"name": "spawn_agent", "arguments": {"prompt": "three", "name": "three", "mode": "await"}},
        ],
    },
    {"agent": "name:one", "tool_calls": [{"name": "spawn_agent", "arguments": {"prompt": "four", "mode": "await"}}]},
    {"agent": "name:one", "text": "one is done"},
    {"agent": "name:two", "tool_calls": [{"name": "slow", "arguments": {}}], "delay_ms": 20},
    {"agent": "name:two", "text": "two is done"},
    {"agent": "child", "text": "done", "delay_ms": 30},
    *({"agent": "parent", "text": "noted", "delay_ms": 10} for _ in range(4)),
]
POLICY = {"caps.running.root": 2, "caps.max_depth": 2}
Act = Callable[[Kernel, SessionId], None]


def stop_root(kernel: Kernel, root: SessionId) -> None:
    kernel.supervisor.stop(root, INTERRUPTED)


def shut_down(kernel: Kernel, root: SessionId) -> None:
    kernel.supervisor.stop(root, SHUTDOWN)


def cancel_first_run(kernel: Kernel, _: SessionId) -> None:
    run_id = next((run.run_id for run in kernel.journal.state.runs.values() if run.is_open), None)
    if run_id is not None:
        stamp = kernel.journal.stamp()
        kernel.journal.submit(decide_cancel_run, CancelRun(run_id=run_id, ending=CANCELLED, stamp=stamp))


ACTS: dict[str, Act] = {"stop the root": stop_root, "shut down": shut_down, "cancel one run": cancel_first_run}


SIX: list[dict[str, object]] = [
    {
        "agent": "parent",
        "tool_calls": [
            {"name": "spawn_agent", "arguments": {"prompt": f"task {number}", "name": ("one", "two")[number % 2]}}
            for number in range(6)
        ],
    },
    *SCRIPT[1:],
    *({"agent": "parent", "text": "noted", "delay_ms": 10} for _ in range(4)),
]


def live(acts: dict[int, Act], script: list[dict[str, object]] | None = None, seed: int = 1) -> tuple[list[str], int]:
    """Run the world with acts at some passes; return its problems and how many passes it took."""
    store = SQLiteStore(":memory:")
    held: list[tuple[Kernel, SessionId]] = []
    problems: list[str] = []

    def on_pass(number: int) -> None:
        act = acts.get(number)
        if act is not None and held:
            kernel, root = held[0]
            act(kernel, root)

    async def main(world: World) -> None:
        model = ScriptedModel(script or SCRIPT, sleep=world.clock.sleep)
        kernel = kernel_in(world, store, model, tools=[slow_tool(world.clock, 0.05)])
        await kernel.start()
        root = await open_root(kernel, POLICY)
        held.append((kernel, root))
        work = await kernel.prompt(root, "go")
        await work.done.wait()
        held.clear()
        await kernel.close()
        problems.extend(_leaks(kernel.journal.state, store))

    result = run_world(main, seed, WorldOptions(on_pass=on_pass))
    problems += check_all(all_events(store)) + check_projections(store)
    return problems, result.passes


def _leaks(memory: State, store: SQLiteStore) -> list[str]:
    folded = State()
    for event in all_events(store):
        folded.apply(event)
        folded.end_batch()
    problems = [] if memory.sessions.keys() == folded.sessions.keys() else ["memory holds other sessions than the log"]
    if memory.runs != folded.runs:
        problems.append("memory holds other runs than the log")
    created = [{root_id: tree.created for root_id, tree in state.trees.items()} for state in (memory, folded)]
    if memory.book.total or memory.book.waiting or created[0] != created[1]:
        problems.append("a slot, a place in the queue or a count is left")
    queued = [event for event in all_events(store) if isinstance(event.fact, RunQueued)]
    settled = [event for event in all_events(store) if isinstance(event.fact, RunSettled)]
    return problems if len(queued) == len(settled) else [*problems, "a settlement is lost"]


def test_the_undisturbed_world_is_whole() -> None:
    problems, passes = live({})
    assert problems == []
    assert passes > 80


@pytest.mark.parametrize("act", ACTS)
def test_one_stop_at_any_pass_loses_no_settlement_and_no_slot(act: str) -> None:
    _, passes = live({})
    for number in range(passes):
        assert live({number: ACTS[act]})[0] == [], f"pass {number}"


@pytest.mark.parametrize("gap", [1, 7])
def test_two_stops_with_a_gap_are_as_good_as_one(gap: int) -> None:
    _, passes = live({})
    for number in range(0, passes, 2):
        acts = {number: cancel_first_run, number + gap: stop_root}
        assert live(acts)[0] == [], f"passes {number} and {number + gap}"


@pytest.mark.parametrize("act", ACTS)
def test_one_stop_at_any_pass_of_six_children_loses_nothing(act: str) -> None:
    problems, passes = live({}, SIX)
    assert problems == []
    for number in range(passes):
        assert live({number: ACTS[act]}, SIX)[0] == [], f"pass {number}"
