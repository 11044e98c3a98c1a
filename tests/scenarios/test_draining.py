"""Scenarios S104 to S106: ending whole forests, or some children with everything below them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest

from retinue.core.errors import RetinueError
from retinue.core.events import LetterQueued, RunQueued, RunSettled, RunStarted, TurnClosed
from retinue.core.ids import SessionId
from retinue.ports import Finish, ModelRequest
from retinue.testing.checkers import all_runs
from retinue.testing.faults import StorePlan
from retinue.tools.agents import activation
from tests.scenarios.stage import (
    FunctionModel,
    Stage,
    calls,
    each_seed,
    letters_in,
    place,
    places,
    play,
    refusal,
    says,
    spawn,
)

RESIDENT = "resident"
LONG_S = 50.0
STOPPING_S = 2.0
few_seeds = pytest.mark.parametrize("seed", range(5))


class Forest:
    """Who spawns whom by name; a session without children works for long, `slow` ones also stop slowly."""

    def __init__(
        self, tree: Mapping[str, Sequence[str]], *, busy: Sequence[str] = (), slow: Sequence[str] = ()
    ) -> None:
        self.tree = tree
        self.busy = busy
        self.slow = slow
        self.stage: Stage

    async def answer(self, request: ModelRequest) -> Finish:
        name = request.name
        below = self.tree.get(name, ())
        if below and request.number == 1:
            return calls(*(spawn(kid) for kid in below))
        if name != "main" and (not below or name in self.busy) and request.number <= 2:
            await self._work(name)
        return says(f"{name} done")

    async def _work(self, name: str) -> None:
        clock = self.stage.world.clock
        try:
            await clock.sleep(LONG_S)
        except asyncio.CancelledError:
            if name in self.slow:
                await clock.sleep(STOPPING_S)
            raise

    def play(self, scene: Callable[[Stage], Awaitable[Any]], **more: Any) -> Any:
        async def begin(stage: Stage) -> Any:
            self.stage = stage
            return await scene(stage)

        return play(lambda _: FunctionModel(self.answer), begin, **more)


def _open(stage: Stage) -> set[str]:
    return {run.name for run in all_runs(stage.store) if run.is_open}


def _status(stage: Stage, name: str) -> tuple[str, str | None]:
    """Return how the first run of a child stands: letters may have started more."""
    run = next(run for run in all_runs(stage.store) if run.name == name)
    return run.status, run.reason


async def _started(stage: Stage, *names: str) -> None:
    await stage.until(lambda events: all(places(events, RunStarted, name=name) for name in names))


TWO = {"a": ["a1", "a2"], "b": ["b1", "b2"]}


@pytest.mark.parametrize("busy", [(), ("a", "b")])
@each_seed
def test_S104_draining_one_parents_forest_leaves_another_parents_forest_working(
    busy: tuple[str, ...], seed: int
) -> None:
    async def scene(stage: Stage) -> None:
        one, other = await stage.root(under=RESIDENT), await stage.root(under=RESIDENT)
        await stage.keep(one, "a")
        await stage.keep(other, "b")
        await _started(stage, "a1", "a2", "b1", "b2")
        await stage.until(lambda events: len(places(events, RunSettled)) == (0 if busy else 2))
        await stage.subagents.drain(below=[one])
        assert _open(stage) == {"b1", "b2", *busy[1:]}
        assert _status(stage, "a1") == _status(stage, "a2") == ("cancelled", "parent_cancelled")
        assert _status(stage, "a") == (("cancelled", "cancelled") if busy else ("completed", "done"))
        await stage.kernel.tree_rests(one)  # whoever is told of it has been told
        assert (await stage.turn(one)).status == "completed"
        await stage.kernel.tree_rests(other)
        assert _status(stage, "b1") == _status(stage, "b2") == _status(stage, "b") == ("completed", "done")

    life = Forest(TWO, busy=busy).play(scene, seed=seed)
    for name in ("a1", "a2", "b1", "b2"):
        assert life.letter(name)


@each_seed
def test_S104_a_continuable_root_of_a_forest_is_kept_while_its_descendants_go(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root(under=RESIDENT)
        kid = await stage.keep(root, "a")
        await _started(stage, "a1", "a2")
        await stage.subagents.drain(below=[kid.session_id])
        assert _open(stage) == {"a"}
        await stage.kernel.tree_rests(root)
        assert _status(stage, "a") == ("completed", "done")
        run = await stage.subagents.followup(root, kid.session_id, "and now this")
        await stage.kernel.tree_rests(root)
        assert (await stage.kernel.scheduler.run(run.run_id)).status == "completed"

    life = Forest({"a": ["a1", "a2"]}, busy=("a",)).play(scene, seed=seed)
    told = [text for request in life.asked("a") for text in letters_in(request)]
    assert len(set(told)) == 2  # it learns what became of both


@each_seed
def test_S104_draining_all_ends_every_forest_and_keeps_the_roots(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        roots = [await stage.root(under=RESIDENT) for _ in range(2)]
        await stage.keep(roots[0], "a")
        await stage.keep(roots[1], "b")
        await _started(stage, "a1", "a2", "b1", "b2")
        await stage.subagents.drain()
        assert _open(stage) == set()
        for root in roots:
            await stage.kernel.tree_rests(root)
            assert (await stage.turn(root)).status == "completed"

    life = Forest(TWO, slow=("a1",)).play(scene, seed=seed)
    assert {fact.name for fact in life.told(RunSettled)} >= {"a", "a1", "a2", "b", "b1", "b2"}


@each_seed
def test_S104_a_letter_about_drained_children_reaches_their_idle_parent_once_the_drain_is_over(seed: int) -> None:
    """It must neither be lost nor hold up whoever waits for the tree to rest."""

    async def scene(stage: Stage) -> None:
        root = await stage.root(under=RESIDENT)
        await stage.keep(root)
        await _started(stage, "kid")
        await stage.subagents.drain(below=[root])
        assert places(stage.events(), TurnClosed) == [place(stage.events(), TurnClosed, run_id=stage.run("kid").run_id)]
        async with asyncio.timeout(5.0):
            await stage.kernel.tree_rests(root)

    life = Forest({}).play(scene, seed=seed)
    (request,) = life.asked()
    (letter,) = letters_in(request)
    assert "was stopped." in letter


@each_seed
def test_S105_selected_children_go_and_their_siblings_stay(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root(under=RESIDENT)
        kid = await stage.keep(root, "a")
        await stage.keep(root, "b")
        await _started(stage, "a1", "a2", "b1", "b2")
        await stage.subagents.drain(parent=root, children=[kid.session_id])
        assert {"a", "a1", "a2"} & _open(stage) == set()
        assert {"b1", "b2"} <= _open(stage)
        assert activation(stage.kernel.journal.state, stage.run("a")) == "released"
        await stage.kernel.tree_rests(root)
        assert _status(stage, "b1") == ("completed", "done")
        run = await stage.subagents.followup(root, kid.session_id, "and now this")  # a new stay
        await stage.kernel.tree_rests(root)
        assert (await stage.kernel.scheduler.run(run.run_id)).output == "a done"

    Forest(TWO, busy=("a",)).play(scene, seed=seed)


@each_seed
def test_S105_another_parents_child_and_a_stale_parent_are_refused_and_nothing_ends(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        one, other, gone = [await stage.root(under=RESIDENT) for _ in range(3)]
        mine, foreign = await stage.keep(one, "a"), await stage.keep(other, "b")
        lost = await stage.keep(gone, "lost")
        await _started(stage, "a1", "a2", "b1", "b2", "lost")
        await stage.kernel.delete(gone)
        below = stage.run("a1")
        before = _open(stage)
        drain = stage.subagents.drain
        for parent_id, children in (
            (one, [mine.session_id, foreign.session_id]),
            (other, [mine.session_id]),
            (one, [below.session_id]),  # a grandchild
            (below.session_id, [mine.session_id]),
            (one, [one]),
            (one, ["s_9999"]),
            (SessionId("s_9999"), [mine.session_id]),
            (gone, [lost.session_id]),
            (gone, [mine.session_id]),
        ):
            assert (await refusal(drain(parent=parent_id, children=children))).code == "not_found", (
                parent_id,
                children,
            )
        assert (await refusal(drain(children=[mine.session_id]))).code == "invalid"
        assert (await refusal(drain(below=[gone]))).code == "not_found"
        assert _open(stage) == before

    Forest(TWO).play(scene, seed=seed)


@few_seeds
def test_S106_a_creation_admitted_before_the_drain_is_awaited_and_rolled_back(seed: int) -> None:
    seen = {"stopping": 0, "cancelled": 0}
    for after_ms in range(0, 1_200, 40):
        outcome = _create_against_drain(after_ms, seed)
        seen[outcome] = seen.get(outcome, 0) + 1
    assert all(seen.values()), seen
    assert set(seen) == {"stopping", "cancelled"}


def _create_against_drain(after_ms: int, seed: int) -> str:
    async def scene(stage: Stage) -> str:
        root = await stage.root({"result.idle_parent": "store"}, RESIDENT)
        await stage.keep(root, "slow")
        await stage.until(lambda _: any(request.name == "slow" for request in stage.model.requests))
        begin = stage.kernel.supervisor.begin
        draining = begin(stage.subagents.drain(below=[root])) if after_ms == 0 else None
        await stage.world.clock.sleep(0.1)
        starting = begin(stage.keep(root))
        await stage.world.clock.sleep(after_ms / 1_000)
        draining = draining or begin(stage.subagents.drain(below=[root]))
        await asyncio.wait((draining,))
        assert draining.exception() is None
        assert _open(stage) == set()
        await asyncio.wait((starting,))
        error = starting.exception()
        if error is not None:
            assert isinstance(error, RetinueError)
            assert places(stage.events(), RunQueued, name="kid") == []
            return error.code
        assert stage.run("kid").run_id == starting.result().run_id
        return stage.run("kid").status

    life = Forest({}, slow=("slow",)).play(scene, plan=StorePlan(slow_every=1, slow_s=0.3), seed=seed)
    return life.value


async def _while_draining(stage: Stage, draining: "asyncio.Task[None]", act: Callable[[], Awaitable[None]]) -> None:
    await stage.world.clock.sleep(STOPPING_S / 2)
    assert not draining.done()
    await act()
    assert not draining.done()
    await asyncio.wait((draining,))
    assert draining.exception() is None


@each_seed
def test_S106_while_a_forest_is_drained_nothing_is_admitted_there_and_elsewhere_all_is(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root({"result.idle_parent": "store"}, RESIDENT)
        other = await stage.root(under=RESIDENT)
        kid, ended = await stage.keep(root, "slow"), await stage.keep(root, "done")
        await stage.until(lambda _: any(request.name == "slow" for request in stage.model.requests))
        await stage.kernel.scheduler.cancel(ended.run_id)

        async def act() -> None:
            before = len(_queued(stage))
            assert (await refusal(stage.keep(root, "late"))).code == "stopping"
            assert (await refusal(stage.start(root, "late"))).code == "stopping"
            assert (await refusal(stage.subagents.followup(root, kid.session_id, "late"))).code == "stopping"
            assert (await refusal(stage.subagents.followup(root, ended.session_id, "late"))).code == "stopping"
            # The root itself is kept: a person may talk to it, and its model is refused just as the others.
            assert (await stage.turn(root)).status == "completed"
            assert len(_queued(stage)) == before
            await stage.keep(other, "elsewhere")

        draining = stage.kernel.supervisor.begin(stage.subagents.drain(below=[root]))
        await _while_draining(stage, draining, act)
        assert _open(stage) == {"elsewhere"}
        await stage.keep(root, "later")
        assert _open(stage) == {"elsewhere", "later"}

    forest = Forest({"main": ["from the model"]}, slow=("slow",))
    life = forest.play(scene, seed=seed)
    refused = [message for message in life.asked()[-1].messages if '"stopping"' in message.text]
    assert len(refused) == 1
    assert places(life.events, RunQueued, name="from the model") == []


def _queued(stage: Stage) -> list[str]:
    return [event.fact.name for event in stage.events() if isinstance(event.fact, RunQueued)]


@each_seed
def test_S106_while_all_is_drained_nothing_is_admitted_anywhere(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        root, idle = await stage.root(under=RESIDENT), await stage.root(under=RESIDENT)
        await stage.turn(idle)
        await stage.keep(root, "slow")  # the idle root leaves memory meanwhile
        await stage.until(lambda _: any(request.name == "slow" for request in stage.model.requests))

        async def act() -> None:
            fresh = await stage.root(under=RESIDENT)
            for parent_id in (root, idle, fresh):
                assert (await refusal(stage.keep(parent_id, "late"))).code == "stopping"

        await _while_draining(stage, stage.kernel.supervisor.begin(stage.subagents.drain()), act)
        assert _open(stage) == set()
        assert _queued(stage) == ["slow"]
        await stage.keep(idle, "later")

    Forest({}, slow=("slow",)).play(scene, seed=seed)


@each_seed
def test_S106_while_a_child_is_drained_it_gets_no_message_and_its_sibling_does(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root(under=RESIDENT)
        kid, sibling = await stage.keep(root, "slow"), await stage.keep(root, "sibling")
        await stage.until(lambda _: {r.name for r in stage.model.requests} >= {"slow", "sibling"})

        async def act() -> None:
            assert (await refusal(stage.subagents.followup(root, kid.session_id, "late"))).code == "stopping"
            await stage.subagents.followup(root, sibling.session_id, "go on")
            await stage.keep(root, "another")

        drain = stage.subagents.drain(parent=root, children=[kid.session_id])
        await _while_draining(stage, stage.kernel.supervisor.begin(drain), act)
        assert _open(stage) == {"sibling", "another"}
        await stage.subagents.followup(root, kid.session_id, "a new stay")

    Forest({}, slow=("slow",)).play(scene, seed=seed)


@each_seed
def test_S106_a_drained_child_does_not_come_back_because_its_own_children_were_stopped(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root(under=RESIDENT)
        kid = await stage.keep(root, "a")
        await _started(stage, "a1", "a2")
        await stage.until(lambda events: bool(places(events, RunSettled, name="a")))
        await stage.subagents.drain(parent=root, children=[kid.session_id])
        assert _open(stage) == set()
        await stage.world.clock.sleep(1.0)
        assert activation(stage.kernel.journal.state, stage.run("a")) == "released"
        await stage.kernel.tree_rests(root)

    life = Forest({"a": ["a1", "a2"]}, slow=("a1",)).play(scene, seed=seed)
    assert len([fact for fact in life.told(RunQueued) if fact.name == "a"]) == 1
    assert len([fact for fact in life.told(LetterQueued) if fact.kind == "result"]) == 3


@each_seed
def test_a_letter_to_an_idle_child_is_not_forgotten_while_its_parents_turn_is_being_stopped(seed: int) -> None:
    """The parent stops slowly, and under `resident` its child goes on meanwhile."""
    stages: list[Stage] = []

    async def answer(request: ModelRequest) -> Finish:
        clock = stages[0].world.clock
        if request.name == "main":
            try:
                await clock.sleep(LONG_S)
            except asyncio.CancelledError:
                await clock.sleep(STOPPING_S)
                raise
        if request.name == "a1":
            await clock.sleep(3.0)
        return calls(spawn("a1")) if request.name == "a" and request.number == 1 else says(f"{request.name} done")

    async def scene(stage: Stage) -> None:
        stages.append(stage)
        root = await stage.root({"result.idle_parent": "start_turn"}, RESIDENT)
        await stage.kernel.prompt(root, "go")
        await stage.keep(root, "a")
        await _started(stage, "a1")
        await stage.world.clock.sleep(2.0)
        stopping = stage.kernel.supervisor.begin(stage.kernel.interrupt(root))
        await stage.until(lambda events: bool(places(events, RunSettled, name="a1")))
        assert not stopping.done()
        async with asyncio.timeout(2 * LONG_S):
            await stage.kernel.tree_rests(root)

    life = play(lambda _: FunctionModel(answer), scene, seed=seed)
    assert letters_in(life.asked("a")[-1])
    assert [fact.status for fact in life.told(RunSettled) if fact.name == "a"] == ["completed", "completed"]
