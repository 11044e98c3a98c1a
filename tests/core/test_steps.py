"""Single requests of a tree with a budget: what is set aside, who waits, what a used-up budget means, and for whom."""

from typing import Any

import pytest

from retinue.core.decide.base import StopRun, StopTurn, Wake
from retinue.core.decide.steps import (
    NO_TOKENS,
    OVER_BUDGET,
    WAIT_FOR_TOKENS,
    AskNotes,
    RecordStep,
    decide_ask_notes,
    decide_record_step,
    exceed,
)
from retinue.core.errors import RetinueError
from retinue.core.events import (
    BudgetExceeded,
    ContextCompacted,
    LetterQueued,
    NotesAsked,
    RunResumed,
    RunSettled,
    RunWaiting,
    StepClosed,
    StepOpened,
    Usage,
)
from retinue.core.ids import RunId, Seq, SessionId
from tests.core import driver
from tests.core.driver import FAILED, Log, refused

ROOT = SessionId("s_root")
KID = SessionId("s_1")
ROOT_RUN = RunId("r_root_turn1")
INPUT = 2
"""What a child's first request is estimated at: its task."""


def limited(limit: int, output: int | None = 400, **more: Any) -> Log:
    """A root in a turn whose tree may use `limit` tokens, each answer at most `output`."""
    changes = {"budget.tree_tokens_max": limit, "budget.output_tokens_max": output, "caps.running.root": None}
    wide = {"caps.running.process": None, "caps.created.turn": None, "caps.created.root_run": None}
    keys = {key.replace("__", "."): value for key, value in more.items()}
    return driver.opened({**changes, **wide, **keys, "caps.max_depth": 3})


def used(tokens: int) -> Usage:
    return Usage(input=tokens, total=tokens, requests=1)


def told_to_stop(decision: driver.Decision) -> dict[str, str]:
    return {effect.run_id: effect.ending.reason for effect in decision.effects if isinstance(effect, StopRun)}


def ledger(log: Log, root_run: str = ROOT_RUN) -> tuple[int, int, bool]:
    found = log.state.trees[ROOT].ledger(RunId(root_run))
    return found.spent, found.reserved, found.exceeded


# --------------------------------------------------------------------------------------------- set aside, report


def test_without_a_limit_a_request_sets_nothing_aside_and_is_counted_all_the_same() -> None:
    log = driver.opened()
    driver.open_step(log, ROOT)
    opened: StepOpened = log.facts(StepOpened)[-1]
    assert (opened.reserved, opened.output_tokens_max) == (None, None)
    driver.say(log, ROOT, "x", usage=used(70))
    assert ledger(log) == (70, 0, False)


def test_a_request_sets_its_input_and_its_output_limit_aside_and_its_report_takes_their_place() -> None:
    log = limited(10_000)
    opened: StepOpened = driver.open_step(log, ROOT, fixed_tokens=100).value
    assert (opened.reserved, opened.output_tokens_max) == (101 + 400, 400)
    assert ledger(log) == (0, 501, False)
    decision = driver.say(log, ROOT, "x", usage=used(130))
    assert ledger(log) == (130, 0, False)
    assert decision.effects == (Wake(session_id=ROOT_RUN),), "somebody may wait for what is left"


def test_the_next_request_is_estimated_by_the_last_report_and_what_came_since() -> None:
    log = limited(10_000)
    driver.step(log, ROOT, "x", usage=used(130))
    opened: StepOpened = driver.open_step(log, ROOT, fixed_tokens=999).value
    assert opened.reserved == 130 + 400, "a report holds what is sent beside the messages already"
    driver.say(log, ROOT, "x", ["c_1"], usage=used(200))
    log.append(ROOT, driver.answered("c_1"))
    assert driver.open_step(log, ROOT).value.reserved == 200 + 1 + 400


def test_a_request_without_a_report_stays_charged_and_counts_as_unreported() -> None:
    log = limited(10_000)
    driver.open_step(log, ROOT)
    driver.say(log, ROOT, "x", usage=None)
    assert ledger(log) == (401, 0, False)
    assert log.state.trees[ROOT].ledger(ROOT_RUN).unreported == 1


@pytest.mark.parametrize(("reported", "spent"), [(used(33), 33), (None, 402)])
def test_a_request_that_was_cut_off_is_settled_with_its_turn(reported: Usage | None, spent: int) -> None:
    log = limited(10_000)
    driver.spawn(log, 1)
    driver.open_step(log, KID)
    ending = driver.Ending(status="failed", reason="provider_error", detail="x", usage=reported)
    decision = driver.settle(log, 1, ending)
    assert ledger(log) == (spent, 0, False)
    assert Wake(session_id=ROOT_RUN) in decision.effects


