"""What went wrong elsewhere, part three: streams, through the real turn loop (B37, B41, B84 to B116).

Each once in the main session and once inside a child; in the simulated world, and over a socket where bytes matter.
"""

import json
from typing import Any

import pytest

from retinue.core.events import MessageUser, Usage
from retinue.models.openai import HttpOptions
from retinue.ports import Finish, ModelRequest
from retinue.runtime.toolcalls import ECHO_MAX_CHARS
from retinue.testing.strict import call_faults, pair_faults
from tests.scenarios.stage import (
    FunctionModel,
    answers_in,
    body_of,
    calls,
    play,
    says,
    spawn,
)
from tests.scenarios.streamstage import Played, Where, everywhere, over_http, simulated

both_ways = pytest.mark.parametrize("how", [simulated, over_http], ids=["simulated", "http"])
REPLY = {"_ctl": "reply", "agent": "any"}
FILES: dict[str, tuple[tuple[str, str], str | None, list[tuple[str, dict[str, Any]]], int]] = {
    "B84": (("completed", "done"), "I have no such tool; here is what I know.", [], 4),
    "B100": (("completed", "done"), "The answer is 7.", [("write_file", {"path": "todo.md", "content": "done"})], 2),
    "B102": (
        ("completed", "done"),
        "done",
        [
            ("list_dir", {"path": "."}),
            ("read_file", {"path": "src/one.py"}),
            ("write_file", {"path": "two.txt", "content": 'b{}"x'}),
        ],
        2,
    ),
    "B104": (("completed", "done"), "done", [("list_dir", {"path": "x"}), ("read_file", {"path": "long/name.txt"})], 2),
    "B106": (("completed", "done"), "Hi there", [], 1),
    "B108": (("completed", "done"), "I will stop here.", [("list_dir", {"path": "."})], 3),
    "B110": (("failed", "bad_tool_calls"), None, [], 4),
    "B112": (("completed", "done"), "recovered", [], 3),
    "B114": (
        ("completed", "done"),
        "read four files",
        [("read_file", {"path": f"{name}.txt"}) for name in "abcd"],
        4,
    ),
    "B116": (("completed", "done"), "Written.", [("write_file", {"path": "v.txt", "content": "v2"})], 3),
}
"""File: how the turn ends, its text, the calls that reach a tool, and the requests that reach the provider."""


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def piece(index: int, name: str | None, arguments: str, **more: Any) -> dict[str, Any]:
    return chunk(tool_calls=[{"index": index, "function": {"name": name, "arguments": arguments}, **more}])


def reply(*chunks: dict[str, Any], end: str = "done") -> list[dict[str, Any]]:
    return [REPLY, *chunks, {"_ctl": end}]


def strict_faults(messages: list[dict[str, Any]]) -> list[str]:
    return [*pair_faults(messages), *call_faults(messages)]


def check_history(played: Played) -> None:
    """Every request that went out would be accepted by a strict provider."""
    assert played.faults == []
    assert [strict_faults(messages) for messages in played.bodies] == [[]] * len(played.bodies)


@both_ways
@everywhere
@pytest.mark.parametrize("name", FILES)
def test_every_stream_file_runs_to_the_end_that_it_states(name: str, where: Where, how: Any) -> None:
    ended, text, executed, tries = FILES[name]
    played = how(name, where)
    assert (played.ended, played.text) == (ended, text)
    assert sorted(played.executed(), key=json.dumps) == executed
    assert len(played.bodies) == tries
    check_history(played)


@both_ways
@everywhere
@pytest.mark.parametrize("name", ["B102", "B104"])
def test_B102_B104_calls_stand_in_index_order_each_with_its_own_result(name: str, where: Where, how: Any) -> None:
    played = how(name, where)
    said = played.said()[0]
    assert [call.name for call in said.tool_calls] == {
        "B102": ["read_file", "write_file", "list_dir"],
        "B104": ["read_file", "list_dir"],
    }[name]
    for one, result in zip(said.tool_calls, played.results(), strict=True):
        assert json.loads(result.text) == one.arguments


@everywhere
def test_B106_text_and_usage_of_chunks_without_choices_are_kept_and_a_missing_report_is_shown(where: Where) -> None:
    assert simulated("B106", where).end.usage == Usage(input=10, output=5, total=15, requests=1)
    silent = simulated([{"text": "no usage sent at all"}], where)
    assert (silent.text, silent.end.usage) == ("no usage sent at all", Usage(requests=1, unreported=1))


