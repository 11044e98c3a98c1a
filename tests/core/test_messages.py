"""Messages: the next run of a child, the scope of a whole tree, what an interrupt sets aside."""

from typing import Any

import msgspec
import pytest

from retinue.core.decide.base import StartRun, Wake
from retinue.core.events import (
    ContextSeeded,
    LetterAbsorbed,
    LetterQueued,
    RunQueued,
    Snapshot,
    TurnOpened,
)
from retinue.core.ids import RunId, SessionId
from retinue.core.run import Run
from tests.core import driver
from tests.core.driver import (
    CANCELLED,
    DONE,
    FAILED,
    INTERRUPTED,
    refused_unchanged,
    said_to,
    with_child,
    with_ended_child,
)

ROOT = SessionId("s_root")
KID = SessionId("s_1")
TREE = {"life.message_scope": "tree", "caps.max_depth": 3}
FORGETFUL = {"life.rounds_max": None, "life.queued_messages_max": None}


# ------------------------------------------------------------------------------------------------- the next run


def test_a_message_to_a_child_that_has_ended_is_its_next_run_on_the_same_session() -> None:
    log = with_ended_child()
    run: Run = driver.send(log, "2", KID).value
    assert (run.run_id, run.session_id, run.status, run.output) == ("r_2", KID, "running", None)
    assert [(fact.turn, fact.cause, fact.run_id) for fact in log.facts(TurnOpened)[-2:]] == [
        (1, "prompt", "r_1"),
        (2, "message", "r_2"),
    ]
    assert (said_to(log, KID)[-1].text, said_to(log, KID)[-1].sender_id) == ("go on", ROOT)
    driver.open_step(log, KID)
    assert [message.text for message in log.state.sessions[KID].request()] == ["task 1", "the answer", "go on"]


def test_every_run_of_a_child_has_what_its_first_one_froze() -> None:
    frozen: dict[str, Any] = {
        "rights": driver.Rights(tools=("grep",), access="read", max_depth=1, may_delegate=False),
        "definition": msgspec.convert({"ref": "user:x", "name": "x", "digest": "d"}, Snapshot),
        "system_prompt": "be brief",
        "max_steps": 3,
        "timeout_s": 9.0,
        "effort": "high",
        "profile": "plan",
        "approval": "auto_edit",
        "output_schema": {"type": "object"},
        "cancel_with_parent": True,
        "environment_digest": driver.Digest("e"),
    }
    log = with_ended_child(delivery="await", **frozen)
    driver.set_policy(log, {"life.max_steps": 99, "caps.max_depth": 9})
    driver.send(log, 2, KID)
    first, second = log.facts(RunQueued)
    for key in frozen:
        assert getattr(second.spec, key) == getattr(first.spec, key), key
    same = ("child_id", "parent_id", "root_id", "name", "agent", "model", "depth", "provider", "access", "paths", "cwd")
    assert [getattr(second, key) for key in same] == [getattr(first, key) for key in same]
    assert (second.spec.delivery, second.spec.cause, second.spec.round) == ("letter", "message", 2)
    assert (second.steps, second.usage.requests, second.result_state) == (0, 0, "none")
    assert len({event.root_id for event in log.events}) == 1
    headers = [event for event in log.events if isinstance(event.fact, driver.SessionOpened)]
    assert len(headers) == 2, "the child has one header for good"


def test_a_message_to_a_working_child_waits_behind_its_run_and_messages_stay_in_order() -> None:
    log = with_child()
    for number in (2, 3):
        run: Run = driver.send(log, number, KID, text=f"message {number}").value
        assert run.status == "queued"
        assert run.waiting_for is not None
        assert (run.waiting_for.kind, run.waiting_for.what) == (
            "slot",
            "the end of an earlier message to the same child",
        )
    assert [run.queue_position for run in log.run_rows.values()] == [None, 1, 2]
    decision = driver.finish(log, 1)
    assert StartRun(run_id=RunId("r_2")) in decision.effects
    assert (log.run_rows["r_2"].status, log.run_rows["r_3"].status) == ("running", "queued")
    driver.finish(log, 2, session_id=KID)
    assert log.run_rows["r_3"].status == "running"
    assert [fact.text for fact in said_to(log, KID)] == ["task 1", "message 2", "message 3"]


