"""Retries: freely before the first visible piece, once after it, never against what a provider asked for."""

import asyncio
from collections.abc import AsyncGenerator

import msgspec
import pytest

from retinue.core.events import Usage
from retinue.models.retry import RetryingModel, RetryLimits
from retinue.ports import Delta, Finish, ModelRequest, Piece, Reset, Spent
from tests.models.kit import FakeClock, request_of

DONE = Finish(reason="stop", text="done")
BUSY = Finish(reason="error", error="busy", status=503)
LIMITED = Finish(reason="error", error="slow down", status=429, retry_after_s=2.0)
BROKEN = Finish(reason="incomplete", text="half", error="reset")


class Playing:
    """Plays one answer a request, and keeps the requests' numbers."""

    def __init__(self, *answers: tuple[str, Finish]) -> None:
        self.answers = list(answers)
        self.numbers: list[int] = []

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        self.numbers.append(request.number)
        text, finish = self.answers.pop(0)
        if text:
            yield Delta(kind="text", text=text)
        yield finish

    async def aclose(self) -> None:
        self.answers = []


def played(model: Playing, chance: float = 0.5, limits: RetryLimits | None = None) -> tuple[list[object], list[float]]:
    """Return what a reader sees of a request, and the waits."""
    clock = FakeClock()
    pieces = asyncio.run(pieces_of(RetryingModel(model, clock, lambda: chance, limits)))
    return [piece for piece in pieces if not isinstance(piece, Spent)], clock.waited


async def pieces_of(model: RetryingModel) -> list[Piece]:
    return [piece async for piece in model.stream(request_of())]


def costs_of(*answers: tuple[str, Finish]) -> tuple[list[Spent], Finish]:
    """Return what a request says of its cost while it is under way, and its finish."""
    pieces = asyncio.run(pieces_of(RetryingModel(Playing(*answers), FakeClock())))
    assert isinstance(pieces[-1], Finish)
    return [piece for piece in pieces if isinstance(piece, Spent)], pieces[-1]


def test_a_good_answer_is_passed_on_as_it_is() -> None:
    model = Playing(("do", DONE))
    assert played(model) == ([Delta(kind="text", text="do"), DONE], [])


def test_before_the_first_visible_piece_it_tries_again_and_counts() -> None:
    model = Playing(("", BUSY), ("", BUSY), ("", DONE))
    chunks, waited = played(model)
    assert chunks == [Finish(reason="stop", text="done", retries=2)]
    assert model.numbers == [1, 2, 3]
    assert waited == [0.5, 1.0]


def test_tries_are_bounded_and_the_last_failure_is_the_answer() -> None:
    model = Playing(*[("", BUSY)] * 9)
    chunks, _ = played(model, limits=RetryLimits(tries_max=4))
    assert chunks == [Finish(reason="error", error="busy", status=503, retries=3)]
    assert model.numbers == [1, 2, 3, 4]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_what_will_never_be_answered_is_not_asked_again(status: int) -> None:
    model = Playing(("", Finish(reason="error", error="no", status=status)), ("", DONE))
    assert played(model)[0] == [Finish(reason="error", error="no", status=status)]
    assert model.numbers == [1]


@pytest.mark.parametrize("reason", ["refusal", "length"])
def test_a_refusal_and_a_full_answer_are_answers(reason: str) -> None:
    finish = Finish(reason="refusal" if reason == "refusal" else "length", text="x")
    assert played(Playing(("", finish), ("", DONE)))[0] == [finish]


def test_B116_after_visible_text_it_tries_once_and_voids_what_was_seen() -> None:
    model = Playing(("half", BROKEN), ("whole", DONE))
    chunks, _ = played(model)
    assert chunks == [
        Delta(kind="text", text="half"),
        Reset(attempt=2),
        Delta(kind="text", text="whole"),
        Finish(reason="stop", text="done", retries=1),
    ]


def test_after_visible_text_a_second_break_is_the_end() -> None:
    model = Playing(("half", BROKEN), ("half again", BROKEN), ("", DONE))
    chunks, _ = played(model)
    assert isinstance(chunks[-1], Finish)
    assert chunks[-1].reason == "incomplete"
    assert chunks[-1].retries == 1
    assert len(model.answers) == 1


def test_B62_no_try_comes_before_what_the_provider_asked_for() -> None:
    model = Playing(("", LIMITED), ("", DONE))
    _, waited = played(model, chance=0.0)
    assert sum(waited) >= 2.0
    _, later = played(Playing(("", LIMITED), ("", DONE)), chance=1.0)
    assert sum(later) > sum(waited)


def test_B62_a_request_of_the_same_connection_rests_too() -> None:
    clock = FakeClock()
    model = Playing(("", LIMITED), ("", DONE), ("", DONE))
    retrying = RetryingModel(model, clock, lambda: 0.0)

    async def main() -> float:
        first = retrying.stream(request_of())
        asking = asyncio.ensure_future(anext(first))
        await asyncio.sleep(0)
        await asking
        before = clock.monotonic()
        _ = [chunk async for chunk in retrying.stream(request_of())]
        return before

    assert asyncio.run(main()) >= 2.0


def test_a_rest_that_is_asked_for_too_long_is_not_waited_for() -> None:
    finish = Finish(reason="error", error="tomorrow", status=429, retry_after_s=86_400.0)
    assert played(Playing(("", finish), ("", DONE))) == ([finish], [])


