"""The fake tools misbehave as they say, and the wandering model wanders, but ends."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from retinue.core.events import Usage
from retinue.core.ids import CallId, SessionId
from retinue.core.policy import ALL_MODES
from retinue.ports import (
    AssistantText,
    Delta,
    Finish,
    ModelRequest,
    RequestCall,
    RequestMessage,
    ToolSchema,
    ToolText,
    UserText,
)
from retinue.testing.fakes import (
    AGENT_TOOLS,
    FakeTool,
    OneModel,
    RecordingModel,
    WorldModel,
    deaf_tool,
    echo_tool,
    hanging_tool,
    huge_tool,
    raising_tool,
    slow_tool,
)
from retinue.testing.simloop import SimDeadlock
from retinue.testing.world import SimClock, World, run_world

CONTEXT: Any = None
"""No fake tool looks at its context."""


def call(make: Callable[[SimClock], FakeTool], cancels: tuple[float, ...] = ()) -> tuple[str, float, bool]:
    """A tool's answer, the seconds it took, and whether it was cancelled."""

    async def main(world: World) -> tuple[str, float, bool]:
        began = world.clock.monotonic()
        tool = make(world.clock)
        task = asyncio.ensure_future(tool.call(CONTEXT, {"a": 1}))
        for delay_s in cancels:
            await world.clock.sleep(delay_s)
            task.cancel()
        await asyncio.wait([task])
        assert tool.calls == [{"a": 1}]
        took = world.clock.monotonic() - began
        return "" if task.cancelled() else task.result().text, took, task.cancelled()

    value = run_world(main, 1).value
    assert value is not None
    return value


def test_the_tools_do_what_their_names_say() -> None:
    assert call(lambda _: echo_tool()) == ('{"a": 1}', 0.0, False)
    assert call(lambda clock: slow_tool(clock, 7.0)) == ("after 7.0 s", 7.0, False)
    assert call(lambda clock: deaf_tool(clock, 60.0), (1.0, 2.0)) == ("ignored 2 cancels", 60.0, False)
    assert call(lambda _: hanging_tool(), (4.0,)) == ("", 4.0, True)
    text, _, _ = call(lambda _: huge_tool(50_000))
    assert (len(text), len(text.encode())) == (50_000, 200_000)
    with pytest.raises(ZeroDivisionError):
        call(lambda _: raising_tool())
    with pytest.raises(SimDeadlock):
        call(lambda _: hanging_tool())


def test_a_fake_tool_says_how_it_wants_to_run() -> None:
    async def main(world: World) -> tuple[str, bool, str]:
        tool = slow_tool(world.clock, exclusive=True)
        return tool.schema.name, tool.exclusive, tool.group

    assert run_world(main, 1).value == ("slow", True, "custom")


def offered(*names: str) -> tuple[ToolSchema, ...]:
    return tuple(ToolSchema(name=name, description="", parameters={}) for name in names)


def request(messages: tuple[RequestMessage, ...], number: int, *names: str) -> ModelRequest:
    return ModelRequest(
        session_id=SessionId("s_1"),
        root=True,
        name="main",
        model="m",
        system="system",
        messages=messages,
        tools=offered(*names),
        number=number,
    )


def conversation(seed: int, *names: str) -> tuple[list[ModelRequest], list[Finish]]:
    """One turn of a wandering model, its calls answered by hand."""

    async def main(world: World) -> tuple[list[ModelRequest], list[Finish]]:
        wander = WorldModel(seed, world.clock, arguments={"echo": {"x": 1}}, modes=ALL_MODES if seed % 2 == 0 else ())
        recorder = RecordingModel(wander, lambda: 17)
        models = OneModel(recorder)
        model, short = models.find("connection:name")
        assert short == "name"
        messages: tuple[RequestMessage, ...] = (UserText(text="go"),)
        finishes: list[Finish] = []
        while not finishes or finishes[-1].tool_calls:
            pieces = [piece async for piece in model.stream(request(messages, len(finishes) + 1, *names))]
            finish = pieces[-1]
            assert isinstance(finish, Finish)
            assert "".join(piece.text for piece in pieces if isinstance(piece, Delta)) == finish.text
            finishes.append(finish)
            messages += answered(finish, len(finishes))
        await models.aclose()
        assert [seen.position for seen in recorder.seen] == [17] * len(finishes)
        return recorder.requests, finishes

    value = run_world(main, seed).value
    assert value is not None
    return value


