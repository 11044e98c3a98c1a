"""Requests begin with the bytes that were sent before, within a session and between a fork and its parent.

The bytes are those that the OpenAI-compatible adapter writes: model, messages with the system text first, then tools.
"""

import asyncio
import json
from collections.abc import Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import retinue
from retinue.core.events import ContextCompacted, LetterAbsorbed, MessageUser, SessionOpened, ToolStarted
from retinue.core.ids import SessionId
from retinue.models.openai import OpenAIModel
from retinue.models.wire import body_of
from retinue.ports import Finish, ModelRequest, ToolContext, ToolResult, ToolText
from retinue.runtime.toolset import SWITCHED
from retinue.testing.fakes import FakeTool, OneModel, echo_tool, slow_tool
from retinue.testing.modelserver import ModelServer
from retinue.testing.samples import HARD_TEXT
from retinue.testing.world import World
from tests.scenarios.stage import (
    FunctionModel,
    Life,
    Stage,
    Theatre,
    call,
    calls,
    child,
    each_seed,
    few_seeds,
    parent,
    places,
    play,
    says,
    script,
    spawn,
    under_each,
)
from tests.sim.lives import TEXTS

STORE = {"result.idle_parent": "store"}
FORK = {"mode": "fork"}
PIRATE = "You are a pirate."
HOSTILE = '],"stream":true,"model":"x"}' + HARD_TEXT
HELD = ("list_agents", "wait_agent", "read_agent_output", "send_agent_message", "interrupt_agent", "cancel_agent")
"""What is offered once a session has had a child."""


def body(request: ModelRequest) -> bytes:
    return body_of(request, send_reasoning=False)


async def _echoing(request: ModelRequest) -> Finish:
    return says(request.messages[-1].text)


def beginning(sent: bytes) -> bytes:
    """Return a body up to the end of its last message; the words behind it cannot stand in a message."""
    messages, found, _ = sent.partition(b'],"stream":')
    assert found
    return messages


def shared_bytes(one: bytes, other: bytes) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def offered(request: ModelRequest) -> list[str]:
    return [tool.name for tool in request.tools]


def require_steady(requests: Sequence[ModelRequest]) -> int:
    """Check the requests of one session without a compaction against one another; return the bytes sent again."""
    again = 0
    for one, other in pairwise(requests):
        assert body(other).startswith(beginning(body(one)))
        assert len(beginning(body(other))) >= len(beginning(body(one)))
        again += len(beginning(body(one)))
    assert len({request.system for request in requests}) == 1
    lists = [request.tools for request in requests if request.tools]
    assert all(other[: len(one)] == one for one, other in pairwise(lists))
    return again


def _tools(world: World) -> list[FakeTool]:
    return [echo_tool(), slow_tool(world.clock, name="other")]


async def _busy(request: ModelRequest) -> Finish:
    """A root that uses tools, has children, takes letters and steering; children that report and use tools, too."""
    last = request.messages[-1]
    if not request.root:
        if request.number == 1:
            return calls(call("echo", n=1), call("report_to_parent", message="half way"), text="I look")
        return says(f"found {request.number}")
    if isinstance(last, ToolText) or last.text not in ("use", "delegate", "delegate twice"):
        return says(f"answer {request.number}")
    if last.text == "use":
        return calls(call("echo", n=1), call("nonsense"), call("other", n=2), text="two calls")
    return calls(*(spawn(name) for name in ("kid", "second")[: 2 if "twice" in last.text else 1]))


@under_each()
@few_seeds
def test_within_a_session_each_request_begins_with_the_bytes_of_the_one_before(under: str, seed: int) -> None:
    """Over turns, calls, refusals, children, letters, steering, messages to a child, and a restart."""
    theatre = Theatre(seed=seed)
    roots: list[SessionId] = []

    async def first(stage: Stage) -> None:
        root = await stage.root(under=under)
        roots.append(root)
        await stage.turn(root, "hello")
        work = await stage.kernel.prompt(root, "use")
        await stage.until(lambda events: bool(places(events, ToolStarted, name="other")))
        await stage.kernel.steer(root, "and look")
        await work.done.wait()
        await stage.turn(root, "delegate twice")
        await stage.kernel.tree_rests(root)

    async def second(stage: Stage) -> None:
        await stage.turn(roots[0], "use")
        await stage.turn(roots[0], "delegate")
        await stage.kernel.tree_rests(roots[0])

    lives = [theatre.live(lambda _: FunctionModel(_busy), scene, tools=_tools) for scene in (first, second)]
    sessions: dict[SessionId, list[ModelRequest]] = {}
    for request in (request for life in lives for request in life.requests):
        sessions.setdefault(request.session_id, []).append(request)
    assert len(sessions) == 4
    again = {session_id: require_steady(requests) for session_id, requests in sessions.items()}
    assert again[roots[0]] > 10 * len(sessions[roots[0]][0].system)
    mine = sessions[roots[0]]
    assert len(mine[-1].messages) > 20
    if under in ("standard", "resident"):
        assert lives[-1].told(LetterAbsorbed)


