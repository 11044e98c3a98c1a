"""The stage that scenarios are played on: lives of one store in simulated worlds, and ways to read them; no test."""

import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

import pytest

from retinue.core.errors import RetinueError
from retinue.core.events import (
    AnyFact,
    Event,
    LetterAbsorbed,
    LetterQueued,
    RunQueued,
    RunSettled,
    RunStarted,
    ToolFinished,
    TurnClosed,
    tag_of,
)
from retinue.core.ids import RunId, SessionId
from retinue.core.policy import NAMES
from retinue.core.run import Run
from retinue.models.scripted import ScriptedModel
from retinue.ports import AssistantText, Delta, Finish, FinishCall, Model, ModelRequest, Tool, ToolText, UserText
from retinue.runtime.handles import Child, Kid, Subagents
from retinue.runtime.kernel import Kernel
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.checkcontext import check_prefixes
from retinue.testing.checkers import all_events, all_runs, check_all, check_kept, check_projections, check_requests
from retinue.testing.fakes import LETTER_MARK, RecordingModel, Seen
from retinue.testing.faults import FaultyStore, StorePlan
from retinue.testing.world import CountingIds, World, WorldOptions, run_world
from tests.sim.lives import TEXTS, kernel_in, open_root

T = TypeVar("T")
F = TypeVar("F", bound=AnyFact)
Line = Mapping[str, Any]
ModelOf = Callable[[World], Model]
ToolsOf = Callable[[World], Sequence[Tool]]
PartsOf = Callable[[World, Model], dict[str, Any]]
"""What else of the runtime's parts a life has of its own, by their names; it is given the life's model."""
SETTLE_S = 10.0
"""Virtual seconds after a life in which slow stops come to their end."""

AGAIN: dict[str, Any] = {"_ctl": "repeat_last"}
"""Every further request gets the line above again: a hold may hand results over one by one."""

each_seed = pytest.mark.parametrize("seed", range(int(os.environ.get("RETINUE_SCENARIO_SEEDS", "8"))))
"""For lines where the order of things could matter: that many orders."""
few_seeds = pytest.mark.parametrize("seed", range(5))
"""For lines where it could matter, and each play is long."""

PULLING = ("guarded", "roster")
"""Policies under which results are fetched, not sent."""


def under_each(*names: str) -> pytest.MarkDecorator:
    """Run a test under several policies; without names under all five."""
    return pytest.mark.parametrize("under", names or NAMES)


class FunctionModel:
    """A model whose answers come from a function; the text is streamed in one piece before the finish."""

    def __init__(self, says: Callable[[ModelRequest], Awaitable[Finish]]) -> None:
        self._says = says

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Finish]:
        finish = await self._says(request)
        if finish.text:
            yield Delta(kind="text", text=finish.text)
        yield finish

    async def aclose(self) -> None:
        """Hold nothing."""


def script(*lines: Line) -> ModelOf:
    """Return the maker of a model that plays short lines in virtual time."""
    return lambda world: ScriptedModel(lines, sleep=world.clock.sleep)


def parent(text: str = "", *calls: Line, **more: Any) -> dict[str, Any]:
    """Return a line of the root."""
    return _line("parent", text, calls, more)


def child(name: str | None, text: str = "", *calls: Line, **more: Any) -> dict[str, Any]:
    """Return a line of the children with a display name, or of all."""
    return _line("child" if name is None else f"name:{name}", text, calls, more)


def _line(agent: str, text: str, calls: Sequence[Line], more: dict[str, Any]) -> dict[str, Any]:
    return {"agent": agent, "text": text, "tool_calls": list(calls), **more}


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    """Return a tool call of a line."""
    return {"name": tool, "arguments": arguments}


def spawn(name: str, **more: Any) -> dict[str, Any]:
    """Return a spawning call."""
    return call("spawn_agent", prompt=f"do {name}", name=name, **more)


def calls(*lines: Line, text: str = "") -> Finish:
    """Return the finish of a function-driven model that makes these calls."""
    made = tuple(FinishCall(name=line["name"], arguments=json.dumps(line["arguments"])) for line in lines)
    return Finish(reason="tool_calls", text=text, tool_calls=made)


def says(text: str) -> Finish:
    """Return the finish of a function-driven model that stops with a text."""
    return Finish(reason="stop", text=text)


