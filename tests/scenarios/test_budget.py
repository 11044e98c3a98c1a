"""The budget of a tree: many at once on a limit that fits few, each way to go on, and everything that is charged."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from retinue.core.events import (
    BudgetExceeded,
    ContextCompacted,
    NotesAsked,
    RunQueued,
    RunSettled,
    StepClosed,
    StepOpened,
    TurnClosed,
    TurnOpened,
    Usage,
)
from retinue.core.ids import SessionId
from retinue.models.retry import RetryingModel
from retinue.ports import Finish, Model, ModelRequest
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.checkers import all_events, check_all
from retinue.testing.fakes import FakeTool, OneModel, slow_tool
from retinue.testing.faults import StorePlan
from retinue.testing.simloop import SimCrash
from retinue.testing.world import World, run_world
from tests.e2e.kit import of_type, retinue, script
from tests.scenarios.budgetstage import (
    FITS,
    KIDS,
    OUTPUT_MAX,
    Book,
    answers_so_far,
    fan,
    limit_for,
    limited,
    one_reservation,
    outcomes,
    root_of,
    roots_answer,
    used,
)
from tests.scenarios.stage import (
    FunctionModel,
    Life,
    Stage,
    Theatre,
    body_of,
    call,
    calls,
    code_of,
    each_seed,
    places,
    play,
    says,
    seconds_between,
    spawn,
)
from tests.sim.lives import kernel_in, open_root
from tests.sim.test_compaction import ROOM_TOKENS, Reader, page

few_seeds = pytest.mark.parametrize("seed", range(6))


@pytest.fixture(autouse=True, scope="module")
def _known_reservation() -> None:
    """Play the life that tells it before any other: no world can be inside another."""
    one_reservation()


REPORTS = {"exact": 0, "smaller": -1_000, "larger": 300, "much larger": 6_000}
"""By how much a report differs from what was reserved."""


@pytest.mark.parametrize("differs", REPORTS)
@each_seed
def test_of_twenty_at_once_on_a_limit_that_fits_seven_no_token_too_many_is_promised(differs: str, seed: int) -> None:
    """Must show 6: the reports' own error is all that passes the limit; one event, later spawns refused."""
    report = one_reservation() + REPORTS[differs]

    async def scene(stage: Stage) -> SessionId:
        root = await stage.root(limited())
        await stage.turn(root)
        return root

    life = play(fan(report), scene, seed=seed)
    book = Book(life.events, root_of(life))
    assert book.at_once == FITS
    assert book.most_spent <= limit_for(FITS) + book.excess
    (exceeded,) = life.told(BudgetExceeded)
    assert exceeded.limit == limit_for(FITS)
    assert set(outcomes(life)) == {("completed", "done"), ("cancelled", "budget")}
    assert sum(outcomes(life).values()) == len(KIDS)
    (refused,) = (m for m in answers_so_far(life.asked()[-1]) if m.error)
    assert code_of(refused) == "budget_exceeded"
    assert "late" not in [fact.name for fact in life.told(RunQueued)]
    (closed,) = (fact for fact in life.told(TurnClosed) if fact.run_id is None)
    assert (closed.status, closed.reason) == ("completed", "done")


@few_seeds
def test_another_root_is_untouched_by_one_that_has_used_its_budget_up(seed: int) -> None:
    others = tuple(f"far{number:02}" for number in range(3))
    whose: list[SessionId] = []

    def model(world: World) -> Model:
        async def answer(request: ModelRequest) -> Finish:
            if request.root:
                mine = request.session_id == whose[0]
                return roots_answer(request, KIDS if mine else others, late=True)
            await world.clock.sleep(5.0)
            return used(one_reservation())

        return FunctionModel(answer)

    async def scene(stage: Stage) -> list[TurnClosed]:
        whose.extend([await stage.root(limited()), await stage.root(limited(5))])
        works = [await stage.kernel.prompt(root, "go") for root in whose]
        for work in works:
            await work.done.wait()
        return [work.closed for work in works if isinstance(work.closed, TurnClosed)]

    life = play(model, scene, seed=seed)
    assert [event.root_id for event in life.events if isinstance(event.fact, BudgetExceeded)] == [whose[0]]
    assert outcomes(life, others) == {("completed", "done"): 3}
    assert life.settled("late").root_id == whose[1]
    assert life.settled("late").status == "completed"
    assert life.value is not None
    assert [closed.status for closed in life.value] == ["completed", "completed"]


