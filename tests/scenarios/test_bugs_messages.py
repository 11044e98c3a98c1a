"""What went wrong elsewhere, messages to children: to ended ones, in the last moment, across stops (B130, B132)."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from retinue.core.errors import RetinueError
from retinue.core.events import Event, LetterQueued, RunQueued, RunSettled, RunStarted, RunWaiting, SessionOpened
from retinue.core.ids import SessionId
from retinue.core.run import Run
from retinue.ports import Finish, ModelRequest, ToolText
from retinue.testing.faults import StorePlan
from retinue.testing.simloop import SimCrash
from retinue.testing.world import World
from tests.scenarios.stage import (
    FunctionModel,
    Life,
    Stage,
    Theatre,
    call,
    calls,
    code_of,
    each_seed,
    letters_in,
    names_of,
    places,
    play,
    says,
    spawn,
)

CONTINUING = ("standard", "resident", "courier")
"""Policies under which a child can be continued in a later turn, too."""
few_seeds = pytest.mark.parametrize("seed", range(6))
Says = Callable[[ModelRequest], Awaitable[Finish]]


def texts(request: ModelRequest) -> str:
    return "\n".join(message.text for message in request.messages)


async def _refusal(asked: Awaitable[object]) -> RetinueError:
    with pytest.raises(RetinueError) as caught:
        await asked
    return caught.value


async def _end(stage: Stage, how: str, name: str = "kid") -> None:
    """Bring a child that answers after a minute to an end of this kind."""
    await stage.until(lambda _: name in {request.name for request in stage.model.requests})
    run = stage.run(name)
    if how == "cancelled":
        await stage.kernel.scheduler.cancel(run.run_id)
    elif how == "interrupted":
        await stage.kernel.scheduler.interrupt(run.session_id, None)
    await stage.until(lambda events: bool(places(events, RunSettled, name=name)))


def _family(world: World, ending: str, **spawning: Any) -> Says:
    """Play a root that spawns one child, and writes to it and to nobody when it is asked to."""

    async def answer(request: ModelRequest) -> Finish:
        if not request.root:
            failing = ending == "failed"
            await world.clock.sleep(0.5 if ending in ("completed", "failed") else 60.0)
            return Finish(reason="error", error="broken", status=400) if failing else says(f"answer {request.number}")
        spawned = [m for m in request.messages if isinstance(m, ToolText) and m.name == "spawn_agent"]
        if not spawned:
            return calls(spawn("kid", **spawning))
        sent = [m for m in request.messages if isinstance(m, ToolText) and m.name == "send_agent_message"]
        if "tell them" in texts(request) and not sent:
            kid = spawned[0].text.split('"session_id":"')[1].split('"')[0]
            return calls(*(call("send_agent_message", id=name, message="and now?") for name in (kid, *NOBODY)))
        return says("noted")

    return answer


NOBODY = ("s_9999", "r_9999")


def _disk(stage: Stage) -> tuple[set[SessionId], int, int]:
    """Return what a message could have made: sessions beside those of runs, runs, and letters."""
    events = stage.events()
    known = {event.fact.child_id for event in events if isinstance(event.fact, RunQueued)}
    others = {event.session_id for event in events if isinstance(event.fact, SessionOpened)} - known
    messages = [event for event in events if isinstance(event.fact, LetterQueued) and event.fact.kind == "message"]
    return others, len(places(events, RunQueued)), len(messages)


@pytest.mark.parametrize("ending", ["completed", "failed", "cancelled", "interrupted"])
@pytest.mark.parametrize("under", [*CONTINUING, "guarded"])
@few_seeds
def test_B130_a_one_shot_child_that_has_ended_is_no_corpse_to_write_to(under: str, ending: str, seed: int) -> None:
    """Each door says that it has ended and how; unknown ids are not found; nothing is made on disk for any of them."""

    async def scene(stage: Stage) -> None:
        root = await stage.root(under=under)
        work = await stage.kernel.prompt(root, "go")
        await _end(stage, ending)
        await work.done.wait()
        await stage.kernel.tree_rests(root)
        kid, before = stage.run("kid").session_id, _disk(stage)
        python = await _refusal(stage.subagents.followup(root, kid, "and now?"))
        person = await _refusal(stage.kernel.letters.send(kid, "and now?", sender=None))
        for refusal in (python, person):
            assert refusal.code == "not_continuable"
            assert ending in refusal.detail
        for name in NOBODY:
            assert (await _refusal(stage.subagents.followup(root, name, "x"))).code == "not_found"
        await stage.turn(root, "tell them")
        assert _disk(stage) == before

    def model(world: World) -> FunctionModel:
        return FunctionModel(_family(world, ending, continuable=False))

    life = play(model, scene, seed=seed)
    sent = [answer for answer in life.answers() if answer.name == "send_agent_message"]
    assert len(sent) == 1 + len(NOBODY)
    first = "not_found" if under == "guarded" else "not_continuable"  # `in_turn` reaches no child of an earlier turn
    assert [code_of(answer) for answer in sent] == [first, "not_found", "not_found"]


@few_seeds
def test_B130_where_nothing_is_ever_continued_the_tool_is_not_there_and_python_is_refused(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root(under="roster")
        await stage.turn(root)
        await stage.kernel.tree_rests(root)
        before = _disk(stage)
        refusal = await _refusal(stage.subagents.followup(root, stage.run("kid").session_id, "and now?"))
        assert refusal.code == "not_continuable"
        await stage.turn(root, "tell them")
        assert _disk(stage) == before

    life = play(lambda world: FunctionModel(_family(world, "completed")), scene, seed=seed)
    assert [code_of(answer) for answer in life.answers() if answer.name == "send_agent_message"] == ["unknown_tool"] * 3
    assert "send_agent_message" not in {tool.name for request in life.requests for tool in request.tools}


@pytest.mark.parametrize("ending", ["completed", "failed", "cancelled", "interrupted"])
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("under", CONTINUING)
@few_seeds
def test_B130_a_continuable_child_is_woken_however_it_ended_also_after_a_restart(
    under: str, restarted: bool, ending: str, seed: int
) -> None:
    theatre = Theatre(seed=seed)

    async def first(stage: Stage) -> SessionId:
        root = await stage.root(under=under)
        work = await stage.kernel.prompt(root, "go")
        await _end(stage, ending)
        await work.done.wait()
        await stage.kernel.tree_rests(root)
        if not restarted:
            await followed(stage)
        return root

    async def followed(stage: Stage) -> None:
        run = stage.run("kid")
        accepted = await stage.subagents.followup(run.parent_id, run.session_id, "and now?")
        assert (accepted.session_id, accepted.status) == (run.session_id, "running")
        await stage.kernel.tree_rests(run.root_id)

    def model(world: World) -> FunctionModel:
        first_only = _family(world, ending, continuable=True)

        async def answer(request: ModelRequest) -> Finish:
            return says("woken") if "and now?" in texts(request) else await first_only(request)

        return FunctionModel(answer)

    life: Life[Any] = theatre.live(model, first)
    if restarted:
        life = theatre.live(model, followed)
    asked = [request for request in life.asked("kid") if "and now?" in texts(request)]
    assert len(asked) == 1
    assert "do kid" in texts(asked[0])  # the same session, with its history
    assert [fact.status for fact in life.told(RunSettled)] == [ending, "completed"]


@pytest.mark.parametrize("under", ["standard", "resident", "guarded"])
@few_seeds
def test_B130_a_child_of_another_parent_is_not_found_and_hears_nothing(under: str, seed: int) -> None:
    """Siblings, grandchildren and the children of another root: under `family` only the direct parent writes."""

    async def scene(stage: Stage) -> None:
        root, other = [await stage.root({"caps.max_depth": 2}, under=under) for _ in range(2)]
        works = [await stage.kernel.prompt(root, "go"), await stage.kernel.prompt(other, "go")]
        await stage.until(lambda events: len(places(events, RunStarted)) == 4)
        before = _disk(stage)
        one, two = (run for run in _runs(stage, "kid") if run.parent_id == root)
        stranger = next(run for run in _runs(stage, "kid") if run.parent_id == other)
        grandchild = stage.run("leaf")
        for sender, target in ((root, stranger), (root, grandchild), (one.session_id, two), (other, one)):
            refusal = await _refusal(stage.kernel.letters.send(target.session_id, "psst", sender=sender))
            assert refusal.code == "not_found"
        assert _disk(stage) == before
        for work in works:
            await work.done.wait()

    def model(world: World) -> FunctionModel:
        roots: list[SessionId] = []

        async def answer(request: ModelRequest) -> Finish:
            if request.root and request.number == 1:
                roots.append(request.session_id)
                return calls(*(spawn("kid") for _ in range(2 if len(roots) == 1 else 1)))
            if request.name == "kid" and request.number == 1 and not leaves:
                leaves.append(request.session_id)
                return calls(spawn("leaf"))
            await world.clock.sleep(0.0 if request.root else 30.0)
            return says("done")

        leaves: list[SessionId] = []
        return FunctionModel(answer)

    life = play(model, scene, seed=seed)
    assert not any("psst" in texts(request) for request in life.requests)


def _runs(stage: Stage, name: str) -> list[Run]:
    ids = [event.fact.run_id for event in stage.events() if isinstance(event.fact, RunQueued)]
    found = [stage.store.run(run_id) for run_id in ids]
    return [run for run in found if run is not None and run.name == name]


def _attentive(world: World, held_s: float) -> FunctionModel:
    """Play a child whose first answer takes `held_s`; each further one says what it was told."""

    async def answer(request: ModelRequest) -> Finish:
        if request.root:
            return calls(spawn("kid", continuable=True)) if request.number == 1 else says("noted")
        if request.number == 1:
            await world.clock.sleep(held_s)
        return says(f"answer {request.number}")

    return FunctionModel(answer)


MOMENTS_S = (0.0, 0.98, 0.995, 1.0, 1.005, 1.02, 1.2)
"""When the messages are sent, in virtual seconds after a stream began that takes one: before, at and after its end."""


@pytest.mark.parametrize("at_s", MOMENTS_S)
@pytest.mark.parametrize("under", CONTINUING)
@pytest.mark.parametrize("slow_s", [0.0, 0.05])
@few_seeds
def test_B132_messages_around_the_childs_last_word_are_all_worked_on_and_in_their_order(
    under: str, at_s: float, slow_s: float, seed: int
) -> None:
    """The child runs again with both, whatever it was doing when they came (`courier`: its turn takes them up)."""

    async def scene(stage: Stage) -> None:
        root = await stage.root(under=under)
        await stage.kernel.prompt(root, "go")
        await stage.until(lambda _: "kid" in {request.name for request in stage.model.requests})
        kid = stage.run("kid").session_id
        await stage.world.clock.sleep(at_s)
        for text in ("message one", "message two"):
            await stage.subagents.followup(root, kid, text)
        await stage.kernel.tree_rests(root)

    life = Theatre(seed=seed).live(
        lambda world: _attentive(world, 1.0), scene, plan=StorePlan(slow_every=2, slow_s=slow_s) if slow_s else None
    )
    last = texts(life.asked("kid")[-1])
    assert last.count("message one") == last.count("message two") == 1
    assert last.index("message one") < last.index("message two")
    assert {fact.status for fact in life.told(RunSettled)} == {"completed"}
    assert len(life.told(RunSettled)) == len(life.told(RunQueued))


@pytest.mark.parametrize("stop", ["interrupt", "cancel"])
@pytest.mark.parametrize("under", CONTINUING)
@each_seed
def test_B132_a_stop_while_messages_wait_loses_none_without_saying_so(under: str, stop: str, seed: int) -> None:
    """An interrupt sets them aside until the next message; a cancel ends them, each told to the parent.

    Under `courier` the turn had them as letters: they stay stored, and the next turn has them beside its instruction.
    """

    async def scene(stage: Stage) -> None:
        root = await stage.root(under=under)
        await stage.kernel.prompt(root, "go")
        await stage.until(lambda _: "kid" in {request.name for request in stage.model.requests})
        run = stage.run("kid")
        for text in ("message one", "message two"):
            await stage.subagents.followup(root, run.session_id, text)
        if stop == "interrupt":
            await stage.kernel.scheduler.interrupt(run.session_id, None)
        else:
            await stage.kernel.scheduler.cancel(run.run_id)
        await stage.kernel.tree_rests(root)
        assert [request.number for request in stage.model.requests if request.name == "kid"] == [1]
        await stage.subagents.followup(root, run.session_id, "message three")
        await stage.kernel.tree_rests(root)

    life = play(lambda world: _attentive(world, 30.0), scene, seed=seed)
    last = texts(life.asked("kid")[-1])
    ended = [fact.status for fact in life.told(RunSettled)]
    if under != "courier" and stop == "cancel":
        assert sorted(ended) == ["cancelled", "cancelled", "cancelled", "completed"]
        assert sum("was stopped" in letter.text for letter in life.told(LetterQueued)) == 3
        assert "message three" in last
        assert "message one" not in last
        return
    assert [last.count(f"message {number}") for number in ("one", "two", "three")] == [1, 1, 1]
    assert last.index("message one") < last.index("message two")
    assert ended.count("completed") == len(ended) - 1


@pytest.mark.parametrize("waits", ["wait_agent", "hold"])
@each_seed
def test_B132_a_wait_that_was_stopped_swallows_no_later_wake(waits: str, seed: int) -> None:
    """The child waits for its own child when it is stopped; the message after that starts it at once."""

    def model(world: World) -> FunctionModel:
        async def answer(request: ModelRequest) -> Finish:
            if request.root:
                return calls(spawn("kid")) if request.number == 1 else says("noted")
            if request.name == "leaf":
                await world.clock.sleep(500.0)
                return says("late")
            if "and now?" in texts(request):
                return says("at work again")
            if request.number == 1:
                return calls(spawn("leaf"))
            return calls(call("wait_agent", timeout_s=3_000)) if waits == "wait_agent" else says("I wait")

        return FunctionModel(answer)

    async def scene(stage: Stage) -> float:
        root = await stage.root({"caps.max_depth": 2})
        work = await stage.kernel.prompt(root, "go")
        await stage.until(lambda events: bool(places(events, RunWaiting, child_id=_kids(events))))
        run = stage.run("kid")
        await stage.kernel.scheduler.interrupt(run.session_id, None)
        begun_s = stage.world.clock.monotonic()
        further = await stage.subagents.followup(root, run.session_id, "and now?")
        await stage.kernel.scheduler.ended([further.run_id])
        took_s = stage.world.clock.monotonic() - begun_s
        await work.done.wait()
        return took_s

    life = play(model, scene, seed=seed)
    assert life.value is not None
    assert life.value < 2
    assert [fact.status for fact in life.told(RunSettled) if fact.name == "kid"] == ["interrupted", "completed"]
    assert life.settled("leaf").reason == "parent_cancelled"


def _kids(events: list[Event]) -> SessionId | None:
    return next((event.fact.child_id for event in events if isinstance(event.fact, RunStarted)), None)


@pytest.mark.parametrize("under", ["standard", "resident"])
@each_seed
def test_B132_a_message_that_was_accepted_before_a_kill_is_told_as_unfinished_and_not_run(
    under: str, seed: int
) -> None:
    theatre = Theatre(seed=seed)

    async def killed(stage: Stage) -> None:
        root = await stage.root(under=under)
        await stage.kernel.prompt(root, "go")
        await stage.until(lambda _: "kid" in {request.name for request in stage.model.requests})
        await stage.subagents.followup(root, stage.run("kid").session_id, "message one")
        raise SimCrash

    theatre.live(lambda world: _attentive(world, 30.0), killed)
    (root,) = {event.root_id for event in theatre.before}

    async def later(request: ModelRequest) -> Finish:
        return says("noted")

    life = theatre.live(lambda _: FunctionModel(later), lambda stage: stage.turn(root, "go on"))
    assert [(fact.status, fact.reason) for fact in life.told(RunSettled)] == [("interrupted", "restart")] * 2
    assert life.asked("kid") == []
    (shown,) = life.asked()
    assert sum("restart" in letter for letter in letters_in(shown)) == 2
    assert names_of(life, RunStarted) == ["kid"]


@few_seeds
def test_B132_a_message_to_a_child_that_has_not_begun_waits_its_turn_behind_the_first_instruction(seed: int) -> None:
    def model(world: World) -> FunctionModel:
        async def answer(request: ModelRequest) -> Finish:
            if request.root:
                return calls(spawn("first"), spawn("kid")) if request.number == 1 else says("noted")
            await world.clock.sleep(5.0)
            return says(f"answer {request.number}")

        return FunctionModel(answer)

    async def scene(stage: Stage) -> None:
        root = await stage.root({"caps.running.root": 1})
        work = await stage.kernel.prompt(root, "go")
        await stage.until(lambda events: len(places(events, RunQueued)) == 2)
        for text in ("message one", "message two"):
            run = await stage.subagents.followup(root, _runs(stage, "kid")[0].session_id, text)
            assert run.status == "queued"
        await work.done.wait()

    life = play(model, scene, seed=seed)
    last = texts(life.asked("kid")[-1])
    assert last.index("do kid") < last.index("message one") < last.index("message two")
    assert [fact.output for fact in life.told(RunSettled) if fact.name == "kid"] == ["answer 1", "answer 2", "answer 3"]
