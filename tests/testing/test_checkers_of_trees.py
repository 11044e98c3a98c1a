"""The rules of children with several runs, post, budgets, rights and stops pass a legal log and catch a broken one."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from retinue.core.events import (
    BudgetExceeded,
    ContextSeeded,
    Event,
    LetterAbsorbed,
    LetterQueued,
    MessageAssistant,
    MessageUser,
    NotesAsked,
    PolicyChanged,
    Rights,
    RunQueued,
    RunResumed,
    RunSettled,
    RunStarted,
    RunWaiting,
    SessionDeleted,
    SessionOpened,
    StepClosed,
    StepOpened,
    SwitchChanged,
    ToolFinished,
    TurnClosed,
    TurnOpened,
    Usage,
)
from retinue.core.ids import RunId, SessionId
from retinue.testing.checkers import CHECKS, check_all, check_kept
from retinue.testing.logview import LogView
from tests.testing import test_checkers
from tests.testing.saga import saga
from tests.testing.tale import changed, doubled, index, moved, renumbered, told, without

Log = list[Event]


def put(events: Log, place: int, fact: Any, session: str = "s_1") -> Log:
    """The events with one more before a place."""
    model = events[0]
    fresh = msgspec.structs.replace(model, session_id=SessionId(session), fact=fact)
    return renumbered([*events[:place], fresh, *events[place:]])


def spec(events: Log, run: str, **fields: Any) -> Log:
    place = index(events, RunQueued, run_id=run)
    fact = events[place].fact
    assert isinstance(fact, RunQueued)
    return changed(events, place, spec=msgspec.structs.replace(fact.spec, **fields))


def policy(events: Log, **switches: Any) -> Log:
    """The saga, or the tale, under other switches from its beginning."""
    fact = events[0].fact
    assert isinstance(fact, SessionOpened)
    sets = {**fact.policy["set"], **{key.replace("__", "."): value for key, value in switches.items()}}
    return changed(events, 0, policy={**fact.policy, "set": sets})


def header(events: Log, session: str, **fields: Any) -> Log:
    return changed(events, index(events, SessionOpened, name=session), **fields)


def rights(events: Log, session: str, **fields: Any) -> Log:
    """A session with other rights, asked for and given."""
    place = index(events, SessionOpened, name=session)
    fact = events[place].fact
    assert isinstance(fact, SessionOpened)
    mine = msgspec.structs.replace(fact.rights, **fields)
    events = changed(events, place, rights=mine)
    for number, event in enumerate(events):
        if isinstance(event.fact, RunQueued) and event.fact.child_id == session:
            events = changed(events, number, spec=msgspec.structs.replace(event.fact.spec, rights=mine))
    return events


def letter(events: Log, letter_id: str, **fields: Any) -> Log:
    return changed(events, index(events, LetterQueued, letter_id=letter_id), **fields)


def before(events: Log, kind: type, fact: Any, **fields: Any) -> Log:
    """The events with a fact of the root before the one that is named."""
    return put(events, index(events, kind, **fields), fact)


def close_of_root(events: Log, turn: int) -> int:
    return index(events, TurnClosed, turn=turn, run_id=None)


def ended(events: Log, turn: int, status: str, reason: str) -> Log:
    """The root's turn with another ending."""
    return changed(events, close_of_root(events, turn), status=status, reason=reason, text=None)


def never_began(events: Log) -> Log:
    """The child has its header, and nothing else ever."""
    first = index(events, SessionOpened, name="s_3")
    mine = [place for place, event in enumerate(events) if event.session_id == "s_3" and place != first]
    return without(events, *mine, index(events, RunStarted, run_id="r_2"))


def exceeded_early(events: Log, root_run: str, **fields: Any) -> Log:
    fact = BudgetExceeded(root_run_id=RunId(root_run), limit=1000, spent=12, reserved=0)
    return put(events, index(events, StepClosed, turn=fields.pop("turn"), **fields) + 1, fact)


