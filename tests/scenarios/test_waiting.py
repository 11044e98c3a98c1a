"""Scenarios S40 to S56: wait, read, list, cancel."""

import json
from typing import Any

import pytest

from retinue.core.events import LetterQueued, RunQueued, RunSettled, RunStarted, SessionOpened, ToolFinished
from retinue.core.ids import SessionId
from retinue.ports import Finish, ModelRequest, ToolText
from retinue.testing.faults import StorePlan
from tests.scenarios.stage import (
    AGAIN,
    PULLING,
    FunctionModel,
    Life,
    Stage,
    Theatre,
    body_of,
    call,
    calls,
    child,
    code_of,
    each_seed,
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


def _took_s(life: Life[Any], answer: ToolText) -> float:
    """Return the virtual seconds from the first run's begin to a tool's answer."""
    begun = places(life.events, RunStarted)[0]
    return seconds_between(life.events, begun, place(life.events, ToolFinished, call_id=answer.call_id))


@under_each("standard", "roster")
@each_seed
def test_S40_waiting_for_any_returns_when_the_first_ends_and_still_lists_the_unfinished_ones(
    seed: int, under: str
) -> None:
    life = play_turn(
        parent("", spawn("slow")),
        parent("", spawn("quick")),
        parent("", call("wait_agent", ids=["{{run:1}}", "{{run:2}}"], mode="any", timeout_s=600)),
        parent("done"),
        AGAIN,
        child("slow", "one", delay_ms=60_000),
        child("quick", "two", delay_ms=2_000),
        under=under,
        seed=seed,
    )
    answer = life.answers(3)[0]
    waited = body_of(answer)
    assert [(row["name"], row["status"]) for row in waited["items"]] == [("slow", "running"), ("quick", "completed")]
    assert waited["timed_out"] is False
    assert [row.get("output") for row in waited["items"]] == [None, "two" if under in PULLING else None]
    assert 2 <= _took_s(life, answer) < 5
    assert life.settled("slow").status == "completed"


@under_each()
@each_seed
def test_S41_an_unknown_id_in_a_wait_list_fails_before_waiting(seed: int, under: str) -> None:
    life = play_turn(
        parent("", spawn("kid")),
        parent("", call("wait_agent", ids=["{{run:1}}", "r_9999"], timeout_s=600)),
        parent("", call("wait_agent", ids=["s_9999", "{{run:1}}"], mode="any", timeout_s=600)),
        parent("done"),
        AGAIN,
        child("kid", "found", delay_ms=30_000),
        under=under,
        seed=seed,
    )
    for number in (2, 3):
        answer = life.answers(number)[0]
        assert code_of(answer) == "not_found"
        assert _took_s(life, answer) < 5
    assert life.settled("kid").status == "completed"


FOREIGN_TOOLS = ("read_agent_output", "wait_agent", "cancel_agent")


def _refusals(request: ModelRequest) -> list[str]:
    """Return the refusals of a request's last message, the named ids left out."""
    return [
        json.dumps(body_of(answer)).replace(answer_id, "ID")
        for answer, answer_id in zip(_answered(request), _named(request), strict=True)
    ]


def _answered(request: ModelRequest) -> list[ToolText]:
    return [message for message in request.messages if isinstance(message, ToolText) and message.error]


def _named(request: ModelRequest) -> list[str]:
    made = [c for message in request.messages for c in getattr(message, "tool_calls", ()) if c.name in FOREIGN_TOOLS]
    return [made_call.arguments["id"] for made_call in made]


@under_each()
@each_seed
def test_S42_a_run_of_another_session_cannot_be_read_waited_for_or_cancelled(seed: int, under: str) -> None:
    """Unknown and foreign ids get the same answer (CONTRACT section 2, rule 8)."""
    foreign: list[str] = []
    thieves: list[SessionId] = []
    long_text = "secret " * 5_000

    async def answer(request: ModelRequest) -> Finish:
        if request.name == "ended":
            return says(long_text)
        if request.name == "open":
            await stages[0].world.clock.sleep(20.0)
            return says("untouched")
        if request.session_id in thieves:  # the other session's ids leaked to it
            return _steal(request, foreign)
        return calls(spawn("ended"), spawn("open")) if request.number == 1 else says("ok")

    stages: list[Stage] = []

    async def scene(stage: Stage) -> None:
        stages.append(stage)
        cut = {"result.output_max_chars": 20_000}
        owner, thief = await stage.root(cut, under), await stage.root(under=under)
        thieves.append(thief)
        work = await stage.kernel.prompt(owner, "go")
        await stage.until(lambda events: bool(places(events, RunSettled)) and len(places(events, RunQueued)) == 2)
        ended, still_open = stage.run("ended"), stage.run("open")
        assert ended.output_id is not None
        foreign.extend([ended.run_id, ended.session_id, still_open.run_id, still_open.session_id, owner])
        foreign.append(ended.output_id)
        await stage.turn(thief)
        assert stage.run("open").is_open
        assert stage.run("ended").result_state != "collected"
        await work.done.wait()
        await stage.kernel.tree_rests(owner)

    life = play(lambda _: FunctionModel(answer), scene, seed=seed)
    (last,) = (request for request in life.asked() if _named(request))
    refusals = _refusals(last)
    assert len(refusals) == 3 * 5 + 1 + 3
    runs, output, unknown = refusals[:15], refusals[15], refusals[16:]
    assert {json.loads(text)["error"]["code"] for text in refusals} == {"not_found"}
    assert set(runs) == set(unknown)
    assert "secret" not in "".join(message.text for message in last.messages)
    assert json.loads(output)["error"]["message"] == "There is no output 'ID' here."
    assert life.settled("open").output == "untouched"


def _steal(request: ModelRequest, foreign: list[str]) -> Finish:
    if request.number > 1:
        return says("nothing to be had")
    runs = [call(tool, id=name) for name in foreign[:-1] for tool in FOREIGN_TOOLS]
    unknown = [call(tool, id="r_9999") for tool in FOREIGN_TOOLS]
    return calls(*runs, call("read_agent_output", id=foreign[-1]), *unknown)


@under_each()
@each_seed
def test_S42_a_child_reaches_neither_its_sibling_nor_its_own_run(seed: int, under: str) -> None:
    seen: list[str] = []

    async def answer(request: ModelRequest) -> Finish:
        if request.name == "main":
            return calls(spawn("victim"), spawn("nosy")) if request.number == 1 else says("ok")
        if request.name == "victim":
            await stages[0].world.clock.sleep(20.0)
            return says("untouched")
        if request.number > 1:
            return says("nothing to be had")
        await stages[0].until(lambda events: len(places(events, RunStarted)) == 2)
        seen.extend([stages[0].run("victim").run_id, stages[0].run("nosy").run_id])
        return calls(*(call(tool, id=name) for name in seen for tool in FOREIGN_TOOLS))

    stages: list[Stage] = []

    async def scene(stage: Stage) -> None:
        stages.append(stage)
        await stage.to_rest({"caps.max_depth": 2}, under)

    life = play(lambda _: FunctionModel(answer), scene, seed=seed)
    answers = life.answers(name="nosy")
    assert [code_of(answer) for answer in answers] == ["not_found"] * 6
    assert life.settled("victim").output == "untouched"
    assert life.settled("nosy").status == "completed"


@under_each("standard", "courier")
@each_seed
def test_S44_wait_on_a_running_child_blocks_until_the_end_then_says_completed(seed: int, under: str) -> None:
    life = play_turn(
        parent("", spawn("kid")),
        parent("", call("wait_agent", ids=["{{child:1}}"], timeout_s=120)),
        parent("done"),
        AGAIN,
        child("kid", "found", delay_ms=25_000),
        under=under,
        seed=seed,
    )
    answer = life.answers(2)[0]
    waited = body_of(answer)
    assert waited["timed_out"] is False
    assert [(row["status"], row["reason"]) for row in waited["items"]] == [("completed", "done")]
    assert 25 <= _took_s(life, answer) < 27
    assert place(life.events, RunSettled) < place(life.events, ToolFinished, call_id=answer.call_id)
    assert "output" not in waited["items"][0]  # under push the text comes as a letter


@under_each("standard", "courier")
@pytest.mark.parametrize("mode", ["all", "any"])
@each_seed
def test_S45_wait_does_not_return_before_the_delivery_mark(mode: str, seed: int, under: str) -> None:
    """The mark is the durable letter: under a store that is slow at every commit, the answer comes after it."""
    life = Theatre(seed=seed).live(
        script(
            parent("", spawn("kid")),
            parent("", call("wait_agent", mode=mode, timeout_s=600)),
            parent("done"),
            AGAIN,
            child("kid", "found", delay_ms=7_000),
        ),
        lambda stage: stage.to_rest(under=under),
        plan=StorePlan(slow_every=1, slow_s=3.0),
    )
    answer = life.answers(2)[0]
    (row,) = body_of(answer)["items"]
    assert (row["status"], row["result_state"]) == ("completed", "stored")
    assert place(life.events, LetterQueued) < place(life.events, ToolFinished, call_id=answer.call_id)


@under_each("standard", "courier")
@each_seed
def test_S45_when_wait_returns_the_letter_can_be_read_from_the_disk(seed: int, under: str) -> None:
    async def scene(stage: Stage) -> None:
        work = await stage.kernel.prompt(await stage.root(under=under), "go")
        await stage.until(lambda events: bool(places(events, RunStarted)))
        waited = await stage.kernel.scheduler.wait([stage.run("kid").run_id], "all", 600)
        assert len(places(stage.events(), LetterQueued)) == 1
        assert [run.status for run in waited.runs] == ["completed"]
        await work.done.wait()

    Theatre(seed=seed).live(
        script(parent("", spawn("kid")), parent("done"), AGAIN, child("kid", "found", delay_ms=7_000)),
        scene,
        plan=StorePlan(slow_every=1, slow_s=3.0),
    )


@pytest.mark.parametrize(("under", "least_s"), [("standard", 2.5), ("courier", 10)])
@each_seed
def test_S46_a_wait_that_times_out_says_so_and_does_not_stop_the_child(seed: int, under: str, least_s: float) -> None:
    life = play_turn(
        parent("", spawn("kid")),
        parent("", call("wait_agent", timeout_ms=2_500)),
        parent("", call("wait_agent", timeout_s=60)),
        parent("done"),
        AGAIN,
        child("kid", "found", delay_ms=20_000),
        under=under,
        seed=seed,
    )
    answer = life.answers(2)[0]
    waited = body_of(answer)
    assert waited["timed_out"] is True
    assert [(row["name"], row["status"], row["reason"]) for row in waited["items"]] == [("kid", "running", None)]
    assert least_s <= _took_s(life, answer) < least_s + 2
    assert body_of(life.answers(3)[0])["timed_out"] is False
    assert (life.settled("kid").status, life.settled("kid").output) == ("completed", "found")


@under_each("standard", "resident", "guarded", "roster")
@each_seed
def test_S56_cancel_on_a_queued_run_needs_no_slot_and_starts_no_child_session(seed: int, under: str) -> None:
    life = play_turn(
        parent("", spawn("holder")),
        parent("", spawn("waiter")),
        parent("", call("cancel_agent", id="{{run:2}}")),
        parent("done"),
        AGAIN,
        child("holder", "found", delay_ms=30_000),
        child("waiter", "never asked"),
        policy={"caps.running.root": 1},
        under=under,
        seed=seed,
    )
    answer = life.answers(3)[0]
    cancelled = body_of(answer)
    waiter = life.settled("waiter")
    assert (cancelled["run_id"], cancelled["status"], cancelled["reason"]) == (waiter.run_id, "cancelled", "cancelled")
    assert cancelled["note"] is None
    assert _took_s(life, answer) < 5
    assert place(life.events, RunSettled, name="waiter") < place(life.events, RunSettled, name="holder")
    assert places(life.events, RunStarted, name="waiter") == []
    assert (waiter.started_at, waiter.elapsed_s, waiter.steps) == (None, None, 0)
    assert life.asked("waiter") == []
    opened = [event.session_id for event in life.events if isinstance(event.fact, SessionOpened)]
    assert SessionId(waiter.child_id) not in opened
    if under not in PULLING:
        assert "was stopped." in payload_of(life.letter("waiter").text)
    assert life.settled("holder").status == "completed"
    assert len(life.told(RunQueued)) == 2
