"""One step: a boundary, one model request derived from the log alone, and what came of it; it executes no tool."""

from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any, Final, cast

import msgspec

from retinue.core.decide.base import Ending, open_turn_of
from retinue.core.decide.steps import (
    NO_TOKENS,
    OVER_BUDGET,
    WAIT_FOR_TOKENS,
    OpenStep,
    RecordStep,
    decide_open_step,
    decide_record_step,
)
from retinue.core.events import MessageAssistant, StepClosed, StepOpened, ToolCall, Usage
from retinue.core.ids import CallId, RunId, StepNo
from retinue.core.policy import Policy
from retinue.core.session import Session
from retinue.core.state import Tree
from retinue.core.text import BYTES_PER_TOKEN, clean
from retinue.ports import (
    Delta,
    Finish,
    FinishCall,
    Ids,
    LiveDelta,
    LiveReset,
    Model,
    ModelRequest,
    Models,
    Piece,
    Reset,
    Spent,
    ToolSchema,
)
from retinue.runtime.bus import Bus
from retinue.runtime.journal import Journal
from retinue.runtime.mailbox import Mailboxes
from retinue.runtime.prompt import PromptTexts, blob, system_text, tools_blob
from retinue.runtime.texts import Texts
from retinue.runtime.toolset import SPAWN, Toolset
from retinue.runtime.work import Work, unreleased

_FAILURE: Final = {
    "refusal": ("refusal", "The model declined."),
    "incomplete": ("stream_incomplete", "The stream stopped without saying that it was finished."),
    "length": ("token_limit", "The answer reached the model's output limit."),
    "error": ("provider_error", "The provider reported an error."),
}
RATE_LIMITED: Final = 429
NESTING_MAX: Final = 100
"""Levels of a call's arguments; deeper ones could be read, but not by everybody who must write them."""


class Said(msgspec.Struct, frozen=True):
    """What a step brought: calls to answer, or how the turn must end, or neither (the model stopped).

    `promised` means that the model said it calls tools and called none.
    """

    calls: tuple[ToolCall, ...]
    ending: Ending | None
    promised: bool = False