GOES_ON = {"cancel": (7, True), "refuse_new": (20, True), "warn": (20, False)}
"""Of each value: how many of twenty complete, and whether a later spawn is refused."""


@pytest.mark.parametrize("on_exceed", GOES_ON)
@each_seed
def test_each_value_of_on_exceed_ends_refuses_or_only_tells(on_exceed: str, seed: int) -> None:
    completed, refused = GOES_ON[on_exceed]
    life = play(fan(one_reservation()), lambda s: s.go(limited(budget__on_exceed=on_exceed)), seed=seed)
    assert outcomes(life)["completed", "done"] == completed
    assert outcomes(life)["cancelled", "budget"] == len(KIDS) - completed
    assert len(life.told(BudgetExceeded)) == 1
    assert any(message.error for message in answers_so_far(life.asked()[-1])) is refused
    assert ("late" in [fact.name for fact in life.told(RunQueued)]) is not refused
    assert Book(life.events, root_of(life)).at_once >= FITS


@pytest.mark.parametrize("on_exceed", ["cancel", "refuse_new", "warn"])
@few_seeds
def test_with_include_root_the_roots_requests_count_and_under_cancel_its_turn_ends_too(
    on_exceed: str, seed: int
) -> None:
    switches = limited(FITS + 1, budget__include_root=True, budget__on_exceed=on_exceed)
    life = play(fan(one_reservation()), lambda stage: stage.go(switches), seed=seed)
    (closed,) = (fact for fact in life.told(TurnClosed) if fact.run_id is None)
    wanted = ("cancelled", "budget") if on_exceed == "cancel" else ("completed", "done")
    assert (closed.status, closed.reason) == wanted
    assert len(life.told(BudgetExceeded)) == 1
    steps = [event.fact for event in life.events if isinstance(event.fact, StepOpened)]
    assert all(step.reserved is not None for step in steps)
    book = Book(life.events, root_of(life), root_too=True)
    if on_exceed == "cancel":
        assert book.most_spent <= limit_for(FITS + 1) + book.excess
        assert set(outcomes(life)) <= {("completed", "done"), ("cancelled", "budget")}


@each_seed
def test_requests_without_a_report_stay_charged_and_are_shown_as_unreported(seed: int) -> None:
    life = play(fan(None, reports=False), lambda stage: stage.go(limited()), seed=seed)
    assert outcomes(life) == {("completed", "done"): FITS, ("cancelled", "budget"): len(KIDS) - FITS}
    (exceeded,) = life.told(BudgetExceeded)
    assert (exceeded.spent, exceeded.reserved) == (FITS * one_reservation(), 0)
    done = [fact.usage for fact in life.told(RunSettled) if fact.status == "completed"]
    assert {(usage.requests, usage.unreported, usage.total) for usage in done} == {(1, 1, 0)}


@few_seeds
def test_all_tries_of_one_request_share_one_reservation(seed: int) -> None:
    tries: Counter[str] = Counter()

    def model(world: World) -> Model:
        async def answer(request: ModelRequest) -> Finish:
            if request.name == "main":
                return roots_answer(request, KIDS[:6], late=False)
            await world.clock.sleep(1.0)
            tries[request.name] += 1
            if tries[request.name] < 3:
                return Finish(reason="error", error="Later.", status=503)
            return used(one_reservation())

        return RetryingModel(FunctionModel(answer), world.clock, world.chance("retry").random)

    life = play(model, lambda stage: stage.go(limited(6)), seed=seed)
    assert outcomes(life, KIDS[:6]) == {("completed", "done"): 6}
    kids = [event for event in life.events if event.session_id != event.root_id]
    assert len(places(kids, StepOpened)) == 6
    assert [event.fact.retries for event in kids if isinstance(event.fact, StepClosed)] == [2] * 6
    book = Book(life.events, root_of(life))
    assert (book.at_once, book.most_reserved, book.spent) == (6, 6 * one_reservation(), 6 * one_reservation())
    assert life.told(BudgetExceeded) == []


