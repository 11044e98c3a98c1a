"""What an Anthropic request says: signed thoughts go back where they came from, and the beginning never changes."""

import asyncio
import itertools
import json
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="the extra `providers` is not installed")
pytest.importorskip("anthropic", reason="the extra `providers` is not installed")

from retinue.core.ids import CallId
from retinue.models.extra import Access, ExtraModel
from retinue.models.keeping import KEPT_MAX_CHARS
from retinue.models.layered import OUTPUT_TOKENS
from retinue.models.wire import body_of
from retinue.ports import (
    AssistantText,
    Finish,
    Kept,
    ModelRequest,
    RequestCall,
    RequestMessage,
    ToolSchema,
    ToolText,
    UserText,
)
from tests.models.kit import heard, request_of
from tests.models.replyserver import (
    Item,
    ReplyServer,
    Strict,
    begin,
    end,
    redacted,
    said,
    text,
    thinking,
    tool,
)

TOOLS = (ToolSchema(name="ping", description="Pings.", parameters={"type": "object", "properties": {}}),)
GO = UserText(text="go")
STEPS: list[Item] = [
    begin(),
    *thinking(0, "First I think.", "sig-1"),
    *redacted(1, "secret-2"),
    *text(2, "I ping."),
    *thinking(3, "", "sig-3"),
    *tool(4, "toolu_1", "ping", '{"a": 1}'),
    *tool(5, "toolu_2", "ping", '{"a": 2}'),
    *end("tool_use"),
]
STRICT = Strict("sig-1", "secret-2", "sig-3")


def bodies_of(*requests: ModelRequest, replies: list[list[Item]], **access: Any) -> list[dict[str, Any]]:
    """Return what the server got, which must have refused nothing."""

    async def ask() -> None:
        model = ExtraModel(Access(kind="anthropic", base_url=f"{server.base_url}/v1/", api_key="k", **access))
        try:
            for request in requests:
                finish = (await heard(model, request))[1]
                assert finish.reason in {"stop", "tool_calls"}, finish.error
        finally:
            await model.aclose()

    with ReplyServer(replies, complaint=STRICT) as server:
        asyncio.run(ask())
        assert server.faults == []
        return [seen.body for seen in server.requests]


def body_for(*messages: RequestMessage, **fields: Any) -> dict[str, Any]:
    return bodies_of(request_of(*messages, **fields), replies=[said("ok")])[0]


def steps_of(finish: Finish) -> list[RequestMessage]:
    """Return what the loop adds to the history: our own ids, and an answer to every call."""
    calls = [
        RequestCall(call_id=CallId(f"c_{n}"), name=call.name, arguments=json.loads(call.arguments))
        for n, call in enumerate(finish.tool_calls, 1)
    ]
    answer = AssistantText(text=finish.text, reasoning=finish.reasoning, tool_calls=tuple(calls), kept=finish.kept)
    return [answer, *(ToolText(call_id=call.call_id, name=call.name, text="pong") for call in calls)]


def first_step() -> Finish:
    async def ask() -> Finish:
        model = ExtraModel(Access(kind="anthropic", base_url=server.base_url, api_key="k"))
        try:
            return (await heard(model, request_of(GO, tools=TOOLS)))[1]
        finally:
            await model.aclose()

    with ReplyServer([STEPS], complaint=STRICT) as server:
        return asyncio.run(ask())


# ------------------------------------------------------------------------------------------------------------- thoughts


def test_thoughts_go_back_with_their_signatures_in_their_places() -> None:
    answer, *results = steps_of(first_step())
    body = body_for(GO, answer, *results, tools=TOOLS)
    assert body["messages"][1]["content"] == [
        {"type": "thinking", "thinking": "First I think.", "signature": "sig-1"},
        {"type": "redacted_thinking", "data": "secret-2"},
        {"type": "text", "text": "I ping."},
        {"type": "thinking", "thinking": "", "signature": "sig-3"},
        {"type": "tool_use", "id": "toolu_1", "name": "ping", "input": {"a": 1}},
        {"type": "tool_use", "id": "toolu_2", "name": "ping", "input": {"a": 2}},
    ]
    assert [block["tool_use_id"] for block in body["messages"][2]["content"]] == ["toolu_1", "toolu_2"]


