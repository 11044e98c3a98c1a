"""A simulated world: a virtual loop with its clock, ids and executor, and its runner; it never touches real ones."""

import asyncio
import gc
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, ParamSpec, TypeVar

from retinue.testing.simloop import PASSES_MAX, STILL_PASSES_MAX, SimCrash, SimLeak, SimLoop, where

P = ParamSpec("P")
T = TypeVar("T")

DRAIN_PASSES_MAX: Final = 100
"""Passes that callbacks may still take after the main future is done."""


class SimClock:
    """The `Clock` port on virtual time."""

    def __init__(self, loop: SimLoop, epoch: datetime) -> None:
        """Let the wall show `epoch` at virtual second 0."""
        self._loop = loop
        self._epoch = epoch

    def wall(self) -> str:
        """Return the virtual wall time as RFC 3339 UTC with milliseconds."""
        now = self._epoch + timedelta(seconds=self._loop.time())
        return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def monotonic(self) -> float:
        """Return the virtual seconds."""
        return self._loop.time()

    async def sleep(self, delay_s: float) -> None:
        """Wait in virtual time."""
        await asyncio.sleep(delay_s)

    def jump(self, by_s: float) -> None:
        """Set the wall clock forwards or back; monotonic time does not move."""
        self._epoch += timedelta(seconds=by_s)


class CountingIds:
    """The `Ids` port: `s_0001`, `s_0002`, … for each prefix; letters are numbered with the runs.

    A result letter has its run's number, so no other letter may.
    """

    def __init__(self) -> None:
        """Begin at 1; hand one object to all lives of a store, so that no id comes twice."""
        self._made: Counter[str] = Counter()

    def new(self, prefix: str) -> str:
        """Return the next id of a prefix."""
        counter = "r" if prefix == "l" else prefix
        self._made[counter] += 1
        return f"{prefix}_{self._made[counter]:04d}"


class SimExecutor:
    """The `Executor` port: the call runs at once, its caller hears of it after a seeded virtual delay.

    A cancelled caller therefore never undoes the call, as with a real thread.
    """

    def __init__(self, loop: SimLoop, rng: random.Random, delay_max_s: float) -> None:
        """Take up to `delay_max_s` virtual seconds for a call; a third of the calls take no time."""
        self._loop = loop
        self._rng = rng
        self._delay_max_s = delay_max_s
        self._slower_s = 0.0

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the call's result or raise what it raised, later; in a dead world raise `SimCrash`."""
        if self._loop.dead:
            raise SimCrash
        self._slower_s = 0.0
        try:
            value = call(*args, **kwargs)
        except Exception:
            await asyncio.sleep(self._delay())
            raise
        await asyncio.sleep(self._delay())
        return value

    def slow(self, by_s: float) -> None:
        """Make the call that runs at this moment take `by_s` virtual seconds longer."""
        self._slower_s += by_s

    def _delay(self) -> float:
        drawn = self._rng.choice((0.0, 0.1, 1.0)) * self._rng.random() * self._delay_max_s
        return drawn + self._slower_s


@dataclass(frozen=True, kw_only=True)
class WorldOptions:
    """How a world is made; every knob has a default."""

    shuffle: bool = True
    delay_max_s: float = 0.02
    """Virtual seconds that a blocking call may take."""
    start_s: float = 1000.0
    """Virtual second at which it begins; another life of a store may begin at a smaller one."""
    epoch: datetime = datetime(2030, 1, 1, tzinfo=UTC)
    passes_max: int = PASSES_MAX
    still_passes_max: int = STILL_PASSES_MAX
    strict: bool = True
    """Whether anything that is left at the end raises `SimLeak`; otherwise it is only in the result's `problems`."""
    on_pass: Callable[[int], None] | None = None
    ids: CountingIds = field(default_factory=CountingIds)