@dataclass
class Stage:
    """One running life, as a scene sees it."""

    world: World
    kernel: Kernel
    model: RecordingModel
    store: SQLiteStore

    @property
    def subagents(self) -> Subagents:
        return Subagents(self.kernel)

    async def root(self, policy: dict[str, Any] | None = None, under: str = "standard") -> SessionId:
        return await open_root(self.kernel, policy, under)

    async def turn(self, root: SessionId, text: str = "go") -> TurnClosed:
        """Play a whole turn of a root and return how it ended."""
        work = await self.kernel.prompt(root, text)
        await work.done.wait()
        assert isinstance(work.closed, TurnClosed), work.error
        return work.closed

    async def go(self, policy: dict[str, Any] | None = None, under: str = "standard") -> TurnClosed:
        """Open a root and play its turn."""
        return await self.turn(await self.root(policy, under))

    async def to_rest(self, policy: dict[str, Any] | None = None, under: str = "standard") -> TurnClosed:
        """Open a root, play its turn, and wait until nothing of its tree works any more."""
        root = await self.root(policy, under)
        closed = await self.turn(root)
        await self.kernel.tree_rests(root)
        return closed

    async def start(self, root: SessionId, name: str = "kid", **asked: Any) -> Child:
        """Start a child from Python."""
        return await self.subagents.start("spawn", parent=root, prompt=f"do {name}", name=name, **asked)

    async def keep(self, root: SessionId, name: str = "kid", *, provider: str = "spawn", **asked: Any) -> Kid:
        """Start a child from Python that can be continued."""
        asked.setdefault("prompt", f"do {name}")
        return await self.subagents.start_continuable(provider, parent=root, name=name, **asked)

    async def until(self, is_so: Callable[[list[Event]], bool]) -> None:
        """Return once the stored events are so, looking every few virtual milliseconds."""
        events = all_events(self.store)
        for _ in range(100_000):
            if is_so(events):
                return
            await self.world.clock.sleep(0.005)
            events += self.store.tail(events[-1].position if events else 0)
        raise AssertionError("it never came")

    def events(self) -> list[Event]:
        return all_events(self.store)

    def run(self, name: str) -> Run:
        return run_named(self.store, name)


@dataclass(frozen=True)
class Life(Generic[T]):
    """How one life went: the scene's value, all events of the store so far, and this life's requests."""

    value: T | None
    crashed: bool
    events: list[Event]
    requests: list[ModelRequest]
    commits: int

    def told(self, kind: type[F]) -> list[F]:
        """Return the facts of a kind, in order."""
        return [event.fact for event in self.events if isinstance(event.fact, kind)]

    def asked(self, name: str = "main") -> list[ModelRequest]:
        """Return the requests of the sessions with a display name."""
        return [request for request in self.requests if request.name == name]

    def settled(self, name: str) -> RunSettled:
        """Return the one settlement of the one run with a name."""
        (fact,) = (fact for fact in self.told(RunSettled) if fact.name == name)
        return fact

    def letter(self, name: str) -> LetterQueued:
        """Return the one letter of the run with a name."""
        settled = self.settled(name)
        (letter,) = (fact for fact in self.told(LetterQueued) if fact.run_id == settled.run_id)
        return letter

    def answers(self, number: int = -1, name: str = "main") -> list[ToolText]:
        """Return the tool messages behind the last call in a request."""
        return answers_in(self.asked(name)[number])


@dataclass
class Theatre:
    """What is kept over the lives of one store; every life is checked when it is over."""

    seed: int = 0
    shuffle: bool = True
    steady: bool = True
    """Whether nobody sets the switch while no log could tell of it: that changes what requests begin with."""
    store: SQLiteStore = field(default_factory=lambda: SQLiteStore(":memory:"))
    ids: CountingIds = field(default_factory=CountingIds)
    before: list[Event] = field(default_factory=list)
    lives: int = 0

    def live(
        self,
        model: ModelOf,
        scene: Callable[[Stage], Awaitable[T]],
        *,
        tools: ToolsOf | None = None,
        plan: StorePlan | None = None,
        parts: PartsOf | None = None,
    ) -> Life[T]:
        """Play a scene in a new life over the store, then check the whole log, the rows and every request."""
        self.lives += 1
        seen: list[RecordingModel] = []
        stores: list[FaultyStore] = []

        async def main(world: World) -> T:
            store = FaultyStore(self.store, plan, world.executor.slow)
            recording = RecordingModel(model(world), self.store.position)
            seen.append(recording)
            stores.append(store)
            own = {} if parts is None else parts(world, recording)
            kernel = kernel_in(world, store, recording, tools=() if tools is None else tools(world), **own)
            try:
                await kernel.start()
                return await scene(Stage(world, kernel, recording, self.store))
            finally:
                await kernel.close()
                await world.clock.sleep(SETTLE_S)

        options = WorldOptions(ids=self.ids, shuffle=self.shuffle)
        result = run_world(main, self.seed * 10 + self.lives, options)
        events = all_events(self.store)
        self._check(events, seen[0], at_rest=not result.crashed)
        self.before = events
        return Life(result.value, result.crashed, events, seen[0].requests, stores[0].commits)

    def _check(self, events: list[Event], seen: RecordingModel, *, at_rest: bool) -> None:
        gone = {event.root_id for event in self.before if self._is_deleted(event.root_id)}
        assert check_kept(self.before, events, gone) == []
        assert check_all(events, at_rest=at_rest) == []
        assert check_projections(self.store) == []
        kept = [item for item in seen.seen if not (self._is_deleted(item.request.session_id) or _for_notes(item))]
        assert check_requests(events, kept) == []
        assert not self.steady or check_prefixes(events, kept) == []

    def _is_deleted(self, session_id: SessionId) -> bool:
        """Return whether a log is gone for good: what it led to cannot be derived from it any more."""
        return self.store._reader.value("is_deleted", {"session_id": session_id}) is not None

    def run(self, name: str) -> Run:
        """Return the row of the run with a name."""
        return run_named(self.store, name)


