"""Scenarios of YCode, under `guarded`: five at once, a turn that ends with nothing open, clean-up, the switch."""

from typing import Any

import pytest

from retinue.core.errors import RetinueError
from retinue.core.events import (
    Event,
    LetterQueued,
    RunQueued,
    RunSettled,
    RunStarted,
    StepOpened,
    ToolFinished,
    TurnClosed,
)
from retinue.core.ids import SessionId
from retinue.core.text import CUT_MARK
from retinue.ports import Finish, ModelRequest, Tool, ToolText
from retinue.testing.fakes import hanging_tool, slow_tool
from retinue.testing.simloop import SimCrash
from retinue.testing.world import World
from tests.scenarios.stage import (
    AGAIN,
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
    few_seeds,
    homes,
    letters_in,
    parent,
    payload_of,
    peak,
    place,
    places,
    play,
    play_turn,
    says,
    script,
    seconds_between,
    spawn,
)

GUARDED = "guarded"
TIMEOUT_S = 600
RESULT_MAX_CHARS = 24_000


def _slow(world: World) -> list[Tool]:
    return [slow_tool(world.clock, 5.0)]


def ends_of_root(events: list[Event]) -> list[int]:
    """Return the positions at which turns of roots closed."""
    return [event.position for event in events if isinstance(event.fact, TurnClosed) and event.fact.run_id is None]


def fates(life: Life[Any]) -> dict[str, tuple[str, str | None]]:
    """Return how each run ended, by its name."""
    return {fact.name: (fact.status, fact.reason) for fact in life.told(RunSettled)}


async def _all_slots_are_free(stage: Stage) -> None:
    """Show that nothing holds a slot any more: five children of another root start at once."""
    other = await stage.root(under=GUARDED)
    kids = [await stage.start(other, f"fresh{number}") for number in range(5)]
    assert {stage.run(f"fresh{number}").status for number in range(5)} == {"running"}
    for kid in kids:
        await kid.dispose()


@each_seed
def test_S10_five_run_and_the_sixth_queues(seed: int) -> None:
    life = play_turn(
        parent("", *(spawn(f"kid{number}") for number in range(6))),
        parent("done"),
        AGAIN,
        child(None, "found", delay_ms=3_000),
        under=GUARDED,
        seed=seed,
    )
    answers = [body_of(answer) for answer in life.answers(1)]
    assert sorted(answer["status"] for answer in answers) == ["queued"] + ["running"] * 5
    assert [answer["queue_position"] for answer in answers if answer["status"] == "queued"] == [1]
    assert peak(life.events) == 5
    assert places(life.events, RunStarted)[5] > places(life.events, RunSettled)[0]


@few_seeds
def test_S10_the_five_are_those_of_the_whole_process(seed: int) -> None:
    async def scene(stage: Stage) -> list[str]:
        roots = [await stage.root(under=GUARDED) for _ in range(2)]
        kids = [await stage.start(roots[number % 2], f"kid{number}") for number in range(6)]
        statuses = [stage.run(f"kid{number}").status for number in range(6)]
        for kid in kids:
            await kid.result
        return statuses

    life = play(script(child(None, "found", delay_ms=3_000)), scene, seed=seed)
    assert life.value == ["running"] * 5 + ["queued"]


