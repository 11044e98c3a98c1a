"""Scenarios of DSH under `resident`: what a tree shows of itself, who may stop what, and what could not be put away."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from retinue.core.errors import RetinueError
from retinue.core.events import RunQueued, RunSettled, RunStarted, ToolStarted, TurnClosed
from retinue.core.ids import RunId, SessionId
from retinue.core.run import Run
from retinue.ports import Batch, Delta, Finish, ModelRequest, Page, Piece, RunFilter, ToolContext, ToolResult
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.fakes import FakeTool, echo_tool
from retinue.testing.faults import StorePlan
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
    each_seed,
    parent,
    payload_of,
    place,
    places,
    play,
    says,
    script,
    spawn,
)

UNDER = "resident"
FOREVER_S = 1_000_000.0
LEVELS = 1_500
"""Levels of a chain that is deeper than Python's stack."""


async def _kid(stage: Stage, root: SessionId, name: str) -> SessionId:
    """Start a continuable child and return its session."""
    kid = await stage.subagents.start_continuable("spawn", parent=root, prompt=f"do {name}", name=name)
    return kid.session_id


async def _started(stage: Stage, *names: str) -> None:
    await stage.until(lambda events: all(places(events, RunStarted, name=name) for name in names))


def _sql(path: Path, script: str, *values: str | bytes) -> list[Any]:
    """Run one statement on the file and return the first column."""
    connection = apsw.Connection(str(path))
    found = [row[0] for row in connection.execute(script, values)]
    connection.close()
    return found


def test_S52_a_damaged_child_is_a_diagnostic_row_the_others_stay_listed_and_a_failed_read_is_retried(
    tmp_path: Path,
) -> None:
    path = tmp_path / "retinue.db"
    kept: list[Any] = []

    async def answer(request: ModelRequest) -> Finish:
        if request.name != "main":
            return says(f"from {request.name}")
        look = calls(call("list_agents"), call("read_agent_output", id="r_bad"), call("wait_agent", ids=["r_bad"]))
        if request.number == 1:
            return calls(spawn("one"), spawn("two"), spawn("three"))
        if request.number == 2:
            return calls(call("wait_agent"))
        if request.number == 3:
            bad = stages[0].run("two").run_id
            kept.extend([*_sql(path, "SELECT body FROM runs WHERE run_id = ?", bad), bad])
            _sql(path, "UPDATE runs SET body = 'garbage' WHERE run_id = ?", bad)
        if request.number == 4:
            _sql(path, "UPDATE runs SET body = ? WHERE run_id = ?", *kept)
        return says("ok") if request.number > 4 else _naming(look, kept[1])

    stages: list[Stage] = []

    async def scene(stage: Stage) -> TurnClosed:
        stages.append(stage)
        return await stage.go(under=UNDER)

    life = Theatre(store=SQLiteStore(path)).live(lambda _: FunctionModel(answer), scene)
    damaged, whole = life.answers(3), life.answers(4)
    rows = body_of(damaged[0])["items"]
    assert {row["name"] for row in rows} == {"one", "(damaged)", "three"}
    (bad,) = (row for row in rows if row["name"] == "(damaged)")
    assert (bad["run_id"], bad["status"], bad["reason"]) == (kept[1], "failed", "internal")
    assert "cannot be read" in bad["detail"]
    assert [answer.error for answer in damaged] == [False, True, True]
    ids = [row["run_id"] for row in rows]
    assert [row["run_id"] for row in body_of(whole[0])["items"]] == ids  # each in its place
    assert {row["name"] for row in body_of(whole[0])["items"]} == {"one", "two", "three"}
    assert [answer.error for answer in whole] == [False, False, False]
    assert body_of(whole[1])["text"] == "from two"
    assert life.value is not None
    assert life.value.status == "completed"


