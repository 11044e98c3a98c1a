"""Every stream file, through the real adapter and the loopback server, and through the scripted model."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from retinue.core.ids import CallId
from retinue.models.openai import OpenAIModel
from retinue.models.scripted import ScriptedModel, load_script
from retinue.ports import AssistantText, Finish, Model, RequestCall, RequestMessage, ToolText, UserText
from retinue.testing.modelserver import ModelServer, Setup
from tests.models.kit import STREAM_FILES, heard, meta_of, request_of

SPAWNED = '{"run_id":"r_7","session_id":"s_7","name":"scout","status":"running","queue_position":null}'
EXPECTED = [(path, agent) for path in STREAM_FILES for agent in sorted({e["agent"] for e in meta_of(path)["expect"]})]


@pytest.mark.parametrize(("path", "agent"), EXPECTED, ids=lambda value: getattr(value, "stem", value))
def test_every_stream_file_yields_what_it_expects_over_real_http(path: Path, agent: str) -> None:
    with ModelServer(path) as server:
        finishes = asyncio.run(_played(OpenAIModel(server.base_url), path, agent))
        assert server.faults == []
    assert len(finishes) == len(_wanted(path, agent))
    for finish, wanted in zip(finishes, _wanted(path, agent), strict=True):
        _compare(finish, wanted)


@pytest.mark.parametrize(("path", "agent"), EXPECTED, ids=lambda value: getattr(value, "stem", value))
def test_every_stream_file_yields_the_same_as_a_script(path: Path, agent: str) -> None:
    finishes = asyncio.run(_played(ScriptedModel(load_script(path)), path, agent))
    for finish, wanted in zip(finishes, _wanted(path, agent), strict=True):
        _compare(finish, wanted)


def test_B110_the_last_reply_is_repeated_for_ever() -> None:
    path = next(path for path in STREAM_FILES if path.stem == "B110")
    model = ScriptedModel(load_script(path))
    finish = asyncio.run(heard(model, request_of(number=40)))[1]
    assert (finish.reason, finish.tool_calls, finish.text) == ("tool_calls", (), "")


def test_B62_each_session_of_many_equal_ones_plays_its_own_script() -> None:
    path = next(path for path in STREAM_FILES if path.stem == "B62")

    async def play() -> list[list[Finish]]:
        model = OpenAIModel(server.base_url, headers={"X-Session-Id": "{session_id}"})
        try:
            return await asyncio.gather(*(tries(model, f"s_{n}") for n in range(8)))
        finally:
            await model.aclose()

    async def tries(model: Model, session_id: str) -> list[Finish]:
        request = request_of(UserText(text="[child] work"), session_id=session_id, root=False)
        return [(await heard(model, request))[1] for _ in range(3)]

    with ModelServer(path) as server:
        for finishes in asyncio.run(play()):
            assert [finish.status for finish in finishes] == [429, 429, None]
            assert [finish.retry_after_s for finish in finishes] == [2.0, 1.0, None]
            assert finishes[2].text == "ok after waiting"


def test_a_pause_of_the_script_calls_the_test_between_two_replies() -> None:
    path = next(path for path in STREAM_FILES if path.stem == "B37")
    seen: list[str] = []
    with ModelServer(path, Setup(on_pause=seen.append)) as server:
        asyncio.run(_played(OpenAIModel(server.base_url), path, "parent"))
    assert seen == ["kill and restart host"]


async def _played(model: Model, path: Path, agent: str) -> list[Finish]:
    """Play the loop of one agent: answer its calls, ask again, as often as the file has replies for it."""
    messages: list[RequestMessage] = [UserText(text="[child] go" if agent == "child" else "go")]
    finishes: list[Finish] = []
    for number in range(1, len(_wanted(path, agent)) + 1):
        request = request_of(*messages, number=number, root=agent != "child")
        finishes.append((await heard(model, request))[1])
        messages += _answers(finishes[-1], number)
        if path.stem == "B35":
            messages += [UserText(text="also list the tests"), UserText(text="Message Type: FINAL_ANSWER")]
    await model.aclose()
    return finishes


def _answers(finish: Finish, number: int) -> list[RequestMessage]:
    """Return what a right loop adds to its history: our own ids, arguments that are objects, every call answered."""
    if finish.reason not in {"stop", "tool_calls"}:
        return []
    calls = [
        RequestCall(call_id=CallId(f"c_{number}_{n}"), name=call.name, arguments=_object(call.arguments) or {})
        for n, call in enumerate(finish.tool_calls)
    ]
    said = AssistantText(text=finish.text, reasoning=finish.reasoning, tool_calls=tuple(calls))
    tools = [ToolText(call_id=call.call_id, name=call.name, text=SPAWNED) for call in calls]
    return [said, *tools, *([] if calls else [UserText(text="go on")])]


def _wanted(path: Path, agent: str) -> list[dict[str, Any]]:
    text = json.dumps([entry for entry in meta_of(path)["expect"] if entry["agent"] == agent])
    return json.loads(text.replace("{{child:1}}", "s_7"))


def _compare(finish: Finish, wanted: dict[str, Any]) -> None:
    reasons = {
        "complete": {"stop", "tool_calls"},
        "incomplete": {"incomplete"},
        "provider_error": {"error"},
        "http_error": {"error"},
    }
    assert finish.reason in reasons[wanted["outcome"]]
    if "text" in wanted:
        assert finish.text == wanted["text"]
    if wanted["outcome"] == "incomplete":
        assert finish.tool_calls == ()
        return
    if wanted["outcome"] == "http_error":
        assert finish.status == wanted["status"]
    assert wanted.get("message", "") in (finish.error or "")
    assert [_call(call.name, call.arguments) for call in finish.tool_calls] == [
        (call["name"], call.get("arguments", call.get("arguments_raw"))) for call in wanted.get("tool_calls", [])
    ]
    if "usage" in wanted:
        usage = finish.usage
        found = usage and {
            "prompt": usage.input,
            "completion": usage.output,
            "total": usage.total,
            "cached": usage.cached,
        }
        assert found == wanted["usage"]


def _call(name: str, arguments: str) -> tuple[str, Any]:
    value = _object(arguments)
    return name, arguments if value is None else value


def _object(arguments: str) -> dict[str, Any] | None:
    try:
        value = json.loads(arguments)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
