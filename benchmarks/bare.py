"""The same requests as `fanout.py` from a bare aiohttp client that decodes every chunk; prints one JSON line."""

import argparse
import asyncio
import json
import time
from typing import Any

import aiohttp
import msgspec

MARK = "[child]"
TOOL = {"type": "function", "function": {"name": "ping", "description": "Answer.", "parameters": {"type": "object"}}}


async def ask(session: aiohttp.ClientSession, url: str, messages: list[dict[str, Any]], *, stream: bool) -> int:
    """Send one request and return how many pieces came back."""
    body: dict[str, Any] = {"model": "any", "messages": messages, "tools": [TOOL], "stream": stream}
    pieces = 0
    async with session.post(f"{url}/chat/completions", data=msgspec.json.encode(body)) as response:
        if not stream:
            msgspec.json.decode(await response.read())
            return 1
        async for line in response.content:
            if line.startswith(b"data: {"):
                msgspec.json.decode(line[6:])
                pieces += 1
    return pieces


async def child(session: aiohttp.ClientSession, options: argparse.Namespace, number: int) -> int:
    """Send what one child sends."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"{MARK} task {number}"}]
    pieces = 0
    for step in range(options.rounds + 1):
        pieces += await ask(session, options.base_url, messages, stream=options.stream)
        call = {"id": f"c{step}", "type": "function", "function": {"name": "ping", "arguments": "{}"}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{step}", "content": "pong"})
    return pieces


async def run(options: argparse.Namespace) -> dict[str, float]:
    """Run all children at once and return the figures."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        cpu, wall = time.process_time(), time.perf_counter()
        pieces = sum(await asyncio.gather(*(child(session, options, number) for number in range(options.children))))
        return {
            "wall_s": round(time.perf_counter() - wall, 4),
            "cpu_s": round(time.process_time() - cpu, 4),
            "pieces": pieces,
        }


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--children", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--stream", action="store_true")
    print(json.dumps(asyncio.run(run(parser.parse_args()))))


if __name__ == "__main__":
    main()
