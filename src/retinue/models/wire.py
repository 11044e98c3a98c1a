"""Writes a `ModelRequest` as a chat-completions body; it sends nothing."""

import re
from typing import Any, Final

import msgspec

from retinue.ports import AssistantText, ModelRequest, RequestMessage, ToolSchema, ToolText, UserText

NAME_MAX_CHARS: Final = 64
_UNUSABLE: Final = re.compile(r"[^a-zA-Z0-9_-]")


def body_of(request: ModelRequest, *, send_reasoning: bool, stream: bool = True) -> bytes:
    """Return the JSON body; `send_reasoning` repeats earlier reasoning, which some providers demand and most refuse."""
    messages: list[dict[str, Any]] = []
    if request.system:
        messages.append({"role": "system", "content": request.system})
    for message in request.messages:
        messages += _message(message, send_reasoning=send_reasoning)
    body: dict[str, Any] = {
        "model": request.model,
        "messages": messages,
        "stream": stream,
    }
    if stream:
        body["stream_options"] = {"include_usage": True}
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
    if request.output_tokens_max is not None:
        body["max_completion_tokens"] = request.output_tokens_max
    if request.effort is not None:
        body["reasoning_effort"] = request.effort
    return msgspec.json.encode(body)


def _message(message: RequestMessage, *, send_reasoning: bool) -> list[dict[str, Any]]:
    match message:
        case UserText():
            return [{"role": "user", "content": message.text}]
        case ToolText():
            return [{"role": "tool", "tool_call_id": message.call_id, "content": message.text}]
        case AssistantText():
            return _assistant(message, send_reasoning=send_reasoning)


def _assistant(message: AssistantText, *, send_reasoning: bool) -> list[dict[str, Any]]:
    if not message.text and not message.tool_calls:
        return []  # several providers answer 400 to an empty assistant message, for ever after
    body: dict[str, Any] = {"role": "assistant", "content": message.text or None}
    if send_reasoning and message.reasoning:
        body["reasoning_content"] = message.reasoning
    if message.tool_calls:
        body["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": usable_name(call.name), "arguments": msgspec.json.encode(call.arguments).decode()},
            }
            for call in message.tool_calls
        ]
    return [body]


def usable_name(name: str) -> str:
    """Return a name that every provider takes back: models invent empty and odd ones."""
    return _UNUSABLE.sub("_", name)[:NAME_MAX_CHARS] or "unnamed_tool"


def _tool(tool: ToolSchema) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}
