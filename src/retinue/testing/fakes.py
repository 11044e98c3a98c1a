"""Tools and models for tests: misbehaving tools, a recorder, and a model that wanders; none leaves the process."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal

from retinue.core.events import Usage, Value
from retinue.core.ids import RunId
from retinue.ports import (
    AssistantText,
    Clock,
    Delta,
    Finish,
    FinishCall,
    Model,
    ModelRequest,
    Piece,
    RequestMessage,
    ToolContext,
    ToolResult,
    ToolSchema,
    ToolText,
    UserText,
)

Group = Literal["read", "agents", "custom"]
Body = Callable[[ToolContext, Mapping[str, Any]], Awaitable[ToolResult]]

HUGE_CHARS: Final = 200_000
LETTER_MARK: Final = "Message Type: "
"""How every letter begins (SHAPES, Letters)."""
LONG_ANSWER_CHARS: Final = 30_000
DELAY_MAX_S: Final = 2.0
"""Virtual seconds until a wandering model begins to answer."""
UNKNOWN_RUN: Final = RunId("r_9999")


class FakeTool:
    """A tool whose body is a function.

    Attributes:
        calls: the arguments of every call, in the order they came.
    """

    def __init__(self, name: str, body: Body, *, exclusive: bool = False, group: Group = "custom") -> None:
        """Offer `body` as `name`, with any arguments."""
        self.calls: list[dict[str, Any]] = []
        self._schema = ToolSchema(name=name, description=f"{name}, for tests", parameters={"type": "object"})
        self._exclusive = exclusive
        self._group: Group = group
        self._body = body

    @property
    def schema(self) -> ToolSchema:
        """What the model is shown."""
        return self._schema

    @property
    def exclusive(self) -> bool:
        """Whether it is a barrier."""
        return self._exclusive

    @property
    def group(self) -> Group:
        """Which profiles have it."""
        return self._group

    async def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        """Record the call and run the body."""
        self.calls.append(dict(arguments))
        return await self._body(context, arguments)


def echo_tool(name: str = "echo") -> FakeTool:
    """Return a tool that answers with its arguments."""

    async def body(_: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        return ToolResult(text=json.dumps(dict(arguments), sort_keys=True))

    return FakeTool(name, body)


def raising_tool(name: str = "raises") -> FakeTool:
    """Return a tool that raises an error that nobody planned for."""

    async def body(_: ToolContext, __: Mapping[str, Any]) -> ToolResult:
        raise ZeroDivisionError("the tool divided by zero")

    return FakeTool(name, body)


def hanging_tool(name: str = "hangs") -> FakeTool:
    """Return a tool that ends only when it is cancelled."""

    async def body(_: ToolContext, __: Mapping[str, Any]) -> ToolResult:
        await asyncio.get_running_loop().create_future()
        return ToolResult(text="never")

    return FakeTool(name, body)


def deaf_tool(clock: Clock, for_s: float = 60.0, name: str = "deaf") -> FakeTool:
    """Return a tool that ignores every cancel for `for_s` seconds, then answers."""

    async def body(_: ToolContext, __: Mapping[str, Any]) -> ToolResult:
        ends_at, swallowed = clock.monotonic() + for_s, 0
        while (left := ends_at - clock.monotonic()) > 0:
            try:
                await clock.sleep(left)
            except asyncio.CancelledError:
                swallowed += 1
        return ToolResult(text=f"ignored {swallowed} cancels")

    return FakeTool(name, body)


def huge_tool(chars: int = HUGE_CHARS, name: str = "huge") -> FakeTool:
    """Return a tool that answers with `chars` characters of four bytes each."""

    async def body(_: ToolContext, __: Mapping[str, Any]) -> ToolResult:
        return ToolResult(text="🪐" * chars)

    return FakeTool(name, body)


def slow_tool(clock: Clock, delay_s: float = 5.0, name: str = "slow", *, exclusive: bool = False) -> FakeTool:
    """Return a tool that answers after `delay_s` seconds."""

    async def body(_: ToolContext, __: Mapping[str, Any]) -> ToolResult:
        await clock.sleep(delay_s)
        return ToolResult(text=f"after {delay_s} s")

    return FakeTool(name, body, exclusive=exclusive)


class Seen(Value):
    """A request as the model got it, and what was durable at that moment (null where nobody asked)."""

    request: ModelRequest
    position: int | None = None


class RecordingModel:
    """Keeps every request that reaches the inner model.

    Attributes:
        seen: the requests, in the order they came.
    """

    def __init__(self, inner: Model, position: Callable[[], int] | None = None) -> None:
        """Wrap a model; `position` is the inner store's, to see what was durable when a request was sent."""
        self.seen: list[Seen] = []
        self._inner = inner
        self._position = position

    @property
    def requests(self) -> list[ModelRequest]:
        """The requests alone."""
        return [seen.request for seen in self.seen]

    def stream(self, request: ModelRequest) -> AsyncGenerator[Piece]:
        """Record the request and pass it on."""
        position = self._position() if self._position is not None else None
        self.seen.append(Seen(request=request, position=position))
        return self._inner.stream(request)

    async def aclose(self) -> None:
        """Close the inner model."""
        await self._inner.aclose()


