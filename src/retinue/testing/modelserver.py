"""A loopback model server over real HTTP that plays scripts and is strict about requests; never for real models."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import msgspec
from aiohttp import web

from retinue.core.events import Value
from retinue.models.script import (
    Action,
    Chunk,
    End,
    Http,
    Pause,
    Raw,
    Reply,
    Script,
    Spawned,
    Wait,
    filled,
    load_script,
    script_of,
    spawned_in,
)
from retinue.testing.conversations import Conversation, Conversations, kinds_of, results_of
from retinue.testing.strict import call_faults, expectation_faults, pair_faults

BODY_MAX_BYTES: Final = 64 * 1024 * 1024


class Setup(Value):
    """How the server behaves. Null and empty fields switch their part off.

    `by_model` maps model names to script kinds; `models` are the names it knows, others are answered 404;
    `on_pause` is called, off the server's loop, where a script says `pause_for_test`.
    """

    strict: bool = True
    api_key: str | None = None
    models: tuple[str, ...] = ()
    by_model: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    requests_per_s: int | None = None
    retry_after_s: float = 1.0
    first_token_delay_ms: float = 0
    chunk_delay_ms: float = 0
    on_pause: Callable[[str], None] | None = None


class Received:
    """One request as it came, and what became of it.

    Attributes:
        kinds: the script kinds of the asking agent, most specific first.
        number: which request of its session it is, from 1.
        status: the HTTP status it was answered with, 0 before that.
        outcome: `open`, `answered`, `refused`, or `dropped` when the client went away first.
        fault: why it was refused with 400, or an empty string.
    """

    def __init__(self, kinds: tuple[str, ...], number: int, body: dict[str, Any], headers: Mapping[str, str]) -> None:
        """Take a request at its arrival."""
        self.kinds = kinds
        self.number = number
        self.body = body
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.received_s = time.monotonic()
        self.status = 0
        self.outcome = "open"
        self.fault = ""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Return the messages as sent."""
        return self.body.get("messages", [])

    @property
    def model(self) -> str:
        """Return the model's name as sent."""
        return str(self.body.get("model", ""))


