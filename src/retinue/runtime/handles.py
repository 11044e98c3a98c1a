"""What Python code holds: a session, a turn, a child; each is a view on the record and keeps no truth of its own."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final

import msgspec

from retinue.core.errors import RetinueError
from retinue.core.events import Event, TurnClosed, Usage
from retinue.core.ids import RunId, SessionId
from retinue.core.run import Run, unstored
from retinue.ports import Live, ToolContext
from retinue.runtime.delegate import SpawnRequest, Way
from retinue.runtime.kernel import Kernel
from retinue.runtime.providers import Providers
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
        self._disposed = False
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
        """Cancel what is left, wait until it is quiet, release it; idempotent.

        Under `life.one_shot_sessions=delete` the child's log goes with it; its Run and output stay with the parent.
        """
        kernel = self._kernel
        if not self._task.done():
            await kernel.scheduler.cancel(self.run_id)
        if self._disposed:
            return
        self._disposed = True
        await kernel.release(self.session_id)

    async def __aenter__(self) -> "Child":
        """Return itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Dispose of it."""
        await self.dispose()


class Kid(msgspec.Struct, frozen=True, kw_only=True):
    """A continuable child as it was accepted: its session, its first run, and whether that one runs or is queued."""

    session_id: SessionId
    run_id: RunId
    status: str


class Subagents:
    """Starts, continues and stops children from Python."""

    def __init__(self, kernel: Kernel) -> None:
        """Made by the runtime."""
        self._kernel = kernel

    @property
    def providers(self) -> Providers:
        """How a child can begin: `spawn`, `fork`, and what is added."""
        return self._kernel.delegation.providers

    def reserve(self) -> SessionId:
        """Return a fresh session id for `session_id`; it works once."""
        return SessionId(self._kernel.parts.ids.new("s"))

    async def start(
        self, provider: str, *, parent: Session | SessionId, session_id: SessionId | None = None, **asked: Any
    ) -> Child:
        """Start a one-shot child and return its handle once it is published; parameters are those of `spawn_agent`.

        Cancelling the caller before this returns undoes it. Raises the refusals of `spawn_agent`: `depth_exceeded`,
        `cap_running`, `cap_created`, `unknown_agent`, `unknown_model`, `unknown_tool`, `unsupported`, `invalid`,
        `switched_off`, `budget_exceeded`, `denied_hook`, `denied`, `stopping`.
        """
        if asked.get("continuable"):
            raise RetinueError("invalid", "start makes one-shot children.", "Use start_continuable.")
        asked["continuable"] = False
        way = Way(delivery="handle", provider=provider, session_id=session_id)
        return Child(self._kernel, await self._start(way, parent, asked))

    async def start_continuable(
        self, provider: str, *, parent: Session | SessionId, session_id: SessionId | None = None, **asked: Any
    ) -> Kid:
        """Start a child that messages can continue; return its ids once it is accepted, before its turn opens.

        Each of its results goes to the parent as a letter. It refuses what `start` refuses, and `not_continuable`
        where `life.continuation` is `none`.
        """
        way = Way(delivery="letter", provider=provider, session_id=session_id)
        run = await self._start(way, parent, {**asked, "continuable": True})
        return Kid(session_id=run.session_id, run_id=run.run_id, status=run.status)

    async def _start(self, way: Way, parent: Session | SessionId, asked: Mapping[str, Any]) -> Run:
        parent_id = _id_of(parent)
        request = _request(asked)
        if way.session_id is not None:
            await self._require_fresh(way.session_id)
        await self._kernel.load(parent_id)
        command = await self._kernel.delegation.prepare(parent_id, request, way)
        await self._kernel.load(parent_id)
        scheduler = self._kernel.scheduler
        return await scheduler.published(command, scheduler.accept(command))

    async def _require_fresh(self, session_id: SessionId) -> None:
        known = await self._kernel.record.session(session_id) or await self._kernel.scheduler.latest(session_id)
        if known is not None or not session_id.startswith("s_"):
            raise RetinueError("invalid", f"The session id {session_id} is taken or no session id.", "Reserve one.")

    async def followup(self, parent: Session | SessionId, session_id: str, message: str) -> Run:
        """Send a further instruction to a child and return the run that was queued, once it is durable.

        The child works on it after what it does now, also when it had ended or the process was restarted. Under the
        scope `tree` a session with an open turn absorbs it as a letter; then its present run is returned. Raises
        `not_found`, `not_continuable`, `cap_rounds`, `cap_messages`, `cap_running`, `switched_off`,
        `budget_exceeded`, `stopping`.
        """
        await self._kernel.load(_id_of(parent))
        sent = await self._kernel.letters.send(session_id, message, sender=_id_of(parent))
        if sent.run is None:
            raise RetinueError("not_continuable", f"{session_id} is the main session; it has no runs.", "Prompt it.")
        return sent.run

    def interrupt(self, session_id: str, *, authority: Session | SessionId) -> "asyncio.Future[bool]":
        """Stop a child's current run only, on behalf of an ancestor; messages that wait for it are set aside.

        Await the returned future for whether there was one to stop, once it has ended; it raises `not_found` for an
        unknown or foreign session.
        """
        return self._kernel.supervisor.begin(self._interrupt(session_id, _id_of(authority)))

    async def _interrupt(self, session_id: str, owner: SessionId) -> bool:
        _, note = await self._kernel.scheduler.interrupt(session_id, owner)
        return note is None

    async def report_from(self, child: SessionId | ToolContext, message: str, *, wake: bool = True) -> str:
        """Send a child's report to its direct parent, from inside the child; return the letter's id once durable.

        A tool's context stands for the child as long as its call is open (`already_ended` afterwards).
        """
        if isinstance(child, str):
            return await self._kernel.letters.report(child, message, waking=wake)
        session = self._kernel.journal.state.sessions.get(child.session_id)
        if session is None or child.call_id not in session.open_calls:
            raise RetinueError("already_ended", f"The call {child.call_id} has ended.", "Report while it runs.")
        return await self._kernel.letters.report(child.session_id, message, waking=wake)

    async def drain(
        self,
        *,
        below: Sequence[Session | SessionId] | None = None,
        children: Sequence[str] | None = None,
        parent: Session | SessionId | None = None,
    ) -> None:
        """End children and return once they are quiet: all, those `below` some sessions, or some of one `parent`.

        Meanwhile nothing is admitted there; what was admitted before ends `cancelled` and stays listed. Raises
        `not_found` for an unknown session and for a child that is not the parent's.
        """
        if children is not None:
            if parent is None:
                raise RetinueError("invalid", "Draining selected children needs their parent.", "Name it.")
            await self._kernel.trees.release(_id_of(parent), [SessionId(child) for child in children])
            return
        tops = None if below is None else [_id_of(session) for session in below]
        for session_id in tops or ():
            await self._kernel.load(session_id)
        await self._kernel.trees.drain(tops)


def _id_of(session: Session | SessionId) -> SessionId:
    return session.session_id if isinstance(session, Session) else session


def _request(asked: Mapping[str, Any]) -> SpawnRequest:
    try:
        return msgspec.convert(dict(asked), SpawnRequest)
    except msgspec.ValidationError as error:
        raise RetinueError("invalid", f"The child cannot be started like that: {error}.", "") from error