class BareSurroundings:
    """The `Surroundings` port without files: the one statement of the folder, and what else was asked for."""

    def text(self, cwd: str, *, roles: bool, skills: bool, preload: Sequence[str] = ()) -> str:
        """Return the block."""
        more = [name for name, wanted in (("roles", roles), ("skills", skills)) if wanted]
        return "\n".join([f"# Environment\nWorking directory: {cwd}", *more, *preload])


class OneModel:
    """The `Models` port with one model behind every name."""

    def __init__(self, model: Model, room_tokens: int = 1_000_000) -> None:
        """Answer with `model` always; it holds `room_tokens`."""
        self._model = model
        self._room_tokens = room_tokens

    def room_tokens(self, name: str) -> int:  # noqa: ARG002 - the port's parameter; every name holds the same
        """Return the same for every name."""
        return self._room_tokens

    def find(self, name: str) -> tuple[Model, str]:
        """Return the model, and the name without its connection."""
        return self._model, name.rpartition(":")[2]

    async def aclose(self) -> None:
        """Close the model."""
        await self._model.aclose()


class WorldModel:
    """A model that wanders: it spawns, writes, waits, stops, reports, calls tools and answers, as chance has it.

    What it says follows from the request and the seed alone, so a restart changes nothing. It ends every turn after
    `steps_max` steps, and spawns at most `spawns_max` children in one session.
    """

    def __init__(
        self,
        seed: int,
        clock: Clock,
        *,
        steps_max: int = 6,
        spawns_max: int = 4,
        arguments: Mapping[str, Mapping[str, Any]] | None = None,
        modes: Sequence[str] = (),
    ) -> None:
        """Wander by `seed`; `arguments` are those of tools that need some, by tool name.

        `modes` are the context modes that it asks for; without any it writes no background either, and no role.
        """
        self._seed = seed
        self._clock = clock
        self._steps_max = steps_max
        self._spawns_max = spawns_max
        self._modes = modes
        self._arguments: Mapping[str, Mapping[str, Any]] = {} if arguments is None else arguments

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Piece]:
        """Yield the answer in pieces, in virtual time."""
        rng = random.Random(f"{self._seed}/{request.session_id}/{request.number}")
        await self._clock.sleep(rng.random() * DELAY_MAX_S)
        calls = self._calls(request, rng)
        text = _text(request, rng, final=not calls)
        for piece in _pieces(text, rng):
            yield Delta(kind="text", text=piece)
            await self._clock.sleep(rng.random() * DELAY_MAX_S / 10)
        yield Finish(
            reason="tool_calls" if calls else "stop",
            text=text,
            tool_calls=calls,
            usage=_usage(request, text),
        )

    async def aclose(self) -> None:
        """Hold nothing."""

    def _calls(self, request: ModelRequest, rng: random.Random) -> tuple[FinishCall, ...]:
        names = [tool.name for tool in request.tools]
        # A root begins with calls: a world in which nobody is asked for anything shows nothing.
        stops = rng.random() < 0.25 and not (request.root and request.number == 1)
        if not names or _steps(request.messages) >= self._steps_max or stops:
            return ()
        known = _Known(request.messages)
        calls: list[FinishCall] = []
        for _ in range(rng.choice((1, 1, 2, 3))):
            name = self._choose(names, known.spawned, rng)
            known.spawned += name == "spawn_agent"
            made = ARGUMENTS.get(name)
            arguments = self._arguments.get(name, {}) if made is None else made(known, rng)
            if name == "spawn_agent" and self._modes:
                arguments = {**arguments, **_composed(self._modes, names, rng)}
            calls.append(FinishCall(name=name, arguments=json.dumps(arguments, sort_keys=True)))
        return tuple(calls)

    def _choose(self, names: list[str], spawned: int, rng: random.Random) -> str:
        may_spawn = "spawn_agent" in names and spawned < self._spawns_max
        if may_spawn and (not spawned or rng.random() < 0.5):
            return "spawn_agent"
        others = [name for name in names if name != "spawn_agent"]
        if spawned and "send_agent_message" in others and rng.random() < 0.2:
            return "send_agent_message"
        return rng.choice(others) if others else names[0]


