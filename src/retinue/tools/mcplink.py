"""The connection to one MCP server: opened, asked, ended, opened again after a crash; it decides nothing for a model.

The protocol's own SDK speaks; it is loaded when the first server is. Each connection lives in a task of its own, in
which everything that must be left where it was entered is left.
"""

import asyncio
import importlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, Protocol, cast

import msgspec

from retinue.core.errors import RetinueError
from retinue.core.text import fit_bytes
from retinue.ports import Clock
from retinue.tools.mcpstdio import Command, Process

STARTS_IN_A_ROW_MAX: Final = 3
"""How often a server is started that ends before it has answered a call."""
SAID_MAX_BYTES: Final = 600
"""Bytes of what a server says about itself in an error."""
EVENT_MAX_BYTES: Final = 40 * 1024 * 1024
TOOLS_MAX: Final = 128
PAGES_MAX: Final = 32
LEFT_MAX_S: Final = 5.0
"""Seconds that a connection has to be left."""


class Begin(Protocol):
    """Runs a coroutine as a task of the runtime."""

    def __call__(self, coroutine: Coroutine[Any, Any, None], /) -> "asyncio.Task[None]":
        """Return the task."""
        ...


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A server as it is reached: a command, or an address; everything is expanded."""

    name: str
    command: Command | None = None
    url: str = ""
    headers: Mapping[str, str] = {}
    legacy_sse: bool = False
    startup_timeout_s: float = 10.0
    call_timeout_s: float = 300.0
    secrets: tuple[str, ...] = ()
    """Texts that no error may repeat."""


class LinkError(Exception):
    """A server could not be asked; the message is one sentence for a model and a person."""


class Link:
    """One server."""

    def __init__(self, server: Server, begin: Begin, clock: Clock) -> None:
        """Open nothing yet."""
        self.server: Final = server
        self._begin = begin
        self._clock = clock
        self._process = Process(clock.sleep)
        self._session: Any = None
        self._task: asyncio.Task[None] | None = None
        self._leave = asyncio.Event()
        self._opening = asyncio.Lock()
        self._starts = 0

    async def tools(self) -> list[Any]:
        """Open the connection and return the tools that the server has, at most `TOOLS_MAX`. Raises `LinkError`."""
        session = await self._open()
        found: list[Any] = []
        cursor = None
        try:
            async with asyncio.timeout(self.server.startup_timeout_s):
                for _ in range(PAGES_MAX):
                    page = await session.list_tools(params=_page(cursor))
                    found.extend(page.tools)
                    cursor = page.next_cursor
                    if cursor is None or len(found) >= TOOLS_MAX:
                        break
        except TimeoutError as error:
            raise self._error(f"did not list its tools within {self.server.startup_timeout_s:g} s") from error
        except Exception as error:
            raise self._error(f"did not list its tools: {_plain(error)}") from error
        return found[:TOOLS_MAX]

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        """Return the result of one call; a server that died before is started again. Raises `LinkError`."""
        session = await self._open()
        limit = self.server.call_timeout_s
        try:
            async with asyncio.timeout(limit):
                result = await session.call_tool(tool, dict(arguments))
        except TimeoutError as error:
            raise self._error(f"did not answer within {limit:g} s") from error
        except Exception as error:
            if self._is_gone():
                raise self._error(f"is gone: {self._process.why_gone or 'the connection ended'}") from error
            raise self._error(f"could not do it: {_plain(error)}") from error
        self._starts = 0
        return result

    async def close(self) -> None:
        """Leave the connection and end the server; idempotent."""
        task, self._task = self._task, None
        self._leave.set()
        if task is not None and not task.done():
            await asyncio.wait((task,), timeout=LEFT_MAX_S)
            task.cancel()
            await asyncio.wait((task,), timeout=LEFT_MAX_S)

    def _is_gone(self) -> bool:
        return self._task is None or self._task.done() or bool(self._process.why_gone)

    async def _open(self) -> Any:
        """Return the open session, or open one; calls that come meanwhile wait for the same."""
        async with self._opening:
            if not self._is_gone():
                return self._session
            await self.close()
            if self._starts >= STARTS_IN_A_ROW_MAX:
                raise self._error(f"ended {self._starts} times in a row; it is not started again")
            self._starts += 1
            self._leave = asyncio.Event()
            self._process = Process(self._clock.sleep)
            ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._task = self._begin(self._live(ready, self._leave))
            try:
                self._session = await asyncio.wait_for(asyncio.shield(ready), self.server.startup_timeout_s)
            except TimeoutError as error:
                await self._abandon()
                raise self._error(f"did not start within {self.server.startup_timeout_s:g} s") from error
            except (asyncio.CancelledError, LinkError):
                await self._abandon()
                raise
            return self._session

    async def _abandon(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,), timeout=LEFT_MAX_S)

    async def _live(self, ready: "asyncio.Future[Any]", leave: asyncio.Event) -> None:
        """Hold the connection open from one task until it is to be left, or the server is gone."""
        try:
            async with self._connected() as session:
                await session.initialize()
                if not ready.done():
                    ready.set_result(session)
                await leave.wait()
        except Exception as error:  # noqa: BLE001 - whatever a server or a library does, it ends this connection only
            self._process.why_gone = self._process.why_gone or _plain(error)
            if not ready.done():
                ready.set_exception(self._error(f"could not be started: {self._process.why_gone}"))
                ready.exception()
        finally:
            ready.cancel()

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[Any]:
        session_of = _loaded("mcp.client.session", "ClientSession")
        async with AsyncExitStack() as stack:
            if self.server.command is not None:
                anyio = importlib.import_module("anyio")
                streams = self._process.streams(self.server.command, anyio, _message_of())
            else:
                streams = await self._http(stack)
            ours, theirs = await stack.enter_async_context(streams)
            yield await stack.enter_async_context(session_of(ours, theirs))

    async def _http(self, stack: AsyncExitStack) -> Any:
        if self.server.legacy_sse:
            return _loaded("mcp.client.sse", "sse_client")(self.server.url, headers=dict(self.server.headers))
        make = _loaded("mcp.shared._httpx_utils", "create_mcp_http_client")
        client = await stack.enter_async_context(make(headers=dict(self.server.headers)))
        open_streams = _loaded("mcp.client.streamable_http", "streamable_http_client")
        return open_streams(self.server.url, http_client=client, max_sse_event_size=EVENT_MAX_BYTES)

    def _error(self, what: str) -> LinkError:
        said = f" It wrote: {fit_bytes(self._process.tail, SAID_MAX_BYTES)}" if self._process.tail else ""
        text = f"The MCP server {self.server.name!r} {what.rstrip('.')}.{said}"
        for secret in self.server.secrets:
            text = text.replace(secret, "…")
        return LinkError(text)


def require_sdk() -> None:
    """Raise `unsupported` where the extra is not installed."""
    try:
        importlib.import_module("mcp")
    except ImportError as error:
        raise RetinueError(
            "unsupported", "MCP servers are configured, but the extra is not installed.", "pip install 'retinue[mcp]'"
        ) from error


def _loaded(module: str, name: str) -> Callable[..., Any]:
    return getattr(importlib.import_module(module), name)


def _page(cursor: str | None) -> Any:
    return None if cursor is None else _loaded("mcp.types", "PaginatedRequestParams")(cursor=cursor)


def _message_of() -> Callable[[bytes], Any]:
    adapter: Any = importlib.import_module("mcp.types").jsonrpc_message_adapter
    wrapped = _loaded("mcp.shared.message", "SessionMessage")

    def parse(line: bytes) -> Any:
        try:
            return wrapped(adapter.validate_json(line, by_name=False))
        except ValueError:
            return None

    return parse


def _plain(error: BaseException) -> str:
    """Return the innermost cause in one line: task groups wrap what happened in them."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return fit_bytes(" ".join(str(error).split()) or type(error).__name__, SAID_MAX_BYTES)
