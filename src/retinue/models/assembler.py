"""Assembles one answer from chat-completions chunks of any dialect; pure, it reads no bytes and judges no arguments."""

from collections.abc import Mapping
from typing import Any, Final, Literal, cast

import msgspec

from retinue.core.events import Usage
from retinue.models.calls import CALLS_MAX, CallJoin
from retinue.models.failure import is_used_up, message_of, status_of, tidy
from retinue.models.text import TextJoin
from retinue.ports import Delta, Finish, FinishReason, Spent

Ending = Literal["done", "closed", "broken", "late"]
"""How the transport ended: `data: [DONE]`, a proper end without it, a broken connection, or a time-out of ours."""
ANSWER_MAX_CHARS: Final = 8_000_000
"""Text, reasoning and arguments of one answer together; more ends it as an error."""

_REASONS: Final[dict[str, FinishReason]] = {
    "stop": "stop",
    "end_turn": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "content_filter": "refusal",
    "refusal": "refusal",
    "safety": "refusal",
    "sensitive": "refusal",
    "error": "error",
}
"""Finish reasons of the dialects. Any other word is an error: an ending that is not clearly success is none."""
_GOOD: Final = frozenset({"stop", "tool_calls"})

_NO_FINISH: Final[dict[Ending, str]] = {
    # A gateway whose upstream broke closes politely and adds its own [DONE], so [DONE] alone proves nothing; a
    # provider's finish reason is the one sign that the answer is whole.
    "done": "The stream ended with [DONE] but without a finish reason, so the answer may be cut.",
    "closed": "The stream ended without a finish reason, so the answer may be cut.",
    "broken": "The connection broke in the middle of the answer.",
    "late": "The answer was not whole in time.",
}


class Assembler:
    """Feed it chunks in order, then finish it once."""

    def __init__(self) -> None:
        """Start before the first chunk."""
        self._text = TextJoin()
        self._reasoning = TextJoin()
        self._refusal = TextJoin()
        self._calls = CallJoin()
        self._usage: Usage | None = None
        self._reason: str | None = None
        self._failure: Finish | None = None
        self._size_chars = 0

    @property
    def failed(self) -> bool:
        """Whether the answer has already failed: nothing that follows can mend it."""
        return self._failure is not None

    @property
    def finished(self) -> bool:
        """Whether the provider has said how the answer ends: only a report of usage can still come."""
        return self._reason is not None

    def feed(self, chunk: Mapping[str, Any]) -> list[Delta | Spent]:
        """Take one chunk and return what a reader may see of it, and what it cost; an unknown shape is passed over."""
        if self.failed:
            return []
        choice = _first_choice(chunk)
        pieces: list[Delta | Spent] = [*self._take_usage(chunk, choice), *self._take_choice(choice)]
        self._take_error(chunk, choice)
        if self._size_chars > ANSWER_MAX_CHARS:
            self.fail(f"The answer went past {ANSWER_MAX_CHARS} characters.", cause="lasting")
        if len(self._calls) > CALLS_MAX:
            self.fail(f"The answer made more than {CALLS_MAX} tool calls.", cause="lasting")
        return pieces

    def fail(self, sentence: str, *, status: int | None = None, cause: Literal["lasting"] | None = None) -> None:
        """Make the answer an error; the first one counts."""
        if self._failure is None:
            self._failure = Finish(reason="error", error=sentence, status=status, cause=cause)

    def finish(self, ending: Ending, detail: str = "") -> Finish:
        """Return how the answer ended; `detail` is a sentence on a `broken` connection or a `late` answer.

        Calls are handed on only when the answer is whole (`stop`, `tool_calls`) or cut by its length; a call of a
        broken answer would be a ghost beside its retry.
        """
        if self._failure is not None:
            return self._with_parts(self._failure)
        if self._reason is None:
            return self._unfinished(ending, detail or _NO_FINISH[ending])
        reason = _REASONS.get(self._reason.lower())
        if reason is None:
            return self._ended("error", f"The provider ended the answer for an unknown reason, {tidy(self._reason)!r}.")
        if reason == "error":
            return self._ended("error", "The provider ended the answer with an error and gave no reason.")
        if reason == "refusal" or self._refusal.whole():
            words = tidy(self._refusal.whole()) or f"finish reason {self._reason!r}"
            return self._ended("refusal", f"The model declined to answer: {words}.")
        calls = self._calls.finished()
        if reason == "stop" and calls:
            reason = "tool_calls"
        return Finish(
            reason=reason,
            text=self._text.whole(),
            reasoning=self._reasoning.whole(),
            tool_calls=calls,
            usage=self._usage,
        )

    def _unfinished(self, ending: Ending, sentence: str) -> Finish:
        if ending == "late":
            return self._with_parts(Finish(reason="error", error=sentence, cause="timeout"))
        return self._ended("incomplete", sentence)

    def _ended(self, reason: FinishReason, sentence: str) -> Finish:
        return self._with_parts(Finish(reason=reason, error=sentence))

    def _with_parts(self, finish: Finish) -> Finish:
        return msgspec.structs.replace(
            finish,
            text=self._text.whole() or self._refusal.whole(),
            reasoning=self._reasoning.whole(),
            usage=self._usage,
        )

    def _take_choice(self, choice: Mapping[str, Any]) -> list[Delta]:
        self._take_reason(choice.get("finish_reason"))
        # An answer that is not streamed holds the whole message in place of a delta.
        delta = _mapping(choice.get("delta") or choice.get("message"))
        text, thought = _content(delta.get("content"))
        for key in ("reasoning_content", "reasoning"):
            if not thought and isinstance(delta.get(key), str):
                thought = cast("str", delta[key])
        refusal = delta.get("refusal")
        deltas = [*self._show(self._reasoning, "reasoning", thought), *self._show(self._text, "text", text)]
        if isinstance(refusal, str):
            deltas += self._show(self._refusal, "text", refusal)
        for fragment in (*_entries(delta.get("tool_calls")), *_entries(delta.get("function_call"))):
            self._size_chars += self._calls.add(fragment)
        return deltas

    def _show(self, join: TextJoin, kind: Literal["text", "reasoning"], piece: str) -> list[Delta]:
        self._size_chars += len(piece)
        shown = join.add(piece) if piece else ""
        return [Delta(kind=kind, text=shown)] if shown else []

    def _take_reason(self, reason: Any) -> None:
        """Keep the latest reason, but let no later `stop` cover up that the answer was cut or declined."""
        if isinstance(reason, str) and reason and _REASONS.get((self._reason or "stop").lower()) in _GOOD:
            self._reason = reason

    def _take_usage(self, chunk: Mapping[str, Any], choice: Mapping[str, Any]) -> list[Spent]:
        """Keep the largest figure of each kind: several reports are cumulative, and each may leave some out."""
        for source in (chunk, _mapping(chunk.get("x_groq")), choice):
            usage = usage_of(source.get("usage"))
            if usage is not None:
                before, self._usage = self._usage, usage if self._usage is None else _larger(self._usage, usage)
                return [] if self._usage == before else [Spent(usage=self._usage)]
        return []

    def _take_error(self, chunk: Mapping[str, Any], choice: Mapping[str, Any]) -> None:
        error = chunk.get("error") or choice.get("error")
        if not error and chunk.get("object") == "error":
            error = chunk
        if error:
            words = message_of(error) or "no reason given"
            sentence = f"The provider reported an error in the stream: {words}."
            self.fail(sentence, status=status_of(error), cause="lasting" if is_used_up(error) else None)