def test_a_message_to_a_child_that_waits_for_its_first_slot_comes_after_its_task() -> None:
    log = with_child({"caps.running.root": 1})
    driver.spawn(log, 2)
    driver.send(log, 3, "s_2")
    assert SessionId("s_2") not in log.state.sessions
    driver.finish(log, 1)
    assert (log.run_rows["r_2"].status, log.run_rows["r_3"].status) == ("running", "queued")
    driver.finish(log, 2)
    assert log.run_rows["r_3"].status == "running"
    assert [fact.text for fact in said_to(log, "s_2")] == ["task 2", "go on"]


def test_a_child_whose_first_run_was_cancelled_in_the_queue_begins_with_the_message_and_keeps_its_seed() -> None:
    log = driver.opened({"caps.running.root": 1}, turn=False)
    driver.open_turn(log, ROOT)
    driver.step(log, ROOT, "so far")
    driver.close(log)
    driver.recall(log, ROOT)
    driver.open_turn(log, ROOT, "again")
    driver.spawn(log, 1)
    driver.fork(log, 2)
    driver.cancel(log, 2)
    driver.send(log, 3, "s_2")
    driver.finish(log, 1)
    assert log.run_rows["r_3"].status == "running"
    (seeded,) = log.facts(ContextSeeded)
    assert [message.text for message in seeded.messages] == ["go", "so far"]
    driver.finish(log, 3, session_id="s_2")
    driver.send(log, 4, "s_2")
    assert log.facts(RunQueued)[-1].spec.seed == (), "it is in the child's history by now"
    assert len(log.facts(ContextSeeded)) == 1


def test_the_person_writes_in_the_name_of_the_direct_parent() -> None:
    log = with_ended_child()
    run: Run = driver.send(log, 2, KID, sender=None).value
    assert (run.spec.sender_id, run.root_run_id) == (None, "r_root_turn1")
    assert said_to(log, KID)[-1].sender_id == ROOT


def test_S92_in_the_family_only_the_direct_parent_continues_a_child() -> None:
    log = with_child({"caps.max_depth": 3})
    driver.spawn(log, 2)
    driver.spawn(log, 3, "s_1")
    for target, sender in (("s_1", "s_2"), ("s_3", "s_root"), ("s_3", "s_2"), ("s_1", "s_3"), ("s_root", "s_1")):
        assert refused_unchanged(log, lambda t=target, s=sender: driver.send(log, 9, t, s))[0] == "not_found"
    assert driver.send(log, 4, "s_3", "s_1").value.status == "queued"


@pytest.mark.parametrize("changes", [{}, {"life.message_scope": "tree"}])
@pytest.mark.parametrize(("open_now", "said"), [(False, "has ended (completed)"), (True, "takes no further message")])
def test_a_one_shot_child_takes_no_further_message(changes: dict[str, Any], open_now: bool, said: str) -> None:
    log = driver.opened({**changes, "caps.running.root": 1})
    driver.spawn(log, "first")
    driver.spawn(log, 1, continuable=False)
    if not open_now:
        driver.settle(log, "first", FAILED)
        driver.finish(log, 1)
    code, detail = refused_unchanged(log, lambda: driver.send(log, 2, KID))
    assert (code, said in detail) == ("not_continuable", True)


def test_a_child_that_was_deleted_takes_no_further_message() -> None:
    log = with_ended_child()
    driver.delete(log, KID, parent=ROOT)
    assert refused_unchanged(log, lambda: driver.send(log, 2, KID))[0] == "not_continuable"


