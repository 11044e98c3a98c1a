"""Scenarios S114 and S118, and the bugs B76, B80, B82 and B95: what a role gives a child, what it cannot, and where."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from retinue.core.events import RunQueued, RunSettled, SessionOpened, StepOpened, ToolStarted
from retinue.core.ids import SessionId
from retinue.core.policy import Policy, named, with_changes
from retinue.definitions.catalog import Catalog
from retinue.definitions.skills import SkillShelf
from retinue.definitions.surroundings import Surroundings
from retinue.ports import Finish, ModelRequest, ToolContext, ToolResult
from retinue.runtime.kernel import NewSession
from retinue.testing.fakes import FakeTool, echo_tool
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
    few_seeds,
    parent,
    play,
    refusal,
    says,
    script,
    spawn,
    under_each,
)

STORE = {"result.idle_parent": "store"}
TOOLS = ("look", "note", "fire")
ROLE = """---
name: {name}
description: For tests.
{front}
---
{text}
"""


class Project:
    """A folder with roles, and what a runtime makes of it: real definitions and real environment blocks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / ".agents" / "agents").mkdir(parents=True)
        catalog = Catalog(None, known_tools=TOOLS)
        self.parts: dict[str, Any] = {
            "definitions": catalog,
            "surroundings": Surroundings(catalog, SkillShelf(None)),
        }
        self.catalog = catalog

    def role(self, name: str, text: str = "Be useful.", **front: object) -> None:
        lines = "\n".join(f"{key}: {value}" for key, value in front.items())
        written = ROLE.format(name=name, front=lines, text=text)
        (self.folder / ".agents" / "agents" / f"{name}.md").write_text(written, encoding="utf-8")

    async def root(
        self, stage: Stage, policy: Mapping[str, Any] | None = None, under: str = "standard", **more: Any
    ) -> SessionId:
        chosen: Policy = with_changes(named(under), {**STORE, **(policy or {})}, in_code=True)
        agent = more.pop("agent", None)
        if agent is not None:
            more["definition"] = self.catalog.find(agent, str(self.folder))
        new = NewSession(cwd=str(self.folder), model="any:model", policy=chosen, **more)
        return await stage.kernel.create_session(new)

    def play(
        self, model: Any, scene: Any, *, theatre: Theatre | None = None, tools: Any = None, **more: Any
    ) -> Life[Any]:
        stage = theatre or Theatre(**more)
        return stage.live(model, scene, tools=tools or _tools, parts=lambda *_: self.parts)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def _tools(_: Any) -> list[FakeTool]:
    return [echo_tool(name) for name in TOOLS]


def _offered(request: ModelRequest) -> list[str]:
    return [tool.name for tool in request.tools]


def _own(request: ModelRequest) -> list[str]:
    return [name for name in _offered(request) if name in TOOLS]


def _header(life: Life[Any], name: str) -> SessionOpened:
    (header,) = (fact for fact in life.told(SessionOpened) if fact.name == name)
    return header


@each_seed
def test_S114_a_child_gets_its_roles_model_steps_tools_and_instructions_and_names_the_call_it_came_from(
    project: Project, seed: int
) -> None:
    project.role("reader", "Only read.", tools="look", model="any:small", max_steps=2, timeout="90s", effort="low")

    async def model(request: ModelRequest) -> Finish:
        if request.root:
            return calls(spawn("kid", agent="reader")) if request.number == 1 else says("noted")
        return calls(call("look", n=request.number), call("note", n=request.number))

    async def scene(stage: Stage) -> None:
        root = await project.root(stage)
        await stage.turn(root)
        await stage.kernel.tree_rests(root)

    tools = _tools(None)
    life = project.play(lambda _: FunctionModel(model), scene, tools=lambda _: tools, seed=seed)
    first, second = life.asked("kid")
    assert (first.model, first.effort, _own(first)) == ("small", "low", ["look"])
    assert "\n\nOnly read.\n\n" in first.system
    assert [answer.error for answer in answers_in(second)] == [False, True]
    assert [tool.calls for tool in tools] == [[{"n": 1}, {"n": 2}], [], []]
    settled, header = life.settled("kid"), _header(life, "kid")
    assert (settled.status, settled.reason, settled.steps, settled.model) == ("failed", "step_limit", 2, "any:small")
    assert {fact.model for fact in life.told(StepOpened)} == {"any:model", "any:small"}
    spawning = next(fact for fact in life.told(ToolStarted) if fact.name == "spawn_agent")
    assert header.call_id == settled.call_id == spawning.call_id
    assert (header.agent, header.definition is not None) == ("project:reader", True)
    assert header.definition is not None
    assert (header.agent_digest, header.definition.timeout_s) == (header.definition.digest, 90)


