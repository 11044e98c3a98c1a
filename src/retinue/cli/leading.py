"""Stays with a tree while it works: what shows it, what signals mean for it, when that is over; it begins no turn."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from retinue.app import Runtime
from retinue.cli.showing import Show
from retinue.cli.stops import Stops
from retinue.cli.streams import UnwrittenError
from retinue.core.decide.base import Ending
from retinue.core.events import Event, TurnClosed
from retinue.core.ids import SessionId
from retinue.runtime.bus import Subscription
from retinue.runtime.kernel import Kernel

SHUTDOWN_MAX_S: Final = 4.5
"""Seconds after SIGTERM at which the process ends, whatever is still open (SHAPES: within 5 s)."""
COMMIT_MAX_S: Final = 2.0
"""Seconds that a second SIGINT waits for the commit in hand."""
LEFTOVER_MAX_S: Final = 0.4
"""Seconds that bodies which were given up have once all else is over."""
OUTPUT_MAX_S: Final = 1.0
"""Seconds that a reader has to take the rest of the output once the process was told to end."""
INTERRUPTED: Final = 3
"""Exit code of what somebody stopped."""
STOPPED: Final = Ending(
    status="cancelled",
    reason="parent_cancelled",  # its letter starts no turn: whoever stops a tree wants no more of it
    detail="The command that worked on its session was interrupted.",
    whole=True,
)

_OUTPUT: Final = (BrokenPipeError, UnwrittenError)
"""What showing may raise without the work being the worse for it."""

T = TypeVar("T")


def leave_nothing_behind(code: int) -> None:
    """Let no body that ignores its cancellation keep the loop from ending: everything is on record by now."""
    asyncio.get_running_loop().call_later(LEFTOVER_MAX_S, os._exit, code)


class Leading:
    """A tree at work under this command; the signals are its own from `lead` on.

    Attributes:
        kernel: the runtime's parts.
        root_id: the session that the tree hangs on.
        down: done when everything was stopped because the process was told to end.
        answer: what the root's last turn said that completed under this command; null before one has.
        unwritten: what kept the output from being written, where something did.
    """

    def __init__(self, runtime: Runtime, root_id: SessionId, feed: Subscription, show: Show) -> None:
        """Show nothing yet."""
        self.kernel: Final[Kernel] = runtime.kernel
        self.root_id: Final = root_id
        self.answer: str | None = None
        self.unwritten: UnwrittenError | None = None
        self._feed = feed
        self._show = show
        loop = asyncio.get_running_loop()
        self._enough: asyncio.Future[None] = loop.create_future()
        self.down: Final[asyncio.Future[None]] = loop.create_future()
        self._over: asyncio.Future[Any] = loop.create_future()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def lead(
        self, stops: Stops, work: Coroutine[Any, Any, T], end: Callable[[T], Awaitable[None]], *, one_turn: bool = False
    ) -> T:
        """Wait for the work and for its readers; `end` shows what came of it, after the last event.

        With `one_turn` the first end of a turn of the root is the last event that is shown.
        """
        over = self.begin(work)
        self._over = over
        stops.on_interrupt, stops.on_hurry, stops.on_shutdown = self.interrupt, self.hurry, self.shut_down
        shown = self.begin(self._show_all(over, end, one_turn=one_turn))
        shown.add_done_callback(self._shown)
        await asyncio.wait((over, self._enough), return_when=asyncio.FIRST_COMPLETED)
        self._feed.close()
        if not over.done():
            await self._leave_now()
        await asyncio.wait((shown, self._enough), return_when=asyncio.FIRST_COMPLETED)
        self._show.stop()
        if shown.done() and (error := shown.exception()) is not None and not isinstance(error, _OUTPUT):
            raise error
        return await over

    def begin(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Start something that this command does beside the runtime."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # Whoever wants its error asks for it; what was stopped too late needs no warning.
            task.exception()

    async def _show_all(self, over: "asyncio.Task[T]", end: Callable[[T], Awaitable[None]], *, one_turn: bool) -> None:
        await self._show.begin()
        async for item in self._feed:
            if isinstance(item, Event) and item.root_id != self.root_id:
                continue
            await self._show.item(item)
            if self._closes_a_turn(item) and one_turn:
                break
        await end(await asyncio.shield(over))

    def _closes_a_turn(self, item: object) -> bool:
        """Return whether a turn of the root is over, and keep what it said."""
        if not isinstance(item, Event) or item.session_id != self.root_id or not isinstance(item.fact, TurnClosed):
            return False
        if item.fact.status == "completed":
            self.answer = item.fact.text or ""
        return True

    async def rests(self) -> None:
        """Return once nothing of the tree works or will begin to, or all was shut down; raise `store_failed`."""
        rest = self.begin(self.kernel.tree_rests(self.root_id))
        await asyncio.wait((rest, self.down), return_when=asyncio.FIRST_COMPLETED)
        if rest.done():
            rest.result()
        else:
            rest.cancel()
        await self.kernel.journal.flushed()

    def interrupt(self) -> None:
        """What the first SIGINT means: stop the root's turn, or where none is open whatever still runs."""
        if self._over.done():
            self._stop_waiting()
        else:
            self.begin(self.stop_tree())

    async def stop_tree(self) -> None:
        """Stop the root's open turn; where there is none, cancel every open run of the tree."""
        if not await self.kernel.interrupt(self.root_id):
            await self.kernel.trees.drain([self.root_id], STOPPED)

    def hurry(self) -> None:
        """What the second SIGINT means: leave after the commit in hand."""
        self.begin(self._after_the_commit())

    async def _after_the_commit(self) -> None:
        flushed = self.begin(self.kernel.journal.flushed())
        await asyncio.wait((flushed,), timeout=COMMIT_MAX_S)
        self._stop_waiting()

    def shut_down(self) -> None:
        """What SIGTERM and SIGHUP mean: end everything in order, and in time."""
        loop = asyncio.get_running_loop()
        if self._over.done():
            loop.call_later(OUTPUT_MAX_S, self._stop_waiting)
            return
        self.begin(self._all_down())
        loop.call_later(SHUTDOWN_MAX_S, self._stop_waiting)

    async def _all_down(self) -> None:
        await self.kernel.supervisor.shutdown()
        if not self.down.done():
            self.down.set_result(None)

    def _shown(self, shown: "asyncio.Task[None]") -> None:
        error = None if shown.cancelled() else shown.exception()
        if isinstance(error, UnwrittenError):
            # The work goes on: the record takes what the output does not.
            self.unwritten = error
            self._feed.close()
        elif error is not None and not self._over.done():
            # Nobody reads any more: that ends the process like a SIGTERM, only nobody is in a hurry.
            self.begin(self._all_down())

    def _stop_waiting(self) -> None:
        if not self._enough.done():
            self._enough.set_result(None)

    async def _leave_now(self) -> None:
        """End the process with turns open: every commit is whole, and the next start closes what is left."""
        giving_back = asyncio.get_running_loop().run_in_executor(None, self._show.stop)
        await asyncio.wait((giving_back,), timeout=0.2)
        os._exit(INTERRUPTED)
