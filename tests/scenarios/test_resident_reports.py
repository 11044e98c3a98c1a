"""Scenarios S80 to S82 of DSH under `resident`: what children report, to whom, and who may not."""

import asyncio
from typing import Any

import pytest

from retinue.core.errors import RetinueError
from retinue.core.events import (
    LetterQueued,
    RunSettled,
    RunStarted,
    StepOpened,
    ToolFinished,
    TurnOpened,
)
from retinue.core.ids import SessionId
from retinue.ports import ToolContext, ToolResult
from retinue.testing.fakes import FakeTool, echo_tool, slow_tool
from tests.scenarios.letterstage import absorbed_at, kinds, start_kid, turns
from tests.scenarios.stage import (
    AGAIN,
    Stage,
    call,
    child,
    code_of,
    each_seed,
    letters_in,
    parent,
    payload_of,
    places,
    play,
    script,
    spawn,
)

UNDER = "resident"
FOREVER_S = 1_000_000.0


def _report(text: str, **more: Any) -> dict[str, Any]:
    return call("report_to_parent", message=text, **more)


@pytest.mark.parametrize("busy", [False, True])
@each_seed
def test_S80_a_report_is_read_before_the_same_childs_settlement_and_reports_keep_their_order(
    busy: bool,
    seed: int,
) -> None:
    async def scene(stage: Stage) -> SessionId:
        root = await stage.root(under=UNDER)
        work = await stage.kernel.prompt(root, "go") if busy else None
        await stage.until(lambda events: bool(places(events, StepOpened)) is busy)
        await start_kid(stage, root, "kid", tools=["echo"])  # a filter does not take the report away
        if work is not None:
            await work.done.wait()
        await stage.kernel.tree_rests(root)
        return root

    life = play(
        script(
            *((parent("", call("slow")),) if busy else ()),
            parent("I see", delay_ms=5_000),
            AGAIN,
            child("kid", "", _report("first")),
            child("kid", "", _report("second")),
            child("kid", "", _report("third")),
            child("kid", "found", delay_ms=100),
        ),
        scene,
        tools=lambda world: [slow_tool(world.clock, 20.0), echo_tool()],
        seed=seed,
    )
    assert life.value is not None
    (turn,) = turns(life, life.value)
    assert turn.cause == ("prompt" if busy else "letter")
    last = letters_in(life.asked()[-1])
    assert kinds(last) == ["REPORT", "REPORT", "REPORT", "FINAL_ANSWER"]
    assert [payload_of(letter) for letter in last[:3]] == ["first", "second", "third"]
    steps = absorbed_at(life, life.value)
    assert steps == sorted(steps)
    assert steps == [(1, 2)] * 4 if busy else steps[-1] == (1, 2)
    assert life.settled("kid").output == "found"  # reporting ended nothing
    assert [tool.name for tool in life.asked("kid")[0].tools] == ["echo", "report_to_parent"]


@each_seed
def test_S80_quiet_reports_wake_nobody_and_are_read_with_what_does(seed: int) -> None:
    async def scene(stage: Stage) -> SessionId:
        root = await stage.root(under=UNDER)
        await start_kid(stage, root, "kid")
        await stage.until(lambda events: len(places(events, LetterQueued)) == 2)
        await stage.world.clock.sleep(10.0)
        assert places(stage.events(), TurnOpened, cause="letter") == []
        assert stage.run("kid").is_open
        await stage.kernel.tree_rests(root)
        return root

    life = play(
        script(
            parent("I see"),
            AGAIN,
            child("kid", "", _report("first", wake=False)),
            child("kid", "", _report("second", wake=False)),
            child("kid", "found", delay_ms=30_000),
        ),
        scene,
        seed=seed,
    )
    assert life.value is not None
    (turn,) = turns(life, life.value)
    assert turn.cause == "letter"
    (request,) = life.asked()
    assert kinds(letters_in(request)) == ["REPORT", "REPORT", "FINAL_ANSWER"]
    assert [payload_of(letter) for letter in letters_in(request)[:2]] == ["first", "second"]


