"""Whole trees: a policy set while they live, the master switch, deletion, what is read again, what leaves memory."""

from typing import Any

import msgspec
import pytest

from retinue.core.decide.base import StartRun, StopRun, Wake
from retinue.core.decide.trees import decide_wake
from retinue.core.events import (
    ContextCompacted,
    ContextSeeded,
    LetterQueued,
    PolicyChanged,
    RunSettled,
    RunStarted,
    SessionDeleted,
    SwitchChanged,
    TurnClosed,
)
from retinue.core.ids import RunId, Seq, SessionId
from retinue.core.state import State, caps_of, depth_cap
from tests.core import driver
from tests.core.driver import CANCELLED, DONE, FAILED, INTERRUPTED, Log, refused

ROOT = SessionId("s_root")
KID = SessionId("s_1")
WIDE: dict[str, Any] = {"caps.running.process": None, "caps.running.root": None, "caps.max_depth": None}
QUIET = {**WIDE, "result.idle_parent": "store"}


def started(decision: driver.Decision) -> list[str]:
    return [effect.run_id for effect in decision.effects if isinstance(effect, StartRun)]


def stopped(decision: driver.Decision) -> list[str]:
    return [effect.run_id for effect in decision.effects if isinstance(effect, StopRun)]


# ------------------------------------------------------------------------------------------------------- policy


def test_S4_lowering_a_cap_stops_nobody_and_starts_nobody_until_use_has_dropped() -> None:
    log = driver.opened({"caps.running.root": 3})
    for number in range(1, 6):
        driver.spawn(log, number)
    decision = driver.set_policy(log, {"caps.running.root": 1})
    assert (started(decision), stopped(decision), log.state.book.total) == ([], [], 3)
    assert started(driver.settle(log, 1, FAILED)) == []
    assert started(driver.settle(log, 2, FAILED)) == []
    assert started(driver.settle(log, 3, FAILED)) == ["r_4"]


@pytest.mark.parametrize("cap", ["caps.running.process", "caps.running.root", "caps.running.parent"])
def test_raising_a_cap_admits_at_once_in_their_order(cap: str) -> None:
    log = driver.opened({**WIDE, cap: 1})
    for number in range(1, 5):
        driver.spawn(log, number)
    decision = driver.set_policy(log, {cap: 3})
    assert started(decision) == ["r_2", "r_3"]
    assert isinstance(decision.drafts[0].fact, PolicyChanged)
    assert decision.value[cap] == log.state.policy(ROOT)[cap] == 3
    assert started(driver.set_policy(log, {cap: None})) == ["r_4"]


def test_a_policy_is_that_of_one_tree() -> None:
    log = driver.opened({"caps.running.root": 1, "caps.running.process": None})
    driver.open_root(log, "s_other", {"caps.running.root": 1, "caps.running.process": None})
    driver.open_turn(log, "s_other")
    for number, parent in ((1, "s_root"), (2, "s_root"), (3, "s_other"), (4, "s_other")):
        driver.spawn(log, number, parent)
    assert started(driver.set_policy(log, {"caps.running.root": 2}, "s_other")) == ["r_4"]
    assert log.state.caps(ROOT) == caps_of(log.state.policy(ROOT))
    assert (log.state.caps(ROOT).root, log.state.caps(SessionId("s_other")).root) == (1, 2)


def test_a_change_stays_with_the_tree_and_is_read_again_with_its_log() -> None:
    log = driver.opened({"caps.max_depth": 2})
    driver.set_policy(log, {"caps.max_depth": 5, "wait.s": [1, 2, 3]})
    driver.close(log, ending=FAILED)
    assert log.state.trees == {}
    driver.recall(log, ROOT)
    policy = log.state.policy(ROOT)
    assert (policy["caps.max_depth"], policy["wait.s"]) == (5, (1, 2, 3))


def test_a_policy_of_a_session_that_is_not_open_is_not_found() -> None:
    log = driver.opened()
    assert refused(lambda: driver.set_policy(log, {"caps.max_depth": 1}, "s_nobody")).code == "not_found"


