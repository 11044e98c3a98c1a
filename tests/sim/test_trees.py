"""A tree of three levels with four children each (4 + 16 + 64 runs), under kills and under stops, at every cap."""

import os
import random
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import pytest

from retinue.core.errors import RetinueError
from retinue.core.events import Event, RunQueued, RunSettled, SessionOpened, TurnClosed, TurnOpened
from retinue.core.ids import SessionId
from retinue.models.scripted import ScriptedModel
from retinue.ports import Delta, Finish, FinishCall, ModelRequest, Piece, ToolText
from retinue.runtime.kernel import Kernel
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.checkers import all_events, all_runs, check_all, check_kept, check_projections, check_requests
from retinue.testing.fakes import RecordingModel
from retinue.testing.faults import FaultyStore, StorePlan
from retinue.testing.world import CountingIds, World, WorldOptions, run_world
from tests.sim.lives import kernel_in, open_root
from tests.sim.worlds import check_restarts

WORLDS = int(os.environ.get("RETINUE_TREE_WORLDS", "200"))
WORLDS_PER_TEST = 10
WIDTH = 4
DEPTH = 3
WHOLE = WIDTH + WIDTH**2 + WIDTH**3
COMMITS_MAX = 260
"""About as many as an undisturbed world makes; a crash beyond its last one never comes."""
ENDS_MAX_S = 60.0
"""Virtual seconds after the prompt within which people act; one slot for all takes longer."""
SWITCHES: dict[str, tuple[Any, ...]] = {
    "caps.running.root": (1, 1, 2, 3, 5, None),
    "caps.running.process": (1, 2, 8, None),
    "caps.running.parent": (None, None, 1, 2),
    "result.turn_end": ("hold_open", "hold_open", "detach", "cancel"),
    "result.delivery": ("push", "push", "pull"),
    "result.idle_parent": ("start_turn", "store"),
    "life.cancel_with_parent": ("always", "always", "opt_in", "never"),
    "life.on_restart": ("interrupted", "cancelled"),
    "step.parallel_tools_max": (1, 10),
}
BASE: dict[str, Any] = {
    "caps.max_depth": DEPTH,
    "caps.created.root_run": None,
    "caps.created.turn": None,
    "life.run_timeout_s": 100_000,
    "result.auto_turns_max": 3,
}
ENDS = (
    "crash_before",
    "crash_after",
    "cancel the root",
    "cancel a branch",
    "interrupt a branch",
    "shut down",
    "nothing",
)


class TreeModel:
    """Every session above the leaves asks four children at once; how it waits for them is drawn by its name."""

    def __init__(self, seed: int, world: World) -> None:
        self._seed = seed
        self._clock = world.clock

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Piece]:
        rng = random.Random(f"{self._seed}/{request.name}/{request.number}")
        await self._clock.sleep(rng.random() * 0.4)
        text = f"{request.name} answers {request.number}"
        yield Delta(kind="text", text=text)
        yield self._finish(request, text)

    def _finish(self, request: ModelRequest, text: str) -> Piece:
        way = random.Random(f"{self._seed}/{request.name}").choice(("hold", "wait", "await"))
        asked = Counter(message.name for message in request.messages if isinstance(message, ToolText))
        names = [tool.name for tool in request.tools]
        made: list[FinishCall] = []
        if "spawn_agent" in names and not asked["spawn_agent"]:
            mode = "await" if way == "await" else "background"
            stem = "t" if request.root else request.name
            made = [
                _call("spawn_agent", f'{{"prompt": "go", "name": "{stem}{n}", "mode": "{mode}"}}') for n in range(4)
            ]
        elif way == "wait" and "wait_agent" in names and not asked["wait_agent"]:
            made = [_call("wait_agent", '{"timeout_s": 3600}')]
        return Finish(reason="tool_calls" if made else "stop", text=text, tool_calls=tuple(made))

    async def aclose(self) -> None:
        """Hold nothing."""


