"""An MCP server's tool: the main session has it; a child has it only when it is given by name.

pip install 'retinue[mcp]'; python examples/10_mcp_tool.py
"""

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

import retinue
from retinue.testing.scripted import ScriptedModel

FOLDER = tempfile.TemporaryDirectory()
PROGRAM = Path(FOLDER.name, "stock.py")
SERVER = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("stock")
@server.tool()
def count(item: str) -> int:
    "How many of an item are in stock."
    return {"lamp": 7, "chair": 2}.get(item, 0)
server.run("stdio")
"""


def count(item: str) -> dict[str, Any]:
    return {"name": "mcp__stock__count", "arguments": {"item": item}}


def spawn(name: str, *tools: str) -> dict[str, Any]:
    arguments = {"name": name, "prompt": "Count chairs.", "mode": "await", "tools": ["grep", *tools]}
    return {"name": "spawn_agent", "arguments": arguments}


SCRIPT = [
    {"agent": "parent", "tool_calls": [count("lamp")]},
    {"agent": "parent", "tool_calls": [spawn("without"), spawn("with", "mcp__stock__count")]},
    *({"agent": "child", "tool_calls": [count("chair")]}, {"agent": "child", "text": "Done."}),
    {"agent": "parent", "text": "Seven lamps, two chairs."},
]


async def main() -> None:
    settings = retinue.read_settings()
    settings.mcp["stock"] = {"command": sys.executable, "args": [str(PROGRAM)]}  # as [mcp.stock]
    async with retinue.open(settings=settings, model=ScriptedModel(SCRIPT)) as runtime:
        root = await runtime.create_session()
        async for event in root.prompt("What is in stock?"):
            body = event.to_dict()
            if body["type"] == "tool.started" and "count" in body["name"]:
                print("called by", "the main session" if event.session_id == root.session_id else "a child")
            if body["type"] == "tool.finished" and body["code"] == "unknown_tool":
                print("refused to a child that was not given it")


with FOLDER:
    PROGRAM.write_text(SERVER)
    asyncio.run(main())