def test_notes_that_never_came_are_settled_with_the_turn() -> None:
    log = limited(10_000)
    driver.spawn(log, 1)
    ask_notes(log, KID, 50)
    assert ledger(log) == (0, 450, False)
    driver.settle(log, 1, FAILED)
    assert ledger(log) == (450, 0, False)


def test_the_requests_of_the_root_are_left_out_where_the_policy_says_so() -> None:
    log = limited(500, budget__include_root=False)
    driver.step(log, ROOT, "x", usage=used(9_000))
    assert log.facts(StepOpened)[-1].reserved is None
    assert ledger(log) == (0, 0, False)
    driver.spawn(log, 1)
    assert driver.open_step(log, KID).value.reserved == INPUT + 400


def test_each_root_run_has_a_budget_of_its_own() -> None:
    log = limited(1_000)
    driver.spawn(log, 1)
    driver.step(log, KID, "x", usage=used(900))
    driver.close(log, ending=FAILED)
    driver.open_turn(log, ROOT)
    assert driver.open_step(log, ROOT).value.output_tokens_max == 400
    assert ledger(log) == (900, 0, False)
    assert ledger(log, "r_root_turn2") == (0, log.facts(StepOpened)[-1].reserved, False)


# ---------------------------------------------------------------------------------------------------- waiting


def test_what_does_not_fit_waits_while_others_are_open_keeps_its_slot_and_goes_on_when_they_report() -> None:
    log = limited(1_000, output=600)
    driver.spawn(log, 1)
    driver.spawn(log, 2)
    driver.open_step(log, "s_1")
    decision = driver.open_step(log, "s_2")
    assert decision.value is WAIT_FOR_TOKENS
    row = log.run_rows["r_2"]
    assert row.waiting_for is not None
    assert (row.status, row.waiting_for.kind, row.is_yielded) == ("running", "budget", False)
    assert RunId("r_2") in log.state.book.working
    assert driver.open_step(log, "s_2").drafts == (), "it says so once"
    log.clock_s += 5
    driver.say(log, "s_1", "x", usage=used(100))
    opened = driver.open_step(log, "s_2")
    assert opened.value.output_tokens_max == 600
    assert [type(draft.fact) for draft in opened.drafts] == [RunResumed, StepOpened]
    assert log.run_rows["r_2"].waiting_for is None
    assert len(log.facts(RunWaiting)) == len(log.facts(RunResumed)) == 1
    driver.say(log, "s_2", "y")
    assert driver.settle(log, 2).value.elapsed_s == 5, "it ages while it waits for tokens"


def test_a_root_that_waits_for_tokens_is_no_run_and_leaves_no_fact() -> None:
    log = limited(1_000, output=600)
    driver.spawn(log, 1)
    driver.open_step(log, KID)
    before = len(log.events)
    assert driver.open_step(log, ROOT).value is WAIT_FOR_TOKENS
    assert len(log.events) == before


def test_the_output_limit_is_lowered_when_nobody_else_is_open() -> None:
    log = limited(300, output=600)
    driver.spawn(log, 1)
    assert driver.open_step(log, KID).value.output_tokens_max == 300 - INPUT


# ------------------------------------------------------------------------------------------------------ notes


def ask_notes(log: Log, session_id: str, tokens: int) -> driver.Decision:
    command = AskNotes(session_id=SessionId(session_id), input_tokens=tokens, stamp=log.stamp())
    return log.do(decide_ask_notes, command)


def compacted(usage: Usage | None, run_id: RunId | None = None) -> ContextCompacted:
    return ContextCompacted(up_to_seq=Seq(1), text="notes", kept=0, usage=usage, run_id=run_id)


def test_notes_are_asked_for_out_of_the_budget_too() -> None:
    log = limited(1_000)
    fact: NotesAsked = ask_notes(log, ROOT, 100).value
    assert (fact.reserved, fact.output_tokens_max) == (500, 400)
    assert ledger(log) == (0, 500, False)
    record = RecordStep(session_id=ROOT, facts=(compacted(used(120)),), stamp=log.stamp())
    log.do(decide_record_step, record)
    assert ledger(log) == (120, 0, False)


def test_without_a_budget_notes_leave_no_fact_and_without_tokens_there_are_none() -> None:
    log = driver.opened()
    assert (ask_notes(log, ROOT, 100).value, ask_notes(log, ROOT, 100).drafts) == (None, ())
    tight = limited(1_000, output=900)
    driver.spawn(tight, 1)
    driver.open_step(tight, KID)
    assert ask_notes(tight, ROOT, 100).value is WAIT_FOR_TOKENS
    driver.say(tight, KID, "x", usage=used(800))
    assert ask_notes(tight, ROOT, 100).value is NO_TOKENS


