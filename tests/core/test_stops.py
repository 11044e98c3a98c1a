"""What ends from outside: one run with its queue, a tree below it, what goes with a turn; and what it leaves alone."""

from typing import Any

import pytest

from retinue.core.decide.base import AGAIN, Ending, StartRun, StopRun
from retinue.core.decide.stops import PARENT_CANCELLED, CancelRuns, bound, decide_cancel_runs, open_below
from retinue.core.events import LetterQueued, RunSettled, RunStarted
from retinue.core.ids import RunId, SessionId
from tests.core import driver
from tests.core.driver import CANCELLED, DONE, FAILED, INTERRUPTED, Log

ROOT = SessionId("s_root")
KID = SessionId("s_1")
DEEP: dict[str, Any] = {"caps.max_depth": None, "caps.running.process": None, "caps.running.root": None}


def endings(log: Log) -> dict[str, tuple[str, str | None]]:
    return {fact.run_id: (fact.status, fact.reason) for fact in log.facts(RunSettled)}


def told_to_stop(decision: driver.Decision) -> dict[str, str]:
    return {effect.run_id: effect.ending.reason for effect in decision.effects if isinstance(effect, StopRun)}


def test_cancelling_tells_a_running_run_and_settles_a_queued_one_without_a_session() -> None:
    log = driver.opened({"caps.running.root": 1})
    driver.spawn(log, 1)
    driver.spawn(log, 2)
    log.clock_s += 7
    decision = driver.cancel_children(log)
    assert told_to_stop(decision) == {"r_1": "cancelled"}
    (fact,) = log.facts(RunSettled)
    assert (fact.run_id, fact.status, fact.queued_s, fact.elapsed_s) == ("r_2", "cancelled", 7, None)
    assert (fact.started_at, fact.ended_at is not None) == (None, True)
    assert SessionId("s_2") not in log.state.sessions


def test_an_ended_run_and_an_unknown_one_stay_as_they_are() -> None:
    log = driver.opened()
    driver.spawn(log, 1)
    driver.settle(log, 1, FAILED)
    for decide in (driver.cancel, driver.end_run):
        assert decide(log, 1).value.status == "failed"
        assert (decide(log, 1).drafts, decide(log, 1).effects) == ((), ())
        assert decide(log, "nobody").value is None
    many = CancelRuns(run_ids=(RunId("r_1"), RunId("r_nobody")), ending=CANCELLED, stamp=log.stamp())
    assert log.do(decide_cancel_runs, many).drafts == ()


def test_a_run_that_is_named_twice_settles_once() -> None:
    log = driver.opened({"caps.running.root": 1})
    driver.spawn(log, 1)
    driver.spawn(log, 2)
    twice = CancelRuns(run_ids=(RunId("r_2"), RunId("r_1")) * 2, ending=CANCELLED, stamp=log.stamp())
    assert told_to_stop(log.do(decide_cancel_runs, twice)) == {"r_1": "cancelled"}
    assert [fact.run_id for fact in log.facts(RunSettled)] == ["r_2"]


def test_a_cancel_answers_with_the_run_as_it_is_then() -> None:
    log = driver.opened({"caps.running.root": 1})
    driver.spawn(log, 1)
    driver.spawn(log, 2)
    assert driver.cancel(log, 1).value.status == "running", "its body still has to stop"
    driver.send(log, 3, "s_1")
    assert driver.cancel(log, 1).value.run_id == "r_1", "not with one that went with it"
    assert driver.cancel(log, 2).value.status == "cancelled"


def test_cancelling_the_children_of_a_session_that_is_over_does_nothing() -> None:
    assert driver.cancel_children(Log()).drafts == ()


def test_cancelling_children_gives_a_freed_place_to_nobody_who_is_cancelled_with_them() -> None:
    log = driver.opened({"caps.running.root": 1})
    for number in (1, 2, 3):
        driver.spawn(log, number)
    decision = driver.cancel_children(log)
    assert [effect for effect in decision.effects if isinstance(effect, StartRun)] == []
    assert {run.status for run in log.run_rows.values()} == {"running", "cancelled"}
    assert log.state.book.total == 1


