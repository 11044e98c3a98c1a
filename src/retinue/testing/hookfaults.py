"""Hooks that deny, fail and hang where a plan says so, and keep what they heard; chance comes from the seed only."""

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final, Literal

from retinue.core.events import Value
from retinue.core.ids import SessionId
from retinue.ports import DECIDING, Clock, Deny, Hook, HookEvent, HookPoint
from retinue.runtime.hooking import POINTS

HookFault = Literal["deny", "error", "unreadable", "slow", "hang", "deaf"]
HOOK_FAULTS: Final[tuple[HookFault, ...]] = ("deny", "error", "unreadable", "slow", "hang", "deaf")
FAILURES: Final = frozenset({"error", "unreadable", "hang", "deaf"})
"""Faults that are no answer."""
TIMEOUT_S: Final = 5.0
"""Virtual seconds that a planned hook has."""
SLOW_S: Final = 2.0
DEAF_S: Final = 12.0
"""Virtual seconds for which a deaf one ignores every cancel."""
IDENTITY: Final[dict[str, str]] = {
    "agent.session.opened": "",
    "agent.turn.before": "turn",
    "agent.turn.stop": "turn",
    "agent.turn.closed": "turn",
    "agent.tool.before": "call_id",
    "agent.tool.after": "call_id",
    "agent.subagent.spawn.before": "session_id",
    "agent.subagent.spawn.after": "run_id",
    "agent.subagent.complete": "run_id",
}
"""The key of `data` that says which one it was, in its session."""


class HookPlan(Value):
    """Which share of what hooks hear goes wrong, 0 to 1; without `standing` there are no hooks at all."""

    seed: int = 0
    standing: bool = False
    rate: float = 0.0
    kinds: tuple[HookFault, ...] = HOOK_FAULTS


class Heard(Value):
    """What a hook was asked or told, what came of it, and what was durable at that moment."""

    point: HookPoint
    session_id: SessionId
    root_id: SessionId
    which: Any
    fault: HookFault | None
    position: int


class PlannedHook:
    """A hook that follows a plan.

    Attributes:
        heard: what it heard, in that order; a list that several lives of a store may share.
    """

    def __init__(
        self, plan: HookPlan, name: str, points: frozenset[str], outside: tuple[Clock, Callable[[], int]]
    ) -> None:
        """Stand at some points; outside are the clock and the store's position."""
        self.heard: list[Heard] = []
        self.timeout_s: Final = TIMEOUT_S
        self.name: Final = name
        self.points: Final = points
        self._plan = plan
        self._clock, self._position = outside

    async def call(self, event: HookEvent, offload: Callable[..., Any]) -> Any:  # noqa: ARG002 - the port's parameter
        """Keep what it hears, and do what the plan says of it."""
        which = event.data[IDENTITY[event.point]] if IDENTITY[event.point] else None
        fault = self._fault(event, which)
        keys = (event.session_id, event.root_id)
        said = Heard(
            point=event.point, session_id=keys[0], root_id=keys[1], which=which, fault=fault, position=self._position()
        )
        self.heard.append(said)
        match fault:
            case "deny":
                return Deny(reason=f"{self.name} says no")
            case "error":
                raise ValueError(f"{self.name} is broken")
            case "unreadable":
                return {"decision": "whatever"}
            case "slow":
                await self._clock.sleep(SLOW_S)
            case "hang":
                await asyncio.get_running_loop().create_future()
            case "deaf":
                await self._ignore_cancels()
            case _:
                pass
        return None

    def _fault(self, event: HookEvent, which: Any) -> HookFault | None:
        again = event.data.get("denials", 0)
        rng = random.Random(f"{self._plan.seed}/{self.name}/{event.point}/{event.session_id}/{which}/{again}")
        return rng.choice(self._plan.kinds) if rng.random() < self._plan.rate else None

    async def _ignore_cancels(self) -> None:
        ends_at = self._clock.monotonic() + DEAF_S
        while (left := ends_at - self._clock.monotonic()) > 0:
            try:
                await self._clock.sleep(left)
            except asyncio.CancelledError:
                continue


def planned_hooks(plan: HookPlan, heard: list[Heard], clock: Clock, position: Callable[[], int]) -> tuple[Hook, ...]:
    """Return the hooks of a plan, one that is asked and one that is told, which go on with what was heard before."""
    if not plan.standing:
        return ()
    telling = frozenset(POINTS) - DECIDING
    hooks = [
        PlannedHook(plan, name, points, (clock, position)) for name, points in (("guard", DECIDING), ("audit", telling))
    ]
    for hook in hooks:
        hook.heard = heard
    return tuple(hooks)


def random_hooks(rng: random.Random) -> HookPlan:
    """Return a plan: in half of the worlds no hook stands, in a quarter much goes wrong."""
    rate = rng.choice((None, None, 0.05, 0.3))
    return HookPlan(seed=rng.getrandbits(32), standing=rate is not None, rate=rate or 0.0)
