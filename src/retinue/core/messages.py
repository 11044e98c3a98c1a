"""The base of immutable values, and the messages of a model request; it never says which of them are sent."""

from typing import Any, dataclass_transform

import msgspec

from retinue.core.ids import CallId


# msgspec hands frozen on to subclasses; the type checker has to be told.
@dataclass_transform(frozen_default=True, kw_only_default=True)
class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the immutable values inside facts."""


class UserText(Value, tag="user"):
    """A user-role message of a request."""

    text: str


class RequestCall(Value):
    """A tool call as it stands in the history that is sent."""

    call_id: CallId
    name: str
    arguments: dict[str, Any]


class Kept(Value):
    """What a provider wants back with an answer that it gave: its thinking parts with their signatures, as JSON.

    Only a model of the same `kind` (the connection's, as `anthropic`) can read `body`; every other one leaves it out.
    """

    kind: str
    body: str


class AssistantText(Value, tag="assistant"):
    """An assistant message of a request; each of its calls is followed by its `ToolText`."""

    text: str
    reasoning: str = ""
    tool_calls: tuple[RequestCall, ...] = ()
    kept: Kept | None = None


class ToolText(Value, tag="tool"):
    """The answer to one call; `error` marks a refusal or a failure."""

    call_id: CallId
    name: str
    text: str
    error: bool = False


RequestMessage = UserText | AssistantText | ToolText