# ------------------------------------------------------------------------------------------------- over budget


def test_S138_a_report_larger_than_its_reservation_cancels_what_runs_and_says_exceeded_in_the_same_commit() -> None:
    log = limited(1_000)
    for number in (1, 2):
        driver.spawn(log, number)
        driver.open_step(log, f"s_{number}")
    before = len(log.events)
    decision = driver.say(log, "s_1", "x", usage=used(1_100))
    assert told_to_stop(decision) == {"r_1": "budget", "r_2": "budget"}
    assert StopTurn(session_id=ROOT, ending=OVER_BUDGET) in decision.effects
    (fact,) = log.facts(BudgetExceeded)
    assert (fact.root_run_id, fact.limit, fact.spent, fact.reserved) == (ROOT_RUN, 1_000, 1_100, INPUT + 400)
    assert log.events[before + 2].fact is fact
    assert log.events[before + 2].session_id == ROOT
    assert ledger(log) == (1_100, INPUT + 400, True)
    for number in (1, 2):
        driver.settle(log, number, OVER_BUDGET)
    assert {(run.status, run.reason) for run in log.run_rows.values()} == {("cancelled", "budget")}
    assert not any(letter.waking for letter in log.facts(LetterQueued))


def test_S140_after_that_a_spawn_of_that_root_run_is_refused_and_the_event_came_once() -> None:
    log = limited(1_000)
    for number in (1, 2, 3):
        driver.spawn(log, number)
    for number in (1, 2):
        driver.open_step(log, f"s_{number}")
    driver.say(log, "s_1", "x", usage=used(1_100))
    driver.say(log, "s_2", "x", usage=used(1_100))
    assert driver.open_step(log, "s_3").value is NO_TOKENS
    assert driver.open_step(log, ROOT).value is NO_TOKENS
    assert ask_notes(log, ROOT, 1).value is NO_TOKENS
    assert len(log.facts(BudgetExceeded)) == 1
    error = refused(lambda: driver.spawn(log, 4))
    assert (error.code, "1000 tokens" in error.detail) == ("budget_exceeded", True)
    assert refused(lambda: driver.send(log, 5, "s_1")).code == "budget_exceeded"


def test_when_nothing_fits_any_more_the_budget_is_exceeded_before_the_limit_is_reached() -> None:
    log = limited(300)
    driver.step(log, ROOT, "x", usage=used(250))
    decision = driver.open_step(log, ROOT)
    assert decision.value is NO_TOKENS
    assert StopTurn(session_id=ROOT, ending=OVER_BUDGET) in decision.effects
    (fact,) = log.facts(BudgetExceeded)
    assert (fact.spent, fact.reserved, fact.limit) == (250, 0, 300)


def test_over_budget_queued_and_parked_runs_settle_at_once_and_none_starts() -> None:
    log = limited(1_000, caps__running__root=2)
    for number in (1, 2, 3):
        driver.spawn(log, number)
    driver.send(log, 4, "s_1")
    driver.settle(log, 1, driver.INTERRUPTED)
    assert log.run_rows["r_4"].is_parked
    driver.spawn(log, 5)
    driver.open_step(log, "s_2")
    driver.say(log, "s_2", "x", usage=used(2_000))
    settled = {fact.run_id: fact.reason for fact in log.facts(RunSettled)}
    assert settled == {"r_1": "interrupted", "r_4": "budget", "r_5": "budget"}
    assert log.state.book.total == 2


def test_another_root_run_and_another_root_are_not_touched() -> None:
    log = limited(1_000, result__turn_end="detach", budget__include_root=True)
    driver.open_root(log, "s_other", {"budget.tree_tokens_max": 1_000})
    driver.open_turn(log, "s_other")
    driver.spawn(log, "elsewhere", "s_other")
    driver.spawn(log, 1)
    driver.close(log, ending=FAILED)
    driver.open_turn(log, ROOT)
    driver.spawn(log, 2)
    driver.open_step(log, "s_1")
    decision = driver.say(log, "s_1", "x", usage=used(5_000))
    assert told_to_stop(decision) == {"r_1": "budget"}
    assert not [effect for effect in decision.effects if isinstance(effect, StopTurn)], "the root is in another run"
    assert driver.spawn(log, 3).value.status == "running"
    assert driver.spawn(log, 4, "s_other").value.status == "running"
    assert refused(lambda: driver.spawn(log, 5, "s_1")).code == "budget_exceeded"
    assert driver.open_step(log, "s_2").value.reserved == INPUT + 400


