"""Scenarios S88 to S98: continuing a child, under the policy of the system they come from."""

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest

from retinue.core.errors import RetinueError
from retinue.core.events import LetterQueued, MessageUser, RunQueued, RunSettled, SessionOpened, TurnOpened
from retinue.core.ids import SessionId
from retinue.core.run import Run
from retinue.ports import Finish, ModelRequest, StoreError, ToolContext, ToolResult
from retinue.runtime.handles import Kid
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.fakes import FakeTool
from retinue.testing.faults import StorePlan
from retinue.testing.world import World, run_world
from retinue.tools.agents import activation
from tests.scenarios.stage import (
    AGAIN,
    FunctionModel,
    Life,
    Stage,
    Theatre,
    call,
    calls,
    child,
    each_seed,
    parent,
    payload_of,
    place,
    places,
    play,
    refusal,
    says,
    script,
    spawn,
)
from tests.sim.lives import kernel_in, open_root

RESIDENT = "resident"
FOREVER_MS = 1_000_000_000
NOTED = (parent("noted"), AGAIN)
under_both = pytest.mark.parametrize("under", [RESIDENT, "standard"])
few_seeds = pytest.mark.parametrize("seed", range(5))


def _count(stage: Stage) -> tuple[int, int]:
    events = stage.events()
    return len(places(events, RunQueued)), len(places(events, SessionOpened))


def _runs_of(life: Life[Any], session_id: str) -> list[RunSettled]:
    return [fact for fact in life.told(RunSettled) if fact.child_id == session_id]


@under_both
@each_seed
def test_S88_ids_are_returned_at_acceptance_before_the_childs_turn_opens(under: str, seed: int) -> None:
    async def scene(stage: Stage) -> tuple[Kid, Kid]:
        root = await stage.root({"caps.running.root": 1}, under)
        first = await stage.keep(root, "first")
        assert stage.model.requests == []
        second = await stage.keep(root, "second")
        stored = stage.events()
        assert place(stored, RunQueued, run_id=first.run_id, child_id=first.session_id)
        assert place(stored, RunQueued, run_id=second.run_id, child_id=second.session_id)
        assert places(stored, TurnOpened, run_id=second.run_id) == []
        assert (first.status, second.status) == ("running", "queued")
        await stage.kernel.tree_rests(root)
        return first, second

    life = play(
        script(*NOTED, child("first", "one", delay_ms=9_000), child("second", "two")),
        scene,
        plan=StorePlan(slow_every=1, slow_s=0.5),
        seed=seed,
    )
    assert life.value is not None
    for kid, output in zip(life.value, ("one", "two"), strict=True):
        accepted = place(life.events, RunQueued, run_id=kid.run_id)
        assert accepted < place(life.events, TurnOpened, run_id=kid.run_id)
        (settled,) = _runs_of(life, kid.session_id)
        assert (settled.run_id, settled.output) == (kid.run_id, output)


@each_seed
def test_S89_a_reserved_id_works_once_and_a_duplicate_is_refused(seed: int) -> None:
    theatre = Theatre(seed=seed)
    ids: list[SessionId] = []

    async def refused(stage: Stage, root: SessionId) -> None:
        before = _count(stage)
        assert (await refusal(stage.keep(root, "again", session_id=ids[0]))).code == "invalid"
        assert (await refusal(stage.start(root, "again", session_id=ids[0]))).code == "invalid"
        assert _count(stage) == before

    async def scene(stage: Stage) -> None:
        root, other = await stage.root(under=RESIDENT), await stage.root(under=RESIDENT)
        ids.extend((stage.subagents.reserve(), root))
        begin = stage.kernel.supervisor.begin
        twins = [begin(stage.keep(root, session_id=ids[0])), begin(stage.keep(other, session_id=ids[0]))]
        done, _ = await asyncio.wait(twins)
        won = [task.result() for task in done if task.exception() is None]
        lost = [task.exception() for task in done if task.exception() is not None]
        assert [kid.session_id for kid in won] == [ids[0]]
        assert [error.code for error in lost if isinstance(error, RetinueError)] == ["invalid"]
        await refused(stage, root)  # while it works
        await refused(stage, other)
        await stage.kernel.tree_rests(root)
        await stage.kernel.tree_rests(other)
        await refused(stage, root)  # after it has ended
        assert (await refusal(stage.keep(root, session_id=root))).code == "invalid"
        assert (await refusal(stage.keep(root, session_id=SessionId("no id")))).code == "invalid"

    async def later(stage: Stage) -> None:
        await refused(stage, ids[1])

    lines = (*NOTED, child("kid", "found", delay_ms=2_000))
    theatre.live(script(*lines), scene)
    life = theatre.live(script(*lines), later)
    assert [fact.child_id for fact in life.told(RunQueued)] == [ids[0]]