def _call(name: str, arguments: str) -> FinishCall:
    return FinishCall(name=name, arguments=arguments)


@dataclass
class TreeWorld:
    """The lives of one store: one with a planned end, then others until one is peaceful."""

    seed: int
    inner: SQLiteStore = field(default_factory=lambda: SQLiteStore(":memory:"))
    ids: CountingIds = field(default_factory=CountingIds)
    events: list[Event] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    lives: int = 0
    root: SessionId | None = None

    def __post_init__(self) -> None:
        rng = random.Random(f"tree {self.seed}")
        self.end = ENDS[self.seed % len(ENDS)]
        self.switches = {**BASE, **{name: rng.choice(values) for name, values in SWITCHES.items()}}
        self.at_s = rng.random() ** 2 * ENDS_MAX_S
        self.plan = StorePlan(slow_every=rng.choice((None, 3, 7)), slow_s=0.2)
        if self.end.startswith("crash"):
            commit = {self.end: rng.randint(1, COMMITS_MAX)}
            self.plan = StorePlan(slow_every=self.plan.slow_every, slow_s=self.plan.slow_s, **commit)

    def play(self) -> None:
        """Play the disturbed life, then a further one over the same store that goes on and comes to rest."""
        crashed = self.live()
        self.live()
        if crashed or self.end == "shut down":
            self.problems += [] if self.lives == 2 else ["the second life was not peaceful"]
        self.problems += self._left()

    def live(self) -> bool:
        """Run one life and check all it left; return whether it crashed."""
        self.lives += 1
        result = run_world(self._main, self.seed * 10 + self.lives, WorldOptions(ids=self.ids, passes_max=200_000))
        events = all_events(self.inner)
        self.problems += check_kept(self.events, events)
        self.problems += check_all(events, at_rest=not result.crashed)
        self.problems += check_projections(self.inner)
        self.problems += check_restarts(self.events, events)
        self.events = events
        return result.crashed

    async def _main(self, world: World) -> None:
        store = FaultyStore(self.inner, self.plan if self.lives == 1 else None, world.executor.slow)
        seen = RecordingModel(TreeModel(self.seed, world), self.inner.position)
        kernel = kernel_in(world, store, seen)
        try:
            await kernel.start()
            await self._turn(world, kernel)
        finally:
            await kernel.close()
            self.problems += check_requests(all_events(self.inner), seen.seen)

    async def _turn(self, world: World, kernel: Kernel) -> None:
        if self.root is None:
            self.root = await open_root(kernel, self.switches)
        work = await kernel.prompt(self.root, f"life {self.lives}")
        if self.lives == 1:
            await self._disturb(world, kernel)
        if self.lives == 1 and self.end == "shut down":
            return
        await work.done.wait()
        await kernel.tree_rests(self.root)
        self.problems += [] if kernel.journal.state.book.total == 0 else ["slots are left taken"]
        self.problems += [f"{run.run_id} is left open" for run in all_runs(self.inner) if run.is_open]

    async def _disturb(self, world: World, kernel: Kernel) -> None:
        assert self.root is not None
        if self.end.startswith("crash") or self.end == "nothing":
            return
        await world.clock.sleep(self.at_s)
        if self.end == "cancel the root":
            await kernel.interrupt(self.root)
        elif self.end != "shut down":
            await self._stop_a_branch(world, kernel)

    async def _stop_a_branch(self, world: World, kernel: Kernel) -> None:
        runs = [run for run in all_runs(self.inner) if run.is_open and run.depth < DEPTH]
        if not runs:
            return
        run = world.rng.choice(runs)
        if self.end == "cancel a branch":
            await kernel.scheduler.cancel(run.run_id)
            return
        try:
            await kernel.scheduler.interrupt(run.session_id, None)
        except RetinueError as error:
            if error.code != "not_found":
                raise

    def _left(self) -> list[str]:
        """Return what the record at the end shows as lost, or as left behind."""
        facts = [event.fact for event in self.events]
        queued = Counter(fact.run_id for fact in facts if isinstance(fact, RunQueued))
        settled = Counter(fact.run_id for fact in facts if isinstance(fact, RunSettled))
        problems = [] if queued == settled and set(settled.values()) <= {1} else ["a run has not exactly one ending"]
        opened = [event.session_id for event in self.events if isinstance(event.fact, TurnOpened)]
        closed = [event.session_id for event in self.events if isinstance(event.fact, TurnClosed)]
        problems += [] if Counter(opened) == Counter(closed) else ["a turn is left open"]
        pushed = self.switches["result.delivery"] == "push"
        problems += [
            f"the result of {run.run_id} never reached the main session: {run.result_state}"
            for run in all_runs(self.inner)
            if run.parent_id == self.root
            and run.result_state == "stored"
            and pushed
            and not self._came_last(run.run_id)
        ]
        return problems

    def _came_last(self, run_id: str) -> bool:
        """Return whether the run ended after the main session's last step: its letter waits for the next turn."""
        last = max(e.position for e in self.events if e.session_id == self.root and isinstance(e.fact, TurnClosed))
        ended = next(e.position for e in self.events if isinstance(e.fact, RunSettled) and e.fact.run_id == run_id)
        return ended > last and self.switches["result.turn_end"] != "hold_open"


