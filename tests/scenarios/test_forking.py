"""Forks begin with their parent's completed turns, and a resumed child keeps what it was given (CONTRACT section 5)."""

from typing import Any

import pytest

from retinue.core.events import ContextCompacted, ContextSeeded, RunQueued, SessionOpened
from retinue.core.ids import SessionId
from retinue.ports import AssistantText, Finish, ModelRequest, ToolContext, ToolResult, UserText
from retinue.testing.fakes import FakeTool, OneModel, echo_tool
from retinue.testing.faults import StorePlan
from tests.scenarios.stage import (
    AGAIN,
    FunctionModel,
    Life,
    Stage,
    Theatre,
    answers_in,
    body_of,
    call,
    calls,
    child,
    code_of,
    each_seed,
    parent,
    play,
    refusal,
    says,
    script,
    spawn,
)
from tests.sim.lives import TEXTS

RESIDENT = "resident"
STORE = {"result.idle_parent": "store"}
"""So that a root has the turns it is asked for and no others."""
NOTED = (parent("noted"), AGAIN)
FORK = {"mode": "fork"}
PIRATE = "You are a pirate."
NOTES = UserText(text=TEXTS.child_notes)
"""What a fork is told as a child, behind its parent's turns: its system text is its parent's."""


def _tools(_: Any) -> list[FakeTool]:
    return [echo_tool(), echo_tool("other")]


LONG = "a long story " * 5_000
"""More than twice what packed context may hold (24 000 characters)."""


def _forking(request: ModelRequest) -> Finish:
    """A parent that has one whole turn with a call, then forks a child in the next."""
    texts = [message.text for message in request.messages]
    if request.name == "kid":
        return says("found" if request.messages[-1].text == "do kid" else "more")
    if texts[-1] == "first":
        return calls(call("echo", n=1), text="let me see")
    if texts[-1] == "second":
        return calls(spawn("kid", context=FORK), text="now the open turn")
    return says(f"answer to {len(texts)} messages")


async def _forked(request: ModelRequest) -> Finish:
    return _forking(request)


def _until_fork(life: Life[Any]) -> tuple[Any, ...]:
    """Return the parent's completed turns as it had them when its second turn began."""
    (request,) = (one for one in life.asked() if one.messages[-1].text == "second")
    return request.messages[:-1]


@pytest.mark.parametrize("queued", [False, True])
@each_seed
def test_a_fork_begins_with_the_parents_completed_turns_uncut_and_nothing_of_the_open_one(
    queued: bool, seed: int
) -> None:
    """Also when it stands in the queue while its parent's turn ends and another one passes."""
    stages: list[Stage] = []

    async def answer(request: ModelRequest) -> Finish:
        if request.name == "holder":
            await stages[0].until(lambda events: sum(e.session_id == roots[0] for e in events) > 40)
        return _forking(request)

    roots: list[SessionId] = []

    async def scene(stage: Stage) -> None:
        stages.append(stage)
        root = await stage.root({**STORE, "caps.running.root": 1}, RESIDENT)
        roots.append(root)
        await stage.turn(root, "first")
        await stage.turn(root, LONG)
        if queued:
            await stage.keep(root, "holder")
        await stage.turn(root, "second")
        if queued:
            assert stage.run("kid").status == "queued"
        for text in ("third", "fourth"):
            await stage.turn(root, text)
        await stage.kernel.tree_rests(root)

    life = play(lambda _: FunctionModel(answer), scene, tools=_tools, seed=seed)
    seed_of = _until_fork(life)
    assert [type(message) for message in seed_of[:4]][:2] == [UserText, AssistantText]
    assert LONG in [message.text for message in seed_of]
    (request,) = life.asked("kid")
    assert request.messages == (*seed_of, NOTES, UserText(text="do kid"))
    assert not any("open turn" in message.text for message in request.messages)
    (seeded,) = life.told(ContextSeeded)
    assert seeded.messages == seed_of
    assert life.settled("kid").output == "found"


