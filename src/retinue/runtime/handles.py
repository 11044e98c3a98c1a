"""What Python code holds: a session, a turn, a child; each is a view on the record and keeps no truth of its own."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Final, Literal

import msgspec

from retinue.core.errors import RetinueError
from retinue.core.events import Event, TurnClosed, Usage
from retinue.core.ids import SessionId
from retinue.core.run import Run, unstored
from retinue.ports import Live
from retinue.runtime.delegate import SpawnRequest
from retinue.runtime.kernel import Kernel
from retinue.runtime.work import CURRENT_CALL, Work


class TurnResult(msgspec.Struct, frozen=True, kw_only=True):
    """How a turn ended. `text` is null unless it completed; `usage_tree` adds all descendants.

    `stored` is false when the ending could not be written; `text` then holds what was finished in memory.
    """

    status: str
    reason: str
    text: str | None
    partial: str | None
    usage: Usage
    usage_tree: Usage = Usage()
    detail: str = ""
    stored: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return it as builtins, every key present."""
        body: dict[str, Any] = msgspec.to_builtins(self)
        return body


class Turn:
    """A turn of a root session: iterate it for the events of its whole tree, await `result` for how it ended."""

    def __init__(self, kernel: Kernel, session_id: SessionId, text: str, *, deltas: bool) -> None:
        """Start at once; made by `Session.prompt`."""
        self.session_id: Final = session_id
        self._kernel = kernel
        self._feed = kernel.bus.subscribe(session_id, deltas=deltas, after=kernel.journal.position)
        self._work: Work | None = None
        self._begun = asyncio.Event()
        self._task = kernel.supervisor.begin(self._live(text))

    async def _live(self, text: str) -> TurnResult:
        try:
            self._work = work = await self._kernel.prompt(self.session_id, text)
            self._begun.set()
            await work.done.wait()
        finally:
            self._begun.set()
            self._feed.close()
        return _result(work)

    @property
    def result(self) -> "asyncio.Future[TurnResult]":
        """Await it for the ending, any number of times; cancelling the wait stops nothing.

        Raises `turn_open`, `not_found` or `invalid` when the turn could not be opened.
        """
        waiter: asyncio.Future[TurnResult] = asyncio.get_running_loop().create_future()
        self._task.add_done_callback(lambda done: _copy(done, waiter))
        return waiter

    async def interrupt(self) -> bool:
        """Stop the turn and its children; return, once it is closed, whether there was one to stop."""
        await self._begun.wait()
        # Only this turn: one that never opened, or is over, must not stop another turn of the session.
        if self._work is None or self._kernel.supervisor.works.get(self.session_id) is not self._work:
            return False
        return await self._kernel.interrupt(self.session_id)

    async def __aiter__(self) -> AsyncIterator[Event | Live]:
        """Yield the stored events of the tree in order, each once, until the turn is over; leaving stops nothing.

        Raises what `result` raises when the turn could not be opened.
        """
        async for item in self._feed:
            yield item
        # A turn that could not be opened has no events: what refused it is raised here.
        await self.result


def _result(work: Work) -> TurnResult:
    closed = work.closed
    if isinstance(closed, TurnClosed):
        return TurnResult(
            status=closed.status,
            reason=closed.reason,
            text=closed.text,
            partial=closed.partial,
            usage=closed.usage,
            usage_tree=closed.usage_tree,
            detail=closed.detail,
        )
    detail = work.error.detail if work.error is not None else "The turn's ending is not on record."
    return TurnResult(
        status="failed",
        reason="store_failed",
        text=work.finished_text,
        partial=None if work.finished_text else work.said or None,
        usage=Usage(),
        detail=detail,
        stored=False,
    )


def _copy(done: "asyncio.Task[Any]", waiter: "asyncio.Future[Any]") -> None:
    if waiter.done():
        return
    if done.cancelled():
        waiter.cancel()
    elif (error := done.exception()) is not None:
        waiter.set_exception(error)
    else:
        waiter.set_result(done.result())