def test_a_cancelled_run_takes_the_messages_behind_it_and_those_of_its_siblings_go_on() -> None:
    log = driver.opened({"caps.running.root": 2})
    driver.spawn(log, 1)
    driver.spawn(log, 2)
    for number, target in ((3, "s_1"), (4, "s_2"), (5, "s_1")):
        driver.send(log, number, target)
    decision = driver.cancel(log, 1)
    assert told_to_stop(decision) == {"r_1": "cancelled"}
    assert endings(log) == {"r_3": ("cancelled", "cancelled"), "r_5": ("cancelled", "cancelled")}
    decision = driver.settle(log, 1, CANCELLED)
    assert [effect for effect in decision.effects if isinstance(effect, StartRun)] == []
    assert [row.status for row in log.run_rows.values()] == ["cancelled", "running", "cancelled", "queued", "cancelled"]


def test_a_cancelled_message_takes_those_behind_it_and_leaves_the_run_at_work_and_its_children_alone() -> None:
    log = driver.opened(DEEP)
    driver.spawn(log, 1)
    driver.spawn(log, 2, "s_1")
    for number in (3, 4, 5):
        driver.send(log, number, "s_1")
    decision = driver.cancel(log, 4)
    assert told_to_stop(decision) == {}
    assert set(endings(log)) == {"r_4", "r_5"}
    assert [log.run_rows[f"r_{n}"].status for n in (1, 2, 3)] == ["running", "running", "queued"]


def test_a_cancel_reaches_what_is_open_below_children_that_have_ended() -> None:
    log = driver.opened({**DEEP, "life.cancel_with_parent": "never"})
    driver.spawn(log, 1)
    driver.spawn(log, 2, "s_1")
    driver.spawn(log, 3, "s_2")
    driver.settle(log, 2, FAILED)
    decision = driver.cancel(log, 1)
    assert told_to_stop(decision) == {"r_1": "cancelled", "r_3": "parent_cancelled"}
    driver.settle(log, 1, FAILED)
    driver.send(log, 4, "s_1")
    assert told_to_stop(driver.cancel(log, 4)) == {"r_4": "cancelled", "r_3": "parent_cancelled"}


def test_everything_open_below_is_found_parents_first_also_in_a_deep_chain() -> None:
    log = driver.opened({**DEEP, "caps.created.root_run": None})
    parent = "s_root"
    for number in range(300):
        driver.spawn(log, number, parent)
        parent = f"s_{number}"
    for number in range(1, 299, 2):
        driver.settle(log, number, FAILED)
    expected = [f"r_{number}" for number in (*range(0, 299, 2), 299)]
    assert open_below(log.state, ROOT) == expected
    assert open_below(log.state, SessionId("s_299")) == []
    assert open_below(log.state, SessionId("s_nobody")) == []
    assert len(told_to_stop(driver.cancel(log, 0))) == len(expected)


def test_queued_descendants_settle_in_the_same_commit_and_none_starts_in_between() -> None:
    log = driver.opened({**DEEP, "caps.running.parent": 1})
    driver.spawn(log, 1)
    for number in (2, 3, 4):
        driver.spawn(log, number, "s_1")
    decision = driver.cancel(log, 1)
    assert told_to_stop(decision) == {"r_1": "cancelled", "r_2": "parent_cancelled"}
    assert endings(log) == {"r_3": ("cancelled", "parent_cancelled"), "r_4": ("cancelled", "parent_cancelled")}
    assert len(log.facts(RunStarted)) == 2


def test_S60_ending_one_run_only_leaves_its_children_and_its_siblings_at_work() -> None:
    log = driver.opened(DEEP)
    driver.spawn(log, 1)
    driver.spawn(log, 2, "s_1")
    driver.spawn(log, 3)
    assert told_to_stop(driver.end_run(log, 1)) == {"r_1": "interrupted"}
    assert log.facts(RunSettled) == []


def flagged(log: Log, rule: str) -> list[str]:
    """Which of four children go with a turn that is stopped: plain, flagged, unflagged, awaited."""
    driver.set_policy(log, {"life.cancel_with_parent": rule})
    decision = driver.cancel_children(log)
    return [run_id.removeprefix("r_") for run_id in told_to_stop(decision)]


