"""The stream assembler, shape by shape."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.events import Usage
from retinue.models import assembler as module
from retinue.models.assembler import Assembler, Ending
from retinue.models.calls import CALLS_MAX
from retinue.ports import Delta, Finish, Spent

KEYS = ["choices", "delta", "content", "tool_calls", "function", "name", "arguments", "index", "id", "usage", "error"]


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def calls(*fragments: dict[str, Any]) -> dict[str, Any]:
    return chunk(tool_calls=list(fragments))


def call(arguments: Any, name: str | None = None, **fields: Any) -> dict[str, Any]:
    return {**fields, "function": {"name": name, "arguments": arguments}}


def assembled(*chunks: dict[str, Any], ending: Ending = "done") -> Finish:
    it = Assembler()
    for one in chunks:
        it.feed(one)
    return it.finish(ending)


def called(*fragments: dict[str, Any]) -> list[tuple[str, str]]:
    finish = assembled(*(calls(fragment) for fragment in fragments), chunk("tool_calls"))
    return [(one.name, one.arguments) for one in finish.tool_calls]


def test_text_and_reasoning_are_shown_as_they_come_and_kept_whole() -> None:
    it = Assembler()
    shown = it.feed(chunk(reasoning_content="hm ")) + it.feed(chunk(reasoning="so")) + it.feed(chunk(content="A"))
    assert shown == [
        Delta(kind="reasoning", text="hm "),
        Delta(kind="reasoning", text="so"),
        Delta(kind="text", text="A"),
    ]
    it.feed(chunk("stop"))
    assert it.finish("done") == Finish(reason="stop", text="A", reasoning="hm so")


def test_reasoning_sent_under_both_names_counts_once() -> None:
    assert assembled(chunk("stop", reasoning="x", reasoning_content="x")).reasoning == "x"


def test_content_may_be_a_list_of_parts() -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "why"}]},
        {"type": "text", "text": "yes"},
        {"type": "image_url"},
        "junk",
    ]
    finish = assembled(chunk("stop", content=parts))
    assert (finish.text, finish.reasoning) == ("yes", "why")


def test_a_whole_message_in_place_of_a_delta_is_read() -> None:
    message = {"content": "hi", "tool_calls": [call("{}", "ping", id="a")]}
    finish = assembled({"choices": [{"message": message, "finish_reason": "stop"}]})
    assert (finish.reason, finish.text, finish.tool_calls[0].name) == ("tool_calls", "hi", "ping")


def test_a_character_cut_into_surrogates_is_joined_and_a_lone_one_replaced() -> None:
    it = Assembler()
    shown = it.feed(chunk(content="a\ud83d")) + it.feed(chunk(content="\ude42b\ud83d"))
    it.feed(calls(call('{"x": "\ud83d', "ping", index=0)))
    it.feed(calls(call('\ude42"}', index=0)))
    it.feed(chunk("stop"))
    finish = it.finish("done")
    assert [delta.text for delta in shown if isinstance(delta, Delta)] == ["a", "🙂b"]
    assert finish.text == "a🙂b\N{REPLACEMENT CHARACTER}"
    assert finish.tool_calls[0].arguments == '{"x": "🙂"}'


def test_B102_fragments_without_any_mark_continue_the_last_call() -> None:
    assert called(call("{", "a", id="1"), call("}"), call('{"x":', "b", id="2"), call("1}")) == [
        ("a", "{}"),
        ("b", '{"x":1}'),
    ]


def test_B102_fragments_marked_by_id_alone_find_their_call() -> None:
    assert called(call("{", "a", id="1"), call("[", "b", id="2"), call("}", id="1"), call("]", id="2")) == [
        ("a", "{}"),
        ("b", "[]"),
    ]


def test_B102_calls_come_in_index_order_and_an_index_may_be_missing_at_first() -> None:
    assert called(call("{}", "b", index=1, id="2"), call("{}", "a", index=0, id="1")) == [("a", "{}"), ("b", "{}")]


def test_B104_a_repeated_name_is_set_once_and_a_name_in_pieces_is_joined() -> None:
    assert called(call("", "read", index=0, id="1"), call("{", "read", index=0, id="1"), call("}", index=0)) == [
        ("read", "{}")
    ]
    assert called(call("", "read", index=0), call("", "_file", index=0), call("{}", index=0)) == [("read_file", "{}")]


def test_B114_calls_that_share_index_and_id_are_told_apart_by_their_whole_arguments() -> None:
    one, two = call('{"p":1}', "read", index=0, id="x"), call('{"p":2}', "read", index=0, id="x")
    assert called(one, two) == [("read", '{"p":1}'), ("read", '{"p":2}')]
    assert called(call("{}", "a", index=0, id="x"), call("{}", "b", index=0, id="y")) == [("a", "{}"), ("b", "{}")]
    assert called(call("{}", "a", index=0, id=""), call("{}", "a", index=0, id="")) == [("a", "{}"), ("a", "{}")]
    assert called(call("{}", "a"), call("{}", "a")) == [("a", "{}"), ("a", "{}")]


def test_B104_a_new_id_on_every_fragment_of_one_call_is_no_new_call() -> None:
    one, two, three = call('{"p"', "read", index=0, id="x1"), call(":1", "read", index=0, id="x2"), call("}", index=0)
    assert called(one, two, three) == [("read", '{"p":1}')]
    cut_off = call('{"p"', "read", index=0, id="x1")
    assert called(cut_off, call('{"p":2}', "read", index=0, id="x2")) == [("read", '{"p"'), ("read", '{"p":2}')]
    assert called(call("", "ping", index=0, id="x1"), call("", "ping", index=0, id="x2")) == [("ping", "")] * 2


def test_a_call_sent_once_more_at_the_end_is_no_second_call() -> None:
    one = call('{"p":1}', "read", index=0, id="x")
    assert called(one, one) == [("read", '{"p":1}')]


def test_arguments_that_come_as_an_object_are_kept_as_text() -> None:
    assert called(call({"p": 1}, "read", index=0)) == [("read", '{"p":1}')]


def test_an_empty_fragment_is_no_call_but_a_nameless_one_is() -> None:
    assert called({"index": 0, "function": {}}, call("{}", None, index=1)) == [("", "{}")]


def test_the_legacy_function_call_is_a_call() -> None:
    finish = assembled(
        chunk(function_call={"name": "read", "arguments": '{"p"'}),
        chunk(function_call={"arguments": ":1}"}),
        chunk("function_call"),
    )
    assert [(one.name, one.arguments) for one in finish.tool_calls] == [("read", '{"p":1}')]
    assert finish.reason == "tool_calls"


@pytest.mark.parametrize(
    ("word", "reason"),
    [("stop", "stop"), ("length", "length"), ("content_filter", "refusal"), ("error", "error"), ("??", "error")],
)
def test_every_finish_reason_has_one_meaning_and_an_unknown_one_is_no_success(word: str, reason: str) -> None:
    finish = assembled(chunk(word, content="t"))
    assert (finish.reason, finish.text) == (reason, "t")
    assert (finish.error is None) == (reason in {"stop", "length"})


def test_a_refusal_is_told_and_its_words_are_kept() -> None:
    finish = assembled(chunk(refusal="I can"), chunk(refusal="not."), chunk("stop"))
    assert (finish.reason, finish.text) == ("refusal", "I cannot.")
    assert finish.error == "The model declined to answer: I cannot."


@pytest.mark.parametrize("ending", ["done", "closed", "broken"])
def test_an_answer_without_a_finish_reason_is_incomplete_and_its_calls_are_dropped(ending: Ending) -> None:
    finish = assembled(chunk(content="Half"), calls(call("{}", "ping", index=0)), ending=ending)
    assert (finish.reason, finish.text, finish.tool_calls) == ("incomplete", "Half", ())
    assert finish.error


def test_a_connection_that_breaks_after_the_finish_reason_loses_nothing() -> None:
    assert assembled(chunk("stop", content="whole"), ending="broken").reason == "stop"


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "over capacity", "code": 502}, "choices": []},
        {"error": {"message": "over capacity", "code": "502"}},
        {"object": "error", "message": "over capacity", "code": 502},
        {"choices": [{"delta": {"content": ""}, "error": {"message": "over capacity", "code": 502}}]},
    ],
)
def test_B112_an_error_in_the_stream_is_an_error_with_the_text_so_far(error: dict[str, Any]) -> None:
    finish = assembled(chunk(content="Part"), error, chunk("stop", content="more"))
    assert (finish.reason, finish.text, finish.status) == ("error", "Part", 502)
    assert finish.error == "The provider reported an error in the stream: over capacity."


def test_B65_the_last_usage_report_counts_with_its_parts() -> None:
    first = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
    last = {
        "prompt_tokens": 1000,
        "completion_tokens": 50,
        "total_tokens": 1050,
        "prompt_tokens_details": {"cached_tokens": 800},
        "completion_tokens_details": {"reasoning_tokens": 20},
    }
    finish = assembled({**chunk(content="a"), "usage": first}, {"choices": [], "usage": last}, chunk("stop"))
    assert finish.usage == Usage(input=1000, cached=800, output=50, reasoning=20, total=1050)


def test_B67_reports_that_each_leave_something_out_are_put_together_and_a_smaller_one_changes_nothing() -> None:
    reports = [{"prompt_tokens": 90, "prompt_tokens_details": {"cached_tokens": 80}}, {"completion_tokens": 7}]
    reports.append({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0})
    it = Assembler()
    shown = [piece for report in reports for piece in it.feed({"choices": [], "usage": report})]
    it.feed(chunk("stop"))
    usage = Usage(input=90, cached=80, output=7, total=97)
    assert it.finish("done").usage == usage
    assert shown == [Spent(usage=Usage(input=90, cached=80, total=90)), Spent(usage=usage)]


def test_more_cached_than_sent_is_not_believed() -> None:
    report = {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 80}}
    usage = assembled({"usage": report}, chunk("stop")).usage
    assert usage == Usage(input=5, cached=5, output=1, total=6)


@pytest.mark.parametrize("first", ["length", "content_filter", "error"])
def test_the_first_bad_finish_reason_stands_whatever_follows(first: str) -> None:
    assert assembled(chunk(first, content="t"), chunk("stop")).reason == assembled(chunk(first, content="t")).reason
    assert assembled(chunk("stop", content="t"), chunk(first)).reason == assembled(chunk(first, content="t")).reason


def test_an_empty_delta_beside_a_message_hides_nothing() -> None:
    for delta in (None, {}):
        body = {"choices": [{"delta": delta, "message": {"content": "hi"}, "finish_reason": "stop"}]}
        assert assembled(body).text == "hi"


@pytest.mark.parametrize(
    ("error", "status", "lasting"),
    [
        ({"code": "rate_limit_exceeded"}, 429, False),
        ({"type": "overloaded_error"}, 529, False),
        ({"code": 429, "status": "RESOURCE_EXHAUSTED"}, 429, False),
        ({"status": "UNAVAILABLE"}, 503, False),
        ({"code": None, "type": "invalid_request_error"}, 400, False),
        ({"code": "insufficient_quota", "type": "insufficient_quota"}, 429, True),
        ({"code": "made_up"}, None, False),
        ({"code": True, "type": []}, None, False),
        ("plain words", None, False),
    ],
)
def test_B112_an_error_in_the_stream_says_in_its_own_words_what_status_it_means(
    error: Any, status: int | None, lasting: bool
) -> None:
    finish = assembled({"error": error})
    assert (finish.reason, finish.status, finish.cause) == ("error", status, "lasting" if lasting else None)


def test_what_asking_again_would_only_repeat_is_lasting() -> None:
    many = [call("{}", "ping", index=n) for n in range(CALLS_MAX + 1)]
    assert assembled(calls(*many), chunk("tool_calls")).cause == "lasting"


@pytest.mark.parametrize(
    ("where", "usage"),
    [
        ({"choices": [{"index": 0, "usage": {"prompt_tokens": 3, "completion_tokens": 2}}]}, (3, 2, 5)),
        ({"x_groq": {"usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}}, (3, 2, 5)),
        ({"usage": {"prompt_tokens": "x", "completion_tokens": True}}, None),
        ({"usage": {}}, None),
    ],
)
def test_usage_is_found_where_dialects_put_it_and_never_invented(where: dict[str, Any], usage: Any) -> None:
    found = assembled(where, chunk("stop")).usage
    assert (found and (found.input, found.output, found.total)) == usage


def test_a_second_choice_is_not_mixed_into_the_first() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "B"}, "finish_reason": "length"}]}
    finish = assembled(chunk(content="A"), other, chunk("stop"))
    assert (finish.text, finish.reason) == ("A", "stop")


def test_an_answer_without_end_is_stopped_at_the_limits() -> None:
    it = Assembler()
    piece = "x" * 1_000_000
    for _ in range(module.ANSWER_MAX_CHARS // len(piece) + 1):
        it.feed(chunk(content=piece))
    assert it.failed
    assert str(module.ANSWER_MAX_CHARS) in (it.finish("done").error or "")
    many = [call("{}", "ping", index=n) for n in range(CALLS_MAX + 1)]
    assert assembled(calls(*many), chunk("tool_calls")).reason == "error"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(KEYS),
                inner,
                max_size=5,
            )
        ),
        max_leaves=25,
    )
)
def test_no_shape_of_chunk_raises(value: Any) -> None:
    body = value if isinstance(value, dict) else {"choices": value}
    it = Assembler()
    it.feed(body)
    it.feed({"choices": [{"delta": body, "finish_reason": "stop"}]})
    it.feed({"choices": [{"delta": {"tool_calls": [body]}}]})
    json.dumps(it.finish("done").text)
