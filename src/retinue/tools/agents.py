"""The tools with which a model delegates; each parses its arguments and makes one call on the runtime."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from retinue.core.context import items_of
from retinue.core.decide.stops import open_below
from retinue.core.errors import RetinueError, not_found
from retinue.core.events import Event
from retinue.core.ids import CallId, OutputId, RunId
from retinue.core.policy import Policy
from retinue.core.run import Run
from retinue.core.state import State
from retinue.core.text import fit_chars
from retinue.ports import Tool, ToolContext, ToolResult, ToolSchema
from retinue.runtime.delegate import SpawnRequest, Way
from retinue.runtime.kernel import Kernel
from retinue.runtime.scheduler import OutputSlice, cut_slice
from retinue.tools.schema import parse, tool_schema

OUTPUT_SLICE_MAX_CHARS: Final = 24_000
"""Characters of one answer of `read_agent_output`."""
WAIT_IDS_MAX: Final = 256
FIRST_WORDS_MAX_CHARS: Final = 80
_SPAWN_ALIASES: Final = {"agentName": "name", "agent_name": "name"}
_ID_ALIASES: Final = {"sessionId": "id", "session_id": "id", "runId": "id", "run_id": "id"}


class ListParameters(msgspec.Struct, kw_only=True):
    """What to list."""

    scope: Literal["children", "descendants", "self"] = "children"


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


class SendParameters(msgspec.Struct, kw_only=True):
    """To whom, and what."""

    id: str
    message: str


class ReportParameters(msgspec.Struct, kw_only=True):
    """What to tell, and whether it may start a turn of an idle parent."""

    message: str
    wake: bool = True


class IdParameters(msgspec.Struct, kw_only=True):
    """Which run."""

    id: str


class AgentTool:
    """What they have in common."""

    def __init__(self, kernel: Kernel, name: str, parameters: type[msgspec.Struct]) -> None:
        self._kernel = kernel
        self._schema = tool_schema(name, parameters)

    @property
    def exclusive(self) -> bool:
        """They run side by side."""
        return False

    @property
    def group(self) -> Literal["agents", "report"]:
        """Offered as `rights.delegating_profiles` says."""
        return "agents"

    @property
    def schema(self) -> ToolSchema:
        """What the model is shown."""
        return self._schema

    def policy(self, context: ToolContext) -> Policy:
        """Return the policy of the caller's tree."""
        state = self._kernel.journal.state
        return state.policy(state.sessions[context.session_id].header.root_id)

    def reach(self, context: ToolContext) -> RunId | None:
        """Return the root run whose children the caller reaches; null is no bound (`life.continuation`)."""
        turn = self._kernel.journal.state.sessions[context.session_id].turn
        if turn is None or self.policy(context)["life.continuation"] != "in_turn":
            return None
        return turn.opened.root_run_id

    def pulls(self, context: ToolContext) -> bool:
        """Return whether results are fetched rather than sent."""
        return self.policy(context)["result.delivery"] == "pull"

    def fetch(self, context: ToolContext, runs: Sequence[Run]) -> tuple[RunId, ...]:
        """Return which of these results this call carries home: the caller's own, settled, not fetched before."""
        if not self.pulls(context):
            return ()
        work = self._kernel.supervisor.works[context.session_id]
        state = self._kernel.journal.state
        open_calls = state.sessions[context.session_id].open_calls
        # Settled when they were read, else their text is not shown; and as they are now, since another call may have
        # carried one home meanwhile.
        present = [state.runs[run.run_id] for run in runs if run.result_state == "stored" and run.run_id in state.runs]
        mine = [run for run in present if run.parent_id == context.session_id and run.result_state == "stored"]
        fetched = dict.fromkeys(run.run_id for run in mine if _is_fetched(run, open_calls))
        fresh = tuple(run_id for run_id in fetched if run_id not in work.fetched)
        work.fetched.update(fresh)
        return fresh

    async def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        """Answer one call."""
        raise NotImplementedError


class SpawnAgent(AgentTool):
    """`spawn_agent`: accept a child; with `mode=await` wait for its settlement."""

    async def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        """Return ids and status at once, or the settled Run."""
        request = parse(SpawnRequest, arguments, _SPAWN_ALIASES)
        awaited = request.mode == "await"
        work = self._kernel.supervisor.works[context.session_id]
        async with work.spawning:
            # Calls of one message are accepted in their order, however long each takes to prepare.
            way = Way(delivery="await" if awaited else "letter", call_id=context.call_id)
            command = await self._kernel.delegation.prepare(context.session_id, request, way)
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


