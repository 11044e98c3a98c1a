"""What went wrong elsewhere: who is charged what, and what a refusal leaves charged (B65, B67, B69, B71, B73)."""

from typing import Any

import pytest

from retinue.cli.budgets import budgets
from retinue.core.errors import RetinueError
from retinue.core.events import (
    BudgetExceeded,
    RunQueued,
    RunSettled,
    StepClosed,
    StepOpened,
    Usage,
)
from retinue.ports import Finish, Model, ModelRequest, ToolText
from retinue.testing.checkers import all_runs
from retinue.testing.fakes import echo_tool
from retinue.testing.world import World
from tests.scenarios.budgetstage import Book, limited, one_reservation, outcomes, root_of, used
from tests.scenarios.stage import (
    FunctionModel,
    Life,
    Stage,
    Theatre,
    call,
    calls,
    code_of,
    each_seed,
    names_of,
    parent,
    places,
    play,
    says,
    spawn,
)
from tests.scenarios.test_bugs import stream_file
from tests.scenarios.test_bugs_resume import KNOWN, Named

few_seeds = pytest.mark.parametrize("seed", range(6))


@pytest.fixture(autouse=True, scope="module")
def _known_reservation() -> None:
    """Play the life that tells it before any other: no world can be inside another."""
    one_reservation()


REPORTS = {
    "cached is a part of the input": Usage(input=1000, cached=800, output=50, total=1050),
    "reasoning is a part of the output": Usage(input=700, output=350, reasoning=300, total=1050),
    "both, and no total": Usage(input=1000, cached=999, output=50, reasoning=50),
}


@pytest.mark.parametrize("case", REPORTS)
@few_seeds
def test_B65_parts_are_charged_to_no_budget_a_second_time(case: str, seed: int) -> None:
    """Ten answers of 1050 tokens fit a limit of 10 500 and what one more reserves; parts added on top would not."""

    async def answer(request: ModelRequest) -> Finish:
        if request.root:
            return calls(spawn("kid")) if request.number == 1 else says("noted")
        more = calls(call("echo", n=request.number)) if request.number < 10 else says("done")
        return Finish(reason=more.reason, text=more.text, tool_calls=more.tool_calls, usage=REPORTS[case])

    limit = 9 * 1050 + 2 * one_reservation()
    life = play(
        lambda _: FunctionModel(answer),
        lambda stage: stage.go({**limited(), "budget.tree_tokens_max": limit}),
        tools=lambda _: [echo_tool()],
        seed=seed,
    )
    assert life.told(BudgetExceeded) == []
    kid = life.settled("kid")
    assert (kid.status, kid.steps, kid.usage.requests) == ("completed", 10, 10)
    total = kid.usage.total or kid.usage.input + kid.usage.output
    assert total == 10_500


@few_seeds
def test_B65_the_stream_file_is_charged_1050(seed: int) -> None:
    model = stream_file("B65", parent("", spawn("kid")), *(parent("noted", n=n) for n in range(2, 6)))

    async def scene(stage: Stage) -> list[dict[str, Any]]:
        await stage.go(limited())
        return budgets(stage.store, all_runs(stage.store))

    life = play(model, scene, seed=seed)
    assert life.value is not None
    assert [(row["spent"], row["reserved"]) for row in life.value] == [(1050, 0)]
    assert life.settled("kid").usage == Usage(input=1000, cached=800, output=50, total=1050, requests=1)


def _costing(total: int, finish: Finish) -> Finish:
    return Finish(reason=finish.reason, text=finish.text, tool_calls=finish.tool_calls, usage=Usage(total=total))