@each_seed
def test_the_first_child_changes_no_word_of_the_system_text_and_only_appends_tools(seed: int) -> None:
    life = play(
        script(parent("", call("echo")), parent("", spawn("kid", mode="await")), parent("done"), child("kid", "found")),
        lambda stage: stage.to_rest(),
        tools=_tools,
        seed=seed,
    )
    before, still, after = life.asked()
    assert {one.system for one in (before, still, after)} == {before.system}
    assert before.tools == still.tools == after.tools[: len(before.tools)]
    assert offered(before) == ["echo", "other", "spawn_agent"]
    assert offered(after) == [*offered(before), *HELD]
    require_steady(life.asked())


def test_a_child_that_may_delegate_has_its_reporting_tool_in_front_of_what_comes_with_children_of_its_own() -> None:
    async def model(request: ModelRequest) -> Finish:
        if request.name == "leaf" or request.number > 1:
            return says("done")
        return calls(spawn("kid" if request.root else "leaf", mode="await"))

    life = play(lambda _: FunctionModel(model), lambda stage: stage.to_rest({"caps.max_depth": 2}), tools=_tools)
    first, second = life.asked("kid")
    assert offered(first) == ["echo", "other", "spawn_agent", "report_to_parent"]
    assert offered(second) == [*offered(first), *HELD]
    require_steady([first, second])


def test_the_last_step_without_tools_has_the_same_messages_and_the_same_system_text() -> None:
    """Used up in a hold: the turn waits for its children and gets one step without tools."""
    lines = (
        child("boss", "", spawn("kid")),
        child("boss", "I wait"),
        child("boss", "this is it"),
        child("kid", "found", delay_ms=5_000),
    )

    async def scene(stage: Stage) -> None:
        root = await stage.root({"caps.max_depth": 2})
        async with await stage.start(root, "boss", max_steps=2, max_depth=2) as boss:
            settled = await boss.result
        assert (settled.status, settled.output) == ("completed", "this is it")

    life = play(script(*lines), scene)
    asked = life.asked("boss")
    assert [bool(one.tools) for one in asked] == [True, True, False]
    assert b'"tools"' not in body(asked[-1])
    require_steady(asked)


def test_the_switch_takes_three_tools_away_and_the_note_on_delegation_where_no_child_ever_was() -> None:
    """What changes, and what comes back when it is on again; no message moves."""

    async def switched(stage: Stage) -> None:
        parents, single = await stage.root(STORE), await stage.root(STORE)
        await stage.turn(parents, "delegate")
        await stage.turn(single, "hello")
        for on in (False, True):
            for root in (parents, single):
                await stage.kernel.load(root)
            await stage.kernel.set_switch(on)
            for root in (parents, single):
                await stage.turn(root, "hello")

    life = play(lambda _: FunctionModel(_busy), switched, tools=_tools)
    by_root: dict[SessionId, list[ModelRequest]] = {}
    for request in life.asked():
        by_root.setdefault(request.session_id, []).append(request)
    with_child, without = by_root.values()
    on, off, again = without
    assert off.system == on.system.replace(f"\n\n{TEXTS.delegation}", "")
    assert off.system != on.system == again.system
    assert (offered(off), again.tools) == ([name for name in offered(on) if name not in SWITCHED], on.tools)
    on, off, again = with_child[-3:]
    assert on.system == off.system == again.system
    assert (offered(off), again.tools) == ([name for name in offered(on) if name not in SWITCHED], on.tools)
    for one, other in pairwise(with_child):
        assert other.messages[: len(one.messages)] == one.messages


