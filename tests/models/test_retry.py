"""Retries: freely before the first visible piece, once after it, never against what a provider asked for."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from retinue.models.retry import RetryingModel, RetryLimits
from retinue.ports import Delta, Finish, ModelRequest, Reset
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

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Reset | Finish, None]:
        self.numbers.append(request.number)
        text, finish = self.answers.pop(0)
        if text:
            yield Delta(kind="text", text=text)
        yield finish

    async def aclose(self) -> None:
        self.answers = []


def played(model: Playing, chance: float = 0.5, limits: RetryLimits | None = None) -> tuple[list[object], list[float]]:
    clock = FakeClock()
    retrying = RetryingModel(model, clock, lambda: chance, limits)

    async def main() -> list[object]:
        return [chunk async for chunk in retrying.stream(request_of())]

    return asyncio.run(main()), clock.waited


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