def _naming(finish: Finish, run_id: str) -> Finish:
    made = tuple(
        msgspec.structs.replace(one, arguments=one.arguments.replace("r_bad", run_id)) for one in finish.tool_calls
    )
    return msgspec.structs.replace(finish, tool_calls=made)


@each_seed
def test_S53_descendants_are_walked_in_pre_order_and_across_one_shot_children(seed: int) -> None:
    """A one-shot child is what DSH's walk meets as a session that is no continuable agent."""
    life = play(
        script(
            parent("", spawn("a")),
            parent("", spawn("b")),
            parent("", call("sleep")),
            parent("", call("list_agents", scope="descendants"), call("list_agents")),
            parent("ok"),
            AGAIN,
            child("a", "", spawn("shot", continuable=False, mode="await")),
            child("shot", "", spawn("deep")),
            child("shot", "s", delay_ms=30_000),
            child("deep", "d", delay_ms=30_000),
            child("b", "", spawn("leaf")),
            child("b", "b", delay_ms=30_000),
            AGAIN,
            child("leaf", "l", delay_ms=30_000),
            child("a", "a"),
            AGAIN,
        ),
        lambda stage: stage.go(under=UNDER),
        tools=lambda world: [FakeTool("sleep", _sleeper(world.clock.sleep))],
        seed=seed,
    )
    descendants, children = (body_of(answer)["items"] for answer in life.answers(4))
    assert [row["name"] for row in descendants] == ["a", "shot", "deep", "b", "leaf"]
    assert [row["depth"] for row in descendants] == [1, 2, 3, 1, 2]
    assert [row["name"] for row in children] == ["a", "b"]


def _sleeper(sleep: Callable[[float], Awaitable[None]]) -> Callable[[ToolContext, Any], Awaitable[ToolResult]]:
    async def body(_: ToolContext, __: Any) -> ToolResult:
        await sleep(10.0)
        return ToolResult(text="slept")

    return body


@pytest.mark.parametrize("closes", [False, True])
def test_S53_the_walk_survives_very_deep_chains_and_cycles(closes: bool, tmp_path: Path) -> None:
    path = tmp_path / "retinue.db"

    async def scene(stage: Stage) -> list[Run]:
        root = await stage.root(under=UNDER)
        await _kid(stage, root, "kid")
        await stage.kernel.tree_rests(root)
        one = stage.run("kid")
        ids = [one.session_id, *(SessionId(f"s_d{level}") for level in range(LEVELS))]
        ends = [*ids[1:], root if closes else SessionId("s_last")]
        rows = tuple(
            msgspec.structs.replace(one, run_id=RunId(f"r_d{n}"), parent_id=above, session_id=below)
            for n, (above, below) in enumerate(zip(ids, ends, strict=True))
        )
        stage.store.commit([Batch(events=(), runs=rows)])
        found = await stage.kernel.scheduler.children(root, descendants=True)
        _sql(path, "DELETE FROM runs WHERE run_id LIKE 'r_d%'")
        return found

    theatre = Theatre(store=SQLiteStore(path))
    life = theatre.live(script(parent("ok"), AGAIN, child("kid", "found")), scene)
    assert life.value is not None
    assert [run.run_id for run in life.value[1:]] == [f"r_d{n}" for n in range(LEVELS + 1)]
    assert life.value[0].name == "kid"


