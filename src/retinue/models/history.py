"""Writes a request's messages in pydantic-ai's terms, with what was kept for this provider; it sends nothing."""

import re
from collections.abc import Sequence
from typing import Final

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from retinue.models.keeping import KeptPart, parts_of
from retinue.models.text import mended
from retinue.models.wire import usable_name
from retinue.ports import AssistantText, RequestMessage, ToolText, UserText

BLANK: Final = "(empty)"
"""Stands where a text holds nothing but blanks: several providers refuse such a message, for ever after."""
_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def history_of(messages: Sequence[RequestMessage], kind: str, system: str) -> list[ModelMessage]:
    """Return the conversation with turns that alternate; `system` is what the model calls its provider.

    The beginning of a conversation always gives the same, whatever follows it, so that it stays in a cache.
    """
    history = _History(kind, system)
    for message in messages:
        history.add(message)
    return history.messages


class _History:
    """The conversation as far as it is written."""

    def __init__(self, kind: str, system: str) -> None:
        self.messages: list[ModelMessage] = []
        self._kind = kind
        self._system = system
        self._ids: dict[str, str] = {}
        """Our ids of calls → the provider's own, where its signatures may cover them."""
        self._taken: set[str] = set()

    def add(self, message: RequestMessage) -> None:
        match message:
            case UserText():
                self._ask(UserPromptPart(content=_said(message.text)))
            case ToolText():
                self._ask(
                    ToolReturnPart(
                        tool_name=usable_name(message.name),
                        content=_said(message.text),
                        tool_call_id=self._id(message.call_id),
                        outcome="failed" if message.error else "success",
                    )
                )
            case AssistantText():
                parts = self._answer(message)
                if parts:
                    self.messages.append(ModelResponse(parts=parts, provider_name=self._system))

    def _ask(self, part: ModelRequestPart) -> None:
        last = self.messages[-1] if self.messages else None
        if isinstance(last, ModelRequest):
            self.messages[-1] = ModelRequest(parts=[*last.parts, part])
        else:
            self.messages.append(ModelRequest(parts=[part]))

    def _answer(self, message: AssistantText) -> list[ModelResponsePart]:
        if not message.text.strip() and not message.tool_calls:
            return []  # thoughts alone are no message
        kept = parts_of(message, self._kind)
        whole = any(part.part != "thinking" for part in kept)
        parts: list[ModelResponsePart] = [self._thought(part) for part in kept if not whole]
        if not whole:
            kept = (KeptPart(part="text", chars=len(message.text)), *(KeptPart(part="call"),) * len(message.tool_calls))
        calls, start = iter(message.tool_calls), 0
        for part in kept:
            if part.part == "thinking":
                parts.append(self._thought(part))
            elif part.part == "text":
                text = message.text[start : start + part.chars]
                start += part.chars
                parts += [] if not text.strip() else [self._text(text, part)]
            else:
                call = next(calls)
                parts.append(
                    ToolCallPart(
                        tool_name=usable_name(call.name),
                        args=call.arguments,
                        tool_call_id=self._id(call.call_id, part.id),
                        provider_name=self._system if part.details else None,
                        provider_details=part.details,
                    )
                )
        return parts

    def _text(self, text: str, part: KeptPart) -> TextPart:
        name = self._system if part.details else None
        return TextPart(content=mended(text), provider_name=name, provider_details=part.details)

    def _thought(self, part: KeptPart) -> ThinkingPart:
        return ThinkingPart(
            content=part.content,
            id=part.id,
            signature=part.signature,
            provider_name=self._system,
            provider_details=part.details,
        )

    def _id(self, call_id: str, own: str | None = None) -> str:
        """Return what the provider called a call, where that is known and can be told from all others; else our id."""
        if own and own not in self._taken and _ID.fullmatch(own):
            self._taken.add(own)
            self._ids[call_id] = own
        return self._ids.get(call_id, call_id)


def _said(text: str) -> str:
    return mended(text) if text.strip() else BLANK
