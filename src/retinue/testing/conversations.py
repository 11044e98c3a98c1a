"""Tells the agents and sessions behind a model server's requests apart; it answers nothing."""

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from retinue.testing.strict import Message, calls_of

MARKER: Final = re.compile(r"\[child(?: ([^\]\s]+))?\]")
SESSION_HEADER: Final = "x-session-id"


class Conversation:
    """One session as its requests show it."""

    def __init__(self) -> None:
        """Start before its first request."""
        self.requests = 0
        self.messages: list[Message] = []
        self.sent_ids: list[str] = []
        self.failed = False


class Conversations:
    """Finds the conversation that a request goes on with.

    With an `X-Session-Id` header that header says it. Without one a request belongs to the conversation whose last
    request it extends, or, word for word, repeats after a failed answer; sessions that still look alike are
    interchangeable.
    """

    def __init__(self) -> None:
        """Know no conversation yet."""
        self._known: dict[tuple[Any, ...], list[Conversation]] = {}

    def take(self, kinds: tuple[str, ...], headers: Mapping[str, str], messages: list[Message]) -> Conversation:
        """Return the conversation with this request counted in."""
        spoken = [message for message in messages if message.get("role") not in {"system", "developer"}]
        session = headers.get(SESSION_HEADER)
        group = self._known.setdefault((kinds, session, None if session else _first_text(spoken)), [])
        found = group[0] if session and group else _match(group, spoken)
        if found is None:
            found = Conversation()
            group.append(found)
        found.requests += 1
        found.messages, found.failed = spoken, False
        return found


def kinds_of(model: str, messages: list[Message], by_model: Mapping[str, str]) -> tuple[str, ...]:
    """Return the script kinds of a request, most specific first: by its model, else by the marker in its task."""
    agent = by_model.get(model)
    if agent is None:
        marker = MARKER.search(_first_text(messages))
        name = marker[1] if marker else None
        agent = "parent" if marker is None else f"name:{name}" if name else "child"
    return (agent, "child", "any") if agent.startswith("name:") else (agent, "any")


def results_of(messages: list[Message]) -> list[tuple[str, str]]:
    """Return `(tool name, result text)` of every tool message."""
    names = {str(c.get("id")): str(c.get("function", {}).get("name")) for m in messages for c in calls_of(m)}
    tools = [message for message in messages if message.get("role") == "tool"]
    return [(names.get(str(tool.get("tool_call_id")), ""), _text(tool.get("content"))) for tool in tools]


def _match(group: list[Conversation], spoken: list[Message]) -> Conversation | None:
    longer = [c for c in group if len(c.messages) < len(spoken) and spoken[: len(c.messages)] == c.messages]
    if longer:
        return max(longer, key=lambda conversation: len(conversation.messages))
    return next((c for c in group if c.failed and c.messages == spoken), None)


def _first_text(messages: list[Message]) -> str:
    return next((_text(message.get("content")) for message in messages if message.get("role") == "user"), "")


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in cast("list[dict[str, Any]]", content))
    return content if isinstance(content, str) else ""