@pytest.mark.parametrize("include_root", [True, False])
@few_seeds
def test_B67_every_level_and_cancelled_work_spend_from_the_same_budget(include_root: bool, seed: int) -> None:
    """P 100, C1 300, G1 500 below it, C2 stopped after a report of 70: what the lists show is the sum of all."""
    sum_of_all = 300 + 500 + 70 + (100 if include_root else 0)

    def model(world: World) -> Model:
        async def answer(request: ModelRequest) -> Finish:
            first = request.number == 1
            if request.root:
                made = calls(spawn("C1", mode="await"), spawn("C2")) if first else says("noted")
                return _costing(100 if first else 0, made)
            if request.name == "C2":
                await world.clock.sleep(0.1 if first else 10_000.0)
                return _costing(70, calls(call("list_agents")))
            await world.clock.sleep(1.0)
            if request.name == "C1" and first:
                return _costing(300, calls(spawn("G1", mode="await")))
            return _costing(500 if request.name == "G1" else 0, says("done"))

        return FunctionModel(answer)

    async def scene(stage: Stage) -> dict[str, Any]:
        root = await stage.root({**limited(5), "budget.include_root": include_root, "caps.max_depth": 2})
        work = await stage.kernel.prompt(root, "go")
        await stage.until(lambda events: bool(places(events, RunSettled, name="C1")))
        await stage.kernel.scheduler.cancel(stage.run("C2").run_id)
        await work.done.wait()
        (row,) = budgets(stage.store, all_runs(stage.store))
        return row

    life = play(model, scene, seed=seed)
    assert life.value is not None
    # C2's second request had reported nothing: what it had set aside stays charged.
    assert life.value["spent"] == sum_of_all + sum(_reserved(life, "C2")[1:])
    assert (life.value["reserved"], life.value["exceeded"]) == (0, False)
    assert life.value["spent"] == Book(life.events, root_of(life), root_too=include_root).spent
    assert (life.settled("C2").usage.total, life.settled("C1").usage_tree.total) == (70, 800)


def _reserved(life: Life[Any], name: str) -> list[int]:
    kid = next(fact.child_id for fact in life.told(RunQueued) if fact.name == name)
    opened = [e.fact for e in life.events if e.session_id == kid and isinstance(e.fact, StepOpened)]
    return [step.reserved for step in opened if step.reserved is not None]


EIGHT = tuple(f"kid{number:02}" for number in range(8))


def honest(request: ModelRequest, finish: Finish, tokens: int) -> Finish:
    """Return an answer that keeps to the output limit of its request, and whose input is less than was estimated."""
    output = min(tokens, request.output_tokens_max or tokens)
    usage = Usage(input=100, output=output, total=100 + output)
    return Finish(reason=finish.reason, text=finish.text, tool_calls=finish.tool_calls, usage=usage)


class Hungry:
    """A root whose first child spends nine tenths; then eight at once want a tenth each, wherever they are."""

    def __init__(self, world: World, where: str) -> None:
        self._clock = world.clock
        self._where = where

    async def answer(self, request: ModelRequest) -> Finish:
        if request.root:
            return self._roots(request)
        if request.name == "eater":
            more = calls(call("echo", n=request.number)) if request.number < 9 else says("eaten")
            return honest(request, more, 4_000)
        delegates = calls(*(spawn(name) for name in self._below(request)))
        if delegates.tool_calls and request.number == 1:
            return honest(request, delegates, 1)
        await self._clock.sleep(3.0)
        return honest(request, says("done"), 3_000)

    def _roots(self, request: ModelRequest) -> Finish:
        first = calls(spawn("eater", mode="await"))
        second = calls(spawn("boss")) if self._where == "below a child" else calls(*(spawn(name) for name in EIGHT))
        return {1: first, 2: second}.get(request.number, says("noted"))

    def _below(self, request: ModelRequest) -> tuple[str, ...]:
        if request.name == "boss":
            return EIGHT
        mine = self._where == "below eight parents" and request.name in EIGHT
        return (f"leaf{request.name[3:]}",) if mine else ()


@pytest.mark.parametrize("where", ["below the root", "below a child", "below eight parents"])
@each_seed
def test_B69_eight_at_once_on_what_is_left_for_one_overshoot_by_no_token(where: str, seed: int) -> None:
    """Whoever spawned them: each sets its tokens aside before it sends, so honest reports pass the limit by none."""
    limit = 10 * one_reservation() + 200
    switches = {**limited(), "budget.tree_tokens_max": limit, "caps.max_depth": 2}
    life = play(
        lambda world: FunctionModel(Hungry(world, where).answer),
        lambda stage: stage.go(switches),
        tools=lambda _: [echo_tool()],
        seed=seed,
    )
    book = Book(life.events, root_of(life))
    assert book.excess == 0
    assert 9 * 4_100 < book.most_spent <= limit
    assert len(life.told(BudgetExceeded)) == 1
    assert life.settled("eater").status == "completed"
    assert {fact.reason for fact in life.told(RunSettled)} == {"done", "budget"}