CONTEXT_SHARE: Final = 0.4
"""Share of children that are asked for with a context, where the world allows it."""
ROLES_SHARE: Final = 0.1
"""Share of children that get a role of their own, and of those that get a part of the tools."""
SEQS_MAX: Final = 30


class _Known:
    """What earlier answers told of children: their runs, their sessions, and how many there are."""

    def __init__(self, messages: tuple[RequestMessage, ...]) -> None:
        self.runs: list[str] = []
        self.sessions: list[str] = []
        self.spawned = 0
        for message in messages:
            if isinstance(message, AssistantText):
                self.spawned += sum(call.name == "spawn_agent" for call in message.tool_calls)
            if isinstance(message, ToolText) and message.name in TELLING and not message.error:
                self._learn(json.loads(message.text))

    def _learn(self, answer: dict[str, Any]) -> None:
        for row in answer.get("items", [answer]):
            if row["run_id"] not in self.runs:
                self.runs.append(row["run_id"])
            if row.get("session_id") not in (None, *self.sessions):
                self.sessions.append(row["session_id"])

    def some(self, rng: random.Random) -> str:
        """Return the id of a run, now and then of one that does not exist."""
        return rng.choice([*self.runs, UNKNOWN_RUN]) if rng.random() < 0.9 else UNKNOWN_RUN


TELLING: Final = ("spawn_agent", "list_agents")
"""Tools whose answers name children."""


def _spawn(_: _Known, rng: random.Random) -> dict[str, Any]:
    mode = rng.choice(("background", "background", "await"))
    arguments: dict[str, Any] = {"prompt": f"task {rng.randint(1, 99)}", "mode": mode, "name": f"h-{rng.randint(1, 9)}"}
    for name, values in SOMETIMES.items():
        value = rng.choice(values)
        if value is not None:
            arguments[name] = value
    return arguments


SOMETIMES: Final[Mapping[str, tuple[Any, ...]]] = {
    "continuable": (None, None, True, False),
    "max_depth": (None, None, None, 1, 2),
    "cancel_with_parent": (None, None, True, False),
}
"""What a child may be asked for besides, null for nothing."""