class ModelServer:
    """Serves `/v1/chat/completions` on 127.0.0.1 from a thread of its own, inside a `with` block.

    Attributes:
        requests: every request received, in order.
        connections: how many connections these came over.
    """

    def __init__(
        self, script: Script | str | Path | Iterable[Mapping[str, Any]] = (), setup: Setup | None = None
    ) -> None:
        """Take a script, its file, or its lines; raise `invalid` when it is wrong."""
        self.setup = setup or Setup()
        self.script = _loaded(script)
        self.requests: list[Received] = []
        self.connections = 0
        self._peers: set[Any] = set()
        self._conversations = Conversations()
        self._changed = threading.Condition()
        self._recent: list[float] = []
        self._port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="model-server", daemon=True)

    @property
    def base_url(self) -> str:
        """Return the base URL as `OPENAI_BASE_URL` takes it."""
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def faults(self) -> list[str]:
        """Return why requests were refused with 400, in order."""
        return [request.fault for request in self.requests if request.fault]

    def __enter__(self) -> "ModelServer":
        """Start listening on a free port."""
        self._thread.start()
        self._runner = self._call(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close every connection and end the thread."""
        self._call(self._runner.cleanup())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def wait_until(self, reached: Callable[["ModelServer"], bool], timeout_s: float = 10.0) -> None:
        """Block until the condition holds, looking at every change; raise `TimeoutError` when it does not come."""
        with self._changed:
            if not self._changed.wait_for(lambda: reached(self), timeout_s):
                raise TimeoutError(f"The condition did not come within {timeout_s:g} s.")

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _start(self) -> web.AppRunner:
        app = web.Application(client_max_size=BODY_MAX_BYTES)
        app.router.add_post("/v1/chat/completions", self._handle)
        app.router.add_get("/v1/models", self._list)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self._port = runner.addresses[0][1]
        return runner

    async def _list(self, _: web.Request) -> web.Response:
        return web.json_response(
            {"object": "list", "data": [{"id": name, "object": "model"} for name in self.setup.models]}
        )

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            body = json.loads(await request.read())
        except ValueError:
            return _error(400, "The body is no JSON.")
        if request.transport is not None:
            self._peers.add(request.transport.get_extra_info("peername"))
            self.connections = len(self._peers)
        refusal = self._door(request, body)
        kinds = kinds_of(str(body.get("model", "")), body.get("messages", []), self.setup.by_model)
        received = Received(kinds, 0, body, request.headers)
        if refusal is not None:
            self._note(received, new=True)
            return self._refused(received, refusal)
        conversation = self._conversations.take(kinds, received.headers, received.messages)
        received.number = conversation.requests
        self._note(received, new=True)
        try:
            return await self._answer(request, received, conversation)
        except (asyncio.CancelledError, ConnectionError):
            received.outcome = "dropped"
            conversation.failed = True
            raise
        finally:
            self._note(received)

    def _door(self, request: web.Request, body: dict[str, Any]) -> web.Response | None:
        """Return the refusal that comes before any script: key, model, rate."""
        setup = self.setup
        if setup.api_key is not None and request.headers.get("Authorization") != f"Bearer {setup.api_key}":
            return _error(401, "Incorrect API key provided.")
        if setup.models and body.get("model") not in setup.models:
            return _error(404, f"The model `{body.get('model')}` does not exist.")
        if setup.requests_per_s is not None:
            now = time.monotonic()
            self._recent = [moment for moment in self._recent if moment > now - 1.0]
            if len(self._recent) >= setup.requests_per_s:
                return _error(429, "Rate limit reached.", {"Retry-After": f"{setup.retry_after_s:g}"})
            self._recent.append(now)
        return None

    async def _answer(self, request: web.Request, received: Received, conversation: Conversation) -> web.StreamResponse:
        fault = next(iter(self._faults(received, conversation)), None)
        if fault is not None:
            received.fault = fault
            conversation.failed = True
            return self._refused(received, _error(400, f"Invalid request: {fault}."))
        reply = self.script.reply(received.kinds, received.number)
        if reply is None:
            conversation.failed = True
            return self._refused(received, _error(500, "script ended"))
        player = _Player(self.setup, request, spawned_in(results_of(received.messages)))
        try:
            response = await player.play(reply)
        finally:
            received.status = player.status
            conversation.failed = not player.complete
            conversation.sent_ids = player.sent_ids
        received.outcome = "answered"
        self._note(received)
        for action in reply.actions:
            if isinstance(action, Pause) and self.setup.on_pause is not None:
                await asyncio.to_thread(self.setup.on_pause, action.what)
        return response

    def _faults(self, received: Received, conversation: Conversation) -> Iterable[str]:
        messages = received.messages
        if self.setup.strict:
            yield from pair_faults(messages)
            yield from call_faults(messages)
        for wanted in self.script.expectations:
            if wanted.n == received.number and wanted.agent in received.kinds:
                yield from expectation_faults(messages, wanted, conversation.sent_ids)

    def _refused(self, received: Received, response: web.Response) -> web.Response:
        received.status, received.outcome = response.status, "refused"
        self._note(received)
        return response

    def _note(self, received: Received, *, new: bool = False) -> None:
        with self._changed:
            if new:
                self.requests.append(received)
            self._changed.notify_all()


class _Player:
    """Plays one reply to one client."""

    def __init__(self, setup: Setup, request: web.Request, spawned: list[Spawned]) -> None:
        self.status = 200
        self.complete = False
        self.sent_ids: list[str] = []
        self._setup = setup
        self._request = request
        self._spawned = spawned
        self._sent = 0
        self._response: web.StreamResponse | None = None

    async def play(self, reply: Reply) -> web.StreamResponse:
        for action in reply.actions:
            await self._act(action)
        return self._response or _error(500, f"The reply of {reply.where} has no ending.")

    async def _act(self, action: Action) -> None:
        match action:
            case Wait():
                await asyncio.sleep(action.delay_ms / 1000)
            case Chunk():
                text = filled(action.text, self._spawned)
                self._look_at(json.loads(text))
                await self._write(f"data: {text}\n\n".encode())
            case Raw():
                await self._write(action.data)
            case Http():
                self.status = action.status
                self._response = _plain(action)
            case End():
                await self._end(action)
            case Pause():
                pass  # the reply is over; the server waits for the test after it has counted it

    def _look_at(self, chunk: dict[str, Any]) -> None:
        for choice in chunk.get("choices", []):
            self.complete = self.complete or choice.get("finish_reason") is not None
            for call in choice.get("delta", {}).get("tool_calls", []):
                if call.get("id") and call.get("index", len(self.sent_ids)) >= len(self.sent_ids):
                    self.sent_ids.append(call["id"])

    async def _write(self, data: bytes) -> None:
        delay_ms = self._setup.chunk_delay_ms if self._sent else self._setup.first_token_delay_ms
        response = await self._stream()
        if delay_ms:
            await asyncio.sleep(delay_ms / 1000)
        self._sent += 1
        await response.write(data)

    async def _stream(self) -> web.StreamResponse:
        if self._response is None:
            self._response = web.StreamResponse(
                headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
            )
            await self._response.prepare(self._request)
        return self._response

    async def _end(self, action: End) -> None:
        response = await self._stream()
        if action.kind == "done":
            await response.write(b"data: [DONE]\n\n")
        if action.kind != "abort":
            await response.write_eof()
        elif self._request.transport is not None:
            # Not a reset: that would also destroy what the client has received but not yet read.
            self._request.transport.close()


def _plain(action: Http) -> web.Response:
    headers = dict(action.headers)
    body = action.body if isinstance(action.body, str) else json.dumps(action.body)
    if isinstance(action.body, str):
        headers.setdefault("Content-Type", "text/html")
    else:
        headers.setdefault("Content-Type", "application/json")
    return web.Response(status=action.status, headers=headers, body=body.encode())


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response(
        {"error": {"message": message, "type": "invalid_request_error"}}, status=status, headers=headers
    )


def _loaded(script: Script | str | Path | Iterable[Mapping[str, Any]]) -> Script:
    if isinstance(script, Script):
        return script
    if isinstance(script, str | Path):
        return load_script(script)
    lines = list(script)
    return script_of(lines) if lines else Script(replies=())