@each_seed
def test_S118_frozen_instructions_are_in_the_prompt_and_forbidden_tools_are_neither_offered_nor_executed(
    project: Project, seed: int
) -> None:
    """The file is edited while the child works and before it is written to again; approvals come with a later part."""
    project.role("critic", "Find faults.", tools="look, note", disallowed_tools="note")
    theatre = Theatre(seed=seed)
    tools = _tools(None)

    async def model(request: ModelRequest) -> Finish:
        if request.root:
            return calls(spawn("kid", agent="critic", continuable=True)) if request.number == 1 else says("noted")
        if request.number in (1, 3, 5):
            project.role("critic", "Praise everything.", tools="look, note, fire", spawns='"*"')
            return calls(call("note"), call("fire"), call("spawn_agent", prompt="help"), call("look", n=request.number))
        return says("done")

    async def first(stage: Stage) -> None:
        root = await project.root(stage)
        await stage.turn(root)
        await stage.kernel.tree_rests(root)
        await stage.subagents.followup(root, stage.run("kid").session_id, "more")
        await stage.kernel.tree_rests(root)

    async def second(stage: Stage) -> None:
        header = next(e for e in stage.events() if isinstance(e.fact, SessionOpened) and e.fact.name == "kid")
        await stage.subagents.followup(header.root_id, header.session_id, "and more")
        await stage.kernel.tree_rests(header.root_id)

    lives = [
        project.play(lambda _: FunctionModel(model), scene, theatre=theatre, tools=lambda _: tools)
        for scene in (first, second)
    ]
    asked = [request for life in lives for request in life.asked("kid")]
    assert len(asked) == 6
    assert {request.system for request in asked} == {asked[0].system}
    assert "\n\nFind faults.\n\n" in asked[0].system
    assert all(_own(request) == ["look"] and "spawn_agent" not in _offered(request) for request in asked)
    for request in asked[1::2]:
        note, fire, below, look = answers_in(request)
        assert [code_of(answer) for answer in (note, fire)] == ["unknown_tool"] * 2
        assert code_of(below) in ("unknown_tool", "depth_exceeded", "denied")
        assert not look.error
    assert [tool.calls for tool in tools] == [[{"n": 1}, {"n": 3}, {"n": 5}], [], []]


# ------------------------------------------------------------------------------------------------ rights: intersections


@pytest.mark.parametrize("role", ["writer", "free", None])
@few_seeds
def test_B82_a_child_of_a_reading_session_has_no_writing_tool_whatever_its_role_says(
    project: Project, role: str | None, seed: int
) -> None:
    """As far as reading goes: writing and commands come with rights and files; here they are tools of a program."""
    project.role("writer", tools="look, note, fire", access="write", permission_mode="bypassPermissions")
    project.role("free", spawns='"*"')
    tools = _tools(None)

    async def model(request: ModelRequest) -> Finish:
        if request.root:
            kid = spawn("kid", **({} if role is None else {"agent": role}))
            return calls(kid) if request.number == 1 else says("noted")
        return (
            calls(call("note", path="a"), call("fire", command="echo > a")) if request.number == 1 else says("so be it")
        )

    async def scene(stage: Stage) -> None:
        root = await project.root(stage, under="courier", profile="plan")
        await stage.turn(root)
        await stage.kernel.tree_rests(root)

    life = project.play(lambda _: FunctionModel(model), scene, tools=lambda _: tools, seed=seed)
    header = _header(life, "kid")
    assert (header.profile, header.rights.access) == ("plan", "read")
    first, second = life.asked("kid")
    assert _own(first) == []
    assert [code_of(answer) for answer in answers_in(second)] == ["unknown_tool"] * 2
    assert [tool.calls for tool in tools] == [[], [], []]


@pytest.mark.parametrize("mine", [None, ("look", "note"), ("note",), ()], ids=str)
@pytest.mark.parametrize("role", [None, "look, note", "note, fire", "", "look"], ids=str)
@pytest.mark.parametrize("asked", [None, ["look", "note"], ["fire", "spawn_agent"], []], ids=str)
def test_B82_a_childs_tools_are_those_of_its_parent_its_role_and_its_call_at_once(
    project: Project, mine: tuple[str, ...] | None, role: str | None, asked: list[str] | None
) -> None:
    if role is not None:
        project.role("some", tools=f'"{role}"', spawns='"*"')
    wanted = {**({} if role is None else {"agent": "some"}), **({} if asked is None else {"tools": asked})}
    written = None if role is None else [name.strip() for name in role.split(",") if name.strip()]
    left = [name for name in TOOLS if all(limit is None or name in limit for limit in (mine, written, asked))]

    async def scene(stage: Stage) -> None:
        root = await project.root(stage, {"caps.max_depth": 2}, tools=mine)
        await stage.turn(root)
        await stage.kernel.tree_rests(root)

    lines = (parent("", spawn("kid", **wanted)), parent("noted"), AGAIN, child("kid", "found"))
    life = project.play(script(*lines), scene)
    (first,) = life.asked("kid")
    assert _own(first) == left
    may_delegate = (role is None or bool(written is not None)) and (asked is None or "spawn_agent" in asked)
    assert ("spawn_agent" in _offered(first)) is may_delegate
    assert "report_to_parent" in _offered(first)


