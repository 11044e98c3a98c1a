"""Scenarios S102 and S108: deleting a session with everything below it."""

import asyncio
from typing import Any

import pytest

from retinue.core.events import Event, RunSettled, RunStarted, TurnClosed
from retinue.ports import UserText
from retinue.runtime.handles import Session
from retinue.testing.checkers import all_runs
from retinue.testing.fakes import deaf_tool
from tests.scenarios.stage import (
    AGAIN,
    Stage,
    call,
    child,
    each_seed,
    parent,
    place,
    places,
    play,
    refusal,
    script,
    spawn,
)
from tests.scenarios.test_draining import Forest

RESIDENT = "resident"
LONG_S = 50.0
STOPPING_S = 2.0
few_seeds = pytest.mark.parametrize("seed", range(5))


async def _started(stage: Stage, *names: str) -> None:
    await stage.until(lambda events: all(places(events, RunStarted, name=name) for name in names))


def _open(stage: Stage) -> set[str]:
    return {run.name for run in all_runs(stage.store) if run.is_open}


TWO = {"a": ["a1", "a2"], "b": ["b1", "b2"]}


@each_seed
def test_S102_deleting_a_session_removes_all_descendants_children_first(seed: int) -> None:
    seen: list[Event] = []

    async def scene(stage: Stage) -> None:
        wide = {"caps.max_depth": 2, "caps.running.root": 8, "caps.running.process": 8, "result.turn_end": "hold_open"}
        root, other = await stage.root(wide, "roster"), await stage.root(under=RESIDENT)
        turn = Session(stage.kernel, root).prompt("go")

        async def follow() -> None:
            seen.extend([item async for item in turn if isinstance(item, Event)])

        following = stage.kernel.supervisor.begin(follow())
        await _started(stage, "a", "b", "a1", "a2", "b1", "b2")
        bystander = await stage.keep(other, "bystander")
        ids = {run.name: run.session_id for run in all_runs(stage.store)}
        deleted = await stage.kernel.delete(root)
        await asyncio.wait((following,))
        assert set(deleted) == {root, *(ids[name] for name in ("a", "b", "a1", "a2", "b1", "b2"))}
        assert deleted[-1] == root
        for above in ("a", "b"):
            assert all(deleted.index(ids[below]) < deleted.index(ids[above]) for below in TWO[above])
        assert {event.root_id for event in stage.events()} == {other}
        assert [run.session_id for run in all_runs(stage.store)] == [bystander.session_id]
        for session_id in deleted:
            assert stage.store.session(session_id) is None
            assert (await refusal(stage.kernel.load(session_id))).code == "not_found"
        assert (await refusal(stage.kernel.prompt(root, "still there?"))).code == "not_found"
        assert (await refusal(stage.kernel.delete(root))).code == "not_found"
        assert _open(stage) == {"bystander"}

    Forest({"main": ["a", "b"], **TWO}, busy=("a", "b"), slow=("a1", "b")).play(scene, seed=seed)
    for above in ("a", "b"):
        gone = place(seen, RunSettled, name=above, reason="deleted")
        assert all(place(seen, RunSettled, name=below) < gone for below in TWO[above])
    (closed,) = (event for event in seen if isinstance(event.fact, TurnClosed) and event.fact.run_id is None)
    assert all(position < closed.position for position in places(seen, RunSettled))


@few_seeds
def test_S102_a_late_event_cannot_recreate_a_deleted_session(seed: int) -> None:
    """Its tool ignores every cancel and ends long after; a report and a letter come too late as well."""

    async def scene(stage: Stage) -> None:
        root, other = await stage.root({"caps.max_depth": 2}), await stage.root()
        work = await stage.kernel.prompt(root, "go")
        await _started(stage, "leaf")
        leaf = stage.run("leaf")
        await stage.until(lambda events: bool(places(events, RunStarted, name="leaf")))
        await stage.world.clock.sleep(1.0)
        await stage.kernel.delete(root)
        assert work.done.is_set()
        before = stage.events()
        assert (await refusal(stage.subagents.report_from(leaf.session_id, "late"))).code == "not_found"
        assert (await refusal(stage.subagents.followup(other, leaf.session_id, "late"))).code == "not_found"
        assert (await refusal(stage.subagents.followup(root, leaf.session_id, "late"))).code == "not_found"
        await stage.world.clock.sleep(200.0)  # the deaf tool has ended by now
        assert stage.events() == before
        assert stage.kernel.journal.error is None
        assert (await stage.turn(other)).status == "completed"

    lines = (
        parent("", spawn("mid"), n=1),
        parent("done"),
        AGAIN,
        child("mid", "", spawn("leaf"), n=1),
        child("mid", "noted"),
        AGAIN,
        child("leaf", "", call("deaf")),
        child("leaf", "never"),
    )

    def other_root(world: Any) -> Any:
        return script(*lines)(world)

    play(other_root, scene, tools=lambda world: [deaf_tool(world.clock, 100.0)], seed=seed)


@each_seed
def test_S108_a_parents_turn_end_forgets_ended_children_and_keeps_running_ones_and_deletion_takes_both(
    seed: int,
) -> None:
    """The record of what has ended stays readable (S49); only what works is kept in the process."""

    async def scene(stage: Stage) -> None:
        root = await stage.root(under="courier")
        closed = await stage.turn(root)
        assert closed.status == "completed"
        quick, slow = stage.run("quick"), stage.run("slow")
        assert (quick.status, slow.status) == ("completed", "running")
        state, works = stage.kernel.journal.state, stage.kernel.supervisor.works
        assert (quick.run_id in state.runs, slow.run_id in state.runs) == (False, True)
        assert (quick.session_id in state.sessions, slow.session_id in state.sessions) == (False, True)
        assert set(works) == {slow.session_id}
        answer = await stage.kernel.scheduler.output(quick.run_id, 0, 100)
        assert answer.text == "found"
        await stage.kernel.delete(root)
        assert works == {}
        assert state.sessions.keys() & {root, quick.session_id, slow.session_id} == set()
        assert all_runs(stage.store) == []
        assert stage.events() == []

    lines = (
        parent("", spawn("quick"), spawn("slow")),
        parent("", call("wait_agent", ids=["{{run:1}}"], timeout_s=60)),
        parent("on with it"),
        child("quick", "found", delay_ms=1_000),
        child("slow", "never", delay_ms=1_000_000),
    )
    life = play(script(*lines), scene, seed=seed)
    assert [message.text for message in life.asked()[0].messages if isinstance(message, UserText)] == ["go"]
