"""Scenarios S24 to S36: how runs end, and that they end once."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from retinue.core.decide.base import Ending
from retinue.core.decide.runs import Settle, decide_settle
from retinue.core.errors import RetinueError
from retinue.core.events import LetterQueued, RunQueued, RunSettled, RunStarted, SessionOpened, TurnClosed, TurnOpened
from retinue.core.run import Run
from retinue.ports import Finish, FinishCall, ModelRequest, ToolContext, ToolResult
from retinue.runtime.handles import Child, Session, TurnResult
from retinue.testing.fakes import FakeTool, echo_tool
from retinue.testing.faults import SLOW_STOP_S, FaultyModel
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
    each_seed,
    parent,
    payload_of,
    places,
    play,
    play_turn,
    says,
    script,
    spawn,
    under_each,
)

FOREVER_S = 1_000_000.0


@under_each()
@each_seed
def test_S24_the_step_limit_is_a_reason_of_its_own_and_wait_event_notice_and_list_agree_on_it(
    seed: int, under: str
) -> None:
    life = play_turn(
        parent("", spawn("loop")),
        parent("", call("wait_agent")),
        parent("", call("list_agents")),
        parent("done"),
        AGAIN,
        child("loop", "still at it", call("echo")),
        AGAIN,
        policy={"life.max_steps": 3},
        under=under,
        tools=lambda _: [echo_tool()],
        seed=seed,
    )
    wanted = ("failed", "step_limit")
    settled = life.settled("loop")
    (closed,) = (fact for fact in life.told(TurnClosed) if fact.run_id == settled.run_id)
    (waited,) = body_of(life.answers(2)[0])["items"]
    (listed,) = body_of(life.answers(3)[0])["items"]
    assert (settled.status, settled.reason) == (closed.status, closed.reason) == wanted
    assert (waited["status"], waited["reason"]) == (listed["status"], listed["reason"]) == wanted
    assert (settled.output, settled.partial, settled.steps) == (None, "still at it", 3)
    assert len(life.asked("loop")) == 3
    if under in PULLING:  # the wait brings what there is, and no notice comes
        assert (waited["output"], life.told(LetterQueued)) == ("still at it", [])
        return
    letter = payload_of(life.letter("loop").text)
    # Only of a child that can be continued, a sentence says first how its run stopped.
    stopped = f"Background subagent {settled.child_id} ran out of steps."
    assert letter.startswith(stopped if settled.continuable else "The task did not finish (failed/step_limit)")
    assert "did not finish (failed/step_limit)" in letter


@under_each()
@each_seed
def test_S25_a_provider_error_after_some_text_fails_with_the_partial_output_kept_apart(seed: int, under: str) -> None:
    life = play_turn(
        parent("", spawn("broken")),
        parent("", call("wait_agent")),
        parent("", call("read_agent_output", id="{{run:1}}")),
        parent("done"),
        AGAIN,
        child("broken", "half an answer", error="the provider fell over", delay_ms=500),
        under=under,
        seed=seed,
    )
    settled = life.settled("broken")
    assert (settled.status, settled.reason, settled.output) == ("failed", "provider_error", None)
    assert settled.partial == "half an answer"
    assert "the provider fell over" in (settled.detail or "")
    (waited,) = body_of(life.answers(2)[0])["items"]
    assert waited["reason"] == "provider_error"
    assert body_of(life.answers(3)[0])["text"] == "half an answer"
    if under in PULLING:
        assert (waited["output"], life.told(LetterQueued)) == ("half an answer", [])
        return
    letter = payload_of(life.letter("broken").text)
    assert "did not finish (failed/provider_error)" in letter
    assert "Text so far:\nhalf an answer" in letter


@dataclass(frozen=True)
class Started:
    """What a cancelled start left."""

    child: Child | None
    life: Life[Child | None]


def _start_cancelled_in_pass(number: int, seed: int, under: str) -> Started:
    """Cancel the caller of `start` in a pass of the loop; 0 is before its first step."""

    async def scene(stage: Stage) -> Child | None:
        root = await stage.root(under=under)
        loop = stage.world.loop
        first = loop.passes
        starting = stage.kernel.supervisor.begin(stage.start(root))

        def look(passes: int) -> None:
            if passes == first + number:
                starting.cancel()

        loop.on_pass = look
        if number == 0:
            starting.cancel()
        try:
            kid = await starting
            await kid.result
        except asyncio.CancelledError:
            kid = None
        loop.on_pass = None
        open_runs = stage.kernel.scheduler.open_runs(root)
        await stage.kernel.scheduler.ended(open_runs)
        return kid

    life = play(script(child("kid", "found", delay_ms=100)), scene, seed=seed)
    return Started(life.value, life)


@under_each("standard", "resident")
@pytest.mark.parametrize("seed", range(5))
def test_S32_a_start_aborted_before_the_decision_publishes_nothing_and_later_leaves_a_cancelled_run(
    seed: int, under: str
) -> None:
    """Cancelling `await start` undoes it; once it has returned, its caller's cancellation is nobody's concern."""
    seen = {"nothing": 0, "cancelled": 0, "started": 0}
    for number in range(200):
        started = _start_cancelled_in_pass(number, seed, under)
        runs = started.life.told(RunQueued)
        if not runs:
            seen["nothing"] += 1
            assert started.child is None
            assert len(started.life.told(SessionOpened)) == 1
            assert started.life.requests == []
        elif started.child is None:
            seen["cancelled"] += 1
            settled = started.life.settled("kid")
            assert settled.run_id == runs[0].run_id
            assert (settled.status, settled.reason) == ("cancelled", "cancelled")
        else:
            seen["started"] += 1
            assert started.life.settled("kid").status == "completed"
            break
        assert number or not runs  # already aborted, and aborted in the same tick
    assert all(seen.values()), seen


@under_each("standard", "resident")
@each_seed
def test_S32_an_abort_after_publication_yields_a_cancelled_run_with_an_id(seed: int, under: str) -> None:
    async def scene(stage: Stage) -> Run:
        kid = await stage.start(await stage.root(under=under))
        await kid.dispose()
        run = await kid.result
        assert run.run_id == kid.run_id
        return run

    life = play(script(child("kid", "found", delay_ms=5_000)), scene, seed=seed)
    assert life.value is not None
    assert (life.value.status, life.value.reason, life.value.output) == ("cancelled", "cancelled", None)


@under_each("standard", "resident")
@each_seed
def test_S33_dispose_is_idempotent_cancels_waits_for_quiet_and_removes_the_child_from_the_registry(
    seed: int, under: str
) -> None:
    running = 0

    async def linger(context: ToolContext, _: object) -> ToolResult:
        nonlocal running
        running += 1
        try:
            await context.offload(lambda: None)
            await asyncio.get_running_loop().create_future()
        finally:
            await stages[0].world.clock.sleep(2.0)  # it takes its time to stop
            running -= 1
        return ToolResult(text="never")

    stages: list[Stage] = []

    async def scene(stage: Stage) -> float:
        stages.append(stage)
        root = await stage.root(under=under)
        kid, sibling = await stage.start(root), await stage.start(root, "sibling")
        await stage.until(lambda _: running > 0)
        before = stage.world.clock.monotonic()
        disposals = [stage.kernel.supervisor.begin(kid.dispose()) for _ in range(3)]
        await asyncio.wait(disposals)
        assert [done.exception() for done in disposals] == [None] * 3
        took = stage.world.clock.monotonic() - before
        assert running == 0
        assert kid.session_id not in stage.kernel.supervisor.works
        assert kid.session_id not in stage.kernel.journal.state.sessions
        assert stage.run("kid").status == "cancelled"
        assert stage.run("sibling").is_open
        await kid.dispose()
        assert (await sibling.result).output == "found"
        await sibling.dispose()  # on an ended one it changes nothing
        assert stage.run("sibling").status == "completed"
        return took

    lines = (child("kid", "", call("linger")), child("sibling", "found", delay_ms=9_000))
    life = play(script(*lines), scene, tools=lambda _: [FakeTool("linger", linger)], seed=seed)
    assert life.value is not None
    assert life.value >= 2.0
    assert len(life.asked("kid")) == 1


def test_S33_dispose_waits_for_a_model_that_stops_slowly() -> None:
    async def scene(stage: Stage) -> float:
        kid = await stage.start(await stage.root())
        await stage.until(lambda _: bool(stage.model.seen))
        before = stage.world.clock.monotonic()
        await kid.dispose()
        assert stage.run("kid").status == "cancelled"
        return stage.world.clock.monotonic() - before

    slow = script(child("kid", "x"))
    life = play(lambda world: FaultyModel(slow(world), lambda _: "slow_stop", world.clock), scene)
    assert life.value is not None
    assert life.value >= SLOW_STOP_S


FINISHES: dict[str, Finish] = {
    "done": says("found"),
    "done_empty": says(""),
    "provider_error": Finish(reason="error", error="it broke"),
    "rate_limit": Finish(reason="error", error="too many", status=429),
    "stream_incomplete": Finish(reason="incomplete", text="ha"),
    "refusal": Finish(reason="refusal", error="no"),
    "token_limit": Finish(reason="length", text="too lo"),
    "bad_tool_calls": Finish(reason="tool_calls"),
    "step_limit": Finish(reason="tool_calls", tool_calls=(FinishCall(name="echo", arguments="{}"),)),
}
"""Endings that a model brings about, by the reason they have."""
Act = Callable[[Stage, Run], Awaitable[object]]


async def _nothing(_: Stage, __: Run) -> None:
    """Wait for what comes by itself."""


async def _cancel(stage: Stage, run: Run) -> None:
    await stage.kernel.scheduler.cancel(run.run_id)


async def _interrupt(stage: Stage, run: Run) -> None:
    await stage.kernel.interrupt(run.session_id)


async def _interrupt_parent(stage: Stage, run: Run) -> None:
    await stage.kernel.interrupt(run.parent_id)


ACTS: dict[str, Act] = {
    "timeout": _nothing,
    "cancelled": _cancel,
    "interrupted": _interrupt,
    "parent_cancelled": _interrupt_parent,
}
"""Endings that come from outside while the model says nothing."""


def _ends_once(reason: str, life: Life[Any]) -> None:
    settled = life.settled("kid")
    assert settled.reason == reason
    assert len([fact for fact in life.told(TurnClosed) if fact.run_id == settled.run_id]) == 1
    assert len([fact for fact in life.told(LetterQueued) if fact.run_id == settled.run_id]) == 1


@under_each("standard", "courier")
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("reason", [*FINISHES, *ACTS])
def test_S36_ending_twice_settles_once_for_every_kind_of_end(reason: str, seed: int, under: str) -> None:
    """Under `courier` only a child that the turn awaits ends with it."""
    stages: list[Stage] = []
    mode = "await" if (under, reason) == ("courier", "parent_cancelled") else "background"

    async def answer(request: ModelRequest) -> Finish:
        if request.name == "main":
            return calls(spawn("kid", mode=mode)) if request.number == 1 else says("ok")
        if reason in FINISHES:
            return FINISHES[reason]
        await stages[0].world.clock.sleep(FOREVER_S)
        return says("never")

    async def scene(stage: Stage) -> None:
        stages.append(stage)
        limits = {"life.max_steps": 3 if reason == "step_limit" else 6, "life.run_timeout_s": 30}
        work = await stage.kernel.prompt(await stage.root(limits, under), "go")
        await stage.until(lambda _: any(request.name == "kid" for request in stage.model.requests))
        run = stage.run("kid")
        await ACTS.get(reason, _nothing)(stage, run)
        await stage.until(lambda events: any(isinstance(event.fact, RunSettled) for event in events))
        await _end_again(stage, run)
        await work.done.wait()
        await _end_again(stage, run)

    life = play(lambda _: FunctionModel(answer), scene, tools=lambda _: [echo_tool()], seed=seed)
    _ends_once(reason, life)


async def _end_again(stage: Stage, run: Run) -> None:
    """End an ended run through every door."""
    first = stage.run("kid")
    _, note = await stage.kernel.scheduler.cancel(run.run_id)
    assert note == f"already ended: {first.status}"
    for ending in (
        Ending(status="completed", reason="done", detail="again"),
        Ending(status="failed", reason="provider_error", detail="again"),
    ):
        command = Settle(run_id=run.run_id, ending=ending, stamp=stage.kernel.journal.stamp())
        await stage.kernel.journal.submit(decide_settle, command)
    await stage.kernel.interrupt(run.session_id)
    last = stage.run("kid")
    assert (last.status, last.reason, last.ended_at) == (first.status, first.reason, first.ended_at)


@under_each("standard", "courier")
@each_seed
def test_S36_several_endings_in_the_same_tick_settle_once(seed: int, under: str) -> None:
    async def scene(stage: Stage) -> Run:
        kid = await stage.start(await stage.root(under=under))
        await stage.until(lambda events: any(isinstance(event.fact, RunStarted) for event in events))
        begin = stage.kernel.supervisor.begin
        await stage.world.clock.sleep(0.7)  # its answer comes now
        endings = [
            begin(kid.dispose()),
            begin(stage.kernel.interrupt(kid.session_id)),
            begin(_cancel(stage, stage.run("kid"))),
            begin(kid.dispose()),
        ]
        await asyncio.wait(endings)
        assert [done.exception() for done in endings] == [None] * 4
        return await kid.result

    life = play(script(child("kid", "found", delay_ms=700)), scene, seed=seed)
    assert life.value is not None
    assert life.value.status in {"completed", "cancelled", "interrupted"}
    assert life.settled("kid").status == life.value.status


@under_each("standard", "courier")
def test_S36_a_shutdown_and_the_next_start_settle_once(under: str) -> None:
    theatre = Theatre()

    async def scene(stage: Stage) -> None:
        await stage.kernel.prompt(await stage.root(under=under), "go")
        await stage.until(lambda events: any(isinstance(event.fact, RunStarted) for event in events))
        await stage.kernel.close()

    async def later(stage: Stage) -> str | None:
        assert stage.kernel.recovered == 0
        return (await stage.kernel.scheduler.cancel(stage.run("kid").run_id))[1]

    lines = (parent("", spawn("kid")), parent("ok"), AGAIN, child("kid", "found", delay_ms=60_000))
    theatre.live(script(*lines), scene)
    life = theatre.live(script(*lines), later)
    assert life.value == "already ended: interrupted"
    _ends_once("shutdown", life)


@each_seed
def test_an_interrupt_right_after_the_prompt_stops_that_turn(seed: int) -> None:
    async def scene(stage: Stage) -> TurnResult:
        turn = Session(stage.kernel, await stage.root()).prompt("go")
        assert await turn.interrupt()
        return await turn.result

    life = play(script(parent("never said", delay_ms=60_000)), scene, seed=seed)
    assert life.value is not None
    assert (life.value.status, life.value.reason) == ("interrupted", "interrupted")


@each_seed
def test_a_turn_that_is_over_or_never_opened_interrupts_no_other_turn(seed: int) -> None:
    async def scene(stage: Stage) -> list[str]:
        session = Session(stage.kernel, await stage.root())
        over = session.prompt("first")
        await over.result
        running = session.prompt("second")
        await stage.until(lambda events: len(places(events, TurnOpened)) == 2)
        refused = session.prompt("third")
        assert not await refused.interrupt()
        assert not await over.interrupt()
        with pytest.raises(RetinueError, match="turn_open"):
            await refused.result
        return [(await running.result).status]

    life = play(script(parent("one"), parent("two", delay_ms=9_000)), scene, seed=seed)
    assert life.value == ["completed"]