def test_what_is_kept_repeats_neither_the_text_nor_the_arguments() -> None:
    kept = first_step().kept
    assert kept is not None
    assert kept.kind == "anthropic"
    assert json.loads(kept.body) == [
        {"part": "thinking", "content": "First I think.", "signature": "sig-1"},
        {"part": "thinking", "id": "redacted_thinking", "signature": "secret-2"},
        {"part": "text", "chars": 7},
        {"part": "thinking", "signature": "sig-3"},
        {"part": "call", "id": "toolu_1"},
        {"part": "call", "id": "toolu_2"},
    ]


def test_thoughts_are_left_out_for_a_model_of_another_kind() -> None:
    answer, *results = steps_of(first_step())
    assert isinstance(answer, AssistantText)
    assert answer.kept is not None
    foreign = AssistantText(
        text=answer.text,
        reasoning=answer.reasoning,
        tool_calls=answer.tool_calls,
        kept=Kept(kind="bedrock", body=answer.kept.body),
    )
    blocks = body_for(GO, foreign, *results, tools=TOOLS)["messages"][1]["content"]
    assert [block["type"] for block in blocks] == ["text", "tool_use", "tool_use"]
    assert [block.get("id") for block in blocks[1:]] == ["c_1", "c_2"]
    assert b"sig-1" not in body_of(request_of(GO, answer, *results), send_reasoning=True), "nor to an OpenAI server"


@pytest.mark.parametrize(
    "body",
    [
        "",
        "null",
        "{}",
        "[1]",
        '[{"part": "song"}]',
        '[{"part": "text", "chars": -7}]',
        "[" * 100_000,
        '[{"part":"call"}]',
    ],
)
def test_what_was_kept_and_cannot_be_read_is_left_out(body: str) -> None:
    call = RequestCall(call_id=CallId("c_1"), name="ping", arguments={})
    answer = AssistantText(text="I ping.", tool_calls=(call,), kept=Kept(kind="anthropic", body=body))
    sent = body_for(GO, answer, ToolText(call_id=CallId("c_1"), name="ping", text="pong"), tools=TOOLS)
    assert [block["type"] for block in sent["messages"][1]["content"]] == ["text", "tool_use"]


def test_thoughts_stand_first_where_the_text_is_not_what_it_was() -> None:
    answer, *results = steps_of(first_step())
    assert isinstance(answer, AssistantText)
    shorter = AssistantText(text="I p.", tool_calls=answer.tool_calls, kept=answer.kept)
    blocks = body_for(GO, shorter, *results, tools=TOOLS)["messages"][1]["content"]
    assert [block["type"] for block in blocks] == [
        "thinking",
        "redacted_thinking",
        "thinking",
        "text",
        "tool_use",
        "tool_use",
    ]


def test_two_answers_whose_calls_have_the_same_id_are_told_apart() -> None:
    once, *results = steps_of(first_step())
    assert isinstance(once, AssistantText)
    calls = tuple(RequestCall(call_id=CallId(f"d_{n}"), name="ping", arguments={}) for n in (1, 2))
    again = AssistantText(text=once.text, tool_calls=calls, kept=once.kept)
    more = [ToolText(call_id=call.call_id, name="ping", text="pong") for call in calls]
    sent = body_for(GO, once, *results, again, *more, tools=TOOLS)["messages"]
    assert [block["tool_use_id"] for block in sent[4]["content"]] == ["d_1", "d_2"]


def test_a_thought_that_is_past_all_bounds_is_not_kept() -> None:
    long: list[Item] = [begin(), *thinking(0, "x" * (KEPT_MAX_CHARS + 1), "sig-1"), *text(1, "ok"), *end("end_turn")]

    async def ask() -> Finish:
        model = ExtraModel(Access(kind="anthropic", base_url=server.base_url, api_key="k"))
        try:
            return (await heard(model, request_of()))[1]
        finally:
            await model.aclose()

    with ReplyServer([long]) as server:
        finish = asyncio.run(ask())
    assert (finish.reason, finish.text, finish.kept) == ("stop", "ok", None)


def test_plain_answers_keep_nothing() -> None:
    with ReplyServer([said("hi")]) as server:

        async def ask() -> Finish:
            model = ExtraModel(Access(kind="anthropic", base_url=server.base_url, api_key="k"))
            finish = (await heard(model, request_of()))[1]
            await model.aclose()
            return finish

        assert asyncio.run(ask()).kept is None


# ---------------------------------------------------------------------------------------------------------- the request


def without_marks(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_marks(item) for key, item in value.items() if key != "cache_control"}
    return [without_marks(item) for item in value] if isinstance(value, list) else value


