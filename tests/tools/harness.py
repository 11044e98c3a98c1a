"""A tool context for tests, and a few odd files; it is no runtime."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio

from retinue.core.ids import CallId, SessionId
from retinue.ports import Tool, ToolResult
from retinue.tools.workspace import workspace_tools

NOBODY = 65534


class FakeContext:
    """Serves one folder; what is offloaded runs at once and is counted."""

    def __init__(self, cwd: Path | str, data_dir: Path | str | None = None) -> None:
        self.session_id = SessionId("s_test")
        self.call_id = CallId("c_test")
        self.cwd = str(cwd)
        self.data_dir = str(data_dir or Path(cwd) / ".retinue")
        self.offloaded = 0

    async def offload(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.offloaded += 1
        return call(*args, **kwargs)


def tool_named(name: str) -> Tool:
    return {tool.schema.name: tool for tool in workspace_tools()}[name]


def call(tool: Tool | str, context: FakeContext, **arguments: Any) -> ToolResult:
    found = tool_named(tool) if isinstance(tool, str) else tool

    async def run() -> ToolResult:
        return await found.call(context, arguments)

    return anyio.run(run)


@contextmanager
def without_privileges() -> Iterator[None]:
    """As a user whom file modes bind; root passes every one of them."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