MESSAGE: dict[str, Any] = {"cause": "message"}
BROKEN: list[tuple[str, str, Callable[[Log], Log]]] = [
    ("check_children", "no run of it ever started", lambda e: never_began(told())),
    ("check_children", "another cause", lambda e: changed(e, index(e, TurnOpened, run_id="r_2"), cause="prompt")),
    (
        "check_children",
        "root run than its run",
        lambda e: changed(e, index(e, TurnOpened, run_id="r_2"), root_run_id="x"),
    ),
    ("check_children", "cannot begin with a message", lambda e: changed(e, index(e, TurnOpened), cause="message")),
    ("check_children", "opened before its first", lambda e: moved(e, index(e, SessionOpened, name="s_2"), 1)),
    ("check_rounds", "its round is 3, not 2", lambda e: spec(e, "r_2", round=3)),
    ("check_rounds", "its round is 2, not 1", lambda e: spec(e, "r_2", cause="letter", prompt="")),
    ("check_rounds", "prompt does not fit", lambda e: spec(e, "r_2", cause="prompt")),
    ("check_rounds", "message does not fit", lambda e: spec(e, "r_1", **MESSAGE)),
    ("check_rounds", "its cause is message and its instruction ''", lambda e: spec(e, "r_3", prompt="")),
    ("check_rounds", "rounds_max is 3, this is number 4", lambda e: policy(e, life__rounds_max=3)),
    ("check_rounds", "messages_max is 2, this is number 3", lambda e: policy(e, life__queued_messages_max=2)),
    ("check_rounds", "its max_steps differs", lambda e: spec(e, "r_3", max_steps=99)),
    ("check_rounds", "its rights differs", lambda e: spec(e, "r_3", rights=Rights(max_depth=3))),
    ("check_rounds", "its model differs", lambda e: changed(e, index(e, RunQueued, run_id="r_3"), model="other")),
    ("check_rounds", "not continuable", lambda e: changed(e, index(e, RunQueued, run_id="r_2"), continuable=False)),
    ("check_rounds", "life.continuation is none", lambda e: policy(e, life__continuation="none")),
    (
        "check_rounds",
        "is in_turn",
        lambda e: changed(
            policy(e, life__continuation="in_turn"), index(e, RunQueued, run_id="r_2"), root_run_id="r_7"
        ),
    ),
    ("check_order", "r_1 is running", lambda e: moved(e, index(e, RunStarted, run_id="r_2"), index(e, RunSettled))),
    ("check_order", "it is parked", lambda e: without(e, index(e, RunWaiting, run_id="r_2", nth=1))),
    ("check_order", "accepted before", lambda e: changed(e, index(e, RunStarted, run_id="r_2"), run_id="r_3")),
    ("check_order", "not parked with it", lambda e: without(e, index(e, RunWaiting, run_id="r_3"))),
    ("check_order", "not parked with it", lambda e: moved(e, index(e, RunWaiting, run_id="r_3"), later_step(e))),
    ("check_order", "r_2 was parked and is back", lambda e: spec(e, "r_4", cause="letter")),
    ("check_seeds", "does not begin with", lambda e: without(e, index(e, ContextSeeded))),
    ("check_seeds", "does not begin with", lambda e: changed(e, index(e, ContextSeeded), messages=())),
    ("check_seeds", "does not begin with", lambda e: spec(e, "r_1", seed=(), seed_seq=None)),
    ("check_seeds", "open turn", lambda e: spec(e, "r_1", seed_seq=9)),
    ("check_context", "does not begin with its task", lambda e: asking(e, prompt="another task")),
    ("check_context", "does not begin with its task and its background", lambda e: asking(e, context="more")),
    ("check_context", "goes on with ' of r_1', which nobody", lambda e: asking(e, prompt="task")),
    ("check_context", "no JSON under a heading", lambda e: asking(e, context=LAST_TURN)),
    ("check_context", "are not those that last_n_turns means", lambda e: packed(e, LAST_TURN, [])),
    ("check_context", "are not those that last_n_turns means", lambda e: packed(e, LAST_TURN, [*PACKED, GO])),
    (
        "check_context",
        "are not those that last_n_turns means",
        lambda e: packed(e, LAST_TURN, [{**GO, "content": "Go"}]),
    ),
    (
        "check_context",
        "are not those that selected means",
        lambda e: packed(e, {"mode": "selected", "seqs": [3]}, [GO]),
    ),
    ("check_context", "are not those that summary means", lambda e: packed(e, {"mode": "summary"}, [GO, *PACKED])),
    ("check_context", "its messages have 240", lambda e: packed(e, {"mode": "summary"}, [{"seq": "x" * 24_000}])),
    ("check_forks", "nothing about it differs", lambda e: asking(e)),
    ("check_forks", "not the one of its parent's last request", lambda e: alike(e, "e")),
    ("check_forks", "and is told nothing, or the reverse", lambda e: spec(e, "r_1", system_digest="d")),
    ("check_forks", "and is told nothing, or the reverse", lambda e: spec(e, "r_1", opening="you are a child")),
    ("check_forks", "a request begins with another", lambda e: changed(alike(e), step_of(e, "s_2"), prompt_digest="e")),
    ("check_slots", "waits for budget and has no slot", lambda e: before(e, RunWaiting, gave_up(e), **BUDGET)),
    ("check_depth", "depth 1 is over the cap 0", lambda e: before(e, RunQueued, lowered(caps__max_depth=0))),
    ("check_rights", "its profile is plan", lambda e: header(e, "s_2", profile="plan")),
    ("check_rights", "its tools are None", lambda e: rights(told(), "s_2", tools=("grep",))),
    ("check_rights", "its tools are ('shell',)", lambda e: wider_tools()),
    ("check_rights", "its tools are None, and ['grep'] were asked for", lambda e: asking(e, tools=["grep"])),
    ("check_rights", "it may delegate", lambda e: rights(e, "s_1", may_delegate=False)),
    ("check_rights", "may be 3 deep, its parent's 2", lambda e: rights(e, "s_2", max_depth=3)),
    ("check_rights", "may be 2 deep, its parent's 1", lambda e: rights(told(), "s_2", max_depth=1)),
    ("check_rights", "may be None deep", lambda e: rights(e, "s_2", max_depth=None)),
    ("check_rights", "its model is not that", lambda e: header(e, "s_2", model="better")),
    (
        "check_letters",
        "the report letter is of",
        lambda e: changed(e, index(e, LetterAbsorbed, letter_id="l_9"), run_id="r_1"),
    ),
    ("check_post", "only where life.message_scope", lambda e: policy(e, life__message_scope="family")),
    ("check_post", "life.report is false", lambda e: policy(e, life__report=False)),
    ("check_post", "is no child of the receiver", lambda e: letter(e, "l_9", sender_id="s_1")),
    ("check_post", "has no open turn", lambda e: letter(moved(e, index(e, LetterQueued), later_step(e)), "l_9")),
    ("check_post", "ended done is not waking", lambda e: letter(e, "l_2", waking=False)),
    ("check_post", "ended parent_cancelled is waking", lambda e: changed(e, settled(e), reason="parent_cancelled")),
    (
        "check_post",
        "came before one that was read",
        lambda e: moved(e, index(e, LetterAbsorbed), index(e, StepOpened, step=3)),
    ),
    ("check_post", "its cause is letter", lambda e: before(e, LetterAbsorbed, SAID, letter_id="l_5")),
    ("check_auto_turns", "idle_parent is store", lambda e: policy(e, result__idle_parent="store")),
    ("check_auto_turns", "auto_turns_max is 0", lambda e: policy(e, result__auto_turns_max=0)),
    (
        "check_auto_turns",
        "turn 2 that letters start in r_8",
        lambda e: spec(other_root(e), "r_4", cause="letter", round=3),
    ),
    ("check_auto_turns", "shows no waking one", lambda e: letter(e, "l_5", waking=False)),
    ("check_auto_turns", "none of its letters names", lambda e: letter(e, "l_5", root_run_id="r_0")),
    ("check_deliveries", "no turn is held open", lambda e: policy(e, result__delivery="pull")),
    ("check_deliveries", "handed over while run r_2 is open", lambda e: pulled_early(e)),
    (
        "check_deliveries",
        "more than once",
        lambda e: changed(e, index(e, ToolFinished, call_id="c_5"), collected=("r_1",)),
    ),
    ("check_turn_ends", "closed before its run r_5", lambda e: policy(without(e, index(e, PolicyChanged)))),
    ("check_turn_ends", "closed before its run r_5", lambda e: ended(e, 3, "interrupted", "interrupted")),
    ("check_turn_ends", "closed before its run r_5", lambda e: flagged(e, cancel_with_parent=True)),
    ("check_turn_ends", "closed before its run r_5", lambda e: spec(never_bound(e), "r_5", delivery="await")),
    ("check_turn_ends", "closed before its run r_5", lambda e: changed(e, index(e, PolicyChanged), changes=CANCEL)),
    ("check_turn_ends", "without the result of its run r_1", lambda e: without(e, *absorbed(e, "l_1"))),
    ("check_budget", "reserves nothing", lambda e: changed(e, index(e, StepOpened, step=2), reserved=None)),
    (
        "check_budget",
        "12 tokens are spent and 989 reserved",
        lambda e: changed(e, index(e, StepOpened, step=2), reserved=989),
    ),
    ("check_budget", "reports explain 15", lambda e: unreported_twice(e)),
    ("check_budget", "exceeds its budget twice", lambda e: doubled(e, index(e, BudgetExceeded))),
    ("check_budget", "in the log of a child", lambda e: in_child(e)),
    ("check_budget", "the limit 7, the policy 1000", lambda e: changed(e, index(e, BudgetExceeded), limit=7)),
    ("check_budget", "it says 1 + 0, the log 1005 + 0", lambda e: changed(e, index(e, BudgetExceeded), spent=1)),
    ("check_budget", "has used up its budget", lambda e: exceeded_early(e, "r_0", turn=2)),
    (
        "check_budget",
        "(run.queued): root run r_0 has used up",
        lambda e: exceeded_early(policy(e, **REFUSE), "r_0", turn=2),
    ),
    ("check_switch", "switched off", lambda e: before(e, RunQueued, SwitchChanged(on=False), run_id="r_3")),
    ("check_switch", "switched off", lambda e: before(e, RunStarted, SwitchChanged(on=False), run_id="r_3")),
    ("check_switch", "run r_1 worked on", lambda e: switched_in_mid_run()),
    ("check_reasons", "ends budget", lambda e: without(e, index(e, BudgetExceeded))),
    ("check_reasons", "ends switched_off", lambda e: changed(e, settled(e), reason="switched_off")),
    ("check_deleted", "was nobody's child", lambda e: changed(e, index(e, SessionDeleted), child_id="s_9")),
    ("check_deleted", "its log is still there", lambda e: changed(e, index(e, SessionDeleted), child_id="s_2")),
    (
        "check_deleted",
        "r_5 was not over",
        lambda e: moved(e, index(e, SessionDeleted), index(e, RunSettled, run_id="r_5")),
    ),
]
BUDGET: dict[str, Any] = {"run_id": "r_2", "nth": 2}
LAST_TURN: dict[str, Any] = {"mode": "last_n_turns"}
PACKED: list[dict[str, Any]] = [
    {"seq": 3, "role": "user", "content": "before"},
    {"seq": 5, "role": "assistant", "content": "s_1 1.1"},
]
GO: dict[str, Any] = {"seq": 9, "role": "user", "content": "go"}
SAID_NOW: dict[str, Any] = {"seq": 11, "role": "assistant", "content": "s_1 2.1"}
CANCEL = {"result.turn_end": "cancel"}
REFUSE: dict[str, Any] = {"budget__on_exceed": "refuse_new"}
SAID = MessageUser(turn=4, text="me first", source="user")  # pyright: ignore[reportArgumentType] -- ids as plain numbers