@pytest.mark.parametrize("under", ["standard", "resident"])
@each_seed
def test_B69_messages_to_eight_idle_children_at_once_pass_no_limit_either(under: str, seed: int) -> None:
    """What is started between two turns of the root is one root run: it has one limit, and one event tells its end."""

    def model(world: World) -> Model:
        async def answer(request: ModelRequest) -> Finish:
            if request.root:
                return calls(*(spawn(name) for name in EIGHT)) if request.number == 1 else says("noted")
            await world.clock.sleep(1.0)
            return honest(request, says("done"), 10 if request.number == 1 else 3_900)

        return FunctionModel(answer)

    async def scene(stage: Stage) -> int:
        root = await stage.root({**limited(3), "result.idle_parent": "store"}, under=under)
        await stage.turn(root)
        await stage.kernel.tree_rests(root)
        begun = stage.store.position()
        kids = {e.fact.name: e.fact.child_id for e in stage.events() if isinstance(e.fact, RunQueued)}
        for name in EIGHT:
            await stage.subagents.followup(root, kids[name], "more")
        await stage.kernel.tree_rests(root)
        return begun

    life = play(model, scene, seed=seed)
    assert life.value is not None
    book = Book([event for event in life.events if event.position > life.value], root_of(life))
    assert book.excess == 0
    assert 2 * 4_000 < book.most_spent <= limited(3)["budget.tree_tokens_max"]
    assert len({fact.root_run_id for fact in life.told(RunQueued) if fact.spec.cause == "message"}) == 1
    assert len(life.told(BudgetExceeded)) == 1


@pytest.mark.parametrize("what", ["steps", "seconds"])
@few_seeds
def test_B71_each_run_of_a_child_has_its_own_limit_however_much_the_one_before_used(what: str, seed: int) -> None:
    """Also while siblings and the parent use theirs; a follow-up begins anew, live and after a restart."""
    theatre = Theatre(seed=seed)
    limit: dict[str, Any] = {"max_steps": 5} if what == "steps" else {"timeout_s": 11}

    def model(world: World) -> Model:
        async def answer(request: ModelRequest) -> Finish:
            if request.root:
                return calls(*(spawn(f"kid{n}", **limit) for n in range(3))) if request.number == 1 else says("noted")
            await world.clock.sleep(0.0 if what == "steps" else 2.0)
            steps = sum(isinstance(message, ToolText) for message in request.messages) % 4
            asked = request.messages[-1]
            return says("done") if steps == 0 and isinstance(asked, ToolText) else calls(call("echo", n=request.number))

        return FunctionModel(answer)

    async def first(stage: Stage) -> None:
        root = await stage.root({"caps.running.root": 3})
        work = await stage.kernel.prompt(root, "go")
        await work.done.wait()
        await follow(stage)

    async def follow(stage: Stage) -> None:
        for name in ("kid0", "kid1", "kid2"):
            kid = next(e.fact for e in stage.events() if isinstance(e.fact, RunQueued) and e.fact.name == name)
            await stage.subagents.followup(kid.parent_id, kid.child_id, "again")
            root = kid.root_id
        await stage.kernel.tree_rests(root)

    theatre.live(model, first, tools=lambda _: [echo_tool()])
    life = theatre.live(model, follow, tools=lambda _: [echo_tool()])
    settled = life.told(RunSettled)
    assert len(settled) == 9
    assert {(fact.status, fact.steps) for fact in settled} == {("completed", 5)}
    if what == "seconds":
        assert all(10 <= (fact.elapsed_s or 0) < 11 for fact in settled)


REFUSED: dict[str, dict[str, Any]] = {
    "too deep": spawn("x", max_depth=0),
    "no such role": spawn("x", agent="no-such-role"),
    "no such tool": spawn("x", tools=["no_such_tool"]),
    "no such model": spawn("x", model="nope:1"),
    "no such mode": spawn("x", context={"mode": "selected", "seqs": [1]}),
    "a broken schema": spawn("x", output_schema={"type": 7}),
    "no prompt": call("spawn_agent", name="x", prompt=" "),
}