@pytest.mark.parametrize(
    ("own", "now", "of_root", "of_child"),
    [(None, None, None, None), (None, 2, 2, 2), (2, None, None, 2), (2, 5, 5, 2), (5, 2, 2, 2)],
)
def test_a_childs_depth_is_its_own_right_within_what_the_policy_says_now(
    own: int | None, now: int | None, of_root: int | None, of_child: int | None
) -> None:
    log = driver.opened({"caps.max_depth": None})
    driver.spawn(log, 1, rights=driver.Rights(max_depth=own))
    driver.set_policy(log, {"caps.max_depth": now})
    policy = log.state.policy(ROOT)
    assert depth_cap(log.state.sessions[ROOT], policy) == of_root
    assert depth_cap(log.state.sessions[KID], policy) == of_child


# ------------------------------------------------------------------------------------------------------- switch


def test_S109_switching_off_settles_what_waits_stops_what_runs_and_refuses_what_is_new() -> None:
    log = driver.opened({**WIDE, "caps.running.root": 2})
    driver.open_root(log, "s_idle")
    driver.spawn(log, 1)
    driver.spawn(log, 2, "s_1")
    driver.spawn(log, 3)
    driver.send(log, 4, "s_1")
    decision = driver.set_switch(log, on=False)
    assert (decision.switch, log.state.switch_on) == (False, False)
    assert sorted(stopped(decision)) == ["r_1", "r_2"]
    assert {effect.ending.reason for effect in decision.effects if isinstance(effect, StopRun)} == {"switched_off"}
    assert {(fact.run_id, fact.reason) for fact in log.facts(RunSettled)} == {
        ("r_3", "switched_off"),
        ("r_4", "switched_off"),
    }
    logs = [event.session_id for event in log.events if isinstance(event.fact, SwitchChanged)]
    assert logs == [ROOT, "s_idle"]
    assert refused(lambda: driver.spawn(log, 5)).code == "switched_off"
    driver.step(log, ROOT, "the conversation goes on")
    assert not any(letter.waking for letter in log.facts(LetterQueued))


def test_switching_on_again_starts_nothing_and_allows_everything() -> None:
    log = driver.opened()
    driver.spawn(log, 1)
    driver.set_switch(log, on=False)
    driver.settle(log, 1, CANCELLED)
    decision = driver.set_switch(log, on=True)
    assert (started(decision), decision.switch, log.state.switch_on) == ([], True, True)
    assert driver.spawn(log, 2).value.status == "running"


def test_whoever_letters_keep_in_memory_is_woken_when_what_held_them_back_is_over() -> None:
    log = driver.opened()
    driver.spawn(log, 1)
    assert log.do(decide_wake, None).effects == ()
    driver.close(log, ending=FAILED)
    driver.report(log, "a", KID)
    for decision in (log.do(decide_wake, None), driver.set_policy(log, {"wait.s": [1, 2, 3]})):
        assert Wake(session_id=ROOT) in decision.effects
    assert driver.set_switch(log, on=True).effects == (Wake(session_id=ROOT),)


# ------------------------------------------------------------------------------------------------------ deletion


def test_S102_deleting_a_child_leaves_its_run_with_the_parent_and_its_session_nowhere() -> None:
    log = driver.opened(QUIET)
    driver.spawn(log, 1)
    driver.finish(log, 1)
    decision = driver.delete(log, KID, parent=ROOT)
    assert decision.deleted is not None
    assert decision.deleted.session_ids == (KID,)
    (fact,) = log.facts(SessionDeleted)
    assert fact.child_id == KID
    assert log.state.sessions[ROOT].kids[KID].deleted
    assert RunId("r_1") in log.state.runs, "its result can still be read"
    driver.step(log, ROOT, "seen")
    assert log.run_rows["r_1"].result_state == "absorbed"


def test_a_whole_tree_leaves_memory_with_its_deletion() -> None:
    log = driver.opened(QUIET)
    driver.spawn(log, 1, continuable=False)
    driver.spawn(log, 2, "s_1")
    driver.finish(log, 2)
    driver.finish(log, 1)
    driver.close(log, ending=FAILED)
    driver.recall(log, "s_2")
    assert set(log.state.sessions) == {ROOT, KID, SessionId("s_2")}
    driver.delete(log, "s_2", KID, ROOT)
    assert log.facts(SessionDeleted) == []
    assert (log.state.sessions, log.state.runs, log.state.trees) == ({}, {}, {})