class World:
    """Everything that code under test may take from outside.

    Attributes:
        loop: the virtual loop.
        rng: chance for the test itself.
        clock: the `Clock` port.
        ids: the `Ids` port.
        executor: the `Executor` port.
    """

    def __init__(self, seed: int, options: WorldOptions) -> None:
        """Make a world; the same seed and options make the same one."""
        self.seed: Final = seed
        self.loop: Final = SimLoop(
            seed,
            shuffle=options.shuffle,
            start_s=options.start_s,
            passes_max=options.passes_max,
            still_passes_max=options.still_passes_max,
        )
        self.loop.on_pass = options.on_pass
        self.rng: Final = self.chance("world")
        self.clock: Final = SimClock(self.loop, options.epoch)
        self.ids: Final = options.ids
        self.executor: Final = SimExecutor(self.loop, self.chance("executor"), options.delay_max_s)

    def chance(self, name: str) -> random.Random:
        """Return a generator of its own; drawing from it moves no other."""
        return random.Random(f"{self.seed}/{name}")

    def left(self) -> list[str]:
        """Return what is left of the world, and what asyncio complained about."""
        loop = self.loop
        tasks = [f"the task {task.get_name()} is left, it waits at {where(task)}" for task in loop.pending()]
        gc.collect(0)  # so that what nobody retrieved is known now
        timers = [f"a timer for second {timer.when():.3f} is left" for timer in loop.timers()]
        handles = [f"a callback is left: {handle!r}" for handle in loop.handles()]
        open_ones = [f"the async generator {name} is left open" for name in loop.generators()]
        return tasks + timers + handles + open_ones + loop.problems


@dataclass(frozen=True, kw_only=True)
class WorldResult(Generic[T]):
    """How a world ended.

    Attributes:
        value: what the main coroutine returned; null after a crash.
        crashed: whether a `SimCrash` ended it.
        problems: what was left, in sentences; empty after a crash.
        passes: passes of the loop.
        now_s: the virtual second at which it ended.
    """

    value: T | None
    crashed: bool
    problems: tuple[str, ...]
    passes: int
    now_s: float


def run_world(main: Callable[[World], Awaitable[T]], seed: int, options: WorldOptions | None = None) -> WorldResult[T]:
    """Run `main` in a new world until it returns, raises, or the world crashes.

    Raises what `main` raised, `SimDeadlock`, `SimLivelock`, and `SimLeak` when something is left and the options are
    strict; each carries a note with the seed.
    """
    made = WorldOptions() if options is None else options
    threads = set(threading.enumerate())
    with _no_collector():
        world = World(seed, made)
        loop = world.loop
        try:
            value, crashed = _run_main(world, main)
            problems = [] if crashed else world.left() + _threads_left(threads)
            _require_clean(problems if made.strict else [])
        except Exception as error:
            error.add_note(f"seed {seed}, pass {loop.passes}, virtual second {loop.time():.3f}")
            raise
        finally:
            loop.bury()
    return WorldResult(value=value, crashed=crashed, problems=tuple(problems), passes=loop.passes, now_s=loop.time())


def _require_clean(problems: list[str]) -> None:
    if problems:
        raise SimLeak("The world ended, but " + "; ".join(problems))


def _run_main(world: World, main: Callable[[World], Awaitable[T]]) -> tuple[T | None, bool]:
    async def begin() -> T:
        return await main(world)

    loop = world.loop
    try:
        value = loop.run_until_complete(loop.create_task(begin(), name="main"))
        loop.on_pass = None
        loop.run_until_complete(loop.create_task(_drain(loop), name="drain"))
    except SimCrash:
        return None, True
    return value, False


async def _drain(loop: SimLoop) -> None:
    """Let callbacks that are already ready end; time does not move meanwhile."""
    for _ in range(DRAIN_PASSES_MAX):
        await asyncio.sleep(0)
        if loop.width == 1:  # this pass runs nothing but the drain
            return


def _threads_left(before: set[threading.Thread]) -> list[str]:
    names = sorted(thread.name for thread in threading.enumerate() if thread not in before)
    return [f"the thread {name} was started" for name in names]


@contextmanager
def _no_collector() -> Generator[None]:
    """Keep the cyclic collector from running finalizers at moments that no seed decides."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
