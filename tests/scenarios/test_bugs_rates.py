"""What went wrong elsewhere, part four: rate limits and what requests cost (B37, B62, B65, B67)."""

import asyncio
import json
from collections.abc import AsyncGenerator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from retinue.core.events import RunSettled, StepClosed, ToolFinished, ToolStarted, Usage
from retinue.models.retry import RetryingModel
from retinue.models.wire import body_of as wire_body_of
from retinue.ports import Delta, Finish, Model, ModelRequest, Piece, Spent
from retinue.testing.fakes import slow_tool
from retinue.testing.simloop import SimCrash
from retinue.testing.strict import call_faults, pair_faults
from retinue.testing.world import World
from tests.e2e.kit import retinue, script
from tests.scenarios.stage import (
    FunctionModel,
    Life,
    Stage,
    Theatre,
    answers_in,
    body_of,
    call,
    calls,
    places,
    play,
    says,
    spawn,
)
from tests.scenarios.streamstage import Where, everywhere, simulated

RATE = 2
"""Requests that the server answers in any second; the next one is told to come back after `ASKED_S`."""
ASKED_S = 2.0
EIGHT = tuple(f"kid{n}" for n in range(8))
WIDE = {"caps.running.root": 8, "caps.running.process": 8}
few_seeds = pytest.mark.parametrize("seed", range(5))


class LimitedServer:
    """A provider with a rate: it answers, or says 429 with Retry-After. In virtual time; it remembers who came when."""

    def __init__(self, world: World, rate: int = RATE) -> None:
        self.tries: dict[str, list[tuple[float, bool]]] = {}
        self._rate = rate
        self._clock = world.clock
        self._recent: list[float] = []

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        now_s = self._clock.monotonic()
        self._recent = [moment_s for moment_s in self._recent if moment_s > now_s - 1.0]
        free = len(self._recent) < self._rate
        if free:
            self._recent.append(now_s)
        self.tries.setdefault(request.session_id, []).append((now_s, free))
        await self._clock.sleep(0.05)
        if free:
            yield says(f"{request.name} is done")
        else:
            yield Finish(reason="error", error="Slow down.", status=429, retry_after_s=ASKED_S)

    async def aclose(self) -> None:
        """Hold nothing."""


def asked_of(where: Where, seed: int, rate: int) -> tuple[LimitedServer, Life[list[tuple[str, str]]]]:
    """Let eight sessions ask once each, all at the same moment: eight roots, or eight children of one root."""
    servers: list[LimitedServer] = []

    def model(world: World) -> Model:
        servers.append(LimitedServer(world, rate))
        return RetryingModel(servers[0], world.clock, world.chance("retry").random)

    async def scene(stage: Stage) -> list[tuple[str, str]]:
        if where == "main":
            works = [await stage.kernel.prompt(await stage.root(), "go") for _ in EIGHT]
            await asyncio.wait([asyncio.ensure_future(work.done.wait()) for work in works])
            return [(work.closed.status, str(work.closed.reason)) for work in works if work.closed is not None]
        root = await stage.root(WIDE)
        kids = [await stage.start(root, name) for name in EIGHT]
        for kid in kids:
            await kid.result
        runs = [stage.run(name) for name in EIGHT]
        return [(run.status, str(run.reason)) for run in runs]

    life = play(model, scene, seed=seed)
    return servers[0], life


@few_seeds
@everywhere
def test_B62_eight_at_once_at_two_a_second_all_complete_and_nobody_comes_back_too_early(
    where: Where, seed: int
) -> None:
    server, life = asked_of(where, seed, RATE)
    assert life.value == [("completed", "done")] * 8
    assert len(server.tries) == 8
    for tries in server.tries.values():
        for (one_s, free), (next_s, _) in pairwise(tries):
            assert not free
            assert next_s - one_s >= ASKED_S
    again = [moment_s for tries in server.tries.values() for moment_s, _ in tries[1:]]
    assert len(set(again)) == len(again) > 0


@everywhere
def test_B62_after_the_retry_budget_each_is_failed_for_the_rate_limit_and_never_completed_empty(where: Where) -> None:
    server, life = asked_of(where, 0, 0)
    assert life.value == [("failed", "rate_limit")] * 8
    for tries in server.tries.values():
        assert 1 < len(tries) <= 10
        for (one_s, _), (next_s, _) in pairwise(tries):
            assert next_s - one_s >= ASKED_S