# ----------------------------------------------------------------------------------------------- a fork and its parent


def _forked(request: ModelRequest) -> Finish:
    last = request.messages[-1].text
    if last == "use":
        return calls(call("echo", n=1), text="let me see")
    if last.startswith("fork"):
        more = json.loads(last.removeprefix("fork"))
        return calls(spawn("kid", context=FORK, mode="await", **more), text="now the open turn")
    return says(f"answer {request.number} é 🧭")


async def _forking(request: ModelRequest) -> Finish:
    return _forked(request)


def _fork_life(under: str = "standard", seed: int = 0, policy: dict[str, Any] | None = None, **more: Any) -> Life[None]:
    """Play three whole turns of a root, and a fourth in which it forks a child."""

    async def scene(stage: Stage) -> None:
        root = await stage.root({**STORE, **(policy or {})}, under)
        for text in ("hello", "use", "a long story " * 500, f"fork{json.dumps(more)}"):
            await stage.turn(root, text)
        await stage.kernel.tree_rests(root)

    return play(lambda _: FunctionModel(_forking), scene, tools=_tools, seed=seed)


@pytest.mark.parametrize("under", ["standard", "resident"])
@each_seed
def test_a_fork_shares_the_system_text_and_every_completed_turn_with_its_parent_byte_for_byte(
    under: str, seed: int
) -> None:
    life = _fork_life(under, seed)
    spawning = next(one for one in life.asked() if one.messages[-1].text.startswith("fork"))
    (mine,) = life.asked("kid")
    completed = len(spawning.messages) - 1
    shared = beginning(body(spawning)).rpartition(b',{"role":"user"')[0]
    assert body(mine).startswith(shared)
    assert mine.messages[:completed] == spawning.messages[:completed]
    assert len(shared) > sum(len(message.text.encode()) for message in spawning.messages[:completed]) > 6_500
    assert json.dumps(mine.system)[1:-1].encode() in shared
    told, task = mine.messages[completed:]
    assert (told.text, task.text) == (TEXTS.child_notes, "do kid")
    own = len(beginning(body(mine))) - len(shared)
    assert own < 200, "only what it is told as a child and its task are new"


def test_what_a_fork_is_told_as_a_child_is_no_message_of_its_parent_and_is_never_packed() -> None:
    life = _fork_life()
    (header,) = (fact for fact in life.told(SessionOpened) if fact.name == "kid")
    assert header.system_digest is not None
    said = [fact for fact in life.told(MessageUser) if fact.source == "context"]
    assert [fact.text for fact in said] == [TEXTS.child_notes]


@pytest.mark.parametrize(
    ("more", "own_text"),
    [({"system_prompt": PIRATE}, True), ({"model": "any:other"}, False), ({"tools": ["echo"]}, False)],
)
def test_a_fork_with_a_role_of_its_own_has_a_system_text_of_its_own_and_the_same_turns(
    more: dict[str, Any], own_text: bool
) -> None:
    life = _fork_life(**more)
    spawning = next(one for one in life.asked() if one.messages[-1].text.startswith("fork"))
    (mine,) = life.asked("kid")
    completed = len(spawning.messages) - 1
    assert mine.messages[:completed] == spawning.messages[:completed]
    assert (mine.system != spawning.system) is own_text
    if own_text:
        assert PIRATE in mine.system
        assert TEXTS.child_notes in mine.system
        assert [message.text for message in mine.messages[completed:]] == ["do kid"]
    else:
        assert [message.text for message in mine.messages[completed:]] == [TEXTS.child_notes, "do kid"]
    if "tools" in more:
        assert offered(mine) == ["echo", "report_to_parent"]


def test_a_fork_is_told_the_schema_of_its_answer_behind_its_parents_turns() -> None:
    schema = {"type": "object", "required": ["n"]}
    life = _fork_life(output_schema=schema)
    spawning = next(one for one in life.asked() if one.messages[-1].text.startswith("fork"))
    (mine,) = life.asked("kid")
    assert mine.system == spawning.system
    told = mine.messages[-2].text
    assert told.startswith(f"{TEXTS.child_notes}\n\n{TEXTS.output_schema}\n")
    assert json.loads(told.rpartition("\n")[2]) == schema
    assert (life.settled("kid").status, life.settled("kid").reason) == ("failed", "output_schema")