def _larger(one: Usage, other: Usage) -> Usage:
    names = ("input", "cached", "output", "reasoning", "total")
    most = {name: max(getattr(one, name), getattr(other, name)) for name in names}
    return Usage(**{**most, "total": max(most["total"], most["input"] + most["output"])})


def usage_of(raw: Any) -> Usage | None:
    """Return a usage report of the chat-completions form; null where nothing was reported."""
    if not raw:
        return None
    report = _mapping(raw)
    if not any(_count(report.get(key)) is not None for key in ("prompt_tokens", "completion_tokens", "total_tokens")):
        return None
    prompt, completion = _count(report.get("prompt_tokens")) or 0, _count(report.get("completion_tokens")) or 0
    cached = _count(_mapping(report.get("prompt_tokens_details")).get("cached_tokens"))
    if cached is None:
        cached = _count(report.get("prompt_cache_hit_tokens"))
    total = _count(report.get("total_tokens")) or 0
    return Usage(
        input=prompt,
        cached=min(cached or 0, prompt),
        output=completion,
        reasoning=_count(_mapping(report.get("completion_tokens_details")).get("reasoning_tokens")) or 0,
        total=max(total, prompt + completion),
    )


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        return None
    return int(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _entries(value: Any) -> list[Mapping[str, Any]]:
    items = cast("list[Any]", value) if isinstance(value, list) else [value]
    return [cast("Mapping[str, Any]", item) for item in items if isinstance(item, dict)]


def _first_choice(chunk: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the choice with index 0: we never ask for more than one."""
    choices = (choice for choice in _entries(chunk.get("choices")) if choice.get("index") in (0, None))
    return next(choices, _mapping(None))


def _content(value: Any) -> tuple[str, str]:
    """Return the text and the reasoning of a content field: a string, or a list of parts."""
    if isinstance(value, str):
        return value, ""
    text: list[str] = []
    thoughts: list[str] = []
    for part in _entries(value):
        kind = str(part.get("type", "text"))
        if kind in {"thinking", "reasoning"}:
            inner = part.get("thinking") or part.get("text") or part.get("reasoning")
            thoughts.append(_content(inner)[0])
        elif isinstance(part.get("text"), str):
            text.append(part["text"])
    return "".join(text), "".join(thoughts)
