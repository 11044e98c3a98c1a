"""Scenarios of Coding Code, under `courier`: refused at the cap, a turn that does not wait, results as letters.

S13 is in test_scheduling.py, S36 in test_outcomes.py, S44 to S46 in test_waiting.py, S64 and S66 in test_letters.py:
each of these also runs under `courier`.
"""

from typing import Any

import pytest

from retinue.core.errors import RetinueError
from retinue.core.events import (
    LetterAbsorbed,
    LetterQueued,
    RunQueued,
    RunSettled,
    RunStarted,
    ToolFinished,
    TurnClosed,
)
from retinue.core.ids import SessionId
from retinue.ports import AssistantText, Finish, ModelRequest, Page, ToolText, UserText
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.checkers import all_runs, all_sessions
from retinue.testing.fakes import hanging_tool, slow_tool
from tests.scenarios.stage import (
    AGAIN,
    FunctionModel,
    Stage,
    Theatre,
    body_of,
    call,
    calls,
    child,
    each_seed,
    few_seeds,
    letters_in,
    parent,
    payload_of,
    place,
    places,
    play,
    play_turn,
    says,
    script,
    seconds_between,
    spawn,
    under_each,
)

COURIER = "courier"
PREFIX = "Message Type: FINAL_ANSWER\n"
PUSHING = ("standard", COURIER, "resident")


@each_seed
def test_S34_after_an_error_the_payload_has_its_message_and_says_not_finished_and_wait_says_failed(seed: int) -> None:
    life = play_turn(
        parent("", spawn("broken")),
        parent("", call("wait_agent", id="{{child:1}}")),
        parent("done"),
        AGAIN,
        child("broken", error="the provider fell over", delay_ms=2_000),
        under=COURIER,
        seed=seed,
    )
    (row,) = body_of(life.answers(2)[0])["items"]
    assert (row["status"], row["reason"]) == ("failed", "provider_error")
    payload = payload_of(life.letter("broken").text)
    assert payload.startswith("The task did not finish (failed/provider_error): ")
    assert "the provider fell over" in payload
    assert "spawn it again" in payload
    assert payload_of(letters_in(life.asked()[2])[0]) == payload  # wait ended after delivery, so it is there


