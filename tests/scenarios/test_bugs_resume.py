"""What went wrong elsewhere: what a resumed child is, how deep a tree grows, which model runs (B52, B54, B74, B76)."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import RetinueError
from retinue.core.events import LetterQueued, RunQueued, RunSettled, RunStarted, SessionOpened, Snapshot, StepOpened
from retinue.core.ids import SessionId
from retinue.core.policy import named
from retinue.definitions.catalog import Catalog
from retinue.ports import Finish, Model, ModelRequest, ToolText, UserText
from retinue.testing.fakes import OneModel, echo_tool
from retinue.testing.simloop import SimCrash
from retinue.testing.world import World
from tests.scenarios.stage import (
    FunctionModel,
    Life,
    PartsOf,
    Stage,
    Theatre,
    answers_in,
    body_of,
    call,
    calls,
    code_of,
    names_of,
    places,
    play,
    says,
    spawn,
)
from tests.scenarios.test_bugs import stream_file
from tests.sim.lives import open_root

few_seeds = pytest.mark.parametrize("seed", range(6))
TOOLS = ("read_file", "write_file", "shell")
NARROW = """---
name: reader
description: reads
tools: read_file
max_steps: 3
---
Only read.
"""
WIDE = """---
name: reader
description: does everything
tools: read_file, write_file, shell
max_steps: 50
spawns: "*"
model: other:model
---
Do whatever you like.
"""


class Project:
    """The `Definitions` port over one folder, whatever the working directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / ".agents" / "agents").mkdir(parents=True)

    def write(self, text: str, name: str = "reader") -> None:
        (self.folder / ".agents" / "agents" / f"{name}.md").write_text(text)

    def find(self, ref: str, cwd: str) -> Snapshot:
        return Catalog(None, None, TOOLS).find(ref, str(self.folder))

    @property
    def parts(self) -> PartsOf:
        return lambda *_: {"definitions": self}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def _instruction(request: ModelRequest) -> str:
    return next((m.text for m in reversed(request.messages) if isinstance(m, UserText)), "")


def _grabbing(first: Sequence[dict[str, Any]]) -> FunctionModel:
    """Play a root that spawns, and a child that on a follow-up tries to write, to run commands and to delegate."""

    async def answer(request: ModelRequest) -> Finish:
        if request.root:
            return calls(*first) if request.number == 1 else says("noted")
        if isinstance(request.messages[-1], ToolText) or "grab" not in _instruction(request):
            return says("done")
        return calls(call("write_file", path="a"), call("shell", command="ls"), spawn("leaf"))

    return FunctionModel(answer)


@pytest.mark.parametrize("how", ["live", "restarted", "restarted twice"])
@pytest.mark.parametrize("under", ["standard", "resident"])
@few_seeds
def test_B54_a_follow_up_keeps_the_rights_of_the_spawn_whatever_the_file_says_by_now(
    under: str, how: str, seed: int, project: Project
) -> None:
    theatre = Theatre(seed=seed)
    tools = [echo_tool(name) for name in TOOLS]
    project.write(NARROW)

    async def first(stage: Stage) -> None:
        root = await open_root(stage.kernel, {}, under, tools=("read_file", "write_file"))
        await stage.turn(root)
        await stage.kernel.tree_rests(root)
        project.write(WIDE)
        if how == "live":
            await follow(stage)

    async def follow(stage: Stage) -> None:
        run = _first_run(stage, "reader")
        await stage.subagents.followup(run.parent_id, run.session_id, "grab what you can")
        await stage.kernel.tree_rests(run.root_id)

    def live(scene: Any) -> Life[None]:
        first_calls = [call("spawn_agent", prompt="read", agent="reader", continuable=True)]
        return theatre.live(lambda _: _grabbing(first_calls), scene, tools=lambda _: tools, parts=project.parts)

    life = live(first)
    for _ in range({"live": 0, "restarted": 1, "restarted twice": 2}[how]):
        life = live(follow)
    grabbing = life.asked("reader")[-1]
    assert [code_of(answer) for answer in answers_in(grabbing)] == ["unknown_tool"] * 3
    assert [tool.name for tool in grabbing.tools if tool.name in (*TOOLS, "spawn_agent")] == ["read_file"]
    assert "Only read." in grabbing.system
    assert "whatever you like" not in grabbing.system
    assert [tool.calls for tool in tools[1:]] == [[], []]
    specs = [fact.spec for fact in life.told(RunQueued)]
    assert {spec.max_steps for spec in specs} == {3}
    assert all((spec.rights, spec.definition) == (specs[0].rights, specs[0].definition) for spec in specs)
    assert {step.model for step in life.told(StepOpened)} == {"any:model"}