class ListAgents(AgentTool):
    """`list_agents`: the caller's children, with what they do and why they wait; or its own messages."""

    async def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        """Return Run rows with activation; under `pull` with the finished results that nobody fetched."""
        scope = parse(ListParameters, arguments).scope
        if scope == "self":
            events = await self._kernel.record.read(context.session_id)
            return ToolResult(text=_json({"items": [*own_messages(events)], "next": None}))
        runs = await self._kernel.scheduler.children(context.session_id, descendants=scope == "descendants")
        within = self.reach(context)
        runs = [run for run in runs if within in (None, run.root_run_id)]
        fetched = self.fetch(context, runs)
        rows = [self._row(run, with_output=run.run_id in fetched) for run in runs]
        return ToolResult(text=_json({"items": rows, "next": None}), collected=fetched)

    def _row(self, run: Run, *, with_output: bool) -> dict[str, Any]:
        row = {**run.to_dict(), "activation": activation(self._kernel.journal.state, run)}
        return {**row, "result_state": "collected"} if with_output else {**row, "output": None, "partial": None}


def _is_fetched(run: Run, open_calls: Sequence[CallId]) -> bool:
    """Return whether a result is there for whoever asks: not one that a call still awaits, nor a handle's."""
    delivery = run.spec.delivery
    return delivery == "letter" or (delivery == "await" and run.call_id not in open_calls)


def own_messages(events: Sequence[Event]) -> Iterator[dict[str, Any]]:
    """Yield a session's messages as `{seq, role, text}`, the text's first words only."""
    for item in items_of(events):
        yield {"seq": item.seq, "role": item.role, "text": fit_chars(item.content, FIRST_WORDS_MAX_CHARS)[0]}


class WaitAgent(AgentTool):
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
        within = self.reach(context)
        run_ids = [await scheduler.resolve(name, context.session_id, within=within) for name in names]
        if not names:
            run_ids = scheduler.open_runs(context.session_id)
        seconds = self._clamped(context, asked)
        work = self._kernel.supervisor.works[context.session_id]
        async with scheduler.waiting(work, context.call_id):
            waited = await scheduler.wait(run_ids, asked.mode, seconds)
        fetched = self.fetch(context, waited.runs)
        rows = [wait_row(run, with_output=run.run_id in fetched) for run in waited.runs]
        return ToolResult(text=_json({"items": rows, "timed_out": waited.timed_out}), collected=fetched)

    def _clamped(self, context: ToolContext, asked: WaitParameters) -> float:
        least, default, most = self._kernel.settings_of(context.session_id)["wait.s"]
        seconds = asked.timeout_s
        if seconds is None and asked.timeout_ms is not None:
            seconds = asked.timeout_ms / 1000
        return float(default if seconds is None else min(max(seconds, least), most))


class ReadAgentOutput(AgentTool):
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
        run_id: RunId = await scheduler.resolve(asked.id, context.session_id, within=self.reach(context))
        # Looked at before its text: what was read while it still worked is not its collected result.
        run = await scheduler.run(run_id)
        piece = await scheduler.output(run_id, asked.offset, limit)
        answer = {**msgspec.to_builtins(piece), "status": run.status, "reason": run.reason}
        return ToolResult(text=_json(answer), collected=self.fetch(context, [run]))

    async def _stored(self, context: ToolContext, output_id: OutputId, window: tuple[int, int]) -> OutputSlice:
        kept = await self._kernel.record.output(output_id)
        if kept is None or kept.session_id != context.session_id:
            raise not_found("output", output_id)
        return cut_slice(kept.text, *window)


class CancelAgent(AgentTool):
    """`cancel_agent`: end a run and everything below it."""

    async def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        """Return the run's status after it has ended."""
        asked = parse(IdParameters, arguments, _ID_ALIASES)
        scheduler = self._kernel.scheduler
        run_id = await scheduler.resolve(asked.id, context.session_id, current=True, within=self.reach(context))
        work = self._kernel.supervisor.works[context.session_id]
        async with scheduler.waiting(work, context.call_id):
            run, note = await scheduler.cancel(run_id)
        return ToolResult(text=_json(cancelled(run, note)))