@few_seeds
@everywhere
def test_B62_the_stream_file_keeps_both_gaps(where: Where, seed: int) -> None:
    played = simulated("B62", where, seed=seed)
    assert (played.ended, played.text) == (("completed", "done"), "ok after waiting")
    assert played.end.usage.requests == 3
    assert played.end.usage.unreported == 2


@everywhere
def test_B65_cached_tokens_are_a_part_of_the_input_everywhere(where: Where) -> None:
    played = simulated("B65", where)
    used = Usage(input=1000, cached=800, output=50, total=1050, requests=1)
    assert played.end.usage == used
    session = next(
        e.fact for e in played.events if e.session_id == played.session_id and isinstance(e.fact, StepClosed)
    )
    assert session.usage == used


class Costing:
    """The family of B67: P 100, C1 300, G1 500 below it, and C2, stopped by P when 70 of it had been reported.

    `early` is a report in the middle of the stream that is cut off; else it is that of C2's first step.
    """

    def __init__(self, world: World, *, early: bool) -> None:
        self._clock = world.clock
        self._early = early

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        first = request.number == 1
        if request.name == "C2":
            async for piece in self._stopped(first=first):
                yield piece
            return
        made: tuple[dict[str, Any], ...] = ()
        if request.name == "main" and first:
            made = (spawn("C1", mode="await"), spawn("C2"))
        elif request.name == "main" and request.number == 2:
            kid = next(body_of(a) for a in answers_in(request) if body_of(a)["name"] == "C2")
            made = (call("cancel_agent", id=kid["run_id"]),)
        elif request.name == "C1" and first:
            made = (spawn("G1", mode="await"),)
        cost = {"main": 100, "C1": 300, "G1": 500}[request.name] if first else 0
        finish = calls(*made) if made else says(f"{request.name} is done")
        await self._clock.sleep(0.5)
        yield _costing(finish, cost)

    async def _stopped(self, *, first: bool) -> AsyncGenerator[Piece, None]:
        if first and not self._early:
            yield _costing(calls(call("list_agents")), 70)
            return
        yield Delta(kind="text", text="so far")
        if self._early:
            yield Spent(usage=Usage(input=30, output=1, total=31))
            yield Spent(usage=Usage(input=30, output=40, total=70))
        await self._clock.sleep(10_000.0)

    async def aclose(self) -> None:
        """Hold nothing."""


def _costing(finish: Finish, total: int) -> Finish:
    return Finish(
        reason=finish.reason,
        text=finish.text,
        tool_calls=finish.tool_calls,
        usage=Usage(input=total, total=total),
    )


@pytest.mark.parametrize("early", [False, True], ids=["in_a_step", "in_mid_stream"])
@few_seeds
def test_B67_own_and_tree_totals_agree_everywhere_and_cancelled_work_counts(early: bool, seed: int) -> None:
    def model(world: World) -> Model:
        return RetryingModel(Costing(world, early=early), world.clock)

    async def scene(stage: Stage) -> tuple[int, int, int, int]:
        closed = await stage.go({"caps.max_depth": 2, **WIDE})
        session = stage.store.session(stage.events()[0].root_id)
        assert session is not None
        return closed.usage.total, closed.usage_tree.total, session.usage.total, closed.usage_tree.unreported

    life = play(model, scene, seed=seed)
    assert life.value is not None
    assert life.value[:3] == (100, 970, 100)
    assert life.value[3] == (0 if early else 1)  # the step in which C2 was stopped had reported nothing
    own = {fact.name: fact.usage.total for fact in life.told(RunSettled)}
    tree = {fact.name: fact.usage_tree.total for fact in life.told(RunSettled)}
    assert own == {"C1": 300, "G1": 500, "C2": 70}
    assert tree == {"C1": 800, "G1": 500, "C2": 70}
    assert life.settled("C2").status == "cancelled"