@pytest.mark.parametrize("restarted", [False, True])
@few_seeds
def test_B54_a_turn_that_a_letter_starts_has_no_wider_tools_either(restarted: bool, seed: int) -> None:
    """Under `resident` a grandchild's result wakes its parent, whose model then reaches for what it never had."""
    tools = [echo_tool(name) for name in TOOLS]
    theatre = Theatre(seed=seed)

    def model(world: World) -> Model:
        async def answer(request: ModelRequest) -> Finish:
            if request.root:
                narrow = spawn("kid", tools=["read_file", "spawn_agent"])
                return calls(narrow) if request.number == 1 else says("noted")
            if request.name == "leaf":
                await world.clock.sleep(5.0)
                return says("the leaf is done")
            if request.number == 1 or "again" in _instruction(request):
                return says("asked one") if isinstance(request.messages[-1], ToolText) else calls(spawn("leaf"))
            if "the leaf is done" in request.messages[-1].text:
                return calls(call("write_file", path="a"), call("shell", command="ls"))
            return says("done")

        return FunctionModel(answer)

    async def first(stage: Stage) -> SessionId:
        root = await stage.root(under="resident")
        await stage.turn(root)
        await stage.kernel.tree_rests(root)
        return root

    async def later(stage: Stage) -> None:
        kid = _first_run(stage, "kid")
        await stage.subagents.followup(kid.parent_id, kid.session_id, "again")
        await stage.kernel.tree_rests(kid.root_id)

    life: Life[Any] = theatre.live(model, first, tools=lambda _: tools)
    if restarted:
        life = theatre.live(model, later, tools=lambda _: tools)
    last = life.asked("kid")[-1]
    refused = [answer for answer in answers_in(last) if answer.name in TOOLS]
    assert [code_of(answer) for answer in refused] == ["unknown_tool"] * 2
    assert [tool.calls for tool in tools[1:]] == [[], []]


def _first_run(stage: Stage, name: str) -> Any:
    run_id = next(e.fact.run_id for e in stage.events() if isinstance(e.fact, RunQueued) and e.fact.name == name)
    return stage.store.run(run_id)


ENDINGS = {"good": "completed", "bad": "failed", "stopped": "cancelled"}


def _looking(world: World) -> Model:
    """Play a root with a child of each ending, that waits for, reads and lists them when it is told to look."""

    async def answer(request: ModelRequest) -> Finish:
        if request.root:
            return says("noted") if not (made := _looks(request)) else calls(*made)
        await world.clock.sleep({"good": 2.0, "bad": 1.0, "stopped": 900.0}[request.name])
        return says("the answer") if request.name == "good" else Finish(reason="error", error="bad", status=400)

    return FunctionModel(answer)


def _looks(request: ModelRequest) -> list[dict[str, Any]]:
    if request.number == 1:
        return [spawn(name) for name in ENDINGS]
    ids = [body_of(answer)["run_id"] for answer in _behind(request, "spawn_agent")]
    if "look" not in [message.text for message in request.messages] or _behind(request, "list_agents"):
        return []
    if not _behind(request, "wait_agent"):
        return [call("wait_agent", ids=ids, timeout_s=600)]
    return [*(call("read_agent_output", id=name) for name in ids), call("list_agents")]


@pytest.mark.parametrize("ending", ["kill", "clean"])
@pytest.mark.parametrize("under", ["standard", "resident", "courier", "roster"])
@few_seeds
def test_B52_after_a_restart_every_ended_child_reads_as_it_ended_and_waits_return_at_once(
    under: str, ending: str, seed: int
) -> None:
    """Neither a kill nor a clean shutdown after an ending changes it, its text, its duration or where it lies."""
    theatre = Theatre(seed=seed)

    async def first(stage: Stage) -> SessionId:
        root = await stage.root(under=under)
        work = await stage.kernel.prompt(root, "go")
        await stage.until(lambda _: "stopped" in {request.name for request in stage.model.requests})
        await stage.kernel.scheduler.cancel(stage.run("stopped").run_id)
        await work.done.wait()
        await stage.kernel.tree_rests(root)
        if ending == "kill":
            raise SimCrash
        return root

    theatre.live(_looking, first)
    before = {name: theatre.run(name) for name in ENDINGS}
    root = before["good"].parent_id

    async def later(stage: Stage) -> float:
        begun_s = stage.world.clock.monotonic()
        await stage.turn(root, "look")
        return stage.world.clock.monotonic() - begun_s

    life = theatre.live(_looking, later)
    assert life.value is not None
    assert life.value < 5
    *reads, listed = answers_in(life.asked()[-1])
    (waited,) = [answer for request in life.asked() for answer in _behind(request, "wait_agent")][:1]
    assert [(row["name"], row["status"]) for row in body_of(waited)["items"]] == [*ENDINGS.items()]
    assert [body_of(read)["status"] for read in reads] == [*ENDINGS.values()]
    assert body_of(reads[0])["text"] == "the answer"
    assert {row["name"]: row["status"] for row in body_of(listed)["items"]} == ENDINGS
    for name, run in before.items():
        now = theatre.run(name)
        assert (now.status, now.reason, now.ended_at, now.elapsed_s) == (
            run.status,
            run.reason,
            run.ended_at,
            run.elapsed_s,
        )
    assert len(life.told(RunSettled)) == len(ENDINGS)


