"""Time-outs of one request: which one ended it, what it says, what is kept, and that nobody else is hit by it."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest

from retinue.models.openai import HttpOptions, OpenAIModel
from retinue.models.retry import RetryingModel
from retinue.models.unanswered import TimeLimits
from retinue.ports import Delta, Finish, Reset
from retinue.testing.modelserver import ModelServer
from tests.models.kit import FakeClock, asked, request_of

NEVER = {"_ctl": "sleep_ms", "ms": 600_000}
REPLY = {"_ctl": "reply", "n": 1, "agent": "any"}
DONE = {"_ctl": "done"}
LONG_S = 60.0


def text(content: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish}]}


def comment(data: str = ": still here\n\n") -> dict[str, Any]:
    return {"_ctl": "raw_hex", "hex": data.encode().hex()}


def options(**times: float) -> HttpOptions:
    return HttpOptions(times=TimeLimits(**times))


def late(lines: list[dict[str, Any]], **times: float) -> Finish:
    with ModelServer(lines) as server:
        return asked(server.base_url, options=options(**times))[1]


@contextlib.contextmanager
def deaf_server() -> Iterator[str]:
    """Take connections and never say anything, not even a TLS greeting."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        over = threading.Event()
        peers: list[socket.socket] = []

        def accept() -> None:
            with contextlib.suppress(OSError):
                while not over.is_set():
                    peers.append(listener.accept()[0])

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        over.set()
        socket.create_connection(listener.getsockname()).close()
        thread.join()
        for peer in peers:
            peer.close()


def test_B11_a_server_that_takes_the_request_and_says_nothing_ends_it_by_the_first_chunk_time_out() -> None:
    with deaf_server() as address:
        finish = asked(f"http://{address}/v1", options=options(first_chunk_timeout_s=0.1))[1]
    assert (finish.reason, finish.cause, finish.text) == ("error", "timeout", "")
    assert finish.error == (
        f"http://{address}/v1/chat/completions sent no piece of an answer within 0.1 s (first_chunk_timeout_s)."
    )


def test_a_connection_that_is_never_made_ends_by_the_connect_time_out() -> None:
    with deaf_server() as address:  # the TLS handshake is part of connecting
        finish = asked(f"https://{address}/v1", options=options(connect_timeout_s=0.1))[1]
    assert (finish.reason, finish.cause) == ("error", "timeout")
    assert finish.error == (
        f"could not reach https://{address}/v1/chat/completions: no connection within 0.1 s (connect_timeout_s)."
    )


def test_comments_keep_a_connection_alive_but_are_no_first_piece() -> None:
    finish = late([REPLY, *[comment()] * 3, NEVER, DONE], first_chunk_timeout_s=0.2, idle_timeout_s=LONG_S)
    assert "first_chunk_timeout_s" in (finish.error or "")


def test_silence_in_the_middle_of_an_answer_is_the_idle_time_out_and_keeps_the_text() -> None:
    finish = late([REPLY, text("Half"), NEVER, DONE], idle_timeout_s=0.1, first_chunk_timeout_s=LONG_S)
    assert (finish.reason, finish.cause, finish.text) == ("error", "timeout", "Half")
    assert "sent nothing for 0.1 s in the middle of the answer (idle_timeout_s)." in (finish.error or "")


def test_a_comment_is_no_silence() -> None:
    pieces = [line for _ in range(8) for line in (comment(), {"_ctl": "sleep_ms", "ms": 50})]
    finish = late([REPLY, text("Whole"), *pieces, text(".", "stop"), DONE], idle_timeout_s=0.25)
    assert (finish.reason, finish.text) == ("stop", "Whole.")


def test_an_answer_that_drips_for_ever_ends_by_the_request_time_out() -> None:
    pieces = [line for _ in range(40) for line in (text("x"), {"_ctl": "sleep_ms", "ms": 20})]
    finish = late([REPLY, *pieces, DONE], request_timeout_s=0.2, idle_timeout_s=LONG_S)
    assert (finish.reason, finish.cause) == ("error", "timeout")
    assert 0 < len(finish.text) < 40
    assert "was not whole within 0.2 s (request_timeout_s)." in (finish.error or "")


def test_the_request_time_out_holds_before_the_first_piece_too() -> None:
    assert "request_timeout_s" in (late([REPLY, NEVER, DONE], request_timeout_s=0.1).error or "")


def test_an_answer_that_is_finished_waits_for_no_silent_provider() -> None:
    finish = late([REPLY, text("Whole.", "stop"), NEVER, DONE], idle_timeout_s=0.1)
    assert (finish.reason, finish.cause, finish.text) == ("stop", None, "Whole.")


def test_a_slow_reader_is_no_slow_provider_and_no_time_out_hits_the_reader() -> None:
    lines = [REPLY, text("a"), text("b"), text("c", "stop"), DONE]

    async def read_slowly() -> tuple[int, Finish]:
        model = OpenAIModel(server.base_url, options=options(idle_timeout_s=0.1, first_chunk_timeout_s=0.1))
        read = 0
        try:
            async for piece in model.stream(request_of()):
                await asyncio.sleep(0.15)  # longer than any time-out of the request
                read += isinstance(piece, Delta)
                if isinstance(piece, Finish):
                    return read, piece
        finally:
            await model.aclose()
        raise AssertionError("no finish")

    with ModelServer(lines) as server:
        read, finish = asyncio.run(read_slowly())
    assert (read, finish.reason, finish.text) == (3, "stop", "abc")


def test_waiting_for_a_place_counts_in_no_time_out() -> None:
    lines = [{"text": "ok", "delay_ms": 120}]

    async def two_at_once() -> list[Finish]:
        limits = HttpOptions(concurrency=1, times=TimeLimits(connect_timeout_s=0.2, first_chunk_timeout_s=0.2))
        model = OpenAIModel(server.base_url, options=limits)
        try:
            return await asyncio.gather(*(_finish(model.stream(request_of(session_id=f"s_{n}"))) for n in range(4)))
        finally:
            await model.aclose()

    with ModelServer([*lines, {"_ctl": "repeat_last"}]) as server:
        finishes = asyncio.run(two_at_once())
    assert [finish.reason for finish in finishes] == ["stop"] * 4


async def _finish(pieces: AsyncGenerator[Any, None]) -> Finish:
    *_, finish = [piece async for piece in pieces]
    return finish


@pytest.mark.parametrize("visible", [False, True], ids=["before", "after"])
def test_a_time_out_is_tried_again_by_the_normal_rule(visible: bool) -> None:
    first = [REPLY, *([text("Half")] if visible else []), NEVER, DONE]
    second = [{"_ctl": "reply", "n": 2, "agent": "any"}, text("Whole.", "stop"), DONE]

    async def ask() -> list[Any]:
        times = options(idle_timeout_s=0.1, first_chunk_timeout_s=0.1)
        model = RetryingModel(OpenAIModel(server.base_url, options=times, headers={"X-Session-Id": "x"}), FakeClock())
        try:
            return [piece async for piece in model.stream(request_of())]
        finally:
            await model.aclose()

    with ModelServer([*first, *second]) as server:
        pieces = asyncio.run(ask())
    assert (pieces[-1].reason, pieces[-1].text, pieces[-1].retries) == ("stop", "Whole.", 1)
    assert any(isinstance(piece, Reset) for piece in pieces) == visible