@few_seeds
def test_who_waits_for_tokens_says_so_everywhere_and_keeps_its_slot(seed: int) -> None:
    listed: list[dict[str, Any]] = []

    def model(world: World) -> Model:
        async def answer(request: ModelRequest) -> Finish:
            if request.name != "main":
                await world.clock.sleep(20.0)
                return used(100)
            if request.number == 1:
                return calls(*(spawn(name) for name in KIDS))
            if request.number == 2:
                await world.clock.sleep(5.0)
                return calls(call("list_agents"))
            if request.number == 3:
                listed.extend(body_of(answers_so_far(request)[-1])["items"])
            return says("noted")

        return FunctionModel(answer)

    async def scene(stage: Stage) -> list[str]:
        work = await stage.kernel.prompt(await stage.root(limited()), "go")
        await stage.until(lambda events: len(places(events, StepOpened)) >= 1 + FITS)
        await stage.world.clock.sleep(2.0)
        runs = [stage.run(name) for name in KIDS]
        await work.done.wait()
        return [run.waiting_for.kind for run in runs if run.status == "running" and run.waiting_for is not None]

    life = play(model, scene, seed=seed)
    assert life.value == ["budget"] * (len(KIDS) - FITS)
    waits = [row["waiting_for"] for row in listed if row["waiting_for"] is not None]
    assert [wait["kind"] for wait in waits] == ["budget"] * (len(KIDS) - FITS)
    assert all("tokens" in wait["what"] for wait in waits)
    assert outcomes(life) == {("completed", "done"): len(KIDS)}


def _longest_wait_s(life: Life[Any]) -> float:
    first = places(life.events, RunQueued)[0]
    return seconds_between(life.events, first, places(life.events, RunSettled)[-1])


@pytest.mark.parametrize("fits", [1, 2, 7])
@pytest.mark.parametrize("slow_s", [0.0, 3.0])
@few_seeds
def test_nobody_waits_for_tokens_that_are_there(fits: int, slow_s: float, seed: int) -> None:
    """Reports are small, so all twenty fit one after another; no wake may be missed, however slow the store is."""
    life = Theatre(seed=seed).live(
        fan(100, delay_s=1.0, late=False),
        lambda stage: stage.go(limited(fits)),
        plan=StorePlan(slow_every=1, slow_s=slow_s) if slow_s else None,
    )
    assert outcomes(life) == {("completed", "done"): len(KIDS)}
    assert life.told(BudgetExceeded) == []
    assert _longest_wait_s(life) < 20 * (1.5 + 3 * slow_s)


@pytest.mark.parametrize("how", ["cancelled", "timed out", "gone with its parent"])
@few_seeds
def test_tokens_of_a_request_that_was_cut_off_are_charged_and_those_who_wait_go_on(how: str, seed: int) -> None:
    """Two fit; two never answer. Once they are cut off, what they had set aside stays charged."""
    names = KIDS[:6]

    def model(world: World) -> Model:
        async def answer(request: ModelRequest) -> Finish:
            if request.root:
                return roots_answer(request, names, late=False)
            await world.clock.sleep(10_000.0 if request.name in names[:2] else 1.0)
            return used(40)

        return FunctionModel(answer)

    async def scene(stage: Stage) -> None:
        limits = {"life.run_timeout_s": 30} if how == "timed out" else {}
        root = await stage.root({**limited(3), **limits, "life.cancel_with_parent": "always"})
        work = await stage.kernel.prompt(root, "go")
        await stage.until(lambda _: set(names[:2]) <= {request.name for request in stage.model.requests})
        if how == "gone with its parent":
            await stage.kernel.interrupt(root)
        elif how == "cancelled":
            for name in names[:2]:
                await stage.kernel.scheduler.cancel(stage.run(name).run_id)
        await work.done.wait()

    life = play(model, scene, seed=seed)
    (root_id,) = {event.root_id for event in life.events}
    book = Book(life.events, root_id)
    assert book.most_spent <= limit_for(3)
    assert len(life.told(RunSettled)) == len(names)
    cut_off = [fact for fact in life.told(RunSettled) if fact.name in names[:2]]
    assert {fact.usage.unreported for fact in cut_off} == {1}
    if how != "gone with its parent":
        assert outcomes(life, names[2:]) == {("completed", "done"): 4}
        assert book.spent == 2 * one_reservation() + 4 * 40