def test_the_deletion_of_a_child_whose_parent_is_on_disk_leaves_no_fact_for_it() -> None:
    log = driver.opened(QUIET)
    driver.spawn(log, 1)
    driver.finish(log, 1)
    driver.close(log, ending=FAILED)
    decision = driver.delete(log, KID, parent=ROOT)
    assert decision.drafts == ()
    assert decision.deleted is not None


def test_whoever_still_works_is_not_deleted() -> None:
    log = driver.opened({**QUIET, "life.cancel_with_parent": "never"})
    driver.spawn(log, 1)
    driver.spawn(log, 2, "s_1")
    driver.settle(log, 1, FAILED)
    for target in ("s_root", "s_1", "s_2"):
        assert refused(lambda one=target: driver.delete(log, one)).code == "turn_open"
    assert driver.delete(log, "s_elsewhere").deleted is not None


def test_a_deleted_child_that_was_never_spawned_here_changes_nothing_else() -> None:
    log = driver.opened()
    log.append(ROOT, SessionDeleted(child_id=SessionId("s_x")))
    assert log.state.sessions[ROOT].kids[SessionId("s_x")].deleted
    assert not log.state.sessions[ROOT].awaits_children


# --------------------------------------------------------------------------------------------- what leaves memory


def test_an_ancestor_stays_as_long_as_anything_below_it_is_open() -> None:
    log = driver.opened({**QUIET, "life.cancel_with_parent": "never"})
    parent = "s_root"
    for number in (1, 2, 3, 4):
        driver.spawn(log, number, parent)
        parent = f"s_{number}"
    driver.close(log, ending=FAILED)
    for number in (1, 2, 3):
        driver.settle(log, number, FAILED)
        assert len(log.state.sessions) == 5
        assert not log.state.tree_rests(ROOT)
    driver.settle(log, 4, FAILED)
    assert (log.state.sessions, log.state.runs, log.state.trees) == ({}, {}, {})


def test_a_child_leaves_memory_at_its_end_and_its_run_when_its_result_is_home() -> None:
    log = driver.opened()
    driver.spawn(log, 1)
    driver.finish(log, 1)
    assert set(log.state.sessions) == {ROOT}
    assert set(log.state.runs) == {"r_1"}
    driver.open_step(log, ROOT)
    assert log.state.runs == {}
    driver.say(log, ROOT, "done")
    driver.close(log, ending=DONE)
    assert (log.state.sessions, log.state.trees, dict(log.state.book.by_root)) == ({}, {}, {})


def test_a_result_nobody_fetched_leaves_memory_with_its_parent() -> None:
    log = driver.opened({"result.delivery": "pull", "result.turn_end": "detach"})
    driver.spawn(log, 1)
    driver.spawn(log, 2, delivery="handle")
    driver.finish(log, 1)
    driver.finish(log, 2)
    driver.step(log, ROOT, "done")
    driver.close(log)
    assert (log.state.sessions, log.state.runs) == ({}, {})


def test_letters_that_will_start_a_turn_keep_their_receiver_and_others_do_not() -> None:
    for idle_parent, stays in (("start_turn", True), ("store", False)):
        log = driver.opened({"result.idle_parent": idle_parent})
        driver.spawn(log, 1)
        driver.close(log, ending=FAILED)
        driver.finish(log, 1)
        assert (ROOT in log.state.sessions) is stays
        assert ("s_root" in {s.session_id for s in log.state.sessions.values() if log.state.rouses(s)}) is stays


@pytest.mark.parametrize("why", ["policy", "switch", "budget"])
def test_a_session_that_letters_kept_leaves_memory_when_they_will_start_nothing_any_more(why: str) -> None:
    log = driver.opened({**WIDE, "budget.tree_tokens_max": 1_000})
    driver.spawn(log, 1)
    driver.spawn(log, 2, "s_1")
    driver.spawn(log, 3)
    driver.settle(log, 1, FAILED)
    driver.settle(log, 2, FAILED)
    driver.step(log, ROOT, "seen")
    assert log.state.rouses(log.state.sessions[KID])
    if why == "policy":
        driver.set_policy(log, {"result.idle_parent": "store"})
    elif why == "switch":
        driver.set_switch(log, on=False)
    else:
        driver.step(log, "s_3", "x", usage=driver.Usage(input=2_000, total=2_000, requests=1))
    assert KID not in log.state.sessions
    driver.settle(log, 3, CANCELLED)
    driver.close(log, ending=FAILED)
    assert (log.state.sessions, log.state.trees) == ({}, {})