def test_where_the_root_does_not_count_its_turn_goes_on_without_children() -> None:
    log = limited(500, budget__include_root=False)
    driver.spawn(log, 1)
    driver.open_step(log, KID)
    decision = driver.say(log, KID, "x", usage=used(600))
    assert told_to_stop(decision) == {"r_1": "budget"}
    assert not [effect for effect in decision.effects if isinstance(effect, StopTurn)]
    assert isinstance(driver.open_step(log, ROOT).value, StepOpened)
    assert refused(lambda: driver.spawn(log, 2)).code == "budget_exceeded"


@pytest.mark.parametrize(("on_exceed", "spawns"), [("refuse_new", False), ("warn", True)])
def test_without_cancel_what_runs_goes_on_past_the_limit_and_is_still_counted(on_exceed: str, spawns: bool) -> None:
    log = limited(500, budget__on_exceed=on_exceed)
    driver.spawn(log, 1)
    driver.open_step(log, KID)
    decision = driver.say(log, KID, "x", usage=used(600))
    assert [effect for effect in decision.effects if isinstance(effect, StopRun | StopTurn)] == []
    assert len(log.facts(BudgetExceeded)) == 1
    opened: StepOpened = driver.open_step(log, KID).value
    assert (opened.reserved, opened.output_tokens_max) == (600 + 400, 400)
    driver.say(log, KID, "y", usage=used(700))
    assert ledger(log) == (1_300, 0, True)
    assert len(log.facts(BudgetExceeded)) == 1
    if spawns:
        assert driver.spawn(log, 2).value.status == "running"
    else:
        assert refused(lambda: driver.spawn(log, 2)).code == "budget_exceeded"


@pytest.mark.parametrize("on_exceed", ["refuse_new", "warn"])
def test_without_cancel_a_request_that_no_longer_fits_says_so_and_is_sent(on_exceed: str) -> None:
    log = limited(300, output=None, budget__on_exceed=on_exceed)
    driver.step(log, ROOT, "x", usage=used(290))
    decision = driver.open_step(log, ROOT)
    assert [type(draft.fact) for draft in decision.drafts] == [BudgetExceeded, StepOpened]
    assert (decision.value.reserved, decision.value.output_tokens_max) == (290, None)
    driver.say(log, ROOT, "y", usage=used(310))
    assert ledger(log) == (600, 0, True)
    noted = ask_notes(log, ROOT, 5)
    assert noted.value.reserved == 5


def test_who_waited_for_tokens_goes_on_past_the_limit_where_nothing_is_cancelled() -> None:
    log = limited(1_000, output=600, budget__on_exceed="warn")
    driver.spawn(log, 1)
    driver.spawn(log, 2)
    driver.open_step(log, "s_1")
    assert driver.open_step(log, "s_2").value is WAIT_FOR_TOKENS
    driver.say(log, "s_1", "x", usage=used(2_000))
    driver.open_step(log, "s_2")
    assert log.run_rows["r_2"].waiting_for is None
    waited = limited(700, output=600, budget__on_exceed="warn")
    driver.spawn(waited, 1)
    driver.spawn(waited, 2)
    driver.open_step(waited, "s_1")
    assert driver.open_step(waited, "s_2").value is WAIT_FOR_TOKENS
    driver.say(waited, "s_1", "x", usage=used(690))
    decision = driver.open_step(waited, "s_2")
    assert [type(draft.fact) for draft in decision.drafts] == [BudgetExceeded, RunResumed, StepOpened]


def test_notes_that_use_the_budget_up_say_so_with_the_sums_after_them() -> None:
    log = limited(1_000)
    driver.spawn(log, 1)
    ask_notes(log, KID, 100)
    record = RecordStep(session_id=KID, facts=(compacted(used(1_200), RunId("r_1")),), stamp=log.stamp())
    log.do(decide_record_step, record)
    (fact,) = log.facts(BudgetExceeded)
    assert (fact.spent, fact.reserved) == (1_200, 0)
    assert log.run_rows["r_1"].usage.total == 1_200


def test_a_request_without_a_report_may_use_the_budget_up_by_what_it_had_set_aside() -> None:
    log = limited(402)
    driver.spawn(log, 1)
    driver.open_step(log, KID)
    driver.say(log, KID, "x", usage=None)
    (fact,) = log.facts(BudgetExceeded)
    assert (fact.spent, fact.reserved) == (402, 0)