@pytest.mark.parametrize(
    ("tools", "left"),
    [("all", TOOLS), ('"*"', TOOLS), ("nonsense", ()), ('""', ()), ("[]", ()), ("look, nonsense", ("look",))],
)
def test_B80_a_role_with_every_tool_has_them_and_one_with_none_is_seen_in_the_record(
    project: Project, tools: str, left: tuple[str, ...]
) -> None:
    """`all` and `*` mean what the parent has; a list without a known name leaves none, and the header says so."""
    project.role("some", tools=tools)

    async def scene(stage: Stage) -> None:
        root = await project.root(stage)
        async with await stage.start(root, agent="some") as kid:
            await kid.result

    life = project.play(script(child("kid", "found")), scene)
    (first,) = life.asked("kid")
    assert _own(first) == list(left)
    held = _header(life, "kid").rights.tools
    assert held == (None if left == TOOLS else left)
    (queued,) = life.told(RunQueued)
    assert queued.spec.rights.tools == held


@pytest.mark.parametrize("key", ["rights.caller_model", "rights.inline_roles"])
@under_each()
def test_B76_a_parents_model_chooses_a_model_and_writes_a_role_only_where_the_policy_lets_it(
    under: str, key: str
) -> None:
    """A program that starts children may, under every policy; `inherit` chooses nothing."""
    asked = {"model": "any:other"} if key == "rights.caller_model" else {"system_prompt": "You are a pirate."}
    allowed = named(under)[key]

    async def scene(stage: Stage) -> None:
        root = await stage.root(STORE, under)
        await stage.turn(root)
        await stage.kernel.tree_rests(root)
        async with await stage.start(root, "mine", **asked) as kid:
            await kid.result

    tried = spawn("kid", **asked), spawn("plain", model="inherit")
    life = play(script(parent("", *tried), parent("noted"), AGAIN, child(None, "found")), scene)
    kid, plain = life.answers(1)[:2]
    assert not plain.error
    assert {fact.name for fact in life.told(RunSettled)} == {"plain", "mine", *(["kid"] if allowed else [])}
    if not allowed:
        assert code_of(kid) == "denied"
        assert key in body_of(kid)["error"]["message"]
    assert {request.model for request in life.asked("plain")} == {"model"}
    (mine,) = life.asked("mine")
    assert mine.model == "other" if "model" in asked else "You are a pirate." in mine.system


def test_under_roster_a_child_that_no_role_is_named_for_is_the_built_in_worker(project: Project) -> None:
    async def scene(stage: Stage) -> None:
        for under in ("roster", "standard"):
            root = await project.root(stage, under=under)
            async with await stage.start(root, under) as kid:
                await kid.result

    life = project.play(script(child(None, "found")), scene)
    assert (_header(life, "roster").agent, _header(life, "standard").agent) == ("builtin:worker", None)
    worker, plain = life.asked("roster")[0], life.asked("standard")[0]
    assert "You carry out one bounded task" in worker.system
    assert "You carry out one bounded task" not in plain.system
    assert _own(worker) == []  # it names the tools of a workspace, and there are none here
    assert _own(plain) == list(TOOLS)


@few_seeds
def test_a_role_delegates_to_the_roles_that_it_names_and_to_no_other(project: Project, seed: int) -> None:
    project.role("lead", spawns="helper")
    project.role("helper")
    project.role("other")

    async def model(request: ModelRequest) -> Finish:
        if not request.root:
            return says("found")
        tried = [spawn("a", agent="helper"), spawn("b", agent="other"), spawn("c"), spawn("d", agent="project:helper")]
        return calls(*tried) if request.number == 1 else says("noted")

    async def scene(stage: Stage) -> None:
        root = await project.root(stage, agent="lead")
        await stage.turn(root)
        await stage.kernel.tree_rests(root)

    life = project.play(lambda _: FunctionModel(model), scene, seed=seed)
    answers = life.answers(1)
    assert [answer.error for answer in answers[:4]] == [False, True, True, False]
    assert [code_of(answer) for answer in answers[1:3]] == ["denied"] * 2
    assert sorted(fact.name for fact in life.told(RunSettled)) == ["a", "d"]


