"""The calls of one assistant message: prepare, execute, finalize; refused and executed calls leave by the same door.

Calls run side by side up to `step.parallel_tools_max`; an exclusive one is a barrier for its own session only. A call
that waits for children takes no place.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, ParamSpec, TypeVar

import msgspec

from retinue.core.decide.base import Decision, call_output_id
from retinue.core.errors import RetinueError
from retinue.core.events import AnyFact, StoredOutput, ToolCall, ToolFinished, ToolStarted
from retinue.core.ids import CallId, SessionId
from retinue.core.session import Session
from retinue.core.text import clean, fit_chars
from retinue.ports import Executor, Tool, ToolResult
from retinue.runtime.hooks import Hooks
from retinue.runtime.journal import Journal
from retinue.runtime.scheduler import Scheduler
from retinue.runtime.supervisor import Supervisor
from retinue.runtime.toolset import Toolset
from retinue.runtime.work import CURRENT_CALL, Work

P = ParamSpec("P")
T = TypeVar("T")

RESULT_MAX_CHARS: Final = 48_000
"""Characters of a whole tool result in a request (CONTRACT section 10)."""
IN_A_ROW_MAX: Final = 4
"""The same call, or unusable calls, this often in a row end the turn; one before gets a hint (CONTRACT section 4)."""
ECHO_MAX_CHARS: Final = 200
"""Characters of unusable arguments that an error repeats."""


class Prepared(msgspec.Struct):
    """A call that may run."""

    call: ToolCall
    tool: Tool


class CallContext:
    """What a tool may know of its call (`ports.ToolContext`)."""

    def __init__(self, work: Work, call_id: CallId, place: tuple[str, str], executor: Executor) -> None:
        """`place` is the working directory and the data directory, both absolute."""
        self.work: Final = work
        self.call_id: Final = call_id
        self.cwd, self.data_dir = place
        self._executor = executor

    @property
    def session_id(self) -> SessionId:
        """The calling session."""
        return self.work.session_id

    async def offload(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call off the loop."""
        return await self._executor.run(call, *args, **kwargs)


class Outside(msgspec.Struct, frozen=True):
    """What calls need from outside the runtime; `timeout_s` bounds each call in seconds, null is no bound."""

    executor: Executor
    data_dir: str
    timeout_s: float | None
    hooks: Hooks


class ToolCalls:
    """Answers the calls of a message."""

    def __init__(
        self, journal: Journal, scheduler: Scheduler, supervisor: Supervisor, tools: Toolset, outside: Outside
    ) -> None:
        """Wire it."""
        self._journal = journal
        self._scheduler = scheduler
        self._supervisor = supervisor
        self._tools = tools
        self._outside = outside

    async def run(self, work: Work, calls: Sequence[ToolCall]) -> None:
        """Answer every call; each answer is on record when its tool has ended."""
        prepared = [ready for call in calls if (ready := await self._prepare(work, call)) is not None]
        session = self._journal.state.sessions[work.session_id]
        policy = self._journal.state.policy(work.root_id)
        pool = asyncio.Semaphore(policy.number("step.parallel_tools_max") or max(1, len(prepared)))
        work.end()
        try:
            for group in _groups(prepared):
                await self._scheduler.slot(work)
                started: list[AnyFact] = [
                    ToolStarted(call_id=one.call.call_id, name=one.call.name, arguments=one.call.arguments)
                    for one in group
                ]
                await self._journal.append(work.session_id, started)
                work.begin(len(group))
                async with asyncio.TaskGroup() as tasks:
                    for one in group:
                        tasks.create_task(self._one(work, one, pool, session.header.cwd))
                if work.error is not None:
                    raise work.error
        finally:
            work.begin()

    async def _prepare(self, work: Work, call: ToolCall) -> Prepared | None:
        session = self._journal.state.sessions[work.session_id]
        try:
            state = self._journal.state
            tool = self._tools.find(call.name, session, state.policy(work.root_id), on=state.switch_on)
            _require_object(call)
            _require_fresh(session, call)
            await self._require_allowed(session, call)
        except RetinueError as refusal:
            self._answer(work, call.call_id, _refused(refusal))
            return None
        return Prepared(call, tool)

    async def _require_allowed(self, session: Session, call: ToolCall) -> None:
        """Ask the hooks; what they deny does not run (`denied_hook`)."""
        hooks = self._outside.hooks
        if not hooks.wants("agent.tool.before"):
            return
        data = {"call_id": call.call_id, "name": call.name, "arguments": call.arguments}
        reason = await hooks.denied("agent.tool.before", session, data)
        if reason is not None:
            raise RetinueError("denied_hook", f"A hook denied {call.name}: {reason}", "It did not run.")

    async def _one(self, work: Work, ready: Prepared, pool: asyncio.Semaphore, cwd: str) -> None:
        call_id = ready.call.call_id
        await pool.acquire()
        work.take_place(call_id, pool)
        work.tool = ready.call.name
        CURRENT_CALL.set((work, call_id))
        try:
            context = CallContext(work, call_id, (cwd, self._outside.data_dir), self._outside.executor)
            result = await self._execute(work, ready, context)
            self._answer(work, call_id, result)
        except RetinueError as error:
            # Only a failed store comes this far. Raised here it would cancel the other calls of the group.
            work.error = error
        finally:
            work.tool = ""
            work.leave_place(call_id)
            work.end()
            self._scheduler.rest(work)

    async def _execute(self, work: Work, ready: Prepared, context: CallContext) -> ToolResult:
        """Run a tool within its time; the agent tools bound their waits themselves."""
        if ready.tool.group in ("agents", "report"):
            return await _run(ready, context)
        task = self._supervisor.begin(_run(ready, context))
        try:
            await asyncio.wait((task,), timeout=self._outside.timeout_s)
        except asyncio.CancelledError:
            await self._put_away(work, ready, task)
            raise
        if task.done():
            return task.result()
        name, limit = ready.call.name, self._outside.timeout_s
        gone = await self._put_away(work, ready, task)
        left = "It was stopped." if gone else "It did not stop when told and may still have effects."
        return ToolResult(text=f"{name} took more than its {limit:g} s. {left}", outcome="error")

    async def _put_away(self, work: Work, ready: Prepared, task: "asyncio.Task[ToolResult]") -> bool:
        return await self._supervisor.put_away(work.session_id, task, f"The tool {ready.call.name}")

    def _hint(self, work: Work, call_id: CallId) -> str:
        turn = self._journal.state.sessions[work.session_id].turn
        if turn is None or turn.repeats.get(call_id, 0) != IN_A_ROW_MAX - 1:
            return ""
        return f"\n[You made this very call {IN_A_ROW_MAX - 1} times in a row; once more ends your turn.]"

    def _answer(self, work: Work, call_id: CallId, result: ToolResult) -> None:
        work.require_live()
        whole = clean(result.text)
        text, cut = fit_chars(whole, RESULT_MAX_CHARS)
        output_id = call_output_id(call_id) if cut else None
        if output_id is not None:
            shown = f"{RESULT_MAX_CHARS} of {len(whole)} characters"
            text += f'\n…[cut: {shown}; the whole text: read_agent_output with id "{output_id}"]'
        fact = ToolFinished(
            call_id=call_id,
            outcome=result.outcome,
            code=result.code,
            text=text + self._hint(work, call_id),
            cut=cut,
            output_id=output_id,
            run_id=result.run_id,
            collected=result.collected,
        )
        kept = () if output_id is None else (StoredOutput(output_id=output_id, session_id=work.session_id, text=whole),)
        self._journal.append(work.session_id, [fact], Decision(outputs=kept))