def _composed(modes: Sequence[str], names: list[str], rng: random.Random) -> dict[str, Any]:
    """Return what a child is composed of otherwise than its parent: a context, a role, a part of the tools."""
    composed: dict[str, Any] = {}
    if rng.random() < CONTEXT_SHARE:
        composed["context"] = rng.choice((f"background {rng.randint(1, 99)}", *[_context(mode, rng) for mode in modes]))
    if rng.random() < ROLES_SHARE:
        composed["system_prompt"] = f"role {rng.randint(1, 99)}"
    if rng.random() < ROLES_SHARE:
        composed["tools"] = sorted(rng.sample(names, k=rng.randint(0, len(names))))
    return composed


def _context(mode: str, rng: random.Random) -> dict[str, Any]:
    context: dict[str, Any] = {"mode": mode}
    if mode == "selected":
        context["seqs"] = rng.sample(range(1, SEQS_MAX), k=rng.randint(1, 6))
    if mode == "last_n_turns":
        context["turns"] = rng.randint(1, 3)
    if rng.random() < 0.3:
        context["background"] = f"background {rng.randint(1, 99)}"
    return context


def _wait(known: _Known, rng: random.Random) -> dict[str, Any]:
    some_id = known.some(rng)
    arguments: dict[str, Any] = {"mode": rng.choice(("all", "any")), "timeout_s": rng.choice((1, 3, 60))}
    asked = rng.choice(("open", "one", "several"))
    if asked == "one":
        arguments["ids"] = [some_id]
    if asked == "several" and known.runs:
        arguments["ids"] = rng.sample(known.runs, k=min(2, len(known.runs)))
    return arguments


def _list(_: _Known, rng: random.Random) -> dict[str, Any]:
    return rng.choice(({}, {"scope": "children"}, {"scope": "descendants"}))


def _read(known: _Known, rng: random.Random) -> dict[str, Any]:
    return {"id": known.some(rng), "offset": rng.choice((0, 5)), "limit": 100}


def _send(known: _Known, rng: random.Random) -> dict[str, Any]:
    name = rng.choice(known.sessions) if known.sessions and rng.random() < 0.8 else known.some(rng)
    return {"id": name, "message": f"and then {rng.randint(1, 99)}"}


def _stop(known: _Known, rng: random.Random) -> dict[str, Any]:
    return {"id": rng.choice((known.some(rng), *known.sessions[:1]))}


def _report(_: _Known, rng: random.Random) -> dict[str, Any]:
    return {"message": f"so far {rng.randint(1, 99)}", "wake": rng.random() < 0.5}


ARGUMENTS: Final[Mapping[str, Callable[[_Known, random.Random], dict[str, Any]]]] = {
    "spawn_agent": _spawn,
    "wait_agent": _wait,
    "list_agents": _list,
    "read_agent_output": _read,
    "send_agent_message": _send,
    "interrupt_agent": _stop,
    "cancel_agent": _stop,
    "report_to_parent": _report,
}
AGENT_TOOLS: Final = tuple(ARGUMENTS)


def _text(request: ModelRequest, rng: random.Random, *, final: bool) -> str:
    if rng.random() < (0.1 if final else 0.5):
        return ""
    said = f"{request.name} {request.session_id} request {request.number}"
    return said + " …" * (LONG_ANSWER_CHARS // 2) if final and rng.random() < 0.05 else said


def _pieces(text: str, rng: random.Random) -> list[str]:
    cut = rng.randint(0, len(text))
    return [piece for piece in (text[:cut], text[cut:]) if piece]


def _usage(request: ModelRequest, text: str) -> Usage:
    asked = sum(len(message.text) for message in request.messages) + len(request.system)
    said = len(text) + 1
    return Usage(input=asked, output=said, total=asked + said)


def _steps(messages: tuple[RequestMessage, ...]) -> int:
    """Count the answers since the last text that is no letter."""
    steps = 0
    for message in messages:
        if isinstance(message, UserText) and not message.text.startswith(LETTER_MARK):
            steps = 0
        steps += isinstance(message, AssistantText)
    return steps
