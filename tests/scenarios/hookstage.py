"""Hooks for scenes: what they are asked and told is kept, what they answer is given; it holds no test."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from retinue.core.events import Event, HookFailed, RunQueued, SessionOpened, ToolFinished, ToolStarted, TurnClosed
from retinue.ports import DECIDING, Clock, Hook, HookEvent
from retinue.runtime.hooking import POINTS, hook
from retinue.testing.world import World
from tests.scenarios.stage import Life, PartsOf

TELLING = tuple(point for point in POINTS if point not in DECIDING)
HooksOf = Callable[[World], list[Hook]]


class Heard:
    """What hooks heard, in the order they heard it.

    Attributes:
        events: `(hook, event)`.
    """

    def __init__(self) -> None:
        self.events: list[tuple[str, HookEvent]] = []

    def hook(self, *points: str, name: str = "guard", says: Any = None, timeout_s: float = 30.0) -> Hook:
        """Return a hook that keeps what it hears; `says` is its answer, or makes it from the event."""

        @hook(*points, name=name, timeout_s=timeout_s)
        async def heard(event: HookEvent) -> Any:
            self.events.append((name, event))
            answer = says(event) if callable(says) else says
            return await answer if asyncio.iscoroutine(answer) else answer

        return heard

    def at(self, point: str, name: str | None = None) -> list[HookEvent]:
        """Return what was heard at a point, by one hook or by all."""
        return [event for who, event in self.events if event.point == point and name in (None, who)]

    def points(self, name: str | None = None) -> list[str]:
        """Return at which points something was heard, in that order."""
        return [event.point for who, event in self.events if name in (None, who)]


def with_hooks(*hooks: Hook) -> PartsOf:
    """Give a life these hooks."""
    return lambda world, model: {"hooks": hooks}


def hooks_of(make: HooksOf) -> PartsOf:
    """Give a life the hooks that its world makes."""
    return lambda world, model: {"hooks": make(world)}


async def forever(_: HookEvent) -> None:
    """Hang until cancelled."""
    await asyncio.get_running_loop().create_future()


def deaf(clock: Clock, for_s: float) -> Callable[[HookEvent], Any]:
    """Return a body that ignores every cancel for that long, then allows."""

    async def body(_: HookEvent) -> None:
        ends_at = clock.monotonic() + for_s
        while (left := ends_at - clock.monotonic()) > 0:
            with swallowed():
                await clock.sleep(left)

    return body


@contextmanager
def swallowed() -> Iterator[None]:
    """Ignore a cancel."""
    try:
        yield
    except asyncio.CancelledError:
        return


def failures(life: Life[Any]) -> list[HookFailed]:
    return life.told(HookFailed)


def names_of_children(life: Life[Any]) -> list[str]:
    return [fact.name for fact in life.told(RunQueued)]


def started_tools(life: Life[Any]) -> list[str]:
    return [fact.name for fact in life.told(ToolStarted)]


def refused(life: Life[Any]) -> list[ToolFinished]:
    return [fact for fact in life.told(ToolFinished) if fact.outcome == "refused"]


def root_ends(life: Life[Any]) -> list[TurnClosed]:
    return [fact for fact in life.told(TurnClosed) if fact.run_id is None]


def log_of(life: Life[Any], session_id: str) -> list[Event]:
    return [event for event in life.events if event.session_id == session_id]


def child_sessions(life: Life[Any]) -> list[str]:
    opened = [(event.session_id, event.fact) for event in life.events if isinstance(event.fact, SessionOpened)]
    return [session_id for session_id, fact in opened if fact.parent_id is not None]
