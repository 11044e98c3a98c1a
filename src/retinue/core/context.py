"""What a request repeats of a log, and the order of input at a step boundary; it never reads a log."""

from collections.abc import Sequence

from retinue.core.events import MessageAssistant, MessageUser, ToolFinished
from retinue.core.messages import AssistantText, RequestCall, ToolText, UserText


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