@each_seed
def test_S81_a_grandchilds_report_reaches_only_its_parent(seed: int) -> None:
    async def scene(stage: Stage) -> tuple[SessionId, SessionId]:
        root = await stage.root(under=UNDER)
        mid = await start_kid(stage, root, "mid")
        await stage.kernel.tree_rests(root)
        return root, mid

    life = play(
        script(
            parent("ok"),
            AGAIN,
            child("mid", "", spawn("leaf")),
            child("mid", "waiting", delay_ms=3_000),
            child("mid", "done"),
            AGAIN,
            child("leaf", "", _report("a secret of the leaf")),
            child("leaf", "found", delay_ms=9_000),
        ),
        scene,
        seed=seed,
    )
    assert life.value is not None
    root, mid = life.value
    (report,) = (fact for fact in life.told(LetterQueued) if fact.kind == "report")
    assert (report.sender_id, report.receiver_id) == (life.settled("leaf").child_id, mid)
    shown = ["a secret of the leaf" in str(request.messages) for request in life.asked("mid")]
    assert shown[-1]
    assert not any("a secret of the leaf" in str(request.messages) for request in life.asked())
    assert all(fact.sender_id == mid for fact in life.told(LetterQueued) if fact.receiver_id == root)


TRIES_MAX = 50


class Reporter:
    """A tool that tries to report from within its child: while it is told to stop, and by the test's own word."""

    def __init__(self) -> None:
        self.stage: Stage
        self.context: ToolContext | None = None
        self.codes: list[str] = []
        self.tool = FakeTool("hold", self._hold)

    @property
    def now(self) -> ToolContext:
        """The context of the call that holds."""
        assert self.context is not None
        return self.context

    async def report(self, child_id: SessionId | ToolContext) -> str:
        """Return `ok`, or the code of the refusal."""
        try:
            await self.stage.subagents.report_from(child_id, "something")
        except RetinueError as refused:
            return refused.code
        return "ok"

    async def _hold(self, context: ToolContext, _: Any) -> ToolResult:
        self.context = context
        try:
            await self.stage.world.clock.sleep(60.0)
        except asyncio.CancelledError:
            self.codes.append(await self.report(context))
            raise
        return ToolResult(text="held")

    async def held(self, stage: Stage, root: SessionId) -> SessionId:
        """Start a child that holds, and return it once it does."""
        self.stage = stage
        kid = await start_kid(stage, root, "kid")
        await stage.until(lambda _: self.context is not None)
        return kid


HELD = (parent("ok"), AGAIN, child("kid", "", call("hold")), child("kid", "found"), AGAIN)


@each_seed
def test_S82_a_root_cannot_report_by_tool_or_by_python(seed: int) -> None:
    reporter = Reporter()

    async def scene(stage: Stage) -> str:
        reporter.stage = stage
        root = await stage.root(under=UNDER)
        work = await stage.kernel.prompt(root, "go")
        await stage.until(lambda events: bool(places(events, StepOpened)))
        code = await reporter.report(root)
        await work.done.wait()
        return code

    life = play(
        script(parent("", _report("up"), call("slow")), parent("ok")),
        scene,
        tools=lambda world: [slow_tool(world.clock, 5.0)],
        seed=seed,
    )
    assert life.value == "invalid"
    assert code_of(life.answers()[0]) == "unknown_tool"
    assert life.told(LetterQueued) == []


@each_seed
def test_S82_a_report_after_the_cancel_is_refused(seed: int) -> None:
    reporter = Reporter()

    async def scene(stage: Stage) -> list[str]:
        root = await stage.root(under=UNDER)
        kid = await reporter.held(stage, root)
        assert await reporter.report(kid) == "ok"
        await stage.kernel.scheduler.cancel(stage.run("kid").run_id)
        return [*reporter.codes, await reporter.report(kid)]

    life = play(script(*HELD), scene, tools=lambda _: [reporter.tool], seed=seed)
    assert life.value is not None
    assert life.value[0] == "stopping"
    assert life.value[1] in {"already_ended", "not_found"}
    assert len([fact for fact in life.told(LetterQueued) if fact.kind == "report"]) == 1


