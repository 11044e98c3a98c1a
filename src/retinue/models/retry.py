"""Tries a request again where that is safe, and spares a provider that asked for rest; it judges no answer.

Before the first visible piece it tries freely, bounded in number and time. After it once, with a `Reset`, so that a
reader drops what it saw. What a provider asks for with Retry-After holds for every request of the connection.
"""

import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final

import msgspec

from retinue.core.events import Usage, Value
from retinue.ports import Clock, Delta, Finish, Model, ModelRequest, Piece, Reset, Spent

RETRYABLE: Final = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
"""HTTP statuses that say "later"; every other one says "never like this"."""
RATE_LIMITED: Final = 429


class RetryLimits(Value):
    """How often and how long. Waits grow from `first_s` by doubling up to `longest_s`, each scattered by half."""

    tries_max: int = 4
    patient_tries_max: int = 10
    """Tries where the provider limits the rate, or says when to come back."""
    first_s: float = 0.5
    longest_s: float = 30.0
    asked_max_s: float = 120.0
    """A Retry-After of more than this is not waited for."""
    scatter_s: float = 1.0
    """Seconds over which requests that waited for the same moment are spread."""
    all_max_s: float = 600.0
    """No try begins later than this after the request came."""


class _Request:
    """One request through all its tries: what they cost, and the words of the last one that was seen."""

    def __init__(self, ends_s: float) -> None:
        self.ends_s: Final = ends_s
        self.retries = 0
        self.was_reset = False
        self._reports = 0
        self._usage: Usage | None = None
        self._seen = Finish(reason="incomplete")

    def spent(self, now: Usage | None = None) -> Spent:
        """Return the cost so far, with what the present try has reported."""
        usage = self._usage
        if now is not None:
            usage = now if usage is None else usage.plus(now)
        tries, reports = self.retries + 1, self._reports + (now is not None)
        if usage is not None:
            usage = msgspec.structs.replace(usage, requests=tries, unreported=tries - reports)
        return Spent(retries=self.retries, usage=usage)

    def fail(self, finish: Finish, *, visible: bool) -> None:
        """Take the finish of a try that is followed by another."""
        if finish.usage is not None:
            self._usage = self.spent(finish.usage).usage
            self._reports += 1
        if visible:
            self._seen = finish
        self.retries += 1

    def ended(self, finish: Finish) -> Finish:
        """Return the finish of the whole request: it costs all its tries, and a failure keeps the last words seen."""
        usage = self.spent(finish.usage).usage
        finish = msgspec.structs.replace(finish, retries=self.retries, usage=usage)
        if finish.reason in ("error", "incomplete") and not finish.text and not finish.reasoning:
            return msgspec.structs.replace(finish, text=self._seen.text, reasoning=self._seen.reasoning)
        return finish


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
        self._closed_until: float | None = None

    async def aclose(self) -> None:
        """Close the inner model."""
        await self._inner.aclose()

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        """Yield what comes and one `Finish` for all tries; a `Reset` voids the deltas before it."""
        asked = _Request(self._clock.monotonic() + self._limits.all_max_s)
        while True:
            finish, visible = await self._rest(asked.ends_s), False
            if finish is None:
                finish = Finish(reason="incomplete", error="The stream stopped without a finish.")
                numbered = msgspec.structs.replace(request, number=request.number + asked.retries)
                async with aclosing(self._inner.stream(numbered)) as pieces:
                    async for piece in pieces:
                        if isinstance(piece, Finish):
                            finish = piece
                            break
                        visible = visible or (isinstance(piece, Delta) and bool(piece.text))
                        yield asked.spent(piece.usage) if isinstance(piece, Spent) else piece
            wait_s = None if visible and asked.was_reset else self._wait_s(finish, asked)
            if wait_s is None:
                yield asked.ended(finish)
                return
            asked.fail(finish, visible=visible)
            if visible:
                asked.was_reset = True
                yield Reset(attempt=asked.retries + 1)
            await self._clock.sleep(wait_s)
            yield asked.spent()

    async def _rest(self, ends_s: float) -> Finish | None:
        """Wait while the provider asked this connection to, or say that this takes longer than the request may.

        Whoever waited comes back at a moment of its own.
        """
        while self._closed_until is not None and (left_s := self._closed_until - self._clock.monotonic()) > 0:
            if self._closed_until > ends_s:
                error = f"The provider limits the rate and asks for {left_s:g} s more rest than the request can wait."
                return Finish(reason="error", error=error, status=RATE_LIMITED, cause="lasting")
            await self._clock.sleep(left_s + self._limits.scatter_s * self._chance())
        return None

    def _wait_s(self, finish: Finish, asked: _Request) -> float | None:
        """Return how long to wait before the next try, or null when there is none."""
        limits, rest_s = self._limits, finish.retry_after_s
        patient = rest_s is not None or finish.status == RATE_LIMITED
        tries_max = limits.patient_tries_max if patient else limits.tries_max
        if not _is_passing(finish) or asked.retries + 1 >= tries_max:
            return None
        now_s = self._clock.monotonic()
        wait_s = min(limits.first_s * 2**asked.retries, limits.longest_s) * (0.5 + self._chance())
        if rest_s is not None:
            if rest_s > limits.asked_max_s:
                return None
            self._closed_until = max(self._closed_until or now_s, now_s + rest_s)
            wait_s = max(wait_s, rest_s + limits.scatter_s * self._chance())
        return wait_s if now_s + wait_s <= asked.ends_s else None


def _is_passing(finish: Finish) -> bool:
    """Return whether the same request may well be answered a little later."""
    if finish.cause is not None:
        return finish.cause == "timeout"
    if finish.reason == "incomplete":
        return True
    return finish.reason == "error" and (finish.status is None or finish.status in RETRYABLE)
