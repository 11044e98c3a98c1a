"""A loopback server that plays lists of events to any POST, and refuses what the real Anthropic API refuses."""

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Literal

from aiohttp import web

NEVER: Final = "never"
"""Say nothing more, and wait until the client is gone."""
ABORT: Final = "abort"
"""Break the connection."""

Item = dict[str, Any] | bytes | Literal["never", "abort"] | float
"""An event (its `type` is also its SSE name), bytes as they are, an ending, or a pause in seconds."""


class Status:
    """An answer that is no stream."""

    def __init__(self, status: int, body: Any, **headers: str) -> None:
        self.status = status
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.headers = {"Content-Type": "application/json", **headers}


Reply = Status | Sequence[Item]


class Seen:
    """One request, and whether its client was gone before the answer was whole."""

    def __init__(self, path: str, headers: dict[str, str], body: dict[str, Any], raw: bytes) -> None:
        self.path = path
        self.headers = headers
        self.body = body
        self.raw = raw
        self.outcome = "open"


class ReplyServer:
    """Plays one reply after the other, the last one for ever; or what a function of the request returns."""

    def __init__(
        self,
        replies: Sequence[Reply] | Callable[[Seen], Reply],
        *,
        complaint: Callable[[Seen], str | None] = lambda _: None,
        bare: bool = False,
    ) -> None:
        self.requests: list[Seen] = []
        self.faults: list[str] = []
        self.connections: set[Any] = set()
        self._replies = replies
        self._complaint = complaint
        self._bare = bare
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._port = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> "ReplyServer":
        self._thread.start()
        self._runner = self._call(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def wait_until(self, reached: Callable[["ReplyServer"], bool], timeout_s: float = 10.0) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: reached(self), timeout_s), "the condition did not come"

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _start(self) -> web.AppRunner:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_post("/{path:.*}", self._handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self._port = runner.addresses[0][1]
        return runner

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        seen = Seen(request.path_qs, headers, json.loads(raw), raw)
        if request.transport is not None:
            self.connections.add(request.transport.get_extra_info("peername"))
        self._change(lambda: self.requests.append(seen))
        try:
            response = await self._answer(request, seen)
            self._change(lambda: setattr(seen, "outcome", "answered"))
        except (asyncio.CancelledError, ConnectionError):
            self._change(lambda: setattr(seen, "outcome", "dropped"))
            raise
        return response

    async def _answer(self, request: web.Request, seen: Seen) -> web.StreamResponse:
        if fault := self._complaint(seen):
            self._change(lambda: self.faults.append(fault))
            error = {"type": "error", "error": {"type": "invalid_request_error", "message": fault}}
            return web.json_response(error, status=400)
        reply = self._next(seen)
        if isinstance(reply, Status):
            return web.Response(status=reply.status, body=reply.body, headers=reply.headers)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for item in reply:
            await self._play(item, request, response)
        return response

    def _next(self, seen: Seen) -> Reply:
        if callable(self._replies):
            return self._replies(seen)
        return self._replies[min(len(self.requests), len(self._replies)) - 1]

    async def _play(self, item: Item, request: web.Request, response: web.StreamResponse) -> None:
        match item:
            case "never":
                await asyncio.Event().wait()
            case "abort":
                assert request.transport is not None
                request.transport.abort()
            case float():
                await asyncio.sleep(item)
            case bytes():
                await response.write(item)
            case dict():
                name = b"" if self._bare else f"event: {item['type']}\n".encode()
                await response.write(name + f"data: {json.dumps(item)}\n\n".encode())

    def _change(self, change: Callable[[], Any]) -> None:
        with self._changed:
            change()
            self._changed.notify_all()


# --------------------------------------------------------------------------------------------------- Anthropic's events

USAGE: Final = {
    "input_tokens": 10,
    "cache_read_input_tokens": 100,
    "cache_creation_input_tokens": 20,
    "output_tokens": 1,
}


def begin(**usage: int) -> dict[str, Any]:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-fake", "content": []}
    ending = {"stop_reason": None, "stop_sequence": None, "usage": {**USAGE, **usage}}
    return {"type": "message_start", "message": {**message, **ending}}


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def text(index: int, *pieces: str) -> list[dict[str, Any]]:
    return block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))