BAD_ARGUMENTS = {
    "cut": '{"path": "a',
    "list": "[1,2]",
    "null": "null",
    "string": '"text"',
    "number": "7",
    "encoded_twice": json.dumps('{"path": "a"}'),
    "python": "{'path': 'a',}",
    "two_objects": '{"path": "a"}{"path": "b"}',
    "not_a_number": '{"path": NaN}',
    "endless": '{"path": ' + '"x' * 50_000,
    "deep": '{"a":' * 5_000 + "1" + "}" * 5_000,
    "rather_deep": '{"a":' * 400 + "1" + "}" * 400,
    "half_a_character": '{"path": "\\ud800"}',
}


@both_ways
@everywhere
@pytest.mark.parametrize("raw", BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS)
def test_B108_bad_arguments_answer_their_own_call_and_the_good_one_runs(raw: str, where: Where, how: Any) -> None:
    played = how(reply(piece(0, "read_file", raw), piece(1, "list_dir", '{"path": "."}'), chunk("tool_calls")), where)
    bad, good = played.results()
    assert (bad.outcome, bad.code, good.outcome) == ("refused", "invalid", "ok")
    assert raw[:8] in json.loads(bad.text)["error"]["message"]
    assert len(bad.text) < 2 * ECHO_MAX_CHARS + 300  # the echo is bounded; quotes are escaped
    assert played.executed() == [("list_dir", {"path": "."})]
    assert played.ended == ("completed", "done")
    check_history(played)


@everywhere
def test_B108_no_arguments_at_all_are_an_empty_object(where: Where) -> None:
    assert simulated(reply(piece(0, "ping", ""), chunk("tool_calls")), where).executed() == [("ping", {})]


@both_ways
@everywhere
def test_B110_a_promise_without_a_call_is_nudged_a_few_times_then_ends_with_its_reason(where: Where, how: Any) -> None:
    played = how("B110", where)
    assert played.end.partial == "I will read the file first."
    assert "unusable" in played.end.detail
    nudges = [event.fact for event in played.events if isinstance(event.fact, MessageUser)]
    nudges = [fact for fact in nudges if fact.source == "context" and "none arrived" in fact.text]
    assert 1 <= len(nudges) <= 4


@everywhere
def test_B110_a_model_that_calls_after_the_nudge_goes_on(where: Where) -> None:
    lines = [*reply(chunk("tool_calls", content="I will ping."))]
    lines += [*reply(piece(0, "ping", "{}"), chunk("tool_calls")), *reply(chunk("stop", content="Pinged."))]
    played = simulated(lines, where)
    assert (played.ended, played.text, played.executed()) == (("completed", "done"), "Pinged.", [("ping", {})])


CAPACITY = {"choices": [], "error": {"message": "upstream capacity reached", "code": 502}}


@both_ways
@everywhere
@pytest.mark.parametrize("before", ["Partial ", ""])
def test_B112_an_error_inside_a_200_for_ever_fails_with_its_message_and_the_text(
    before: str, where: Where, how: Any
) -> None:
    chunks = [chunk(content=before), CAPACITY] if before else [CAPACITY]
    played = how([*reply(*chunks), {"_ctl": "repeat_last"}], where)
    assert played.ended == ("failed", "provider_error")
    assert "upstream capacity reached" in played.end.detail
    assert played.end.partial == (before or None)
    assert len(played.bodies) == (2 if before else 4)  # after visible text once more, else freely within the budget


@everywhere
@pytest.mark.parametrize(
    ("error", "reason", "tries"),
    [
        ({"message": "slow down", "type": "rate_limit_error"}, "rate_limit", 10),
        ({"message": "slow down", "code": "429"}, "rate_limit", 10),
        ({"message": "pay first", "code": "insufficient_quota"}, "rate_limit", 1),
        ({"message": "too long", "code": "context_length_exceeded"}, "provider_error", 1),
        ({"message": "who are you", "type": "authentication_error"}, "provider_error", 1),
        ({"message": "busy", "type": "overloaded_error"}, "provider_error", 4),
    ],
)
def test_B112_what_an_error_inside_a_stream_says_decides_whether_it_is_tried_again(
    error: dict[str, Any], reason: str, tries: int, where: Where
) -> None:
    played = simulated([*reply({"error": error}), {"_ctl": "repeat_last"}], where)
    assert played.ended == ("failed", reason)
    assert len(played.bodies) == tries
    assert error["message"] in played.end.detail


