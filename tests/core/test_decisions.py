"""Single decisions: caps on creation, refusals, endings, what goes home how, what is cut, what a restart closes."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from retinue.core.decide.base import (
    Ending,
    StartRun,
    StopRun,
    Wake,
    call_output_id,
    result_letter_id,
    result_output_id,
)
from retinue.core.decide.recovery import owed_closings
from retinue.core.decide.turns import Note, Steer, decide_note, decide_steer
from retinue.core.events import (
    LetterAbsorbed,
    LetterQueued,
    MessageAssistant,
    RunSettled,
    Snapshot,
    StepClosed,
    ToolFinished,
    TurnClosed,
    Usage,
    Warned,
)
from retinue.core.ids import CallId, RunId, SessionId
from retinue.core.policy import NAMES
from retinue.core.run import Run
from tests.core import driver
from tests.core.driver import DONE, FAILED, Log, refused

ROOT = SessionId("s_root")


def settled(log: Log, number: object) -> RunSettled:
    return next(fact for fact in log.facts(RunSettled) if fact.run_id == f"r_{number}")


def letters(log: Log) -> list[LetterQueued]:
    return log.facts(LetterQueued)


@pytest.mark.parametrize(
    ("cap", "where"), [("caps.created.turn", "this turn"), ("caps.created.root_run", "this root run")]
)
def test_S5_one_child_too_many_is_refused_at_once_even_when_all_others_have_finished(cap: str, where: str) -> None:
    log = driver.opened({cap: 2})
    for number in (1, 2):
        driver.spawn(log, number)
        driver.finish(log, number)
    assert len(log.facts(RunSettled)) == 2
    error = refused(lambda: driver.spawn(log, 3))
    assert (error.code, where in error.detail, "2" in error.detail) == ("cap_created", True, True)


def test_the_cap_of_a_turn_begins_anew_and_that_of_a_root_run_counts_grandchildren() -> None:
    log = driver.opened({"caps.created.turn": 1, "caps.created.root_run": 2, "caps.max_depth": 3})
    driver.spawn(log, 1)
    driver.spawn(log, 2, "s_1")
    driver.step(log, "s_2", "x")
    assert refused(lambda: driver.spawn(log, 3, "s_2")).code == "cap_created"
    driver.settle(log, 2, FAILED)
    driver.settle(log, 1, FAILED)
    driver.close(log, ending=FAILED)
    driver.recall(log, ROOT)
    driver.open_turn(log, ROOT)
    assert driver.spawn(log, 4).value.status == "running"


def test_children_of_children_count_on_while_the_root_is_idle_and_nothing_is_left_when_the_tree_is_over() -> None:
    caps = {"caps.created.root_run": 4, "caps.created.turn": None, "caps.max_depth": None}
    log = driver.opened({**caps, "result.idle_parent": "store"})
    driver.spawn(log, 1)
    driver.spawn(log, 2, "s_1")
    driver.close(log, ending=FAILED)
    driver.settle(log, 1, FAILED)
    assert ROOT in log.state.sessions, "an ancestor stays while a descendant lives"
    driver.spawn(log, 3, "s_2")
    driver.spawn(log, 4, "s_2")
    assert refused(lambda: driver.spawn(log, 5, "s_2")).code == "cap_created"
    for number in (3, 4, 2):
        driver.settle(log, number, FAILED)
    driver.recall(log, ROOT)
    driver.open_turn(log, ROOT)
    driver.close(log, ending=FAILED)
    assert (log.state.sessions, log.state.runs, log.state.trees) == ({}, {}, {})


@pytest.mark.parametrize(
    ("cap", "where"),
    [
        ("caps.running.process", "in the process"),
        ("caps.running.root", "below this root"),
        ("caps.running.parent", "of this parent"),
    ],
)
def test_S13_a_full_cap_that_rejects_refuses_the_next_and_leaves_the_others_alone(cap: str, where: str) -> None:
    open_caps = dict.fromkeys(["caps.running.process", "caps.running.root", "caps.running.parent"], None)
    log = driver.opened({**open_caps, cap: 4, "caps.on_full": "reject"})
    for number in range(4):
        driver.spawn(log, number)
    before = len(log.events)
    error = refused(lambda: driver.spawn(log, 5))
    assert error.code == "cap_running"
    assert error.detail == f"No slot is free: 4 of 4 {where} are running."
    assert len(log.events) == before
    assert log.state.book.total == 4
    assert not log.state.book.waiting


@pytest.mark.parametrize("name", NAMES)
def test_under_every_policy_a_delegation_comes_home_and_leaves_nothing(name: str) -> None:
    log = driver.opened(policy=name)
    driver.spawn(log, 1)
    driver.step(log, ROOT, "waiting")
    driver.finish(log, 1)
    driver.hand_over(log)
    assert [(letter.run_id, letter.waking) for letter in letters(log)] == [("r_1", True)]
    driver.step(log, ROOT, "the answer")
    assert driver.close(log).value.status == "completed"
    assert log.run_rows["r_1"].result_state == "absorbed"
    assert (log.state.sessions, log.state.runs, log.state.trees) == ({}, {}, {})


def test_S2_with_two_slots_the_third_starts_only_after_a_release() -> None:
    log = driver.opened({"caps.running.root": 2})
    statuses = [driver.spawn(log, number).value.status for number in (1, 2, 3)]
    assert statuses == ["running", "running", "queued"]
    decision = driver.finish(log, 1)
    assert StartRun(run_id=RunId("r_3")) in decision.effects
    assert log.run_rows["r_3"].status == "running"


def test_a_child_of_a_session_without_a_turn_belongs_to_the_root_run_its_caller_names() -> None:
    log = driver.opened(turn=False)
    run: Run = driver.spawn(log, 1, delivery="handle").value
    assert run.root_run_id == "r_nobody"
    driver.finish(log, 1)
    assert letters(log) == [], "a handle brings it home"
    assert log.state.sessions == {}


def test_S89_a_reserved_id_works_once() -> None:
    log = driver.opened({"caps.running.root": 1})
    driver.spawn(log, 1)
    driver.spawn(log, 2)
    driver.open_root(log, "s_3")
    driver.open_turn(log, "s_3")
    for taken, parent in ((1, "s_root"), (2, "s_root"), (2, "s_3"), (3, "s_root")):
        before = len(log.events)
        assert refused(lambda n=taken, p=parent: driver.spawn(log, n, p)).code == "invalid"
        assert len(log.events) == before


def test_an_answer_that_carries_a_result_which_is_home_or_unknown_changes_nothing() -> None:
    log = driver.opened()
    driver.spawn(log, 1, delivery="await")
    driver.finish(log, 1)
    log.append(ROOT, driver.answered("c_1", RunId("r_1"), RunId("r_nobody")))
    log.append(ROOT, driver.answered("c_1", RunId("r_1")))
    assert {row.run_id: row.result_state for row in log.run_rows.values()} == {"r_1": "collected"}
    assert log.state.runs == {}


def test_a_child_carries_its_definition_in_its_run_and_its_header() -> None:
    log = driver.opened()
    role = a_role()
    run: Run = driver.spawn(log, 1, definition=role, effort="high", system_prompt="be brief").value
    header = log.state.sessions[SessionId("s_1")].header
    assert (run.agent, header.agent, header.agent_digest) == ("user:x", "user:x", "d")
    assert (header.definition, header.effort, header.system_prompt) == (role, "high", "be brief")


def a_role() -> Snapshot:
    return Snapshot(ref="user:x", name="x", digest=driver.Digest("d"))


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda log: driver.open_root(log, "s_root"), "invalid"),
        (lambda log: driver.open_turn(log, "s_root"), "turn_open"),
        (lambda log: driver.spawn(log, 1, "s_nobody"), "not_found"),
        (lambda log: driver.close(log, "s_nobody"), "not_found"),
        (lambda log: log.do(decide_steer, Steer(session_id=SessionId("s_nobody"), text="x")), "not_found"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(call: Callable[[Log], Any], code: str) -> None:
    log = driver.opened()
    before = len(log.events)
    assert refused(lambda: call(log)).code == code
    assert len(log.events) == before


def test_an_idle_session_takes_no_steering_no_step_and_no_close() -> None:
    log = driver.opened(turn=False)
    steer = Steer(session_id=ROOT, text="x")
    for call in (
        lambda: log.do(decide_steer, steer),
        lambda: driver.open_step(log, ROOT),
        lambda: driver.close(log),
    ):
        assert refused(call).code == "already_ended"


def test_steering_wakes_the_session_and_keeps_its_turn_open() -> None:
    log = driver.opened()
    driver.step(log, ROOT, "the answer")
    decision = log.do(decide_steer, Steer(session_id=ROOT, text="one more thing"))
    assert decision.effects == (Wake(session_id=ROOT),)
    assert log.state.sessions[ROOT].waiting_input
    driver.close(log)
    assert log.facts(TurnClosed) == [], "a person still waits for an answer"


@pytest.mark.parametrize(
    ("policy", "ending"), [("note", ("completed", "done_empty")), ("fail", ("failed", "empty_output"))]
)
@pytest.mark.parametrize("said", ["", " \n"])
def test_S22_a_turn_without_text_ends_as_the_policy_says(policy: str, ending: tuple[str, str], said: str) -> None:
    log = driver.opened({"result.empty_output": policy})
    driver.spawn(log, 1)
    driver.finish(log, 1, said)
    fact = settled(log, 1)
    assert (fact.status, fact.reason) == ending
    assert (fact.output, fact.partial) == (("", None) if policy == "note" else (None, None))


def test_S28_the_last_non_empty_message_is_the_output_even_before_a_later_empty_one() -> None:
    log = driver.opened()
    driver.spawn(log, 1)
    driver.step(log, "s_1", "early")
    driver.step(log, "s_1", "the answer")
    driver.step(log, "s_1", "")
    driver.settle(log, 1)
    assert settled(log, 1).output == "the answer"


@pytest.mark.parametrize(("streamed", "partial"), [("half of", "half of"), ("", "early"), (" \n", "early")])
def test_S25_a_request_cut_off_leaves_its_text_apart_as_partial(streamed: str, partial: str) -> None:
    log = driver.opened()
    driver.spawn(log, 1)
    driver.step(log, "s_1", "early")
    driver.open_step(log, "s_1")
    ending = Ending(status="failed", reason="provider_error", detail="x", streamed=streamed, reasoning="why")
    driver.settle(log, 1, ending)
    fact = settled(log, 1)
    assert (fact.status, fact.output, fact.partial, fact.steps) == ("failed", None, partial, 2)
    assert fact.usage == driver.ONE_REQUEST.plus(Usage(requests=1, unreported=1))
    last: MessageAssistant = log.facts(MessageAssistant)[-1]
    assert (last.text, last.reasoning, last.complete) == (streamed, "why", False)
    assert log.facts(StepClosed)[-1].usage is None


def test_a_request_cut_off_before_any_text_leaves_no_message() -> None:
    log = driver.opened()
    driver.open_step(log, ROOT)
    driver.close(log, ending=FAILED)
    assert log.facts(MessageAssistant) == []
    closed: TurnClosed = log.facts(TurnClosed)[-1]
    assert (closed.text, closed.partial, closed.usage.unreported) == (None, None, 1)


def test_calls_whose_end_nobody_saw_are_answered_as_unknown() -> None:
    log = driver.opened()
    driver.step(log, ROOT, "", ["c_1", "c_2"])
    log.append(ROOT, ToolFinished(call_id=driver.CallId("c_1"), outcome="ok", code=None, text="fine"))
    driver.close(log, ending=FAILED)
    assert [(fact.call_id, fact.outcome) for fact in log.facts(ToolFinished)] == [("c_1", "ok"), ("c_2", "unknown")]


def test_S30_a_diagnostic_is_at_most_4096_bytes_and_splits_no_character() -> None:
    log = driver.opened()
    driver.spawn(log, 1)
    driver.settle(log, 1, Ending(status="failed", reason="internal", detail="漢" * 4000))
    detail = settled(log, 1).detail or ""
    assert 4090 < len(detail.encode()) <= 4096
    closed: TurnClosed = log.facts(TurnClosed)[-1]
    assert closed.detail == detail


def test_what_is_shown_is_cut_at_its_limit_and_the_whole_text_kept_once() -> None:
    log = driver.opened({"result.output_max_chars": 5, "result.notice_max_tokens": None})
    driver.spawn(log, 1)
    driver.finish(log, 1, "漢字かな交じり文")
    fact = settled(log, 1)
    assert (fact.output, fact.output_cut, fact.output_id) == ("漢字かな交", True, "o_r1")
    assert log.outputs == {"o_r1": "漢字かな交じり文"}
    assert letters(log)[0].text.endswith("漢字かな交じり文"), "the letter has a limit of its own"
    assert (letters(log)[0].cut, letters(log)[0].output_id) == (False, "o_r1")


def test_a_letter_cut_shorter_than_the_output_keeps_the_whole_text_too() -> None:
    log = driver.opened({"result.notice_max_tokens": 2})
    driver.spawn(log, 1)
    driver.finish(log, 1, "x" * 100)
    assert (settled(log, 1).output_cut, settled(log, 1).output_id) == (False, None)
    assert (letters(log)[0].cut, letters(log)[0].output_id) == (True, "o_r1")
    assert log.outputs == {"o_r1": "x" * 100}


def awaited(log: Log, text: str) -> LetterQueued:
    """The letter of a child whose awaiting call never got its result."""
    driver.spawn(log, 1, delivery="await")
    driver.finish(log, 1, text)
    assert letters(log) == []
    driver.close(log, ending=FAILED)
    (letter,) = letters(log)
    return letter


def test_a_result_whose_call_never_got_it_goes_home_as_one_letter_and_its_whole_text_is_kept() -> None:
    log = driver.opened({"result.notice_max_tokens": 2})
    letter = awaited(log, "x" * 100)
    assert (letter.cut, letter.output_id) == (True, "o_r1")
    assert log.outputs == {"o_r1": "x" * 100}


def test_such_a_letter_of_an_output_that_was_cut_before_says_so_and_never_replaces_the_whole_text() -> None:
    log = driver.opened({"result.output_max_chars": 10, "result.notice_max_tokens": None})
    letter = awaited(log, "x" * 100)
    assert (letter.cut, letter.output_id) == (True, "o_r1")
    assert "x" * 10 + "…[truncated]" in letter.text
    assert log.outputs == {"o_r1": "x" * 100}


def test_the_same_holds_one_level_deeper() -> None:
    log = driver.opened({"result.notice_max_tokens": 2, "caps.max_depth": 2})
    driver.spawn(log, 1)
    driver.spawn(log, 2, "s_1", delivery="await")
    driver.finish(log, 2, "y" * 100)
    driver.settle(log, 1, FAILED)
    assert [(letter.receiver_id, letter.output_id) for letter in letters(log)] == [("s_1", "o_r2"), (ROOT, None)]
    assert log.outputs == {"o_r2": "y" * 100}


def test_a_result_that_came_home_through_its_call_gets_no_letter() -> None:
    log = driver.opened()
    driver.spawn(log, 1, delivery="await")
    driver.finish(log, 1)
    home = ToolFinished(call_id=driver.CallId("c_1"), outcome="ok", code=None, text="{}", run_id=RunId("r_1"))
    log.append(ROOT, home)
    driver.step(log, ROOT, "the answer")
    driver.close(log)
    assert letters(log) == []
    assert log.run_rows["r_1"].result_state == "collected"


def test_a_letter_is_absorbed_once_and_the_result_is_then_home() -> None:
    log = driver.opened()
    driver.spawn(log, 1)
    driver.finish(log, 1)
    assert log.run_rows["r_1"].result_state == "stored"
    driver.open_step(log, ROOT)
    driver.say(log, ROOT, "the answer")
    driver.step(log, ROOT, "again")
    assert len(log.facts(LetterAbsorbed)) == 1
    assert log.run_rows["r_1"].result_state == "absorbed"
    assert RunId("r_1") not in log.state.runs


@pytest.mark.parametrize("reason", ["parent_cancelled", "budget", "switched_off", "deleted", "shutdown", "restart"])
def test_results_of_these_reasons_wake_nobody(reason: str) -> None:
    log = driver.opened()
    driver.spawn(log, 1)
    driver.settle(log, 1, Ending(status="cancelled", reason=reason, detail="x"))
    assert letters(log)[0].waking is False


def test_other_results_wake_their_receiver() -> None:
    log = driver.opened()
    driver.spawn(log, 1)
    decision = driver.settle(log, 1, FAILED)
    assert letters(log)[0].waking is True
    assert Wake(session_id=ROOT) in decision.effects


def test_a_turn_that_completes_waits_for_children_and_letters_unless_the_look_around_is_over() -> None:
    log = driver.opened()
    driver.spawn(log, 1)
    driver.step(log, ROOT, "the answer")
    driver.close(log)
    driver.finish(log, 1)
    driver.close(log)
    assert log.facts(TurnClosed)[1:] == [], "only the child's turn is closed"
    driver.close(log, ending=msgspec.structs.replace(DONE, final=True))
    closed: TurnClosed = log.facts(TurnClosed)[-1]
    assert (closed.run_id, closed.text, closed.status) == (None, "the answer", "completed")


def test_a_warning_is_recorded_while_its_session_is_in_memory() -> None:
    log = driver.opened()
    log.do(decide_note, Note(session_id=ROOT, fact=Warned(code="detached", text="x")))
    log.do(decide_note, Note(session_id=SessionId("s_nobody"), fact=Warned(code="detached", text="x")))
    assert [(fact.code, fact.text) for fact in log.facts(Warned)] == [("detached", "x")]


def test_what_a_result_and_a_call_are_kept_under_is_known_before_it_is_kept() -> None:
    run_id, call_id = RunId("r_abc"), CallId("c_def")
    assert (result_letter_id(run_id), result_output_id(run_id)) == ("l_abc", "o_rabc")
    assert call_output_id(call_id) == "o_cdef"


@pytest.mark.parametrize("shown_as", ["interrupted", "cancelled"])
def test_a_restart_closes_everything_as_the_policy_says_and_starts_nothing(shown_as: str) -> None:
    log = driver.opened({"life.on_restart": shown_as, "caps.running.root": 2, "caps.max_depth": 2})
    driver.spawn(log, 1)
    driver.spawn(log, 2, "s_1", delivery="handle")
    driver.spawn(log, 3, "s_1", delivery="await")
    driver.open_step(log, "s_2")
    driver.step(log, ROOT, "so far", ["c_1"])
    reborn = Log()
    for event in log.events:
        reborn.state.apply(event)
    reborn.events = list(log.events)
    for decide, command in owed_closings(reborn.state, reborn.stamp()):
        decision = reborn.do(decide, command)
        assert not [effect for effect in decision.effects if isinstance(effect, StartRun | StopRun)]
    facts = reborn.facts(RunSettled)
    assert [fact.run_id for fact in facts] == ["r_3", "r_2", "r_1"], "queued ones, then from the deepest up"
    assert {(fact.status, fact.reason) for fact in facts} == {(shown_as, "restart")}
    told = {(letter.receiver_id, letter.run_id) for letter in letters(reborn)}
    assert told == {("s_1", "r_2"), ("s_1", "r_3"), (ROOT, "r_1")}, "handles are gone: parents are told by letter"
    assert not any(letter.waking for letter in letters(reborn))
    assert [fact.outcome for fact in reborn.facts(ToolFinished)] == ["unknown"]
    assert (reborn.state.sessions, reborn.state.runs, reborn.state.book.total) == ({}, {}, 0)