@each_seed
def test_S54_a_child_in_its_creation_window_is_left_out_or_whole_never_reported_as_corrupt(seed: int) -> None:
    """Looked at in every pass of the loop, through the runtime and by a reader of the store."""

    async def scene(stage: Stage) -> list[list[Run]]:
        root = await stage.root(under=UNDER)
        seen: list[list[Run]] = []
        asked: list[asyncio.Task[list[Run]]] = []

        def look(_: int) -> None:
            seen.append(stage.store.runs(RunFilter(parent_id=root), Page())[0])
            if len(asked) < 60:
                asked.append(stage.kernel.supervisor.begin(stage.kernel.scheduler.children(root)))

        stage.world.loop.on_pass = look
        await _kid(stage, root, "kid")
        stage.world.loop.on_pass = None
        await stage.kernel.tree_rests(root)
        return seen + [await one for one in asked]

    life = Theatre(seed=seed).live(
        script(parent("ok"), AGAIN, child("kid", "found", delay_ms=9_000)),
        scene,
        plan=StorePlan(slow_every=1, slow_s=1.0),
    )
    assert life.value is not None
    accepted = life.told(RunQueued)[0]
    assert {len(rows) for rows in life.value} == {0, 1}
    for run in (run for rows in life.value for run in rows):
        assert (run.run_id, run.session_id, run.name) == (accepted.run_id, accepted.child_id, "kid")
        assert run.status in {"queued", "running", "completed"}


FAMILY = (
    parent("ok"),
    AGAIN,
    child("kid", "", spawn("deep"), spawn("other")),
    child("kid", "thinking", delay_ms=20_000),
    child("kid", "more"),
    AGAIN,
    child("sibling", "s", delay_ms=20_000),
    child("deep", "d", delay_ms=20_000),
    child("other", "o", delay_ms=20_000),
)


@each_seed
def test_S60_an_interrupt_hits_only_its_target_whose_own_children_keep_running(seed: int) -> None:
    async def scene(stage: Stage) -> list[str]:
        root = await stage.root(under=UNDER)
        kid = await _kid(stage, root, "kid")
        await _kid(stage, root, "sibling")
        await _started(stage, "deep", "other", "sibling")
        assert await stage.subagents.interrupt(kid, authority=root)
        working = [stage.run(name).status for name in ("deep", "other", "sibling")]
        await stage.kernel.tree_rests(root)
        return working

    life = play(script(*FAMILY), scene, seed=seed)
    assert life.value == ["running"] * 3
    first = next(fact for fact in life.told(RunSettled) if fact.name == "kid")
    assert (first.status, first.reason) == ("interrupted", "interrupted")
    for name in ("deep", "other", "sibling"):
        assert life.settled(name).status == "completed"
    interrupted = [fact.name for fact in life.told(RunSettled) if fact.status == "interrupted"]
    assert interrupted == ["kid"]


@each_seed
def test_S61_self_sibling_stale_and_unrelated_callers_are_refused_and_an_unknown_target_is_not_found(seed: int) -> None:
    """One answer for all, so that nobody learns what exists (CONTRACT section 2, rule 8)."""

    async def scene(stage: Stage) -> set[str]:
        root, foreign, gone = [await stage.root(under=UNDER) for _ in range(3)]
        kid, sibling = await _kid(stage, root, "kid"), await _kid(stage, root, "sibling")
        await stage.kernel.delete(gone)
        await _started(stage, "deep", "other", "sibling")
        deep = stage.run("deep").session_id
        callers = [(kid, kid), (kid, sibling), (kid, deep), (kid, foreign), (kid, gone), (deep, sibling), (root, root)]
        answers: set[str] = set()
        for target, authority in (*callers, (SessionId("s_9999"), root)):
            with pytest.raises(RetinueError) as refused:
                await stage.subagents.interrupt(target, authority=authority)
            answers.add(str(refused.value).replace(target, "ID").split("\n", 1)[0])
        assert [stage.run(name).status for name in ("kid", "deep", "sibling")] == ["running"] * 3
        assert await stage.subagents.interrupt(deep, authority=root)  # an ancestor may
        await stage.kernel.tree_rests(root)
        return answers

    life = play(script(*FAMILY), scene, seed=seed)
    assert life.value == {"not_found: There is no run 'ID' here."}
    assert [fact.name for fact in life.told(RunSettled) if fact.status == "interrupted"] == ["deep"]