@both_ways
@everywhere
def test_B114_calls_that_share_an_id_have_keys_of_their_own(where: Where, how: Any) -> None:
    played = how("B114", where)
    ids = [call.call_id for said in played.said() for call in said.tool_calls]
    assert len(set(ids)) == len(ids) == 4
    paths = [json.loads(result.text)["path"] for result in played.results()]
    assert paths == ["a.txt", "b.txt", "c.txt", "d.txt"]


@both_ways
@everywhere
def test_B116_a_break_after_visible_text_leaves_no_trace_of_the_first_try(where: Where, how: Any) -> None:
    played = how("B116", where)
    first = played.said()[0]
    assert (first.text, [call.name for call in first.tool_calls]) == ("Here is the plan.", ["write_file"])
    assert (played.resets(), played.seen_live()) == (1, "Here is the plan.Written.")
    assert played.end.usage.requests == 3


@both_ways
@everywhere
def test_B116_a_second_break_is_the_end_and_no_begun_call_runs(where: Where, how: Any) -> None:
    broken = reply(chunk(content="Here is the pl"), piece(0, "write_file", '{"path": "v.txt"}'), end="abort")
    played = how([*broken, {"_ctl": "repeat_last"}], where)
    assert played.ended == ("failed", "stream_incomplete")
    assert (played.end.partial, played.executed()) == ("Here is the pl", [])
    assert len(played.bodies) == 2


HALF_A_CALL = [chunk(content="Now: "), piece(0, "write_file", '{"path": "v.txt", "con')]
A_WHOLE_CALL = [chunk(content="Now: "), piece(0, "write_file", '{"path": "v.txt"}')]


@both_ways
@everywhere
@pytest.mark.parametrize("chunks", [HALF_A_CALL, A_WHOLE_CALL], ids=["half", "whole"])
@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("length", "token_limit"),
        ("max_tokens", "token_limit"),
        ("content_filter", "refusal"),
        ("error", "provider_error"),
        ("a new word", "provider_error"),
        (None, "stream_incomplete"),
    ],
)
def test_no_call_of_an_answer_that_did_not_end_well_is_ever_run(
    finish: str | None, reason: str, chunks: list[dict[str, Any]], where: Where, how: Any
) -> None:
    """The output limit may fall inside arguments; what is there may even be a whole object by chance."""
    played = how([*reply(*chunks, chunk(finish)), {"_ctl": "repeat_last"}], where)
    assert played.ended == ("failed", reason)
    assert (played.executed(), played.end.partial) == ([], "Now: ")
    assert all(said.tool_calls == () and not said.complete for said in played.said())


@everywhere
def test_a_later_stop_does_not_cover_up_that_an_answer_was_cut(where: Where) -> None:
    played = simulated(reply(*HALF_A_CALL, chunk("length"), chunk("stop")), where)
    assert (played.ended, played.executed()) == (("failed", "token_limit"), [])


@both_ways
@everywhere
def test_a_call_with_the_finish_stop_runs_all_the_same(where: Where, how: Any) -> None:
    played = how(reply(piece(0, "ping", "{}"), chunk("stop")), where)
    assert (played.ended, played.executed()) == (("completed", "done"), [("ping", {})])


UNUSABLE = [{"name": "undefined_tool"}, {"name": ""}, {"name": None}, {}, {"name": "Read File!"}]


@both_ways
@everywhere
@pytest.mark.parametrize("function", UNUSABLE, ids=["unknown", "empty", "null", "absent", "odd"])
def test_B84_four_unusable_names_in_a_row_end_it_failed_never_completed(
    function: dict[str, Any], where: Where, how: Any
) -> None:
    lines: list[dict[str, Any]] = []
    for number in range(4):
        calls_nothing = {"index": 0, "id": f"c{number}", "function": {**function, "arguments": f'{{"x": {number}}}'}}
        lines += reply(chunk(tool_calls=[calls_nothing]), chunk("tool_calls"))
    played = how(lines, where)
    assert played.ended == ("failed", "bad_tool_calls")
    assert len(played.bodies) == 4
    for result in played.results():
        assert (result.outcome, result.code) == ("refused", "unknown_tool")
        assert "read_file" in result.text
    check_history(played)


