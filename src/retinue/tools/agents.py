"""The tools with which a model delegates: spawn, list, wait, read, cancel; each parses and makes one call."""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from retinue.core.errors import RetinueError, not_found
from retinue.core.ids import OutputId, RunId
from retinue.core.run import Run
from retinue.ports import Tool, ToolContext, ToolResult, ToolSchema
from retinue.runtime.delegate import SpawnRequest
from retinue.runtime.kernel import Kernel
from retinue.runtime.scheduler import OutputSlice, cut_slice
from retinue.tools.schema import parse, tool_schema

OUTPUT_SLICE_MAX_CHARS: Final = 24_000
"""Characters of one answer of `read_agent_output`."""
WAIT_IDS_MAX: Final = 256
_SPAWN_ALIASES: Final = {"agentName": "name", "agent_name": "name"}
_ID_ALIASES: Final = {"sessionId": "id", "session_id": "id", "runId": "id", "run_id": "id"}


class ListParameters(msgspec.Struct, kw_only=True):
    """Which children to list."""

    scope: Literal["children", "descendants"] = "children"


class WaitParameters(msgspec.Struct, kw_only=True):
    """Whom to wait for, and how long."""

    ids: list[str] | None = None
    id: str | None = None
    mode: Literal["all", "any"] = "all"
    timeout_s: float | None = None
    timeout_ms: float | None = None


class ReadParameters(msgspec.Struct, kw_only=True):
    """Which output, and which slice of it."""

    id: str
    offset: int = 0
    limit: int = OUTPUT_SLICE_MAX_CHARS


class IdParameters(msgspec.Struct, kw_only=True):
    """Which run."""

    id: str


class _AgentTool:
    """What the five have in common."""

    def __init__(self, kernel: Kernel, name: str, parameters: type[msgspec.Struct]) -> None:
        self._kernel = kernel
        self._schema = tool_schema(name, parameters)

    @property
    def exclusive(self) -> bool:
        """They run side by side."""
        return False

    @property
    def group(self) -> Literal["agents"]:
        """Offered as `rights.delegating_profiles` says."""
        return "agents"

    @property
    def schema(self) -> ToolSchema:
        """What the model is shown."""
        return self._schema

    async def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        """Answer one call."""
        raise NotImplementedError


class SpawnAgent(_AgentTool):
    """`spawn_agent`: accept a child; with `mode=await` wait for its settlement."""

    async def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        """Return ids and status at once, or the settled Run."""
        request = parse(SpawnRequest, arguments, _SPAWN_ALIASES)
        awaited = request.mode == "await"
        work = self._kernel.supervisor.works[context.session_id]
        async with work.spawning:
            # Calls of one message are accepted in their order, however long each takes to prepare.
            command = await self._kernel.delegation.prepare(
                context.session_id, request, delivery="await" if awaited else "letter", call_id=context.call_id
            )
            accepted = self._kernel.scheduler.accept(command)
        run = await self._kernel.scheduler.published(command, accepted)
        if not awaited:
            return ToolResult(text=_json(_spawned(run)))
        async with self._kernel.scheduler.waiting(work, context.call_id):
            await self._kernel.scheduler.ended([run.run_id])
        settled = await self._kernel.scheduler.run(run.run_id)
        outcome = "ok" if settled.status == "completed" else "error"
        shown = {**settled.to_dict(), "result_state": "collected"}
        return ToolResult(text=_json(shown), outcome=outcome, code=None, run_id=run.run_id)


class ListAgents(_AgentTool):
    """`list_agents`: the caller's children, with what they do and why they wait."""

    async def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        """Return Run rows with activation."""
        scope = parse(ListParameters, arguments).scope
        runs = await self._kernel.scheduler.children(context.session_id, descendants=scope == "descendants")
        rows = [{**run.to_dict(), "output": None, "partial": None, "activation": activation(run)} for run in runs]
        return ToolResult(text=_json({"items": rows, "next": None}))


