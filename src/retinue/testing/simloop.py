"""The virtual event loop: seeded order, virtual time, loud dead ends; it never sleeps and never leaves its thread."""
# ruff: noqa: N818 -- the ends of a world are called by what happened

import asyncio
import heapq
import math
import random
from asyncio import base_events
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from threading import get_ident
from types import AsyncGeneratorType
from typing import Any, Final, TypeVar
from weakref import WeakSet

T = TypeVar("T")

STILL_PASSES_MAX: Final = 10_000
"""Passes of a world without time moving, before it counts as a livelock."""
PASSES_MAX: Final = 200_000
"""Passes of a world at all."""
PRUNE_TASKS_MIN: Final = 256
"""How many tasks are held before those that are done are let go."""
CLOSE_TRIES_MAX: Final = 3
"""How often a coroutine that refuses to close is asked to."""

FORBIDDEN: Final = (
    "add_reader",
    "add_signal_handler",
    "add_writer",
    "connect_accepted_socket",
    "connect_read_pipe",
    "connect_write_pipe",
    "create_connection",
    "create_datagram_endpoint",
    "create_server",
    "create_unix_connection",
    "create_unix_server",
    "getaddrinfo",
    "getnameinfo",
    "run_in_executor",
    "sendfile",
    "sock_accept",
    "sock_connect",
    "sock_recv",
    "sock_recv_into",
    "sock_recvfrom",
    "sock_recvfrom_into",
    "sock_sendall",
    "sock_sendfile",
    "sock_sendto",
    "start_tls",
    "subprocess_exec",
    "subprocess_shell",
)


class SimError(Exception):
    """What a simulated world cannot go on with."""


class SimDeadlock(SimError):
    """Nothing is ready, no timer is set, and the main future is not done."""


class SimLivelock(SimError):
    """The world goes round without time moving, or without end."""


class SimLeak(SimError):
    """The main future is done, but something of the world is left."""


class SimForbiddenError(SimError):
    """The code asked a simulated world for a thread, a socket or a process."""


class SimCrash(SystemExit):
    """The end of the world as by kill -9: whoever makes one inside a simulated loop ends that loop at once.

    From then on the loop refuses every task, timer and callback, and the world's ports refuse every call, so no
    `finally` of our code can reach a store any more.
    """

    def __init__(self, why: str = "the simulated process was killed") -> None:
        """End the running loop where that is a simulated one."""
        super().__init__(why)
        with suppress(RuntimeError):
            loop = asyncio.get_running_loop()
            if isinstance(loop, SimLoop):
                loop.dead = True


