"""What children report before they end, results that are handed over, and the turns that letters start."""

from typing import Any

import msgspec
import pytest

from retinue.core.decide.base import StartTurn, Wake
from retinue.core.events import (
    LetterAbsorbed,
    LetterQueued,
    RunQueued,
    RunStarted,
    ToolFinished,
    TurnOpened,
    Warned,
)
from retinue.core.ids import CallId, RunId, SessionId
from retinue.core.run import Run
from tests.core import driver
from tests.core.driver import DONE, FAILED, INTERRUPTED, Log, refused, refused_unchanged, with_child

ROOT = SessionId("s_root")
KID = SessionId("s_1")


# ------------------------------------------------------------------------------------------------------ reports


def test_S80_a_report_is_read_before_the_settlement_and_reports_keep_their_order() -> None:
    log = with_child()
    first = driver.report(log, "a", KID, "first")
    letter: LetterQueued = first.value
    assert (letter.kind, letter.run_id, letter.root_run_id, letter.waking) == ("report", "r_1", "r_root_turn1", True)
    assert first.effects == (Wake(session_id=ROOT),)
    driver.report(log, "b", KID, "second")
    driver.finish(log, 1, "third")
    driver.open_step(log, ROOT)
    texts = [message.text for message in log.state.sessions[ROOT].request()]
    assert [text.rpartition("\n")[2] for text in texts] == ["go", "first", "second", "third"]
    assert log.run_rows["r_1"].result_state == "absorbed"
    assert [fact.run_id for fact in log.facts(LetterAbsorbed)] == [None, None, "r_1"], "a report carries no result home"


def test_a_quiet_report_wakes_no_hold_and_starts_no_turn() -> None:
    log = with_child()
    driver.report(log, "a", KID, waking=False)
    root = log.state.sessions[ROOT]
    driver.close(log, ending=FAILED)
    driver.report(log, "b", KID, waking=False)
    assert (list(root.mail), root.rousing, log.state.rouses(root)) == (["l_a", "l_b"], {}, False)
    driver.report(log, "c", KID)
    assert log.state.rouses(root)


def test_S81_a_report_reaches_only_the_direct_parent() -> None:
    log = with_child({"caps.max_depth": 2})
    driver.spawn(log, 2, "s_1")
    letter: LetterQueued = driver.report(log, "a", "s_2").value
    assert (letter.receiver_id, letter.sender_id) == (KID, "s_2")
    assert log.state.sessions[ROOT].mail == {}


def test_S82_a_root_an_ended_child_and_children_where_reports_are_off_are_refused() -> None:
    log = with_child()
    assert refused_unchanged(log, lambda: driver.report(log, "a", ROOT))[0] == "invalid"
    driver.set_policy(log, {"life.report": False})
    assert refused_unchanged(log, lambda: driver.report(log, "a", KID))[0] == "denied"
    driver.set_policy(log, {"life.report": True})
    driver.send(log, 2, KID)
    driver.settle(log, 1, INTERRUPTED)
    assert refused_unchanged(log, lambda: driver.report(log, "a", KID))[0] == "already_ended"
    assert refused_unchanged(log, lambda: driver.report(log, "a", "s_nobody"))[0] == "not_found"


def test_a_report_that_is_cut_names_its_whole_text() -> None:
    log = with_child({"result.notice_max_tokens": 1})
    letter: LetterQueued = driver.report(log, "a", KID, "a long report").value
    assert (letter.cut, letter.output_id, log.outputs) == (True, "o_la", {"o_la": "a long report"})


# --------------------------------------------------------------------------------- results nobody collected (pull)


PULL = {"result.delivery": "pull"}


def test_S85_under_pull_results_are_handed_over_exactly_once() -> None:
    log = with_child(PULL)
    driver.spawn(log, 2)
    driver.finish(log, 1, "one")
    driver.finish(log, 2, "two")
    assert log.facts(LetterQueued) == []
    assert len(driver.hand_over(log).drafts) == 2
    assert driver.hand_over(log).drafts == (), "they are on their way"
    driver.step(log, ROOT, "both")
    assert driver.hand_over(log).drafts == (), "they are home"
    letters = log.facts(LetterQueued)
    assert [letter.run_id for letter in letters] == ["r_1", "r_2"]
    assert {row.result_state for row in log.run_rows.values()} == {"absorbed"}
    assert driver.close(log).value.status == "completed"


