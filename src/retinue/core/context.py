"""What a model request says: its message types and their order at a step boundary; it never reads a log."""

from collections.abc import Sequence
from typing import Any

from retinue.core.events import MessageAssistant, MessageUser, ToolFinished, Value
from retinue.core.ids import CallId


class UserText(Value, tag="user"):
    """A user-role message of a request."""

    text: str


class RequestCall(Value):
    """A tool call as it stands in the history that is sent."""

    call_id: CallId
    name: str
    arguments: dict[str, Any]


class AssistantText(Value, tag="assistant"):
    """An assistant message of a request; each of its calls is followed by its `ToolText`."""

    text: str
    reasoning: str = ""
    tool_calls: tuple[RequestCall, ...] = ()


class ToolText(Value, tag="tool"):
    """The answer to one call; `error` marks a refusal or a failure."""

    call_id: CallId
    name: str
    text: str
    error: bool = False


RequestMessage = UserText | AssistantText | ToolText


def assistant_text(fact: MessageAssistant) -> AssistantText:
    """Return an answer as later requests repeat it."""
    calls = tuple(RequestCall(call_id=c.call_id, name=c.name, arguments=c.arguments) for c in fact.tool_calls)
    return AssistantText(text=fact.text, reasoning=fact.reasoning, tool_calls=calls)


def tool_text(name: str, fact: ToolFinished) -> ToolText:
    """Return an answered call as later requests repeat it."""
    return ToolText(call_id=fact.call_id, name=name, text=fact.text, error=fact.outcome != "ok")


def boundary_order(waiting: Sequence[MessageUser]) -> list[UserText]:
    """Return admitted input in the order a step boundary shows it: people first, then letters, each in log order."""
    people = [UserText(text=m.text) for m in waiting if m.letter_id is None]
    letters = [UserText(text=m.text) for m in waiting if m.letter_id is not None]
    return people + letters
