"""What went wrong elsewhere, part one: results, waits, cancels, crash windows (B01 to B52)."""

import asyncio
import json
from typing import Any

import pytest

from retinue.core.events import LetterAbsorbed, LetterQueued, RunSettled, RunStarted, ToolFinished, ToolStarted
from retinue.core.ids import SessionId
from retinue.models.script import Script, load_script
from retinue.models.scripted import ScriptedModel
from retinue.models.wire import body_of as wire_body_of
from retinue.ports import Finish, ModelRequest, ToolText, UserText
from retinue.runtime.recovery import recover
from retinue.testing.fakes import slow_tool
from retinue.testing.faults import FaultyModel
from retinue.testing.simloop import SimCrash
from retinue.testing.strict import call_faults, pair_faults
from retinue.testing.world import World
from tests.models.kit import STREAMS
from tests.scenarios.stage import (
    AGAIN,
    FunctionModel,
    Life,
    ModelOf,
    Stage,
    Theatre,
    body_of,
    call,
    calls,
    child,
    each_seed,
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
)


def stream_file(name: str, *more: dict[str, object]) -> ModelOf:
    """Return the maker of a model that plays a stream file, and short lines for agents that it leaves out."""
    loaded = load_script(STREAMS / f"{name}.jsonl")
    rest = ScriptedModel(more).script.replies if more else ()
    both = Script(replies=(*loaded.replies, *rest), expectations=loaded.expectations, meta=loaded.meta)
    return lambda world: ScriptedModel(both, sleep=world.clock.sleep)


def strict_faults(request: ModelRequest) -> list[str]:
    """Return why a strict provider would answer 400."""
    messages = json.loads(wire_body_of(request, send_reasoning=False))["messages"]
    return [*pair_faults(messages), *call_faults(messages)]


def marker_count(request: ModelRequest, marker: str) -> int:
    return sum(message.text.count(marker) for message in request.messages)


def call_took_s(life: Life[Any], tool: str) -> float:
    """Return the virtual seconds of the one call of a tool."""
    (begun,) = (event for event in life.events if isinstance(event.fact, ToolStarted) and event.fact.name == tool)
    assert isinstance(begun.fact, ToolStarted)
    ended = place(life.events, ToolFinished, call_id=begun.fact.call_id)
    return seconds_between(life.events, begun.position, ended)


@each_seed
def test_B01_a_stopped_and_a_shut_down_child_each_leave_one_record_that_every_door_agrees_on(seed: int) -> None:
    theatre = Theatre(seed=seed)
    stages: list[Stage] = []

    async def answer(request: ModelRequest) -> Finish:
        if request.name == "main":
            return calls(spawn("stopped"), spawn("shut")) if request.number == 1 else says("ok")
        await stages[-1].world.clock.sleep(60.0)
        return says("never")

    async def scene(stage: Stage) -> None:
        stages.append(stage)
        await stage.kernel.prompt(await stage.root(), "go")
        await stage.until(lambda _: {"stopped", "shut"} <= {request.name for request in stage.model.requests})
        await stage.kernel.interrupt(stage.run("stopped").session_id)
        await stage.kernel.close()

    theatre.live(lambda _: FunctionModel(answer), scene)
    stopped, shut = theatre.run("stopped"), theatre.run("shut")
    assert (stopped.status, stopped.reason) == ("interrupted", "interrupted")
    assert (shut.status, shut.reason) == ("interrupted", "shutdown")
    ids = [stopped.run_id, shut.run_id]
    doors = [call("wait_agent", ids=ids), call("list_agents")]
    doors += [call(tool, id=name) for name in ids for tool in ("read_agent_output", "cancel_agent")]

    async def later(request: ModelRequest) -> Finish:
        return says("ok") if isinstance(request.messages[-1], ToolText) else calls(*doors)

    life = theatre.live(
        lambda _: FunctionModel(later), lambda stage: stage.turn(stopped.parent_id, "what became of them?")
    )
    waited, listed, *others = (body_of(answer) for answer in life.answers())
    wanted = [("interrupted", "interrupted"), ("interrupted", "shutdown")]
    assert [(row["status"], row["reason"]) for row in waited["items"]] == wanted
    assert sorted((row["status"], row["reason"]) for row in listed["items"]) == wanted
    for read, cancelled in (others[:2], others[2:]):
        assert read["status"] == "interrupted"
        assert cancelled["note"] == "already ended: interrupted"
    assert call_took_s(life, "wait_agent") < 1
    assert len(life.told(RunSettled)) == 2


