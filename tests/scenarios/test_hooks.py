"""Hooks that are asked: a no stops what comes, in every session, and leaves nothing behind (CONTRACT section 7)."""

import asyncio
from typing import Any

import pytest

from retinue.core.events import (
    LetterQueued,
    MessageUser,
    RunQueued,
    RunSettled,
    RunStarted,
    SessionOpened,
    ToolFinished,
    ToolStarted,
)
from retinue.core.ids import SessionId
from retinue.core.policy import NAMES
from retinue.ports import Deny, HookEvent
from retinue.runtime.hooking import POINTS
from retinue.testing.fakes import FakeTool, echo_tool
from tests.scenarios.hookstage import (
    TELLING,
    Heard,
    child_sessions,
    failures,
    forever,
    names_of_children,
    refused,
    root_ends,
    started_tools,
    with_hooks,
)
from tests.scenarios.stage import (
    AGAIN,
    Stage,
    Theatre,
    body_of,
    call,
    child,
    code_of,
    each_seed,
    parent,
    places,
    play,
    play_turn,
    refusal,
    script,
    spawn,
)

SPAWN = "agent.subagent.spawn.before"
TOOL = "agent.tool.before"
TURN = "agent.turn.before"
STOP = "agent.turn.stop"
NO = Deny(reason="not today")


def echo(_: Any) -> list[FakeTool]:
    return [echo_tool()]


@each_seed
def test_every_point_is_reached_once_for_each_thing_that_happens_in_its_order(seed: int) -> None:
    heard = Heard()
    life = play_turn(
        parent("", call("echo", n=1), spawn("kid", mode="await")),
        parent("done"),
        child("kid", "", call("echo", n=2)),
        child("kid", "found"),
        parts=with_hooks(heard.hook(*POINTS)),
        tools=echo,
        seed=seed,
    )
    (kid,) = child_sessions(life)
    root = life.events[0].session_id
    assert root_ends(life)[0].status == "completed"
    calls = [call.fact for call in life.events if isinstance(call.fact, ToolStarted)]
    for point, count in (
        ("agent.session.opened", 2),
        (TURN, 2),
        (STOP, 2),
        ("agent.turn.closed", 2),
        (TOOL, 3),
        ("agent.tool.after", 3),
        (SPAWN, 1),
        ("agent.subagent.spawn.after", 1),
        ("agent.subagent.complete", 1),
    ):
        assert len(heard.at(point)) == count, point
    assert {event.data["call_id"] for event in heard.at(TOOL)} == {fact.call_id for fact in calls}
    assert [event.session_id for event in heard.at("agent.session.opened")] == [root, kid]
    assert [event.depth for event in heard.at(TURN)] == [0, 1]
    (before,), (after,), (complete,) = (
        heard.at(point) for point in (SPAWN, "agent.subagent.spawn.after", "agent.subagent.complete")
    )
    assert (before.data["session_id"], before.data["prompt"]) == (kid, "do kid")
    assert (after.data["child_id"], after.data["status"]) == (kid, "running")
    assert (complete.data["status"], complete.data["output"]) == ("completed", "found")
    assert {before.session_id, after.session_id, complete.session_id} == {root}
    assert {event.root_id for _, event in heard.events} == {root}
    told = [point for point in heard.points() if point in TELLING]
    assert told.index("agent.subagent.spawn.after") < told.index("agent.subagent.complete")
    assert told[-1] == "agent.turn.closed"


def test_hooks_are_asked_in_the_order_given_and_the_first_no_ends_the_asking() -> None:
    heard = Heard()
    hooks = [
        heard.hook(TOOL, name="one"),
        heard.hook(TOOL, name="two", says=NO),
        heard.hook(TOOL, name="three", says=Deny(reason="never asked")),
    ]
    life = play_turn(parent("", call("echo", n=1)), parent("done"), tools=echo, parts=with_hooks(*hooks))
    assert [name for name, _ in heard.events] == ["one", "two"]
    assert "not today" in refused(life)[0].text
    assert failures(life) == []


def test_what_one_hook_changes_in_its_event_the_next_one_does_not_see_and_the_tool_does_not_get() -> None:
    heard, tool = Heard(), echo_tool()

    def spoil(event: HookEvent) -> None:
        event.data["arguments"]["n"] = "spoilt"
        event.data["name"] = "another"

    hooks = [heard.hook(TOOL, name="one", says=spoil), heard.hook(TOOL, name="two")]
    play_turn(parent("", call("echo", n=[1])), parent("done"), tools=lambda _: [tool], parts=with_hooks(*hooks))
    assert heard.at(TOOL, "two")[0].data["arguments"] == {"n": [1]}
    assert heard.at(TOOL, "two")[0].data["name"] == "echo"
    assert tool.calls == [{"n": [1]}]


