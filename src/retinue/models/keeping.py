"""Keeps what a provider wants back with its answer, its signed thoughts, and reads that again; it sends nothing.

The form is JSON, our own and compact: the parts of the answer in their order. A thought stands whole, for its signature
covers it; a text by its length and a call by its place, because both stand in the message beside it.
"""

import json
from collections.abc import Sequence
from typing import Any, Final, Literal, cast

import msgspec
from pydantic_ai.messages import ModelResponsePart, TextPart, ThinkingPart, ToolCallPart

from retinue.core.events import Value
from retinue.models.text import mended
from retinue.ports import AssistantText, Kept

KEPT_MAX_CHARS: Final = 4_000_000
"""More is not kept: an answer is then sent back without its thoughts."""

MADE_UP: Final = "pyd_ai_"
"""How pydantic-ai begins the id of a call that the provider gave none."""


class KeptPart(Value, omit_defaults=True):
    """One part of an answer.

    Attributes:
        part: what it is.
        content: a thought's text.
        chars: a text's length.
        id: the provider's name of the thought or the call.
        signature: what proves the thought to be the provider's own.
        details: what else the provider wants back, a thought signature of Google's for example.
    """

    part: Literal["thinking", "text", "call"]
    content: str = ""
    chars: int = 0
    id: str | None = None
    signature: str | None = None
    details: dict[str, Any] | None = None


def kept_of(parts: Sequence[ModelResponsePart], kind: str) -> Kept | None:
    """Return what has to be sent back with an answer; null where its text and its calls are all."""
    found = [one for part in parts if (one := _kept_part(part)) is not None]
    if not any(one.signature or one.details for one in found):
        return None
    try:
        body = json.dumps(msgspec.to_builtins(found), ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError):
        return None
    return None if len(body) > KEPT_MAX_CHARS else Kept(kind=kind, body=mended(body))


def parts_of(message: AssistantText, kind: str) -> tuple[KeptPart, ...]:
    """Return the parts that were kept with an answer, for a model of the same kind; none where they cannot be used.

    Where the text or the calls beside them are not what they were, only the thoughts come back: they stand first.
    """
    kept = message.kept
    if kept is None or kept.kind != kind:
        return ()
    try:
        parts = msgspec.json.decode(kept.body, type=tuple[KeptPart, ...])
    except (msgspec.DecodeError, RecursionError):
        return ()  # a log may be imported from anywhere
    calls = sum(part.part == "call" for part in parts)
    chars = [part.chars for part in parts if part.part == "text"]
    if calls == len(message.tool_calls) and sum(chars) == len(message.text) and min(chars, default=0) >= 0:
        return parts
    return tuple(part for part in parts if part.part == "thinking")


def _kept_part(part: ModelResponsePart) -> KeptPart | None:
    match part:
        case ThinkingPart():
            if not part.signature and not part.provider_details:
                return None  # what no one signed is not asked for again
            return KeptPart(
                part="thinking",
                content=mended(part.content),
                id=part.id,
                signature=part.signature,
                details=_details(part.provider_details),
            )
        case TextPart():
            return KeptPart(part="text", chars=len(part.content), details=_details(part.provider_details))
        case ToolCallPart():
            own = None if part.tool_call_id.startswith(MADE_UP) else mended(part.tool_call_id)
            return KeptPart(part="call", id=own, details=_details(part.provider_details))
        case _:
            return None


def _details(details: object) -> dict[str, Any] | None:
    return cast("dict[str, Any]", details) or None if isinstance(details, dict) else None