def _start_aborted_in_pass(number: int, under: str, seed: int, *, slow: bool) -> tuple[bool, Life[Any]]:
    """Cancel the caller of `start_continuable` in a pass of the loop; return whether it had returned."""

    async def scene(stage: Stage) -> bool:
        root = await stage.root(under=under)
        loop = stage.world.loop
        first = loop.passes
        starting = stage.kernel.supervisor.begin(stage.keep(root))

        def look(passes: int) -> None:
            if passes == first + number:
                starting.cancel()

        loop.on_pass = look
        if number == 0:
            starting.cancel()
        await asyncio.wait((starting,))
        loop.on_pass = None
        await stage.kernel.scheduler.ended(stage.kernel.scheduler.open_runs(root))
        await stage.kernel.tree_rests(root)
        return not starting.cancelled()

    plan = StorePlan(slow_every=1, slow_s=1.0) if slow else None
    life = play(script(*NOTED, child("kid", "found", delay_ms=100)), scene, plan=plan, seed=seed)
    assert life.value is not None
    return life.value, life


@pytest.mark.parametrize("slow", [False, True])
@few_seeds
def test_S90_an_abort_leaves_nothing_or_a_cancelled_run_without_a_request_and_no_half_made_child(
    seed: int, slow: bool
) -> None:
    seen = {"nothing": 0, "cancelled": 0, "started": 0}
    for number in range(200):
        returned, life = _start_aborted_in_pass(number, RESIDENT, seed, slow=slow)
        opened = [fact.name for fact in life.told(SessionOpened)]
        runs = life.told(RunQueued)
        if not runs:
            seen["nothing"] += 1
            assert not returned
            assert (opened, life.requests) == (["main"], [])
        elif not returned:
            seen["cancelled"] += 1
            settled = life.settled("kid")
            assert (settled.status, settled.reason, settled.run_id) == ("cancelled", "cancelled", runs[0].run_id)
            assert life.asked("kid") == []
        else:
            seen["started"] += 1
            assert life.settled("kid").status == "completed"
            break
    assert all(seen.values()), seen


def _lineage(stage_of: list[Stage]) -> FunctionModel:
    """Return a model under which root → kid → grandkid works, each for long."""

    async def answer(request: ModelRequest) -> Finish:
        if request.name == "kid" and request.number == 1:
            return calls(spawn("grandkid"), spawn("sibling"))
        if request.name in ("grandkid", "sibling"):
            await stage_of[0].world.clock.sleep(60.0)
        if request.name == "busy":
            return calls(call("tick", n=request.number)) if request.number < 60 else says("enough")
        return says(f"{request.name} done")

    return FunctionModel(answer)


@each_seed
def test_S92_a_follow_up_by_anyone_but_the_direct_parent_is_refused(seed: int) -> None:
    stages: list[Stage] = []

    async def tick(_: ToolContext, __: object) -> ToolResult:
        await stages[0].world.clock.sleep(0.05)
        return ToolResult(text="tick")

    async def scene(stage: Stage) -> None:
        stages.append(stage)
        root, foreign, third = [await stage.root(under=RESIDENT) for _ in range(3)]
        await stage.turn(foreign)
        kid = await stage.keep(root)
        await stage.keep(third, "busy")  # commits meanwhile, so idle sessions leave memory at any moment
        await stage.until(lambda events: len(places(events, TurnOpened)) >= 5)
        grandkid, sibling = stage.run("grandkid"), stage.run("sibling")
        followup = stage.subagents.followup
        before = [fact.name for fact in _queued(stage)]
        for sender, target in (
            (root, grandkid.session_id),
            (foreign, kid.session_id),
            (foreign, kid.run_id),
            (foreign, grandkid.session_id),
            (third, kid.session_id),
            (sibling.session_id, grandkid.session_id),
            (grandkid.session_id, kid.session_id),
            (kid.session_id, root),
        ):
            assert (await refusal(followup(sender, target, "obey me"))).code == "not_found", (sender, target)
        assert (await refusal(followup(kid.session_id, kid.session_id, "obey me"))).code == "invalid"
        assert (await refusal(followup(SessionId("s_9999"), kid.session_id, "obey me"))).code == "not_found"
        assert [fact.name for fact in _queued(stage)] == before
        run = await followup(kid.session_id, grandkid.session_id, "and now this")
        assert run.session_id == grandkid.session_id
        await stage.kernel.tree_rests(root)

    life = play(lambda _: _lineage(stages), scene, tools=lambda _: [FakeTool("tick", tick)], seed=seed)
    assert not any("obey me" in message.text for request in life.requests for message in request.messages)
    assert [request.messages[-1].text for request in life.asked("grandkid")] == ["do grandkid", "and now this"]