def test_a_tree_rests_when_nothing_works_waits_for_a_slot_or_is_about_to_start() -> None:
    log = driver.opened()
    driver.open_root(log, "s_other")
    driver.open_turn(log, "s_other")
    assert (log.state.tree_rests(ROOT), log.state.tree_rests(SessionId("s_nobody"))) == (False, True)
    driver.spawn(log, 1)
    driver.close(log, ending=FAILED)
    assert not log.state.tree_rests(ROOT), "a child works"
    driver.send(log, 2, "s_1", sender=None)
    driver.settle(log, 1, INTERRUPTED)
    assert not log.state.tree_rests(ROOT), "a letter will start a turn"
    driver.rouse(log, "x")
    assert not log.state.tree_rests(ROOT), "the root is in a turn"
    driver.close(log, ending=FAILED)
    assert log.state.tree_rests(ROOT), "what is parked is not about to start"


def test_the_rows_that_a_batch_changed_are_told_once() -> None:
    log = driver.opened()
    state = log.state
    driver.spawn(log, 1)
    assert state.end_batch() == ((), ())


# --------------------------------------------------------------------------------------------------- reading again


def test_a_log_that_is_read_again_counts_nobody_twice() -> None:
    caps = {"caps.created.root_run": 3, "caps.created.turn": None, "result.auto_turns_max": 2}
    log = driver.opened({**WIDE, **caps, "result.turn_end": "detach"})
    for number in (1, 2):
        driver.spawn(log, number)
    driver.spawn(log, 3, "s_1")
    driver.settle(log, 1, FAILED)
    driver.settle(log, 3, FAILED)
    driver.rouse(log, 4, "s_1")
    driver.step(log, "s_1", "seen")
    driver.settle(log, 4)
    tree = log.state.trees[ROOT]
    assert (KID in log.state.sessions, tree.auto_turns[RunId("r_root_turn1")]) == (False, 1)
    driver.recall(log, KID)
    assert log.state.trees[ROOT] is tree
    assert (tree.auto_turns[RunId("r_root_turn1")], log.state.created_below(ROOT, RunId("r_root_turn1"))) == (1, 3)
    assert (log.state.book.queue_length(ROOT), set(log.state.book.working)) == (0, {"r_2"})


def test_what_is_read_again_leaves_memory_with_the_next_commit_and_its_rows_are_not_written_again() -> None:
    log = driver.opened(QUIET)
    driver.spawn(log, 1)
    driver.spawn(log, 2, "s_1")
    driver.finish(log, 2)
    driver.finish(log, 1)
    driver.close(log, ending=FAILED)
    driver.recall(log, "s_2")
    assert set(log.state.sessions) == {ROOT, KID, SessionId("s_2")}
    assert log.state.end_batch() == ((), ())
    assert (log.state.sessions, log.state.runs, log.state.trees) == ({}, {}, {})


def test_letters_that_nobody_had_read_when_the_process_started_wake_nobody() -> None:
    log = driver.opened()
    driver.spawn(log, 1)
    driver.close(log, ending=FAILED)
    driver.finish(log, 1)
    reborn = State()
    reborn.load([event for event in log.events if event.session_id == ROOT])
    root = reborn.sessions[ROOT]
    assert (list(root.mail), root.rousing, reborn.rouses(root)) == (["l_1"], {}, False)


def test_a_loaded_log_is_the_state_it_was_with_what_was_parked_and_queued() -> None:
    log = driver.opened({**WIDE, "caps.running.root": 1})
    driver.spawn(log, 1)
    driver.send(log, 2, KID)
    driver.settle(log, 1, INTERRUPTED)
    driver.spawn(log, 3)
    driver.spawn(log, 4)
    reborn = State()
    reborn.load(log.events)
    assert {run_id: run.status for run_id, run in reborn.runs.items()} == {
        run_id: run.status for run_id, run in log.state.runs.items()
    }
    for name in ("parked", "waiting", "working", "occupied"):
        assert list(getattr(reborn.book, name)) == list(getattr(log.state.book, name)), name
    assert reborn.sessions[ROOT].parked == log.state.sessions[ROOT].parked == {"r_2": None}