def asking(events: Log, **arguments: Any) -> Log:
    """The call that the forked child came from, with arguments; the child's task stands in them."""
    place = index(events, MessageAssistant, turn=2, step=1)
    fact = events[place].fact
    assert isinstance(fact, MessageAssistant)
    made = {"prompt": "task of r_1", **arguments}
    return changed(events, place, tool_calls=tuple(msgspec.structs.replace(c, arguments=made) for c in fact.tool_calls))


def packed(events: Log, context: dict[str, Any], items: list[dict[str, Any]], remark: str = "") -> Log:
    """The child is asked for with a context, and is given these messages."""
    listed = json.dumps(items, separators=(",", ":"))
    text = f"task of r_1\n\n# Talk (untrusted reference data)\n{listed}{remark}"
    return spec(asking(events, context=context), "r_1", prompt=text)


def alike(events: Log, digest: str = "d") -> Log:
    """The forked child has a system text of its parent's."""
    mine = {"system_digest": digest}
    events = changed(events, index(events, SessionOpened, name="s_2"), **mine)
    for run in ("r_1", "r_2", "r_3", "r_4"):
        events = spec(events, run, opening="you are a child", **mine)
    return events


def step_of(events: Log, session: str) -> int:
    found = (place for place, event in enumerate(events) if event.session_id == session)
    return next(place for place in found if isinstance(events[place].fact, StepOpened))


