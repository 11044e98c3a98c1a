"""Translates a request into pydantic-ai's messages, and its stream of an answer back; it opens no connection.

Only `extra` loads this module, when a provider that comes with an extra is first asked.
"""

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, cast

from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import (
    BaseToolCallPart,
    InstructionPart,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.profiles.anthropic import ANTHROPIC_THINKING_BUDGET_MAP
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.usage import RequestUsage

from retinue.core.events import Usage
from retinue.models.assembler import ANSWER_MAX_CHARS
from retinue.models.calls import CALLS_MAX
from retinue.models.failure import tidy
from retinue.models.history import history_of
from retinue.models.keeping import MADE_UP, kept_of
from retinue.models.text import TextJoin, mended
from retinue.ports import Delta, Finish, FinishCall, FinishReason, ModelRequest, Spent

OUTPUT_TOKENS: Final = 32_000
"""Anthropic demands a limit on the answer; where the request carries none it is this, less for older models."""
THINKING_LEAST_TOKENS: Final = 1024
"""Less than this Anthropic takes as no budget for thinking."""
_EFFORTS: Final = frozenset({"minimal", "low", "medium", "high", "xhigh", "max"})
_NO_EFFORT: Final = frozenset({"none", "off"})

_REASONS: Final[dict[str, FinishReason]] = {
    "stop": "stop",
    "tool_call": "tool_calls",
    "length": "length",
    "content_filter": "refusal",
    "error": "error",
}
_NO_FINISH: Final = "The stream ended without a finish reason, so the answer may be cut."
_PAUSED: Final = "The provider paused the answer before it was whole (pause_turn)."


class TooMuchError(Exception):
    """An answer went past a limit of ours; the message is one sentence."""


def opened(model: Model, kind: str, request: ModelRequest) -> AbstractAsyncContextManager[StreamedResponse]:
    """Return the stream of an answer, not yet opened; raise what the translation of a request may raise."""
    parts = [InstructionPart(content=mended(request.system))] if request.system.strip() else []
    return model_request_stream(
        model,
        history_of(request.messages, kind, model.system),
        model_settings=settings_of(model, kind, request),
        model_request_parameters=ModelRequestParameters(
            function_tools=[
                ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=tool.parameters)
                for tool in request.tools
            ],
            instruction_parts=parts,
        ),
        instrument=False,
    )


def settings_of(model: Model, kind: str, request: ModelRequest) -> ModelSettings:
    """Return the settings of a request; an effort that the model does not know is left out."""
    settings: dict[str, Any] = {"max_retries": 0} if kind in _OWN_RETRIES else {}
    if request.output_tokens_max is not None:
        settings["max_tokens"] = request.output_tokens_max
    if kind == "anthropic":
        settings.setdefault("max_tokens", OUTPUT_TOKENS)
        # Tools, system text and the newest message: the next request begins with all that this one holds.
        for part in ("tool_definitions", "instructions", "messages"):
            settings[f"anthropic_cache_{part}"] = True
    elif kind == "bedrock":
        settings["cache"] = True
    return cast("ModelSettings", {**settings, **_thinking(model, kind, request, settings.get("max_tokens"))})


_OWN_RETRIES: Final = frozenset({"groq", "cohere", "mistral"})
"""Kinds whose client can be told only by each request not to try again by itself."""


