"""What a turn counts against a model that repeats itself: the same call in a row, and calls that cannot be used."""

from typing import Any

import pytest

from retinue.core.events import MessageAssistant, ToolCall, ToolFinished
from retinue.core.ids import CallId, SessionId
from retinue.core.session import Turn
from tests.core import driver
from tests.core.driver import Log

ROOT = SessionId("s_root")


def turn_of(log: Log) -> Turn:
    turn = log.state.sessions[ROOT].turn
    assert turn is not None
    return turn


def call(log: Log, *calls: tuple[str, dict[str, Any]], finish: str = "tool_calls") -> list[int]:
    """One answer with these calls; how often in a row each was made, 0 where it does not count."""
    driver.open_step(log, ROOT)
    made = tuple(
        ToolCall(call_id=CallId(f"c_{len(log.events)}_{place}"), name=name, arguments=arguments)
        for place, (name, arguments) in enumerate(calls)
    )
    number, step = driver.TurnNo(1), driver.StepNo(turn_of(log).steps)
    answer = MessageAssistant(
        turn=number, step=step, text="", reasoning="", tool_calls=made, finish=finish, complete=True
    )
    log.append(ROOT, answer, driver.StepClosed(turn=number, step=step, usage=None))
    return [turn_of(log).repeats.get(one.call_id, 0) for one in made]


def answer_all(log: Log, code: str | None) -> None:
    for call_id in log.state.sessions[ROOT].open_calls:
        outcome = "error" if code else "ok"
        log.append(ROOT, ToolFinished(call_id=call_id, outcome=outcome, code=code, text=""))


def test_the_same_call_is_counted_in_a_row_over_messages_and_inside_one() -> None:
    log = driver.opened()
    look, other = ("look", {"at": 1}), ("look", {"at": 2})
    assert call(log, look) == [1]
    assert call(log, look, look) == [2, 3]
    assert call(log, other) == [1], "other arguments, another call"
    assert call(log, look) == [1], "not in a row any more"


@pytest.mark.parametrize("name", ["wait_agent", "list_agents"])
def test_waiting_and_listing_do_not_count_while_a_child_is_open(name: str) -> None:
    log = driver.opened()
    waiting = (name, {})
    driver.spawn(log, 1)
    assert [call(log, waiting) for _ in range(5)] == [[0]] * 5
    driver.settle(log, 1, driver.FAILED)
    assert [call(log, waiting) for _ in range(3)] == [[1], [2], [3]]


@pytest.mark.parametrize("code", ["unknown_tool", "invalid"])
def test_unusable_calls_are_counted_in_a_row_until_one_can_be_used(code: str) -> None:
    log = driver.opened()
    for count in (1, 2, 3):
        call(log, ("look", {"at": count}))
        answer_all(log, code)
        assert turn_of(log).unusable == count
    call(log, ("look", {}))
    answer_all(log, None)
    assert turn_of(log).unusable == 0


def test_B108_a_message_of_several_unusable_calls_counts_once_and_one_usable_call_clears_it() -> None:
    log = driver.opened()
    call(log, *(("look", {"at": n}) for n in range(4)))
    answer_all(log, "invalid")
    assert turn_of(log).unusable == 1
    for codes in (["invalid", None], [None, "invalid"]):
        call(log, ("look", {"codes": codes}), ("list", {}))
        for call_id, code in zip(log.state.sessions[ROOT].open_calls, codes, strict=True):
            log.append(ROOT, ToolFinished(call_id=call_id, outcome="error" if code else "ok", code=code, text=""))
        assert turn_of(log).unusable == 0


def test_a_finish_that_promises_a_call_and_brings_none_counts_and_an_honest_stop_does_not() -> None:
    log = driver.opened()
    call(log)
    call(log)
    assert turn_of(log).unusable == 2
    call(log, finish="stop")
    assert turn_of(log).unusable == 0


def test_an_answer_after_the_turn_counts_for_nobody() -> None:
    log = driver.opened(turn=False)
    log.append(ROOT, ToolFinished(call_id=CallId("c_1"), outcome="error", code="invalid", text=""))
    assert log.state.sessions[ROOT].turn is None