class InterruptAgent(AgentTool):
    """`interrupt_agent`: stop a child's current run only."""

    async def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        """Return the run's status after it has ended."""
        asked = parse(IdParameters, arguments, _ID_ALIASES)
        scheduler = self._kernel.scheduler
        run_id = await scheduler.resolve(asked.id, context.session_id, current=True, within=self.reach(context))
        work = self._kernel.supervisor.works[context.session_id]
        async with scheduler.waiting(work, context.call_id):
            run, note = await scheduler.interrupt(run_id, context.session_id)
        return ToolResult(text=_json(cancelled(run, note)))


class SendAgentMessage(AgentTool):
    """`send_agent_message`: a further instruction for a child, or under the scope `tree` a letter to any session."""

    async def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        """Return the ids of the run that was queued, or of the letter."""
        asked = parse(SendParameters, arguments, _ID_ALIASES)
        sent = await self._kernel.letters.send(
            asked.id,
            asked.message,
            sender=context.session_id,
            within=self.reach(context),
            call_id=context.call_id,
        )
        shown = {} if sent.run is None else _spawned(sent.run)
        return ToolResult(text=_json({**shown, "letter_id": sent.letter_id}))


class ReportToParent(AgentTool):
    """`report_to_parent`: something the parent should know before the result; it ends nothing."""

    @property
    def group(self) -> Literal["report"]:
        """Every child has it where `life.report` says so."""
        return "report"

    async def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        """Return the letter's id."""
        asked = parse(ReportParameters, arguments)
        letter_id = await self._kernel.letters.report(context.session_id, asked.message, waking=asked.wake)
        return ToolResult(text=_json({"letter_id": letter_id}))


def agent_tools(kernel: Kernel) -> tuple[Tool, ...]:
    """Return the agent tools of a runtime: first those that a session has from its first step on.

    The others are offered once it has had a child; appended, they leave the beginning of its requests as it was.
    """
    return (
        SpawnAgent(kernel, "spawn_agent", SpawnRequest),
        ReportToParent(kernel, "report_to_parent", ReportParameters),
        ListAgents(kernel, "list_agents", ListParameters),
        WaitAgent(kernel, "wait_agent", WaitParameters),
        ReadAgentOutput(kernel, "read_agent_output", ReadParameters),
        SendAgentMessage(kernel, "send_agent_message", SendParameters),
        InterruptAgent(kernel, "interrupt_agent", IdParameters),
        CancelAgent(kernel, "cancel_agent", IdParameters),
    )


def activation(state: State, run: Run) -> str:
    """Return what the child of a run does in the process now.

    `running` a run of it is open; `waiting` none is, but something below it works; `settled` neither, but a parked
    message or an unread letter keeps it; else `released`.
    """
    parent = state.sessions.get(run.parent_id)
    kid = None if parent is None else parent.kids.get(run.session_id)
    if parent is not None and kid is not None and any(run_id not in parent.parked for run_id in kid.open):
        return "running"
    if any(state.runs[run_id].is_open for run_id in open_below(state, run.session_id)):
        return "waiting"
    session = state.sessions.get(run.session_id)
    kept = (kid is not None and bool(kid.open)) or (session is not None and state.rouses(session))
    return "settled" if kept else "released"


def wait_row(run: Run, *, with_output: bool = False) -> dict[str, Any]:
    """Return a run as `wait_agent` shows it (SHAPES, Tools towards the model); text comes by itself under push."""
    keys = ("run_id", "session_id", "name", "status", "reason", "result_state")
    row = {key: getattr(run, key) for key in keys}
    if not with_output:
        return row
    text = run.output if run.output is not None else run.partial
    # A text that was cut says so, and where the whole is.
    cut = {"output_cut": True, "output_id": run.output_id} if run.output_cut else {}
    return {**row, "result_state": "collected", "output": text, **cut}


def cancelled(run: Run, note: str | None) -> dict[str, Any]:
    """Return a run as `cancel_agent` shows it."""
    return {"run_id": run.run_id, "status": run.status, "reason": run.reason, "note": note}


def _spawned(run: Run) -> dict[str, Any]:
    keys = ("run_id", "session_id", "name", "status", "queue_position")
    return {key: getattr(run, key) for key in keys}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