@everywhere
def test_endless_repeats_of_one_call_get_a_hint_and_then_end_the_turn(where: Where) -> None:
    lines = [*reply(piece(0, "ping", '{"n": 1}'), chunk("tool_calls")), {"_ctl": "repeat_last"}]
    played = simulated(lines, where)
    assert played.ended == ("failed", "bad_tool_calls")
    assert len(played.executed()) == 3
    hinted = ["3 times in a row" in result.text for result in played.results()]
    assert hinted[:3] == [False, False, True]


@everywhere
@pytest.mark.parametrize("send_reasoning", [True, False])
def test_reasoning_is_sent_back_where_a_provider_demands_it_and_nowhere_else(
    send_reasoning: bool, where: Where
) -> None:
    lines: list[dict[str, Any]] = []
    for number in (1, 2):
        lines += reply(
            chunk(reasoning_content=f"thought {number}"), piece(0, "ping", f'{{"n": {number}}}'), chunk("tool_calls")
        )
    if send_reasoning:
        lines += [{"_ctl": "expect_request", "agent": "any", "n": n, "need_reasoning": True} for n in (2, 3)]
    played = over_http(lines, where, HttpOptions(send_reasoning=send_reasoning))
    assert (played.ended, played.faults) == (("completed", "done"), [])
    sent = [m.get("reasoning_content") for m in played.bodies[-1] if m["role"] == "assistant"]
    assert sent == (["thought 1", "thought 2"] if send_reasoning else [None, None])


@everywhere
def test_reasoning_of_a_voided_try_is_not_sent_back(where: Where) -> None:
    lines = reply(chunk(reasoning_content="a thought that broke"), end="abort")
    lines += reply(chunk(reasoning_content="the thought"), piece(0, "ping", "{}"), chunk("tool_calls"))
    played = over_http(lines, where, HttpOptions(send_reasoning=True))
    sent = [m.get("reasoning_content") for m in played.bodies[-1] if m["role"] == "assistant"]
    assert sent == ["the thought"]


@everywhere
def test_a_provider_that_is_not_asked_to_stream_does_the_same(where: Where) -> None:
    message = {"content": "I ping.", "tool_calls": [{"id": "a", "function": {"name": "ping", "arguments": '{"n": 1}'}}]}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    last = {"choices": [{"index": 0, "message": {"content": "Pinged."}, "finish_reason": "stop"}]}
    json_type = {"Content-Type": "application/json"}
    lines = [
        line
        for n, one in enumerate((body, last), start=1)
        for line in (REPLY | {"n": n}, {"_ctl": "http", "status": 200, "headers": json_type, "body": one})
    ]
    played = over_http(lines, where, HttpOptions(stream=False))
    assert (played.ended, played.text, played.executed()) == (("completed", "done"), "Pinged.", [("ping", {"n": 1})])
    check_history(played)


@pytest.mark.parametrize("seed", range(5))
@everywhere
def test_B41_one_of_three_parallel_children_fails_and_the_other_two_come_home_in_call_order(
    where: Where, seed: int
) -> None:
    fan = ("one", "two", "three")

    async def answer(request: ModelRequest) -> Finish:
        if request.name == ("main" if where == "main" else "middle"):
            return calls(*(spawn(name, mode="await") for name in fan)) if request.number == 1 else says("ok")
        if request.name == "main":
            return calls(spawn("middle", mode="await")) if request.number == 1 else says("ok")
        if request.name == "two":
            return Finish(reason="error", error="The provider fell over.", status=500)
        return says(f"text of {request.name}")

    life = play(lambda _: FunctionModel(answer), lambda stage: stage.go({"caps.max_depth": 2}), seed=seed)
    asked = life.asked("main" if where == "main" else "middle")
    results = answers_in(asked[-1])
    assert [body_of(result)["name"] for result in results] == list(fan)
    assert [body_of(result)["status"] for result in results] == ["completed", "failed", "completed"]
    assert [result.error for result in results] == [False, True, False]
    assert {life.settled(name).status for name in ("one", "three")} == {"completed"}