class SimLoop(base_events.BaseEventLoop):
    """An asyncio event loop whose order comes from a seed and whose time moves only when nothing is ready.

    Attributes:
        problems: what asyncio would only have logged: exceptions never retrieved, tasks destroyed while pending.
        passes: passes made so far.
        width: how many callbacks the present pass runs.
        on_pass: called with the number of each pass before it runs; it may cancel tasks.
        dead: whether a `SimCrash` ended it.
    """

    # Kept by BaseEventLoop; named here for the type checker.
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool
    _asyncgens: WeakSet[AsyncGeneratorType[Any, Any]]

    def __init__(
        self,
        seed: object = 0,
        *,
        shuffle: bool = True,
        start_s: float = 0.0,
        passes_max: int = PASSES_MAX,
        still_passes_max: int = STILL_PASSES_MAX,
    ) -> None:
        """Begin at `start_s` virtual seconds; without `shuffle` the order is asyncio's own."""
        super().__init__()
        self.problems: list[str] = []
        self.passes = 0
        self.width = 0
        self.on_pass: Callable[[int], None] | None = None
        self.dead = False
        self._rng = random.Random(f"{seed}/loop") if shuffle else None
        self._now = start_s
        self._passes_max = passes_max
        self._still_passes_max = still_passes_max
        self._moved_at = 0
        self._made = 0
        self._owner = get_ident()
        # Held strongly: a dropped task would run its clean-up in the middle of a crash.
        self._tasks: list[asyncio.Task[Any]] = []
        self._prune_at = PRUNE_TASKS_MIN

    def time(self) -> float:
        """Return the virtual seconds."""
        return self._now

    def create_task(self, coro: Coroutine[Any, Any, T], **kwargs: Any) -> asyncio.Task[T]:  # pyright: ignore[reportIncompatibleMethodOverride] -- the keywords differ between 3.11 and 3.13
        """Schedule a coroutine; a task without a name is called by its number in this loop."""
        if self.dead:
            coro.close()
        self._refuse_when_dead()
        self._made += 1
        kwargs["name"] = kwargs.get("name") or f"task-{self._made}"
        task: asyncio.Task[T] = super().create_task(coro, **kwargs)
        self._tasks.append(task)
        if len(self._tasks) >= self._prune_at:
            self._prune_at = max(PRUNE_TASKS_MIN, 2 * len(self.pending()))
        return task

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:
        """Run a callback in the next pass, in any order with the others of that pass."""
        self._refuse_when_dead()
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run a callback at a virtual second."""
        self._refuse_when_dead()
        if not math.isfinite(when):
            raise SimForbiddenError(f"A timer at {when} never comes; wait on a future instead.")
        return super().call_at(when, callback, *args, context=context)

    def call_soon_threadsafe(
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Run a callback in the next pass; only the loop's own thread may ask."""
        if get_ident() != self._owner:
            raise SimForbiddenError("A thread called into a simulated loop; go through the executor port instead.")
        return self.call_soon(callback, *args, context=context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep what asyncio would have logged in `problems`; a dead world has none."""
        if self.dead:
            return
        task = context.get("task") or context.get("future")
        name = f" in {task.get_name()}" if isinstance(task, asyncio.Task) else ""
        error = context.get("exception")
        what = f": {error!r}" if error is not None else ""
        self.problems.append(f"{context.get('message', 'unknown')}{name}{what}")

    def pending(self) -> list[asyncio.Task[Any]]:
        """Return the tasks that are not done, oldest first, and let go of all others."""
        self._tasks = [task for task in self._tasks if not task.done()]
        return list(self._tasks)

    def stand_still(self, for_s: float) -> None:
        """Let `for_s` seconds pass at once, as when a callback blocks: every timer meanwhile is late."""
        self._now += for_s

    def timers(self) -> list[asyncio.TimerHandle]:
        """Return the timers that are set, soonest first."""
        return sorted(timer for timer in self._scheduled if not timer.cancelled())

    def handles(self) -> list[asyncio.Handle]:
        """Return the callbacks that are ready."""
        return [handle for handle in self._ready if not handle.cancelled()]

    def generators(self) -> list[str]:
        """Return the names of the async generators that were begun and neither ended nor closed."""
        return sorted(agen.__qualname__ for agen in self._asyncgens if agen.ag_frame is not None)

    def bury(self) -> None:
        """Close the loop and drop every pending coroutine; nothing of them can reach the world any more."""
        self.dead = True
        tasks = self.pending()
        self.close()
        for task in tasks:
            _drop(task)

    def _refuse_when_dead(self) -> None:
        if self.dead:
            raise SimCrash

    def _asyncgen_finalizer_hook(self, agen: AsyncGeneratorType[Any, Any]) -> None:
        """Close a dropped generator in a task, as asyncio does; a dead world drops it for good."""
        self._asyncgens.discard(agen)
        if not self.dead and not self.is_closed():
            self.call_soon(self.create_task, agen.aclose())

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Cancelled timers are skipped when their time comes."""

    def _run_once(self) -> None:
        """Make one pass: hook, due timers, then everything that is ready, shuffled."""
        self.passes += 1
        self._check_progress()
        if self.on_pass is not None:
            self.on_pass(self.passes)
        self._move_time()
        ready = [self._ready.popleft() for _ in range(len(self._ready))]
        if self._rng is not None:
            self._rng.shuffle(ready)
        self.width = len(ready)
        for handle in ready:
            if not handle.cancelled():
                handle._run()  # noqa: SLF001 -- it is what a loop is for
            self._refuse_when_dead()

    def _check_progress(self) -> None:
        if self.passes > self._passes_max:
            raise SimLivelock(f"The world did not end in {self._passes_max} passes.{_listing(self.pending())}")
        if self.passes - self._moved_at > self._still_passes_max:
            raise SimLivelock(
                f"{self._still_passes_max} passes went by without time moving (virtual second {self._now:.3f})."
                f"{_listing(self.pending())}"
            )

    def _move_time(self) -> None:
        """Make due timers ready, after moving time to the next one when nothing else is ready."""
        while self._scheduled and self._scheduled[0].cancelled():
            heapq.heappop(self._scheduled)
        if not self._ready and not self._stopping:
            if not self._scheduled:
                raise SimDeadlock(f"Nothing is ready and no timer is set.{_listing(self.pending())}")
            self._advance(self._scheduled[0].when())
        while self._scheduled and self._scheduled[0].when() <= self._now:
            timer = heapq.heappop(self._scheduled)
            if not timer.cancelled():
                self._ready.append(timer)

    def _advance(self, when: float) -> None:
        if when > self._now:
            self._now = when
            self._moved_at = self.passes


def _forbid(name: str) -> Callable[..., Any]:
    def refuse(*_args: Any, **_kwargs: Any) -> Any:
        raise SimForbiddenError(
            f"A simulated loop has no {name}: no thread, socket, pipe, signal or process. Go through a port."
        )

    return refuse


for _name in FORBIDDEN:
    setattr(SimLoop, _name, _forbid(_name))


def where(task: asyncio.Task[Any]) -> str:
    """Return where a task waits: its coroutines from the outermost to the innermost, as `name:line`."""
    chain: list[str] = []
    at: Any = task.get_coro()
    while at is not None:
        code = _first(at, "cr_code", "gi_code", "ag_code")
        frame = _first(at, "cr_frame", "gi_frame", "ag_frame")
        if code is not None:
            chain.append(f"{code.co_qualname}:{frame.f_lineno if frame is not None else '-'}")
        at = _first(at, "cr_await", "gi_yieldfrom", "ag_await")
    return " > ".join(chain)


def _first(value: Any, *names: str) -> Any:
    return next((found for name in names if (found := getattr(value, name, None)) is not None), None)


def _listing(tasks: list[asyncio.Task[Any]]) -> str:
    return "".join(f"\n  {task.get_name()} waits at {where(task)}" for task in tasks) or " No task is pending."


def _drop(task: asyncio.Task[Any]) -> None:
    """Close a pending task's coroutine; whatever its clean-up raises comes from a dead world and says nothing."""
    coro: Any = task.get_coro()
    for _ in range(CLOSE_TRIES_MAX):
        try:
            if coro is not None:
                coro.close()
        except RuntimeError:
            continue  # it awaited in a `finally`
        except BaseException:  # noqa: BLE001, S110 -- a dead world's clean-up may raise anything, even SimCrash
            pass
        return
