"""A loopback model server for load: one parent that spawns N children, each with K tool rounds; it checks nothing."""

import argparse
import asyncio
import json
from typing import Any

from aiohttp import web

CHUNKS = 10
MARK = "[child]"


def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
    """Return one stream event."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"id": "x", "object": "chat.completion.chunk", "choices": [choice]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
USAGE_CHUNK = b"data: " + json.dumps({"id": "x", "choices": [], "usage": USAGE}).encode() + b"\n\ndata: [DONE]\n\n"


def spawn_calls(children: int) -> list[dict[str, Any]]:
    """Return the calls of the parent's first reply."""
    return [
        {"index": i, "id": f"p{i}", "type": "function", "function": {"name": "spawn_agent", "arguments": arguments(i)}}
        for i in range(children)
    ]


def arguments(number: int) -> str:
    """Return the arguments of one spawn."""
    return json.dumps({"prompt": f"{MARK} task {number}", "name": f"kid{number}"})


def ping_call(number: int) -> list[dict[str, Any]]:
    """Return one call of the `ping` tool."""
    return [{"index": 0, "id": f"t{number}", "type": "function", "function": {"name": "ping", "arguments": "{}"}}]


class Server:
    """Answers by what the history says."""

    def __init__(self, children: int, rounds: int, first_s: float, gap_s: float) -> None:
        """Answer every parent with `children` spawns and every child with `rounds` calls of `ping`."""
        self.children, self.rounds = children, rounds
        self.first_s, self.gap_s = first_s, gap_s
        self.active = self.peak = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request, streamed where it asks for that."""
        body = await request.json()
        self.active += 1
        self.peak = max(self.peak, self.active)
        try:
            calls, text = self.reply(body["messages"])
            if body.get("stream"):
                return await self.stream(request, calls, text)
            message: dict[str, Any] = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
            finish = "tool_calls" if calls else "stop"
            choice = {"index": 0, "message": message, "finish_reason": finish}
            return web.json_response({"id": "x", "object": "chat.completion", "choices": [choice], "usage": USAGE})
        finally:
            self.active -= 1

    def reply(self, messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
        """Return the calls and the text that come next."""
        first = next(m for m in messages if m["role"] == "user")
        answered = sum(m["role"] == "tool" for m in messages)
        if MARK in str(first["content"]):
            return (ping_call(answered), "") if answered < self.rounds else ([], "word " * CHUNKS)
        return (spawn_calls(self.children), "") if answered == 0 else ([], "word " * CHUNKS)

    async def stream(self, request: web.Request, calls: list[dict[str, Any]], text: str) -> web.StreamResponse:
        """Send the reply in about ten chunks."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if self.first_s:
            await asyncio.sleep(self.first_s)
        for piece in self.pieces(calls, text):
            await response.write(piece)
            if self.gap_s:
                await asyncio.sleep(self.gap_s)
        await response.write(USAGE_CHUNK)
        await response.write_eof()
        return response

    def pieces(self, calls: list[dict[str, Any]], text: str) -> list[bytes]:
        """Return the reply's chunks before the usage."""
        pieces = [chunk({"role": "assistant", "content": ""})]
        if calls:
            pieces += [chunk({"tool_calls": [call]}) for call in calls]
            pieces += [chunk({"content": ""}) for _ in range(CHUNKS - 2 - len(calls))]
            return [*pieces, chunk({}, "tool_calls")]
        pieces += [chunk({"content": word + " "}) for word in text.split()[: CHUNKS - 2]]
        return [*pieces, chunk({}, "stop")]


async def health(request: web.Request) -> web.Response:
    """Say how busy it was."""
    return web.json_response({"peak": request.app["server"].peak})


def main() -> None:
    """Serve until the process is ended; print the base URL first."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--children", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--first-ms", type=float, default=0)
    parser.add_argument("--gap-ms", type=float, default=0)
    options = parser.parse_args()
    server = Server(options.children, options.rounds, options.first_ms / 1000, options.gap_ms / 1000)
    asyncio.run(serve(server))


async def serve(server: Server) -> None:
    """Listen on a free loopback port."""
    app = web.Application(client_max_size=1 << 30)
    app["server"] = server
    app.router.add_post("/v1/chat/completions", server.answer)
    app.router.add_get("/peak", health)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    print(f"http://127.0.0.1:{port}/v1", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    main()