@each_seed
def test_S61_a_finished_or_released_target_is_accepted_without_effect(seed: int) -> None:
    async def scene(stage: Stage) -> list[bool]:
        root = await stage.root(under=UNDER)
        kid = await _kid(stage, root, "kid")
        async with await stage.start(root, "shot") as shot:
            await shot.result
        await stage.kernel.tree_rests(root)
        before = stage.events()
        answers = [await stage.subagents.interrupt(one, authority=root) for one in (kid, shot.session_id, kid)]
        assert stage.events() == before
        return answers

    life = play(script(parent("ok"), AGAIN, child(None, "found")), scene, seed=seed)
    assert life.value == [False] * 3
    assert {fact.status for fact in life.told(RunSettled)} == {"completed"}


@each_seed
def test_S61_an_interrupt_during_disposal_sends_no_second_signal(seed: int) -> None:
    signals: list[float] = []
    stages: list[Stage] = []

    async def linger(_: ToolContext, __: Any) -> ToolResult:
        for _again in range(2):
            try:
                await stages[0].world.clock.sleep(FOREVER_S if not signals else 3.0)
            except asyncio.CancelledError:
                signals.append(stages[0].world.clock.monotonic())
        raise asyncio.CancelledError

    tool = FakeTool("linger", linger)

    async def scene(stage: Stage) -> bool:
        stages.append(stage)
        root = await stage.root(under=UNDER)
        kid = await stage.start(root)
        await stage.until(lambda _: bool(tool.calls))
        disposal = stage.kernel.supervisor.begin(kid.dispose())
        await stage.until(lambda _: bool(signals))
        interrupted = await stage.subagents.interrupt(kid.session_id, authority=root)
        await disposal
        return interrupted

    life = play(script(child("kid", "", call("linger"))), scene, tools=lambda _: [tool], seed=seed)
    assert len(signals) == 1
    assert (life.settled("kid").status, life.settled("kid").reason) == ("cancelled", "cancelled")


@each_seed
def test_S62_a_person_may_interrupt_by_the_parents_address_while_the_parent_is_offline(seed: int) -> None:
    """Offline is a parent without an open turn: the root that was never prompted, a child whose run has ended."""

    async def scene(stage: Stage) -> None:
        root = await stage.root(under=UNDER)
        mid = await _kid(stage, root, "mid")
        await stage.until(lambda events: bool(places(events, RunSettled, name="mid")))
        leaf = stage.run("leaf").session_id
        await stage.until(lambda _: mid not in stage.kernel.supervisor.works)
        assert await stage.subagents.interrupt(leaf, authority=mid)
        busy = await _kid(stage, root, "busy")
        await _started(stage, "busy")
        await stage.until(lambda _: root not in stage.kernel.supervisor.works)
        assert await stage.subagents.interrupt(busy, authority=root)
        await stage.kernel.tree_rests(root)

    life = play(
        script(
            parent("ok"),
            AGAIN,
            child("mid", "", spawn("leaf")),
            child("mid", "done"),
            AGAIN,
            child(None, "never", delay_ms=60_000),
        ),
        scene,
        seed=seed,
    )
    for name in ("leaf", "busy"):
        assert (life.settled(name).status, life.settled(name).reason) == ("interrupted", "interrupted")


class _Sticks:
    """A model whose streams cannot be closed; it says its finish, or hangs after its text."""

    def __init__(self, finish: Finish | None, text: str = "half an answer", *, named: str = "kid") -> None:
        self._finish = finish
        self._text = text
        self._named = named

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Piece]:
        if request.name != self._named:
            yield says("ok")
            return
        try:
            yield Delta(kind="text", text=self._text)
            if self._finish is None:
                await asyncio.get_running_loop().create_future()
            else:
                yield self._finish
        finally:
            raise OSError("the socket would not close")

    async def aclose(self) -> None:
        """Hold nothing."""