def _queued(stage: Stage) -> list[RunQueued]:
    return [event.fact for event in stage.events() if isinstance(event.fact, RunQueued)]


@few_seeds
def test_S92_a_parent_that_is_deleted_while_its_child_is_resumed_gets_a_refusal_or_a_run_that_ended(seed: int) -> None:
    """Sessions are never replaced here, only deleted: whoever loses the race leaves nothing behind."""
    seen = {"refused": 0, "accepted": 0}
    for after_ms in range(0, 150, 4):
        outcome, left = _resume_against_delete(after_ms, seed)
        seen["accepted" if isinstance(outcome, Run) else "refused"] += 1
        if isinstance(outcome, RetinueError):
            assert outcome.code in ("not_found", "stopping"), outcome
        else:
            assert isinstance(outcome, Run)
        assert left == 0
    assert all(seen.values()), seen


def _resume_against_delete(after_ms: int, seed: int) -> tuple[object, int]:
    async def scene(stage: Stage) -> tuple[object, int]:
        root = await stage.root({"result.idle_parent": "store"}, RESIDENT)
        kid = await stage.keep(root)
        await stage.kernel.tree_rests(root)
        begin = stage.kernel.supervisor.begin
        resuming = begin(stage.subagents.followup(root, kid.session_id, "and now this"))
        await stage.world.clock.sleep(after_ms / 1_000)
        deleting = begin(stage.kernel.delete(root))
        await asyncio.wait((resuming, deleting))
        assert deleting.exception() is None
        assert (await refusal(stage.subagents.followup(root, kid.session_id, "still there?"))).code == "not_found"
        assert stage.kernel.journal.error is None
        outcome = resuming.exception() or resuming.result()
        return outcome, sum(event.root_id == root for event in stage.events())

    life = play(script(child("kid", "one"), child("kid", "two", delay_ms=9_000)), scene, seed=seed)
    assert life.value is not None
    return life.value