def test_under_pull_a_result_that_was_collected_is_not_handed_over_and_a_handles_never() -> None:
    log = with_child(PULL)
    driver.spawn(log, 2, delivery="handle")
    for number in (1, 2):
        driver.finish(log, number)
    answer = ToolFinished(call_id=CallId("c_w"), outcome="ok", code=None, text="{}", collected=(RunId("r_1"),))
    log.append(ROOT, answer)
    assert log.run_rows["r_1"].result_state == "collected"
    assert driver.hand_over(log).drafts == ()


def test_under_pull_an_awaited_result_that_never_arrived_stays_to_be_collected_and_is_handed_over() -> None:
    log = with_child(PULL, delivery="await")
    driver.finish(log, 1, "x")
    driver.close(log, ending=FAILED)
    assert log.facts(LetterQueued) == [], "pull sends nothing by itself"
    driver.recall(log, ROOT)
    driver.open_turn(log, ROOT)
    driver.hand_over(log)
    (letter,) = log.facts(LetterQueued)
    assert letter.run_id == "r_1"


def test_a_hand_over_keeps_the_whole_of_what_it_cuts() -> None:
    log = with_child({**PULL, "result.notice_max_tokens": 1})
    driver.finish(log, 1, "a long answer")
    driver.hand_over(log)
    assert log.facts(LetterQueued)[0].output_id == "o_r1"
    assert log.outputs == {"o_r1": "a long answer"}


# ------------------------------------------------------------------------------------------ turns letters start


def idle_root(changes: dict[str, Any] | None = None) -> Log:
    """A root whose turn failed while its child worked, and the child's result in its mail."""
    log = with_child(changes)
    driver.close(log, ending=FAILED)
    driver.finish(log, 1)
    return log


def test_S76_letters_that_find_a_root_idle_start_one_turn_that_absorbs_them_all() -> None:
    log = idle_root()
    driver.spawn(log, 2)
    driver.finish(log, 2)
    decision = driver.rouse(log, "x")
    assert decision.effects == (StartTurn(session_id=ROOT),)
    opened: TurnOpened = log.facts(TurnOpened)[-1]
    assert (opened.turn, opened.cause, opened.root_run_id) == (2, "letter", "r_root_turn1")
    assert len(log.facts(LetterAbsorbed)) == 2
    assert driver.rouse(log, "y").drafts == ()
    assert log.state.sessions[ROOT].mail == {}


def test_the_turn_belongs_to_the_root_run_of_the_oldest_letter() -> None:
    log = idle_root()
    driver.open_turn(log, ROOT)
    driver.spawn(log, 2)
    driver.spawn(log, 3)
    driver.close(log, ending=FAILED)
    driver.finish(log, 2)
    driver.finish(log, 3)
    driver.rouse(log, "x")
    assert log.facts(TurnOpened)[-1].root_run_id == "r_root_turn2"


def test_a_letter_of_nobodys_root_run_starts_no_turn() -> None:
    log = with_child()
    driver.close(log, ending=FAILED)
    letter = msgspec.structs.replace(a_letter(), receiver_id=ROOT, root_run_id=None)
    log.append(ROOT, letter)
    assert not log.state.rouses(log.state.sessions[ROOT])


def a_letter() -> LetterQueued:
    return LetterQueued(
        letter_id=driver.LetterId("l_x"),
        kind="message",
        sender_id=KID,
        receiver_id=KID,
        run_id=None,
        text="x",
        cut=False,
        output_id=None,
    )


def test_letters_start_at_most_so_many_turns_of_a_root_run_and_then_they_are_stored_with_a_warning() -> None:
    log = with_child({"result.auto_turns_max": 2})
    driver.close(log, ending=FAILED)
    for number in (1, 2):
        driver.report(log, number, KID)
        assert driver.rouse(log, "x").value == number + 1
        driver.step(log, ROOT, "seen")
        driver.close(log, ending=FAILED)
    assert log.facts(Warned) == []
    driver.finish(log, 1)
    (warned,) = log.facts(Warned)
    assert (warned.code, "2 turns" in warned.text) == ("auto_turns_max", True)
    assert driver.rouse(log, "x").drafts == ()
    assert log.state.sessions == {}, "it waits on disk for the next turn"
    driver.recall(log, ROOT)
    driver.open_turn(log, ROOT)
    assert log.facts(LetterAbsorbed)[-1].run_id == "r_1"