def _is_withheld(life: Life[Any], partial: str, why: str) -> None:
    settled = life.settled("kid")
    assert (settled.status, settled.reason, settled.output) == ("failed", "release_failed", None)
    assert settled.partial == partial
    assert why in (settled.detail or "")


@pytest.mark.parametrize(
    "finish", [says("half an answer"), calls(call("echo"), text="half an answer")], ids=["a text", "a call"]
)
@each_seed
def test_S84_an_answer_whose_stream_could_not_be_closed_is_an_error_and_its_text_is_withheld(
    finish: Finish, seed: int
) -> None:
    """Withheld from `output`; `partial` keeps it (CONTRACT section 5)."""

    async def scene(stage: Stage) -> None:
        root = await stage.root(under=UNDER)
        await _kid(stage, root, "kid")
        await stage.kernel.tree_rests(root)

    life = play(lambda _: _Sticks(finish), scene, tools=lambda _: [echo_tool()], seed=seed)
    _is_withheld(life, "half an answer", "the socket would not close")
    assert life.told(ToolStarted) == []
    payload = payload_of(life.letter("kid").text)
    assert payload.startswith(f"Background subagent {life.settled('kid').child_id} failed.")
    assert "did not finish (failed/release_failed)" in payload
    assert len(life.asked("kid")) == 1


@each_seed
def test_S84_a_cancelled_run_whose_connection_could_not_be_closed_says_so(seed: int) -> None:
    async def scene(stage: Stage) -> Run:
        kid = await stage.start(await stage.root(under=UNDER))
        await stage.until(lambda _: bool(stage.model.seen))
        await stage.world.clock.sleep(1.0)
        await kid.dispose()
        return await kid.result

    life = play(lambda _: _Sticks(None), scene, seed=seed)
    _is_withheld(life, "half an answer", "the socket would not close")


@pytest.mark.parametrize("grouped", [False, True])
@each_seed
def test_S84_a_tool_that_fails_to_clean_up_when_its_run_is_cancelled_makes_it_an_error(
    grouped: bool,
    seed: int,
) -> None:
    async def holds(_: ToolContext, __: Any) -> ToolResult:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            error = OSError("the lock file is gone")
            raise ExceptionGroup("two things", [error]) if grouped else error
        return ToolResult(text="never")

    tool = FakeTool("holds", holds)

    async def scene(stage: Stage) -> None:
        root = await stage.root(under=UNDER)
        kid, next_one = await stage.start(root), await stage.start(root, "next")
        await stage.until(lambda _: bool(tool.calls))
        await kid.dispose()
        assert (await next_one.result).output == "found"
        await next_one.dispose()

    lines = (child("kid", "so far", call("holds"), call("holds")), child("next", "found", delay_ms=5_000))
    life = play(script(*lines), scene, tools=lambda _: [tool], seed=seed)
    _is_withheld(life, "so far", "The tool holds failed to clean up")
    assert "the lock file is gone" in (life.settled("kid").detail or "")
    assert place(life.events, RunSettled, name="kid") < place(life.events, RunSettled, name="next")


def test_S84_a_root_turn_that_could_not_be_released_fails_too() -> None:
    life = play(lambda _: _Sticks(says("half an answer"), named="main"), lambda stage: stage.go(under=UNDER))
    assert life.value is not None
    closed = life.value
    assert (closed.status, closed.reason, closed.text) == ("failed", "release_failed", None)
    assert closed.partial == "half an answer"


def test_S84_a_tool_that_raises_while_nobody_stops_it_harms_its_own_call_only() -> None:
    async def breaks(_: ToolContext, __: Any) -> ToolResult:
        raise OSError("no such thing")

    lines = (parent("", call("breaks")), parent("went on"))
    life = play(script(*lines), lambda stage: stage.go(under=UNDER), tools=lambda _: [FakeTool("breaks", breaks)])
    assert life.value is not None
    assert (life.value.status, life.value.text) == ("completed", "went on")
    assert life.answers()[0].error