@each_seed
def test_a_followed_up_fork_keeps_its_history_also_in_another_life(seed: int) -> None:
    theatre = Theatre(seed=seed)
    roots: list[SessionId] = []

    async def scene(stage: Stage) -> None:
        root = await stage.root(STORE, RESIDENT)
        roots.append(root)
        for text in ("first", "second"):
            await stage.turn(root, text)
        await stage.kernel.tree_rests(root)
        await stage.subagents.followup(root, stage.run("kid").session_id, "and now this")
        await stage.kernel.tree_rests(root)

    async def later(stage: Stage) -> None:
        kids = {fact.child_id for fact in (e.fact for e in stage.events()) if isinstance(fact, RunQueued)}
        (kid_id,) = kids
        await stage.turn(roots[0], "third")
        await stage.subagents.followup(roots[0], kid_id, "and that")
        await stage.kernel.tree_rests(roots[0])

    first = theatre.live(lambda _: FunctionModel(_forked), scene, tools=_tools)
    second = theatre.live(lambda _: FunctionModel(_forked), later, tools=_tools)
    found = AssistantText(text="found", reasoning="", tool_calls=())
    begun = (*_until_fork(first), NOTES, UserText(text="do kid"), found)
    assert first.asked("kid")[1].messages == (*begun, UserText(text="and now this"))
    (request,) = second.asked("kid")
    assert request.messages[: len(begun)] == begun
    assert [message.text for message in request.messages[len(begun) :]] == ["and now this", "more", "and that"]


@each_seed
def test_a_fork_that_a_restart_closed_before_it_began_still_begins_where_it_was_spawned(seed: int) -> None:
    theatre = Theatre(seed=seed)
    roots: list[SessionId] = []

    async def answer(request: ModelRequest) -> Finish:
        if request.name == "holder":
            await stages[-1].world.clock.sleep(1_000.0)
        return _forking(request)

    stages: list[Stage] = []

    async def scene(stage: Stage) -> None:
        stages.append(stage)
        root = await stage.root({**STORE, "caps.running.root": 1}, RESIDENT)
        roots.append(root)
        await stage.turn(root, "first")
        await stage.keep(root, "holder")
        await stage.turn(root, "second")
        assert stage.run("kid").status == "queued"
        store: Any = stage.kernel.parts.store
        store.plan = StorePlan(crash_before=store.commits + 1)
        await stage.turn(root, "third")

    async def later(stage: Stage) -> None:
        stages.append(stage)
        kid = stage.run("kid")
        assert (kid.status, kid.reason, kid.started_at) == ("interrupted", "restart", None)
        assert stage.model.requests == []
        await stage.turn(roots[0], "fourth")
        await stage.subagents.followup(roots[0], kid.session_id, "do kid")
        await stage.kernel.tree_rests(roots[0])

    first = theatre.live(lambda _: FunctionModel(answer), scene, tools=_tools)
    assert first.crashed
    second = theatre.live(lambda _: FunctionModel(answer), later, tools=_tools)
    (request,) = second.asked("kid")
    assert request.messages == (*_until_fork(first), NOTES, UserText(text="do kid"))


ROOM_TOKENS = 4_000


@pytest.mark.parametrize("closed", [False, True])
def test_a_fork_after_a_compaction_has_the_completed_turns_as_they_are_and_nothing_of_an_open_one(closed: bool) -> None:
    """Notes that an open turn led to are not in it; those of a turn that is over stand for what they replaced."""

    async def page(_: ToolContext, arguments: Any) -> ToolResult:
        return ToolResult(text=f"page {arguments['n']} " + "lorem ipsum " * 120)

    async def answer(request: ModelRequest) -> Finish:
        last = request.messages[-1].text
        if last == TEXTS.compaction:
            return says("my notes")
        if request.name == "kid":
            return says("found")
        if last.startswith("page") and request.number < 12:
            return calls(call("page", n=request.number))
        if last == "read":
            return calls(call("page", n=0))
        return says("told")

    async def scene(stage: Stage) -> None:
        root = await stage.root({**STORE, "life.max_steps": None}, RESIDENT)
        await stage.turn(root, "first")
        work = await stage.kernel.prompt(root, "read")
        await stage.until(lambda events: any(isinstance(event.fact, ContextCompacted) for event in events))
        if closed:
            await work.done.wait()
        await stage.keep(root, provider="fork")
        assert work.done.is_set() is closed
        await work.done.wait()
        await stage.kernel.tree_rests(root)
        await stage.turn(root, "last")

    life = play(
        lambda _: FunctionModel(answer),
        scene,
        tools=lambda _: [FakeTool("page", page)],
        parts=lambda _, model: {"models": OneModel(model, ROOM_TOKENS)},
    )
    assert life.told(ContextCompacted)
    (request,) = life.asked("kid")
    if closed:
        last = next(one for one in life.asked() if "last" in [message.text for message in one.messages])
        assert request.messages[:-2] == last.messages[: len(request.messages) - 2]
        assert "my notes" in request.messages[0].text
        assert [message.text for message in request.messages[-3:]] == ["told", NOTES.text, "do kid"]
    else:
        assert [message.text for message in request.messages] == ["first", "told", NOTES.text, "do kid"]