def play(model: ModelOf, scene: Callable[[Stage], Awaitable[T]], *, seed: int = 0, **more: Any) -> Life[T]:
    """Play a scene in the only life of a new store."""
    return Theatre(seed=seed).live(model, scene, **more)


def play_turn(
    *lines: Line, policy: dict[str, Any] | None = None, under: str = "standard", seed: int = 0, **more: Any
) -> Life[TurnClosed]:
    """Play one turn of a root over short lines, and what goes on behind its end."""
    return play(script(*lines), lambda stage: stage.to_rest(policy, under), seed=seed, **more)


def _for_notes(seen: Seen) -> bool:
    """Return whether a request asked for the notes of a compaction: it belongs to no step."""
    return seen.request.messages[-1].text == TEXTS.compaction


async def refusal(attempt: Awaitable[object]) -> RetinueError:
    """Return the refusal that an attempt must end in."""
    with pytest.raises(RetinueError) as caught:
        await attempt
    assert caught.value.detail
    return caught.value


def run_named(store: SQLiteStore, name: str) -> Run:
    (run,) = (run for run in all_runs(store) if run.name == name)
    return run


def answers_in(request: ModelRequest) -> list[ToolText]:
    """Return the tool messages behind the last call in a request, in their order."""
    last = max(n for n, message in enumerate(request.messages) if isinstance(message, AssistantText))
    return [message for message in request.messages[last + 1 :] if isinstance(message, ToolText)]


def letters_in(request: ModelRequest) -> list[str]:
    """Return the letters in a request, in their order."""
    users = [message.text for message in request.messages if isinstance(message, UserText)]
    return [text for text in users if text.startswith(LETTER_MARK)]


def body_of(answer: ToolText) -> dict[str, Any]:
    """Return a structured tool result."""
    value = json.loads(answer.text)
    assert isinstance(value, dict)
    return value


def code_of(answer: ToolText) -> str:
    """Return the code of a refusal."""
    assert answer.error
    return body_of(answer)["error"]["code"]


def payload_of(letter: str) -> str:
    """Return what stands below the four header lines."""
    head = letter.split("\n", 4)
    assert [line.split(":")[0] for line in head[:4]] == ["Message Type", "Task name", "Sender", "Payload"]
    return head[4]


def place(events: Iterable[Event], kind: type[AnyFact], **fields: Any) -> int:
    """Return the position of the one event of a kind whose fact has these fields."""
    (position,) = places(events, kind, **fields)
    return position


def places(events: Iterable[Event], kind: type[AnyFact], **fields: Any) -> list[int]:
    """Return the positions of all such events."""
    return [
        event.position
        for event in events
        if isinstance(event.fact, kind) and all(getattr(event.fact, name) == value for name, value in fields.items())
    ]


def second_of(event: Event) -> float:
    """Return the virtual wall second of an event."""
    return datetime.fromisoformat(event.time).timestamp()


def seconds_between(events: Iterable[Event], one: int, other: int) -> float:
    """Return the virtual seconds from one position to another."""
    at: dict[int, float] = {event.position: second_of(event) for event in events}
    return at[other] - at[one]


def peak(events: Iterable[Event]) -> int:
    """Return the most runs that worked at once; for scenes in which no run gives its slot up."""
    now = most = 0
    started: set[RunId] = set()
    for event in events:
        fact = event.fact
        if isinstance(fact, RunStarted):
            started.add(fact.run_id)
            now += 1
        elif isinstance(fact, RunSettled) and fact.run_id in started:
            now -= 1
        most = max(most, now)
    return most


def homes(events: Iterable[Event], run_id: RunId) -> int:
    """Return how often the result of a run entered a context: absorbed as a letter, or collected by its call."""
    facts = [event.fact for event in events]
    return sum(isinstance(fact, LetterAbsorbed | ToolFinished) and fact.run_id == run_id for fact in facts)


def names_of(life: Life[Any], kind: type[RunQueued] | type[RunStarted] | type[RunSettled]) -> list[str]:
    """Return the names of the runs with such a fact, in the order of the log."""
    return [fact.name for fact in life.told(kind)]


def tags(events: Iterable[Event]) -> list[str]:
    """Return the types of events."""
    return [tag_of(event.fact) for event in events]