# -- tools


def test_a_denied_call_never_starts_and_its_reason_reaches_the_model() -> None:
    heard, tool = Heard(), echo_tool()

    def only_even(event: HookEvent) -> Deny | None:
        return NO if event.data["arguments"]["n"] % 2 else None

    life = play_turn(
        parent("", call("echo", n=1), call("echo", n=2), call("echo", n=3)),
        parent("done"),
        tools=lambda _: [tool],
        parts=with_hooks(heard.hook(TOOL, "agent.tool.after", says=only_even)),
    )
    assert tool.calls == [{"n": 2}]
    assert started_tools(life) == ["echo"]
    answers = life.answers()
    assert [answer.error for answer in answers] == [True, False, True]
    assert code_of(answers[0]) == "denied_hook"
    assert "A hook denied echo: not today" in body_of(answers[0])["error"]["message"]
    assert [event.data["arguments"] for event in heard.at("agent.tool.after")] == [{"n": 2}]
    assert root_ends(life)[0].status == "completed"


def test_calls_that_hooks_deny_do_not_count_as_unusable_ones() -> None:
    lines = [parent("", call("echo", n=n)) for n in range(6)]
    life = play_turn(*lines, parent("done"), tools=echo, parts=with_hooks(Heard().hook(TOOL, says=NO)))
    assert len(refused(life)) == 6
    assert root_ends(life)[0].status == "completed"


def test_after_a_call_observers_are_told_how_it_ended() -> None:
    heard = Heard()
    life = play_turn(
        parent("", call("echo", n=1), call("no_such_tool")),
        parent("done"),
        tools=echo,
        parts=with_hooks(heard.hook("agent.tool.after")),
    )
    (event,) = heard.at("agent.tool.after")
    (fact,) = (fact for fact in life.told(ToolFinished) if fact.outcome == "ok")
    wanted = {"call_id": fact.call_id, "name": "echo", "arguments": {"n": 1}, "outcome": "ok", "text": fact.text}
    assert {key: event.data[key] for key in wanted} == wanted
    assert set(event.data) == {*wanted, "code", "cut", "output_id"}


def test_a_call_that_its_turn_did_not_wait_for_is_told_as_unknown_and_before_the_turns_end() -> None:
    heard = Heard()

    async def scene(stage: Stage) -> None:
        root = await stage.root()
        await stage.kernel.prompt(root, "go")
        await stage.until(lambda events: bool(places(events, ToolStarted)))
        await stage.kernel.interrupt(root)

    async def slow(*_: Any) -> Any:
        await forever(_[0])

    tool = FakeTool("hangs", slow)
    hooks = with_hooks(heard.hook("agent.tool.after", "agent.turn.closed"))
    play(script(parent("", call("hangs"))), scene, tools=lambda _: [tool], parts=hooks)
    assert heard.points() == ["agent.tool.after", "agent.turn.closed"]
    assert heard.events[0][1].data["outcome"] == "unknown"


# -- children


@each_seed
@pytest.mark.parametrize("under", NAMES)
def test_a_denied_child_leaves_nothing_but_the_refused_call(seed: int, under: str) -> None:
    def no_bad(event: HookEvent) -> Deny | None:
        return NO if event.data["name"] == "bad" else None

    life = play_turn(
        parent("", spawn("bad"), spawn("good"), spawn("bad"), spawn("fine")),
        parent("done"),
        AGAIN,
        child(None, "found"),
        policy={"caps.created.turn": 2, "caps.running.root": 1, "caps.on_full": "queue"},
        under=under,
        parts=with_hooks(Heard().hook(SPAWN, says=no_bad)),
        seed=seed,
    )
    # Both caps hold two: a denied child has used up neither.
    assert sorted(names_of_children(life)) == ["fine", "good"]
    assert len(child_sessions(life)) == 2
    assert {request.name for request in life.requests} == {"main", "good", "fine"}
    answers = life.answers(1)
    assert [answer.error for answer in answers] == [True, False, True, False]
    assert code_of(answers[0]) == code_of(answers[2]) == "denied_hook"
    assert "A hook denied the child: not today" in body_of(answers[0])["error"]["message"]
    assert life.told(RunSettled)[-1].status == "completed"


def test_a_reserved_session_id_is_free_after_a_denial_and_the_program_gets_the_reason() -> None:
    says: list[Deny | None] = [NO, None]

    async def scene(stage: Stage) -> tuple[str, str, SessionId]:
        root = await stage.root()
        reserved = stage.subagents.reserve()
        error = await refusal(stage.start(root, session_id=reserved))
        kid = await stage.start(root, session_id=reserved)
        await kid.result
        return error.code, error.detail, reserved

    hooks = with_hooks(Heard().hook(SPAWN, says=lambda _: says.pop(0)))
    life = play(script(child(None, "found")), scene, parts=hooks)
    assert life.value is not None
    code, detail, reserved = life.value
    assert (code, "not today" in detail) == ("denied_hook", True)
    assert [fact.child_id for fact in life.told(RunQueued)] == [reserved]