def test_B01_the_text_streamed_before_the_stop_is_kept_as_partial() -> None:
    async def scene(stage: Stage) -> None:
        kid = await stage.start(await stage.root())
        await stage.until(lambda _: bool(stage.model.seen))
        await stage.world.clock.sleep(1.0)
        await stage.kernel.interrupt(kid.session_id)

    hangs = script(child("kid", "x"))
    life = play(lambda world: FaultyModel(hangs(world), lambda _: "hang", world.clock), scene)
    settled = life.settled("kid")
    assert (settled.status, settled.output, settled.partial) == ("interrupted", None, "thinking about 1")


@each_seed
def test_B04_a_result_that_finds_the_parent_busy_survives_a_kill_and_is_seen_once(seed: int) -> None:
    theatre = Theatre(seed=seed)

    async def killed(stage: Stage) -> None:
        await stage.kernel.prompt(await stage.root(), "go")
        await stage.until(lambda events: bool(places(events, LetterQueued)))
        await stage.world.clock.sleep(10.0)
        raise SimCrash

    lines = (parent("", spawn("kid"), call("slow")), parent("ok"), AGAIN, child("kid", "the answer", delay_ms=1_000))
    theatre.live(script(*lines), killed, tools=lambda world: [slow_tool(world.clock, 30.0)])
    run = theatre.run("kid")
    assert (run.status, run.result_state) == ("completed", "stored")
    life = theatre.live(script(*lines), lambda stage: stage.turn(run.parent_id, "go on"))
    assert [marker_count(request, "the answer") for request in life.asked()] == [1]
    assert theatre.run("kid").result_state == "absorbed"


@each_seed
def test_B09_a_batch_of_awaited_children_returns_each_text_labelled_and_in_order(seed: int) -> None:
    names = ("alpha", "beta", "gamma")
    life = play_turn(
        parent("", *(spawn(name, mode="await") for name in names)),
        parent("done"),
        child("alpha", "the text of alpha", delay_ms=3_000),
        child("beta", "the text of beta", delay_ms=1_000),
        child("gamma", "the text of gamma", delay_ms=2_000),
        seed=seed,
    )
    shown = [body_of(answer) for answer in life.answers()]
    assert [(run["name"], run["output"]) for run in shown] == [(name, f"the text of {name}") for name in names]
    assert life.told(LetterQueued) == []
    assert len(life.asked()) == 2


@each_seed
def test_B13_an_unexpected_error_inside_the_runtime_ends_one_child_and_the_parent_goes_on(seed: int) -> None:
    async def answer(request: ModelRequest) -> Finish:
        if request.name == "main":
            return calls(spawn("fine", mode="await"), spawn("odd", mode="await")) if request.number == 1 else says("ok")
        if request.name == "odd":
            raise LookupError("a bug in the adapter")  # breaks the port's promise: it comes up inside the step itself
        return says("found")

    life = play(lambda _: FunctionModel(answer), lambda stage: stage.go(), seed=seed)
    fine, odd = life.answers()
    assert (fine.error, odd.error) == (False, True)
    assert body_of(fine)["output"] == "found"
    assert (body_of(odd)["status"], body_of(odd)["reason"]) == ("failed", "internal")
    assert "LookupError: a bug in the adapter" in body_of(odd)["detail"]
    assert life.value is not None
    assert life.value.status == "completed"


@each_seed
def test_B26_a_cancel_in_the_instant_of_the_last_chunk_gives_one_status_and_the_call_says_which(seed: int) -> None:
    async def scene(stage: Stage) -> tuple[str, str | None]:
        kid = await stage.start(await stage.root())
        await stage.until(lambda _: bool(stage.model.seen))
        await stage.world.clock.sleep(1.0 - 0.005 + stage.world.rng.random() * 0.01)
        run, note = await stage.kernel.scheduler.cancel(kid.run_id)
        return run.status, note

    life = play(script(child("kid", "found", delay_ms=1_000)), scene, seed=seed)
    assert life.value is not None
    status, note = life.value
    settled = life.settled("kid")
    assert (settled.status, settled.reason) in {("completed", "done"), ("cancelled", "cancelled")}
    assert status == settled.status
    assert note in {None, "already ended: completed"}