@each_seed
def test_a_fork_of_a_fork_begins_with_what_its_parent_began_with(seed: int) -> None:
    async def answer(request: ModelRequest) -> Finish:
        if request.name == "kid" and request.messages[-1].text == "do kid":
            return calls(spawn("grandkid", context=FORK), text="inside the kid's open turn")
        return _forking(request)

    async def scene(stage: Stage) -> None:
        root = await stage.root(STORE, RESIDENT)
        for text in ("first", "second"):
            await stage.turn(root, text)
        await stage.kernel.tree_rests(root)

    life = play(lambda _: FunctionModel(answer), scene, tools=_tools, seed=seed)
    request = life.asked("grandkid")[0]
    assert request.messages == (*_until_fork(life), NOTES, UserText(text="do grandkid"))
    assert {one.system for one in life.requests} == {request.system}


@pytest.mark.parametrize(("under", "allowed"), [("standard", True), (RESIDENT, True), ("courier", False)])
def test_a_fork_is_refused_where_the_context_mode_is_not_allowed_whatever_the_door(under: str, allowed: bool) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root(STORE, under)
        if allowed:
            await stage.keep(root, provider="fork")
            await stage.keep(root, context=FORK)
        else:
            assert (await refusal(stage.keep(root, provider="fork"))).code == "denied"
            assert (await refusal(stage.keep(root, context=FORK))).code == "denied"
        await stage.kernel.tree_rests(root)

    life = play(script(*NOTED, child("kid", "found")), scene)
    assert [fact.provider for fact in life.told(RunQueued)] == (["fork", "fork"] if allowed else [])


@pytest.mark.parametrize("after", ["rest", "crash"])
@each_seed
def test_a_cold_resume_keeps_depth_rights_persona_model_and_limits(after: str, seed: int) -> None:
    theatre = Theatre(seed=seed)
    ids: list[SessionId] = []
    limits = {"max_steps": 3, "timeout_s": 50.0, "max_depth": 2}

    async def scene(stage: Stage) -> None:
        root = await stage.root(STORE, RESIDENT)
        kid = await stage.keep(root, system_prompt=PIRATE, tools=["echo", "spawn_agent"], model="any:small", **limits)
        ids.extend((root, kid.session_id))
        if after == "crash":
            await stage.until(lambda _: bool(stage.model.requests))
            store: Any = stage.kernel.parts.store
            store.plan = StorePlan(crash_before=store.commits + 1)
        await stage.kernel.tree_rests(root)

    async def later(stage: Stage) -> None:
        root, kid_id = ids
        await stage.kernel.change_policy(root, {"caps.max_depth": 9, "life.max_steps": 99})
        run = await stage.subagents.followup(root, kid_id, "and now this")
        await stage.kernel.tree_rests(root)
        ended = await stage.kernel.scheduler.run(run.run_id)
        assert (ended.depth, ended.model, ended.status, ended.reason) == (1, "any:small", "failed", "step_limit")
        assert (ended.steps, ended.spec.timeout_s) == (3, 50.0)

    before = (*NOTED, child("kid", "ready"))
    theatre.live(script(*before), scene, tools=_tools)
    lines = (
        *NOTED,
        child("kid", "ready"),
        child("kid", "", spawn("grandkid", tools=["echo", "other", "spawn_agent"], max_depth=7)),
        child("kid", "", call("other", n=1)),
        child("kid", "", call("echo", n=2)),
        child("grandkid", "", spawn("too deep")),
        child("grandkid", "so be it"),
    )
    life = theatre.live(script(*lines), later, tools=_tools)
    first, second, _ = life.asked("kid")
    assert {request.system.split("\n\n")[1] for request in life.asked("kid")} == {PIRATE}
    offered = {tool.name for tool in first.tools}
    assert (offered & {"echo", "other", "spawn_agent"}, first.model) == ({"echo", "spawn_agent"}, "small")
    (spawned,) = answers_in(second)
    assert body_of(spawned)["name"] == "grandkid"
    assert code_of(life.answers(2, "kid")[0]) == "unknown_tool"
    (below,) = (fact for fact in life.told(SessionOpened) if fact.name == "grandkid")
    assert (below.depth, below.model, below.rights.tools, below.rights.max_depth) == (2, "any:small", ("echo",), 2)
    refusal = life.answers(name="grandkid")[0]
    assert code_of(refusal) == "depth_exceeded"
    assert "depth 3; the cap is 2" in body_of(refusal)["error"]["message"]