@each_seed
def test_S93_an_unknown_child_and_one_that_cannot_be_continued_are_clear_errors(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        root, other = await stage.root(under=RESIDENT), await stage.root(under=RESIDENT)
        single = await stage.start(root, "single")
        await single.result
        followup = stage.subagents.followup
        before = _count(stage)
        for name in ("s_9999", "r_9999", "kid", "", other):
            assert (await refusal(followup(root, name, "go on"))).code == "not_found", name
        assert (await refusal(followup(root, root, "go on"))).code == "invalid"
        assert (await refusal(followup(root, single.session_id, "go on"))).code == "not_continuable"
        await single.dispose()  # under resident its session is deleted with it
        assert (await refusal(followup(root, single.session_id, "go on"))).code == "not_continuable"
        kid = await stage.keep(root)
        assert (await refusal(followup(root, kid.session_id, "  "))).code == "invalid"
        assert _count(stage) == (before[0] + 1, before[1])
        await stage.kernel.tree_rests(root)

    play(script(*NOTED, child(None, "found")), scene, seed=seed)


@pytest.mark.parametrize(("table", "says_why"), [("runs", "is one-shot and has ended"), ("events", "cannot be read")])
def test_S93_a_child_whose_record_is_damaged_is_a_clear_error_and_its_sibling_goes_on(
    table: str, says_why: str, tmp_path: Path
) -> None:
    path = tmp_path / "store.db"

    async def main(world: World) -> None:
        store = SQLiteStore(path)
        model = script(*NOTED, child("good", "one"), child("good", "two"), child("bad", "found"))(world)
        kernel = kernel_in(world, store, model)
        await kernel.start()
        stage = Stage(world, kernel, model, store)  # pyright: ignore[reportArgumentType] - nobody reads its requests
        root = await open_root(kernel, {"result.idle_parent": "store"}, RESIDENT)
        good, bad = await stage.keep(root, "good"), await stage.keep(root, "bad")
        await kernel.tree_rests(root)
        harm = apsw.Connection(str(path))
        harm.execute(f"UPDATE {table} SET body = '{{' WHERE session_id = '{bad.session_id}'")
        harm.close()
        before = _count(stage) if table == "runs" else None
        with pytest.raises((RetinueError, StoreError), match=says_why):
            await stage.subagents.followup(root, bad.session_id, "go on")
        assert before is None or _count(stage) == before
        run = await stage.subagents.followup(root, good.session_id, "go on")
        await kernel.scheduler.ended([run.run_id])
        assert (await kernel.scheduler.run(run.run_id)).output == "two"
        await kernel.close()
        store.close()

    run_world(main, 0)


@under_both
@few_seeds
def test_S94_a_message_that_meets_the_childs_last_moments_is_worked_on_in_any_case(under: str, seed: int) -> None:
    stays = {"same": 0, "new": 0}
    for after_ms in range(0, 120, 5):
        life = _message_around_the_end(after_ms, under, seed)
        assert life.value is not None
        first, second = _runs_of(life, life.value.session_id)
        assert (first.status, first.output) == ("completed", "one")
        assert (second.status, second.output, second.run_id) == ("completed", "two", life.value.run_id)
        assert [m.text for m in life.asked("kid")[-1].messages] == ["do kid", "one", "and now this"]
        letters = [fact.run_id for fact in life.told(LetterQueued)]
        assert letters == [first.run_id, second.run_id]
        accepted = place(life.events, RunQueued, run_id=second.run_id)
        stays["same" if accepted < place(life.events, RunSettled, run_id=first.run_id) else "new"] += 1
    assert all(stays.values()), stays


def _message_around_the_end(after_ms: int, under: str, seed: int) -> Life[Run]:
    async def scene(stage: Stage) -> Run:
        root = await stage.root(under=under)
        kid = await stage.keep(root)
        await stage.until(lambda _: bool(stage.model.requests))
        await stage.world.clock.sleep(0.94 + after_ms / 1_000)
        run = await stage.subagents.followup(root, kid.session_id, "and now this")
        await stage.kernel.tree_rests(root)
        return run

    return play(script(*NOTED, child("kid", "one", delay_ms=1_000), child("kid", "two")), scene, seed=seed)


ENDS = ("cancel", "drain", "crash", "shutdown")


@under_both
@pytest.mark.parametrize("end", ENDS)
@few_seeds
def test_S96_a_resumed_stay_that_opened_no_turn_does_not_repeat_the_old_answer(end: str, under: str, seed: int) -> None:
    theatre = Theatre(seed=seed)
    ids: list[str] = []

    async def scene(stage: Stage) -> None:
        root = await stage.root({"caps.running.root": 1}, under)
        kid = await stage.keep(root)
        await stage.kernel.tree_rests(root)
        holder = await stage.keep(root, "holder")
        run = await stage.subagents.followup(root, kid.session_id, "and now this")
        ids.extend((run.run_id, kid.session_id, holder.session_id))
        assert run.status == "queued"
        if end == "cancel":
            await stage.kernel.scheduler.cancel(run.run_id)
        elif end == "drain":
            await stage.subagents.drain(parent=root, children=[kid.session_id])
        elif end == "crash":
            await _crash(stage)

    async def later(stage: Stage) -> None:
        """Only what the start closes."""

    lines = (*NOTED, child("kid", "the old answer"), child("holder", "held", delay_ms=FOREVER_MS))
    assert theatre.live(script(*lines), scene).crashed is (end == "crash")
    life = theatre.live(script(*lines), later)
    (settled,) = (fact for fact in life.told(RunSettled) if fact.run_id == ids[0])
    wanted = {
        "cancel": ("cancelled", "cancelled"),
        "drain": ("cancelled", "cancelled"),
        "crash": ("interrupted", "restart"),
        "shutdown": ("interrupted", "shutdown"),
    }[end]
    assert (settled.status, settled.reason) == wanted
    assert (settled.output, settled.partial, settled.steps, settled.started_at) == (None, None, 0, None)
    assert places(life.events, TurnOpened, run_id=settled.run_id) == []
    (letter,) = (fact for fact in life.told(LetterQueued) if fact.run_id == settled.run_id)
    assert "the old answer" not in letter.text
    assert f"did not finish ({'/'.join(wanted)})" in payload_of(letter.text)


async def _crash(stage: Stage) -> None:
    """End the process at the next commit."""
    store: Any = stage.kernel.parts.store
    store.plan = StorePlan(crash_before=store.commits + 1)
    await stage.root()


@each_seed
def test_S97_cancelling_the_caller_after_acceptance_does_not_cancel_the_turn(seed: int) -> None:
    async def scene(stage: Stage) -> list[str]:
        root = await stage.root(under=RESIDENT)
        held: list[Any] = []

        async def caller() -> None:
            kid = await stage.keep(root)
            held.append(kid)
            held.append(await stage.subagents.followup(root, kid.session_id, "and now this"))
            await asyncio.get_running_loop().create_future()

        calling = stage.kernel.supervisor.begin(caller())
        await stage.until(lambda _: len(held) == 2)
        calling.cancel()
        await asyncio.wait((calling,))
        assert calling.cancelled()
        await stage.kernel.tree_rests(root)
        return [held[0].run_id, held[1].run_id]

    life = play(script(*NOTED, child("kid", "one", delay_ms=5_000), child("kid", "two")), scene, seed=seed)
    assert [(fact.run_id, fact.output) for fact in life.told(RunSettled)] == list(
        zip(life.value or [], ("one", "two"), strict=True)
    )


@each_seed
def test_S97_a_parents_turn_that_is_interrupted_after_its_call_returned_leaves_the_child_to_work(seed: int) -> None:
    """Under `resident` nothing but an awaited child follows its caller's turn."""

    async def scene(stage: Stage) -> str:
        root = await stage.root(under=RESIDENT)
        work = await stage.kernel.prompt(root, "go")
        await stage.until(lambda _: len([r for r in stage.model.requests if r.name == "main"]) == 2)
        await stage.kernel.interrupt(root)
        await work.done.wait()
        assert stage.run("kid").is_open
        await stage.kernel.tree_rests(root)
        return stage.run("kid").status

    lines = (parent("", spawn("kid")), parent("never", n=2, delay_ms=FOREVER_MS), *NOTED)
    life = play(script(*lines, child("kid", "found", delay_ms=5_000)), scene, seed=seed)
    assert life.value == "completed"


@pytest.mark.parametrize("parked", [False, True])
@each_seed
def test_S98_an_accepted_message_that_is_discarded_instead_of_run_releases_the_child(parked: bool, seed: int) -> None:
    async def scene(stage: Stage) -> Kid:
        root = await stage.root(under=RESIDENT)
        kid = await stage.keep(root)
        run = await stage.subagents.followup(root, kid.session_id, "never mind")

        def stands() -> str:
            return activation(stage.kernel.journal.state, stage.run("kid") if not parked else run)

        if parked:
            assert await stage.subagents.interrupt(kid.session_id, authority=root)
            await stage.kernel.tree_rests(root)
            assert stands() == "settled"  # the parked message keeps it
            assert kid.session_id in stage.kernel.journal.state.sessions
        await stage.kernel.scheduler.cancel(run.run_id)
        await stage.kernel.tree_rests(root)
        assert activation(stage.kernel.journal.state, run) == "released"
        assert kid.session_id not in stage.kernel.journal.state.sessions
        assert stage.kernel.journal.state.runs.get(run.run_id) is None
        return kid

    life = play(script(*NOTED, child("kid", "found", delay_ms=3_000)), scene, seed=seed)
    assert life.value is not None
    ended = {fact.run_id: fact.status for fact in _runs_of(life, life.value.session_id)}
    assert ended.pop(life.value.run_id) == ("interrupted" if parked else "completed")
    assert list(ended.values()) == ["cancelled"]
    shown = [fact.text for fact in life.told(MessageUser)]
    assert "never mind" not in shown
