"""Tools of MCP servers: which servers there are, how their tools are called here, what their results say to a model.

A server that hangs, dies or floods harms one call. The list of tools is fixed when the runtime opens, so that the
beginning of requests stays as it is.
"""

import asyncio
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, cast

import msgspec

from retinue.core.errors import RetinueError
from retinue.core.text import fit_chars
from retinue.ports import Clock, Tool, ToolContext, ToolResult, ToolSchema
from retinue.tools.mcplink import Begin, Link, LinkError, Server, require_sdk
from retinue.tools.mcpstdio import Command

RESULT_MAX_CHARS: Final = 16 * 1024 * 1024
DESCRIPTION_MAX_CHARS: Final = 4_000
SCHEMA_MAX_BYTES: Final = 64 * 1024
NAME_MAX_CHARS: Final = 64
SERVERS_MAX: Final = 32
TIMEOUT_MAX_S: Final = 86_400.0
SECRET_MIN_CHARS: Final = 6
SAFE_VARIABLES: Final = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER")
"""What a server's process has of our environment: no key is among it."""
_ODD: Final = re.compile(r"[^A-Za-z0-9_-]")
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")

Seconds = Annotated[float, msgspec.Meta(gt=0, le=TIMEOUT_MAX_S)]


class ServerTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[mcp.NAME]`: a `command` to start, or the `url` of a server that runs."""

    command: str | None = None
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str | None = None
    headers: dict[str, str] = {}
    transport: Literal["stdio", "http", "sse"] | None = None
    enabled: bool = True
    startup_timeout_s: Seconds = 10.0
    call_timeout_s: Seconds = 300.0
    tools: tuple[str, ...] | None = None
    """Names of its tools that are taken; null takes all."""
    disabled_tools: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ConnectorTool:
    """A tool of a server, under the name that it has here."""

    link: Link
    name: str
    schema: ToolSchema
    exclusive: bool = False
    group: Literal["connector"] = "connector"

    async def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:  # noqa: ARG002 - the port's
        """Answer one call; what the server does wrong is an error result."""
        try:
            result = await self.link.call(self.name, arguments)
        except LinkError as error:
            return ToolResult(text=str(error), outcome="error")
        text = text_of(result)
        if len(text) > RESULT_MAX_CHARS:
            shown = f"{self.schema.name} answered with more than {RESULT_MAX_CHARS} characters; it is not passed on."
            return ToolResult(text=shown, outcome="error")
        return ToolResult(text=text, outcome="error" if result.is_error else "ok")


class Connectors:
    """All servers of a runtime."""

    def __init__(self) -> None:
        """Hold none yet."""
        self.tools: list[Tool] = []
        self.problems: list[str] = []
        """What a person should know, in sentences: servers that are left out, tools that are."""
        self._links: list[Link] = []

    async def connect(self, servers: Sequence[tuple[Server, ServerTable]], begin: Begin, clock: Clock) -> None:
        """Open every server at once, each within its time; one that fails is a problem, and has no tools.

        Raises `unsupported` where servers are configured and the extra is not installed.
        """
        if not servers:
            return
        require_sdk()
        self._links = [Link(server, begin, clock) for server, _ in servers]
        found = await asyncio.gather(*(link.tools() for link in self._links), return_exceptions=True)
        taken: set[str] = set()
        for link, (_, table), tools in zip(self._links, servers, found, strict=True):
            if isinstance(tools, BaseException):
                self.problems.append(f"{tools} Its tools are not offered.")
                if not isinstance(tools, LinkError):
                    raise tools
                continue
            for tool in tools:
                self._add(link, table, tool, taken)

    def _add(self, link: Link, table: ServerTable, found: Any, taken: set[str]) -> None:
        name = str(found.name)
        if (table.tools is not None and name not in table.tools) or name in table.disabled_tools:
            return
        called = tool_name(link.server.name, name)
        schema = found.input_schema
        why = _unusable(schema) or ("another tool has that name" if called in taken else None)
        if why is not None:
            self.problems.append(f"The tool {name[:100]!r} of the MCP server {link.server.name!r} is left out: {why}.")
            return
        taken.add(called)
        about = fit_chars(str(found.description or found.title or name), DESCRIPTION_MAX_CHARS)[0]
        told = ToolSchema(name=called, description=about, parameters=dict(schema))
        self.tools.append(ConnectorTool(link, name, told))

    async def close(self) -> None:
        """End every server."""
        await asyncio.gather(*(link.close() for link in self._links))


def servers_of(
    tables: Mapping[str, Any], environment: Mapping[str, str], cwd: str
) -> tuple[list[tuple[Server, ServerTable]], list[str]]:
    """Return the servers that are to be opened, and why others are not: each wrong table is one sentence."""
    found: list[tuple[Server, ServerTable]] = []
    problems: list[str] = []
    for name, raw in tables.items():
        try:
            table = msgspec.convert(raw, ServerTable)
            if table.enabled:
                found.append((_server(name, table, environment, cwd), table))
        except (msgspec.ValidationError, RetinueError) as error:
            why = error.detail if isinstance(error, RetinueError) else str(error)
            problems.append(f"The MCP server {name[:64]!r} is left out: {why}.")
    if len(found) > SERVERS_MAX:
        problems.append(f"There are {len(found)} MCP servers; the first {SERVERS_MAX} are opened.")
    return found[:SERVERS_MAX], problems


def _server(name: str, table: ServerTable, environment: Mapping[str, str], cwd: str) -> Server:
    if (table.command is None) == (table.url is None):
        raise RetinueError("invalid", "give either a command or a url")
    if (table.transport == "stdio") != (table.command is not None) and table.transport is not None:
        raise RetinueError("invalid", f"the transport {table.transport} does not fit")
    used: list[str] = []
    env = {key: expanded(value, environment, used) for key, value in table.env.items()}
    headers = {key: expanded(value, environment, used) for key, value in table.headers.items()}
    url = expanded(table.url or "", environment, used)
    command = None
    if table.command is not None:
        base = {key: environment[key] for key in SAFE_VARIABLES if key in environment}
        command = Command(
            command=expanded(table.command, environment, used),
            args=tuple(expanded(arg, environment, used) for arg in table.args),
            env={**base, **env},
            cwd=os.path.join(cwd, expanded(table.cwd or ".", environment, used)),
        )
    return Server(
        name=name,
        command=command,
        url=url,
        headers=headers,
        legacy_sse=table.transport == "sse",
        startup_timeout_s=table.startup_timeout_s,
        call_timeout_s=table.call_timeout_s,
        secrets=tuple(value for value in (*env.values(), *headers.values(), *used) if len(value) >= SECRET_MIN_CHARS),
    )


def expanded(text: str, environment: Mapping[str, str], used: list[str]) -> str:
    """Return a text with `${NAME}` and `${NAME:-default}` filled in; raise `invalid` for a variable that is not set.

    What came from the environment is added to `used`: any of it may be a key. As in a shell, the default also stands
    for an empty variable.
    """

    def fill(found: re.Match[str]) -> str:
        default: str | None = found[2]
        value = environment.get(found[1], default)
        if value is None:
            raise RetinueError("invalid", f"the variable {found[1]} is not set")
        if found[1] in environment:
            used.append(value)
        return value or default or ""

    return _VARIABLE.sub(fill, text)


def tool_name(server: str, tool: str) -> str:
    """Return what a server's tool is called here: letters that every provider takes, at most 64 of them."""
    name = f"mcp__{_ODD.sub('_', server)}__{_ODD.sub('_', tool)}"
    if len(name) <= NAME_MAX_CHARS:
        return name
    digest = hashlib.sha256(f"{server}/{tool}".encode()).hexdigest()[:8]
    return f"{name[: NAME_MAX_CHARS - len(digest) - 1]}_{digest}"


def _unusable(schema: Any) -> str | None:
    if not isinstance(schema, dict) or cast("dict[str, Any]", schema).get("type") != "object":
        return "its parameters are no object"
    try:
        size = len(msgspec.json.encode(schema))
    except (TypeError, ValueError, RecursionError):
        return "its parameters cannot be written as JSON"
    return f"its parameters take more than {SCHEMA_MAX_BYTES} bytes" if size > SCHEMA_MAX_BYTES else None


def text_of(result: Any) -> str:
    """Return what a result says to a model: its texts; what is no text is named."""
    parts = [_part(item) for item in result.content]
    if not parts and result.structured_content is not None:
        parts = [msgspec.json.encode(result.structured_content).decode()]
    return "\n".join(parts) or "(no content)"


def _part(item: Any) -> str:
    kind = str(item.type)
    if kind == "text":
        return str(item.text)
    if kind in ("image", "audio"):
        return f"[{kind} {item.mime_type}, {len(item.data) * 3 // 4} bytes, not shown]"
    if kind == "resource_link":
        return f"[resource {item.name}: {item.uri}]"
    resource = getattr(item, "resource", None)
    if hasattr(resource, "text"):
        return str(cast("Any", resource).text)
    return f"[{kind}, not shown]"