@few_seeds
def test_S34_whatever_ended_a_child_without_success_is_told_as_not_finished(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root({"life.run_timeout_s": 20, "life.max_steps": 2}, COURIER)
        work = await stage.kernel.prompt(root, "go")
        await stage.until(lambda _: len([one for one in stage.model.requests if one.root]) == 2)
        await stage.world.clock.sleep(0.5)
        await stage.kernel.scheduler.cancel(stage.run("stopped").run_id)
        await work.done.wait()

    lines = (
        parent("", *(spawn(name) for name in ("stopped", "late", "looping", "cut off"))),
        parent("", call("wait_agent", timeout_s=100)),
        parent("done"),
        child("looping", "", call("slow")),
        AGAIN,
        child("cut off", "half a senten", finish="length", delay_ms=1_000),
        child(None, "", call("hangs")),
    )
    life = play(script(*lines), scene, tools=lambda world: [hanging_tool(), slow_tool(world.clock, 1.0)], seed=seed)
    waited = {row["name"]: (row["status"], row["reason"]) for row in body_of(life.answers(2)[0])["items"]}
    assert waited == {
        "stopped": ("cancelled", "cancelled"),
        "late": ("failed", "timeout"),
        "looping": ("failed", "step_limit"),
        "cut off": ("failed", "token_limit"),
    }
    for name, (status, reason) in waited.items():
        assert f"The task did not finish ({status}/{reason})" in payload_of(life.letter(name).text)
    assert "Text so far:\nhalf a senten" in life.letter("cut off").text


@pytest.mark.parametrize(
    ("asked", "seconds"),
    [({"timeout_ms": 1}, 10), ({"timeout_s": 36_000}, 3_600), ({"timeoutMs": 36_000_000}, 3_600), ({}, 30)],
)
@few_seeds
def test_S48_one_millisecond_and_ten_hours_are_clamped_to_ten_seconds_and_one_hour(
    asked: dict[str, Any], seconds: float, seed: int
) -> None:
    life = play_turn(
        parent("", spawn("kid")),
        parent("", call("wait_agent", sessionId="{{child:1}}", **asked)),
        parent("done"),
        child("kid", "found", delay_ms=5_000_000),
        under=COURIER,
        seed=seed,
    )
    begun = place(life.events, ToolFinished, call_id=life.answers(1)[0].call_id)
    answer = life.answers(2)[0]
    ended = place(life.events, ToolFinished, call_id=answer.call_id)
    assert seconds <= seconds_between(life.events, begun, ended) < seconds + 1
    assert body_of(answer)["timed_out"] is True
    assert life.settled("kid").status == "completed"  # which no wait had stopped


def _spawns_then_waits(continuable: bool | None) -> FunctionModel:
    """A root that spawns, lets go, and when told to look waits for a child of an earlier turn."""
    asked = {} if continuable is None else {"continuable": continuable}

    async def answer(request: ModelRequest) -> Finish:
        if not request.root:
            return says("found")
        last = request.messages[-1]
        if isinstance(last, UserText) and last.text == "go":
            return calls(spawn("kid", **asked))
        if isinstance(last, UserText) and last.text == "look":
            made = next(one for one in request.messages if isinstance(one, ToolText))
            return calls(
                *(call("wait_agent", id=body_of(made)[key], timeout_s=100) for key in ("run_id", "session_id"))
            )
        return says("ok")

    return FunctionModel(answer)


@pytest.mark.parametrize(
    ("under", "continuable"),
    [("standard", None), (COURIER, None), (COURIER, True), ("resident", None), ("resident", False), ("roster", None)],
)
@few_seeds
def test_S49_a_wait_on_a_child_whose_record_was_recycled_still_answers_from_storage(
    under: str, continuable: bool | None, seed: int
) -> None:
    """After its parent's turn end and after a restart, even where the child's own session was deleted."""
    theatre = Theatre(seed=seed)

    async def first(stage: Stage) -> SessionId:
        root = await stage.root(under=under)
        await stage.turn(root)
        await stage.kernel.tree_rests(root)
        assert stage.kernel.journal.state.sessions == {}  # nothing of it is kept in memory
        await stage.turn(root, "look")
        return root

    life = theatre.live(lambda _: _spawns_then_waits(continuable), first)
    root = life.value
    assert root is not None
    again = theatre.live(lambda _: _spawns_then_waits(continuable), lambda stage: stage.turn(root, "look"))
    for one in (life, again):
        for answer in one.answers():
            waited = body_of(answer)
            assert waited["timed_out"] is False
            assert [(row["name"], row["status"]) for row in waited["items"]] == [("kid", "completed")]


@each_seed
def test_S57_stopping_all_children_ends_what_is_open_below_one_parent_once_and_leaves_the_rest(seed: int) -> None:
    """CONTRACT section 10 holds against the line: queued children and descendants are stopped too.

    The number that the HTTP route returns comes with the server.
    """

    async def scene(stage: Stage) -> None:
        root, other = [await stage.root({"caps.on_full": "queue"}, COURIER) for _ in range(2)]
        works = [await stage.kernel.prompt(one, "go") for one in (root, other)]
        await stage.until(lambda events: len(places(events, RunSettled)) == 2)
        await stage.until(lambda events: len(places(events, RunStarted)) == 2 * 6)
        await stage.subagents.drain(below=[root])
        mine = await stage.kernel.scheduler.children(root, descendants=True)
        assert [run for run in mine if run.is_open] == []
        assert all(work.closed is None for work in works)  # the parents' own turns go on
        theirs = await stage.kernel.scheduler.children(other, descendants=True)
        assert sum(run.is_open for run in theirs) == 5
        for work in works:
            await work.done.wait()
        await stage.kernel.tree_rests(other)

    lines = (
        parent("", *(spawn(name) for name in ("quick", "a", "b", "nest"))),
        parent("", call("slow")),
        parent("", spawn("queued")),
        parent("", call("slow")),
        parent("done"),
        child("quick", "found", delay_ms=1_000),
        child("nest", "", spawn("leaf", mode="await")),
        child("nest", "found"),
        child(None, "found", delay_ms=60_000),
    )
    life = play(script(*lines), scene, tools=lambda world: [slow_tool(world.clock, 9.0)], seed=seed)
    root = life.told(RunQueued)[0].root_id
    by_root: dict[bool, list[RunSettled]] = {True: [], False: []}
    for fact in life.told(RunSettled):
        by_root[fact.root_id == root].append(fact)
    reasons = [sorted(str(fact.reason) for fact in facts) for facts in by_root.values()]
    stopped, untouched = sorted(reasons, key=lambda one: "cancelled" not in one)
    assert stopped == [*["cancelled"] * 4, "done", "parent_cancelled"]
    assert untouched == ["done"] * 6
    assert {fact.text for fact in life.told(TurnClosed) if fact.run_id is None} == {"done"}


@pytest.mark.parametrize("passes", range(0, 40, 3))
def test_S57_a_child_that_is_just_being_started_is_refused_or_stopped_with_the_rest(passes: int) -> None:
    async def scene(stage: Stage) -> str:
        root = await stage.root(under=COURIER)
        loop = stage.world.loop
        begun = loop.passes
        starting = stage.kernel.supervisor.begin(stage.start(root))
        while loop.passes < begun + passes:
            await stage.world.clock.sleep(0)
        await stage.subagents.drain(below=[root])
        try:
            kid = await starting
        except RetinueError as refused:
            return refused.code
        return str((await kid.result).reason)

    life = play(script(child("kid", "found", delay_ms=5_000)), scene)
    # Asked for after the stop was over, it is a new child.
    assert life.value in {"stopping", "cancelled", "done"}
    assert len(life.told(RunSettled)) == len(life.told(RunQueued))


@under_each(*PUSHING)
@each_seed
def test_S65_a_result_enters_as_user_role_with_its_prefix_and_no_prompt_ends_on_the_assistant(
    seed: int, under: str
) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root(under=under)
        await stage.turn(root)
        await stage.kernel.tree_rests(root)
        await stage.turn(root, "and now?")

    lines = (
        parent("", spawn("early"), call("slow")),
        parent("I go on", spawn("late")),
        parent("done"),
        AGAIN,
        child("early", "one", delay_ms=1_000),
        child("late", "two", delay_ms=9_000),
    )
    life = play(script(*lines), scene, tools=lambda world: [slow_tool(world.clock, 3.0)], seed=seed)
    asked = life.asked()
    for request in asked:
        assert not isinstance(request.messages[-1], AssistantText)
    for name, text in (("early", "one"), ("late", "two")):
        letter = life.letter(name)
        shown = [one for one in asked[-1].messages if one.text == letter.text]
        assert [type(one) for one in shown] == [UserText]
        head = f"{PREFIX}Task name: {letter.receiver_id}\nSender: {letter.sender_id}\nPayload:\n"
        assert letter.text.startswith(head)
        assert letter.text.endswith(text)
    assert letters_in(asked[1]) == [life.letter("early").text]


@each_seed
def test_S65_a_result_that_came_too_late_starts_nothing_and_stands_behind_the_next_prompt(seed: int) -> None:
    """`courier` stores what finds its parent idle; the next turn shows it at its first step."""

    async def scene(stage: Stage) -> int:
        root = await stage.root(under=COURIER)
        closed = await stage.turn(root)
        assert (closed.text, stage.run("late").is_open) == ("I do not wait", True)
        await stage.kernel.tree_rests(root)
        await stage.world.clock.sleep(100.0)
        asked = len([one for one in stage.model.requests if one.root])
        await stage.turn(root, "and now?")
        return asked

    lines = (parent("", spawn("late")), parent("I do not wait"), parent("thanks"))
    life = play(script(*lines, child("late", "two", delay_ms=9_000)), scene, seed=seed)
    assert life.value == 2
    last = life.asked()[-1]
    assert [one.text for one in last.messages[-2:]] == ["and now?", life.letter("late").text]
    assert life.told(LetterAbsorbed)[0].step == 1


def _left_of(stage: Stage, root: SessionId) -> tuple[int, int, int]:
    """Return the events, sessions and runs of a tree that the store still has."""
    store = stage.store
    return (
        sum(event.root_id == root for event in stage.events()),
        sum(row.header.root_id == root for row in all_sessions(store)),
        sum(run.root_id == root for run in all_runs(store)),
    )


@under_each(*PUSHING)
@pytest.mark.parametrize("after_ms", [0, 995, 999, 1_000, 1_001, 1_005, 3_000])
@few_seeds
def test_S74_a_letter_to_a_deleted_ancestor_creates_no_ghost_transcript(under: str, after_ms: int, seed: int) -> None:
    """Whenever the parent goes: before, while and after the child's last moment."""

    async def scene(stage: Stage) -> None:
        root, other = [await stage.root({"caps.max_depth": 2}, under) for _ in range(2)]
        await stage.start(root, "kid")
        kid = stage.run("kid").session_id
        await stage.world.clock.sleep(after_ms / 1_000)
        await stage.kernel.delete(root)
        assert _left_of(stage, root) == (0, 0, 0)
        for refused in (
            stage.subagents.report_from(kid, "a late word"),
            stage.kernel.letters.send(root, "are you there?", sender=other),
            stage.subagents.followup(root, kid, "go on"),
        ):
            with pytest.raises(RetinueError) as error:
                await refused
            assert error.value.code in {"not_found", "already_ended"}
        await stage.world.clock.sleep(20.0)
        assert _left_of(stage, root) == (0, 0, 0)
        assert [row.session_id for row in stage.store.sessions(Page())[0]] == [other]

    life = play(script(child("kid", "found", delay_ms=1_000)), scene, seed=seed)
    assert life.told(LetterQueued) == []


@under_each(*PUSHING)
@few_seeds
def test_S74_a_letter_to_a_deleted_parent_in_the_middle_of_a_tree_is_nobodys(under: str, seed: int) -> None:
    """The deleted child's Run stays with its parent, with what it had said."""

    async def scene(stage: Stage) -> SessionId:
        root = await stage.root({"caps.max_depth": 2}, under)
        work = await stage.kernel.prompt(root, "go")
        await stage.until(lambda events: bool(places(events, RunStarted, name="leaf")))
        middle = stage.run("middle").session_id
        await stage.kernel.delete(middle)
        await work.done.wait()
        await stage.kernel.tree_rests(root)
        return middle

    lines = (
        parent("", spawn("middle"), call("slow")),
        parent("done"),
        AGAIN,
        child("middle", "I begin", spawn("leaf")),
        child("middle", "", call("slow")),
        child("leaf", "found", delay_ms=3_000),
    )
    life = play(script(*lines), scene, tools=lambda world: [slow_tool(world.clock, 9.0)], seed=seed)
    assert [event for event in life.events if event.session_id == life.value] == []
    settled = life.settled("middle")
    assert (settled.status, settled.reason, settled.partial) == ("cancelled", "deleted", "I begin")
    (letter,) = life.told(LetterQueued)
    assert (letter.sender_id, letter.receiver_id) == (life.value, settled.parent_id)


@each_seed
def test_S108_the_parents_turn_end_lets_ended_children_go_and_keeps_running_ones_and_deletion_takes_both(
    seed: int,
) -> None:
    """What leaves memory is not lost: the record answers for it (S49)."""

    async def scene(stage: Stage) -> list[tuple[str, str]]:
        root = await stage.root(under=COURIER)
        await stage.turn(root)
        state = stage.kernel.journal.state
        ended, running = stage.run("ended"), stage.run("running")
        assert ended.session_id not in state.sessions
        assert running.session_id in state.sessions
        assert (ended.status, running.status) == ("completed", "running")
        await stage.turn(root, "look")
        await stage.kernel.delete(root)
        assert running.session_id not in state.sessions
        assert _rows(stage.store) == (0, 0)
        return [(row["name"], row["status"]) for row in body_of(_answer(stage))["items"]]

    lines = (
        parent("", spawn("ended"), call("slow")),
        parent("", spawn("running")),
        parent("I do not wait"),
        parent("", call("list_agents")),
        parent("seen"),
        child("ended", "one", delay_ms=1_000),
        child("running", "two", delay_ms=600_000),
    )
    life = play(script(*lines), scene, tools=lambda world: [slow_tool(world.clock, 3.0)], seed=seed)
    assert life.value == [("ended", "completed"), ("running", "running")]
    assert life.events == []


def _rows(store: SQLiteStore) -> tuple[int, int]:
    return len(all_sessions(store)), len(all_runs(store))


def _answer(stage: Stage) -> ToolText:
    last = [request for request in stage.model.requests if request.root][-1]
    return next(one for one in reversed(last.messages) if isinstance(one, ToolText))