@each_seed
def test_once_exceeded_nothing_that_is_being_stopped_asks_for_more_however_little(seed: int) -> None:
    """A huge request fits no more; a sibling with small ones works on until the stop has reached the disk."""

    def model(world: World) -> Model:
        async def answer(request: ModelRequest) -> Finish:
            if request.root:
                huge = call("spawn_agent", name="huge", prompt="word " * 9_000)
                return calls(spawn("small"), huge) if request.number == 1 else says("noted")
            asked = calls(call("echo", n=request.number))
            return Finish(reason="tool_calls", tool_calls=asked.tool_calls, usage=Usage(total=40))

        return FunctionModel(answer)

    life = Theatre(seed=seed).live(
        model,
        lambda stage: stage.go(limited(2)),
        tools=lambda world: [slow_tool(world.clock, 0.1, "echo")],
        plan=StorePlan(slow_every=1, slow_s=0.5),
    )
    told_at = places(life.events, BudgetExceeded)[0]
    late = [event for event in life.events if isinstance(event.fact, StepOpened) and event.position > told_at]
    assert [event.session_id for event in late if event.session_id != root_of(life)] == []
    assert (life.settled("small").reason, life.settled("huge").reason) == ("budget", "budget")


@few_seeds
def test_a_limit_that_is_raised_or_lifted_lets_those_who_wait_go_on_at_once(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root(limited(1))
        work = await stage.kernel.prompt(root, "go")
        await stage.until(lambda events: len(places(events, StepOpened)) >= 2)
        await stage.kernel.change_policy(root, {"budget.tree_tokens_max": limit_for(3)})
        await stage.until(lambda events: len(places(events, StepOpened)) >= 4)
        await stage.kernel.change_policy(root, {"budget.tree_tokens_max": None})
        await stage.until(lambda events: len(places(events, StepOpened)) >= 21)
        assert places(stage.events(), RunSettled) == []
        await work.done.wait()

    life = play(fan(100, delay_s=500.0, late=False), scene, seed=seed)
    assert outcomes(life) == {("completed", "done"): len(KIDS)}


@few_seeds
def test_a_budget_belongs_to_one_root_run_and_a_restart_begins_a_new_one(seed: int) -> None:
    theatre = Theatre(seed=seed)

    async def killed(stage: Stage) -> None:
        await stage.kernel.prompt(await stage.root(limited()), "go")
        await stage.until(lambda events: len(places(events, StepOpened)) >= 1 + FITS)
        await stage.world.clock.sleep(2.0)
        raise SimCrash

    theatre.live(fan(100, delay_s=100.0), killed)
    (root,) = {event.root_id for event in theatre.before}
    fresh = tuple(f"new{number:02}" for number in range(FITS))

    def later(world: World) -> Model:
        async def answer(request: ModelRequest) -> Finish:
            if request.name != "main":
                await world.clock.sleep(1.0)
                return used(one_reservation())
            asked = len([message for message in answers_so_far(request) if message.name == "spawn_agent"]) > len(KIDS)
            return says("noted") if asked else calls(*(spawn(name) for name in fresh))

        return FunctionModel(answer)

    life = theatre.live(later, lambda stage: stage.turn(root, "again"))
    assert outcomes(life) == {("interrupted", "restart"): len(KIDS)}
    assert outcomes(life, fresh) == {("completed", "done"): FITS}
    assert life.told(BudgetExceeded) == []


@pytest.mark.parametrize("under", ["standard", "resident"])
@few_seeds
def test_grandchildren_and_turns_that_letters_start_spend_from_the_same_root_run(under: str, seed: int) -> None:
    """Under `resident` the root's turn has long ended: what a letter would start belongs to the same root run."""

    def model(world: World) -> Model:
        async def answer(request: ModelRequest) -> Finish:
            if request.root:
                first = calls(spawn("middle")) if request.number == 1 else says("noted")
                return Finish(reason=first.reason, text=first.text, tool_calls=first.tool_calls, usage=Usage(total=50))
            await world.clock.sleep(2.0)
            if request.name == "middle" and request.number == 1:
                asked = calls(spawn("leaf00"), spawn("leaf01"))
                return Finish(reason="tool_calls", tool_calls=asked.tool_calls, usage=Usage(total=50))
            return used(2 * one_reservation())

        return FunctionModel(answer)

    async def scene(stage: Stage) -> None:
        switches = {"caps.max_depth": 2, "budget.output_tokens_max": OUTPUT_MAX, "budget.include_root": True}
        root = await stage.root({**switches, "budget.tree_tokens_max": limit_for(3)}, under=under)
        await stage.turn(root)
        await stage.kernel.tree_rests(root)

    life = play(model, scene, seed=seed)
    assert len({fact.root_run_id for fact in life.told(TurnOpened)}) == 1
    (exceeded,) = life.told(BudgetExceeded)
    assert exceeded.spent >= limit_for(3)
    told_at = places(life.events, BudgetExceeded)[0]
    assert [event for event in life.events if isinstance(event.fact, TurnOpened) and event.position > told_at] == []


@pytest.mark.parametrize("fits", ["the notes too", "no notes"])
def test_the_request_that_compacts_a_history_sets_tokens_aside_like_any_other(fits: str) -> None:
    store = SQLiteStore(":memory:")
    model = Reader()
    limit = 10**6 if fits == "the notes too" else ROOM_TOKENS * 2

    async def main(world: World) -> None:
        models = OneModel(model, ROOM_TOKENS)
        kernel = kernel_in(world, store, model, tools=[FakeTool("page", page)], models=models)
        await kernel.start()
        switches = {"budget.tree_tokens_max": limit, "budget.output_tokens_max": 500, "life.max_steps": None}
        root = await open_root(kernel, switches)
        work = await kernel.prompt(root, "read")
        await work.done.wait()
        await kernel.close()

    run_world(main, 1)
    events = all_events(store)
    assert check_all(events) == []
    asked, made = places(events, NotesAsked), places(events, ContextCompacted)
    book = Book(events, events[0].root_id, root_too=True)
    assert book.most_spent <= limit + book.excess
    if fits == "the notes too":
        assert len(asked) == len(made) > 0
        assert all(before < after for before, after in zip(asked, made, strict=True))
        notes = [event.fact for event in events if isinstance(event.fact, NotesAsked)]
        assert all(note.reserved > 500 == note.output_tokens_max for note in notes)
    else:
        (closed,) = (event.fact for event in events if isinstance(event.fact, TurnClosed))
        assert (closed.status, closed.reason) == ("cancelled", "budget")
        assert len(places(events, BudgetExceeded)) == 1


def _costing_lines(folder: Path, kids: int) -> str:
    cost = {"input": 500, "output": 500}
    spawns = [call("spawn_agent", prompt="x", name=f"kid{number}") for number in range(kids)]
    parents = [{"agent": "parent", "n": n, "text": f"answer {n}", "usage": cost} for n in range(2, 12)]
    asks = {"agent": "parent", "n": 1, "text": "I ask.", "tool_calls": spawns, "usage": cost}
    return script(folder, asks, *parents, {"agent": "child", "text": "found", "usage": cost, "delay_ms": 50})


@pytest.mark.parametrize(
    ("include_root", "code", "ends"), [("true", 4, ("cancelled", "budget")), ("false", 0, ("completed", "done"))]
)
def test_the_command_says_by_its_exit_code_that_the_budget_ended_its_turn(
    include_root: str, code: int, ends: tuple[str, str], tmp_path: Path
) -> None:
    switches = {"tree_tokens_max": "9000", "output_tokens_max": "1000", "include_root": include_root}
    flags = [word for name, value in switches.items() for word in ("--set", f"budget.{name}={value}")]
    flags += ["--set", "caps.running.root=20", "--set", "caps.running.process=20", "--set", "caps.created.turn=20"]
    model = _costing_lines(tmp_path, 20)
    ran = retinue(tmp_path, "run", "--json", "--model", model, *flags, "go")
    lines = ran.lines()
    assert (ran.code, lines[-1]["status"], lines[-1]["reason"]) == (code, *ends), ran.err
    (exceeded,) = of_type(lines, "budget.exceeded")
    assert exceeded["limit"] == 9000
    assert exceeded["session_id"] == lines[0]["session_id"]
    settled = Counter(line["reason"] for line in of_type(lines, "run.settled"))
    assert settled["done"] + settled["budget"] == 20
    assert settled["budget"] > 0
    spent = sum(line["usage"]["total"] for line in of_type(lines, "step.closed") if line["usage"] is not None)
    counted = spent if include_root == "true" else spent - lines[-1]["usage"]["total"]
    assert counted <= 9000