def _require_fresh(session: Session, call: ToolCall) -> None:
    if session.turn is not None and session.turn.repeats.get(call.call_id, 0) >= IN_A_ROW_MAX:
        raise RetinueError("denied", f"This very call was made {IN_A_ROW_MAX} times in a row.", "The turn ends here.")


def _require_object(call: ToolCall) -> None:
    if call.invalid is not None:
        echo = fit_chars(call.invalid, ECHO_MAX_CHARS)[0]
        detail = f"The arguments of {call.name} are not a JSON object: {echo}"
        raise RetinueError("invalid", detail, "Call it again with one JSON object.")


async def _run(ready: Prepared, context: CallContext) -> ToolResult:
    try:
        return await ready.tool.call(context, ready.call.arguments)
    except RetinueError as refusal:
        if refusal.code == "store_failed":
            raise
        return _refused(refusal)
    except asyncio.CancelledError:
        told = asyncio.current_task()
        if told is not None and told.cancelling():
            raise
        return _failed(ready, "something it waited for was cancelled")
    except SystemExit as error:
        if type(error) is not SystemExit:
            raise
        return _failed(ready, f"it tried to end the process with {error.code!r}")
    except BaseExceptionGroup as errors:
        why = f"{errors.message}: {'; '.join(repr(error) for error in errors.exceptions)}"
        return _failed_or_unreleased(ready, context.work, why)
    except Exception as error:  # noqa: BLE001 - a tool may raise anything; it harms its own call only
        return _failed_or_unreleased(ready, context.work, f"{type(error).__name__}: {error}")


def _failed_or_unreleased(ready: Prepared, work: Work, why: str) -> ToolResult:
    """Return a raising tool's result; one that raises once its turn is stopped could not put away what it held."""
    told = asyncio.current_task()
    if told is None or not told.cancelling():
        return _failed(ready, why)
    if work.stop is not None:
        work.unreleased = f"The tool {ready.call.name} failed to clean up: {why}."
    raise asyncio.CancelledError


def _failed(ready: Prepared, why: str) -> ToolResult:
    return ToolResult(text=f"{ready.call.name} failed: {why}.", outcome="error")


def _refused(refusal: RetinueError) -> ToolResult:
    return ToolResult(text=msgspec.json.encode(refusal.to_model()).decode(), outcome="refused", code=refusal.code)


def _groups(prepared: Sequence[Prepared]) -> list[list[Prepared]]:
    groups: list[list[Prepared]] = []
    for one in prepared:
        alone = one.tool.exclusive or not groups or groups[-1][0].tool.exclusive
        if alone:
            groups.append([one])
        else:
            groups[-1].append(one)
    return groups
