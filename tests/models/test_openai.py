"""The adapter over real sockets: sentences of failure, cancels, cut bytes, and the body it sends."""

import asyncio
import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retinue.core.errors import RetinueError
from retinue.core.ids import CallId
from retinue.models.failure import Endpoint, retry_after_s
from retinue.models.openai import OpenAIModel, chat_url, shown_url
from retinue.models.reading import AnswerReader
from retinue.ports import AssistantText, Finish, RequestCall, ToolSchema, ToolText, UserText
from retinue.testing.modelserver import ModelServer, Setup
from tests.models.kit import STREAMS, asked, heard, request_of

KEY = "sk-very-secret-key"
DEEP = b"data: " + b"[" * 200_000 + b"\n\n"


def http_line(status: int, body: Any, **headers: str) -> list[dict[str, Any]]:
    return [
        {"_ctl": "reply", "n": 1, "agent": "any"},
        {"_ctl": "http", "status": status, "headers": headers, "body": body},
    ]


def raw_lines(data: bytes, end: str = "close") -> list[dict[str, Any]]:
    return [{"_ctl": "reply", "n": 1, "agent": "any"}, {"_ctl": "raw_hex", "hex": data.hex()}, {"_ctl": end}]


@contextlib.contextmanager
def raw_server(answer: bytes) -> Iterator[str]:
    """Serve these bytes to the first client, over a bare socket, once its request has come; then hang up."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                client.recv(65536)
                client.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        thread.join()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


# ------------------------------------------------------------------------------------------------ sentences of failure


def test_a_refused_connection_names_the_address() -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    finish = asked(url)[1]
    assert (finish.reason, finish.status) == ("error", None)
    assert (finish.error or "").startswith(f"could not reach {url}/chat/completions: ")
    assert "refused" in (finish.error or "").lower()


def test_a_host_that_does_not_exist_is_one_sentence() -> None:
    finish = asked("http://no-such-host.invalid/v1")[1]
    assert (finish.error or "").startswith("could not reach http://no-such-host.invalid/v1/chat/completions: ")


@pytest.mark.parametrize("url", ["not a url", "ftp://x/v1", "http://", "http://[::1/v1", "http://h:x/v1"])
def test_a_base_url_that_is_no_address_is_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(RetinueError, match="no http or https address"):
        OpenAIModel(url)


def test_401_names_the_variable_and_never_the_key() -> None:
    with ModelServer([{"text": "x"}], Setup(api_key="right")) as server:
        finish = asked(server.base_url, api_key=KEY, key_env="OPENAI_API_KEY")[1]
    assert finish.status == 401
    assert "refused the key of OPENAI_API_KEY" in (finish.error or "")
    assert KEY not in (finish.error or "")


def test_401_without_a_key_says_which_variable_to_set() -> None:
    with ModelServer([{"text": "x"}], Setup(api_key="right")) as server:
        named = asked(server.base_url, key_env="MY_KEY")[1]
        nameless = asked(server.base_url)[1]
    assert "but MY_KEY is not set" in (named.error or "")
    assert "names none; give it an api_key_env" in (nameless.error or "")


def test_a_key_that_the_server_repeats_is_redacted_wherever_it_stands() -> None:
    with ModelServer(http_line(403, {"error": {"message": f"key {KEY} and token t0k3n are bad"}})) as server:
        finish = asked(server.base_url, api_key=KEY, headers={"X-Token": "t0k3n"})[1]
    assert KEY not in (finish.error or "")
    assert "t0k3n" not in (finish.error or "")
    stream = f'data: {{"error": {{"message": "bad {KEY}"}}}}\n\n'.encode()
    with ModelServer(raw_lines(stream)) as server:
        assert "bad [redacted]" in (asked(server.base_url, api_key=KEY)[1].error or "")


def test_404_names_the_model() -> None:
    with ModelServer([{"text": "x"}], Setup(models=("fake-a",))) as server:
        finish = asked(server.base_url, request_of(model="nope-1"))[1]
    assert finish.status == 404
    assert "does not know the model 'nope-1'" in (finish.error or "")


@pytest.mark.parametrize(("asked_for", "wait_s"), [("2", 2.0), ("0.5", 0.5), ("-3", 0.0), ("soon", None)])
def test_429_carries_the_wait_that_was_asked_for(asked_for: str, wait_s: float | None) -> None:
    body = {"error": {"message": "Too many requests"}}
    with ModelServer(http_line(429, body, **{"Retry-After": asked_for})) as server:
        finish = asked(server.base_url)[1]
    assert (finish.status, finish.retry_after_s) == (429, wait_s)
    assert "Too many requests" in (finish.error or "")


def test_429_understands_an_http_date_and_milliseconds() -> None:
    with ModelServer(http_line(429, {}, **{"Retry-After": "Fri, 01 Jan 2100 00:00:00 GMT"})) as server:
        assert asked(server.base_url)[1].retry_after_s == 86_400.0
    with ModelServer(http_line(429, {}, **{"Retry-After-Ms": "1500", "Retry-After": "9"})) as server:
        assert asked(server.base_url)[1].retry_after_s == 1.5


def test_429_with_a_date_is_measured_from_the_providers_own_clock() -> None:
    dates = {"Date": "Fri, 01 Jan 2100 00:00:00 GMT", "Retry-After": "Fri, 01 Jan 2100 00:00:07 GMT"}
    assert retry_after_s({name.lower(): date for name, date in dates.items()}, now_s=4_000_000_000.0) == 7.0
    assert retry_after_s({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, now_s=60.0) == 0.0
    for odd in ("nan", "soon", "", "Fri, 99 Jan 2100"):
        assert retry_after_s({"retry-after": odd}, now_s=0.0) is None


def test_429_of_an_empty_account_is_lasting() -> None:
    body = {"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}
    with ModelServer(http_line(429, body)) as server:
        finish = asked(server.base_url)[1]
    assert (finish.status, finish.cause) == (429, "lasting")


def test_500_with_a_web_page_is_one_sentence_with_its_title() -> None:
    page = "<html><head><title>502 Bad\n Gateway</title></head><body>" + "x" * 100_000
    with ModelServer(http_line(502, page)) as server:
        finish = asked(server.base_url)[1]
    assert finish.status == 502
    assert finish.error == (
        f"{server.base_url}/chat/completions failed (HTTP 502): it sent a web page titled '502 Bad Gateway'."
    )


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "context too long"}},
        {"error": "context too long"},
        {"detail": [{"msg": "context too long"}]},
        [{"error": {"message": "context too long"}}],
        {"message": "context too long"},
        "context too long",
    ],
)
def test_400_shows_the_words_of_any_error_body(body: Any) -> None:
    headers = {"Content-Type": "text/plain"} if isinstance(body, str) else {}
    with ModelServer(http_line(400, body, **headers)) as server:
        finish = asked(server.base_url)[1]
    assert finish.error == f"{server.base_url}/chat/completions refused the request (HTTP 400): context too long."


def test_a_redirect_is_not_followed_with_the_key() -> None:
    with ModelServer(http_line(307, "", Location="http://elsewhere.invalid/v1")) as server:
        finish = asked(server.base_url, api_key=KEY)[1]
    assert "redirects to http://elsewhere.invalid/v1" in (finish.error or "")


def test_a_web_page_as_200_says_that_the_base_url_is_wrong() -> None:
    with ModelServer(http_line(200, "<html><title>Welcome</title></html>")) as server:
        finish = asked(server.base_url)[1]
    assert finish.reason == "error"
    assert "web page titled 'Welcome'" in (finish.error or "")
    assert "check the base URL" in (finish.error or "")


def test_a_server_that_does_not_stream_is_understood() -> None:
    body = {
        "choices": [{"index": 0, "message": {"content": "whole"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1},
    }
    with ModelServer(http_line(200, body)) as server:
        deltas, finish = asked(server.base_url)
    assert (finish.reason, finish.text, [delta.text for delta in deltas]) == ("stop", "whole", ["whole"])
    assert finish.usage


def test_json_that_is_no_answer_is_an_error() -> None:
    with ModelServer(http_line(200, {"ok": True})) as server:
        assert "is no answer of a model" in (asked(server.base_url)[1].error or "")


@pytest.mark.parametrize(
    "data", [b"data: {not json}\n\n", b"data: [1]\n\n", b"hello\nworld\n\n", b"\xff\xfe\x00\x01", DEEP]
)
def test_garbage_in_the_stream_is_an_error(data: bytes) -> None:
    with ModelServer(raw_lines(data)) as server:
        finish = asked(server.base_url)[1]
    assert finish.reason == "error"
    assert finish.error


def test_an_empty_stream_is_incomplete() -> None:
    with ModelServer([{"finish": None}]) as server:
        assert asked(server.base_url)[1].reason == "incomplete"


def test_an_error_event_with_its_text_before_it() -> None:
    data = b'data: {"choices":[{"delta":{"content":"Par"}}]}\n\nevent: error\ndata: {"message": "lost it"}\n\n'
    with ModelServer(raw_lines(data)) as server:
        finish = asked(server.base_url)[1]
    assert (finish.reason, finish.text) == ("error", "Par")
    assert "lost it" in (finish.error or "")


def test_a_connection_that_breaks_in_the_middle_is_incomplete_with_its_text() -> None:
    data = b'data: {"choices":[{"delta":{"content":"Half"}}]}\n\n'
    with ModelServer(raw_lines(data, "abort")) as server:
        deltas, finish = asked(server.base_url)
    assert (finish.reason, finish.text, [delta.text for delta in deltas]) == ("incomplete", "Half", ["Half"])
    assert "broke in the middle of the answer" in (finish.error or "")


@pytest.mark.parametrize("answer", [b"", b"\x00\x01\x02 garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Le"])
def test_a_server_that_speaks_no_http_is_one_sentence(answer: bytes) -> None:
    with raw_server(answer) as url:
        finish = asked(url)[1]
    assert finish.reason == "error"
    assert (finish.error or "").startswith("could not reach http://127.0.0.1:")


def test_a_failed_tls_handshake_says_so() -> None:
    with raw_server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as url:
        finish = asked(url.replace("http:", "https:"))[1]
    assert "the TLS handshake failed" in (finish.error or "")
    assert ssl.OPENSSL_VERSION  # the handshake really was one


def test_the_body_of_an_endless_error_is_read_only_in_part() -> None:
    with ModelServer(http_line(500, "x" * 5_000_000, **{"Content-Type": "text/plain"})) as server:
        finish = asked(server.base_url)[1]
    assert finish.status == 500
    assert len(finish.error or "") < 1000


def test_a_request_that_cannot_be_written_is_one_sentence() -> None:
    finish = asked("http://127.0.0.1:9/v1", request_of(UserText(text="\ud800")))[1]
    assert finish.reason == "error"
    assert "could not be made" in (finish.error or "")


def test_an_answer_without_end_is_stopped_at_the_limits() -> None:
    for content_type, name in (("application/json", "16777216"), ("text/event-stream", "8388608")):
        reader = AnswerReader(content_type, Endpoint(shown="http://h"))
        while not reader.over:
            reader.feed(b"x" * 1_000_000)
        reader.close()
        assert (reader.finish().reason, name in (reader.finish().error or "")) == ("error", True)


# ------------------------------------------------------------------------------------------------------ cancel, re-use


def test_a_cancel_closes_the_socket_at_once() -> None:
    lines = [
        {"_ctl": "reply", "n": 1, "agent": "any"},
        {"choices": [{"index": 0, "delta": {"content": "first"}}]},
        {"_ctl": "sleep_ms", "ms": 600_000},
        {"_ctl": "done"},
    ]

    async def ask_and_cancel() -> None:
        model = OpenAIModel(server.base_url)
        first = asyncio.Event()

        async def listen() -> None:
            async for _ in model.stream(request_of()):
                first.set()

        task = asyncio.ensure_future(listen())
        await first.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # The client's session is still open: it is the cancel that closes the connection.
        await asyncio.to_thread(server.wait_until, lambda it: it.requests[0].outcome == "dropped")
        await model.aclose()

    with ModelServer(lines) as server:
        asyncio.run(ask_and_cancel())


def test_leaving_the_stream_early_closes_the_socket_too() -> None:
    lines = [{"text": "one two three four"}]

    async def leave() -> None:
        model = OpenAIModel(server.base_url)
        async with contextlib.aclosing(model.stream(request_of())) as stream:
            async for _ in stream:
                break
        await asyncio.to_thread(server.wait_until, lambda it: it.requests[0].outcome == "dropped")
        await model.aclose()

    with ModelServer(lines, Setup(chunk_delay_ms=60_000)) as server:
        asyncio.run(leave())


def test_finished_answers_leave_a_connection_that_is_used_again() -> None:
    async def ask_twice() -> None:
        model = OpenAIModel(server.base_url)
        for number in (1, 2, 3):
            assert (await heard(model, request_of(UserText(text=f"go {number}"))))[1].reason == "stop"
        await model.aclose()
        await model.aclose()

    with ModelServer([{"text": "hi", "n": 1}]) as server:
        asyncio.run(ask_twice())
        assert server.connections == 1


def test_one_model_serves_several_loops_one_after_the_other() -> None:
    async def ask() -> Finish:
        finish = (await heard(model, request_of()))[1]
        await model.aclose()
        return finish

    with ModelServer([{"text": "hi", "n": 1}]) as server:
        model = OpenAIModel(server.base_url)
        assert [asyncio.run(ask()).text for _ in range(2)] == ["hi", "hi"]


# -------------------------------------------------------------------------------------------------------- what is sent


def test_the_body_says_everything_that_the_request_says() -> None:
    call = RequestCall(call_id=CallId("c_1"), name="", arguments={"ä": 1})
    request = request_of(
        UserText(text="go"),
        AssistantText(text="", reasoning="secret thought", tool_calls=(call,)),
        ToolText(call_id=CallId("c_1"), name="", text="no such tool", error=True),
        AssistantText(text="", reasoning="nothing"),
        UserText(text="and?"),
        system="be brief",
        tools=(ToolSchema(name="ping", description="Pings.", parameters={"type": "object"}),),
        effort="low",
        output_tokens_max=99,
    )
    with ModelServer([{"text": "ok"}]) as server:
        asked(server.base_url + "/", request, api_key=KEY, headers={"X-Team": "a"})
        body, headers = server.requests[0].body, server.requests[0].headers
    assert headers["authorization"] == f"Bearer {KEY}"
    assert headers["x-team"] == "a"
    assert body == {
        "model": "fake-model",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_completion_tokens": 99,
        "reasoning_effort": "low",
        "tools": [
            {
                "type": "function",
                "function": {"name": "ping", "description": "Pings.", "parameters": {"type": "object"}},
            }
        ],
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "go"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c_1", "type": "function", "function": {"name": "unnamed_tool", "arguments": '{"ä":1}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "c_1", "content": "no such tool"},
            {"role": "user", "content": "and?"},
        ],
    }


def test_a_short_request_sends_no_empty_fields() -> None:
    with ModelServer([{"text": "ok"}]) as server:
        asked(server.base_url)
        assert set(server.requests[0].body) == {"model", "messages", "stream", "stream_options"}


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("http://h/v1", "http://h/v1/chat/completions"),
        ("http://h/v1/", "http://h/v1/chat/completions"),
        ("http://h", "http://h/chat/completions"),
        ("http://h/", "http://h/chat/completions"),
        ("http://h/v1?api-version=1", "http://h/v1/chat/completions?api-version=1"),
    ],
)
def test_the_base_url_is_used_as_given_plus_the_path(base: str, url: str) -> None:
    assert chat_url(base) == url


def test_a_shown_address_holds_no_user_and_no_query() -> None:
    assert shown_url("https://u:p@h:8/v1?key=1") == "https://h:8/v1"


# ------------------------------------------------------------------------------------------------------------ cut bytes


def _stream_bytes(name: str) -> bytes:
    lines = (STREAMS / name).read_text(encoding="utf-8").splitlines()
    chunks = [line for line in lines if "_ctl" not in json.loads(line)]
    return b": hello\r\n\r\n" + b"".join(f"data: {line}\r\n\r\n".encode() for line in chunks) + b"data: [DONE]\n\n"


def _read(pieces: list[bytes]) -> Finish:
    reader = AnswerReader("text/event-stream", Endpoint(shown="http://h"))
    for piece in pieces:
        reader.feed(piece)
    reader.close()
    return reader.finish()


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(["B102.jsonl", "B104.jsonl", "B106.jsonl", "B65.jsonl"]), st.data())
def test_where_the_bytes_of_an_answer_are_cut_changes_nothing(name: str, data: st.DataObject) -> None:
    raw = _stream_bytes(name)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=20)))
    pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    finish = _read(pieces)
    assert finish == _read([raw])
    assert finish.reason in {"stop", "tool_calls"}


@settings(max_examples=60)
@given(st.integers(0, 4000))
def test_an_answer_that_ends_anywhere_is_whole_or_says_that_it_is_not(end: int) -> None:
    raw = _stream_bytes("B106.jsonl")
    finish = _read([raw[:end]])
    assert (finish.reason == "stop") == (finish.error is None)
    if finish.reason == "stop":
        assert finish.text.startswith("Hi there")