def lowered(**switches: Any) -> PolicyChanged:
    return PolicyChanged(changes={key.replace("__", "."): value for key, value in switches.items()})


def lowered_for_a_while(events: Log) -> Log:
    """No child is accepted while the cap is 0; the messages to an earlier one are."""
    events = before(events, RunQueued, lowered(caps__max_depth=0), run_id="r_2")
    return before(events, RunQueued, lowered(caps__max_depth=2), run_id="r_5")


def later_step(events: Log) -> int:
    return index(events, StepOpened, turn=2, step=3) + 1


def settled(events: Log) -> int:
    return index(events, RunSettled, run_id="r_2")


def gave_up(events: Log) -> RunWaiting:
    fact = events[index(events, RunWaiting, **BUDGET)].fact
    assert isinstance(fact, RunWaiting)
    return msgspec.structs.replace(fact, waiting_for=msgspec.structs.replace(fact.waiting_for, kind="children"))


def wider_tools() -> Log:
    return rights(rights(told(), "s_1", tools=("grep", "spawn_agent")), "s_2", tools=("shell",))


def other_root(events: Log) -> Log:
    return changed(events, index(events, RunQueued, run_id="r_4"), root_run_id="r_8")


def pulled_early(events: Log) -> Log:
    """Under pull the result of the interrupted run is handed over while the next one works."""
    events = policy(events, result__delivery="pull")
    return moved(events, index(events, LetterQueued, letter_id="l_1"), index(events, RunResumed))