@pytest.mark.parametrize("fault", ["slow_stop", "error"])
@each_seed
def test_B26_a_provider_error_after_the_cancel_does_not_overwrite_it(fault: str, seed: int) -> None:
    stages: list[Stage] = []

    async def late_error(_: ModelRequest) -> Finish:
        try:
            await stages[0].world.clock.sleep(60.0)
        except asyncio.CancelledError:
            await stages[0].world.clock.sleep(0.5)
        return Finish(reason="error", error="too late to matter", status=500)

    async def scene(stage: Stage) -> list[str | None]:
        stages.append(stage)
        kid = await stage.start(await stage.root())
        await stage.until(lambda _: bool(stage.model.seen))
        cancels = [stage.kernel.supervisor.begin(stage.kernel.scheduler.cancel(kid.run_id)) for _ in range(3)]
        await asyncio.wait(cancels)
        assert {cancel.result()[0].status for cancel in cancels} == {"cancelled"}
        return [(await stage.kernel.scheduler.cancel(kid.run_id))[1] for _ in range(3)]

    def model(world: World) -> FunctionModel | FaultyModel:
        if fault == "error":
            return FunctionModel(late_error)
        return FaultyModel(FunctionModel(late_error), lambda _: "slow_stop", world.clock)

    life = play(model, scene, seed=seed)
    assert life.value == ["already ended: cancelled"] * 3
    assert (life.settled("kid").status, life.settled("kid").reason) == ("cancelled", "cancelled")


AGAIN_PARENT = parent("Done.", n=5)
"""In some orders the letter comes only behind the file's last reply: one more step then."""


@each_seed
def test_B29_the_text_of_a_child_reaches_the_parent_once_in_all_it_is_sent(seed: int) -> None:
    life = play(stream_file("B29", AGAIN_PARENT), lambda stage: stage.go(), seed=seed)
    assert life.value is not None
    assert (life.value.status, life.value.text) == ("completed", "Done.")
    last = life.asked()[-1]
    assert len(life.asked()) >= 4
    assert marker_count(last, "MARK-7Q2") == 1
    cancelled = next(
        message for message in last.messages if isinstance(message, ToolText) and message.name == "cancel_agent"
    )
    assert body_of(cancelled)["note"] == "already ended: completed"


@each_seed
def test_B31_an_absorbed_result_is_never_delivered_again_and_its_duration_is_frozen(seed: int) -> None:
    theatre = Theatre(seed=seed)
    lines = (parent("", spawn("kid")), parent("ok"), AGAIN, child("kid", "found", delay_ms=4_000))
    theatre.live(script(*lines), lambda stage: stage.go())
    before = theatre.run("kid")
    assert before.result_state == "absorbed"

    async def reconcile(stage: Stage) -> None:
        for _ in range(3):
            assert await recover(stage.kernel.journal, stage.kernel.record) == 0
            await stage.world.clock.sleep(3_600.0)
        for text in ("continue", "and again"):
            await stage.turn(before.parent_id, text)

    life = theatre.live(script(*lines), reconcile)
    assert [len(letters_in(request)) for request in life.asked()] == [1, 1]
    assert len(life.told(LetterQueued)) == len(life.told(LetterAbsorbed)) == 1
    assert theatre.run("kid") == before


