"""Anthropic behind our port, over real HTTP: how answers end, what they cost, and how long they may take."""

import asyncio
import contextlib
import socket
from typing import Any

import pytest

from retinue.models.extra import Access, ExtraModel
from retinue.models.openai import HttpOptions
from retinue.models.retry import RetryingModel
from retinue.models.unanswered import TimeLimits
from retinue.ports import Delta, Finish, FinishCall, ModelRequest, Reset, Spent
from tests.models.kit import FakeClock, heard, request_of
from tests.models.replyserver import (
    ABORT,
    NEVER,
    Item,
    Reply,
    ReplyServer,
    Status,
    Strict,
    begin,
    end,
    said,
    text,
    thinking,
    tool,
)

pytest.importorskip("pydantic_ai", reason="the extra `providers` is not installed")
pytest.importorskip("anthropic", reason="the extra `providers` is not installed")

KEY = "sk-ant-very-secret"
PART = [begin(), *thinking(0, "Hm.", "sig"), *text(1, "Hello ", "world"), *tool(2, "toolu_1", "ping", '{"a":', "1}")]
PING: dict[str, Any] = {"type": "ping"}


def model_of(server: ReplyServer, options: HttpOptions | None = None, **access: Any) -> ExtraModel:
    return ExtraModel(Access(kind="anthropic", base_url=server.base_url, api_key=KEY, **access), options)


def answered(
    reply: Reply, request: ModelRequest | None = None, options: HttpOptions | None = None, **access: Any
) -> tuple[list[Delta], Finish]:
    """Ask a server once that plays this reply, and close the connection."""

    async def ask() -> tuple[list[Delta], Finish]:
        model = model_of(server, options, **access)
        try:
            return await heard(model, request or request_of())
        finally:
            await model.aclose()

    with ReplyServer([reply], complaint=Strict("sig")) as server:
        result = asyncio.run(ask())
        assert server.faults == []
        assert len(server.requests) == 1, "only our own retries may ask again"
    return result


def finish_of(reply: Reply, **how: Any) -> Finish:
    return answered(reply, **how)[1]


def times(**limits: float) -> HttpOptions:
    return HttpOptions(times=TimeLimits(**limits))


# ------------------------------------------------------------------------------------------------------ how answers end


def test_text_thoughts_and_a_call_come_as_they_stream() -> None:
    deltas, finish = answered([*PART, *end("tool_use")])
    assert [(delta.kind, delta.text) for delta in deltas] == [
        ("reasoning", "Hm."),
        ("text", "Hello "),
        ("text", "world"),
    ]
    assert (finish.reason, finish.text, finish.reasoning, finish.error) == ("tool_calls", "Hello world", "Hm.", None)
    assert finish.tool_calls == (FinishCall(name="ping", arguments='{"a":1}', provider_id="toolu_1"),)


def test_parallel_calls_keep_their_order() -> None:
    calls = [
        *tool(0, "toolu_1", "ping", '{"a": 1}'),
        *tool(1, "toolu_2", "pong", ""),
        *tool(2, "toolu_3", "ping", "{}"),
    ]
    finish = finish_of([begin(), *calls, *end("tool_use")])
    assert [(call.name, call.arguments) for call in finish.tool_calls] == [
        ("ping", '{"a": 1}'),
        ("pong", "{}"),
        ("ping", "{}"),
    ]


def test_arguments_that_are_no_json_are_handed_on_as_they_came() -> None:
    finish = finish_of([begin(), *tool(0, "toolu_1", "ping", '{"a": ', "oops"), *end("tool_use")])
    assert (finish.reason, finish.tool_calls[0].arguments) == ("tool_calls", '{"a": oops')


@pytest.mark.parametrize(
    ("stop", "reason", "words"),
    [
        ("end_turn", "stop", None),
        ("stop_sequence", "stop", None),
        ("max_tokens", "length", None),
        ("model_context_window_exceeded", "length", None),
        ("refusal", "refusal", "The model declined to answer: finish reason 'refusal'."),
        ("pause_turn", "incomplete", "The provider paused the answer before it was whole (pause_turn)."),
        ("stopped_by_moon", "error", "The provider ended the answer for an unknown reason, 'stopped_by_moon'."),
    ],
)
def test_every_stop_reason_ends_the_answer_its_way(stop: str, reason: str, words: str | None) -> None:
    finish = finish_of(said("some words", stop))
    assert (finish.reason, finish.error, finish.text) == (reason, words, "some words")


def test_a_refusal_carries_the_providers_explanation() -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "It may harm."}
    finish = finish_of([begin(), *text(0, "I"), *end("refusal", stop_details=details)])
    assert (finish.reason, finish.error) == ("refusal", "The model declined to answer: It may harm.")


