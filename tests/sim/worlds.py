"""A simulated history: one life with planned faults, then further lives over the same store; it holds no test."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from retinue.core.errors import RetinueError
from retinue.core.events import (
    Event,
    RunQueued,
    RunSettled,
    SessionDeleted,
    StepOpened,
    TurnClosed,
    TurnOpened,
)
from retinue.core.ids import SessionId
from retinue.core.policy import ALL_MODES
from retinue.ports import Tool, UserText
from retinue.runtime.kernel import Kernel, Parts
from retinue.runtime.work import Work
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.checkcontext import check_prefixes
from retinue.testing.checkers import all_events, check_all, check_kept, check_projections, check_requests
from retinue.testing.checkhooks import check_hooks
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
from retinue.testing.hookfaults import Heard, planned_hooks
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
    deleting: set[SessionId] = field(default_factory=set)
    events: list[Event] = field(default_factory=list)
    heard: list[Heard] = field(default_factory=list)
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
        here = {event.root_id for event in events}
        gone = {root for root in self.deleting if root not in here}
        self.roots = [root for root in self.roots if root not in gone]
        self.problems += check_kept(self.events, events, gone)
        self.problems += check_all(events, at_rest=bool(result.value))
        self.problems += check_projections(self.inner)
        self.problems += check_restarts(self.events, events)
        self.problems += check_hooks(events, self.heard) if self.plan.hooks.standing else []
        if not result.crashed:
            self.problems += [f"life {self.lives}: {problem}" for problem in result.problems]
        self.events = events
        return bool(result.value)

    async def _main(self, world: World, *, first: bool) -> bool:
        store = FaultyStore(self.inner, self.plan.store if first else None, world.executor.slow)
        wander = WorldModel(self.seed, world.clock, spawns_max=3, modes=ALL_MODES)
        seen = RecordingModel(FaultyModel(wander, self.plan.faults, world.clock), self.inner.position)
        room_tokens = ROOMS_TOKENS[self.seed % len(ROOMS_TOKENS)]
        models = OneModel(seen, room_tokens)
        hooks = planned_hooks(self.plan.hooks, self.heard, world.clock, self.inner.position)
        kernel = kernel_in(world, store, seen, tools=_tools(world), make=self.make, models=models, hooks=hooks)
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
            self.problems += self._unexplained(seen.seen)
        self.commits = store.commits
        self.problems += ["a commit was tried after a failed one"] if store.after_failure else []
        return kernel.journal.error is None

    def _unexplained(self, seen: list[Seen]) -> list[str]:
        """Return the requests that follow from no log, those of deleted sessions aside."""
        events = all_events(self.inner)
        here = {event.session_id for event in events}
        some_gone = bool(self.deleting) or any(isinstance(event.fact, SessionDeleted) for event in events)
        asked = [one for one in seen if not (_for_notes(one) or (some_gone and one.request.session_id not in here))]
        return check_requests(events, asked) + check_prefixes(events, asked)

    async def _turns(self, world: World, kernel: Kernel, *, first: bool) -> None:
        if first:
            for _ in range(world.rng.choice((1, 1, 2))):
                self.roots.append(await open_root(kernel, self.plan.policy, self.plan.policy_name))
        people: list[asyncio.Task[None]] = []
        try:
            for again in range(world.rng.choice((1, 1, 2))):
                works = await self._prompts(kernel, f"life {self.lives}, go {again}")
                if not again:
                    people += self._people(world, kernel, first=first)
                await self._ended(kernel, works, rests=world.rng.random() < 0.7)
        finally:
            for person in people:
                person.cancel()

    async def _prompts(self, kernel: Kernel, text: str) -> list[Work]:
        works: list[Work] = []
        for root in list(self.roots):
            try:
                works.append(await kernel.prompt(root, text))
            except RetinueError as error:
                # Letters may have opened a turn a moment ago, a person may be deleting it.
                if error.code != "turn_open" and not (error.code == "not_found" and root in self.deleting):
                    raise
        return works

    async def _ended(self, kernel: Kernel, works: list[Work], *, rests: bool) -> None:
        """Return when the turns are closed, and with `rests` when all that they started has come to an end."""
        for work in works:
            await work.done.wait()
            if work.error is not None:
                raise work.error
        for root in self.roots if rests else ():
            await kernel.tree_rests(root)

    def _people(self, world: World, kernel: Kernel, *, first: bool) -> list[asyncio.Task[None]]:
        return [
            kernel.supervisor.begin(self._person(world, kernel, root, at_s, act))
            for root in self.roots
            for at_s, act in self._acts(first=first, oldest=root == self.roots[0])
        ]

    def _acts(self, *, first: bool, oldest: bool) -> list[tuple[float, str]]:
        """Return when people do what with a root; the switch is the store's, and only one of them sets it."""
        plan = self.plan
        old = ((plan.steer_at_s, "steer"), (plan.interrupt_at_s, "interrupt"), (plan.jump_at_s, "jump"))
        acts = [(at_s, act) for at_s, act in old if at_s is not None]
        if first:
            acts += [(at_s, act) for at_s, act in plan.acts if oldest or not act.startswith("switch")]
        return sorted(acts)

    async def _person(self, world: World, kernel: Kernel, root: SessionId, at_s: float, act: str) -> None:
        await world.clock.sleep(at_s)
        try:
            await PEOPLE[act](self, world, kernel, root)
        except RetinueError as error:
            if error.code not in REFUSALS:
                raise

    async def jump(self, world: World, kernel: Kernel, root: SessionId) -> None:
        """Let the wall clock jump."""
        world.clock.jump(self.plan.jump_by_s)

    async def delete(self, world: World, kernel: Kernel, root: SessionId) -> None:
        """Delete a root with its tree."""
        self.deleting.add(root)
        await kernel.delete(root)


