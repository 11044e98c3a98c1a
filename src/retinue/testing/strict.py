"""Checks a chat-completions request as a strict provider does; it answers nothing and changes nothing."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from retinue.models.script import Expectation

Message = dict[str, Any]


def pair_faults(messages: Sequence[Message]) -> Iterator[str]:
    """Yield each breach of the pairing rules: each call answered at once, no answer without its call."""
    owed: list[str] = []
    for number, message in enumerate(messages):
        role = message.get("role")
        if role == "tool":
            call_id = message.get("tool_call_id")
            if call_id in owed:
                owed.remove(call_id)
            else:
                yield f"messages[{number}]: the tool message {call_id!r} answers no call of the message before it"
            continue
        if owed:
            yield f"messages[{number}]: a {role} message stands before the answers of the calls {owed}"
        owed = [str(call.get("id")) for call in calls_of(message)]
    if owed:
        yield f"the calls {owed} of the last assistant message are not answered"


def call_faults(messages: Sequence[Message], *, ids: bool = True, arguments: bool = True) -> Iterator[str]:
    """Yield each call whose id is used twice in the request, or whose name or arguments are unusable."""
    seen: set[str] = set()
    for call in (call for message in messages for call in calls_of(message)):
        call_id = str(call.get("id") or "")
        function: dict[str, Any] = call.get("function") or {}
        if ids and (call_id in seen or not call_id):
            yield f"the call id {call_id!r} is empty or used twice"
        seen.add(call_id)
        if arguments and not function.get("name"):
            yield f"the call {call_id!r} has no name"
        if arguments and not _is_object(function.get("arguments")):
            yield f"the arguments of the call {call_id!r} are no JSON object: {str(function.get('arguments'))[:80]!r}"


def expectation_faults(messages: Sequence[Message], wanted: Expectation, sent_ids: Sequence[str]) -> Iterator[str]:
    """Yield each way in which a request is not as its script expects it; `sent_ids` are the last reply's call ids."""
    if wanted.strict_pairs:
        yield from pair_faults(messages)
    yield from call_faults(messages, ids=wanted.unique_ids, arguments=wanted.valid_arguments)
    answers = [message for message in messages if message.get("role") == "assistant"]
    if wanted.need_reasoning and not all(message.get("reasoning_content") for message in answers):
        yield "an assistant message carries no reasoning_content"
    if wanted.order:
        order = order_of(messages, sent_ids)
        if len(order) != len(wanted.order) or not all(map(_same_place, wanted.order, order)):
            yield f"the order after the last call is {order}, not {list(wanted.order)}"


def order_of(messages: Sequence[Message], sent_ids: Sequence[str]) -> list[str]:
    """Return the roles from the last assistant call on; tool messages by the id the reply gave to the call they answer.

    A client may rename ids, so a call is known by its place in the message.
    """
    start = max((n for n, message in enumerate(messages) if calls_of(message)), default=len(messages))
    names: dict[str, str] = {}
    order: list[str] = []
    for message in messages[start:]:
        role = str(message.get("role"))
        if calls := calls_of(message):
            names = {str(call.get("id")): sent for call, sent in zip(calls, sent_ids, strict=False)}
            role = "assistant:tool_calls"
        elif role == "tool":
            call_id = str(message.get("tool_call_id"))
            role = f"tool:{names.get(call_id, call_id)}"
        order.append(role)
    return order


def calls_of(message: Message) -> list[dict[str, Any]]:
    """Return the tool calls of a message."""
    return message.get("tool_calls") or []


def _same_place(wanted: str, role: str) -> bool:
    return role == wanted or (wanted == "user_or_system" and role in {"user", "system"})


def _is_object(arguments: Any) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except (TypeError, ValueError):
        return False
