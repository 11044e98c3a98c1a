"""What the policies change in what is seen: results that are fetched, the reach of a turn, what nobody waits for."""

from typing import Any

import pytest

from retinue.core.events import (
    LetterAbsorbed,
    LetterQueued,
    RunQueued,
    RunSettled,
    RunStarted,
    ToolFinished,
    ToolStarted,
    TurnClosed,
    TurnOpened,
)
from retinue.core.ids import RunId
from retinue.ports import Finish, ModelRequest, Tool, ToolText
from retinue.testing.fakes import slow_tool
from retinue.testing.faults import StorePlan
from retinue.testing.simloop import SimCrash
from retinue.testing.world import World
from tests.scenarios.stage import (
    AGAIN,
    PULLING,
    FunctionModel,
    Life,
    Stage,
    Theatre,
    answers_in,
    body_of,
    call,
    calls,
    child,
    code_of,
    each_seed,
    few_seeds,
    homes,
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

GUARDED = "guarded"


def _slow(world: World) -> list[Tool]:
    return [slow_tool(world.clock, 5.0)]


def _fetched(life: Life[Any], run_id: RunId) -> int:
    """Return how many answers of tools carried the result of a run."""
    return sum(run_id in fact.carries for fact in life.told(ToolFinished))


def _absorbed(life: Life[Any], run_id: RunId) -> int:
    return sum(fact.run_id == run_id for fact in life.told(LetterAbsorbed))


def _root_turns(life: Life[Any]) -> list[TurnClosed]:
    return [fact for fact in life.told(TurnClosed) if fact.run_id is None]


@each_seed
def test_S85_a_result_that_was_waited_for_read_or_listed_is_not_handed_over_again(seed: int) -> None:
    life = play_turn(
        *(parent("", spawn(name)) for name in ("waited", "read", "listed", "left")),
        parent("", call("wait_agent", id="{{run:1}}")),
        parent("", call("slow")),
        parent("", call("read_agent_output", id="{{child:2}}")),
        parent("", call("slow")),
        parent("", call("list_agents")),
        parent("done?"),
        parent("done"),
        child("waited", "one", delay_ms=1_000),
        child("read", "two", delay_ms=4_000),
        child("listed", "three", delay_ms=8_000),
        child("left", "four", delay_ms=60_000),
        under=GUARDED,
        tools=_slow,
        seed=seed,
    )
    assert [payload_of(letter).rsplit("\n\n", 1)[-1] for letter in letters_in(life.asked()[-1])] == ["four"]
    rows = body_of(life.answers(9)[0])["items"]
    assert [row["output"] for row in rows] == [None, None, "three", None]
    assert [row["result_state"] for row in rows] == ["collected", "collected", "collected", "none"]
    for name in ("waited", "read", "listed", "left"):
        run_id = life.settled(name).run_id
        assert _fetched(life, run_id) + _absorbed(life, run_id) == 1
    assert len(life.asked()) == 11


@few_seeds
def test_S85_looking_at_a_running_child_collects_nothing(seed: int) -> None:
    life = play_turn(
        parent("", spawn("kid")),
        parent("", call("read_agent_output", id="{{run:1}}"), call("list_agents"), call("wait_agent", timeout_s=1)),
        parent("done?"),
        parent("done"),
        child("kid", "found", delay_ms=3_000),
        under=GUARDED,
        seed=seed,
    )
    read, listed, waited = (body_of(answer) for answer in life.answers(2))
    assert (read["status"], read["text"]) == ("running", "")
    assert [rows["items"][0]["result_state"] for rows in (listed, waited)] == ["none", "none"]
    assert [payload_of(letter).rsplit("\n\n", 1)[-1] for letter in letters_in(life.asked()[-1])] == ["found"]


@each_seed
def test_S85_what_a_person_says_in_the_hold_starts_a_step_at_once_and_the_turn_still_waits(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root(under=GUARDED)
        work = await stage.kernel.prompt(root, "go")
        await stage.until(lambda _: len([one for one in stage.model.requests if one.root]) == 2)
        await stage.world.clock.sleep(4.0)
        await stage.kernel.steer(root, "how far are you?")
        await stage.until(lambda _: len([one for one in stage.model.requests if one.root]) == 3)
        assert stage.run("kid").is_open
        await work.done.wait()

    lines = (parent("", spawn("kid")), parent("done?"), parent("half way"), parent("done"))
    life = play(script(*lines, child("kid", "found", delay_ms=30_000)), scene, seed=seed)
    assert life.asked()[2].messages[-1].text == "how far are you?"
    assert len(letters_in(life.asked()[3])) == 1
    (closed,) = _root_turns(life)
    assert place(life.events, TurnClosed, run_id=closed.run_id) > place(life.events, RunSettled)


@pytest.mark.parametrize("slow_s", [0.0, 0.4])
@few_seeds
def test_a_read_that_meets_the_childs_last_moment_loses_no_word_of_its_result(slow_s: float, seed: int) -> None:
    """A text that was read while the child still worked is not its collected result."""

    async def answer(request: ModelRequest) -> Finish:
        if not request.root:
            await stages[0].world.clock.sleep(2.0)
            return says("the whole finding")
        answers = [one for one in request.messages if isinstance(one, ToolText)]
        if not answers:
            return calls(spawn("kid"))
        if len(answers) > 1 and body_of(answers[-1])["status"] == "completed":
            return says("done")
        return calls(call("read_agent_output", id=body_of(answers[0])["run_id"], limit=100 + len(answers)))

    stages: list[Stage] = []

    async def scene(stage: Stage) -> TurnClosed:
        stages.append(stage)
        return await stage.go(under=GUARDED)

    plan = StorePlan(slow_every=1, slow_s=slow_s) if slow_s else None
    life = play(lambda _: FunctionModel(answer), scene, plan=plan, seed=seed)
    run_id = life.settled("kid").run_id
    (carrier,) = [fact.text for fact in life.told(ToolFinished) if run_id in fact.carries]
    assert "the whole finding" in carrier


def _talkative(stages: list[Stage], *, sending: bool) -> FunctionModel:
    """A root that delegates in its first turn and in its second tries every tool on that turn's child."""
    tried = ("wait_agent", "read_agent_output", "cancel_agent", "interrupt_agent")

    async def answer(request: ModelRequest) -> Finish:
        if not request.root:
            await stages[0].world.clock.sleep(1.0)
            return says("found")
        last = request.messages[-1]
        if not isinstance(last, ToolText):
            begun = [one for one in request.messages if isinstance(one, ToolText) and one.name == "spawn_agent"]
            if last.text == "go":
                return calls(spawn("kid"))
            if last.text != "look":
                return says("ok")
            ids = [body_of(begun[0])[key] for key in ("run_id", "session_id")]
            some = [call(tool, id=name) for tool in tried for name in ids]
            sent = [call("send_agent_message", id=name, message="go on") for name in ids if sending]
            return calls(*some, *sent, *(call("list_agents", scope=scope) for scope in ("children", "descendants")))
        if last.name == "spawn_agent":
            return calls(call("wait_agent"))
        return says("ok")

    return FunctionModel(answer)


@few_seeds
def test_in_turn_ids_lists_waits_reads_and_messages_reach_only_children_of_the_present_prompt(seed: int) -> None:
    stages: list[Stage] = []

    async def scene(stage: Stage) -> None:
        stages.append(stage)
        root = await stage.root(under=GUARDED)
        await stage.turn(root)
        await stage.turn(root, "look")
        kept = await stage.kernel.scheduler.output(stage.run("kid").run_id, 0, 100)
        assert kept.text == "found"  # for the person it is there all the same

    life = play(lambda _: _talkative(stages, sending=True), scene, seed=seed)
    answers = life.answers()
    assert [code_of(one) for one in answers[:10]] == ["not_found"] * 10
    assert [body_of(one)["items"] for one in answers[10:]] == [[], []]
    assert len(life.told(RunQueued)) == 1


@under_each("standard", "courier", "resident", "roster")
@few_seeds
def test_without_in_turn_the_next_prompt_reaches_the_children_of_the_one_before(seed: int, under: str) -> None:
    stages: list[Stage] = []

    async def scene(stage: Stage) -> None:
        stages.append(stage)
        root = await stage.root(under=under)
        await stage.turn(root)
        await stage.turn(root, "look")
        await stage.kernel.tree_rests(root)

    life = play(lambda _: _talkative(stages, sending=False), scene, seed=seed)
    answers = next(found for request in life.asked()[1:] if len(found := answers_in(request)) == 10)
    assert [body_of(one)["items"][0]["status"] for one in answers[:2]] == ["completed"] * 2
    assert [body_of(one)["text"] for one in answers[2:4]] == ["found"] * 2
    assert [body_of(one)["note"] for one in answers[4:8]] == ["already ended: completed"] * 4
    assert [len(body_of(one)["items"]) == 1 for one in answers[8:]] == [True] * 2


FATES = {
    # policy: does the turn hold, the turn that sees the result, and what carries it there
    "standard": (True, 1, "letter"),
    "courier": (False, 2, "letter"),
    "resident": (False, 2, "letter"),
    "guarded": (True, 1, "letter"),
    "roster": (False, 3, "call"),
}


@under_each()
@each_seed
def test_what_becomes_of_a_result_that_nobody_waited_for(seed: int, under: str) -> None:
    """Held and told, detached and told in the next turn or in one of its own, detached and fetched."""

    async def answer(request: ModelRequest) -> Finish:
        if not request.root:
            await stages[0].world.clock.sleep(5.0)
            return says("found")
        if request.messages[-1].text == "go":
            return calls(spawn("kid"))
        return calls(call("list_agents")) if request.messages[-1].text == "look" else says("I do not wait")

    stages: list[Stage] = []

    async def scene(stage: Stage) -> None:
        stages.append(stage)
        root = await stage.root(under=under)
        await stage.turn(root)
        await stage.kernel.tree_rests(root)
        for text in ("hello", "look"):
            await stage.turn(root, text)

    life = play(lambda _: FunctionModel(answer), scene, seed=seed)
    holds, turn, way = FATES[under]
    first = next(event for event in life.events if event.fact is _root_turns(life)[0])
    assert (first.position > place(life.events, RunSettled)) is holds
    run_id = life.settled("kid").run_id
    assert (_absorbed(life, run_id), _fetched(life, run_id)) == ((1, 0) if way == "letter" else (0, 1))
    if way == "letter":
        assert [fact.turn for fact in life.told(LetterAbsorbed)] == [turn]
    else:
        assert body_of(life.answers()[0])["items"][0]["output"] == "found"
    causes = [fact.cause for fact in life.told(TurnOpened) if fact.run_id is None]
    assert causes == ["prompt", *(["letter"] if under == "resident" else []), "prompt", "prompt"]


@pytest.mark.parametrize("end", ["interrupt", "crash"])
@each_seed
def test_under_guarded_what_a_broken_turn_left_is_told_once_in_the_next(end: str, seed: int) -> None:
    """A settlement goes home once (CONTRACT section 2, rule 14), also one of a turn that is over."""
    theatre = Theatre(seed=seed)
    lines = (parent("", spawn("kid")), parent("", call("slow")), child("kid", "half", call("slow")))

    async def first(stage: Stage) -> None:
        root = await stage.root(under=GUARDED)
        await stage.kernel.prompt(root, "go")
        await stage.until(lambda events: len(places(events, ToolStarted)) == 3)
        if end == "crash":
            raise SimCrash
        await stage.kernel.interrupt(root)

    async def later(stage: Stage) -> None:
        root = stage.run("kid").root_id
        for text in ("and now?", "and then?"):
            await stage.turn(root, text)

    async def ok(_: ModelRequest) -> Finish:
        return says("ok")

    theatre.live(script(*lines), first, tools=_slow)
    life = theatre.live(lambda _: FunctionModel(ok), later)
    reason = "restart" if end == "crash" else "parent_cancelled"
    settled = life.settled("kid")
    assert (settled.status, settled.reason, settled.partial) == ("cancelled", reason, "half")
    assert homes(life.events, settled.run_id) == 1
    assert [len(letters_in(request)) for request in life.asked()] == [0, 1, 1]


@under_each(*PULLING)
@each_seed
def test_an_awaited_result_is_its_calls_and_comes_by_no_other_way(seed: int, under: str) -> None:
    life = play_turn(
        parent("", spawn("kid", mode="await"), call("list_agents"), call("wait_agent", timeout_s=30)),
        parent("", call("list_agents")),
        parent("done"),
        child("kid", "found", delay_ms=2_000),
        under=under,
        seed=seed,
    )
    spawned = body_of(life.answers(1)[0])
    assert (spawned["output"], spawned["result_state"]) == ("found", "collected")
    assert body_of(life.answers(2)[0])["items"][0]["output"] is None
    assert (_fetched(life, life.settled("kid").run_id), life.told(LetterQueued)) == (1, [])
    assert len(life.asked()) == 3


@each_seed
def test_under_guarded_a_child_with_children_holds_like_the_main_turn_and_gets_what_it_did_not_collect(
    seed: int,
) -> None:
    life = play_turn(
        parent("", spawn("middle")),
        parent("done?"),
        parent("done"),
        child("middle", "", spawn("leaf")),
        child("middle", "leaf is at it"),
        child("middle", "the leaf says so"),
        child("leaf", "a leaf's finding", delay_ms=20_000),
        under=GUARDED,
        policy={"caps.max_depth": 2},
        seed=seed,
    )
    middle = life.asked("middle")
    assert payload_of(letters_in(middle[2])[0]).endswith("a leaf's finding")
    assert life.settled("middle").output == "the leaf says so"
    assert payload_of(letters_in(life.asked()[2])[0]).endswith("the leaf says so")
    assert place(life.events, RunSettled, name="leaf") < place(life.events, RunSettled, name="middle")


@few_seeds
def test_under_roster_a_grandchilds_result_is_shown_to_nobody_but_its_own_parent(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root({"caps.max_depth": 2}, "roster")
        await stage.turn(root)
        await stage.kernel.tree_rests(root)
        await stage.turn(root, "look")
        assert stage.run("leaf").result_state == "stored"

    lines = (
        parent("", spawn("middle", mode="await")),
        parent("done"),
        parent("", call("list_agents", scope="descendants"), call("wait_agent", id="{{child:1}}")),
        parent("done"),
        child("middle", "", spawn("leaf")),
        child("middle", "I left it alone"),
        child("leaf", "a leaf's finding", delay_ms=20_000),
    )
    life = play(script(*lines), scene, seed=seed)
    rows = body_of(life.answers()[0])["items"]
    assert [(row["name"], row["status"], row["output"]) for row in rows] == [
        ("middle", "completed", None),
        ("leaf", "completed", None),
    ]
    assert place(life.events, RunSettled, name="middle") < place(life.events, RunSettled, name="leaf")


@under_each("standard", "resident", "guarded")
@each_seed
def test_nobody_waits_for_a_message_that_was_set_aside(seed: int, under: str) -> None:
    """Neither a wait for all that is open, nor one that names the child, nor the end of the turn."""
    life = play_turn(
        parent("", spawn("kid", continuable=True)),
        parent("", call("send_agent_message", id="{{child:1}}", message="and then this")),
        parent("", call("interrupt_agent", id="{{run:1}}")),
        parent("", call("wait_agent", timeout_s=30)),
        parent("", call("wait_agent", id="{{child:1}}", timeout_s=30)),
        parent("", call("list_agents")),
        parent("done"),
        AGAIN,
        child("kid", "found", delay_ms=300_000),
        under=under,
        seed=seed,
    )
    stopped = place(life.events, ToolFinished, call_id=life.answers(3)[0].call_id)
    for number in (4, 5):
        waited = body_of(life.answers(number)[0])
        assert waited["timed_out"] is False
        ended = place(life.events, ToolFinished, call_id=life.answers(number)[0].call_id)
        assert seconds_between(life.events, stopped, ended) < 1
    rows = body_of(life.answers(6)[0])["items"]
    assert [(row["status"], (row["waiting_for"] or {}).get("kind")) for row in rows] == [
        ("interrupted", None),
        ("queued", "parked"),
    ]
    assert _root_turns(life)[0].status == "completed"
    assert len(life.told(RunStarted)) == 1