def _thinking(model: Model, kind: str, request: ModelRequest, limit: int | None) -> dict[str, Any]:
    effort = request.effort
    if effort in _NO_EFFORT:
        return {"thinking": False}
    if effort not in _EFFORTS:
        return {}
    profile = cast("dict[str, Any]", model.profile)
    adaptive = profile.get("anthropic_supports_adaptive_thinking") or profile.get("bedrock_supports_adaptive_thinking")
    if limit is None or adaptive or kind not in {"anthropic", "bedrock"} or not profile.get("supports_thinking"):
        return {"thinking": effort}
    # A budget has to be below the limit of the answer, and has to leave room for the answer itself.
    budget = min(ANTHROPIC_THINKING_BUDGET_MAP[cast("Any", effort)], limit // 2)
    if budget < THINKING_LEAST_TOKENS:
        return {}
    if kind == "bedrock":
        return {"thinking": effort} if ANTHROPIC_THINKING_BUDGET_MAP[cast("Any", effort)] <= budget else {}
    return {"anthropic_thinking": {"type": "enabled", "budget_tokens": budget}}


class Reading:
    """Feed it events, then take its `Finish`."""

    def __init__(self, streamed: StreamedResponse, kind: str) -> None:
        """Start before the first event of a stream."""
        self._streamed = streamed
        self._kind = kind
        self._text = TextJoin()
        self._reasoning = TextJoin()
        self._usage: Usage | None = None
        self._size_chars = 0
        self._calls = 0

    @property
    def events(self) -> AsyncIterator[ModelResponseStreamEvent]:
        """What to feed."""
        return aiter(self._streamed)

    @property
    def finished(self) -> bool:
        """Whether the provider has said how the answer ends."""
        return self._raw is not None or self._streamed.finish_reason is not None

    @property
    def _raw(self) -> str | None:
        reason = (self._streamed.provider_details or {}).get("finish_reason")
        return str(reason) if reason else None

    def cost(self) -> list[Spent]:
        """Return what the answer has cost so far, where that is news."""
        before, self._usage = self._usage, usage_of(self._streamed.usage)
        return [] if self._usage is None or self._usage == before else [Spent(usage=self._usage)]

    def take(self, event: ModelResponseStreamEvent) -> list[Delta | Spent]:
        """Take one event and return what a reader may see of it; raise `TooMuchError` past a limit."""
        pieces: list[Delta | Spent] = [*self.cost()]
        match event:
            case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                shown = self._text.add(text)
                pieces += [Delta(kind="text", text=shown)] if shown else []
            case (
                PartStartEvent(part=ThinkingPart(content=text))
                | PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(text)))
            ):
                shown = self._reasoning.add(text)
                pieces += [Delta(kind="reasoning", text=shown)] if shown else []
            case PartStartEvent(part=BaseToolCallPart(args=args)):
                self._calls += 1
                text = _raw_arguments(args)
            case PartDeltaEvent(delta=ToolCallPartDelta(args_delta=args)):
                text = _raw_arguments(args)
            case _:
                return pieces
        self._bound(text)
        return pieces

    def finish(self, failure: Finish | None) -> Finish:
        """Return how the answer ended; a failure counts only where the provider had not finished."""
        self.cost()
        if self.finished:
            return self._judged()
        return self._with_parts(failure or Finish(reason="incomplete", error=_NO_FINISH))

    def failed(self, failure: Finish) -> Finish:
        """Return a failure that nothing can mend, with what had come before it."""
        self.cost()
        return self._with_parts(failure)

    def _bound(self, text: str) -> None:
        self._size_chars += len(text)
        if self._size_chars > ANSWER_MAX_CHARS:
            raise TooMuchError(f"The answer went past {ANSWER_MAX_CHARS} characters.")
        if self._calls > CALLS_MAX:
            raise TooMuchError(f"The answer made more than {CALLS_MAX} tool calls.")

    def _judged(self) -> Finish:
        reason, raw = _REASONS.get(self._streamed.finish_reason or ""), self._raw
        if raw == "pause_turn":
            return self._ended("incomplete", _PAUSED)
        if reason is None:
            return self._ended("error", f"The provider ended the answer for an unknown reason, {tidy(raw or '')!r}.")
        if reason == "error":
            return self._ended(
                "error", f"The provider ended the answer with an error: {tidy(raw or 'no reason given')}."
            )
        if reason == "refusal":
            return self._ended("refusal", f"The model declined to answer: {self._why()}.")
        parts = self._streamed.get().parts
        calls = tuple(_call(part) for part in parts if isinstance(part, ToolCallPart))
        return Finish(
            reason="tool_calls" if reason == "stop" and calls else reason,
            text=self._text.whole(),
            reasoning=self._reasoning.whole(),
            tool_calls=calls,
            usage=self._usage,
            kept=None if reason == "length" else kept_of(parts, self._kind),
        )

    def _why(self) -> str:
        details = self._streamed.provider_details or {}
        for key in ("refusal", "block_reason_message", "block_reason", "refusal_category"):
            if details.get(key):
                return tidy(str(details[key]))
        return f"finish reason {tidy(self._raw or 'content_filter')!r}"

    def _ended(self, reason: FinishReason, sentence: str) -> Finish:
        return self._with_parts(Finish(reason=reason, error=sentence))

    def _with_parts(self, finish: Finish) -> Finish:
        return Finish(
            reason=finish.reason,
            text=self._text.whole(),
            reasoning=self._reasoning.whole(),
            usage=self._usage,
            error=finish.error,
            status=finish.status,
            retry_after_s=finish.retry_after_s,
            cause=finish.cause,
        )


def usage_of(report: RequestUsage) -> Usage | None:
    """Return a report in our terms: input with what was read from and written to a cache, output with reasoning."""
    given, output = max(report.input_tokens, 0), max(report.output_tokens, 0)
    if not given and not output:
        return None
    return Usage(
        input=given,
        cached=min(max(report.cache_read_tokens, 0), given),
        output=output,
        reasoning=min(max(report.output_reasoning_tokens or 0, 0), output),
        total=given + output,
    )


def _call(part: ToolCallPart) -> FinishCall:
    return FinishCall(
        name=mended(part.tool_name),
        arguments=mended(_raw_arguments(part.args) or "{}"),
        provider_id="" if part.tool_call_id.startswith(MADE_UP) else mended(part.tool_call_id),
    )


def _raw_arguments(args: Any) -> str:
    """Return arguments as they came; a provider that sends them as an object sends nothing that could be unusable."""
    if args is None or isinstance(args, str):
        return args or ""
    return json.dumps(args, ensure_ascii=False)