def test_an_answer_without_content_is_an_empty_answer() -> None:
    finish = finish_of([begin(), *end("end_turn", 1)])
    assert (finish.reason, finish.text, finish.tool_calls) == ("stop", "", ())


@pytest.mark.parametrize("cut", range(1, len(PART) + 1))
def test_a_stream_that_stops_anywhere_before_its_stop_reason_is_incomplete(cut: int) -> None:
    finish = finish_of(PART[:cut])
    assert (finish.reason, finish.tool_calls, finish.kept) == ("incomplete", (), None)
    assert "without a finish reason" in (finish.error or "")


def test_an_empty_stream_is_incomplete() -> None:
    assert finish_of([]).reason == "incomplete"


def test_a_connection_that_breaks_in_the_middle_is_incomplete_with_its_text() -> None:
    finish = finish_of([*PART, 0.05, ABORT])
    assert (finish.reason, finish.text, finish.tool_calls) == ("incomplete", "Hello world", ())
    assert "broke in the middle of the answer" in (finish.error or "")


@pytest.mark.parametrize("ending", [[], [0.05, ABORT]], ids=["closed", "broken"])
def test_a_stop_reason_makes_the_answer_whole_whatever_follows_it(ending: list[Item]) -> None:
    finish = finish_of([*PART, end("tool_use")[0], *ending])
    assert (finish.reason, finish.error, len(finish.tool_calls)) == ("tool_calls", None, 1)


@pytest.mark.parametrize("before", [[], [begin(), *text(0, "Half")]], ids=["first", "after text"])
def test_an_error_in_the_stream_is_an_error_with_its_status(before: list[Item]) -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    finish = finish_of([*before, error])
    assert (finish.reason, finish.status, finish.text) == ("error", 529, "Half" if before else "")
    assert finish.error == "The provider reported an error in the stream: Overloaded."


@pytest.mark.parametrize("data", [b"event: content_block_delta\ndata: {nope\n\n", b"event: message_start\ndata: 7\n\n"])
def test_garbage_in_the_stream_is_no_success(data: bytes) -> None:
    finish = finish_of([begin(), *text(0, "Half"), data])
    assert finish.reason in {"error", "incomplete"}
    assert finish.text == "Half"


def test_halves_of_a_character_are_joined() -> None:
    deltas, finish = answered([begin(), *text(0, "a\ud83d", "\ude00b", "\ud83d"), *end("end_turn")])
    assert finish.text == "a\U0001f600b\ufffd"
    assert [delta.text for delta in deltas] == ["a", "\U0001f600b"]


def test_an_answer_past_the_limit_is_stopped() -> None:
    finish = finish_of([begin(), *[item for n in range(9) for item in text(n, "x" * 1_000_000)], *end("end_turn")])
    assert (finish.reason, finish.cause) == ("error", "lasting")
    assert "went past 8000000 characters" in (finish.error or "")


def test_an_endless_comment_is_stopped_at_the_limit() -> None:
    finish = finish_of([begin(), *[b": " + b"x" * 1_000_000 + b"\n\n"] * 70, *end("end_turn")])
    assert (finish.reason, finish.cause) == ("error", "lasting")
    assert "more than 67108864 bytes" in (finish.error or "")


# ------------------------------------------------------------------------------------------------------------- refusals


def refused(status: int, kind: str, message: str, **headers: str) -> Status:
    return Status(status, {"type": "error", "error": {"type": kind, "message": message}}, **headers)


def test_429_carries_the_wait_that_was_asked_for() -> None:
    finish = finish_of(refused(429, "rate_limit_error", "slow down", **{"retry-after": "3"}))
    assert (finish.reason, finish.status, finish.retry_after_s, finish.cause) == ("error", 429, 3.0, None)
    assert "slow down" in (finish.error or "")


def test_529_is_an_error_that_passes() -> None:
    finish = finish_of(refused(529, "overloaded_error", "Overloaded"))
    assert (finish.status, finish.cause) == (529, None)


def test_400_repeats_the_providers_words_and_no_key() -> None:
    finish = finish_of(refused(400, "invalid_request_error", f"messages: bad {KEY} t0k3n"), headers={"X-Own": "t0k3n"})
    assert finish.status == 400
    assert (finish.error or "").endswith("refused the request (HTTP 400): messages: bad [redacted] [redacted].")


def test_an_empty_account_is_lasting() -> None:
    assert finish_of(refused(400, "invalid_request_error", "Your credit balance is too low")).cause == "lasting"


