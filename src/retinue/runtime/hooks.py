"""Asks and tells hooks: in order, each within its time, a failed one as `hooks.on_failure` says; it changes no call.

Who decides is asked before anything happens. Who only observes has a queue and a task of its own and holds nothing up
(CONTRACT section 7).
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from retinue.core.decide.turns import Note, decide_note
from retinue.core.errors import RetinueError
from retinue.core.events import HookFailed, SessionOpened
from retinue.core.ids import SessionId
from retinue.core.session import Session
from retinue.core.text import clean, fit_chars
from retinue.ports import DECIDING, Deny, Executor, Hook, HookEvent, HookPoint, StoreError
from retinue.runtime.journal import Journal
from retinue.runtime.record import Record
from retinue.runtime.recovery import load_session
from retinue.runtime.supervisor import Supervisor

UNTOLD_MAX: Final = 1000
"""Events that wait for one observer; what comes when so many wait is not told, and a record says so."""
REASON_MAX_CHARS: Final = 2_000
CUT_MARK: Final = " …[cut]"
DENIALS_MAX: Final = 3
"""How often in a row stop hooks may keep a turn from ending."""
BLOCKED_S: Final = 0.5
"""Seconds by which a loop may be late without anybody having blocked it."""
THREADS_MAX: Final = 4
"""Blocking hooks at work at once: one that never comes back keeps its thread, and the store needs some, too."""


class HookError(Exception):
    """A hook that did not answer; `code` says how it failed."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


class _Matter(NamedTuple):
    """What hooks are asked about or told."""

    point: HookPoint
    session_id: SessionId
    data: Mapping[str, Any]


class _Observer:
    """A hook with what it has not been told yet."""

    def __init__(self, hook: Hook) -> None:
        self.hook = hook
        self.untold: deque[_Matter] = deque()
        self.teller: asyncio.Task[None] | None = None
        self.is_behind = False
        """Whether something was not told to it since it last had heard everything."""