@few_seeds
def test_a_fork_goes_on_with_its_own_bytes_until_a_compaction_gives_it_a_text_of_its_own(seed: int) -> None:
    async def page(_: ToolContext, arguments: Any) -> ToolResult:
        return ToolResult(text=f"page {arguments['n']} " + "lorem ipsum " * 120)

    async def model(request: ModelRequest) -> Finish:
        last = request.messages[-1].text
        if last == TEXTS.compaction:
            return says("my notes")
        if request.name == "kid" and request.number < 14:
            return calls(call("page", n=request.number))
        return says("told")

    async def scene(stage: Stage) -> None:
        root = await stage.root({**STORE, "life.max_steps": None})
        await stage.turn(root, "hello")
        await stage.keep(root, provider="fork")
        await stage.kernel.tree_rests(root)

    life = play(
        lambda _: FunctionModel(model),
        scene,
        tools=lambda _: [FakeTool("page", page)],
        parts=lambda _, inner: {"models": OneModel(inner, room_tokens=4_000)},
        seed=seed,
    )
    assert life.told(ContextCompacted)
    mine = [one for one in life.asked("kid") if one.messages[-1].text != TEXTS.compaction]
    cut = next(number for number, one in enumerate(mine) if "my notes" in one.messages[0].text)
    require_steady(mine[:cut])
    assert {one.system for one in mine[:cut]} == {life.asked()[0].system}
    assert TEXTS.child_notes not in mine[0].system
    assert all(TEXTS.child_notes in one.system for one in mine[cut:])


# ------------------------------------------------------------------------------------------------------ over real HTTP


class Wire(ModelServer):
    """Keeps the bodies as they came."""

    def __init__(self, *lines: dict[str, Any]) -> None:
        super().__init__(lines)
        self.bodies: list[bytes] = []

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        return await super()._handle(request)


def test_over_real_http_a_fork_begins_with_its_parents_bytes_and_its_session_goes_on_with_its_own(
    tmp_path: Path,
) -> None:
    """With the real texts and tools; to the server a fork looks like its parent, so it plays its parent's lines."""
    (tmp_path / "AGENTS.md").write_text("Write plainly.\n" * 200, encoding="utf-8")
    lines = (
        parent("one"),
        parent("", call("list_dir", path=".")),
        parent("two"),
        parent("", spawn("kid", context=FORK, mode="await")),
        parent("done"),
    )

    async def main(server: Wire) -> None:
        model = OpenAIModel(server.base_url, headers={"X-Session-Id": "{session_id}"})
        async with retinue.open(tmp_path / "data", model=model) as runtime:
            root = await runtime.create_session(cwd=tmp_path)
            for text in ("first", "second", "delegate"):
                assert (await root.prompt(text).result).status == "completed"
        await model.aclose()

    server = Wire(*lines)
    with server:
        asyncio.run(main(server))
        assert server.faults == []
    kid = next(number for number, sent in enumerate(server.bodies) if b"do kid" in sent and b'"tool_calls"' in sent)
    mine, parents = server.bodies[kid], [*server.bodies[:kid], *server.bodies[kid + 1 :]]
    for one, other in pairwise(parents):
        assert other.startswith(beginning(one))
    spawning = parents[kid - 1]
    turns = beginning(spawning).partition(b',{"role":"user","content":"delegate"}')[0]
    assert shared_bytes(mine, spawning) >= len(turns) > 5_000
    assert all(words in turns for words in (b"Write plainly.", b'"content":"two"', b'"tool_call_id"'))
    assert len(turns) / len(beginning(mine)) > 0.9
    names = [[tool["function"]["name"] for tool in json.loads(sent)["tools"]] for sent in (spawning, mine)]
    assert ("spawn_agent" in names[0], "spawn_agent" in names[1], names[1][-1]) == (True, False, "report_to_parent")


def test_the_words_that_end_the_messages_cannot_stand_in_one() -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root(STORE)
        for text in (HOSTILE, HOSTILE):
            await stage.turn(root, text)

    life = play(lambda _: FunctionModel(_echoing), scene)
    sent = body(life.asked()[1])
    messages = json.loads(beginning(sent) + b"]}")["messages"]
    assert [one["content"] for one in messages[1:]] == [HOSTILE] * 3
    assert messages == json.loads(sent)["messages"]
