"""The stage for what streams do: a script plays the main session or one child, simulated or over a socket; no test."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, ParamSpec, TypeVar

import msgspec
import pytest

from retinue.app import RandomIds, RealClock
from retinue.core.events import Event, MessageAssistant, RunSettled, ToolFinished, TurnClosed
from retinue.models.openai import HttpOptions, OpenAIModel
from retinue.models.retry import RetryingModel, RetryLimits
from retinue.models.script import Reply, Script, load_script, script_of
from retinue.models.scripted import ScriptedModel
from retinue.models.wire import body_of
from retinue.ports import Live, LiveReset
from retinue.runtime.kernel import Kernel
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.checkers import all_events, check_all, check_projections
from retinue.testing.fakes import FakeTool, echo_tool
from retinue.testing.modelserver import ModelServer
from retinue.testing.world import World
from tests.models.kit import STREAMS
from tests.scenarios.stage import Stage, Theatre
from tests.sim.lives import kernel_in, open_root

P = ParamSpec("P")
T = TypeVar("T")
Where = Literal["main", "child"]
Line = Mapping[str, Any]

everywhere = pytest.mark.parametrize("where", ["main", "child"])
"""Each kind of fault once in the main session and once inside a child."""
TOOLS = ("read_file", "write_file", "list_dir", "ping")
KID = "kid"
NO_WAITS = RetryLimits(first_s=0.001, longest_s=0.001, scatter_s=0.0)


def staged(source: str | Iterable[Line], where: Where) -> Script:
    """Return a stream file, or lines, as the script of the one session that a test looks at.

    Behind its last reply that session says "done"; around a child there is a parent that awaits it.
    """
    loaded = load_script(STREAMS / f"{source}.jsonl") if isinstance(source, str) else script_of(list(source))
    agent = "parent" if where == "main" else "child"
    replies = [msgspec.structs.replace(reply, agent=agent) for reply in loaded.replies]
    expectations = tuple(msgspec.structs.replace(wanted, agent=agent) for wanted in loaded.expectations)
    if not replies[-1].repeat:
        replies += script_of([{"agent": agent, "text": "done"}, {"_ctl": "repeat_last"}]).replies
    if where == "child":
        replies += _parent_replies()
    return Script(replies=tuple(replies), expectations=expectations, meta=loaded.meta)


def _parent_replies() -> tuple[Reply, ...]:
    arguments = {"prompt": "[child] do it", "name": KID, "mode": "await"}
    first = {"agent": "parent", "tool_calls": [{"name": "spawn_agent", "arguments": arguments}]}
    return script_of([first, {"agent": "parent", "text": "done"}, {"_ctl": "repeat_last"}]).replies


@dataclass
class Played:
    """What came of it, as the one session shows it."""

    where: Where
    events: list[Event]
    closed: TurnClosed
    live: list[Any]
    tools: dict[str, FakeTool]
    bodies: list[list[dict[str, Any]]] = field(default_factory=list)
    """The messages of the session's requests as they stand on the wire, tries of one request apart."""
    faults: list[str] = field(default_factory=list)

    @property
    def session_id(self) -> str:
        if self.where == "main":
            return self.events[0].root_id
        return self.settled.child_id

    @property
    def settled(self) -> RunSettled:
        (fact,) = (event.fact for event in self.events if isinstance(event.fact, RunSettled) and event.fact.name == KID)
        return fact

    @property
    def end(self) -> TurnClosed | RunSettled:
        """How the session's turn, or its run, ended; both have the same words."""
        return self.closed if self.where == "main" else self.settled

    @property
    def ended(self) -> tuple[str, str]:
        assert self.end.reason is not None
        return self.end.status, self.end.reason

    @property
    def text(self) -> str | None:
        return self.closed.text if self.where == "main" else self.settled.output

    def said(self) -> list[MessageAssistant]:
        """Return the stored answers of the session."""
        facts = [event.fact for event in self.events if event.session_id == self.session_id]
        return [fact for fact in facts if isinstance(fact, MessageAssistant)]

    def results(self) -> list[ToolFinished]:
        """Return the results of the session's calls in the order in which the model sees them."""
        facts = [event.fact for event in self.events if event.session_id == self.session_id]
        found = {fact.call_id: fact for fact in facts if isinstance(fact, ToolFinished)}
        return [found[call.call_id] for said in self.said() for call in said.tool_calls]

    def seen_live(self) -> str:
        """Return what a reader of the deltas has in hand at the end: a reset voids what came before it."""
        text = ""
        for item in self.live:
            if getattr(item, "session_id", None) == self.session_id and isinstance(item, Live):
                text = "" if isinstance(item, LiveReset) else text + (item.text if item.kind == "text" else "")
        return text

    def resets(self) -> int:
        return sum(isinstance(item, LiveReset) and item.session_id == self.session_id for item in self.live)

    def executed(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the calls that reached their tools, by tool."""
        return [(name, arguments) for name, tool in self.tools.items() for arguments in tool.calls]


def toys() -> dict[str, FakeTool]:
    return {name: echo_tool(name) for name in TOOLS}


def simulated(
    source: str | Iterable[Line], where: Where, *, seed: int = 0, limits: RetryLimits | None = None, **policy: Any
) -> Played:
    """Play it in a simulated world, behind the retries that every connection has; every law of the log is checked."""
    tools = toys()
    played: list[ScriptedModel] = []
    live: list[Any] = []

    def model(world: World) -> RetryingModel:
        played.append(ScriptedModel(staged(source, where), sleep=world.clock.sleep))
        return RetryingModel(played[-1], world.clock, world.chance("retry").random, limits)

    async def scene(stage: Stage) -> TurnClosed:
        return await _watched(stage.kernel, live, lambda: stage.go(policy))

    life = Theatre(seed=seed).live(model, scene, tools=lambda _: list(tools.values()))
    assert life.value is not None
    requests = [r for r in played[0].requests if r.root == (where == "main")]
    bodies = [json.loads(body_of(r, send_reasoning=False))["messages"] for r in requests]
    return Played(where, life.events, life.value, live, tools, bodies)


@dataclass(frozen=True)
class RealParts:
    """What a kernel takes from outside, on the real loop; blocking calls run inline."""

    clock: RealClock = field(default_factory=RealClock)
    ids: RandomIds = field(default_factory=RandomIds)

    @property
    def executor(self) -> "RealParts":
        return self

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return call(*args, **kwargs)


def over_http(source: str | Iterable[Line], where: Where, options: HttpOptions | None = None) -> Played:
    """Play it over the loopback server, which refuses every request that a strict provider would refuse."""
    tools, live = toys(), []
    script = staged(source, where)
    store = SQLiteStore(":memory:")
    with ModelServer(script) as server:

        async def main() -> TurnClosed:
            http = OpenAIModel(server.base_url, headers={"X-Session-Id": "{session_id}"}, options=options)
            parts: Any = RealParts()
            kernel = kernel_in(parts, store, RetryingModel(http, parts.clock, limits=NO_WAITS), list(tools.values()))
            try:
                await kernel.start()
                return await _watched(kernel, live, lambda: _turn(kernel))
            finally:
                await kernel.close()
                await http.aclose()

        closed = asyncio.run(main())
        kind = "parent" if where == "main" else "child"
        bodies = [request.messages for request in server.requests if kind in request.kinds]
        faults = server.faults
    events = all_events(store)
    assert check_all(events, at_rest=True) == []
    assert check_projections(store) == []
    return Played(where, events, closed, live, tools, bodies, faults)


async def _turn(kernel: Kernel) -> TurnClosed:
    work = await kernel.prompt(await open_root(kernel), "go")
    await work.done.wait()
    assert isinstance(work.closed, TurnClosed), work.error
    return work.closed


async def _watched(kernel: Kernel, live: list[Any], turn: Callable[[], Awaitable[TurnClosed]]) -> TurnClosed:
    reader = kernel.bus.subscribe(deltas=True)
    try:
        return await turn()
    finally:
        reader.close()
        live.extend([item async for item in reader])