def test_a_denied_child_reserves_no_budget() -> None:
    life = play_turn(
        parent("", spawn("kid", mode="await"), usage={"input": 1, "output": 1}),
        parent("done", usage={"input": 1, "output": 1}),
        policy={"budget.tree_tokens_max": 9_000},
        parts=with_hooks(Heard().hook(SPAWN, says=NO)),
    )
    assert root_ends(life)[0].usage_tree.total == 4
    assert names_of_children(life) == []


def test_spawn_after_is_told_once_the_child_exists_and_complete_once_its_end_is_in_the_parents_log() -> None:
    stored: list[tuple[str, bool]] = []

    async def scene(stage: Stage) -> None:
        stages.append(stage)
        await stage.to_rest()

    stages: list[Stage] = []

    def look(event: HookEvent) -> None:
        kind = RunSettled if event.point == "agent.subagent.complete" else RunStarted
        events = stages[0].events()
        (there,) = [e for e in events if isinstance(e.fact, kind) and e.fact.run_id == event.data["run_id"]]
        header = any(e.session_id == event.data["child_id"] and isinstance(e.fact, SessionOpened) for e in events)
        stored.append((event.point, there.session_id == event.session_id and header))

    hooks = with_hooks(Heard().hook("agent.subagent.spawn.after", "agent.subagent.complete", says=look))
    lines = (parent("", spawn("kid"), spawn("kid")), parent("done"), AGAIN, child(None, "found"))
    life = play(script(*lines), scene, parts=hooks)
    assert failures(life) == []
    assert sorted(stored) == [("agent.subagent.complete", True)] * 2 + [("agent.subagent.spawn.after", True)] * 2


def test_a_message_to_a_child_is_no_spawn_but_its_end_is_told() -> None:
    heard = Heard()

    async def scene(stage: Stage) -> None:
        root = await stage.root()
        kid = await stage.keep(root)
        await stage.kernel.tree_rests(root)
        await stage.subagents.followup(root, kid.session_id, "and now this")
        await stage.kernel.tree_rests(root)

    lines = (child(None, "first"), child(None, "second"), parent("noted"), AGAIN)
    play(script(*lines), scene, parts=with_hooks(heard.hook(SPAWN, *TELLING)))
    assert len(heard.at(SPAWN)) == len(heard.at("agent.subagent.spawn.after")) == 1
    assert [event.data["output"] for event in heard.at("agent.subagent.complete")] == ["first", "second"]


def test_a_child_that_never_got_a_slot_was_not_there_but_its_end_is_told() -> None:
    heard = Heard()

    async def scene(stage: Stage) -> None:
        root = await stage.root({"caps.running.root": 1})
        async with await stage.start(root, "first"):
            await (await stage.start(root, "second")).dispose()

    hooks = with_hooks(heard.hook(*TELLING))
    play(script(child("first", "slow", delay_ms=5000), child("second", "never")), scene, parts=hooks)
    assert [event.data["name"] for event in heard.at("agent.subagent.spawn.after")] == ["first"]
    assert {event.data["name"] for event in heard.at("agent.subagent.complete")} == {"first", "second"}


# -- every session


@each_seed
def test_hooks_hold_in_children_and_grandchildren_as_in_the_main_session(seed: int) -> None:
    heard, tool = Heard(), echo_tool()
    life = play_turn(
        parent("", call("echo", n=0), spawn("kid", mode="await")),
        parent("done"),
        child("kid", "", call("echo", n=1), spawn("grandkid", mode="await")),
        child("kid", "found"),
        child("grandkid", "", call("echo", n=2), spawn("greatgrandkid", mode="await")),
        child("grandkid", "deep"),
        policy={"caps.max_depth": 3},
        tools=lambda _: [tool],
        parts=with_hooks(
            heard.hook(TOOL, says=lambda event: NO if event.data["name"] == "echo" else None),
            heard.hook(SPAWN, says=lambda event: NO if event.depth == 2 else None),
        ),
        seed=seed,
    )
    assert tool.calls == []
    assert names_of_children(life) == ["kid", "grandkid"]
    assert [fact.status for fact in life.told(RunSettled)] == ["completed", "completed"]
    assert [event.depth for event in heard.at(TOOL) if event.data["name"] == "echo"] == [0, 1, 2]
    assert [event.depth for event in heard.at(SPAWN)] == [0, 1, 2]


# -- turns