@pytest.mark.parametrize("why", REFUSED)
@few_seeds
def test_B73_a_refused_child_is_charged_to_no_cap_no_slot_and_no_budget(why: str, seed: int) -> None:
    """Ten refusals, in one message with the good ones and before them; then all four that the caps allow run."""

    async def answer(request: ModelRequest) -> Finish:
        if not request.root:
            return used(100)
        if request.number == 1:
            return calls(*(REFUSED[why] for _ in range(2)), spawn("kid00"), REFUSED[why])
        if request.number == 2:
            return calls(*(spawn(f"kid{number:02}") for number in range(1, 4)), spawn("late"))
        return says("noted")

    caps = {"caps.created.turn": 4, "caps.created.root_run": 4, "caps.running.root": 4, "caps.running.process": 4}
    life = Theatre(seed=seed).live(
        lambda _: FunctionModel(answer),
        lambda stage: stage.go({**limited(4), **caps, "caps.on_full": "reject"}),
        parts=lambda _, model: {"models": Named(model, KNOWN)},
    )
    first = [answer.error for answer in life.answers(1)]
    assert first == [True, True, False, True]
    assert [code_of(answer) for answer in life.answers(2) if answer.error] == ["cap_created"]
    assert outcomes(life, tuple(names_of(life, RunQueued))) == {("completed", "done"): 4}
    assert len([fact for fact in life.told(StepOpened) if fact.reserved is not None]) == 4


@few_seeds
def test_B73_a_refused_message_uses_up_no_round_and_no_place_in_the_queue(seed: int) -> None:
    """`rounds_max` counts what was accepted: ten that the full queue refuses leave the rounds as they were."""

    def model(world: World) -> Model:
        async def answer(request: ModelRequest) -> Finish:
            if request.root:
                return calls(spawn("kid")) if request.number == 1 else says("noted")
            await world.clock.sleep(5.0)
            return says(f"answer {request.number}")

        return FunctionModel(answer)

    async def scene(stage: Stage) -> list[str]:
        root = await stage.root({"life.rounds_max": 4, "life.queued_messages_max": 1})
        work = await stage.kernel.prompt(root, "go")
        await stage.until(lambda events: len(places(events, StepOpened)) >= 2)
        kid, codes = stage.run("kid").session_id, []
        for number in range(1, 5):
            for _ in range(6):
                try:
                    await stage.subagents.followup(root, kid, f"message {number}")
                except RetinueError as error:
                    codes.append(error.code)
            await stage.until(lambda events, n=number: len(places(events, RunSettled, name="kid")) == min(n, 4))
        await work.done.wait()
        return codes

    life = play(model, scene, seed=seed)
    assert len(life.told(RunSettled)) == 4
    assert life.value is not None
    assert set(life.value) == {"cap_messages", "cap_rounds"}
    assert max(fact.spec.round for fact in life.told(RunQueued)) == 4


@few_seeds
def test_B73_a_step_whose_model_is_gone_reserves_nothing(seed: int) -> None:
    """A request that cannot be asked never opens: nothing stays set aside, and who waits for tokens goes on."""
    gone: set[str] = set()

    class Vanishing(Named):
        def find(self, name: str) -> tuple[Model, str]:
            if name in gone:
                raise RetinueError("unknown_model", f"There is no model {name!r}.", "There are others.")
            return super().find(name)

    async def answer(request: ModelRequest) -> Finish:
        if request.root:
            return calls(spawn("kid00", model="fake:b"), spawn("kid01")) if request.number == 1 else says("noted")
        gone.add("fake:b")
        more = calls(call("echo")) if request.number == 1 else says("done")
        return _costing(40, more)

    life = Theatre(seed=seed).live(
        lambda _: FunctionModel(answer),
        lambda stage: stage.go(limited(2)),
        tools=lambda _: [echo_tool()],
        parts=lambda _, model: {"models": Vanishing(model, KNOWN)},
    )
    lost = life.settled("kid00")
    assert (lost.status, lost.reason) == ("failed", "provider_error")
    assert life.settled("kid01").status == "completed"
    assert life.told(BudgetExceeded) == []
    reserved = len([fact for fact in life.told(StepOpened) if fact.reserved is not None])
    assert reserved == len([fact for fact in life.told(StepClosed) if fact.usage is not None and fact.run_id])