def test_without_a_limit_letters_start_turns_for_ever_and_with_zero_never() -> None:
    log = idle_root({"result.auto_turns_max": None})
    assert driver.rouse(log, "x").value == 2
    assert log.facts(Warned) == []
    none = idle_root({"result.auto_turns_max": 0})
    assert driver.rouse(none, "x").drafts == ()
    assert [fact.code for fact in none.facts(Warned)] == ["auto_turns_max"]


def test_a_stored_letter_warns_nobody_where_letters_start_no_turns_at_all() -> None:
    log = idle_root({"result.auto_turns_max": 0, "result.idle_parent": "store"})
    assert log.facts(Warned) == []
    assert log.state.sessions == {}


def test_what_comes_too_late_for_a_turn_that_completed_starts_the_next_one() -> None:
    log = with_child()
    driver.step(log, ROOT, "done")
    driver.report(log, "late", KID)
    driver.close(log, ending=msgspec.structs.replace(DONE, final=True))
    assert log.state.rouses(log.state.sessions[ROOT])
    failed = with_child()
    driver.report(failed, "late", KID)
    driver.close(failed, ending=FAILED)
    assert not failed.state.rouses(failed.state.sessions[ROOT]), "a turn that was stopped is not started again"


def test_a_session_in_a_turn_or_out_of_memory_is_not_roused() -> None:
    log = with_child()
    driver.report(log, "a", KID)
    assert driver.rouse(log, "x").drafts == ()
    assert driver.rouse(Log(), "x").drafts == ()


def nested(changes: dict[str, Any] | None = None) -> Log:
    """A child that is a parent: its own turn ended, its child `s_2` works on."""
    log = with_child({"caps.max_depth": 2, **(changes or {})})
    driver.spawn(log, 2, "s_1")
    driver.settle(log, 1, FAILED)
    return log


def test_S77_a_child_that_is_a_parent_gets_one_further_run_for_the_letters_of_its_children() -> None:
    log = nested()
    driver.finish(log, 2)
    assert KID in log.state.sessions, "not released with the notice unread"
    decision = driver.rouse(log, 3, KID)
    run: Run = decision.value
    assert (run.run_id, run.status, run.root_run_id) == ("r_3", "running", "r_root_turn1")
    queued: RunQueued = log.facts(RunQueued)[-1]
    assert (queued.spec.prompt, queued.spec.cause, queued.spec.delivery, queued.spec.round) == (
        "",
        "letter",
        "letter",
        1,
    )
    assert log.facts(TurnOpened)[-1].cause == "letter"
    assert log.facts(LetterAbsorbed)[-1].run_id == "r_2"
    assert [fact.run_id for fact in log.facts(RunStarted)] == ["r_1", "r_2", "r_3"]
    assert driver.rouse(log, 4, KID).drafts == ()
    driver.finish(log, 3, "seen", session_id=KID)
    assert [letter.run_id for letter in log.facts(LetterQueued)] == ["r_1", "r_2", "r_3"]


def test_a_letter_started_run_is_no_instruction_and_waits_in_the_queue_also_where_a_full_cap_rejects() -> None:
    log = nested({"caps.on_full": "reject", "caps.running.root": 2, "life.rounds_max": 2})
    driver.spawn(log, 5)
    driver.finish(log, 2)
    driver.spawn(log, 6)
    assert driver.rouse(log, 3, KID).value.status == "queued"
    driver.finish(log, 5)
    assert log.run_rows["r_3"].status == "running"
    assert driver.send(log, 7, KID).value.spec.round == 2
    assert refused(lambda: driver.send(log, 8, KID)).code == "cap_rounds"


@pytest.mark.parametrize("why", ["one_shot", "open_run", "switched_off"])
def test_a_child_is_not_roused_when_it_cannot_or_need_not_go_on(why: str) -> None:
    log = driver.opened({"caps.max_depth": 2})
    driver.spawn(log, 1, continuable=why != "one_shot")
    driver.spawn(log, 2, "s_1")
    driver.send(log, 3, KID) if why == "open_run" else None
    driver.settle(log, 1, INTERRUPTED)
    driver.report(log, "a", "s_2")
    assert log.state.rouses(log.state.sessions[KID]) is (why == "switched_off")
    log.state.switch_on = why != "switched_off"
    assert driver.rouse(log, 4, KID).drafts == ()