def row_of(made: RequestCall) -> dict[str, Any]:
    row = {"run_id": f"r_{made.call_id}", "session_id": f"s_{made.call_id}"}
    return {"items": [row], "next": None} if made.name == "list_agents" else row


def answered(finish: Finish, number: int) -> tuple[RequestMessage, ...]:
    calls = [
        RequestCall(call_id=CallId(f"c_{number}_{n}"), name=made.name, arguments=json.loads(made.arguments))
        for n, made in enumerate(finish.tool_calls)
    ]
    answers = [ToolText(call_id=made.call_id, name=made.name, text=json.dumps(row_of(made))) for made in calls]
    letter = UserText(text="Message Type: FINAL_ANSWER\nTask name: s_1\nSender: s_2\nPayload:\nx")
    return AssistantText(text=finish.text, tool_calls=tuple(calls)), *answers, letter


def test_the_wandering_model_ends_each_turn_and_repeats_itself() -> None:
    names = (*AGENT_TOOLS, "echo")
    for seed in range(60):
        requests, finishes = conversation(seed, *names)
        assert len(finishes) <= 7
        assert (requests, finishes) == conversation(seed, *names)
        spawned = [made for finish in finishes for made in finish.tool_calls if made.name == "spawn_agent"]
        assert len(spawned) <= 4
        assert all(finish.usage is not None and finish.usage.total > 0 for finish in finishes)


def test_the_wandering_model_uses_everything_it_is_offered_and_nothing_else() -> None:
    calls = [
        made
        for seed in range(80)
        for finish in conversation(seed, *AGENT_TOOLS, "echo")[1]
        for made in finish.tool_calls
    ]
    assert {made.name for made in calls} == {*AGENT_TOOLS, "echo"}
    spawns = [json.loads(made.arguments) for made in calls if made.name == "spawn_agent"]
    assert {spawn["mode"] for spawn in spawns} == {"await", "background"}
    assert {spawn.get("continuable") for spawn in spawns} == {None, True, False}
    assert {spawn.get("cancel_with_parent") for spawn in spawns} == {None, True, False}
    assert {spawn.get("max_depth") for spawn in spawns} == {None, 1, 2}
    assert any("context" in spawn for spawn in spawns)
    sent = [json.loads(made.arguments) for made in calls if made.name == "send_agent_message"]
    assert {message["id"][:4] for message in sent} == {"s_c_", "r_c_", "r_99"}
    woken = [json.loads(made.arguments)["wake"] for made in calls if made.name == "report_to_parent"]
    assert set(woken) == {True, False}
    assert {made.arguments for made in calls if made.name == "echo"} == {'{"x": 1}'}
    ids = {json.loads(made.arguments)["id"] for made in calls if made.name == "cancel_agent"}
    assert "r_9999" in ids
    assert any(known.startswith("r_c_") for known in ids)
    few = [made for seed in range(40) for finish in conversation(seed, "echo")[1] for made in finish.tool_calls]
    assert {made.name for made in few} == {"echo"}


def test_it_forks_only_where_the_world_allows_it() -> None:
    spawned = [made for finish in conversation(3, *AGENT_TOOLS)[1] for made in finish.tool_calls]
    assert not any("context" in made.arguments for made in spawned)


def test_without_tools_it_answers_at_once() -> None:
    for seed in range(20):
        _, finishes = conversation(seed)
        assert [finish.reason for finish in finishes] == ["stop"]


def test_answers_are_sometimes_empty_and_sometimes_long() -> None:
    lengths = [len(conversation(seed)[1][0].text) for seed in range(200)]
    assert 0 in lengths
    assert max(lengths) > 30_000
    assert sorted(lengths)[100] < 100


def test_it_reports_what_it_was_asked_and_said() -> None:
    requests, finishes = conversation(3)
    asked, said = len("go") + len("system"), len(finishes[0].text) + 1
    assert finishes[0].usage == Usage(input=asked, output=said, total=asked + said)
    assert requests[0].messages == (UserText(text="go"),)