# --------------------------------------------------------------------------------------------------------- forks


def test_S29_a_fork_begins_with_the_completed_turns_only_and_its_seed_is_nobodys_output() -> None:
    log = driver.opened()
    driver.step(log, ROOT, "first answer")
    driver.close(log)
    driver.recall(log, ROOT)
    driver.open_turn(log, ROOT, "second")
    driver.step(log, ROOT, "thinking aloud")
    driver.fork(log, 1)
    (seeded,) = log.facts(ContextSeeded)
    assert [message.text for message in seeded.messages] == ["go", "first answer"]
    closed = next(event for event in log.events if isinstance(event.fact, TurnClosed))
    assert (seeded.from_id, seeded.up_to_seq) == (ROOT, closed.seq)
    driver.open_step(log, KID)
    assert [message.text for message in log.state.sessions[KID].request()] == ["go", "first answer", "task 1"]
    driver.say(log, KID, "")
    assert driver.settle(log, 1).value.output == ""
    assert isinstance(log.facts(RunStarted)[-1], RunStarted)


def test_a_fork_of_a_fork_begins_with_what_the_first_began_with_until_its_own_turn_is_over() -> None:
    log = driver.opened(WIDE)
    driver.step(log, ROOT, "root's")
    driver.close(log)
    driver.recall(log, ROOT)
    driver.open_turn(log, ROOT)
    driver.fork(log, 1)
    driver.step(log, KID, "kid's")
    driver.fork(log, 2, "s_1")
    assert [message.text for message in log.facts(ContextSeeded)[-1].messages] == ["go", "root's"]
    driver.settle(log, 2, FAILED)
    driver.settle(log, 1, FAILED)
    driver.send(log, 3, "s_1")
    driver.fork(log, 4, "s_1")
    seed = [message.text for message in log.facts(ContextSeeded)[-1].messages]
    assert seed == ["go", "root's", "task 1", "kid's"]


def compact(log: Log, session_id: str, kept: int) -> None:
    seq = Seq(log.state.sessions[SessionId(session_id)].seq)
    log.append(session_id, ContextCompacted(up_to_seq=seq, text="notes", kept=kept))


def test_a_compaction_in_the_open_turn_changes_no_completed_turn_and_one_before_it_is_the_history() -> None:
    log = driver.opened()
    driver.step(log, ROOT, "one")
    driver.close(log)
    driver.recall(log, ROOT)
    driver.open_turn(log, ROOT, "second")
    driver.step(log, ROOT, "two")
    compact(log, ROOT, 1)
    driver.fork(log, 1)
    assert [message.text for message in log.facts(ContextSeeded)[-1].messages] == ["go", "one"]
    driver.settle(log, 1, FAILED)
    driver.step(log, ROOT, "three")
    driver.close(log)
    driver.recall(log, ROOT)
    driver.open_turn(log, ROOT, "third")
    driver.fork(log, 2)
    seed = [message.text for message in log.facts(ContextSeeded)[-1].messages]
    assert (seed[:2], seed[-1]) == (["notes", "two"], "three")


def test_a_fork_of_a_session_without_a_completed_turn_begins_with_nothing() -> None:
    log = driver.opened()
    driver.fork(log, 1)
    (seeded,) = log.facts(ContextSeeded)
    assert (seeded.messages, seeded.up_to_seq) == ((), 0)
    plain = driver.opened()
    driver.spawn(plain, 1)
    assert plain.facts(ContextSeeded) == []


def test_a_seed_is_frozen_when_the_child_is_accepted() -> None:
    log = driver.opened({"caps.running.root": 1})
    driver.spawn(log, 1)
    driver.fork(log, 2)
    driver.close(log, ending=msgspec.structs.replace(FAILED, whole=True))
    driver.settle(log, 1, FAILED)
    assert log.facts(ContextSeeded)[-1].messages == ()
