"""Scenarios S120 to S122 and the rules around them: what a child is composed of, and what it keeps for good."""

import socket
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import RetinueError
from retinue.core.events import RunQueued, RunSettled, SessionOpened, Snapshot
from retinue.core.ids import Digest, SessionId
from retinue.core.policy import named
from retinue.ports import Finish, ModelRequest, ToolText
from retinue.runtime.kernel import NewSession
from retinue.runtime.providers import ALL, Provider
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
    parent,
    play,
    refusal,
    says,
    script,
    spawn,
)
from tests.sim.lives import CWD, TEXTS, open_root

RESIDENT = "resident"
STORE = {"result.idle_parent": "store"}
"""So that a root has the turns it is asked for and no others."""
NOTED = (parent("noted"), AGAIN)
FORK = {"mode": "fork"}
PIRATE = "You are a pirate."
ROLE = Snapshot(
    ref="project:critic",
    name="critic",
    digest=Digest("d"),
    instructions="You are a critic.",
    effort="high",
    tools=("echo", "other"),
    spawns=("*",),
)


def _tools(_: Any) -> list[FakeTool]:
    return [echo_tool(), echo_tool("other"), echo_tool("third")]


async def _refused(refused: Awaitable[object], code: str) -> str:
    """Return the sentence of the refusal that must come."""
    error = await refusal(refused)
    assert error.code == code
    return error.detail


def _offered(request: ModelRequest) -> list[str]:
    return [tool.name for tool in request.tools]


def _own_tools(request: ModelRequest) -> set[str]:
    return set(_offered(request)) & {"echo", "other", "third"}


def _header(life: Life[Any], name: str) -> SessionOpened:
    (header,) = (fact for fact in life.told(SessionOpened) if fact.name == name)
    return header


def _middle(system: str) -> str:
    """Return the role between the environment block and the notes."""
    return system.split("\n\n")[1]


@pytest.mark.parametrize("under", [RESIDENT, "standard", "courier"])
def test_S120_a_child_inherits_its_parents_tools_persona_model_effort_folder_profile_and_approval(under: str) -> None:
    async def scene(stage: Stage) -> None:
        root = await open_root(stage.kernel, STORE, under, definition=ROLE, approval="bypass", profile="build")
        await stage.keep(root)
        await stage.kernel.tree_rests(root)

    life = play(script(*NOTED, child("kid", "found")), scene, tools=_tools)
    root, kid = _header(life, "main"), _header(life, "kid")
    for key in ("model", "effort", "cwd", "profile", "approval", "policy"):
        assert getattr(kid, key) == getattr(root, key), key
    assert (kid.effort, kid.approval, kid.rights.tools) == ("high", "bypass", ("echo", "other"))
    assert (kid.depth, kid.parent_id is not None, kid.agent) == (1, True, None)
    (request,) = life.asked("kid")
    assert _own_tools(request) == {"echo", "other"}
    assert request.effort == "high"
    assert _middle(request.system) == ROLE.instructions


def test_S120_a_child_of_a_reading_session_reads_only() -> None:
    async def scene(stage: Stage) -> None:
        root = await open_root(stage.kernel, STORE, "courier", profile="plan")
        await stage.keep(root)
        await stage.kernel.tree_rests(root)

    life = play(script(*NOTED, child("kid", "", call("echo")), child("kid", "so be it")), scene, tools=_tools)
    assert _header(life, "kid").profile == "plan"
    assert _own_tools(life.asked("kid")[0]) == set()
    assert code_of(life.answers(name="kid")[0]) == "unknown_tool"


@each_seed
def test_S120_a_filter_hides_a_tool_and_refuses_its_execution_and_never_widens(seed: int) -> None:
    tools = _tools(None)

    async def scene(stage: Stage) -> None:
        root = await open_root(stage.kernel, STORE, RESIDENT, tools=("echo", "other"))
        await stage.keep(root, tools=["echo", "third"])
        await stage.keep(root, "sibling")
        await stage.kernel.tree_rests(root)

    lines = (
        child("kid", "", call("other", n=1), call("third", n=2), call("echo", n=3)),
        child("kid", "so be it"),
        child("sibling", "found"),
    )
    life = play(script(*NOTED, *lines), scene, tools=lambda _: tools, seed=seed)
    first = life.asked("kid")[0]
    assert _own_tools(first) == {"echo"}
    assert "report_to_parent" in _offered(first)  # a filter takes nothing from how a child reports
    assert "spawn_agent" not in _offered(first)
    other, third, echo = life.answers(name="kid")
    assert (code_of(other), code_of(third), echo.error) == ("unknown_tool", "unknown_tool", False)
    assert [tool.calls for tool in tools] == [[{"n": 3}], [], []]
    assert _own_tools(life.asked("sibling")[0]) == {"echo", "other"}