def test_a_denied_turn_of_the_main_session_fails_before_its_first_request() -> None:
    heard = Heard()
    life = play_turn(parent("never"), parts=with_hooks(heard.hook(TURN, STOP, says=NO)))
    (end,) = root_ends(life)
    assert (end.status, end.reason, end.detail) == ("failed", "hook_denied", "A hook denied the turn: not today")
    assert life.requests == []
    assert heard.points() == [TURN]
    assert heard.events[0][1].data == {"turn": 1, "cause": "prompt", "run_id": None, "texts": ["go"]}


def test_what_a_denied_turn_was_asked_is_on_record_and_no_later_request_shows_it() -> None:
    heard = Heard()

    def no_secrets(event: HookEvent) -> Deny | None:
        return NO if any("secret" in text for text in event.data["texts"]) else None

    async def first(stage: Stage) -> SessionId:
        root = await stage.root()
        assert (await stage.turn(root, "the secret is 42")).reason == "hook_denied"
        assert (await stage.turn(root, "and now?")).status == "completed"
        return root

    theatre = Theatre()
    hooks = with_hooks(heard.hook(TURN, says=no_secrets))
    life = theatre.live(script(parent("fine")), first, parts=hooks)
    root = life.value
    assert root is not None
    assert [event.data["texts"] for event in heard.at(TURN)] == [["the secret is 42"], ["and now?"]]
    assert [message.text for message in life.requests[0].messages] == ["and now?"]
    assert [fact.text for fact in life.told(MessageUser)] == ["the secret is 42", "and now?"]
    # The same after a restart: the history comes from the log.
    again = theatre.live(script(parent("fine"), parent("still")), lambda stage: stage.turn(root, "more"), parts=hooks)
    assert [message.text for message in again.requests[0].messages] == ["and now?", "fine", "more"]


def test_what_a_person_adds_while_a_hook_is_asked_is_kept_for_the_next_turn() -> None:
    asked = asyncio.Event()
    answer = asyncio.Event()

    async def slowly(_: HookEvent) -> Deny | None:
        if answer.is_set():
            return None
        asked.set()
        await answer.wait()
        return NO

    async def scene(stage: Stage) -> None:
        root = await stage.root()
        work = await stage.kernel.prompt(root, "the first")
        await asked.wait()
        await stage.kernel.steer(root, "look at this, too")
        answer.set()
        await work.done.wait()
        await stage.turn(root, "the second")

    life = play(script(parent("fine")), scene, parts=with_hooks(Heard().hook(TURN, says=slowly)))
    assert [message.text for message in life.requests[0].messages] == ["look at this, too", "the second"]


@each_seed
def test_a_denied_turn_of_a_child_fails_its_run_and_the_parent_learns_why(seed: int) -> None:
    life = play_turn(
        parent("", spawn("kid")),
        parent("noted"),
        AGAIN,
        parts=with_hooks(Heard().hook(TURN, says=lambda event: NO if event.depth else None)),
        seed=seed,
    )
    settled = life.settled("kid")
    assert (settled.status, settled.reason, settled.steps) == ("failed", "hook_denied", 0)
    assert "not today" in (settled.detail or "")
    assert "failed/hook_denied" in life.letter("kid").text
    assert life.asked("kid") == []
    assert root_ends(life)[-1].status == "completed"


def test_a_turn_that_a_letter_starts_is_asked_about_with_the_letter() -> None:
    heard = Heard()

    async def scene(stage: Stage) -> None:
        root = await stage.root()
        await stage.keep(root)
        await stage.kernel.tree_rests(root)

    life = play(script(child(None, "found"), parent("noted")), scene, parts=with_hooks(heard.hook(TURN)))
    asked = [event.data for event in heard.at(TURN) if event.depth == 0]
    assert [data["cause"] for data in asked] == ["letter"]
    assert "found" in asked[0]["texts"][0]
    assert len(life.told(LetterQueued)) == 1


def test_the_letter_of_a_denied_turn_is_not_lost() -> None:
    says: list[Deny | None] = [NO, None]

    async def scene(stage: Stage) -> None:
        root = await stage.root()
        await stage.keep(root)
        await stage.kernel.tree_rests(root)
        await stage.turn(root, "what did it say?")

    def no_letters(event: HookEvent) -> Deny | None:
        return says.pop(0) if event.depth == 0 else None

    life = play(
        script(child(None, "found"), parent("noted")), scene, parts=with_hooks(Heard().hook(TURN, says=no_letters))
    )
    assert [fact.reason for fact in root_ends(life)] == ["hook_denied", "done"]
    texts = [message.text for message in life.asked()[0].messages]
    assert len(texts) == 2
    assert "found" in texts[0]
    assert texts[1] == "what did it say?"