def test_the_beginning_of_a_request_is_byte_for_byte_that_of_the_next_one() -> None:
    answer, *results = steps_of(first_step())
    history: list[RequestMessage] = [GO]
    sent: list[dict[str, Any]] = []
    for more in ([], [answer, *results], [AssistantText(text="done"), UserText(text="and now?")]):
        history += more
        sent.append(body_for(*history, tools=TOOLS, system="You are brief."))
    for shorter, longer in itertools.pairwise(sent):
        for part in ("tools", "system"):
            assert json.dumps(shorter[part]) == json.dumps(longer[part])
        head = without_marks(shorter["messages"])
        assert json.dumps(head) == json.dumps(without_marks(longer["messages"])[: len(head)])


def test_tools_system_text_and_the_newest_message_are_marked_for_the_cache() -> None:
    answer, *results = steps_of(first_step())
    body = body_for(GO, answer, *results, tools=TOOLS, system="You are brief.")
    assert [("cache_control" in tool) for tool in body["tools"]] == [True]
    assert [("cache_control" in block) for block in body["system"]] == [True]
    marked = [n for n, message in enumerate(body["messages"]) if "cache_control" in json.dumps(message)]
    assert marked == [len(body["messages"]) - 1]


def test_blank_texts_are_sent_in_a_form_that_is_taken() -> None:
    call = RequestCall(call_id=CallId("c_1"), name="", arguments={})
    messages: list[RequestMessage] = [
        UserText(text=" \n"),
        AssistantText(text="\n\n", tool_calls=(call,)),
        ToolText(call_id=CallId("c_1"), name="", text=""),
        UserText(text="go on"),
        AssistantText(text="  "),
        UserText(text="go on\ud800"),
    ]
    sent = body_for(*messages)["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert sent[1]["content"] == [{"type": "tool_use", "id": "c_1", "name": "unnamed_tool", "input": {}}]
    assert [block["type"] for block in sent[2]["content"]] == ["tool_result", "text", "text"]


def test_a_failed_call_is_marked_as_one() -> None:
    call = RequestCall(call_id=CallId("c_1"), name="ping", arguments={})
    result = ToolText(call_id=CallId("c_1"), name="ping", text="it broke", error=True)
    (block,) = body_for(GO, AssistantText(text="", tool_calls=(call,)), result)["messages"][2]["content"]
    assert (block["is_error"], block["content"]) == (True, [{"type": "text", "text": "it broke"}])


def test_a_limit_on_the_answer_is_always_sent() -> None:
    assert body_for(GO)["max_tokens"] == OUTPUT_TOKENS
    assert body_for(GO, output_tokens_max=300)["max_tokens"] == 300


EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max", "none", "off", "turbo", "")
LIMITS = (None, 256, 1024, 2048, 4096, 20_000)


@pytest.mark.parametrize("model", ["claude-sonnet-4-5", "claude-opus-4-6", "claude-3-5-haiku-latest", "made-up"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_no_effort_breaks_a_request(model: str) -> None:
    asked = [(effort, limit) for effort in EFFORTS for limit in LIMITS]
    requests = [request_of(GO, model=model, effort=effort, output_tokens_max=limit) for effort, limit in asked]
    bodies = bodies_of(*requests, replies=[said("ok")])
    for (effort, limit), body in zip(asked, bodies, strict=True):
        assert "thinking" not in body or effort not in {"turbo", ""}
        assert body["max_tokens"] == limit or limit in (None, 20_000)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_effort_makes_the_model_think() -> None:
    old = body_for(GO, model="claude-sonnet-4-5", effort="high", output_tokens_max=4096)
    assert old["thinking"] == {"type": "enabled", "budget_tokens": 2048}
    new = body_for(GO, model="claude-opus-4-6", effort="high", output_tokens_max=4096)
    assert (new["thinking"], new["output_config"]) == ({"type": "adaptive"}, {"effort": "high"})


def test_headers_of_a_connection_are_sent_and_filled() -> None:
    with ReplyServer([said("hi")]) as server:
        headers = {"X-Session": "{session_id}", "X-Team": "a"}

        async def ask() -> None:
            model = ExtraModel(Access(kind="anthropic", base_url=server.base_url, api_key="k", headers=headers))
            await asyncio.gather(*(heard(model, request_of(session_id=f"s_{n}", system=f"s_{n}")) for n in range(5)))
            await model.aclose()

        asyncio.run(ask())
        for seen in server.requests:
            assert seen.headers["x-session"] == seen.body["system"][0]["text"]
            assert seen.headers["x-team"] == "a"
