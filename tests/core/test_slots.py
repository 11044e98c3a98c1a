"""Slots are for work: who only waits for its own descendants gives its slot up, does not age, and returns in front."""

from typing import Any

from retinue.core.decide.base import Decision, ResumeRun, StartRun
from retinue.core.decide.runs import WantSlot, YieldSlot, decide_want_slot, decide_yield
from retinue.core.ids import RunId
from retinue.core.run import working_s
from tests.core import driver
from tests.core.driver import DONE, FAILED, Log

ONE_SLOT: dict[str, Any] = {"caps.running.root": 1, "caps.max_depth": None}


def give_up(log: Log, number: object) -> Decision:
    return log.do(decide_yield, YieldSlot(run_id=RunId(f"r_{number}"), stamp=log.stamp()))


def want(log: Log, number: object) -> Decision:
    return log.do(decide_want_slot, WantSlot(run_id=RunId(f"r_{number}"), stamp=log.stamp()))


def started(decision: Decision) -> list[str]:
    return [effect.run_id for effect in decision.effects if isinstance(effect, StartRun | ResumeRun)]


def waits_for(log: Log, number: object) -> str | None:
    waiting = log.state.runs[RunId(f"r_{number}")].waiting_for
    return None if waiting is None else waiting.kind


def test_with_one_slot_a_chain_of_any_depth_gets_through() -> None:
    log = driver.opened(ONE_SLOT)
    driver.spawn(log, 1)
    for number in range(2, 12):
        assert driver.spawn(log, number, f"s_{number - 1}").value.status == "queued"
        assert started(give_up(log, number - 1)) == [f"r_{number}"]
    for number in range(11, 1, -1):
        driver.finish(log, number)
        assert started(want(log, number - 1)) == [f"r_{number - 1}"]
        assert log.state.book.total == 1


def test_who_comes_back_stands_in_front_of_all_that_wait_and_is_never_refused() -> None:
    log = driver.opened(ONE_SLOT)
    driver.spawn(log, 1)
    driver.spawn(log, 2, "s_1")
    give_up(log, 1)
    driver.spawn(log, 3)
    driver.set_policy(log, {"caps.on_full": "reject"})
    assert started(want(log, 1)) == []
    assert (log.run_rows["r_1"].status, waits_for(log, 1)) == ("running", "slot")
    assert started(driver.finish(log, 2)) == ["r_1"]
    assert (waits_for(log, 1), log.run_rows["r_3"].status) == (None, "queued")


def test_a_wait_for_descendants_is_no_working_time() -> None:
    log = driver.opened(ONE_SLOT)
    driver.spawn(log, 1)
    log.clock_s += 3
    driver.spawn(log, 2, "s_1")
    give_up(log, 1)
    assert (waits_for(log, 1), waits_for(log, 2)) == ("children", None)
    log.clock_s += 50
    driver.finish(log, 2)
    driver.spawn(log, 3)
    want(log, 1)
    log.clock_s += 50
    assert working_s(log.state.runs[RunId("r_1")], log.clock_s) == 3
    driver.settle(log, 3, FAILED)
    log.clock_s += 4
    assert working_s(log.state.runs[RunId("r_1")], log.clock_s) == 7
    driver.step(log, "s_1", "all")
    assert driver.settle(log, 1, DONE).value.elapsed_s == 7


def test_only_a_run_at_work_gives_a_slot_up_and_only_one_without_wants_it_back() -> None:
    log = driver.opened(ONE_SLOT)
    driver.spawn(log, 1)
    driver.spawn(log, 2)
    assert (want(log, 1).drafts, give_up(log, 2).drafts, want(log, 2).drafts) == ((), (), ())
    give_up(log, 1)
    assert give_up(log, 1).drafts == ()
    want(log, 1)
    assert want(log, 1).drafts == ()
    assert give_up(log, "nobody").drafts == want(log, "nobody").drafts == ()


def test_a_run_may_settle_while_it_has_no_slot_and_takes_nobodys() -> None:
    log = driver.opened(ONE_SLOT)
    driver.spawn(log, 1)
    driver.spawn(log, 2)
    give_up(log, 1)
    driver.spawn(log, 3)
    assert started(driver.settle(log, 1, FAILED)) == []
    assert set(log.state.book.working) == {"r_2"}
    assert started(driver.settle(log, 2, FAILED)) == ["r_3"]


def test_an_ending_of_a_run_that_is_over_or_has_not_begun_changes_nothing() -> None:
    log = driver.opened(ONE_SLOT)
    driver.spawn(log, 1)
    driver.spawn(log, 2)
    assert driver.settle(log, 2).drafts == ()
    driver.settle(log, 1, FAILED)
    assert driver.settle(log, 1).value.status == "failed", "the first ending stays"
    assert driver.settle(log, "nobody").value is None
