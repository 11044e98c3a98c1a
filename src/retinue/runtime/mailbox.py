"""The alarm: it wakes whoever waits on a session; it holds no letter, so losing every mailbox loses none.

Waits ask "is it so?", never "did something change?": a wake that comes twice, late or never is harmless.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from retinue.core.errors import RetinueError
from retinue.core.ids import RunId, SessionId

Key = SessionId | RunId
"""Whom an alarm is for: a session, or everybody who waits for the tokens of a root run."""
RECHECK_S: Final = 5.0
"""Seconds after which a wait looks again by itself, so that a lost wake costs time and never a result."""


class Mailboxes:
    """One alarm per session."""

    def __init__(self) -> None:
        """Begin with nobody waiting."""
        self._waiting: dict[Key, dict[asyncio.Future[None], None]] = {}
        self._error: RetinueError | None = None

    def wake(self, session_id: Key) -> None:
        """Make everybody who waits on this session look again."""
        for waiter in self._waiting.pop(session_id, {}):
            if not waiter.done():
                waiter.set_result(None)

    def fail(self, error: RetinueError) -> None:
        """End every wait, present and future, with this error."""
        self._error = error
        for session_id in list(self._waiting):
            self.wake(session_id)

    async def until(
        self, session_ids: Sequence[Key], is_so: Callable[[], bool], timeout_s: float | None = None
    ) -> bool:
        """Return True once `is_so`, False when `timeout_s` seconds passed first; raise `store_failed` if that came."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while not is_so():
            if self._error is not None:
                raise self._error
            left = RECHECK_S if deadline is None else deadline - loop.time()
            if left <= 0:
                return False
            await self._once(session_ids, min(left, RECHECK_S))
        return True

    async def _once(self, session_ids: Sequence[Key], timeout_s: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for session_id in session_ids:
            self._waiting.setdefault(session_id, {})[waiter] = None
        try:
            async with asyncio.timeout(timeout_s):
                await waiter
        except TimeoutError:
            pass
        finally:
            for session_id in session_ids:
                self._forget(session_id, waiter)

    def _forget(self, session_id: Key, waiter: "asyncio.Future[None]") -> None:
        others = self._waiting.get(session_id)
        if others is not None:
            others.pop(waiter, None)
            if not others:
                del self._waiting[session_id]
