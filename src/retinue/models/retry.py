"""Tries a request again where that is safe, and spares a provider that asked for rest; it judges no answer.

Before the first visible piece it tries freely, bounded in number and time. After it once, with a `Reset`, so that a
reader drops what it saw. What a provider asks for with Retry-After holds for every request of the connection.
"""

import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

import msgspec

from retinue.core.events import Value
from retinue.ports import Clock, Delta, Finish, Model, ModelRequest, Reset

RETRYABLE: Final = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
"""HTTP statuses that say "later"; every other one says "never like this"."""


class RetryLimits(Value):
    """How often and how long. Waits grow from `first_s` by doubling up to `longest_s`, each scattered by half."""

    tries_max: int = 4
    asked_tries_max: int = 10
    """Tries where the provider says when to come back."""
    first_s: float = 0.5
    longest_s: float = 30.0
    asked_max_s: float = 120.0
    """A Retry-After of more than this is not waited for."""
    scatter_s: float = 1.0
    """Seconds over which requests that waited for the same moment are spread."""


class RetryingModel:
    """A model that tries again."""

    def __init__(
        self,
        inner: Model,
        clock: Clock,
        chance: Callable[[], float] = random.random,  # noqa: S311 - it scatters waits, it guards nothing
        limits: RetryLimits | None = None,
    ) -> None:
        """Wrap one connection's model; `chance` returns numbers from 0 to 1."""
        self._inner = inner
        self._clock = clock
        self._chance = chance
        self._limits = RetryLimits() if limits is None else limits
        self._closed_until = 0.0

    async def aclose(self) -> None:
        """Close the inner model."""
        await self._inner.aclose()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Reset | Finish, None]:
        """Yield deltas and one `Finish` with the number of retries; a `Reset` voids the deltas before it."""
        retries = 0
        reset = False
        while True:
            await self._rest()
            finish, visible = Finish(reason="incomplete", error="The stream stopped without a finish."), False
            asked = msgspec.structs.replace(request, number=request.number + retries)
            async with aclosing(self._inner.stream(asked)) as chunks:
                async for chunk in chunks:
                    if isinstance(chunk, Finish):
                        finish = chunk
                        break
                    visible = visible or bool(isinstance(chunk, Delta) and chunk.text)
                    yield chunk
            wait_s = None if visible and reset else self._wait_s(finish, retries)
            if wait_s is None:
                yield msgspec.structs.replace(finish, retries=retries)
                return
            retries += 1
            if visible:
                reset = True
                yield Reset(attempt=retries + 1)
            await self._clock.sleep(wait_s)

    async def _rest(self) -> None:
        """Wait while the provider asked this connection to; whoever waited comes back at a moment of its own."""
        while (left_s := self._closed_until - self._clock.monotonic()) > 0:
            await self._clock.sleep(left_s + self._limits.scatter_s * self._chance())

    def _wait_s(self, finish: Finish, retries: int) -> float | None:
        """Return how long to wait before the next try, or null when there is none."""
        limits = self._limits
        asked_s = finish.retry_after_s
        tries_max = limits.tries_max if asked_s is None else limits.asked_tries_max
        if not _is_passing(finish) or retries + 1 >= tries_max:
            return None
        if asked_s is None:
            return min(limits.first_s * 2**retries, limits.longest_s) * (0.5 + self._chance())
        if asked_s > limits.asked_max_s:
            return None
        self._closed_until = max(self._closed_until, self._clock.monotonic() + asked_s)
        return asked_s + limits.scatter_s * self._chance()


def _is_passing(finish: Finish) -> bool:
    """Return whether the same request may well be answered a little later."""
    if finish.reason == "incomplete":
        return True
    return finish.reason == "error" and (finish.status is None or finish.status in RETRYABLE)