def test_B67_the_command_shows_the_same_totals(tmp_path: Path) -> None:
    def costs(total: int) -> dict[str, int]:
        return {"input": total, "output": 0}

    def line(agent: str, *made: dict[str, Any], total: int, text: str = "") -> dict[str, Any]:
        return {"agent": agent, "text": text, "tool_calls": list(made), "usage": costs(total)}

    model = script(
        tmp_path,
        line("parent", spawn("C1", mode="await"), total=60),
        line("parent", text="done", total=40),
        line("name:C1", text="found", total=300),
    )
    ran = retinue(tmp_path, "run", "--json", "--model", model, "go")
    assert ran.code == 0, ran.err
    closed = [event for event in ran.lines() if event["type"] == "turn.closed"][-1]
    assert (closed["usage"]["total"], closed["usage_tree"]["total"]) == (100, 400)
    shown = retinue(tmp_path, "sessions", "show", closed["session_id"], "--json")
    assert shown.code == 0, shown.err
    assert shown.document()["usage"]["total"] == 100


@few_seeds
@everywhere
def test_B67_every_try_of_a_request_is_counted_and_what_it_reported_too(where: Where, seed: int) -> None:
    report = {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}}
    text = {"choices": [{"index": 0, "delta": {"content": "Half"}}]}
    lines = [{"_ctl": "reply", "agent": "any"}, text, report, {"_ctl": "abort"}]
    lines.append({"text": "Whole.", "usage": {"input": 10, "output": 5}})
    played = simulated(lines, where, seed=seed)
    assert played.end.usage == Usage(input=20, output=6, total=26, requests=2)
    assert played.text == "Whole."


@few_seeds
@everywhere
def test_a_request_that_is_cut_off_in_a_later_try_counts_its_tries_and_their_reports(where: Where, seed: int) -> None:
    class Breaking:
        async def stream(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
            if where == "child" and request.root:
                yield calls(spawn("kid", mode="await")) if request.number == 1 else says("ok")
            elif request.number == 1:
                yield Finish(reason="incomplete", error="It broke.", usage=Usage(input=7, total=7))
            else:
                yield Spent(usage=Usage(input=7, output=1, total=8))
                await asyncio.get_running_loop().create_future()

        async def aclose(self) -> None:
            """Hold nothing."""

    async def scene(stage: Stage) -> Usage:
        root = await stage.root()
        work = await stage.kernel.prompt(root, "go")
        await stage.world.clock.sleep(30.0)
        await stage.kernel.interrupt(stage.run("kid").session_id if where == "child" else root)
        await work.done.wait()
        assert work.closed is not None
        return stage.run("kid").usage if where == "child" else work.closed.usage

    life = play(lambda world: RetryingModel(Breaking(), world.clock), scene, seed=seed)
    assert life.value == Usage(input=14, output=1, total=15, requests=2)


@few_seeds
def test_B37_a_kill_while_a_childs_tool_runs_leaves_no_open_call_and_a_parent_that_goes_on(seed: int) -> None:
    theatre = Theatre(seed=seed)

    async def answer(request: ModelRequest) -> Finish:
        if request.name == "main":
            return calls(spawn("kid", mode="await")) if request.number == 1 else says("Going on.")
        return calls(call("slow"), call("slow", n=2))

    async def killed(stage: Stage) -> None:
        await stage.kernel.prompt(await stage.root(), "go")
        await stage.until(lambda events: len(places(events, ToolStarted, name="slow")) == 2)
        await stage.world.clock.sleep(stage.world.rng.random() * 30)
        raise SimCrash

    theatre.live(lambda _: FunctionModel(answer), killed, tools=lambda world: [slow_tool(world.clock, 60.0)])
    run = theatre.run("kid")
    life = theatre.live(lambda _: FunctionModel(answer), lambda stage: stage.turn(run.parent_id, "continue"))
    assert life.value is not None
    assert life.value.text == "Going on."
    (request,) = life.asked()
    messages = json.loads(wire_body_of(request, send_reasoning=False))["messages"]
    assert [*pair_faults(messages), *call_faults(messages)] == []
    assert theatre.run("kid").status == "interrupted"
    own = [event.fact for event in life.events if event.session_id == run.session_id]
    unknown = [fact for fact in own if isinstance(fact, ToolFinished)]
    assert [fact.outcome for fact in unknown] == ["unknown", "unknown"]
    assert all("may have had effects" in fact.text for fact in unknown)
