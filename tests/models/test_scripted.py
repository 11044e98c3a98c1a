"""Script files and the model that plays them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import RetinueError
from retinue.core.events import Usage
from retinue.core.ids import CallId
from retinue.models import scripted
from retinue.models.script import script_of
from retinue.ports import AssistantText, Finish, ModelRequest, RequestCall, ToolText, UserText
from retinue.testing.scripted import ScriptedModel, load_script
from tests.models.kit import heard, request_of


def said(model: ScriptedModel, **fields: Any) -> Finish:
    return asyncio.run(heard(model, request_of(**fields)))[1]


def spawned(*results: str) -> tuple[Any, ...]:
    """Return a history in which one reply made a call per result."""
    calls = tuple(
        RequestCall(call_id=CallId(f"c_{n}"), name="spawn_agent", arguments={}) for n, _ in enumerate(results)
    )
    tools = [ToolText(call_id=CallId(f"c_{n}"), name="spawn_agent", text=text) for n, text in enumerate(results)]
    return (UserText(text="go"), AssistantText(text="", tool_calls=calls), *tools)


def test_a_line_from_python_is_streamed_in_a_few_deltas_and_ends_in_one_finish() -> None:
    model = ScriptedModel([{"agent": "parent", "text": "one two  three four five six"}])
    deltas, finish = asyncio.run(heard(model, request_of()))
    assert 1 < len(deltas) <= 4
    assert "".join(delta.text for delta in deltas) == finish.text == "one two  three four five six"
    assert (finish.reason, finish.usage, finish.error) == ("stop", None, None)
    assert model.requests == [request_of()]


def test_a_whole_line_is_played_as_it_says() -> None:
    line = {
        "text": "t",
        "reasoning": "r",
        "tool_calls": [{"name": "a", "arguments": {"x": 1}}, {"name": "b", "arguments": "{broken"}, {"name": "c"}],
        "usage": {"input": 5, "output": 2, "cached": 3, "reasoning": 1},
    }
    finish = said(ScriptedModel([line]))
    assert (finish.reason, finish.text, finish.reasoning) == ("tool_calls", "t", "r")
    assert [(call.name, call.arguments) for call in finish.tool_calls] == [
        ("a", '{"x": 1}'),
        ("b", "{broken"),
        ("c", "{}"),
    ]
    assert finish.usage == Usage(input=5, cached=3, output=2, reasoning=1, total=7)


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("content_filter", "refusal"),
        ("refusal", "refusal"),
        (None, "incomplete"),
    ],
)
def test_the_finish_of_a_line_is_its_ending(finish: str | None, reason: str) -> None:
    assert said(ScriptedModel([{"text": "t", "finish": finish}])).reason == reason


def test_the_most_specific_kind_that_has_lines_is_used_and_no_other() -> None:
    script = [
        {"agent": "any", "text": "any"},
        {"agent": "child", "text": "child"},
        {"agent": "name:scout", "text": "scout"},
    ]
    model = ScriptedModel(script)
    assert said(model, root=True).text == "any"
    assert said(model, root=False).text == "child"
    assert said(model, root=False, name="scout").text == "scout"
    assert said(model, root=False, name="scout", number=2).error == "script ended"


def test_numbers_count_the_requests_of_one_session_and_the_other_lines_fill_the_gaps() -> None:
    model = ScriptedModel([{"n": 2, "text": "second"}, {"text": "a"}, {"text": "b"}, {"n": 5, "text": "fifth"}])
    texts = [said(model, number=number) for number in (1, 2, 3, 4, 5)]
    assert [(finish.text, finish.error) for finish in texts] == [
        ("a", None),
        ("second", None),
        ("b", None),
        ("", "script ended"),
        ("fifth", None),
    ]


def test_the_choice_depends_on_the_number_alone_so_a_restart_changes_nothing() -> None:
    lines = [{"text": "a"}, {"text": "b"}, {"text": "c"}]
    assert said(ScriptedModel(lines), number=3).text == "c"


def test_children_are_filled_in_from_the_results_of_the_spawn_calls() -> None:
    messages = spawned(
        '{"run_id":"r_1","session_id":"s_1","name":"a","status":"running","queue_position":null}',
        '{"error":{"code":"depth_exceeded","message":"no","hint":""}}',
        '{"run_id":"r_2","session_id":"s_2","parent_id":"s_0","status":"completed","output":"cut …',
    )
    line = {
        "text": "look at {{child:1}} and {{run:2}} not {{child:3}}",
        "tool_calls": [{"name": "wait_agent", "arguments": {"ids": ["{{child:1}}", "{{run:2}}"]}}],
    }
    finish = said(ScriptedModel([line]), messages=messages)
    assert finish.text == "look at s_1 and r_2 not {{child:3}}"
    assert json.loads(finish.tool_calls[0].arguments) == {"ids": ["s_1", "r_2"]}


def test_an_error_is_final_and_keeps_the_text_before_it() -> None:
    finish = said(ScriptedModel([{"text": "Part", "error": "it broke"}]))
    assert (finish.reason, finish.text, finish.status) == ("error", "Part", None)
    assert "it broke" in (finish.error or "")


def test_an_error_with_a_status_is_an_http_answer() -> None:
    finish = said(ScriptedModel([{"error": "slow down", "status": 429, "retry_after_s": 1}]))
    assert (finish.reason, finish.status, finish.retry_after_s) == ("error", 429, 1.0)
    assert "slow down" in (finish.error or "")


def test_a_delay_is_waited_out_with_the_given_sleep() -> None:
    waited: list[float] = []

    async def sleep(delay_s: float) -> None:
        waited.append(delay_s)

    said(ScriptedModel([{"text": "t", "delay_ms": 90_000}], sleep=sleep))
    assert sum(waited) == 90.0


def test_only_the_latest_requests_are_remembered() -> None:
    model = ScriptedModel([{"n": 1, "text": "t"}])

    async def ask() -> None:
        for number in range(scripted.REQUESTS_KEPT + 5):
            await heard(model, request_of(name=str(number)))

    asyncio.run(ask())
    assert [len(model.requests), model.requests[0].name] == [scripted.REQUESTS_KEPT, "5"]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{not json", "it is not JSON"),
        ("[1]", "one JSON object"),
        ('{"status": 429}', "belong to an error"),
        ('{"txt": "a"}', "no key 'txt'"),
        ('{"agent": "uncle"}', "agent must be"),
        ('{"n": 0}', "n counts requests from 1"),
        ('{"n": true}', "n counts requests from 1"),
        ('{"text": 1}', "text must be text"),
        ('{"delay_ms": -1}', "delay_ms must be a number"),
        ('{"usage": 3}', "usage must be an object"),
        ('{"usage": {"in": 3}}', "usage has no key 'in'"),
        ('{"tool_calls": {}}', None),
        ('{"tool_calls": [1]}', "a tool call must be"),
        ('{"tool_calls": "x"}', "tool_calls must be a list"),
        ('{"_ctl": "dance"}', "no control 'dance'"),
        ('{"_ctl": "done"}', "belongs to no reply"),
        ('{"_ctl": "http", "status": "x"}', "status"),
        ('{"_ctl": "reply", "n": 1, "agent": "any"}', "has no ending"),
        ('{"_ctl": "pause_for_test"}', None),
        ('{"_ctl": "expect_request", "agent": "any", "n": "x"}', "n"),
        ('{"text": "b", "n": 1}', "already answers request 1"),
    ],
)
def test_a_wrong_line_is_refused_with_file_line_and_cause(tmp_path: Path, line: str, why: str | None) -> None:
    path = tmp_path / "script.jsonl"
    path.write_text('{"text": "a", "n": 1}\n\n' + line + "\n", encoding="utf-8")
    if why is None:
        load_script(path)
        return
    with pytest.raises(RetinueError) as caught:
        load_script(path)
    assert caught.value.code == "invalid"
    assert f"{path}:3" in caught.value.detail
    assert why in caught.value.detail


def test_a_script_that_cannot_be_read_or_is_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RetinueError, match="cannot be read: No such file"):
        load_script(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("\n", encoding="utf-8")
    with pytest.raises(RetinueError, match="There is no reply"):
        load_script(tmp_path / "empty.jsonl")


def test_raw_bytes_are_refused_where_there_is_no_connection() -> None:
    lines = [
        {"_ctl": "reply", "n": 1, "agent": "any"},
        {"_ctl": "raw_hex", "hex": "00"},
        {"_ctl": "close"},
    ]
    with pytest.raises(RetinueError, match="script line 1: raw_hex needs a real connection"):
        ScriptedModel(lines)


def test_both_forms_may_stand_in_one_script() -> None:
    script = script_of(
        [
            {"_ctl": "reply", "n": 1, "agent": "any"},
            {"choices": [{"delta": {"content": "long"}, "finish_reason": "stop"}]},
            {"_ctl": "done"},
            {"n": 2, "text": "short"},
        ]
    )
    assert [said(ScriptedModel(script), number=number).text for number in (1, 2)] == ["long", "short"]


def test_a_cancel_in_the_middle_of_a_script_is_raised_and_nothing_follows() -> None:
    heard_so_far: list[Any] = []

    async def cancel() -> None:
        reached, never = asyncio.Event(), asyncio.Event()

        async def sleep(delay_s: float) -> None:
            if delay_s:
                reached.set()
                await never.wait()

        async def listen(request: ModelRequest) -> None:
            model = ScriptedModel([{"text": "t", "delay_ms": 1}], sleep=sleep)
            heard_so_far.extend([piece async for piece in model.stream(request)])

        task = asyncio.ensure_future(listen(request_of()))
        await reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert heard_so_far == []


def test_an_error_without_a_status_is_final_and_one_with_a_status_is_not() -> None:
    final = asyncio.run(heard(ScriptedModel([{"error": "boom"}]), request_of()))[1]
    passing = asyncio.run(heard(ScriptedModel([{"error": "busy", "status": 503}]), request_of()))[1]
    assert (final.reason, final.cause) == ("error", "lasting")
    assert (passing.reason, passing.cause) == ("error", None)