def test_401_names_the_variable() -> None:
    finish = finish_of(refused(401, "authentication_error", "invalid key"), key_env="ANTHROPIC_API_KEY")
    assert "refused the key of ANTHROPIC_API_KEY" in (finish.error or "")


def test_404_names_the_model() -> None:
    finish = finish_of(refused(404, "not_found_error", "model: nope"), request=request_of(model="nope"))
    assert "does not know the model 'nope'" in (finish.error or "")


def test_a_redirect_is_not_followed_with_the_key() -> None:
    finish = finish_of(Status(307, {}, Location="http://elsewhere.invalid/"))
    assert "redirects to http://elsewhere.invalid/" in (finish.error or "")


@pytest.mark.parametrize("status", [200, 502])
def test_a_web_page_is_one_sentence_with_its_title(status: int) -> None:
    page = Status(status, b"<html><title>Welcome</title></html>" + b"x" * 300_000, **{"Content-Type": "text/html"})
    finish = finish_of(page)
    assert (finish.reason, "web page titled 'Welcome'" in (finish.error or "")) == ("error", True)
    assert len(finish.error or "") < 400


def test_a_refused_connection_names_the_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    async def ask() -> Finish:
        model = ExtraModel(Access(kind="anthropic", base_url=f"http://127.0.0.1:{port}", api_key=KEY))
        try:
            return (await heard(model, request_of()))[1]
        finally:
            await model.aclose()

    finish = asyncio.run(ask())
    assert (finish.reason, finish.status, finish.cause) == ("error", None, None)
    assert finish.error == f"could not reach http://127.0.0.1:{port}: Connection refused."


# --------------------------------------------------------------------------------------------------------- what it cost


def test_input_holds_what_was_read_from_and_written_to_the_cache() -> None:
    async def ask() -> list[Any]:
        model = model_of(server)
        try:
            return [piece async for piece in model.stream(request_of())]
        finally:
            await model.aclose()

    details = {"output_tokens_details": {"thinking_tokens": 3}}
    stop = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 7, **details}}
    with ReplyServer([[begin(), *text(0, "hi"), stop]]) as server:
        pieces = asyncio.run(ask())
    usage = pieces[-1].usage
    assert (usage.input, usage.cached, usage.output, usage.reasoning, usage.total) == (130, 100, 7, 3, 137)
    first = next(piece for piece in pieces if isinstance(piece, Spent))
    assert pieces.index(first) == 0, "whoever is cut off must know what the input cost"
    assert first.usage
    assert first.usage.input == 130


def test_no_report_is_no_usage() -> None:
    start = {**begin(), "message": {**begin()["message"], "usage": {"input_tokens": 0, "output_tokens": 0}}}
    stop = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 0}}
    assert finish_of([start, *text(0, "hi"), stop]).usage is None


# ---------------------------------------------------------------------------------------------------------------- times


def test_a_server_that_says_nothing_ends_the_request_by_the_first_chunk_time_out() -> None:
    finish = finish_of([NEVER], options=times(first_chunk_timeout_s=0.2))
    assert (finish.reason, finish.cause) == ("error", "timeout")
    assert "no piece of an answer within 0.2 s (first_chunk_timeout_s)" in (finish.error or "")


def test_silence_in_the_middle_of_an_answer_is_the_idle_time_out_and_keeps_the_text() -> None:
    finish = finish_of([begin(), *text(0, "Half"), NEVER], options=times(idle_timeout_s=0.2))
    assert (finish.reason, finish.cause, finish.text) == ("error", "timeout", "Half")
    assert "sent nothing for 0.2 s in the middle of the answer (idle_timeout_s)" in (finish.error or "")
    assert finish.usage


def test_a_ping_is_no_silence_although_the_library_hides_it() -> None:
    pings: list[Item] = [item for _ in range(8) for item in (PING, 0.05)]
    finish = finish_of([begin(), *text(0, "Whole"), *pings, *end("end_turn")], options=times(idle_timeout_s=0.25))
    assert (finish.reason, finish.text) == ("stop", "Whole")


def test_a_ping_is_no_first_piece() -> None:
    pings: list[Item] = [item for _ in range(20) for item in (PING, 0.05)]
    finish = finish_of([*pings, NEVER], options=times(first_chunk_timeout_s=0.3, idle_timeout_s=60))
    assert "first_chunk_timeout_s" in (finish.error or "")


def test_an_answer_that_drips_for_ever_ends_by_the_request_time_out() -> None:
    drops: list[Item] = [item for n in range(60) for item in (*text(n, "x"), 0.02)]
    finish = finish_of([begin(), *drops], options=times(request_timeout_s=0.3))
    assert (finish.reason, finish.cause) == ("error", "timeout")
    assert 0 < len(finish.text) < 60
    assert "(request_timeout_s)" in (finish.error or "")