@pytest.mark.parametrize("first", range(0, WORLDS, WORLDS_PER_TEST))
def test_a_tree_of_84_runs_ends_honestly_whatever_stops_it_and_whenever(first: int) -> None:
    for seed in range(first, min(first + WORLDS_PER_TEST, WORLDS)):
        world = TreeWorld(seed)
        world.play()
        assert world.problems == [], f"seed {seed}: {world.end}, {world.switches}"


def test_undisturbed_trees_are_whole_and_crashes_cut_some_off() -> None:
    """Else the worlds above would show nothing."""
    sizes, restarts = [], 0
    for seed in range(3 * len(ENDS)):
        world = TreeWorld(seed)
        if world.end == "nothing" and world.switches["result.turn_end"] != "cancel":
            world.live()
            sizes.append(sum(isinstance(event.fact, SessionOpened) for event in world.events) - 1)
        elif world.end.startswith("crash"):
            world.play()
            restarts += sum(isinstance(e.fact, RunSettled) and e.fact.reason == "restart" for e in world.events)
    assert set(sizes) == {WHOLE}
    assert restarts > WHOLE


@pytest.mark.parametrize("seed", range(20))
def test_a_run_that_wanted_its_slot_back_and_only_waits_again_gives_its_place_up(seed: int) -> None:
    """One slot, three awaited calls: the first that comes back must not stand in the way of the third child."""
    store = SQLiteStore(":memory:")
    names = [f"leaf{number}" for number in range(3)]
    awaited = [{"name": "spawn_agent", "arguments": {"prompt": "x", "name": name, "mode": "await"}} for name in names]
    lines = [
        {"agent": "parent", "tool_calls": [{"name": "spawn_agent", "arguments": {"prompt": "x", "name": "kid"}}] * 3},
        *({"agent": "parent", "text": "noted"} for _ in range(6)),
        {"agent": "name:kid", "tool_calls": awaited},
        {"agent": "name:kid", "text": "all are here"},
        *({"agent": f"name:{name}", "text": "found", "delay_ms": 300} for name in names),
    ]

    async def main(world: World) -> object:
        kernel = kernel_in(world, store, ScriptedModel(lines, sleep=world.clock.sleep))
        await kernel.start()
        root = await open_root(kernel, {"caps.running.process": 1, "caps.max_depth": 2})
        work = await kernel.prompt(root, "go")
        await work.done.wait()
        await kernel.close()
        return work.closed

    closed = run_world(main, seed).value
    assert isinstance(closed, TurnClosed)
    assert closed.status == "completed"
    events = all_events(store)
    assert check_all(events) == []
    settled = [event.fact for event in events if isinstance(event.fact, RunSettled)]
    assert [fact.reason for fact in settled] == ["done"] * 12