@pytest.mark.parametrize("retry_after_s", [None, 0.0])
def test_B62_a_rate_limit_without_a_time_is_waited_out_with_growing_waits(
    retry_after_s: float | None,
) -> None:
    limited = Finish(reason="error", error="slow down", status=429, retry_after_s=retry_after_s)
    chunks, waited = played(Playing(*[("", limited)] * 9, ("", DONE)), limits=RetryLimits(scatter_s=0.0))
    assert chunks == [Finish(reason="stop", text="done", retries=9)]
    assert waited == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_B62_after_the_retry_budget_the_rate_limit_is_the_answer() -> None:
    chunks, waited = played(Playing(*[("", LIMITED)] * 20))
    assert chunks == [msgspec.structs.replace(LIMITED, retries=9)]
    assert all(wait_s >= 2.0 for wait_s in waited)


def test_B62_two_requests_that_wait_for_the_same_moment_come_back_at_different_ones() -> None:
    chances = iter([0.1, 0.9, 0.4, 0.2])
    clock = FakeClock()
    model = Playing(("", LIMITED), ("", DONE), ("", LIMITED), ("", DONE))
    retrying = RetryingModel(model, clock, lambda: next(chances))
    asyncio.run(pieces_of(retrying))
    asyncio.run(pieces_of(retrying))
    assert len(set(clock.waited)) == len(clock.waited) == 2


def test_no_try_begins_after_the_time_of_the_whole_request() -> None:
    limits = RetryLimits(all_max_s=5.0, scatter_s=0.0)
    chunks, waited = played(Playing(*[("", LIMITED)] * 9), limits=limits)
    assert chunks == [msgspec.structs.replace(LIMITED, retries=2)]
    assert sum(waited) <= 5.0


def test_a_rest_that_another_request_caused_is_not_waited_out_for_ever() -> None:
    clock = FakeClock()
    asked = Finish(reason="error", error="later", status=429, retry_after_s=100.0)
    model = Playing(("", asked), ("", DONE))
    retrying = RetryingModel(model, clock, lambda: 0.0, RetryLimits(all_max_s=50.0))
    assert asyncio.run(pieces_of(retrying)) == [asked]  # it can not wait so long itself
    (finish,) = asyncio.run(pieces_of(retrying))
    assert isinstance(finish, Finish)
    assert (finish.reason, finish.status, clock.waited, len(model.answers)) == ("error", 429, [], 1)


def test_the_wall_clock_has_no_say() -> None:
    class Jumping(FakeClock):
        def wall(self) -> str:
            raise AssertionError("waits are monotonic")

    model = Playing(("", LIMITED), ("", DONE))
    assert asyncio.run(pieces_of(RetryingModel(model, Jumping())))[-1] == Finish(reason="stop", text="done", retries=1)


def test_what_asking_again_cannot_mend_is_not_asked_again() -> None:
    finish = Finish(reason="error", error="The account is empty.", status=429, cause="lasting")
    assert played(Playing(("", finish), ("", DONE)))[0] == [finish]


def test_a_failed_request_keeps_the_last_words_that_were_seen() -> None:
    chunks, _ = played(Playing(("half", BROKEN), *[("", BUSY)] * 9))
    assert chunks[-1] == Finish(reason="error", text="half", error="busy", status=503, retries=3)
    whole, _ = played(Playing(("half", BROKEN), ("", Finish(reason="stop"))))
    assert whole[-1] == Finish(reason="stop", retries=1)


def test_reasoning_that_was_seen_is_voided_like_text() -> None:
    class Thinking(Playing):
        async def stream(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
            yield Delta(kind="reasoning", text="hm")
            yield self.answers.pop(0)[1]

    assert played(Thinking(("", BROKEN), ("", DONE)))[0] == [
        Delta(kind="reasoning", text="hm"),
        Reset(attempt=2),
        Delta(kind="reasoning", text="hm"),
        Finish(reason="stop", text="done", retries=1),
    ]


def test_a_begun_call_and_an_empty_piece_are_not_visible() -> None:
    class Empty(Playing):
        async def stream(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
            yield Delta(kind="text", text="")
            yield self.answers.pop(0)[1]

    chunks, _ = played(Empty(("", BROKEN), ("", BROKEN), ("", DONE)))
    assert not any(isinstance(chunk, Reset) for chunk in chunks)
    assert chunks[-1] == Finish(reason="stop", text="done", retries=2)


def test_B67_every_try_that_reported_its_usage_counts() -> None:
    some = Usage(input=10, output=2, total=12)
    broken = Finish(reason="incomplete", error="reset", usage=some)
    done = Finish(reason="stop", usage=Usage(input=10, output=5, total=15))
    spent, finish = costs_of(("", broken), ("", BUSY), ("", done))
    assert finish.usage == Usage(input=20, output=7, total=27, requests=3, unreported=1)
    assert [(one.retries, one.usage) for one in spent] == [
        (1, Usage(input=10, output=2, total=12, requests=2, unreported=1)),
        (2, Usage(input=10, output=2, total=12, requests=3, unreported=2)),
    ]


def test_B67_a_report_of_a_failed_try_is_not_lost_when_the_last_one_has_none() -> None:
    broken = Finish(reason="incomplete", error="reset", usage=Usage(input=10, total=10))
    _, finish = costs_of(("", broken), ("", DONE))
    assert finish.usage == Usage(input=10, total=10, requests=2, unreported=1)


def test_without_any_report_there_is_none() -> None:
    assert costs_of(("", BUSY), ("", DONE))[1].usage is None