class StepRunner:
    """Runs steps."""

    def __init__(
        self,
        journal: Journal,
        models: Models,
        tools: Toolset,
        texts: PromptTexts,
        parts: tuple[Bus, Ids, Mailboxes, Texts],
    ) -> None:
        """Wire it."""
        self._journal = journal
        self._models = models
        self._tools = tools
        self._texts = texts
        self._bus, self._ids, self._mailboxes, self._stored = parts

    async def run(self, work: Work, *, with_tools: bool) -> Said:
        """Cross the boundary, ask the model, put its answer on record."""
        session = self._journal.state.sessions[work.session_id]
        policy = self._journal.state.policy(work.root_id)
        schemas = self._tools.offered(session, policy, on=self._journal.state.switch_on) if with_tools else ()
        system = await self._system(session, policy)
        prompt, offered = blob(system.encode()), tools_blob(schemas)
        command = OpenStep(
            session_id=work.session_id,
            model=session.header.model,
            prompt_digest=prompt.digest,
            tools_digest=offered.digest,
            stamp=self._journal.stamp(),
            fixed_tokens=-(-len(prompt.body) // BYTES_PER_TOKEN) - (-len(offered.body) // BYTES_PER_TOKEN),
            blobs=((prompt.digest, prompt.body), (offered.digest, offered.body)),
        )
        work.begin_request()
        work.require_live()
        # The model is looked for before the step is on record: a step that cannot be asked never opens.
        model, name = self._models.find(session.header.model)
        opened = await self._open(work, command)
        if opened is None:
            return Said((), OVER_BUDGET)
        request = _request(session, name, system, schemas)
        request = msgspec.structs.replace(request, output_tokens_max=opened.output_tokens_max)
        finish = await self._ask(work, model, request, opened.step)
        return self._record(work, session, opened.step, finish)

    async def _system(self, session: Session, policy: Policy) -> str:
        """Return the system text; a fork's is its parent's, so that a provider knows what both begin with."""
        if session.system_digest is not None:
            return await self._stored.find(session.system_digest)
        delegates = self._tools.offers(SPAWN, session, policy, on=self._journal.state.switch_on)
        environment = await self._stored.find(session.header.environment_digest)
        return system_text(session, self._texts, policy, environment, delegating=delegates or bool(session.kids))

    async def _open(self, work: Work, command: OpenStep) -> StepOpened | None:
        """Open the step once its tokens are set aside; null when the tree has none left."""
        _, turn = open_turn_of(self._journal.state, work.session_id)
        root_run_id = turn.opened.root_run_id
        while True:
            # Looked at before the decision: what moves while that is being stored must not be missed.
            moved = _has_moved(self._journal.state.trees[work.root_id], root_run_id)
            opened = (await self._journal.submit(decide_open_step, command)).value
            if opened is NO_TOKENS:
                return None
            if opened is not WAIT_FOR_TOKENS:
                return opened
            await self._mailboxes.until((root_run_id,), moved)

    async def _ask(self, work: Work, model: Model, request: ModelRequest, step: StepNo) -> Finish:
        chunks = model.stream(request)
        try:
            async for chunk in chunks:
                if isinstance(chunk, Finish):
                    return chunk
                self._take(work, chunk, step)
        finally:
            # Closed at once on every way out, a cancel included: the connection must not outlive the request.
            await _close(work, chunks)
        return Finish(reason="incomplete", text=work.text, reasoning=work.reasoning)

    def _take(self, work: Work, piece: Piece, step: StepNo) -> None:
        if isinstance(piece, Delta):
            self._pass_on(work, piece, step)
        elif isinstance(piece, Reset):
            self._void(work, piece, step)
        elif isinstance(piece, Spent):
            work.spent = piece

    def _pass_on(self, work: Work, delta: Delta, step: StepNo) -> None:
        work.stream(delta.kind, delta.text)
        if not self._bus.wants_deltas(work.root_id):
            return
        turn = self._journal.state.sessions[work.session_id].turns
        live = LiveDelta(
            session_id=work.session_id,
            turn=turn,
            step=step,
            attempt=work.attempt,
            kind=delta.kind,
            call_id=None,
            text=delta.text,
        )
        self._bus.live(work.root_id, live)

    def _void(self, work: Work, reset: Reset, step: StepNo) -> None:
        """Forget what a failed attempt streamed, everywhere."""
        work.forget_stream()
        work.attempt = reset.attempt
        turn = self._journal.state.sessions[work.session_id].turns
        self._bus.live(work.root_id, LiveReset(session_id=work.session_id, turn=turn, step=step, attempt=reset.attempt))

    def _record(self, work: Work, session: Session, step: StepNo, finish: Finish) -> Said:
        work.require_live()
        turn = session.turns
        complete = finish.reason in ("stop", "tool_calls")
        calls = tuple(self._call(call) for call in finish.tool_calls) if complete else ()
        text, reasoning = clean(finish.text), clean(finish.reasoning)
        said = MessageAssistant(
            turn=turn,
            step=step,
            text=text,
            reasoning=reasoning,
            tool_calls=calls,
            finish=finish.reason,
            complete=complete,
            kept=finish.kept,
        )
        closed = StepClosed(turn=turn, step=step, usage=_reported(finish), retries=finish.retries, run_id=work.run_id)
        record = RecordStep(session_id=work.session_id, facts=(said, closed), stamp=self._journal.stamp())
        self._journal.submit(decide_record_step, record)
        work.begin_request()
        ending = unreleased(work) or _judge(finish)
        return Said(calls, ending, finish.reason == "tool_calls" and not calls)

    def _call(self, call: FinishCall) -> ToolCall:
        arguments, invalid = read_arguments(clean(call.arguments))
        call_id = CallId(self._ids.new("c"))
        return ToolCall(call_id=call_id, name=clean(call.name), arguments=arguments, invalid=invalid)


async def _close(work: Work, chunks: AsyncGenerator[Piece]) -> None:
    try:
        await chunks.aclose()
    except Exception as error:  # noqa: BLE001 - a provider may raise anything; what it had said is kept
        work.unreleased = f"The model's stream could not be closed: {type(error).__name__}: {error}."


def _has_moved(tree: Tree, root_run_id: RunId) -> Callable[[], bool]:
    """Return whether tokens of a root run were given back or used up since now, or its limit was changed."""

    def now() -> tuple[object, ...]:
        ledger = tree.ledger(root_run_id)
        return ledger.spent, ledger.reserved, ledger.exceeded, tree.policy["budget.tree_tokens_max"]

    before = now()
    return lambda: now() != before


def _request(session: Session, name: str, system: str, schemas: tuple[ToolSchema, ...]) -> ModelRequest:
    header = session.header
    return ModelRequest(
        session_id=session.session_id,
        root=header.parent_id is None,
        name=header.name,
        model=name,
        system=system,
        messages=session.request(),
        tools=schemas,
        number=session.requests,
        effort=header.effort,
    )


def _reported(finish: Finish) -> Usage | None:
    """Return what the request cost; a model that tries again has summed its tries, any other has one."""
    if finish.usage is None or finish.usage.requests:
        return finish.usage
    return msgspec.structs.replace(finish.usage, requests=finish.retries + 1, unreported=finish.retries)


def _judge(finish: Finish) -> Ending | None:
    if finish.reason in _FAILURE:
        reason, plain = _FAILURE[finish.reason]
        if finish.cause == "timeout":
            reason = "timeout"
        elif finish.status == RATE_LIMITED:
            reason = "rate_limit"
        return Ending(status="failed", reason=reason, detail=clean(finish.error or plain))
    return None


def read_arguments(raw: str) -> tuple[dict[str, Any], str | None]:
    """Return a call's arguments, and the raw text when it is not one JSON object; no text at all means no arguments."""
    if not raw.strip():
        return {}, None
    try:
        arguments = msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}, raw
    return (arguments, None) if _is_flat_enough(arguments) else ({}, raw)


def _is_flat_enough(arguments: dict[str, Any]) -> bool:
    """Return whether a value is nested so little that whoever writes it later can."""
    level: list[Any] = [arguments]
    for _ in range(NESTING_MAX):
        level = [inner for value in level for inner in _inside(value)]
        if not level:
            return True
    return False


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).values()
    return cast("list[Any]", value) if isinstance(value, list) else ()