def never_bound(events: Log) -> Log:
    return ended(policy(events, life__cancel_with_parent="never"), 3, "interrupted", "interrupted")


def flagged(events: Log, **fields: Any) -> Log:
    opt_in = ended(policy(events, life__cancel_with_parent="opt_in"), 3, "interrupted", "interrupted")
    return spec(opt_in, "r_5", **fields)


def absorbed(events: Log, letter_id: str) -> list[int]:
    return [index(events, LetterAbsorbed, letter_id=letter_id), index(events, MessageUser, letter_id=letter_id)]


def unreported_twice(events: Log) -> Log:
    """More is spent than the reports explain: a request that reserved little reports little more than the limit."""
    events = changed(events, index(events, StepOpened, turn=2, step=1, nth=0), reserved=1000)
    events = changed(events, index(events, StepClosed, turn=2, step=1), usage=None)
    return changed(events, index(events, StepClosed, turn=2, step=2), usage=Usage(input=65, total=65))


def in_child(events: Log) -> Log:
    place = index(events, BudgetExceeded)
    fresh = msgspec.structs.replace(events[place], session_id=SessionId("s_2"))
    return renumbered([*events[:place], fresh, *events[place + 1 :]])


def switched_in_mid_run() -> Log:
    """The switch goes off while the child works, and the child opens two more steps."""
    events = told()
    return put(events, index(events, StepOpened, step=1, nth=1), SwitchChanged(on=False))