Deed = Callable[[History, World, Kernel, SessionId], Awaitable[object]]
REFUSALS = {
    "already_ended",
    "budget_exceeded",
    "cap_messages",
    "cap_rounds",
    "cap_running",
    "not_continuable",
    "not_found",
    "stopping",
    "store_failed",
    "switched_off",
}


async def _steer(history: History, world: World, kernel: Kernel, root: SessionId) -> None:
    if root in kernel.supervisor.works:
        await kernel.steer(root, "also look at the tests")


async def _interrupt(history: History, world: World, kernel: Kernel, root: SessionId) -> None:
    await kernel.interrupt(root)


def _some_child(world: World, kernel: Kernel, root: SessionId) -> SessionId:
    """Return a child somewhere below a root, an open one where there is one."""
    runs = [run for run in kernel.journal.state.runs.values() if run.root_id == root]
    working = [run.session_id for run in runs if run.status == "running"]
    lasting = [run.session_id for run in runs if run.is_open and run.continuable]
    ids = world.rng.choice((lasting, working)) or [run.session_id for run in runs]
    return world.rng.choice(ids) if ids else SessionId("s_9999")


async def _message_child(history: History, world: World, kernel: Kernel, root: SessionId) -> None:
    await kernel.letters.send(_some_child(world, kernel, root), "a person asks for more", sender=None)


async def _interrupt_child(history: History, world: World, kernel: Kernel, root: SessionId) -> None:
    await kernel.scheduler.interrupt(_some_child(world, kernel, root), None)


async def _crowd_child(history: History, world: World, kernel: Kernel, root: SessionId) -> None:
    name = _some_child(world, kernel, root)
    try:
        for number in range(2):
            await kernel.letters.send(name, f"a person asks for more, {number}", sender=None)
    finally:
        await kernel.scheduler.interrupt(name, None)


async def _delete_child(history: History, world: World, kernel: Kernel, root: SessionId) -> None:
    await kernel.delete(_some_child(world, kernel, root))


async def _lower(history: History, world: World, kernel: Kernel, root: SessionId) -> None:
    await kernel.change_policy(root, {"caps.running.root": 1, "caps.running.process": 1, "caps.max_depth": 1})


async def _raise(history: History, world: World, kernel: Kernel, root: SessionId) -> None:
    await kernel.change_policy(root, {"caps.running.root": 6, "caps.running.process": None, "caps.max_depth": 3})


async def _switch_off(history: History, world: World, kernel: Kernel, root: SessionId) -> None:
    await kernel.set_switch(False)


async def _switch_on(history: History, world: World, kernel: Kernel, root: SessionId) -> None:
    await kernel.load(root)  # so that the log that says off also says on
    await kernel.set_switch(True)


PEOPLE: dict[str, Deed] = {
    "steer": _steer,
    "interrupt": _interrupt,
    "jump": History.jump,
    "message_child": _message_child,
    "interrupt_child": _interrupt_child,
    "crowd_child": _crowd_child,
    "delete_child": _delete_child,
    "lower_caps": _lower,
    "raise_caps": _raise,
    "switch_off": _switch_off,
    "switch_on": _switch_on,
    "delete": History.delete,
}


def _for_notes(seen: Seen) -> bool:
    """Return whether a request asked for the notes of a compaction: it belongs to no step."""
    last = seen.request.messages[-1]
    return isinstance(last, UserText) and last.text == TEXTS.compaction


def check_restarts(before: Sequence[Event], after: Sequence[Event]) -> list[str]:
    """Return each run that a life left open and the next one did anything to but close it for the restart."""
    open_runs = {fact.run_id for _, fact in _facts(before) if isinstance(fact, RunQueued)}
    open_runs -= {fact.run_id for _, fact in _facts(before) if isinstance(fact, RunSettled)}
    cut_off: dict[SessionId, TurnOpened] = {}
    for event, fact in _facts(before):
        if isinstance(fact, TurnOpened):
            cut_off[event.session_id] = fact
        if isinstance(fact, TurnClosed):
            cut_off.pop(event.session_id, None)
    later = [event for event in after if not before or event.position > before[-1].position]
    problems = [
        f"position {event.position}: a step of {event.session_id}, which a crash had cut off"
        for event, fact in _facts(later)
        if isinstance(fact, StepOpened) and event.session_id in cut_off
        if fact.turn == cut_off[event.session_id].turn
    ]
    problems += [
        f"position {event.position}: {fact.run_id} was open at a crash and reads {fact.status}/{fact.reason}"
        for event, fact in _facts(later)
        if isinstance(fact, RunSettled) and fact.run_id in open_runs and fact.reason != "restart"
    ]
    return problems


def _facts(events: Sequence[Event]) -> list[tuple[Event, object]]:
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
