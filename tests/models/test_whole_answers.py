"""`stream = false`: one JSON answer, read with the same care as a stream; and what servers send in its place."""

import json
from typing import Any

import pytest

from retinue.core.events import Usage
from retinue.models.openai import HttpOptions
from retinue.models.registry import ModelRegistry
from retinue.ports import Delta, Finish, FinishCall
from retinue.testing.modelserver import ModelServer
from tests.models.kit import asked
from tests.models.test_openai import http_line

USAGE = {"prompt_tokens": 1000, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 800}}


def call(name: str, arguments: Any, **more: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def answer(finish: str | None = "stop", usage: Any = None, **message: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": None, "refusal": None, "tool_calls": None, **message}
    return {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": said, "finish_reason": finish}],
        "usage": usage,
    }


def read(body: Any, content_type: str = "application/json") -> tuple[list[Delta], Finish]:
    with ModelServer(http_line(200, body, **{"Content-Type": content_type})) as server:
        return asked(server.base_url, options=HttpOptions(stream=False))


def test_a_whole_answer_is_the_same_finish_as_a_stream() -> None:
    calls = [call("read", '{"p":1}'), call("read", '{"p":2}')]  # B114: one id, two calls
    body = answer("tool_calls", USAGE, content="Look.", reasoning_content="hm", tool_calls=calls)
    deltas, finish = read(body)
    assert deltas == [Delta(kind="reasoning", text="hm"), Delta(kind="text", text="Look.")]
    assert finish == Finish(
        reason="tool_calls",
        text="Look.",
        reasoning="hm",
        tool_calls=(
            FinishCall(name="read", arguments='{"p":1}', provider_id="c"),
            FinishCall(name="read", arguments='{"p":2}', provider_id="c"),
        ),
        usage=Usage(input=1000, cached=800, output=50, total=1050),
    )


@pytest.mark.parametrize(
    ("body", "reason", "words"),
    [
        (answer("stop", refusal="I cannot."), "refusal", "declined to answer: I cannot."),
        (answer(None, content="Half"), "incomplete", "without a finish reason"),
        (answer("length", content="Half", tool_calls=[call("read", '{"p"')]), "length", ""),
        ({"error": {"message": "over capacity", "code": 502}}, "error", "over capacity"),
        ({"error": {"message": "over capacity"}, "choices": []}, "error", "over capacity"),
        ({"choices": [{"error": {"message": "over capacity", "code": 502}}]}, "error", "over capacity"),
        ({"choices": []}, "incomplete", "without a finish reason"),
        ({}, "error", "no answer of a model"),
        ([], "error", "no answer of a model"),
        ("<html><title>Login</title></html>", "error", "a web page titled 'Login'"),
        ("", "error", "no answer of a model: no reason given"),
    ],
)
def test_what_is_no_good_answer_is_none_here_either(body: Any, reason: str, words: str) -> None:
    _, finish = read(body)
    assert finish.reason == reason
    assert words in (finish.error or "")
    assert finish.tool_calls == () or reason == "length"


@pytest.mark.parametrize("content_type", ["text/plain", "application/octet-stream", "application/json; charset=utf-8"])
def test_the_content_type_of_a_whole_answer_does_not_matter(content_type: str) -> None:
    body = json.dumps(answer(content="It spans\nlines."), indent=2)
    assert read(body, content_type)[1].text == "It spans\nlines."


@pytest.mark.parametrize("content_type", ["text/event-stream", "application/json", "text/plain"])
def test_a_server_that_streams_all_the_same_is_understood(content_type: str) -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}
    body = f": hello\n\ndata: {json.dumps(chunk)}\n\ndata: [DONE]\n\n"
    deltas, finish = read(body, content_type)
    assert (finish.reason, finish.text, len(deltas)) == ("stop", "hi", 1)


def test_the_request_asks_for_a_whole_answer() -> None:
    with ModelServer(http_line(200, answer(content="hi"))) as server:
        asked(server.base_url, options=HttpOptions(stream=False))
        (request,) = server.requests
    assert request.body["stream"] is False
    assert "stream_options" not in request.body
    assert request.headers["accept"] == "application/json"


def test_the_settings_of_a_connection_reach_the_adapter() -> None:
    table = {"base_url": "http://127.0.0.1:9/v1", "stream": False, "send_reasoning": True, "concurrency": 3}
    times = {"connect_timeout_s": 1, "first_chunk_timeout_s": 2.5, "idle_timeout_s": 3, "request_timeout_s": 4}
    model, _ = ModelRegistry({"mine": {**table, **times}}).find("mine:x")
    options = vars(model)["_options"]
    assert (options.stream, options.send_reasoning, options.concurrency) == (False, True, 3)
    assert {name: getattr(options.times, name) for name in times} == times