def test_where_nothing_continues_a_continuable_child_takes_no_message_either() -> None:
    log = with_ended_child({"life.continuation": "none"})
    assert refused_unchanged(log, lambda: driver.send(log, 2, KID))[0] == "not_continuable"


def test_under_in_turn_messages_reach_only_children_of_the_current_root_run() -> None:
    log = with_ended_child({"life.continuation": "in_turn"})
    assert driver.send(log, 2, KID).value.status == "running"
    driver.finish(log, 2, session_id=KID)
    driver.step(log, ROOT, "done")
    driver.close(log)
    driver.recall(log, ROOT)
    driver.open_turn(log, ROOT, "next")
    code, detail = refused_unchanged(log, lambda: driver.send(log, 3, KID))
    assert (code, "earlier turn" in detail) == ("not_continuable", True)
    driver.set_policy(log, {"life.continuation": "durable"})
    assert driver.send(log, 4, KID).value.root_run_id == "r_root_turn2"


def test_rounds_are_counted_from_the_first_prompt_and_the_next_is_refused_at_the_limit() -> None:
    log = with_ended_child({"life.rounds_max": 3})
    for number in (2, 3):
        driver.send(log, number, KID)
        driver.finish(log, number, session_id=KID)
    code, detail = refused_unchanged(log, lambda: driver.send(log, 4, KID))
    assert (code, "3 instructions" in detail) == ("cap_rounds", True)
    driver.set_policy(log, {"life.rounds_max": None})
    assert driver.send(log, 5, KID).value.spec.round == 4


def test_messages_that_wait_are_counted_and_the_next_is_refused_at_the_limit() -> None:
    log = with_child({"life.queued_messages_max": 2, "life.rounds_max": None})
    for number in (2, 3):
        driver.send(log, number, KID)
    code, detail = refused_unchanged(log, lambda: driver.send(log, 4, KID))
    assert (code, "2 messages wait" in detail) == ("cap_messages", True)
    driver.finish(log, 1)
    assert driver.send(log, 5, KID).value.status == "queued", "one of them is at work now"
    driver.set_policy(log, {"life.queued_messages_max": None})
    assert driver.send(log, 6, KID).value.status == "queued"


def test_a_task_that_waits_for_a_slot_is_no_waiting_message() -> None:
    log = with_child({"life.queued_messages_max": 1, "caps.running.root": 1})
    driver.spawn(log, 2)
    assert driver.send(log, 3, "s_2").value.status == "queued"
    assert refused_unchanged(log, lambda: driver.send(log, 4, "s_2"))[0] == "cap_messages"


def test_while_the_switch_is_off_nobody_is_continued() -> None:
    log = with_ended_child()
    driver.set_switch(log, on=False)
    assert refused_unchanged(log, lambda: driver.send(log, 2, KID))[0] == "switched_off"
    driver.set_switch(log, on=True)
    assert driver.send(log, 2, KID).value.status == "running"


def test_under_reject_a_message_to_an_ended_child_needs_a_free_slot_and_one_behind_its_run_does_not() -> None:
    log = driver.opened({"caps.running.root": 1, "caps.on_full": "reject"})
    driver.spawn(log, 1)
    assert driver.send(log, 2, KID).value.status == "queued", "it waits for its own child, not for a slot"
    driver.finish(log, 1)
    driver.finish(log, 2, session_id=KID)
    driver.spawn(log, 3)
    assert refused_unchanged(log, lambda: driver.send(log, 4, KID))[0] == "cap_running"


def test_a_message_belongs_to_the_root_run_of_its_sender_or_to_a_new_one() -> None:
    log = with_ended_child()
    driver.step(log, ROOT, "done")
    driver.close(log)
    assert driver.send(log, 2, KID, sender=None).value.root_run_id == "r_new2", "nobody is in a turn"
    driver.open_turn(log, ROOT)
    assert driver.send(log, 3, KID, sender=None).value.root_run_id == "r_root_turn2"