def test_the_saga_has_no_problem() -> None:
    assert check_all(saga()) == []


@pytest.mark.parametrize(
    ("context", "items", "remark"),
    [
        (LAST_TURN, [GO, SAID_NOW], ""),
        ({"mode": "last_n_turns", "turns": 2}, [*PACKED, GO, SAID_NOW], ""),
        ({"mode": "selected", "seqs": [9, 3, 77]}, [PACKED[0], GO], "\n(no message has the seq 77)"),
        ({"mode": "summary"}, [*PACKED, GO, SAID_NOW], ""),
    ],
)
def test_a_saga_whose_fork_is_given_what_was_asked_for_has_no_problem(
    context: dict[str, Any], items: list[dict[str, Any]], remark: str
) -> None:
    assert check_all(packed(alike(saga()), context, items, remark)) == []


@pytest.mark.parametrize(("name", "said", "break_it"), BROKEN)
def test_each_broken_saga_is_caught_by_its_rule(name: str, said: str, break_it: Callable[[Log], Log]) -> None:
    problems = check_all(break_it(saga()))
    assert any(problem.startswith(f"{name}: ") and said in problem for problem in problems), problems


def test_every_rule_is_proven_red() -> None:
    red = {name for name, _, _ in (*BROKEN, *test_checkers.BROKEN)}
    assert red == {check.__name__ for check in CHECKS}


def test_the_saga_may_be_cut_anywhere_at_the_end_of_a_commit() -> None:
    events = saga()
    for kind in (RunStarted, StepClosed, SwitchChanged, SessionDeleted):
        cut = events[: index(events, kind) + 1]
        assert check_all(cut, at_rest=False) == [], kind


@pytest.mark.parametrize(
    "legal",
    [
        lambda e: never_bound(e),
        lambda e: flagged(e),
        lambda e: exceeded_early(policy(e, budget__on_exceed="warn"), "r_0", turn=2),
        lambda e: exceeded_early(policy(e, **REFUSE), "r_0", turn=2, step=4, run_id=None),
        lambda e: put(e, index(e, StepOpened), asked(20)),
        lambda e: lowered_for_a_while(e),
    ],
)
def test_what_a_policy_leaves_free_is_no_problem(legal: Callable[[Log], Log]) -> None:
    problems = check_all(legal(saga()))
    kept = [p for p in problems if p.startswith(("check_turn_ends", "check_budget", "check_depth"))]
    assert [p for p in kept if "it says" not in p] == []


def asked(tokens: int) -> NotesAsked:
    return NotesAsked(reserved=tokens, output_tokens_max=None)


def test_under_pull_a_held_turn_hands_over_when_nothing_is_open() -> None:
    assert check_all(policy(told(), result__delivery="pull")) == []
    detached = policy(told(), result__delivery="pull", result__turn_end="detach")
    assert any("no turn is held open" in problem for problem in check_all(detached))


def test_a_view_knows_the_policy_of_every_moment() -> None:
    events = saga()
    log, place = LogView(events), events[index(events, PolicyChanged)].position
    root = SessionId("s_1")
    assert log.policy(root)["result.turn_end"] == "detach"
    assert log.policy(root, place)["result.turn_end"] == "hold_open"
    assert log.policy(root, place + 1)["result.turn_end"] == "detach"
    assert len(log.policies(root, place - 5, place + 5)) == 2
    assert len(log.policies(root, place + 1, place + 5)) == 1
    assert log.policy(SessionId("s_9"))["result.turn_end"] == "hold_open"


def test_what_was_deleted_is_not_missed() -> None:
    events = told()
    late = renumbered(events)[: index(events, RunSettled, run_id="r_2") + 1]
    rest = [event for event in events if event.session_id != "s_3"]
    told_so = [*rest, msgspec.structs.replace(events[-1], fact=SessionDeleted(child_id=SessionId("s_3")))]
    assert check_kept(late, told_so) == []
    assert check_kept(late, rest) != []
    assert check_kept(late, []) == [f"{len(late)} events of the earlier log are lost"]
    assert check_kept(late, [], gone={SessionId("s_1")}) == []