def _behind(request: ModelRequest, tool: str) -> list[ToolText]:
    return [message for message in request.messages if isinstance(message, ToolText) and message.name == tool]


@pytest.mark.parametrize("under", ["standard", "resident", "courier", "guarded", "roster"])
@few_seeds
def test_B74_an_agent_that_passes_its_task_on_stops_at_the_depth_and_is_told_to_do_it_itself(
    under: str, seed: int
) -> None:
    depth = named(under)["caps.max_depth"]
    life = play(stream_file("B74", *_further()), lambda stage: stage.go(under=under), seed=seed)
    queued = life.told(RunQueued)
    assert [fact.depth for fact in queued] == list(range(1, depth + 1))
    headers = [fact for fact in life.told(SessionOpened) if fact.parent_id is not None]
    assert [header.depth for header in headers] == list(range(1, depth + 1))
    deepest = [request for request in life.requests if request.session_id == queued[-1].child_id]
    assert "spawn_agent" not in {tool.name for request in deepest for tool in request.tools}
    refused = answers_in(deepest[1])[0]
    assert code_of(refused) == "depth_exceeded"
    error = body_of(refused)["error"]
    assert f"depth {depth + 1}" in error["message"]
    assert f"cap is {depth}" in error["message"]
    assert "yourself" in error["hint"]
    assert {fact.status for fact in life.told(RunSettled)} == {"completed"}


def _further() -> list[dict[str, Any]]:
    """Return what every agent says once the stream file is at its end: a hold may hand results over later."""
    return [{"agent": "any", "n": number, "text": "That is all."} for number in range(4, 12)]


@pytest.mark.parametrize("under", ["standard", "resident"])
@few_seeds
def test_B74_the_depth_holds_after_a_restart_for_the_deepest_child(under: str, seed: int) -> None:
    theatre = Theatre(seed=seed)

    async def first(stage: Stage) -> SessionId:
        root = await stage.root(under=under)
        await stage.turn(root)
        await stage.kernel.tree_rests(root)
        return root

    theatre.live(stream_file("B74", *_further()), first)
    deepest = max((e.fact for e in theatre.before if isinstance(e.fact, RunQueued)), key=lambda fact: fact.depth)
    agents = len({e.session_id for e in theatre.before})

    async def later(request: ModelRequest) -> Finish:
        last = request.messages[-1]
        return calls(spawn("looper")) if isinstance(last, UserText) and last.text == "once more" else says("myself")

    async def again(stage: Stage) -> None:
        # A policy that is wider now does not lift what the child's rights were frozen at.
        await stage.kernel.change_policy(deepest.root_id, {"caps.max_depth": 9})
        await stage.subagents.followup(deepest.parent_id, deepest.child_id, "once more")
        await stage.kernel.tree_rests(deepest.root_id)

    life = theatre.live(lambda _: FunctionModel(later), again)
    asked = [request for request in life.requests if request.session_id == deepest.child_id]
    assert code_of(answers_in(asked[-1])[0]) == "depth_exceeded"
    assert len({event.session_id for event in life.events}) == agents
    assert {fact.depth for fact in life.told(RunQueued) if fact.child_id == deepest.child_id} == {deepest.depth}


@pytest.mark.parametrize("cap", [1, 3, 5])
@few_seeds
def test_B74_without_a_depth_the_number_of_children_of_a_root_run_ends_it(cap: int, seed: int) -> None:
    switches = {"caps.max_depth": None, "caps.created.root_run": cap, "caps.created.turn": None}
    life = play(stream_file("B74", *_further()), lambda stage: stage.go(switches), seed=seed)
    assert len(life.told(RunQueued)) == cap
    deepest = [r for r in life.requests if r.session_id == life.told(RunQueued)[-1].child_id]
    refused = answers_in(deepest[1])[0]
    assert code_of(refused) == "cap_created"
    assert str(cap) in body_of(refused)["error"]["message"]


class Named:
    """The `Models` port with some names behind one model; every other is unknown."""

    def __init__(self, model: Model, names: Collection[str]) -> None:
        self._one = OneModel(model)
        self._names = names
        self.room_tokens = self._one.room_tokens
        self.aclose = self._one.aclose

    def find(self, name: str) -> tuple[Model, str]:
        if name not in self._names:
            raise RetinueError("unknown_model", f"There is no model {name!r}.", "There are others.")
        return self._one.find(name)