@each_seed
def test_B35_answers_then_the_persons_text_then_the_childs_result_whatever_comes_first(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root()
        work = await stage.kernel.prompt(root, "go")
        await stage.world.clock.sleep(stage.world.rng.random() * 1.8)
        await stage.kernel.steer(root, "also do X")
        await work.done.wait()

    life = play(
        script(
            parent("I will look.", spawn("kid"), call("slow"), call("slow")),
            parent("Both done."),
            AGAIN,
            child("kid", "found", delay_ms=900),
        ),
        scene,
        tools=lambda world: [slow_tool(world.clock, 2.0)],
        seed=seed,
    )
    request = life.asked()[1]
    kinds = [type(message) for message in request.messages[2:]]
    assert kinds == [ToolText, ToolText, ToolText, UserText, UserText]
    assert request.messages[5].text == "also do X"
    assert payload_of(request.messages[6].text).endswith("found")
    assert [strict_faults(asked) for asked in life.requests] == [[]] * len(life.requests)


@each_seed
def test_B35_the_stream_file_with_a_steer_while_its_tool_runs(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root()
        work = await stage.kernel.prompt(root, "go")
        await stage.world.clock.sleep(1.0)
        await stage.kernel.steer(root, "also list the tests")
        await work.done.wait()

    tools = ("slow_tool", "read_file")
    life = play(
        stream_file("B35"),
        scene,
        tools=lambda world: [slow_tool(world.clock, 2.0, name) for name in tools],
        seed=seed,
    )
    assert [message.text for message in life.asked()[1].messages[4:]] == ["also list the tests"]
    assert strict_faults(life.asked()[1]) == []


@each_seed
def test_B37_a_kill_during_a_blocking_wait_leaves_a_session_that_goes_on(seed: int) -> None:
    theatre = Theatre(seed=seed)

    async def killed(stage: Stage) -> None:
        await stage.kernel.prompt(await stage.root(), "go")
        await stage.until(lambda events: bool(places(events, ToolStarted, name="wait_agent")))
        await stage.world.clock.sleep(stage.world.rng.random() * 20)
        raise SimCrash

    lines = (
        parent("", spawn("kid")),
        parent("", call("wait_agent", timeout_s=600), call("list_agents")),
        parent("Going on."),
        AGAIN,
        child("kid", "found", delay_ms=100_000),
    )
    theatre.live(script(*lines), killed)
    root = theatre.run("kid").parent_id
    life = theatre.live(script(*lines), lambda stage: stage.turn(root, "continue"))
    request = life.asked()[0]
    assert strict_faults(request) == []
    wait = next(m for m in request.messages if isinstance(m, ToolText) and m.name == "wait_agent")
    assert wait.error
    assert "unknown" in wait.text
    assert "may have had effects" in wait.text


@each_seed
def test_B37_the_stream_file_over_a_kill(seed: int) -> None:
    theatre = Theatre(seed=seed)
    tools = ("slow_tool", "read_file")

    async def killed(stage: Stage) -> SessionId:
        await stage.kernel.prompt(await stage.root(), "go")
        await stage.until(lambda events: bool(places(events, ToolFinished)))
        raise SimCrash

    theatre.live(
        stream_file("B37"),
        killed,
        tools=lambda world: [slow_tool(world.clock, 60.0, tools[0]), slow_tool(world.clock, 0.1, tools[1])],
    )
    (root,) = {event.root_id for event in theatre.before}
    life = theatre.live(stream_file("B37"), lambda stage: stage.turn(root, "continue"))
    answers = [message for message in life.asked()[0].messages if isinstance(message, ToolText)]
    assert [answer.error for answer in answers] == [True, False]
    assert strict_faults(life.asked()[0]) == []
    assert life.value is not None
    assert life.value.text == "Going on."


FAN = (
    parent("", *(spawn(name, mode="await") for name in ("one", "two", "three"))),
    parent("done"),
    child("one", "first", delay_ms=200),
    child("two", "half", error="the provider fell over", delay_ms=100),
    child("three", "third", delay_ms=500),
)


@each_seed
def test_B41_one_of_three_parallel_children_fails_and_the_others_results_are_kept(seed: int) -> None:
    life = play_turn(*FAN, seed=seed)
    shown = [body_of(answer) for answer in life.answers()]
    assert [(run["name"], run["status"]) for run in shown] == [
        ("one", "completed"),
        ("two", "failed"),
        ("three", "completed"),
    ]
    assert [answer.error for answer in life.answers()] == [False, True, False]
    assert (shown[1]["reason"], shown[1]["partial"]) == ("provider_error", "half")


@each_seed
def test_B41_cancelling_the_parent_still_reaches_all_three(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root()
        work = await stage.kernel.prompt(root, "go")
        await stage.until(lambda events: len(places(events, RunStarted)) == 3)
        await stage.kernel.interrupt(root)
        assert work.done.is_set()

    slow = [{**line, "delay_ms": 60_000} if line.get("agent", "").startswith("name:") else line for line in FAN]
    life = play(script(*slow), scene, seed=seed)
    assert {(fact.status, fact.reason) for fact in life.told(RunSettled)} == {("cancelled", "parent_cancelled")}
    assert len(life.told(RunSettled)) == 3
    assert len(life.asked()) == 1


@pytest.mark.parametrize("ending", ["kill", "clean"])
@each_seed
def test_B52_after_a_restart_a_completed_child_is_completed_at_once(ending: str, seed: int) -> None:
    theatre = Theatre(seed=seed)

    async def first(stage: Stage) -> None:
        work = await stage.kernel.prompt(await stage.root(), "go")
        await work.done.wait()
        if ending == "kill":
            raise SimCrash

    lines = (
        parent("", spawn("kid")),
        parent("ok", n=2),
        parent("", call("wait_agent", ids=["{{run:1}}"], timeout_s=600), call("read_agent_output", id="{{run:1}}")),
        parent("done"),
        AGAIN,
        child("kid", "the answer", delay_ms=1_000),
    )
    opening = (parent("", spawn("kid")), parent("ok"), AGAIN, child("kid", "the answer", delay_ms=1_000))
    theatre.live(script(*opening), first)
    root = theatre.run("kid").parent_id
    number = theatre.store.session(root)
    assert number is not None
    later = (lines[0], *(parent("ok") for _ in range(number.usage.requests - 1)), *lines[2:])
    life = theatre.live(script(*later), lambda stage: stage.turn(root, "and?"))
    waited, read = (body_of(answer) for answer in life.answers())
    assert [(row["status"], row["result_state"]) for row in waited["items"]] == [("completed", "absorbed")]
    assert (read["text"], read["status"]) == ("the answer", "completed")
    assert call_took_s(life, "wait_agent") < 1