# --------------------------------------------------------------------------------------------- the scope `tree`


def test_in_the_scope_tree_an_open_turn_absorbs_a_message_from_anywhere_at_its_next_boundary() -> None:
    log = with_child(TREE)
    driver.spawn(log, 2)
    driver.spawn(log, 3, "s_1")
    decision = driver.send(log, "m", "s_3", "s_2", text="from the side")
    letter: LetterQueued = decision.value
    assert (letter.kind, letter.sender_id, letter.receiver_id, letter.waking) == ("message", "s_2", "s_3", True)
    assert decision.effects == (Wake(session_id=SessionId("s_3")),)
    assert letter.text.endswith("Payload:\nfrom the side")
    driver.open_step(log, "s_3")
    assert [message.text for message in log.state.sessions[SessionId("s_3")].request()] == ["task 3", letter.text]
    assert [fact.letter_id for fact in log.facts(LetterAbsorbed)] == ["l_m"]
    upwards: LetterQueued = driver.send(log, "up", "s_root", "s_3").value
    assert (upwards.receiver_id, upwards.root_run_id) == (ROOT, "r_root_turn1")


def test_in_the_scope_tree_a_child_that_is_idle_or_waits_takes_its_next_run_from_anybody() -> None:
    log = with_ended_child({**TREE, "caps.running.root": 1})
    driver.spawn(log, 2)
    run: Run = driver.send(log, 3, KID, "s_2").value
    assert (run.status, run.parent_id, run.spec.sender_id) == ("queued", ROOT, "s_2")
    driver.finish(log, 2)
    assert said_to(log, KID)[-1].sender_id == "s_2"


def test_in_the_scope_tree_an_idle_root_gets_a_letter_that_starts_a_turn_or_is_stored() -> None:
    for idle_parent, rouses in (("start_turn", True), ("store", False)):
        log = with_child({**TREE, "result.idle_parent": idle_parent})
        driver.close(log, ending=FAILED)
        letter: LetterQueued = driver.send(log, "m", ROOT, KID).value
        root = log.state.sessions[ROOT]
        assert log.state.rouses(root) is rouses
        assert letter.letter_id in root.mail


def test_the_person_writes_a_letter_in_the_name_of_the_parent_and_of_the_root_to_itself() -> None:
    log = with_child(TREE)
    assert driver.send(log, "m", KID, sender=None).value.sender_id == ROOT
    assert driver.send(log, "n", ROOT, sender=None).value.sender_id == ROOT


def test_in_the_scope_tree_letters_are_refused_while_the_switch_is_off() -> None:
    log = with_child(TREE)
    driver.set_switch(log, on=False)
    assert refused_unchanged(log, lambda: driver.send(log, "m", KID))[0] == "switched_off"


def test_a_session_that_is_unknown_is_not_found_in_the_scope_tree() -> None:
    log = with_ended_child(TREE)
    driver.step(log, ROOT, "done")
    driver.close(log)
    assert ROOT not in log.state.sessions
    stranger = driver.Send(
        target_id=SessionId("s_elsewhere"),
        sender_id=ROOT,
        text="x",
        last=None,
        run_id=RunId("r_x"),
        root_run_id=RunId("r_y"),
        letter_id=driver.LetterId("l_x"),
        stamp=log.stamp(),
    )
    assert refused_unchanged(log, lambda: log.do(driver.decide_send, stranger))[0] == "not_found"
    assert driver.send(log, 3, KID, sender=None).value.run_id == "r_3", "a child that has left memory is not unknown"


