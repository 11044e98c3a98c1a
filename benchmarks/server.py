"""A loopback model server for load: one parent that spawns N children, each with K tool rounds; it checks nothing.

It speaks just enough HTTP by itself, so that it is not what a benchmark measures. A reply has ten chunks.
"""

import argparse
import asyncio
import json
from typing import Any

import msgspec

CHUNKS = 10
MARK = "[child]"
WORDS = "word " * CHUNKS
USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def framed(data: bytes) -> bytes:
    """Return one chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(delta: dict[str, Any], finish: str | None = None) -> bytes:
    """Return one stream event, framed."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"id": "x", "object": "chat.completion.chunk", "choices": [choice]}
    return framed(b"data: " + json.dumps(body).encode() + b"\n\n")


LAST = framed(b"data: " + json.dumps({"id": "x", "choices": [], "usage": USAGE}).encode() + b"\n\ndata: [DONE]\n\n")
LAST += b"0\r\n\r\n"


def calls_of(name: str, arguments: list[str]) -> list[dict[str, Any]]:
    """Return calls of one function."""
    return [
        {"index": i, "id": f"{name}{i}", "type": "function", "function": {"name": name, "arguments": text}}
        for i, text in enumerate(arguments)
    ]


def streamed(calls: list[dict[str, Any]]) -> list[bytes]:
    """Return a reply's pieces: calls spread over its chunks, or words."""
    pieces = [event({"role": "assistant", "content": ""})]
    if calls:
        share = -(-len(calls) // (CHUNKS - 2))
        groups = [calls[i : i + share] for i in range(0, len(calls), share)]
        pieces += [event({"tool_calls": group}) for group in groups]
        pieces += [event({"content": ""}) for _ in range(CHUNKS - 2 - len(groups))]
        return [*pieces, event({}, "tool_calls"), LAST]
    return [*pieces, *(event({"content": "word "}) for _ in range(CHUNKS - 2)), event({}, "stop"), LAST]


def whole(calls: list[dict[str, Any]]) -> bytes:
    """Return a reply that is not streamed."""
    message: dict[str, Any] = {"role": "assistant", "content": "" if calls else WORDS}
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    body = json.dumps({"id": "x", "object": "chat.completion", "choices": [choice], "usage": USAGE}).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


class Replies:
    """The replies of one load, made once."""

    def __init__(self, children: int, rounds: int) -> None:
        """Know what comes when."""
        spawns = [json.dumps({"prompt": f"{MARK} task {n}", "name": f"kid{n}"}) for n in range(children)]
        self.rounds = rounds
        self.kinds = {"spawn": calls_of("spawn_agent", spawns), "ping": calls_of("ping", ["{}"]), "text": []}
        self.streams = {kind: streamed(calls) for kind, calls in self.kinds.items()}
        self.wholes = {kind: whole(calls) for kind, calls in self.kinds.items()}

    def kind(self, messages: list[dict[str, Any]]) -> str:
        """Return which reply a history asks for."""
        first = next(m for m in messages if m["role"] == "user")
        answered = sum(m["role"] == "tool" for m in messages)
        if MARK in str(first["content"]):
            return "ping" if answered < self.rounds else "text"
        return "spawn" if answered == 0 else "text"


class Connection(asyncio.Protocol):
    """One keep-alive connection."""

    def __init__(self, replies: Replies, first_s: float, gap_s: float) -> None:
        """Answer with `replies`, in time."""
        self.replies, self.first_s, self.gap_s = replies, first_s, gap_s
        self.buffer = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        if isinstance(transport, asyncio.Transport):
            self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer each whole request."""
        self.buffer += data
        head, end, rest = self.buffer.partition(b"\r\n\r\n")
        if not end:
            return
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        length = int(fields.get(b"content-length", b"0"))
        if len(rest) >= length:
            self.buffer = rest[length:]
            self.answer(msgspec.json.decode(rest[:length]))

    def answer(self, body: dict[str, Any]) -> None:
        """Send a reply, piece by piece where it is streamed."""
        kind = self.replies.kind(body["messages"])
        if not body.get("stream"):
            self.later(self.first_s, self.replies.wholes[kind])
            return
        pieces = self.replies.streams[kind]
        if not self.gap_s:
            self.later(self.first_s, STREAM_HEAD + b"".join(pieces))
            return
        self.write(STREAM_HEAD)
        self.send(self.first_s, pieces, 0)

    def send(self, wait_s: float, pieces: list[bytes], number: int) -> None:
        """Send one piece after a while, and then the next."""
        asyncio.get_running_loop().call_later(wait_s, self.next, pieces, number)

    def next(self, pieces: list[bytes], number: int) -> None:
        """Send a piece; the last two go together."""
        last = number >= len(pieces) - 2
        self.write(b"".join(pieces[number:]) if last else pieces[number])
        if not last:
            self.send(self.gap_s, pieces, number + 1)

    def later(self, wait_s: float, data: bytes) -> None:
        """Send everything at once after a while."""
        asyncio.get_running_loop().call_later(wait_s, self.write, data)

    def write(self, data: bytes) -> None:
        """Write unless the client left."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)


async def serve(options: argparse.Namespace) -> None:
    """Listen on a free loopback port and print the base URL."""
    replies = Replies(options.children, options.rounds)
    loop = asyncio.get_running_loop()
    waits = options.first_ms / 1000, options.gap_ms / 1000
    server = await loop.create_server(lambda: Connection(replies, *waits), "127.0.0.1", 0, backlog=4096)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--children", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--first-ms", type=float, default=0)
    parser.add_argument("--gap-ms", type=float, default=0)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