@each_seed
def test_S120_an_unknown_filter_name_fails_loudly_with_no_orphan(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root(STORE, RESIDENT)
        for start in (stage.start(root, tools=["echo", "Bash"]), stage.keep(root, tools=["ecko"])):
            detail = await _refused(start, "unknown_tool")
            assert "'Bash'" in detail or "'ecko'" in detail
        assert (await stage.turn(root)).status == "completed"

    lines = (parent("", spawn("kid", tools=["echo", "ecko"])), parent("so be it"))
    life = play(script(*lines), scene, tools=_tools, seed=seed)
    (answer,) = life.answers()
    assert code_of(answer) == "unknown_tool"
    assert "'ecko'" in body_of(answer)["error"]["message"]
    assert life.told(RunQueued) == []
    assert [fact.name for fact in life.told(SessionOpened)] == ["main"]


@each_seed
def test_S121_a_persona_shadows_in_the_child_only(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        root = await open_root(stage.kernel, STORE, RESIDENT, definition=ROLE)
        assert (await stage.turn(root)).status == "completed"
        await stage.kernel.tree_rests(root)
        await stage.turn(root, "again")

    lines = (
        parent("", spawn("pirate", system_prompt=PIRATE), spawn("plain")),
        parent("noted"),
        AGAIN,
        child("pirate", "", spawn("cabin boy")),
        child("pirate", "aye"),
        AGAIN,
        child("plain", "found"),
        child("cabin boy", "aye aye"),
    )
    life = play(script(*lines), scene, tools=_tools, seed=seed)
    personas = {request.name: _middle(request.system) for request in life.requests}
    assert personas == {
        "main": ROLE.instructions,
        "plain": ROLE.instructions,
        "pirate": PIRATE,
        "cabin boy": PIRATE,  # composed from its own parent
    }
    assert len({request.system for request in life.asked("pirate")[1:]}) == 1


@pytest.mark.parametrize("under", ["courier", "standard"])
def test_S122_a_custom_prompt_replaces_the_middle_part_only(under: str) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root(STORE, under)
        await stage.keep(root, "pirate", system_prompt=PIRATE)
        await stage.keep(root, "plain")
        await stage.kernel.tree_rests(root)

    life = play(script(*NOTED, child(None, "found")), scene)
    (custom,), (plain,) = life.asked("pirate"), life.asked("plain")
    before, _, after = plain.system.partition(TEXTS.child_role + "\n\n" + TEXTS.child_notes)
    assert before.startswith("# Environment")
    assert CWD in before
    assert custom.system == f"{before}{PIRATE}\n\n{TEXTS.child_notes}{after}"
    assert _offered(custom) == _offered(plain)


def test_a_childs_folder_lies_inside_its_parents(tmp_path: Path) -> None:
    inside, outside = tmp_path / "work" / "part", tmp_path / "elsewhere"
    inside.mkdir(parents=True)
    outside.mkdir()
    (tmp_path / "work" / "way out").symlink_to(outside)

    async def scene(stage: Stage) -> None:
        new = NewSession(cwd=str(tmp_path / "work"), model="any:model", policy=named(RESIDENT))
        root = await stage.kernel.create_session(new)
        await stage.keep(root, cwd="part")
        for cwd in ("..", str(outside), "way out", "/"):
            await _refused(stage.keep(root, cwd=cwd), "outside_workspace")
        await _refused(stage.keep(root, cwd="nowhere"), "invalid")
        await stage.kernel.tree_rests(root)

    life = play(script(*NOTED, child("kid", "found")), scene)
    assert _header(life, "kid").cwd == str(inside)
    assert f"Working directory: {inside}\n" in life.asked("kid")[0].system
    assert len(life.told(RunQueued)) == 1


ASKED: dict[str, dict[str, Any]] = {
    "output_schema": {"output_schema": {"type": "object"}},
    "depth": {"max_depth": 2},
    "tool_filter": {"tools": ["echo"]},
    "persona": {"system_prompt": PIRATE},
}


@pytest.mark.parametrize("missing", ASKED)
def test_what_a_provider_does_not_support_is_refused_and_never_ignored(missing: str) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root(STORE, RESIDENT)
        providers = stage.subagents.providers
        providers.add(Provider(name="plain", supports=ALL - {missing}))
        detail = await _refused(stage.keep(root, provider="plain", **ASKED[missing]), "unsupported")
        assert missing in detail
        assert "'plain'" in detail
        for name, asked in ASKED.items():
            if name != missing:
                await stage.keep(root, name, provider="plain", **asked)
        await stage.kernel.tree_rests(root)

    life = play(script(*NOTED, child(None, "{}")), scene, tools=_tools)
    runs = life.told(RunQueued)
    assert {(fact.name, fact.provider) for fact in runs} == {(name, "plain") for name in ASKED if name != missing}
    assert {fact.provider for fact in life.told(SessionOpened) if fact.parent_id} == {"plain"}


def test_a_provider_has_one_name_and_an_unknown_one_is_refused() -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root(STORE, RESIDENT)
        for name in ("spawn", "fork"):
            with pytest.raises(RetinueError, match="two providers"):
                stage.subagents.providers.add(Provider(name=name))
        detail = await _refused(stage.keep(root, provider="remote"), "unsupported")
        assert "'remote'" in detail

    life = play(script(*NOTED), scene)
    assert life.told(RunQueued) == []


@each_seed
def test_list_agents_tells_what_each_child_does_in_the_process(seed: int) -> None:
    stages: list[Stage] = []

    async def answer(request: ModelRequest) -> Finish:
        if request.name == "main":
            looks = sum(message.text == "look" for message in request.messages)
            looked = sum(isinstance(message, ToolText) for message in request.messages)
            return calls(call("list_agents")) if looks > looked else says("seen")
        if request.name == "waits" and request.number == 1:
            return calls(spawn("grandkid"))
        if request.name in ("runs", "grandkid", "parked"):
            await stages[0].world.clock.sleep(60.0)
        return says(f"{request.name} done")

    async def look(stage: Stage, root: SessionId) -> dict[str, str]:
        await stage.turn(root, "look")
        asked = [request for request in stage.model.requests if request.name == "main"]
        rows = body_of(answers_in(asked[-1])[0])["items"]
        return {row["name"]: row["activation"] for row in rows}

    async def scene(stage: Stage) -> None:
        stages.append(stage)
        root = await stage.root(STORE, RESIDENT)
        parked = await stage.keep(root, "parked")
        await stage.subagents.followup(root, parked.session_id, "later")
        await stage.subagents.interrupt(parked.session_id, authority=root)
        for name in ("runs", "waits", "ended"):
            await stage.keep(root, name)
        await stage.until(lambda events: sum(isinstance(event.fact, RunSettled) for event in events) == 3)
        seen = await look(stage, root)
        assert seen == {"parked": "settled", "runs": "running", "waits": "waiting", "ended": "released"}
        await stage.kernel.tree_rests(root)
        rest = await look(stage, root)
        assert rest == {"parked": "settled", "runs": "released", "waits": "released", "ended": "released"}

    async def later(stage: Stage) -> None:
        stages[0] = stage
        (root,) = {event.root_id for event in stage.events()}
        assert set((await look(stage, root)).values()) == {"released"}

    theatre = Theatre(seed=seed)
    theatre.live(lambda _: FunctionModel(answer), scene)
    theatre.live(lambda _: FunctionModel(answer), later)


SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}


@pytest.mark.parametrize("text", ['{"n": 3}', ' {"n": 3, "more": [1]}\n'])
def test_a_last_message_that_matches_the_schema_completes(text: str) -> None:
    life = _with_schema(SCHEMA, text)
    settled = life.settled("kid")
    assert (settled.status, settled.reason, settled.output) == ("completed", "done", text)
    assert '"required":["n"]' in life.asked("kid")[0].system


@pytest.mark.parametrize("text", ["three", '{"n": "3"}', "{}", "[3]", '```json\n{"n": 3}\n```', '{"n": 3} done', ""])
def test_any_other_last_message_fails_with_its_text_kept_apart(text: str) -> None:
    life = _with_schema(SCHEMA, text)
    settled = life.settled("kid")
    assert (settled.status, settled.reason, settled.output) == ("failed", "output_schema", None)
    assert settled.partial == (text or None)
    assert len(life.asked("kid")) == 1  # nobody is asked again
    assert "did not finish (failed/output_schema)" in life.letter("kid").text


def _with_schema(schema: dict[str, Any], text: str) -> Life[None]:
    async def scene(stage: Stage) -> None:
        root = await stage.root(STORE, RESIDENT)
        await stage.keep(root, output_schema=schema)
        await stage.kernel.tree_rests(root)

    return play(script(*NOTED, child("kid", text)), scene)


BROKEN: Sequence[dict[str, Any]] = ({"type": "nonsense"}, {"required": "n"}, {"properties": 3}, {"minimum": "x"})


@pytest.mark.parametrize("schema", BROKEN, ids=str)
def test_a_broken_schema_is_refused_and_leaves_no_orphan(schema: dict[str, Any]) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root(STORE, RESIDENT)
        assert "no JSON schema" in await _refused(stage.keep(root, output_schema=schema), "invalid")
        await _refused(stage.start(root, output_schema={"enum": ["x" * 70_000]}), "invalid")
        await stage.turn(root)

    life = play(script(parent("", spawn("kid", output_schema=schema)), parent("so be it")), scene)
    assert code_of(life.answers()[0]) == "invalid"
    assert life.told(RunQueued) == []


def test_a_schema_that_refers_elsewhere_fetches_nothing(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text("{}")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        refs = (f"http://127.0.0.1:{port}/schema.json", (tmp_path / "schema.json").as_uri(), "schema.json")

        async def scene(stage: Stage) -> None:
            root = await stage.root(STORE, RESIDENT)
            for ref in refs:
                assert ref in await _refused(stage.keep(root, output_schema={"$ref": ref}), "invalid")

        assert play(script(*NOTED), scene).told(RunQueued) == []
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_schema_that_refers_to_itself_is_followed() -> None:
    schema = {"$defs": {"n": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/$defs/n"}}
    assert _with_schema(schema, "[1, 2]").settled("kid").status == "completed"
    assert _with_schema(schema, '[1, "2"]').settled("kid").reason == "output_schema"


@pytest.mark.parametrize("under", [RESIDENT, "standard"])
def test_a_depth_of_zero_is_refused_with_both_numbers(under: str) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root(STORE, under)
        none = await stage.root({"caps.max_depth": 0}, under)
        for refused in (
            stage.start(root, max_depth=0),
            stage.keep(root, max_depth=0),
            stage.start(none),
            stage.start(none, max_depth=5),
        ):
            detail = await _refused(refused, "depth_exceeded")
            assert detail == "A child of this session would have depth 1; the cap is 0."
        await stage.turn(root, "allowed")
        await stage.turn(none, "forbidden")

    lines = (parent("", spawn("kid", max_depth=0)), parent("so be it"))
    life = play(script(*lines), scene)
    allowed, _, forbidden, _ = life.asked()
    assert "spawn_agent" in _offered(allowed)
    assert "spawn_agent" not in _offered(forbidden)
    for number in (1, 3):
        (answer,) = life.answers(number)
        assert code_of(answer) == "depth_exceeded"
        assert "depth 1; the cap is 0" in body_of(answer)["error"]["message"]
    assert life.told(RunQueued) == []


@pytest.mark.parametrize("under", [RESIDENT, "standard"])
@each_seed
def test_two_children_started_in_turn_both_have_depth_1(under: str, seed: int) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root(STORE, under)
        async with await stage.start(root, "first") as first:
            assert (await first.result).depth == 1
        async with await stage.start(root, "second", max_depth=1) as second:
            assert (await second.result).depth == 1

    life = play(script(child(None, "found")), scene, seed=seed)
    assert [(fact.name, fact.depth, fact.status) for fact in life.told(RunSettled)] == [
        ("first", 1, "completed"),
        ("second", 1, "completed"),
    ]