class WaitAgent(_AgentTool):
    """`wait_agent`: return when results are delivered; expiry stops nobody."""

    async def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        """Return the runs in the order asked, and whether the time ran out."""
        asked = parse(WaitParameters, arguments, {**_ID_ALIASES, "timeoutMs": "timeout_ms"})
        scheduler = self._kernel.scheduler
        names = [*(asked.ids or []), *([asked.id] if asked.id is not None else [])]
        if len(names) > WAIT_IDS_MAX:
            raise RetinueError(
                "invalid", f"One wait takes at most {WAIT_IDS_MAX} ids.", "Leave ids out to wait for all."
            )
        run_ids = [await scheduler.resolve(name, context.session_id) for name in names]
        if not names:
            run_ids = scheduler.open_runs(context.session_id)
        seconds = self._clamped(context, asked)
        work = self._kernel.supervisor.works[context.session_id]
        async with scheduler.waiting(work, context.call_id):
            waited = await scheduler.wait(run_ids, asked.mode, seconds)
        return ToolResult(text=_json({"items": [wait_row(run) for run in waited.runs], "timed_out": waited.timed_out}))

    def _clamped(self, context: ToolContext, asked: WaitParameters) -> float:
        least, default, most = self._kernel.settings_of(context.session_id)["wait.s"]
        seconds = asked.timeout_s
        if seconds is None and asked.timeout_ms is not None:
            seconds = asked.timeout_ms / 1000
        return float(default if seconds is None else min(max(seconds, least), most))


class ReadAgentOutput(_AgentTool):
    """`read_agent_output`: a slice of an output; never a history."""

    async def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        """Return `{text, offset, total_chars, next_offset}`, and the run's status where the id names a run."""
        asked = parse(ReadParameters, arguments, {**_ID_ALIASES, "outputId": "id", "output_id": "id"})
        if asked.offset < 0 or asked.limit < 1:
            raise RetinueError("invalid", "offset starts at 0 and limit at 1.", "Count characters.")
        limit = min(asked.limit, OUTPUT_SLICE_MAX_CHARS)
        if asked.id.startswith("o_"):
            piece = await self._stored(context, OutputId(asked.id), (asked.offset, limit))
            return ToolResult(text=_json(msgspec.to_builtins(piece)))
        scheduler = self._kernel.scheduler
        run_id: RunId = await scheduler.resolve(asked.id, context.session_id)
        piece = await scheduler.output(run_id, asked.offset, limit)
        run = await scheduler.run(run_id)
        return ToolResult(text=_json({**msgspec.to_builtins(piece), "status": run.status, "reason": run.reason}))

    async def _stored(self, context: ToolContext, output_id: OutputId, window: tuple[int, int]) -> OutputSlice:
        kept = await self._kernel.record.output(output_id)
        if kept is None or kept.session_id != context.session_id:
            raise not_found("output", output_id)
        return cut_slice(kept.text, *window)


class CancelAgent(_AgentTool):
    """`cancel_agent`: end a run and everything below it."""

    async def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        """Return the run's status after it has ended."""
        asked = parse(IdParameters, arguments, _ID_ALIASES)
        scheduler = self._kernel.scheduler
        run_id = await scheduler.resolve(asked.id, context.session_id)
        work = self._kernel.supervisor.works[context.session_id]
        async with scheduler.waiting(work, context.call_id):
            run, note = await scheduler.cancel(run_id)
        return ToolResult(text=_json(cancelled(run, note)))


def agent_tools(kernel: Kernel) -> tuple[Tool, ...]:
    """Return the agent tools of a runtime, the spawning one first."""
    return (
        SpawnAgent(kernel, "spawn_agent", SpawnRequest),
        ListAgents(kernel, "list_agents", ListParameters),
        WaitAgent(kernel, "wait_agent", WaitParameters),
        ReadAgentOutput(kernel, "read_agent_output", ReadParameters),
        CancelAgent(kernel, "cancel_agent", IdParameters),
    )


def activation(run: Run) -> str:
    """Return what a child does in the process now: it is released when its run ends."""
    return "running" if run.is_open else "released"


def wait_row(run: Run) -> dict[str, Any]:
    """Return a run as `wait_agent` shows it (SHAPES, Tools towards the model); text comes by itself under push."""
    keys = ("run_id", "session_id", "name", "status", "reason", "result_state")
    return {key: getattr(run, key) for key in keys}


def cancelled(run: Run, note: str | None) -> dict[str, Any]:
    """Return a run as `cancel_agent` shows it."""
    return {"run_id": run.run_id, "status": run.status, "reason": run.reason, "note": note}


def _spawned(run: Run) -> dict[str, Any]:
    keys = ("run_id", "session_id", "name", "status", "queue_position")
    return {key: getattr(run, key) for key in keys}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