class Hooks:
    """All hooks of a runtime, in the order they were given."""

    def __init__(
        self, journal: Journal, record: Record, supervisor: Supervisor, executor: Executor, hooks: Sequence[Hook]
    ) -> None:
        """Wire it."""
        self._journal = journal
        self._record = record
        self._supervisor = supervisor
        self._executor = executor
        self._by_point: dict[str, list[_Observer]] = {}
        self._observers = [_Observer(hook) for hook in hooks]
        self._threads = asyncio.Semaphore(THREADS_MAX)
        self._asked: dict[asyncio.Task[str | None], None] = {}
        self._closing = False
        self._ended = False
        for observer in self._observers:
            for point in observer.hook.points:
                self._by_point.setdefault(point, []).append(observer)

    def wants(self, point: HookPoint) -> bool:
        """Return whether any hook stands at a point."""
        return point in self._by_point

    async def denied(self, point: HookPoint, session: Session, data: Mapping[str, Any]) -> str | None:
        """Ask whether something may happen; return why not, null when it may. The first no ends the asking.

        A hook that fails means what `hooks.on_failure` says; at `agent.turn.stop` it lets the turn end.
        """
        matter = _Matter(point, session.session_id, data)
        for one in self._by_point.get(point, ()):
            try:
                reason = await self._ask(one.hook, matter, session.header)
            except HookError as failed:
                reason = await self._failed(one.hook, matter, failed)
            if reason is not None:
                return reason
        return None

    async def _failed(self, hook: Hook, matter: _Matter, failed: HookError) -> str | None:
        # A session that was idle may have left memory while the hook was asked; without one nothing is allowed.
        here = await load_session(self._journal, self._record, matter.session_id)
        session = self._journal.state.sessions[matter.session_id] if here else None
        policy = None if session is None else self._journal.state.policy(session.header.root_id)
        denies = policy is None or policy["hooks.on_failure"] == "deny"
        if matter.point == "agent.turn.stop":
            self._note(hook, matter, failed, "The turn may end.")
            return None
        if not denies:
            self._note(hook, matter, failed, "It was passed over (hooks.on_failure).")
            return None
        self._note(hook, matter, failed, "It counts as a no (hooks.on_failure).")
        return f"The hook {hook.name} failed ({failed.code}), which counts as a no here."

    def observe(self, point: HookPoint, session_id: SessionId, data: Mapping[str, Any]) -> None:
        """Tell what is on record; it returns at once, and each observer hears of it in order."""
        if self._closing:
            return
        matter = _Matter(point, session_id, data)
        for observer in self._by_point.get(point, ()):
            if len(observer.untold) < UNTOLD_MAX:
                observer.untold.append(matter)
                if observer.teller is None or observer.teller.done():
                    observer.teller = self._supervisor.begin(self._tell(observer))
            elif not observer.is_behind:
                observer.is_behind = True
                full = HookError("overflow", f"{UNTOLD_MAX} events wait for it already.")
                self._supervisor.begin(self._record_of(observer.hook, matter, full, "It misses what comes until then."))

    async def _tell(self, observer: _Observer) -> None:
        while observer.untold:
            matter = observer.untold.popleft()
            try:
                header = await self._header(matter.session_id)
                if header is not None:  # else its session was deleted meanwhile
                    await self._ask(observer.hook, matter, header)
            except HookError as failed:
                await self._record_of(observer.hook, matter, failed, "It only observes: nothing was stopped.")
        observer.is_behind = False

    async def _header(self, session_id: SessionId) -> SessionOpened | None:
        session = self._journal.state.sessions.get(session_id)
        if session is not None:
            return session.header
        try:
            row = await self._record.session(session_id)
        except StoreError as error:
            raise HookError("error", f"The session could not be read: {error}") from error
        return None if row is None else row.header

    async def _record_of(self, hook: Hook, matter: _Matter, failed: HookError, meant: str) -> None:
        """Put an observer's failure on record, where that is still possible."""
        try:
            if await load_session(self._journal, self._record, matter.session_id):
                self._note(hook, matter, failed, meant)
        except (RetinueError, StoreError):
            return  # nothing can be written any more; nobody waits for an observer

    async def told(self, within_s: float) -> None:
        """Give observers time to hear what has happened, then end what is asked and told; the runtime closes."""
        self._closing = True
        tellers = [one.teller for one in self._observers if one.teller is not None and not one.teller.done()]
        if tellers:
            await asyncio.wait(tellers, timeout=within_s)
        for observer in self._observers:
            observer.untold.clear()
        self._ended = True
        # Who is asked on behalf of a program, outside every turn; told twice, because a first word may be ignored.
        for _ in range(2):
            late = [task for task in (*tellers, *self._asked) if not task.done()]
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=within_s / 2)

    async def _ask(self, hook: Hook, matter: _Matter, header: SessionOpened) -> str | None:
        task = self._supervisor.begin(self._call(hook, matter, header))
        self._asked[task] = None
        late = gone = True
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + hook.timeout_s
        try:
            await asyncio.wait((task,), timeout=hook.timeout_s)
            # One that blocked the loop is done by the time anybody could look.
            late = not task.done() or loop.time() > ends_at + BLOCKED_S
        finally:
            if not task.done():
                gone = await self._supervisor.put_away(matter.session_id, task, f"The hook {hook.name}")
            del self._asked[task]
        if late:
            left = "" if gone else " It did not stop when told and was left behind."
            raise HookError("timeout", f"It did not answer within {hook.timeout_s:g} s.{left}")
        return self._answer(task)

    def _answer(self, task: "asyncio.Task[str | None]") -> str | None:
        if task.cancelled():
            if self._ended:
                raise RetinueError("stopping", "The runtime is shutting down.", "Start it again.")
            raise HookError("error", "It was cancelled.")
        error = task.exception()
        if error is None:
            return task.result()
        raise error if isinstance(error, HookError) else HookError("error", _said(error)) from error

    async def _call(self, hook: Hook, matter: _Matter, header: SessionOpened) -> str | None:
        try:
            # Each hook has an event of its own: what one changes in it, the next does not see.
            answer = await hook.call(_event(matter, header), self._offload)
        except SystemExit as error:
            if type(error) is not SystemExit:
                raise
            raise HookError("error", f"It tried to end the process with {error.code!r}.") from error
        if answer is None or matter.point not in DECIDING:
            return None
        reason: object = answer.reason if isinstance(answer, Deny) else None
        if isinstance(reason, str):
            return _cut(reason.strip(), REASON_MAX_CHARS) or f"The hook {hook.name} gave no reason."
        raise HookError("unreadable", f"It answered with {type(answer).__name__}, not with null or Deny(reason).")

    async def _offload(self, call: Callable[..., Any], *args: Any) -> Any:
        """Run a blocking call of a hook off the loop; a thread that outlives its hook keeps its place."""
        await self._threads.acquire()
        thread = self._supervisor.begin(self._executor.run(_kept, call, args))
        thread.add_done_callback(lambda _: self._threads.release())
        await asyncio.wait((thread,))
        value, error = thread.result()
        if error is None:
            return value
        if isinstance(error, KeyboardInterrupt):
            # From a thread it is not the person's Ctrl-C, and must not end the loop as that does.
            raise HookError("error", _said(error)) from error
        raise error

    def _note(self, hook: Hook, matter: _Matter, failed: HookError, meant: str) -> None:
        if self._journal.error is None:
            detail = f"{_cut(failed.detail, REASON_MAX_CHARS)} {meant}"
            fact = HookFailed(hook=hook.name, code=failed.code, detail=detail)
            self._journal.submit(decide_note, Note(session_id=matter.session_id, fact=fact))


def _event(matter: _Matter, header: SessionOpened) -> HookEvent:
    return HookEvent(
        point=matter.point,
        session_id=matter.session_id,
        root_id=header.root_id,
        depth=header.depth,
        agent=header.agent,
        cwd=header.cwd,
        data=msgspec.to_builtins(dict(matter.data)),
    )


def _kept(call: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, BaseException | None]:
    """Return what a call returned or raised: some exceptions may not leave a thread, or a task, by themselves."""
    try:
        return call(*args), None
    except BaseException as error:  # noqa: BLE001 - a hook may raise anything; whoever asked it decides
        return None, error


def _said(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}."
    except Exception:  # noqa: BLE001 - the words of an exception are foreign code, too
        return f"{type(error).__name__}."


def _cut(text: str, chars_max: int) -> str:
    shown, cut = fit_chars(clean(text), chars_max)
    return shown + CUT_MARK if cut else shown