@few_seeds
def test_a_main_session_with_a_role_has_its_tools_its_steps_and_its_leave_to_delegate(
    project: Project, seed: int
) -> None:
    project.role("narrow", "Stay small.", disallowed_tools="note", max_steps=3)
    tools = _tools(None)

    async def model(request: ModelRequest) -> Finish:
        return calls(call("note"), spawn("kid"), call("look", n=request.number))

    async def scene(stage: Stage) -> str | None:
        return (await stage.turn(await project.root(stage, agent="narrow"))).reason

    life = project.play(lambda _: FunctionModel(model), scene, tools=lambda _: tools, seed=seed)
    assert life.value == "step_limit"
    assert len(life.requests) == 3
    assert all(_offered(request) == ["look", "fire"] for request in life.requests)
    assert "\n\nStay small." in life.requests[0].system
    assert [code_of(answer) for answer in life.answers()[:2]] == ["unknown_tool"] * 2
    assert [len(tool.calls) for tool in tools] == [3, 0, 0]


# ----------------------------------------------------------------------------------------------------- the right folder


def _where(seen: list[tuple[str, str]]) -> FakeTool:
    async def body(context: ToolContext, _: Mapping[str, Any]) -> ToolResult:
        seen.append((context.session_id, context.cwd))
        return ToolResult(text=context.cwd)

    return FakeTool("where", body)


@pytest.mark.parametrize(
    "asked", [{}, {"system_prompt": "You are in the right place."}, {"agent": "reader"}, {"context": {"mode": "fork"}}]
)
@few_seeds
def test_B95_a_childs_system_text_states_one_folder_its_own_and_its_tools_work_there(
    project: Project, asked: dict[str, Any], seed: int
) -> None:
    """Whatever it is composed of; also in its child, which has it from its parent, and when it is written to again."""
    project.role("reader", "Read.", spawns='"*"')
    (project.folder / "sub" / "deep").mkdir(parents=True)
    (project.folder / "AGENTS.md").write_text("Use tabs.", encoding="utf-8")
    theatre = Theatre(seed=seed)
    seen: list[tuple[str, str]] = []

    async def model(request: ModelRequest) -> Finish:
        last = request.messages[-1].text
        if request.name == "kid" and last.startswith("do kid"):
            return calls(call("where"), spawn("leaf", mode="await"), spawn("deep", cwd="deep", mode="await"))
        return calls(call("where")) if last.startswith(("do ", "again")) else says("done")

    async def first(stage: Stage) -> None:
        root = await project.root(stage, {"caps.max_depth": 2})
        await stage.turn(root, "hello")
        await stage.keep(root, cwd="sub", **asked)
        await stage.kernel.tree_rests(root)

    async def second(stage: Stage) -> None:
        header = next(e for e in stage.events() if isinstance(e.fact, SessionOpened) and e.fact.name == "kid")
        await stage.subagents.followup(header.root_id, header.session_id, "again")
        await stage.kernel.tree_rests(header.root_id)

    def live(scene: Any) -> Life[Any]:
        return project.play(
            lambda _: FunctionModel(model), scene, theatre=theatre, tools=lambda _: [*_tools(_), _where(seen)]
        )

    lives = [live(first), live(second)]
    sub = project.folder / "sub"
    folders = {"main": project.folder, "kid": sub, "leaf": sub, "deep": sub / "deep"}
    for request in (request for life in lives for request in life.requests):
        lines = [line for line in request.system.splitlines() if str(project.folder) in line]
        assert lines == [f"Working directory: {folders[request.name]}"], request.name
        assert request.system.count("Working directory") == 1
    names = {event.session_id: event.fact.name for event in lives[-1].events if isinstance(event.fact, SessionOpened)}
    assert sorted((names[SessionId(session)], cwd) for session, cwd in seen) == sorted(
        [("kid", str(sub))] * 2 + [("leaf", str(sub)), ("deep", str(sub / "deep"))]
    )
    assert {fact.name: fact.cwd for fact in lives[-1].told(RunQueued)} == {
        name: str(folder) for name, folder in folders.items() if name != "main"
    }


@pytest.mark.parametrize("cwd", ["..", "/", "sub/../..", "elsewhere", "sub\0", "~"])
def test_B95_a_folder_that_is_none_or_lies_outside_is_refused_and_leaves_no_orphan(project: Project, cwd: str) -> None:
    (project.folder / "sub").mkdir()

    async def scene(stage: Stage) -> None:
        root = await project.root(stage)
        error = await refusal(stage.start(root, cwd=cwd))
        assert error.code in ("outside_workspace", "invalid")
        await stage.turn(root)

    life = project.play(script(parent("", spawn("kid", cwd=cwd)), parent("so be it")), scene)
    assert code_of(life.answers(1)[0]) in ("outside_workspace", "invalid")
    assert life.told(RunQueued) == []