def thinking(index: int, thought: str, signature: str) -> list[dict[str, Any]]:
    return block(
        index,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": thought},
        {"type": "signature_delta", "signature": signature},
    )


def redacted(index: int, data: str) -> list[dict[str, Any]]:
    return block(index, {"type": "redacted_thinking", "data": data})


def tool(index: int, call_id: str, name: str, *pieces: str) -> list[dict[str, Any]]:
    start = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
    return block(index, start, *({"type": "input_json_delta", "partial_json": piece} for piece in pieces))


def end(reason: str | None, output: int = 7, **delta: Any) -> list[dict[str, Any]]:
    stop = {"stop_reason": reason, "stop_sequence": None, **delta}
    return [
        {"type": "message_delta", "delta": stop, "usage": {"output_tokens": output}},
        {"type": "message_stop"},
    ]


def said(words: str, reason: str = "end_turn") -> list[Item]:
    return [begin(), *text(0, words), *end(reason)]


# ----------------------------------------------------------------------------------------- what Anthropic's API refuses


class Strict:
    """Judges requests as the real API does; it knows the signatures that it is told of."""

    def __init__(self, *signatures: str) -> None:
        self.signatures = set(signatures)

    def __call__(self, seen: Seen) -> str | None:
        return next(self._faults(seen), None)

    def _faults(self, seen: Seen) -> Iterator[str]:
        body = seen.body
        if not seen.path.startswith("/v1/messages"):
            yield f"there is no {seen.path}"
        if "anthropic-version" not in seen.headers or not {"x-api-key", "authorization"} & seen.headers.keys():
            yield "a header is missing"
        limit = body.get("max_tokens")
        if not isinstance(limit, int) or limit < 1:
            yield "max_tokens: Field required"
        budget = (body.get("thinking") or {}).get("budget_tokens")
        if budget is not None and not 1024 <= budget < (limit or 0):
            yield "max_tokens must be greater than thinking.budget_tokens"
        if json.dumps(body).count('"cache_control"') > 4:
            yield "a maximum of 4 blocks with cache_control may be provided"
        for one in body.get("tools", []):
            if not re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", one["name"]) or one["input_schema"].get("type") != "object":
                yield f"tools: {one['name']} is unusable"
        yield from self._conversation(body["messages"])

    def _conversation(self, messages: list[dict[str, Any]]) -> Iterator[str]:
        if not messages or messages[0]["role"] != "user" or messages[-1]["role"] != "user":
            yield "messages: the first and the last must use the user role"
        owed: list[str] = []
        known: set[str] = set()
        for before, message in zip([{"role": "assistant"}, *messages], messages, strict=False):
            blocks = message["content"]
            if before["role"] == message["role"]:
                yield "messages: roles must alternate"
            answers = [one["tool_use_id"] for one in blocks if one["type"] == "tool_result"]
            if sorted(answers) != sorted(owed):
                yield f"messages: tool_use ids {owed} were answered with tool_result blocks {answers}"
            if any(one["type"] != "tool_result" for one in blocks[: len(answers)]):
                yield "messages: tool_result blocks must come first"
            owed = [one["id"] for one in blocks if one["type"] == "tool_use"]
            if known & set(owed) or len(set(owed)) != len(owed):
                yield "messages: tool_use ids must be unique"
            known |= set(owed)
            for one in blocks:
                yield from self._block(one)

    def _block(self, one: dict[str, Any]) -> Iterator[str]:
        if one["type"] == "text" and not one["text"].strip():
            yield "messages: text content blocks must contain non-whitespace text"
        if one["type"] == "thinking" and one["signature"] not in self.signatures:
            yield "messages: Invalid `signature` in `thinking` block"
        if one["type"] == "redacted_thinking" and one["data"] not in self.signatures:
            yield "messages: Invalid `data` in `redacted_thinking` block"
        if one["type"] == "tool_result" and isinstance(one["content"], list):
            for inner in one["content"]:
                yield from self._block(inner)