def test_a_connection_that_is_never_made_ends_by_the_connect_time_out() -> None:
    async def ask(port: int) -> Finish:
        access = Access(kind="anthropic", base_url=f"https://127.0.0.1:{port}", api_key=KEY)
        model = ExtraModel(access, times(connect_timeout_s=0.2))
        try:
            return (await heard(model, request_of()))[1]
        finally:
            await model.aclose()

    with socket.create_server(("127.0.0.1", 0)) as listener:  # it takes the connection and never greets
        finish = asyncio.run(ask(listener.getsockname()[1]))
    assert (finish.reason, finish.cause) == ("error", "timeout")
    assert "no connection within 0.2 s (connect_timeout_s)" in (finish.error or "")


def test_a_slow_reader_is_no_slow_provider() -> None:
    async def read_slowly() -> Finish:
        model = model_of(server, times(idle_timeout_s=0.1, first_chunk_timeout_s=5))
        try:
            async for piece in model.stream(request_of()):
                await asyncio.sleep(0.15)  # longer than the provider may be silent
                if isinstance(piece, Finish):
                    return piece
        finally:
            await model.aclose()
        raise AssertionError("no finish")

    with ReplyServer([[begin(), *text(0, "a", "b", "c"), *end("end_turn")]]) as server:
        finish = asyncio.run(read_slowly())
    assert (finish.reason, finish.text) == ("stop", "abc")


def test_one_place_is_shared_and_waiting_for_it_counts_in_no_time_out() -> None:
    async def four() -> list[tuple[list[Delta], Finish]]:
        limits = HttpOptions(concurrency=1, times=TimeLimits(first_chunk_timeout_s=5, request_timeout_s=5))
        model = model_of(server, limits)
        try:
            return await asyncio.gather(*(heard(model, request_of(session_id=f"s_{n}")) for n in range(4)))
        finally:
            await model.aclose()

    with ReplyServer([[begin(), 0.05, *text(0, "ok"), *end("end_turn")]]) as server:
        results = asyncio.run(four())
        assert len(server.connections) == 1
    assert [finish.text for _, finish in results] == ["ok"] * 4


# -------------------------------------------------------------------------------------------------------- cancel, retry


@pytest.mark.parametrize("lines", [[NEVER], [begin(), *text(0, "first"), NEVER]], ids=["before", "after"])
def test_a_cancel_closes_the_socket_at_once(lines: list[Item]) -> None:
    async def ask_and_cancel() -> None:
        model = model_of(server)

        async def listen() -> None:
            async for _ in model.stream(request_of()):
                pass

        task = asyncio.ensure_future(listen())
        await asyncio.to_thread(server.wait_until, lambda it: len(it.requests) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # The client is still open: it is the cancel that closes the connection.
        await asyncio.to_thread(server.wait_until, lambda it: it.requests[0].outcome == "dropped")
        await model.aclose()

    with ReplyServer([lines]) as server:
        asyncio.run(ask_and_cancel())


def test_leaving_the_stream_early_closes_the_socket_too() -> None:
    async def leave() -> None:
        model = model_of(server)
        async with contextlib.aclosing(model.stream(request_of())) as stream:
            async for _ in stream:
                break
        await asyncio.to_thread(server.wait_until, lambda it: it.requests[0].outcome == "dropped")
        await model.aclose()

    with ReplyServer([[begin(), *text(0, "first"), NEVER]]) as server:
        asyncio.run(leave())


def test_one_model_serves_several_loops_one_after_the_other() -> None:
    async def ask() -> str:
        finish = (await heard(model, request_of()))[1]
        await model.aclose()
        await model.aclose()
        return finish.text

    with ReplyServer([said("hi")]) as server:
        model = model_of(server)
        assert [asyncio.run(ask()) for _ in range(2)] == ["hi", "hi"]


def test_our_own_retries_void_what_was_seen_and_ask_again() -> None:
    async def ask() -> list[Any]:
        model = RetryingModel(model_of(server), FakeClock())
        try:
            return [piece async for piece in model.stream(request_of())]
        finally:
            await model.aclose()

    overloaded = refused(529, "overloaded_error", "Overloaded")
    with ReplyServer([overloaded, [begin(), *text(0, "Half")], said("Whole.")]) as server:
        pieces = asyncio.run(ask())
        assert len(server.requests) == 3
    assert (pieces[-1].reason, pieces[-1].text, pieces[-1].retries) == ("stop", "Whole.", 2)
    assert sum(isinstance(piece, Reset) for piece in pieces) == 1
