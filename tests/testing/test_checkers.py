"""Every rule passes a legal log and catches one that breaks it."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from retinue.core.events import (
    Event,
    LetterAbsorbed,
    LetterQueued,
    MessageAssistant,
    MessageUser,
    RunQueued,
    RunResumed,
    RunSettled,
    RunStarted,
    RunWaiting,
    SessionOpened,
    StepClosed,
    StepOpened,
    ToolFinished,
    ToolStarted,
    TurnClosed,
    TurnOpened,
    Usage,
)
from retinue.core.ids import Position, RunId, Seq, SessionId
from retinue.core.policy import Policy
from retinue.core.state import State
from retinue.ports import AssistantText, Batch, ModelRequest, Store, ToolText, UserText
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.checkers import (
    all_events,
    check_all,
    check_kept,
    check_projections,
    check_requests,
    rebuild_rows,
)
from retinue.testing.fakes import Seen
from tests.testing.tale import changed, doubled, index, moved, renumbered, told, without

Log = list[Event]


def stamped(events: Log, place: int, **fields: Any) -> Log:
    return [*events[:place], msgspec.structs.replace(events[place], **fields), *events[place + 1 :]]


def in_policy(events: Log, **switches: Any) -> Log:
    sets = {key.replace("__", "."): value for key, value in switches.items()}
    policy = {"name": "standard", "set": {"caps.running.root": 1, "caps.max_depth": 2, **sets}}
    return changed(events, index(events, SessionOpened, depth=0), policy=policy)


def spec_of(events: Log, run: str, **fields: Any) -> Log:
    place = index(events, RunQueued, run_id=run)
    fact = events[place].fact
    assert isinstance(fact, RunQueued)
    return changed(events, place, spec=msgspec.structs.replace(fact.spec, **fields))


def slot_too_early(events: Log) -> Log:
    """The second child starts beside the first, over a cap of one."""
    first = index(events, RunStarted, run_id="r_2") - 3
    places = list(range(first, first + 4))
    group = [events[place] for place in places]
    rest = [event for place, event in enumerate(events) if place not in places]
    target = index(rest, RunQueued, run_id="r_2") + 1
    return renumbered([*rest[:target], *group, *rest[target:]])


def early_step(events: Log) -> Log:
    """The letter is absorbed one step too late."""
    places = [index(events, LetterAbsorbed), index(events, MessageUser, source="agent")]
    group = [events[place] for place in places]
    rest = [event for place, event in enumerate(events) if place not in places]
    target = index(rest, StepClosed, turn=1, step=2, run_id=None) + 1
    return renumbered([*rest[:target], *group, *rest[target:]])


def both_ways(events: Log) -> Log:
    return changed(events, index(events, ToolFinished, call_id="c_1"), run_id="r_1")


def letter_for_awaited(events: Log) -> Log:
    place = index(events, LetterQueued)
    extra = msgspec.structs.replace(
        events[place], fact=msgspec.structs.replace(events[place].fact, letter_id="l_2", run_id="r_2")
    )
    return renumbered([*events[: place + 1], extra, *events[place + 1 :]])


def closed_before_child(events: Log) -> Log:
    """The root closes its turn while a child works on."""
    group = [events[-1]]
    target = index(events, RunSettled, run_id="r_1")
    return renumbered([*events[:target], *group, *events[target:-1]])


def never_settled(events: Log) -> Log:
    return without(events, index(events, RunSettled, run_id="r_1"), index(events, LetterQueued))


BROKEN: list[tuple[str, str, Callable[[Log], Log]]] = [
    ("check_sequence", "should be", lambda e: stamped(e, 10, seq=Seq(99))),
    ("check_sequence", "does not come after", lambda e: stamped(e, 10, position=Position(3))),
    ("check_sequence", "does not begin", lambda e: without(e, 0)),
    ("check_sequence", "opened again", lambda e: doubled(e, 0)),
    ("check_sequence", "filed under root", lambda e: stamped(e, 10, root_id=SessionId("s_9"))),
    ("check_turns", "turn 1 is never closed", lambda e: e[:-1]),
    ("check_turns", "turn 1 is still open", lambda e: doubled(e, index(e, TurnOpened))),
    ("check_turns", "comes after turn 0", lambda e: changed(e, index(e, TurnOpened), turn=2)),
    ("check_turns", "comes after step 1", lambda e: changed(e, index(e, StepOpened, step=2), step=4)),
    ("check_turns", "step 1 is still open", lambda e: without(e, index(e, StepClosed))),
    ("check_turns", "step 2 is still open", lambda e: without(e, index(e, StepClosed, -1))),
    ("check_turns", "step 1 is not open", lambda e: doubled(e, index(e, StepClosed))),
    ("check_turns", "answered twice", lambda e: doubled(e, index(e, MessageAssistant))),
    ("check_turns", "turn 1 is not open", lambda e: moved(e, index(e, MessageUser, source="agent"), len(e))),
    ("check_turns", "turn 1 is not open", lambda e: moved(e, len(e) - 1, index(e, LetterAbsorbed))),
    ("check_turns", "no turn is open", lambda e: moved(e, index(e, ToolFinished, call_id="c_3"), len(e))),
    ("check_calls", "no answer: c_1", lambda e: without(e, index(e, ToolFinished, call_id="c_1"))),
    ("check_calls", "no answer: c_2", lambda e: moved(e, index(e, ToolFinished, call_id="c_2"), len(e))),
    ("check_calls", "answered twice", lambda e: doubled(e, index(e, ToolFinished))),
    ("check_calls", "runs already", lambda e: doubled(e, index(e, ToolStarted))),
    ("check_calls", "made before", lambda e: doubled(e, index(e, MessageAssistant))),
    ("check_runs", "never settled", never_settled),
    ("check_runs", "r_1 was unknown", lambda e: without(e, index(e, RunQueued))),
    ("check_runs", "r_2 was completed", lambda e: doubled(e, index(e, RunSettled, run_id="r_2"))),
    ("check_runs", "r_1 was running", lambda e: doubled(e, index(e, RunStarted))),
    ("check_runs", "without having started", lambda e: without(e, index(e, RunStarted, run_id="r_2"))),
    ("check_runs", "cannot be running", lambda e: changed(e, index(e, RunSettled), status="running")),
    ("check_runs", "call_id of run r_3 changed", lambda e: changed(e, index(e, RunStarted, run_id="r_3"), call_id="x")),
    ("check_runs", "not in that of its parent", lambda e: changed(e, index(e, RunSettled), parent_id="s_1")),
    ("check_runs", "cannot wait for children", lambda e: moved(e, index(e, RunWaiting), index(e, RunStarted))),
    ("check_runs", "queued, not running", lambda e: moved(e, index(e, RunResumed), index(e, RunStarted))),
    ("check_runs", "belongs in the log", lambda e: changed(e, index(e, RunResumed), child_id="s_3")),
    ("check_children", "not opened yet", lambda e: moved(e, index(e, SessionOpened, name="s_3"), len(e))),
    ("check_children", "another parent", lambda e: changed(e, index(e, SessionOpened, name="s_3"), parent_id="s_2")),
    ("check_children", "has 0 turns", lambda e: changed(e, index(e, TurnOpened, run_id="r_2"), run_id=None)),
    ("check_slots", "2 runs work, caps.running.root is 1", slot_too_early),
    ("check_slots", "2 runs work, caps.running.parent", lambda e: slot_too_early(in_policy(e, **ONE_PER_PARENT))),
    ("check_slots", "caps.running.process is 1", lambda e: in_policy(without(e, index(e, RunWaiting)), **ONE_AT_ALL)),
    ("check_slots", "2 runs work", lambda e: without(e, index(e, RunWaiting))),
    ("check_slots", "2 runs work", lambda e: moved(e, index(e, RunResumed), index(e, StepOpened, step=1, nth=-1))),
    ("check_slots", "has a slot already", lambda e: doubled(e, index(e, RunResumed))),
    ("check_endings", "no ending completed/timeout", lambda e: changed(e, index(e, TurnClosed), reason="timeout")),
    ("check_endings", "status is 'completed' in its turn", lambda e: changed(e, settled(e), **FAILED)),
    ("check_endings", "reason is 'done_empty' in its turn", lambda e: changed(e, turn_of_r_1(e), **EMPTY)),
    ("check_endings", "text is 'x' in its turn", lambda e: changed(e, turn_of_r_1(e), text="x")),
    ("check_endings", "steps is 2 in its turn", lambda e: changed(e, settled(e), steps=7)),
    ("check_endings", "has the output None", lambda e: changed(e, len(e) - 1, text=None)),
    ("check_endings", "has a partial text", lambda e: changed(e, len(e) - 1, partial="some")),
    ("check_endings", "the reason is done", lambda e: changed(e, len(e) - 1, text=" ")),
    ("check_endings", "its turn is not closed", lambda e: without(e, turn_of_r_1(e))),
    ("check_endings", "is not settled", never_settled),
    ("check_depth", "do not follow", lambda e: changed(e, index(e, SessionOpened, name="s_4"), depth=3)),
    ("check_depth", "over the cap 1", lambda e: in_policy(e, caps__max_depth=1)),
    ("check_depth", "over the cap 1", lambda e: rights_of(e, "s_2", max_depth=1)),
    ("check_depth", "a root has", lambda e: changed(e, 0, depth=1)),
    ("check_depth", "does not exist", lambda e: changed(e, index(e, SessionOpened, name="s_3"), parent_id="s_9")),
    ("check_created", "caps.created.turn is 1", lambda e: in_policy(e, caps__created__turn=1)),
    ("check_created", "caps.created.root_run is 2", lambda e: in_policy(e, caps__created__root_run=2)),
    ("check_letters", "does not exist", lambda e: changed(e, index(e, LetterQueued), receiver_id="s_9")),
    ("check_letters", "its receiver is s_2", lambda e: changed(e, index(e, LetterQueued), receiver_id="s_2")),
    ("check_letters", "comes twice", lambda e: doubled(e, index(e, LetterQueued))),
    ("check_letters", "not settled yet", lambda e: moved(e, index(e, LetterQueued), settled(e))),
    ("check_letters", "no letter l_9", lambda e: changed(e, index(e, LetterAbsorbed), letter_id="l_9")),
    ("check_letters", "of run r_1, not r_2", lambda e: changed(e, index(e, LetterAbsorbed), run_id="r_2")),
    ("check_letters", "absorbed twice", lambda e: doubled(e, index(e, LetterAbsorbed))),
    ("check_letters", "shown 2 times", lambda e: doubled(e, index(e, MessageUser, source="agent"))),
    ("check_letters", "shown 0 times", lambda e: without(e, index(e, MessageUser, source="agent"))),
    ("check_letters", "does not say", lambda e: changed(e, index(e, MessageUser, source="agent"), text="else")),
    ("check_deliveries", "more than once", both_ways),
    ("check_deliveries", "more than once", letter_for_awaited),
    ("check_deliveries", "2 times absorbed", lambda e: doubled(e, index(e, LetterAbsorbed))),
    ("check_deliveries", "2 times collected", lambda e: doubled(e, index(e, ToolFinished, run_id="r_2"))),
    ("check_deliveries", "knows nothing of it", early_step),
    (
        "check_deliveries",
        "knows nothing of it",
        lambda e: changed(e, index(e, ToolFinished, run_id="r_3"), run_id=None),
    ),
    ("check_deliveries", "no letter tells its parent", lambda e: without(e, *letter_facts(e))),
    (
        "check_deliveries",
        "r_2, which is not settled",
        lambda e: changed(e, index(e, ToolFinished, call_id="c_1"), run_id="r_2"),
    ),
    ("check_deliveries", "of another parent", lambda e: changed(e, index(e, ToolFinished, run_id="r_2"), run_id="r_3")),
    ("check_turn_ends", "closed before its run r_1", closed_before_child),
    ("check_turn_ends", "closed before its run r_1", lambda e: closed_before_child(cancelled(e))),
    ("check_turn_ends", "without the result of its run r_1", lambda e: without(e, *letter_facts(e)[1:])),
    ("check_usage", "its steps say", lambda e: changed(e, len(e) - 1, usage=Usage(input=1))),
    ("check_usage", "the sums say", lambda e: changed(e, len(e) - 1, usage_tree=Usage(input=1))),
    ("check_usage", "its turn is r_1", lambda e: changed(e, index(e, StepClosed, run_id="r_1"), run_id="r_2")),
    ("check_usage", "never started, but used", lambda e: without(e, index(e, RunStarted, run_id="r_2"))),
]
ONE_PER_PARENT: dict[str, Any] = {"caps__running__root": None, "caps__running__parent": 1}
ONE_AT_ALL: dict[str, Any] = {"caps__running__root": None, "caps__running__process": 1}
FAILED: dict[str, Any] = {"status": "failed", "reason": "timeout", "output": None, "partial": "child text"}
EMPTY: dict[str, Any] = {"text": "", "reason": "done_empty"}


def settled(events: Log) -> int:
    return index(events, RunSettled, run_id="r_1")


def turn_of_r_1(events: Log) -> int:
    return index(events, TurnClosed, run_id="r_1")


def letter_facts(events: Log) -> list[int]:
    return [index(events, LetterQueued), index(events, LetterAbsorbed), index(events, MessageUser, source="agent")]


def cancelled(events: Log) -> Log:
    return changed(events, len(events) - 1, status="cancelled", reason="cancelled", text=None)


def rights_of(events: Log, session: str, **fields: Any) -> Log:
    place = index(events, SessionOpened, name=session)
    fact = events[place].fact
    assert isinstance(fact, SessionOpened)
    return changed(events, place, rights=msgspec.structs.replace(fact.rights, **fields))


def test_a_legal_log_has_no_problem() -> None:
    assert check_all(told()) == []
    assert check_all([]) == []


@pytest.mark.parametrize(("name", "said", "break_it"), BROKEN)
def test_each_broken_log_is_caught_by_its_rule(name: str, said: str, break_it: Callable[[Log], Log]) -> None:
    problems = check_all(break_it(told()))
    assert any(problem.startswith(f"{name}: ") and said in problem for problem in problems), problems


def test_a_log_that_ends_early_is_legal_where_that_is_allowed() -> None:
    events = told()
    cut = events[: index(events, RunStarted, run_id="r_3") + 1]
    assert check_all(cut, at_rest=False) == []
    assert check_all(cut) != []


def test_a_policy_replaces_the_stored_ones() -> None:
    policy = Policy(changes={"caps.max_depth": 1, "caps.running.root": 1})
    assert any("over the cap 1" in problem for problem in check_all(told(), policy))


def test_under_opt_in_only_the_flagged_and_the_awaited_are_bound_to_the_turn() -> None:
    opt_in = {"life__cancel_with_parent": "opt_in", "caps__created__turn": 2}
    free = closed_before_child(cancelled(in_policy(told(), **opt_in)))
    flagged = spec_of(free, "r_1", cancel_with_parent=True)
    said = "closed before its run r_1"
    assert not any(said in problem for problem in check_all(free))
    assert any(said in problem for problem in check_all(flagged))


def test_a_result_taken_through_a_handle_needs_no_letter() -> None:
    events = told()
    by_handle = without(spec_of(events, "r_1", delivery="handle"), *letter_facts(events))
    assert check_all(by_handle) == []


def test_a_run_that_is_cancelled_in_the_queue_is_legal() -> None:
    events = told()
    first = index(events, RunStarted, run_id="r_2") - 3
    ended = index(events, RunSettled, run_id="r_2")
    mine = [place for place in range(first, ended) if events[place].session_id == "s_3" or place == first + 3]
    fields = {"status": "cancelled", "reason": "cancelled", "output": None, "started_at": None}
    shorter = changed(events, ended, steps=0, usage=Usage(), usage_tree=Usage(), **fields)
    shorter = changed(shorter, len(shorter) - 1, usage_tree=usage_of_tree(shorter, 5))
    assert check_all(without(shorter, *mine)) == []


def usage_of_tree(events: Log, steps: int) -> Usage:
    fact = events[-1].fact
    assert isinstance(fact, TurnClosed)
    tree = fact.usage_tree
    return Usage(input=10 * steps, output=2 * steps, total=12 * steps, requests=steps) if tree.requests else tree


def test_nothing_durable_may_be_lost_or_rewritten() -> None:
    events = told()
    assert check_kept(events[:20], events) == []
    assert check_kept(events, events[:20]) == [f"{len(events) - 20} events of the earlier log are lost"]
    assert "reads differently" in check_kept(changed(events, 3, step=9), events)[0]


def request(session: str, number: int, *messages: Any) -> ModelRequest:
    return ModelRequest(
        session_id=SessionId(session),
        root=session == "s_1",
        name=session,
        model="m",
        system="",
        messages=messages,
        tools=(),
        number=number,
    )


def true_requests() -> dict[tuple[str, int], ModelRequest]:
    """What the steps of the tale send, derived here from the fold, request by request."""
    state, found = State(), {}
    for event in told():
        state.apply(event)
        if isinstance(event.fact, StepOpened):
            session = state.sessions[event.session_id]
            made = request(event.session_id, session.requests, *session.request())
            found[(event.session_id, session.requests)] = made
    return found


def test_requests_that_follow_from_the_log_pass() -> None:
    requests = true_requests()
    assert len(requests) == 6
    assert check_requests(told(), requests.values()) == []
    last = requests["s_1", 2].messages
    assert [type(message) for message in last] == [UserText, AssistantText, ToolText, ToolText, UserText]


@pytest.mark.parametrize(
    "changes",
    [
        {"messages": (UserText(text="something else"),)},
        {"number": 3},
        {"session_id": SessionId("s_9")},
    ],
)
def test_a_request_that_no_step_explains_is_caught(changes: dict[str, Any]) -> None:
    wrong = msgspec.structs.replace(true_requests()["s_1", 2], **changes)
    assert "follows from no step" in check_requests(told(), [wrong])[0]


def test_a_retried_request_belongs_to_its_step() -> None:
    events = changed(told(), index(told(), StepClosed, step=2, run_id=None), retries=1)
    again = msgspec.structs.replace(true_requests()["s_1", 2], number=3)
    assert check_requests(events, [again]) == []
    assert check_requests(told(), [again]) != []


def test_a_step_without_a_report_may_have_been_cut_off_in_a_retry() -> None:
    events = changed(told(), index(told(), StepClosed, step=2, run_id=None), usage=None)
    again = msgspec.structs.replace(true_requests()["s_1", 2], number=3)
    assert check_requests(events, [again]) == []


def test_a_request_that_was_sent_before_its_step_was_durable_is_caught() -> None:
    sent = true_requests()["s_1", 2]
    opened = told()[index(told(), StepOpened, step=2, turn=1, nth=-1)].position
    assert check_requests(told(), [Seen(request=sent, position=opened)]) == []
    assert check_requests(told(), [Seen(request=sent, position=opened - 1)]) != []


def stored_tale(**wrong: Any) -> Store:
    state = State()
    for event in told():
        state.apply(event)
    runs, sessions = state.end_batch()
    store = SQLiteStore(":memory:")
    runs = tuple(msgspec.structs.replace(run, **wrong) if run.run_id == "r_2" else run for run in runs)
    store.commit([Batch(events=tuple(told()), runs=runs, sessions=sessions)])
    return store


def test_rows_that_equal_the_folded_log_pass() -> None:
    store = stored_tale()
    assert all_events(store) == told()
    assert check_projections(store) == []


def test_a_row_that_differs_from_its_log_is_caught() -> None:
    problems = check_projections(stored_tale(reason="done_empty"))
    assert problems == ["the run r_2 shows reason 'done_empty', its log says 'done'"]


def test_rows_and_facts_that_miss_each_other_are_caught() -> None:
    store = stored_tale()

    def without_s_2(events: Any) -> Any:
        runs, sessions = rebuild_rows(events)
        return {**runs, "r_9": runs[RunId("r_1")]}, {key: row for key, row in sessions.items() if key != "s_2"}

    problems = check_projections(store, without_s_2)
    assert problems == ["the run r_9 has facts, but no row", "the session s_2 has a row, but no fact"]