@pytest.mark.parametrize("scope", ["all", "below", "children"])
@each_seed
def test_S82_a_report_during_a_drain_is_refused_from_its_first_moment(scope: str, seed: int) -> None:
    reporter = Reporter()

    async def scene(stage: Stage) -> list[str]:
        root = await stage.root(under=UNDER)
        kid = await reporter.held(stage, root)
        ways: dict[str, dict[str, Any]] = {
            "all": {},
            "below": {"below": [root]},
            "children": {"children": [kid], "parent": root},
        }
        begin = stage.kernel.supervisor.begin
        draining = begin(stage.subagents.drain(**ways[scope]))
        tries: list[asyncio.Task[str]] = []

        def look(_: int) -> None:
            if len(tries) < TRIES_MAX:
                tries.append(begin(reporter.report(kid)))

        stage.world.loop.on_pass = look
        await draining
        stage.world.loop.on_pass = None
        return [await one for one in tries]

    life = play(script(*HELD), scene, tools=lambda _: [reporter.tool], seed=seed)
    assert life.value is not None
    accepted = life.value.index("stopping")
    assert accepted <= 2  # those that were there before the drain had begun
    assert life.value[:accepted] == ["ok"] * accepted
    assert set(life.value[accepted:] + reporter.codes) <= {"stopping", "already_ended", "not_found"}
    assert len([fact for fact in life.told(LetterQueued) if fact.kind == "report"]) == accepted


@each_seed
def test_S82_a_child_whose_own_children_are_drained_may_still_report(seed: int) -> None:
    reporter = Reporter()

    async def scene(stage: Stage) -> list[str]:
        root = await stage.root(under=UNDER)
        kid = await reporter.held(stage, root)
        await stage.until(lambda events: bool(places(events, RunStarted, name="leaf")))
        draining = stage.kernel.supervisor.begin(stage.subagents.drain(below=[kid]))
        codes = [await reporter.report(kid)]
        await draining
        assert (stage.run("leaf").status, stage.run("kid").status) == ("cancelled", "running")
        await stage.kernel.tree_rests(root)
        return codes

    lines = (*HELD[:2], child("kid", "", spawn("leaf"), call("hold")), child("kid", "found"), AGAIN)
    life = play(
        script(*lines, child("leaf", "never", delay_ms=60_000)), scene, tools=lambda _: [reporter.tool], seed=seed
    )
    assert life.value == ["ok"]
    assert life.told(RunSettled)[-1].status == "completed"


@each_seed
def test_S82_a_report_by_somebody_who_only_bears_the_childs_id_is_refused(seed: int) -> None:
    """The context of a call that has ended names the same session, which works on its next run meanwhile."""
    reporter = Reporter()

    async def scene(stage: Stage) -> list[str]:
        root = await stage.root(under=UNDER)
        kid = await reporter.held(stage, root)
        stale, reporter.context = reporter.now, None
        await stage.until(lambda events: bool(places(events, RunSettled)))
        await stage.subagents.followup(root, kid, "again")
        await stage.until(lambda _: reporter.context is not None)
        return [await reporter.report(stale), await reporter.report(reporter.now)]

    lines = (*HELD[:4], child("kid", "", call("hold")), child("kid", "again"), AGAIN)
    life = play(script(*lines), scene, tools=lambda _: [reporter.tool], seed=seed)
    assert life.value == ["already_ended", "ok"]
    assert len(life.told(ToolFinished)) >= 1


@each_seed
def test_S82_a_report_without_a_live_parent_or_by_a_child_that_does_not_work_is_refused(seed: int) -> None:
    """An idle parent is alive (it is woken); without one is a child whose tree was deleted."""
    reporter = Reporter()

    async def scene(stage: Stage) -> list[str]:
        root = await stage.root(under=UNDER)
        kid = await reporter.held(stage, root)
        deleting = stage.kernel.supervisor.begin(stage.kernel.delete(root))
        await deleting
        gone = await reporter.report(kid)
        other = await stage.root(under=UNDER)
        done = await start_kid(stage, other, "done")
        await stage.kernel.tree_rests(other)
        return [gone, *reporter.codes, await reporter.report(done), await reporter.report(SessionId("s_9999"))]

    life = play(script(*HELD, child("done", "x")), scene, tools=lambda _: [reporter.tool], seed=seed)
    assert life.value is not None
    gone, while_deleted, done, unknown = life.value
    assert (gone, while_deleted, unknown) == ("not_found", "stopping", "not_found")
    assert done in {"already_ended", "not_found"}
    assert not [fact for fact in life.told(LetterQueued) if fact.kind == "report"]