class Session:
    """A root session."""

    def __init__(self, kernel: Kernel, session_id: SessionId) -> None:
        """Made by `Runtime.create_session` and `Runtime.session`."""
        self.session_id: Final = session_id
        self._kernel = kernel

    def prompt(self, text: str, *, deltas: bool = False) -> Turn:
        """Start a turn at once and return it; with `deltas` its iteration also yields the text as it streams."""
        return Turn(self._kernel, self.session_id, text, deltas=deltas)

    async def steer(self, text: str) -> None:
        """Say something into the open turn, shown at the next step; raise `already_ended` without an open turn."""
        await self._kernel.steer(self.session_id, text)


class Child:
    """A one-shot child: await `result`, then `dispose`; or use it as an async context manager."""

    def __init__(self, kernel: Kernel, run: Run) -> None:
        """Made by `Subagents.start`."""
        self.run_id: Final = run.run_id
        self.session_id: Final = run.session_id
        self._parent_id = run.parent_id
        self._kernel = kernel
        self._task = kernel.supervisor.begin(self._settled())

    async def _settled(self) -> Run:
        work = self._kernel.supervisor.works.get(self.session_id)
        try:
            await self._kernel.scheduler.ended([self.run_id])
            return await self._kernel.scheduler.run(self.run_id)
        except RetinueError as error:
            held = self._kernel.journal.state.runs.get(self.run_id)
            if error.code != "store_failed" or held is None:
                raise
            if work is not None:
                await work.done.wait()
            return unstored(held, "" if work is None else work.said, error.detail)

    @property
    def result(self) -> "asyncio.Future[Run]":
        """Await it for the settlement, any number of times; cancelling the wait does not touch the child.

        A child's own failure resolves with a reason. After the store failed it resolves with what the child had said,
        `failed/store_failed` and `stored` false.
        """
        waiter: asyncio.Future[Run] = asyncio.get_running_loop().create_future()
        self._task.add_done_callback(lambda done: _copy(done, waiter))
        held = CURRENT_CALL.get()
        if held is not None and held[0].session_id == self._parent_id:
            self._kernel.supervisor.begin(self._wait_in_call(held, waiter))
        return waiter

    async def _wait_in_call(self, held: tuple[Work, Any], waiter: "asyncio.Future[Run]") -> None:
        """A tool that awaits its child only waits: its run gives its slot up meanwhile."""
        work, call_id = held
        async with self._kernel.scheduler.waiting(work, call_id):
            await asyncio.wait((waiter,))

    async def dispose(self) -> None:
        """Cancel what is left, wait until it is quiet, release it; idempotent."""
        if not self._task.done():
            await self._kernel.scheduler.cancel(self.run_id)

    async def __aenter__(self) -> "Child":
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Dispose of it."""
        await self.dispose()


class Subagents:
    """Starts children from Python."""

    def __init__(self, kernel: Kernel) -> None:
        """Made by the runtime."""
        self._kernel = kernel

    async def start(self, provider: Literal["spawn"], *, parent: Session | SessionId, **asked: Any) -> Child:
        """Start a child and return its handle once it is published; parameters are those of `spawn_agent`.

        Cancelling the caller before this returns undoes it. Raises the refusals of `spawn_agent`: `depth_exceeded`,
        `cap_running`, `cap_created`, `unknown_agent`, `unknown_model`, `unknown_tool`, `unsupported`, `invalid`.
        """
        if provider != "spawn":
            raise RetinueError("unsupported", f"There is no provider {provider!r} in this version.", "Use 'spawn'.")
        parent_id = parent.session_id if isinstance(parent, Session) else parent
        request = _request(asked)
        await self._kernel.load(parent_id)
        command = await self._kernel.delegation.prepare(parent_id, request, delivery="handle", call_id=None)
        await self._kernel.load(parent_id)
        scheduler = self._kernel.scheduler
        return Child(self._kernel, await scheduler.published(command, scheduler.accept(command)))


def _request(asked: Mapping[str, Any]) -> SpawnRequest:
    try:
        return msgspec.convert(dict(asked), SpawnRequest)
    except msgspec.ValidationError as error:
        raise RetinueError("invalid", f"The child cannot be started like that: {error}.", "") from error
