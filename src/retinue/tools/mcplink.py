"""The connection to one MCP server: opened, asked, ended, opened again after a crash; it decides nothing for a model.

The protocol's own SDK speaks; it is loaded when the first server is. Each connection lives in a task of its own, in
which everything that must be left where it was entered is left.
"""

import asyncio
import importlib
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import cache
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
SIGN_OF_LIFE_MAX_S: Final = 5.0
"""Seconds that a server which let a call time out has to answer a ping before it is started anew."""
CONNECT_MAX_S: Final = 30.0
READ_MAX_S: Final = 300.0
_ENDED: Final = ("Connection closed", "Session terminated")
"""What the SDK says of a connection that is no more."""


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
        self._doubtful = False
        """Whether the last call timed out: the next one asks first whether the server is there."""

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
        """Return the result of one call; a server that died before is started again. Raises `LinkError`.

        A call that is given up is not waited for: the server hears of it, and has its own time for that.
        """
        session = await self._open()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        asked = self._begin(_ask(session, tool, dict(arguments), answer))
        try:
            result = await asyncio.wait_for(answer, self.server.call_timeout_s)
        except TimeoutError as error:
            self._doubtful = True
            raise self._error(f"did not answer within {self.server.call_timeout_s:g} s") from error
        except Exception as error:
            why = _plain(error)
            if any(word in why for word in _ENDED):
                self._process.why_gone = self._process.why_gone or "the connection ended"
            if self._is_gone():
                raise self._error(f"is gone: {self._process.why_gone or 'the connection ended'}") from error
            raise self._error(f"could not do it: {why}") from error
        finally:
            asked.cancel()
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
            if not self._is_gone() and await self._answers():
                return self._session
            await self.close()
            if self._starts >= STARTS_IN_A_ROW_MAX:
                raise self._error(f"ended {self._starts} times in a row; it is not started again")
            self._starts += 1
            self._doubtful = False
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

    async def _answers(self) -> bool:
        """Return whether a server is there; only one that has let a call time out is asked."""
        if self._doubtful:
            try:
                async with asyncio.timeout(SIGN_OF_LIFE_MAX_S):
                    await self._session.send_ping()
            except Exception:  # noqa: BLE001 - whatever it is, it is no sign of life
                return False
            self._doubtful = False
        return True

    async def _abandon(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,), timeout=LEFT_MAX_S)

    async def _live(self, ready: "asyncio.Future[Any]", leave: asyncio.Event) -> None:
        """Hold the connection open from one task until it is to be left, or the server is gone."""
        try:
            async with self._connected() as session:
                await _greet(session)
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
        session_of = _session_class()
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
            open_sse = _loaded("mcp.client.sse", "sse_client")
            return open_sse(self.server.url, headers=dict(self.server.headers), httpx_client_factory=_http_client)
        client = await stack.enter_async_context(_http_client(self.server.headers))
        open_streams = _loaded("mcp.client.streamable_http", "streamable_http_client")
        return open_streams(self.server.url, http_client=client, max_sse_event_size=EVENT_MAX_BYTES)

    def _error(self, what: str) -> LinkError:
        said = f" It wrote: {fit_bytes(self._process.tail, SAID_MAX_BYTES)}" if self._process.tail else ""
        # What a server writes must not pass for a line of ours, nor move a terminal.
        text = _one_line(f"The MCP server {self.server.name!r} {what.rstrip('.')}.{said}")
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


def _one_line(text: str) -> str:
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


async def _ask(session: Any, tool: str, arguments: dict[str, Any], answer: "asyncio.Future[Any]") -> None:
    try:
        result = await session.call_tool(tool, arguments)
    except Exception as error:  # noqa: BLE001 - whatever the SDK raises is this call's answer
        if not answer.done():
            answer.set_exception(error)
            answer.exception()
    else:
        if not answer.done():
            answer.set_result(result)


async def _greet(session: Any) -> None:
    """Agree on a version of the protocol: the handshake that nearly all servers speak, else the newer discovery."""
    try:
        await session.initialize()
    except Exception as error:
        is_refusal = type(error).__name__ == "MCPError" and not any(word in str(error) for word in _ENDED)
        if not is_refusal:
            raise
        await session.discover()


@cache
def _session_class() -> Callable[..., Any]:
    """Return the SDK's session without its check of results against the server's own schema.

    A pattern in such a schema runs on the event loop, for ever if the server wants it to.
    """
    base = _loaded("mcp.client.session", "ClientSession")
    logging.getLogger("mcp").addHandler(logging.NullHandler())
    logging.getLogger("client").addHandler(logging.NullHandler())
    return type("Session", (cast("type", base),), {"validate_tool_result": _unchecked})


async def _unchecked(_session: Any, _name: str, _result: Any) -> None:
    """Check nothing."""


def _http_client(headers: Mapping[str, str], **_more: Any) -> Any:
    """Return an HTTP client whose answers are bounded; what a server packs is refused: it may unpack to anything.

    The SDK bounds events itself. What else it would set (times, its own ways to sign in) is not taken.
    """
    library: Any = importlib.import_module("httpx2")

    async def bound(response: Any) -> None:
        if response.headers.get("content-encoding", "identity") != "identity":
            raise ValueError("it sent a packed answer, which was not asked for")
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = _bounded(library)(response.stream)

    return library.AsyncClient(
        headers={**headers, "Accept-Encoding": "identity"},
        timeout=library.Timeout(CONNECT_MAX_S, read=READ_MAX_S),
        event_hooks={"response": [bound]},
        trust_env=False,
    )


@cache
def _bounded(library: Any) -> Callable[[Any], Any]:
    async def read(self: Any) -> AsyncGenerator[bytes]:
        size = 0
        async for piece in self.inner:
            size += len(piece)
            if size > EVENT_MAX_BYTES:
                raise ValueError(f"it sent an answer of more than {EVENT_MAX_BYTES} bytes")
            yield piece

    async def close(self: Any) -> None:
        await self.inner.aclose()

    def begin(self: Any, inner: Any) -> None:
        self.inner = inner

    made: Any = type("Bounded", (library.AsyncByteStream,), {"__init__": begin, "__aiter__": read, "aclose": close})
    return made


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
    return fit_bytes(str(error).strip().split("\n")[0] or type(error).__name__, SAID_MAX_BYTES)