@pytest.mark.parametrize(
    ("rule", "go"),
    [
        ("always", ["plain", "flagged", "unflagged", "awaited"]),
        ("opt_in", ["flagged", "awaited"]),
        ("never", ["awaited"]),
    ],
)
def test_S100_what_goes_with_a_turn_that_is_stopped_is_what_the_policy_says_and_what_it_awaits(
    rule: str, go: list[str]
) -> None:
    log = driver.opened()
    driver.spawn(log, "plain")
    driver.spawn(log, "flagged", cancel_with_parent=True)
    driver.spawn(log, "unflagged", cancel_with_parent=False)
    driver.spawn(log, "awaited", delivery="await")
    assert flagged(log, rule) == go
    whole = driver.cancel_children(log, ending=PARENT_CANCELLED)
    assert len(told_to_stop(whole)) == 4, "an ending of the whole takes everything along"
    assert len(bound(log.state, log.state.sessions[ROOT], CANCELLED)) == len(go)


def test_S100_returning_from_the_call_that_spawned_it_cancels_nobody() -> None:
    log = driver.opened()
    driver.step(log, ROOT, "", ["c_1"])
    driver.spawn(log, 1)
    log.append(ROOT, driver.answered("c_1"))
    driver.step(log, ROOT, "done")
    assert log.effects == [StartRun(run_id=RunId("r_1"))]


@pytest.mark.parametrize(
    ("turn_end", "delivery", "child", "owes"),
    [
        ("hold_open", "push", "open", True),
        ("hold_open", "push", "parked", False),
        ("hold_open", "push", "collected", False),
        ("hold_open", "push", "mailed", True),
        ("hold_open", "push", "quietly", True),
        ("hold_open", "pull", "open", True),
        ("hold_open", "pull", "uncollected", True),
        ("hold_open", "pull", "handle", False),
        ("hold_open", "pull", "collected", False),
        ("detach", "push", "open", False),
        ("detach", "push", "mailed", True),
        ("detach", "push", "quietly", False),
        ("detach", "pull", "open", False),
        ("detach", "pull", "uncollected", False),
        ("cancel", "push", "open", False),
        ("cancel", "push", "mailed", True),
    ],
)
def test_S85_what_a_turn_that_would_complete_still_owes(turn_end: str, delivery: str, child: str, owes: bool) -> None:
    log = driver.opened({"result.turn_end": turn_end, "result.delivery": delivery})
    ways = {"handle": "handle", "collected": "await"}
    driver.spawn(log, 1, delivery=ways.get(child, "letter"))
    driver.step(log, ROOT, "the answer")
    if child == "parked":
        driver.send(log, 2, KID)
        driver.settle(log, 1, INTERRUPTED)
        driver.step(log, ROOT, "the answer")
    elif child == "quietly":
        driver.settle(log, 1, PARENT_CANCELLED)
    elif child != "open":
        driver.finish(log, 1)
    if child == "collected":
        log.append(ROOT, driver.answered("c_1", RunId("r_1")))
    answer = driver.close(log).value
    assert (answer is AGAIN) is owes
    if owes:
        final = Ending(status="completed", reason="done", detail="", final=True)
        assert driver.close(log, ending=final).value.status == "completed"


def test_a_child_holds_its_own_turn_open_for_its_own_children_too() -> None:
    log = driver.opened(DEEP)
    driver.spawn(log, 1)
    driver.spawn(log, 2, "s_1")
    driver.step(log, KID, "so far")
    assert driver.settle(log, 1).value is AGAIN
    driver.finish(log, 2)
    assert driver.settle(log, 1).value is AGAIN, "the letter is unread"
    driver.step(log, KID, "all")
    assert driver.settle(log, 1, DONE).value.output == "all"
    assert [letter.run_id for letter in log.facts(LetterQueued)] == ["r_2", "r_1"]


def test_S37_a_time_out_ends_a_child_and_its_slot_is_given_on_in_the_same_commit() -> None:
    log = driver.opened({"caps.running.root": 1})
    driver.spawn(log, 1)
    driver.spawn(log, 2)
    decision = driver.settle(log, 1, Ending(status="failed", reason="timeout", detail="Too long."))
    assert StartRun(run_id=RunId("r_2")) in decision.effects
    assert endings(log) == {"r_1": ("failed", "timeout")}