KNOWN = ("any:model", "fake:b", "fake:c")
ROLE = "---\nname: {0}\ndescription: x\nmodel: {1}\n---\nBe brief.\n"
CHOICES: dict[str, tuple[str | None, str | None, str | None]] = {
    "the caller's, though the role's is unknown": ("nope:1", "fake:b", "fake:b"),
    "the caller's before the role's": ("fake:c", "fake:b", "fake:b"),
    "the role's": ("fake:c", None, "fake:c"),
    "the parent's": ("inherit", None, "any:model"),
    "nobody's: the role's is unknown": ("nope:1", None, None),
    "nobody's: the caller's is unknown": ("fake:c", "nope:2", None),
}
"""Of each case: the role's model, the caller's, and the one that runs; none is a refusal before the run."""


@pytest.mark.parametrize("case", CHOICES)
@pytest.mark.parametrize("door", ["tool", "python"])
@pytest.mark.parametrize("under", ["standard", "courier"])
def test_B76_argument_before_role_before_parent_and_an_unknown_name_is_refused_before_the_run(
    under: str, door: str, case: str, project: Project
) -> None:
    role, asked, runs = CHOICES[case]
    project.write(ROLE.format("helper", role), "helper")
    wanted = {"agent": "helper", **({} if asked is None else {"model": asked})}
    refusals: list[str] = []

    async def answer(request: ModelRequest) -> Finish:
        if request.root and request.number == 1 and door == "tool":
            return calls(spawn("kid", **wanted))
        return says("ok")

    async def scene(stage: Stage) -> None:
        root = await stage.root(under=under)
        if door == "tool":
            await stage.turn(root)
            await stage.kernel.tree_rests(root)
            return
        try:
            child = await stage.start(root, **wanted)
            await child.result
        except RetinueError as error:
            refusals.append(error.code)

    life = Theatre().live(
        lambda _: FunctionModel(answer),
        scene,
        parts=lambda _, model: {"definitions": project, "models": Named(model, KNOWN)},
    )
    if runs is None:
        found = refusals if door == "python" else [code_of(answer) for answer in life.answers(1)]
        assert found == ["unknown_model"]
        assert life.told(RunQueued) == []
        return
    (queued,) = life.told(RunQueued)
    kid = queued.child_id
    header = next(e.fact for e in life.events if e.session_id == kid and isinstance(e.fact, SessionOpened))
    steps = {e.fact.model for e in life.events if e.session_id == kid and isinstance(e.fact, StepOpened)}
    assert {queued.model, header.model, *steps, life.settled("kid").model} == {runs}
    assert {request.model for request in life.asked("kid")} == {runs.partition(":")[2]}


@few_seeds
def test_B76_a_grandchild_has_its_parents_model_and_a_resumed_child_its_own_or_an_honest_failure(seed: int) -> None:
    """A model that is gone after a restart is no reason to run the child on another one."""
    theatre = Theatre(seed=seed)

    async def answer(request: ModelRequest) -> Finish:
        if request.root:
            return calls(spawn("kid", model="fake:b")) if request.number == 1 else says("noted")
        if request.name == "kid" and request.number == 1:
            return calls(spawn("leaf"))
        return says("done")

    async def first(stage: Stage) -> None:
        root = await stage.root({"caps.max_depth": 2})
        await stage.turn(root)
        await stage.kernel.tree_rests(root)

    def live(scene: Any, names: Collection[str]) -> Life[None]:
        return theatre.live(
            lambda _: FunctionModel(answer), scene, parts=lambda _, model: {"models": Named(model, names)}
        )

    life = live(first, KNOWN)
    assert {name: life.settled(name).model for name in ("kid", "leaf")} == {"kid": "fake:b", "leaf": "fake:b"}

    async def follow(stage: Stage) -> None:
        kid = _first_run(stage, "kid")
        await stage.subagents.followup(kid.parent_id, kid.session_id, "and now?")
        await stage.kernel.tree_rests(kid.root_id)

    gone = live(follow, ("any:model",))
    assert gone.asked("kid") == []
    last = gone.told(RunSettled)[-1]
    assert (last.name, last.status, last.reason, last.model) == ("kid", "failed", "provider_error", "fake:b")
    assert "fake:b" in (last.detail or "")
    back = live(follow, KNOWN)
    assert {request.model for request in back.asked("kid")} == {"b"}
    assert names_of(back, RunStarted).count("kid") == 3
    assert len(back.told(LetterQueued)) == 4
    assert len(places(back.events, RunSettled)) == 4