def test_a_budget_is_declared_exceeded_once_however_often_it_is_found_to_be() -> None:
    log = limited(100)
    for expected in (1, 0):
        decision = log.do(lambda state, session: exceed(state, session, log.stamp()), log.state.sessions[ROOT])
        assert sum(isinstance(draft.fact, BudgetExceeded) for draft in decision.drafts) == expected
        assert StopTurn(session_id=ROOT, ending=OVER_BUDGET) in decision.effects


def test_a_session_without_a_turn_exceeds_nothing() -> None:
    log = limited(100)
    driver.close(log, ending=FAILED)
    driver.recall(log, ROOT)
    assert exceed(log.state, log.state.sessions[ROOT], log.stamp()).drafts == ()


def test_a_log_that_is_read_again_counts_no_token_twice() -> None:
    log = limited(1_000, result__turn_end="detach")
    driver.spawn(log, 1)
    driver.step(log, KID, "x", usage=used(100))
    before = ledger(log)
    driver.settle(log, 1, FAILED)
    assert KID not in log.state.sessions
    driver.recall(log, KID)
    assert ledger(log) == before == (100, 0, False)


@pytest.mark.parametrize(("include_root", "spent"), [(True, 300), (False, 200)])
def test_a_tree_that_comes_back_into_memory_knows_what_its_root_runs_have_spent(include_root: bool, spent: int) -> None:
    log = limited(1_000, budget__include_root=include_root)
    driver.spawn(log, 1)
    driver.step(log, KID, "x", usage=used(200))
    driver.settle(log, 1)
    driver.step(log, ROOT, "y", usage=used(100))
    driver.close(log, ending=FAILED)
    assert log.state.trees == {}
    driver.recall(log, KID)
    assert ledger(log) == (spent, 0, False)
    driver.open_turn(log, ROOT)
    driver.step(log, ROOT, "z", usage=used(50))
    driver.close(log)
    assert log.state.trees == {}
    driver.recall(log, ROOT)
    assert ledger(log) == (spent, 0, False)
    assert ledger(log, "r_root_turn2")[0] == (50 if include_root else 0)


def test_a_root_run_that_was_over_its_budget_stays_so_when_its_tree_comes_back() -> None:
    log = limited(100)
    driver.spawn(log, 1)
    driver.step(log, KID, "x", usage=used(200))
    driver.settle(log, 1, OVER_BUDGET)
    driver.close(log, ending=OVER_BUDGET)
    assert log.state.trees == {}
    driver.recall(log, ROOT)
    assert log.state.refuses_new(ROOT, ROOT_RUN)


def test_a_budget_that_is_raised_wakes_who_waits_for_it() -> None:
    log = limited(1_000, output=900)
    driver.spawn(log, 1)
    driver.spawn(log, 2)
    driver.open_step(log, "s_1")
    assert driver.open_step(log, "s_2").value is WAIT_FOR_TOKENS
    decision = driver.set_policy(log, {"budget.tree_tokens_max": 9_000})
    assert Wake(session_id=ROOT_RUN) in decision.effects
    assert driver.open_step(log, "s_2").value.output_tokens_max == 900


def test_no_request_is_sent_or_recorded_for_a_session_without_a_turn() -> None:
    log = limited(100)
    driver.close(log, ending=FAILED)
    driver.recall(log, ROOT)
    closed = StepClosed(turn=driver.TurnNo(1), step=driver.StepNo(1), usage=None)
    record = RecordStep(session_id=ROOT, facts=(closed,), stamp=log.stamp())
    for call in (
        lambda: driver.open_step(log, ROOT),
        lambda: ask_notes(log, ROOT, 1),
        lambda: log.do(decide_record_step, record),
    ):
        with pytest.raises(RetinueError):
            call()


def test_of_twenty_children_at_once_on_a_limit_that_fits_seven_seven_send_and_the_rest_is_cancelled() -> None:
    log = limited(7 * 1_000, output=997, budget__include_root=False)
    for number in range(10, 30):
        driver.spawn(log, number)
    answers = [driver.open_step(log, f"s_{number}").value for number in range(10, 30)]
    assert [isinstance(answer, StepOpened) for answer in answers] == [True] * 7 + [False] * 13
    assert set(answers[7:]) == {WAIT_FOR_TOKENS}
    for number in range(10, 17):
        driver.say(log, f"s_{number}", "x", usage=used(1_000))
    assert ledger(log) == (7_000, 0, True)
    assert len(log.facts(BudgetExceeded)) == 1
    for number in range(10, 30):
        driver.settle(log, number, OVER_BUDGET)
    assert {run.reason for run in log.run_rows.values()} == {"budget"}
    assert refused(lambda: driver.spawn(log, "late")).code == "budget_exceeded"
