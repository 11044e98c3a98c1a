"""A real MCP server on the SDK's server side, with tools that answer, hang, die and flood.

`demo.py` speaks over stdio, `demo.py http` over HTTP on a port of its own, which it prints.
"""

import os
import socket
import sys
from pathlib import Path

import anyio
import uvicorn
from mcp.server.mcpserver import MCPServer

server = MCPServer("demo")
LINE = "0123456789abcdef" * 64 + "\n"


def note(what: str) -> None:
    """Leave a word where a test looks."""
    folder = os.environ.get("NOTES")
    if folder:
        with (Path(folder) / "notes").open("a") as file:
            file.write(f"{what}\n")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def large(mebibytes: int) -> str:
    """Answer with that many MiB of text."""
    return LINE * (mebibytes * 1024 * 1024 // len(LINE))


@server.tool()
async def hang() -> str:
    """Never answer."""
    note("hanging")
    try:
        await anyio.sleep_forever()
    finally:
        note("cancelled")
    return ""


@server.tool()
def die() -> str:
    """End the process in the middle of the call."""
    print("about to die", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
def fail() -> str:
    """Raise."""
    raise ValueError("it cannot be done")


@server.tool()
async def garbage(lines: int) -> str:
    """Write that many lines that are no JSON, then answer."""
    os.write(1, b"this is no JSON\n" * lines)
    return "done"


@server.tool()
async def notify(count: int) -> str:
    """Send that many notifications, then answer."""
    one = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}\n'
    for _ in range(count // 100):
        os.write(1, one * 100)
    return "done"


@server.tool()
def variables() -> str:
    """Name the variables of the environment."""
    return " ".join(sorted(os.environ))


@server.tool()
def leave_a_child() -> str:
    """Start a process that outlives the server, and return its number."""
    return str(os.spawnvp(os.P_NOWAIT, "sleep", ["sleep", "600"]))


def main() -> None:
    """Serve."""
    note(f"started {os.getpid()}")
    if sys.argv[1:] == []:
        server.run("stdio")
        return
    kind, port = sys.argv[1:]
    door = socket.socket()
    door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    door.bind(("127.0.0.1", int(port)))
    app = server.sse_app() if kind == "sse" else server.streamable_http_app()
    door.listen()
    print(door.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[door])


if __name__ == "__main__":
    main()
