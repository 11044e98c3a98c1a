"""A simulated history: one life with planned faults, then further lives over the same store; it holds no test."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from retinue.core.errors import RetinueError
from retinue.core.events import AnyFact, Event, RunQueued, RunSettled, StepOpened
from retinue.core.ids import SessionId
from retinue.ports import Tool, UserText
from retinue.runtime.kernel import Kernel, Parts
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.checkers import all_events, check_all, check_kept, check_projections, check_requests
from retinue.testing.fakes import (
    OneModel,
    RecordingModel,
    Seen,
    WorldModel,
    deaf_tool,
    echo_tool,
    raising_tool,
    slow_tool,
)
from retinue.testing.faults import FaultyModel, FaultyStore, WorldPlan, random_plan
from retinue.testing.world import CountingIds, World, WorldOptions, run_world
from tests.sim.lives import TEXTS, kernel_in, open_root

Make = Callable[[Parts, int], Kernel]
LIVES_MAX = 4
DEAF_S = 30.0
ROOMS_TOKENS = (1_000_000, 1_000_000, 1_500)
PASSES_MAX = 60_000


@dataclass
class History:
    """What is kept over the lives of one store."""

    seed: int
    plan: WorldPlan
    make: Make = Kernel
    inner: SQLiteStore = field(default_factory=lambda: SQLiteStore(":memory:"))
    ids: CountingIds = field(default_factory=CountingIds)
    problems: list[str] = field(default_factory=list)
    roots: list[SessionId] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    lives: int = 0
    commits: int = 0

    def options(self) -> WorldOptions:
        """Return how this life's world is made."""
        return WorldOptions(ids=self.ids, strict=False, passes_max=PASSES_MAX)

    def live(self) -> bool:
        """Run one life; return whether it ended in peace."""
        self.lives += 1
        first = self.lives == 1
        result = run_world(lambda world: self._main(world, first=first), self.seed * 10 + self.lives, self.options())
        events = all_events(self.inner)
        self.problems += check_kept(self.events, events)
        self.problems += check_all(events, at_rest=bool(result.value))
        self.problems += check_projections(self.inner)
        self.problems += check_restarts(self.events, events)
        if not result.crashed:
            self.problems += [f"life {self.lives}: {problem}" for problem in result.problems]
        self.events = events
        return bool(result.value)

    async def _main(self, world: World, *, first: bool) -> bool:
        store = FaultyStore(self.inner, self.plan.store if first else None, world.executor.slow)
        wander = WorldModel(self.seed, world.clock)
        seen = RecordingModel(FaultyModel(wander, self.plan.faults, world.clock), self.inner.position)
        room_tokens = ROOMS_TOKENS[self.seed % len(ROOMS_TOKENS)]
        models = OneModel(seen, room_tokens)
        kernel = kernel_in(world, store, seen, tools=_tools(world), make=self.make, models=models)
        try:
            await kernel.start()
            await self._turns(world, kernel, first=first)
        except RetinueError as error:
            if error.code != "store_failed":
                raise
            self.problems += _after_failure(kernel)
        finally:
            await kernel.close()
            await world.clock.sleep(DEAF_S)  # a tool that ignores every cancel ends by itself
            self.problems += check_requests(all_events(self.inner), [one for one in seen.seen if not _for_notes(one)])
        self.commits = store.commits
        self.problems += ["a commit was tried after a failed one"] if store.after_failure else []
        return kernel.journal.error is None

    async def _turns(self, world: World, kernel: Kernel, *, first: bool) -> None:
        if first:
            for _ in range(world.rng.choice((1, 1, 2))):
                self.roots.append(await open_root(kernel, self.plan.policy))
        works = [await kernel.prompt(root, f"life {self.lives}, go") for root in self.roots]
        people = [kernel.supervisor.begin(self._people(world, kernel, root)) for root in self.roots]
        try:
            for work in works:
                await work.done.wait()
                if work.error is not None:
                    raise work.error
        finally:
            for person in people:
                person.cancel()

    async def _people(self, world: World, kernel: Kernel, root: SessionId) -> None:
        plan = self.plan
        for at_s, act in sorted(
            (at_s, act)
            for at_s, act in ((plan.steer_at_s, "steer"), (plan.interrupt_at_s, "interrupt"), (plan.jump_at_s, "jump"))
            if at_s is not None
        ):
            await world.clock.sleep(at_s)
            if act == "jump":
                world.clock.jump(plan.jump_by_s)
            elif act == "interrupt":
                await kernel.interrupt(root)
            elif root in kernel.supervisor.works:
                await _steer(kernel, root)


def _for_notes(seen: Seen) -> bool:
    """Return whether a request asked for the notes of a compaction: it belongs to no step."""
    last = seen.request.messages[-1]
    return isinstance(last, UserText) and last.text == TEXTS.compaction


async def _steer(kernel: Kernel, root: SessionId) -> None:
    try:
        await kernel.steer(root, "also look at the tests")
    except RetinueError as error:
        if error.code not in {"already_ended", "not_found", "store_failed"}:
            raise


def check_restarts(before: Sequence[Event], after: Sequence[Event]) -> list[str]:
    """Return each run that a life left open and the next one did anything to but close it for the restart."""
    open_runs = {fact.run_id for _, fact in _facts(before) if isinstance(fact, RunQueued)}
    open_runs -= {fact.run_id for _, fact in _facts(before) if isinstance(fact, RunSettled)}
    children = {fact.child_id for _, fact in _facts(before) if isinstance(fact, RunQueued) and fact.run_id in open_runs}
    problems = [
        f"position {event.position}: a step of {event.session_id}, which a crash had cut off"
        for event, fact in _facts(after[len(before) :])
        if isinstance(fact, StepOpened) and event.session_id in children
    ]
    problems += [
        f"position {event.position}: {fact.run_id} was open at a crash and reads {fact.status}/{fact.reason}"
        for event, fact in _facts(after[len(before) :])
        if isinstance(fact, RunSettled) and fact.run_id in open_runs and fact.reason != "restart"
    ]
    return problems


def _facts(events: Sequence[Event]) -> list[tuple[Event, AnyFact]]:
    return [(event, event.fact) for event in events]


def _tools(world: World) -> tuple[Tool, ...]:
    return (echo_tool(), raising_tool(), slow_tool(world.clock, exclusive=True), deaf_tool(world.clock, DEAF_S))


def _after_failure(kernel: Kernel) -> list[str]:
    return [
        f"{session_id} works on after the store failed"
        for session_id, work in kernel.supervisor.works.items()
        if work.error is None
    ]


def play(seed: int, plan: WorldPlan | None = None, make: Make = Kernel) -> History:
    """Play a history to its peaceful end and return it."""
    chosen = random_plan(random.Random(f"plan {seed}")) if plan is None else plan
    history = History(seed=seed, plan=chosen, make=make)
    while not history.live():
        if history.lives >= LIVES_MAX:
            history.problems.append(f"no peaceful life in {LIVES_MAX}")
            break
    return history