@each_seed
def test_S12_the_seventeenth_child_of_a_main_turn_is_refused_and_the_next_turn_begins_anew(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root(under=GUARDED)
        await stage.turn(root)
        await stage.turn(root, "and now?")

    lines = (
        parent("", *(spawn(f"kid{number}") for number in range(17))),
        parent("", call("wait_agent")),
        parent("", spawn("late")),
        parent("done"),
        parent("", spawn("fresh", mode="await")),
        parent("done"),
        child(None, "found", delay_ms=500),
    )
    life = play(script(*lines), scene, seed=seed)
    refused = [answer for answer in life.answers(1) if answer.error]
    assert [code_of(answer) for answer in (*refused, life.answers(3)[0])] == ["cap_created"] * 2
    assert "caps.created.turn is 16" in refused[0].text
    assert len(life.told(RunQueued)) == 17  # sixteen, and the one of the next turn
    assert set(fates(life).values()) == {("completed", "done")}


@each_seed
def test_S37_the_execution_time_out_ends_a_child_and_frees_its_slot(seed: int) -> None:
    """The file half comes with claims: here the slot is what the next run gets in the same commit."""
    life = play_turn(
        parent("", *(spawn(f"kid{number}") for number in range(5))),
        parent("", spawn("sixth")),
        parent("done"),
        AGAIN,
        child("sixth", "found", delay_ms=60_000),
        child(None, "still at it", call("hangs")),
        under=GUARDED,
        tools=lambda _: [hanging_tool()],
        seed=seed,
    )
    assert fates(life) == {
        **{f"kid{n}": ("failed", "timeout") for n in range(5)},
        "sixth": ("completed", "done"),
    }
    late = life.settled("kid0")
    assert (late.partial, late.output) == ("still at it", None)
    assert late.elapsed_s == pytest.approx(TIMEOUT_S, abs=0.1)
    first = places(life.events, RunSettled)[0]
    assert seconds_between(life.events, first, place(life.events, RunStarted, name="sixth")) == 0
    sixth = life.settled("sixth")
    assert sixth.queued_s == pytest.approx(TIMEOUT_S, abs=1)  # which counted for nobody's time
    assert sixth.elapsed_s == pytest.approx(60, abs=1)


LOOKS = {"wait": call("wait_agent", id="{{run:1}}"), "list": call("list_agents")}


@pytest.mark.parametrize("way", [*LOOKS, "hold"])
@few_seeds
def test_S38_a_result_above_the_limit_is_cut_and_marked_and_stays_readable_whole(way: str, seed: int) -> None:
    """The half about rollback data comes with files."""
    whole = "".join(f"line {number}: 漢🧭\n" for number in range(3_000))
    reads = [call("read_agent_output", id="{{run:1}}", offset=RESULT_MAX_CHARS * number) for number in range(3)]
    life = play_turn(
        parent("", spawn("kid")),
        parent("", call("slow")),
        parent("I am done") if way == "hold" else parent("", LOOKS[way]),
        parent("", *reads),
        parent("done"),
        child("kid", whole),
        under=GUARDED,
        tools=_slow,
        seed=seed,
    )
    settled = life.settled("kid")
    assert (settled.output, settled.output_cut) == (whole[:RESULT_MAX_CHARS], True)
    if way == "hold":
        (letter,) = life.told(LetterQueued)
        assert letter.cut
        assert whole[:RESULT_MAX_CHARS] + CUT_MARK in payload_of(letter.text)
        assert f'read_agent_output with id "{settled.output_id}"' in letter.text
    else:
        (row,) = body_of(life.answers(3)[0])["items"]
        assert row["output"] == settled.output
        assert (row["output_cut"], row["output_id"]) == (True, settled.output_id)
    pieces = [body_of(answer) for answer in life.answers()]
    assert "".join(piece["text"] for piece in pieces) == whole
    assert {piece["total_chars"] for piece in pieces} == {len(whole)}


@each_seed
def test_S50_one_wait_call_never_lasts_more_than_thirty_seconds(seed: int) -> None:
    waits = (call("wait_agent", timeout_s=600), call("wait_agent", timeout_ms=10**9), call("wait_agent"))
    life = play_turn(
        parent("", spawn("kid")),
        *(parent("", wait) for wait in waits),
        parent("", call("wait_agent", timeout_s=600)),
        parent("done"),
        child("kid", "found", delay_ms=100_000),
        under=GUARDED,
        seed=seed,
    )
    before = place(life.events, ToolFinished, call_id=life.answers(1)[0].call_id)
    for number in (2, 3, 4):
        answer = life.answers(number)[0]
        after = place(life.events, ToolFinished, call_id=answer.call_id)
        assert 30 <= seconds_between(life.events, before, after) < 31
        assert body_of(answer)["timed_out"] is True
        assert body_of(answer)["items"][0]["status"] == "running"
        before = after
    (row,) = body_of(life.answers(5)[0])["items"]
    assert (row["status"], row["output"]) == ("completed", "found")


@each_seed
def test_S58_one_child_is_stopped_from_outside_and_its_siblings_go_on(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root(under=GUARDED)
        work = await stage.kernel.prompt(root, "go")
        await stage.until(lambda events: len(places(events, RunStarted)) == 3)
        run, note = await stage.kernel.scheduler.cancel(stage.run("kid1").run_id)
        assert (run.status, run.reason, note) == ("cancelled", "cancelled", None)
        assert [stage.run(f"kid{number}").status for number in (0, 2)] == ["running"] * 2
        await work.done.wait()

    lines = (
        parent("", *(spawn(f"kid{number}") for number in range(3))),
        parent("I wait"),
        parent("done"),
        child(None, "found", delay_ms=9_000),
    )
    life = play(script(*lines), scene, seed=seed)
    assert fates(life) == {
        "kid0": ("completed", "done"),
        "kid1": ("cancelled", "cancelled"),
        "kid2": ("completed", "done"),
    }
    # The model learns of all three when the host returns what nobody collected.
    assert len(letters_in(life.asked()[-1])) == 3


@each_seed
def test_S85_the_turn_does_not_end_while_a_child_runs_and_then_gets_all_that_nobody_collected(seed: int) -> None:
    life = play_turn(
        parent("", spawn("quick"), spawn("slow")),
        parent("I think I am done"),
        parent("now I am"),
        child("quick", "one", delay_ms=2_000),
        child("slow", "two", delay_ms=40_000),
        under=GUARDED,
        seed=seed,
    )
    assert life.value is not None
    assert (life.value.status, life.value.text) == ("completed", "now I am")
    asked = life.asked()
    assert len(asked) == 3
    last = places(life.events, RunSettled)[-1]
    steps = [event.position for event in life.events if isinstance(event.fact, StepOpened) and event.fact.turn == 1]
    assert steps[-1] > last  # `guarded` hands over when all have settled, in one step
    payloads = [payload_of(letter) for letter in letters_in(asked[2])]
    assert sorted(payload.rsplit("\n\n", 1)[-1] for payload in payloads) == ["one", "two"]
    assert {life.settled(name).result_state for name in ("quick", "slow")} == {"stored"}
    assert [homes(life.events, life.settled(name).run_id) for name in ("quick", "slow")] == [1, 1]


def _five_work_and_two_wait(events: list[Event]) -> bool:
    return (len(places(events, RunQueued)), len(places(events, RunStarted))) == (7, 5)


@pytest.mark.parametrize("end", ["completes", "interrupted", "fails"])
@each_seed
def test_S86_the_turn_end_event_follows_the_last_child_snapshot_and_numbers_keep_rising(end: str, seed: int) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root(under=GUARDED)
        work = await stage.kernel.prompt(root, "go")
        if end == "interrupted":
            await stage.until(_five_work_and_two_wait)
            await stage.kernel.interrupt(root)
        await work.done.wait()

    last = {"fails": [parent("", error="it broke", delay_ms=500)]}.get(end, [parent("done?")])
    lines = (parent("", *(spawn(f"kid{number}") for number in range(7))), *last, parent("done"))
    life = play(script(*lines, child(None, "found", delay_ms=3_000)), scene, seed=seed)
    (ended,) = ends_of_root(life.events)
    assert ended == life.events[-1].position
    assert len(life.told(RunSettled)) == 7
    assert [event.position for event in life.events] == list(range(1, len(life.events) + 1))
    for session_id in {event.session_id for event in life.events}:
        numbers = [event.seq for event in life.events if event.session_id == session_id]
        assert numbers == list(range(1, len(numbers) + 1))


async def _cancel_turn(stage: Stage, root: SessionId) -> None:
    assert await stage.kernel.interrupt(root)


async def _switch_off(stage: Stage, root: SessionId) -> None:
    await stage.kernel.set_switch(False)
    assert stage.kernel.scheduler.open_runs(root) == []
    await stage.kernel.set_switch(True)


CLEANED = {
    "cancel": (_cancel_turn, "parent_cancelled"),
    "switch_off": (_switch_off, "switched_off"),
}


@pytest.mark.parametrize("how", CLEANED)
@each_seed
def test_S109_cancelling_the_parent_and_switching_off_each_clean_up_every_child_and_its_slot(
    how: str, seed: int
) -> None:
    """The halves about approvals and claims come with rights and files."""
    act, reason = CLEANED[how]

    async def scene(stage: Stage) -> None:
        root = await stage.root(under=GUARDED)
        work = await stage.kernel.prompt(root, "go")
        await stage.until(_five_work_and_two_wait)
        await act(stage, root)
        asked = len([request for request in stage.model.requests if not request.root])
        assert {stage.run(f"kid{number}").status for number in range(7)} == {"cancelled"}
        await work.done.wait()
        assert len([request for request in stage.model.requests if not request.root]) == asked
        await _all_slots_are_free(stage)

    lines = (
        parent("", *(spawn(f"kid{number}") for number in range(7))),
        parent("done?"),
        parent("I go on without them"),
        child(None, "found", delay_ms=60_000),
    )
    life = play(script(*lines), scene, seed=seed)
    assert {life.settled(f"kid{number}").reason for number in range(7)} == {reason}
    (closed,) = (fact for fact in life.told(TurnClosed) if fact.run_id is None)
    assert closed.text == (None if how == "cancel" else "I go on without them")
    assert sum(fact.started_at is None for fact in life.told(RunSettled) if fact.reason == reason) == 2


@each_seed
def test_S109_a_time_out_cleans_up_what_the_child_had_started_child_first(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        await stage.to_rest({"caps.max_depth": 2, "life.run_timeout_s": 50}, GUARDED)
        await _all_slots_are_free(stage)

    lines = (
        parent("", spawn("middle")),
        parent("done?"),
        parent("done"),
        child("middle", "", *(spawn(f"leaf{number}") for number in range(6))),
        child("middle", "", call("hangs")),
        child(None, "found", call("hangs")),
    )
    life = play(script(*lines), scene, tools=lambda _: [hanging_tool()], seed=seed)
    late = place(life.events, RunSettled, name="middle")
    assert (life.settled("middle").status, life.settled("middle").reason) == ("failed", "timeout")
    for number in range(6):
        settled = life.settled(f"leaf{number}")
        assert settled.reason in {"parent_cancelled", "timeout"}  # those that began with it are late as well
        assert place(life.events, RunSettled, name=settled.name) < late
    assert life.settled("middle").elapsed_s == pytest.approx(50, abs=1)


@each_seed
def test_S110_five_running_children_are_all_cleaned_up_on_cancel_before_the_turn_ends(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root(under=GUARDED)
        await stage.kernel.prompt(root, "go")
        await stage.until(lambda _: len(stage.model.requests) >= 6)
        await stage.kernel.interrupt(root)
        assert stage.kernel.supervisor.works == {}
        await _all_slots_are_free(stage)

    lines = (
        parent("", *(spawn(f"kid{number}") for number in range(5))),
        parent("", call("wait_agent")),
        child(None, "found", delay_ms=60_000),
    )
    life = play(script(*lines), scene, seed=seed)
    settled = [place(life.events, RunSettled, name=f"kid{number}") for number in range(5)]
    assert {life.settled(f"kid{number}").reason for number in range(5)} == {"parent_cancelled"}
    assert max(settled) < ends_of_root(life.events)[0]


SWITCHED = ("spawn_agent", "send_agent_message", "interrupt_agent")
STAYING = ("list_agents", "wait_agent", "read_agent_output", "cancel_agent")


async def _stubborn(request: ModelRequest) -> Finish:
    """Keep on calling what a parent calls, whatever is offered."""
    answers = [one for one in request.messages if isinstance(one, ToolText) and not one.error]
    run_ids = [body_of(one)["run_id"] for one in answers if one.name == "spawn_agent"]
    plan = [
        [spawn("early")],
        [call("wait_agent")],
        [spawn("open"), spawn("queued")],
        [call("slow")],
        [spawn("late"), call("send_agent_message", id=run_ids[0], message="more") if run_ids else call("slow")],
        [call("interrupt_agent", id=run_ids[1])] if len(run_ids) > 1 else [],
        [call("read_agent_output", id=run_ids[0]), call("list_agents")] if run_ids else [],
        [call("cancel_agent", id=run_ids[1]), call("wait_agent", ids=run_ids)] if len(run_ids) > 1 else [],
    ]
    return calls(*plan[request.number - 1]) if request.number <= len(plan) else says("the main talk goes on")


def _offered(request: ModelRequest) -> set[str]:
    return {tool.name for tool in request.tools}


@each_seed
def test_S126_switching_off_takes_the_tools_away_the_host_refuses_their_names_and_results_stay_readable(
    seed: int,
) -> None:
    stages: list[Stage] = []

    async def answer(request: ModelRequest) -> Finish:
        if request.root:
            return await _stubborn(request)
        await stages[0].world.clock.sleep(1.0 if request.name == "early" else 500.0)
        return says("an early finding")

    async def scene(stage: Stage) -> None:
        stages.append(stage)
        root = await stage.root({"caps.running.process": 1}, GUARDED)
        work = await stage.kernel.prompt(root, "go")
        await stage.until(lambda _: len([one for one in stage.model.requests if one.root]) == 4)
        await stage.kernel.set_switch(False)
        assert {stage.run(name).reason for name in ("open", "queued")} == {"switched_off"}
        with pytest.raises(RetinueError, match="switched off"):
            await stage.start(root, "python")
        with pytest.raises(RetinueError, match="switched off"):
            await stage.subagents.followup(root, stage.run("early").session_id, "more")
        await work.done.wait()

    life = play(lambda _: FunctionModel(answer), scene, tools=_slow, seed=seed)
    asked = life.asked()
    assert _offered(asked[3]) >= {*SWITCHED, *STAYING}
    for request in asked[4:]:
        assert not _offered(request) & set(SWITCHED)
        assert _offered(request) >= set(STAYING)
    assert [code_of(one) for n in (5, 6) for one in life.answers(n)] == ["switched_off"] * 3
    read, listed = (body_of(one) for one in life.answers(7))
    assert (read["text"], read["status"]) == ("an early finding", "completed")
    assert sorted(row["status"] for row in listed["items"]) == ["cancelled", "cancelled", "completed"]
    cancelled, waited = (body_of(one) for one in life.answers(8))
    assert cancelled["note"] == "already ended: cancelled"
    assert len(waited["items"]) == 3
    (closed,) = (fact for fact in life.told(TurnClosed) if fact.run_id is None)
    assert closed.text == "the main talk goes on"
    assert len(life.told(RunQueued)) == 3


def test_S126_the_switch_survives_a_crash_and_on_again_brings_the_tools_back() -> None:
    theatre = Theatre(steady=False)

    async def off(stage: Stage) -> SessionId:
        root = await stage.root(under=GUARDED)
        work = await stage.kernel.prompt(root, "go")
        await work.done.wait()
        await stage.kernel.set_switch(False)
        return root

    async def crash(_: Stage) -> None:
        raise SimCrash

    lines = (
        parent("", spawn("kid", mode="await")),
        parent("done"),
        parent("", spawn("late")),
        parent("not possible"),
        parent("", spawn("again", mode="await")),
        parent("done"),
        child(None, "found"),
    )
    root = theatre.live(script(*lines), off).value
    assert root is not None
    theatre.live(script(*lines), crash)

    async def on(stage: Stage) -> None:
        assert not stage.kernel.switch_on
        await stage.turn(root, "try")
        await stage.kernel.set_switch(True)
        await stage.turn(root, "and now?")

    life = theatre.live(script(*lines), on)
    first, refused, third = life.asked()[:3]
    assert code_of(life.answers(1)[0]) == "switched_off"
    assert ["spawn_agent" in _offered(one) for one in (first, refused, third)] == [False, False, True]
    assert life.settled("again").output == "found"