def test_a_letter_that_is_cut_names_its_whole_text() -> None:
    log = with_child({**TREE, "result.notice_max_tokens": 3})
    letter: LetterQueued = driver.send(log, "m", KID, text="漢字" * 30).value
    assert (letter.cut, letter.output_id) == (True, "o_lm")
    assert 'read_agent_output with id "o_lm"' in letter.text
    assert log.outputs["o_lm"] == "漢字" * 30
    short: LetterQueued = driver.send(log, "n", KID, text="漢").value
    assert (short.cut, short.output_id) == (False, None)


# --------------------------------------------------------------------------------------- interrupt, park, unpark


def test_an_interrupt_sets_what_waits_aside_and_the_next_message_brings_it_back_in_its_old_place() -> None:
    log = with_child({"caps.running.root": 1, **FORGETFUL})
    driver.send(log, 2, KID)
    driver.send(log, 3, KID)
    driver.spawn(log, "other")
    driver.end_run(log, 1)
    assert log.run_rows["r_2"].waiting_for is not None
    assert log.run_rows["r_2"].waiting_for.kind == "slot", "until the turn is stopped it waits as before"
    driver.settle(log, 1, INTERRUPTED)
    for number in (2, 3):
        row = log.run_rows[f"r_{number}"]
        assert row.waiting_for is not None
        assert (row.status, row.waiting_for.kind, row.is_parked) == ("queued", "parked", True)
    assert log.run_rows["r_other"].status == "running", "the slot went to somebody who is not set aside"
    assert (log.state.sessions[ROOT].awaits_children, log.state.book.queue_length(ROOT)) == (True, 0)
    run: Run = driver.send(log, 4, KID).value
    assert (run.status, run.queue_position) == ("queued", 3)
    order = []
    for number in ("other", 2, 3, 4):
        driver.finish(log, number, session_id="s_other" if number == "other" else KID)
        order += [row.run_id for row in log.run_rows.values() if row.status == "running"]
    assert order == ["r_2", "r_3", "r_4"]
    assert [fact.text for fact in said_to(log, KID)] == ["task 1", "go on", "go on", "go on"]


def test_S98_nothing_waits_for_a_parked_run_and_what_is_discarded_instead_of_run_releases_the_child() -> None:
    log = with_child()
    driver.send(log, 2, KID)
    driver.settle(log, 1, INTERRUPTED)
    root = log.state.sessions[ROOT]
    assert (root.awaits_children, bool(root.open_runs)) == (False, True)
    driver.step(log, ROOT, "done")
    assert driver.close(log).value.status == "completed"
    assert set(log.state.sessions) == {ROOT, KID}, "it can still be unparked"
    assert log.state.tree_rests(ROOT)
    driver.set_policy(log, {"result.idle_parent": "store"})
    driver.cancel(log, 2)
    assert (log.state.sessions, log.state.runs, log.state.book.seats) == ({}, {}, {})


def test_a_parked_run_starts_at_once_with_the_next_message_where_a_slot_is_free() -> None:
    log = with_child()
    driver.send(log, 2, KID)
    driver.settle(log, 1, INTERRUPTED)
    decision = driver.send(log, 3, KID)
    assert decision.value.status == "queued"
    assert decision.effects == (StartRun(run_id=RunId("r_2")),)
    assert log.run_rows["r_2"].status == "running"


@pytest.mark.parametrize("ending", [CANCELLED, FAILED, DONE])
def test_no_other_end_of_a_run_parks_what_waits_behind_it(ending: driver.Ending) -> None:
    log = with_child()
    driver.send(log, 2, KID)
    driver.step(log, KID, "x")
    driver.settle(log, 1, ending)
    assert log.run_rows["r_2"].status == "running"


def test_interrupting_an_unstarted_run_ends_it_and_parks_nobody() -> None:
    log = with_child({"caps.running.root": 1})
    driver.spawn(log, 2)
    driver.send(log, 3, "s_2")
    assert driver.end_run(log, 2).value.status == "interrupted"
    assert not log.run_rows["r_3"].is_parked
    driver.finish(log, 1)
    assert log.run_rows["r_3"].status == "running"
