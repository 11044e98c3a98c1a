"""What went wrong elsewhere: stops that reach the wrong ones, results doubled or out of order (B22 to B35)."""

import asyncio
from typing import Any

import msgspec
import pytest

from retinue.core.errors import RetinueError
from retinue.core.events import (
    LetterAbsorbed,
    LetterQueued,
    RunSettled,
    ToolStarted,
    TurnClosed,
    TurnOpened,
)
from retinue.core.ids import SessionId
from retinue.core.policy import named
from retinue.core.run import Run
from retinue.ports import Finish, Model, ModelRequest, ToolText, UserText
from retinue.runtime.recovery import recover
from retinue.testing.fakes import slow_tool
from retinue.testing.simloop import SimCrash
from retinue.testing.world import World
from tests.scenarios.stage import (
    FunctionModel,
    Stage,
    Theatre,
    answers_in,
    body_of,
    call,
    calls,
    each_seed,
    letters_in,
    payload_of,
    places,
    play,
    says,
    spawn,
)
from tests.scenarios.test_bugs import marker_count, strict_faults

few_seeds = pytest.mark.parametrize("seed", range(6))
ALL = ("standard", "courier", "resident", "guarded", "roster")
FLAGS: dict[str, dict[str, Any]] = {
    "flagged": {"cancel_with_parent": True},
    "unflagged": {"cancel_with_parent": False},
    "default": {},
}
BOUND = {
    "always": {"flagged", "unflagged", "default", "awaited", "python"},
    "opt_in": {"flagged", "default", "awaited"},
    "never": {"awaited"},
}
"""Of each value of `life.cancel_with_parent`: who ends with a turn that does not complete."""


class Stopped:
    """A session with a child of each flag, one that it awaits and one from Python; its turn then ends somehow."""

    def __init__(self, world: World, where: str, ending: str) -> None:
        self._clock = world.clock
        self._boss = "main" if where == "main session" else "boss"
        self._ending = ending

    async def answer(self, request: ModelRequest) -> Finish:
        if request.name == self._boss:
            return await self._bosses(request)
        if request.root:
            return calls(spawn("boss")) if request.number == 1 else says("noted")
        await self._clock.sleep(60.0)
        return says(f"{request.name} is done")

    async def _bosses(self, request: ModelRequest) -> Finish:
        spawns = [spawn(name, **flags) for name, flags in FLAGS.items()]
        if request.number == 1:
            return calls(*spawns, *([spawn("awaited", mode="await")] if self._ending == "interrupted" else []))
        if request.number == 2 and self._ending == "failed":
            await self._clock.sleep(5.0)
            return Finish(reason="error", error="broken", status=400)
        return says("noted")


async def _stop_turn(stage: Stage, where: str, ending: str) -> None:
    await stage.until(lambda _: _expected(where, ending) <= {request.name for request in stage.model.requests})
    if ending == "interrupted" and where == "main session":
        await stage.kernel.interrupt(stage.events()[0].root_id)
    elif ending == "interrupted":
        await stage.kernel.scheduler.interrupt(stage.run("boss").session_id, None)


def _expected(where: str, ending: str) -> set[str]:
    names = {*FLAGS, *(["awaited"] if ending == "interrupted" else [])}
    return names | ({"python"} if where == "main session" else {"boss"})


@pytest.mark.parametrize("ending", ["interrupted", "failed"])
@pytest.mark.parametrize("where", ["main session", "inside a child"])
@pytest.mark.parametrize("under", ALL)
@few_seeds
def test_B22_a_turn_that_does_not_complete_takes_along_exactly_whom_the_policy_binds_to_it(
    under: str, where: str, ending: str, seed: int
) -> None:
    """Their streams close at once and send nothing more; the others go on and come home."""
    caps = {"caps.running.root": 8, "caps.running.process": 8, "caps.running.parent": 8, "caps.max_depth": 2}

    async def scene(stage: Stage) -> None:
        root = await stage.root(caps, under=under)
        if where == "main session":
            await stage.start(root, "python")
        await stage.kernel.prompt(root, "go")
        await _stop_turn(stage, where, ending)
        await stage.kernel.tree_rests(root)

    life = play(lambda world: FunctionModel(Stopped(world, where, ending).answer), scene, seed=seed)
    bound = BOUND[named(under)["life.cancel_with_parent"]]
    kids = _expected(where, ending) - {"boss"}
    ended = {fact.name: (fact.status, fact.reason) for fact in life.told(RunSettled) if fact.name in kids}
    gone, done = ("cancelled", "parent_cancelled"), ("completed", "done")
    assert ended == {name: gone if name in bound else done for name in kids}
    assert {name: len(life.asked(name)) for name in kids} == dict.fromkeys(kids, 1)


@pytest.mark.parametrize("turn_end", ["hold_open", "detach", "cancel"])
@pytest.mark.parametrize("rule", ["always", "opt_in", "never"])
@few_seeds
def test_B22_a_turn_that_completes_follows_turn_end_and_no_flag(rule: str, turn_end: str, seed: int) -> None:
    switches = {"result.turn_end": turn_end, "life.cancel_with_parent": rule}
    answer = "completed"

    async def scene(stage: Stage) -> TurnClosed:
        root = await stage.root(switches)
        closed = await stage.turn(root)
        await stage.kernel.tree_rests(root)
        return closed

    life = play(lambda world: FunctionModel(Stopped(world, "main session", answer).answer), scene, seed=seed)
    wanted = ("cancelled", "parent_cancelled") if turn_end == "cancel" else ("completed", "done")
    assert {(fact.status, fact.reason) for fact in life.told(RunSettled)} == {wanted}
    closed_at = places(life.events, TurnClosed, run_id=None)[0]
    after = [position for position in places(life.events, RunSettled) if position > closed_at]
    assert len(after) == (len(FLAGS) if turn_end == "detach" else 0)
    assert life.value is not None
    assert life.value.status == "completed"


@pytest.mark.parametrize("under", ALL[:4])
@each_seed
def test_B25_a_child_that_was_interrupted_and_then_told_more_brings_its_later_answer_home(
    under: str, seed: int
) -> None:
    def model(world: World) -> Model:
        async def answer(request: ModelRequest) -> Finish:
            if request.name == "kid":
                more = any(message.text == "do it like this" for message in request.messages)
                await world.clock.sleep(3.0 if more else 60.0)
                return says("as you said" if more else "never")
            if request.number == 1:
                return calls(spawn("kid", continuable=True))
            if request.number == 2:
                return calls(call("wait_agent", timeout_s=30))
            return calls(call("slow")) if request.number == 3 else says("noted")

        return FunctionModel(answer)

    async def scene(stage: Stage) -> None:
        root = await stage.root(under=under)
        await stage.kernel.prompt(root, "go")
        await stage.until(lambda events: bool(places(events, ToolStarted, name="wait_agent")))
        run = stage.run("kid")
        await stage.kernel.scheduler.interrupt(run.session_id, None)
        await stage.kernel.letters.send(run.session_id, "do it like this", sender=None)
        await stage.kernel.tree_rests(root)
        if not any("as you said" in letter for request in stage.model.requests for letter in letters_in(request)):
            await stage.turn(root, "and?")

    life = play(model, scene, tools=lambda world: [slow_tool(world.clock, 1.0)], seed=seed)
    ends = [(fact.status, fact.output) for fact in life.told(RunSettled)]
    assert ends == [("interrupted", None), ("completed", "as you said")]
    waited = next(answer for request in life.asked() for answer in answers_of(request, "wait_agent"))
    assert body_of(waited)["items"][0]["status"] == "interrupted"
    assert marker_count(life.asked()[-1], "as you said") == 1


def answers_of(request: ModelRequest, tool: str) -> list[ToolText]:
    return [message for message in request.messages if isinstance(message, ToolText) and message.name == tool]


STOPS = ("cancel", "cancel", "interrupt", "drain", "switch off")


async def _stop(stage: Stage, how: str, run: Run) -> None:
    if how == "cancel":
        await stage.kernel.scheduler.cancel(run.run_id)
    elif how == "interrupt":
        await stage.kernel.scheduler.interrupt(run.session_id, None)
    elif how == "drain":
        await stage.subagents.drain(parent=run.parent_id, children=[run.session_id])
    else:
        await stage.kernel.set_switch(False)


@pytest.mark.parametrize("under", ALL)
@each_seed
def test_B26_stops_of_any_kind_at_once_and_with_the_last_chunk_leave_one_ending_and_raise_nothing(
    under: str, seed: int
) -> None:
    """Three at a time, within a few milliseconds of the end; whoever comes too late hears how it ended."""

    def model(world: World) -> Model:
        async def answer(request: ModelRequest) -> Finish:
            if request.root:
                return calls(spawn("kid")) if request.number == 1 else says("noted")
            await world.clock.sleep(1.0)
            return says("done")

        return FunctionModel(answer)

    async def scene(stage: Stage) -> None:
        root = await stage.root(under=under)
        await stage.kernel.prompt(root, "go")
        await stage.until(lambda _: "kid" in {request.name for request in stage.model.requests})
        run, rng = stage.run("kid"), stage.world.rng
        await stage.world.clock.sleep(rng.choice((0.98, 0.99, 1.0, 1.01)))
        chosen = [rng.choice(STOPS) for _ in range(3)]
        await asyncio.gather(*(_stop(stage, how, run) for how in chosen))
        first = stage.store.run(run.run_id)
        for how in ("cancel", "interrupt"):
            await _stop(stage, how, run)
        _, note = await stage.kernel.scheduler.cancel(run.run_id)
        assert first is not None
        assert note == f"already ended: {first.status}"
        assert first.result_state == "stored" or stage.store.run(run.run_id) == first
        await stage.kernel.tree_rests(root)

    life = play(model, scene, seed=seed)
    settled = life.settled("kid")
    assert (settled.output is None) is (settled.status != "completed")
    assert settled.status in {"completed", "cancelled", "interrupted"}
    assert len(life.told(LetterQueued)) <= 1


def _marker(world: World, *steps: Finish) -> Model:
    """Play a child that answers with a marker, and a root that takes these steps, each once, and then says "noted"."""

    async def answer(request: ModelRequest) -> Finish:
        if not request.root:
            await world.clock.sleep(4.0)
            return says("MARK-7Q2")
        taken = sum(message.name != "" for message in request.messages if isinstance(message, ToolText))
        made = 0
        for step in steps:
            if made >= taken:
                return _filled(step, request)
            made += len(step.tool_calls)
        return says("noted")

    return FunctionModel(answer)


def _filled(step: Finish, request: ModelRequest) -> Finish:
    spawned = answers_of(request, "spawn_agent")
    run_id = body_of(spawned[0])["run_id"] if spawned else ""
    made = (msgspec.structs.replace(one, arguments=one.arguments.replace("RUN", run_id)) for one in step.tool_calls)
    return Finish(reason=step.reason, text=step.text, tool_calls=tuple(made))


LATER = (
    calls(call("wait_agent", ids=["RUN"], timeout_s=30)),
    calls(call("wait_agent", ids=["RUN"], timeout_s=30), call("list_agents")),
    calls(call("cancel_agent", id="RUN"), call("interrupt_agent", id="RUN")),
)


@pytest.mark.parametrize("under", ALL)
@each_seed
def test_B29_a_result_is_sent_to_the_parents_model_once_by_whatever_way_it_comes(under: str, seed: int) -> None:
    """Spawn, wait, wait again, list, cancel, interrupt, one more turn: by letter or by the first call that fetches."""

    async def scene(stage: Stage) -> None:
        root = await stage.root(under=under)
        await stage.turn(root)
        await stage.kernel.tree_rests(root)
        await stage.turn(root, "and now?")
        await stage.kernel.tree_rests(root)

    life = play(lambda world: _marker(world, calls(spawn("kid")), *LATER), scene, seed=seed)
    counts = [marker_count(request, "MARK-7Q2") for request in life.asked()]
    assert counts == sorted(counts)
    assert counts[-1] == 1
    assert all(body_of(a)["note"] == "already ended: completed" for a in answers_of(life.asked()[-1], "cancel_agent"))


@pytest.mark.parametrize("under", ["resident", "courier", "roster"])
@each_seed
def test_B29_a_result_that_comes_after_the_turn_is_sent_once_too(under: str, seed: int) -> None:
    """`resident` starts a turn for it, `courier` keeps it for the next one, `roster` until somebody fetches it."""

    async def scene(stage: Stage) -> None:
        root = await stage.root(under=under)
        await stage.turn(root)
        await stage.kernel.tree_rests(root)
        for text in ("and now?", "and then?"):
            await stage.turn(root, text)
            await stage.kernel.tree_rests(root)

    def model(world: World) -> Model:
        inner = _marker(world, calls(spawn("kid")), *LATER)

        async def answer(request: ModelRequest) -> Finish:
            if request.root and request.number == 2:
                return says("I end before it does")
            async for piece in inner.stream(request):
                if isinstance(piece, Finish):
                    return piece
            raise AssertionError

        return FunctionModel(answer)

    life = play(model, scene, seed=seed)
    counts = [marker_count(request, "MARK-7Q2") for request in life.asked()]
    assert (counts[0], counts[1], counts[-1]) == (0, 0, 1)
    assert counts == sorted(counts)
    by_letters = [fact for fact in life.told(TurnOpened) if fact.cause == "letter"]
    assert len(by_letters) == (1 if under == "resident" else 0)


@pytest.mark.parametrize("when", ["after the turn it started", "before that turn"])
@each_seed
def test_B31_no_restart_no_pass_and_no_resume_delivers_what_was_delivered_again(when: str, seed: int) -> None:
    """Under `resident` a letter starts a turn; a kill before that leaves it unread, and then it starts none."""
    theatre = Theatre(seed=seed)

    async def first(stage: Stage) -> None:
        root = await stage.root(under="resident")
        await stage.turn(root)
        if when == "before that turn":
            await stage.until(lambda events: bool(places(events, LetterQueued)))
            raise SimCrash
        await stage.kernel.tree_rests(root)

    theatre.live(lambda world: _marker(world, calls(spawn("kid"))), first)
    run = theatre.run("kid")

    async def later(stage: Stage) -> None:
        for _ in range(3):
            await recover(stage.kernel.journal, stage.kernel.record)
            await stage.kernel.load(run.parent_id)
            await stage.world.clock.sleep(3_600.0)
        for text in ("continue", "and again"):
            await stage.turn(run.parent_id, text)
            await stage.kernel.tree_rests(run.parent_id)

    life = theatre.live(lambda world: _marker(world), later)
    turns = [fact.cause for fact in life.told(TurnOpened) if fact.run_id is None]
    assert turns.count("letter") == (1 if when == "after the turn it started" or _was_quick(theatre, run) else 0)
    assert [marker_count(request, "MARK-7Q2") for request in life.asked()] == [1, 1]
    assert len(life.told(LetterQueued)) == len(life.told(LetterAbsorbed)) == 1
    now = theatre.run("kid")
    assert (now.ended_at, now.elapsed_s, now.result_state) == (run.ended_at, run.elapsed_s, "absorbed")


def _was_quick(theatre: Theatre, run: Run) -> bool:
    """Return whether the turn had begun before the kill came."""
    return any(isinstance(e.fact, TurnOpened) and e.fact.cause == "letter" for e in theatre.before)


@pytest.mark.parametrize("ending", ["kill", "clean"])
@each_seed
def test_B31_a_result_that_was_fetched_is_not_fetched_again_after_a_restart(ending: str, seed: int) -> None:
    theatre = Theatre(seed=seed)

    async def first(stage: Stage) -> SessionId:
        root = await stage.root(under="roster")
        await stage.turn(root)
        if ending == "kill":
            raise SimCrash
        return root

    theatre.live(lambda world: _marker(world, calls(spawn("kid")), LATER[0]), first)
    run = theatre.run("kid")
    assert run.result_state == "collected"

    def model(world: World) -> Model:
        return _marker(world, calls(spawn("never")), LATER[0], *LATER[1:])

    life = theatre.live(model, lambda stage: stage.turn(run.parent_id, "and now?"))
    assert marker_count(life.asked()[-1], "MARK-7Q2") == 1
    assert theatre.run("kid") == run


@pytest.mark.parametrize("ends", ["together", "one by one"])
@each_seed
def test_B33_two_clients_of_one_session_see_one_turn_for_what_its_children_bring(ends: str, seed: int) -> None:
    def model(world: World) -> Model:
        async def answer(request: ModelRequest) -> Finish:
            if request.root:
                made = calls(*(spawn(f"kid{n}") for n in range(3))) if request.number == 1 else says("noted")
                await world.clock.sleep(0.5 if request.number > 2 else 0.0)
                return made
            await world.clock.sleep(5.0 if ends == "together" else 5.0 + 0.1 * int(request.name[3:]))
            return says(f"{request.name} is done")

        return FunctionModel(answer)

    async def scene(stage: Stage) -> list[int]:
        root = await stage.root(under="resident")
        feeds = [stage.kernel.bus.subscribe(root) for _ in range(2)]
        await stage.turn(root)
        await asyncio.gather(*(stage.kernel.load(root) for _ in range(2)))
        await stage.kernel.tree_rests(root)
        counts = []
        for feed in feeds:
            feed.close()
            seen = [event async for event in feed]
            counts.append(sum(isinstance(getattr(event, "fact", None), TurnOpened) for event in seen))
        return counts

    life = play(model, scene, seed=seed)
    opened = [fact for fact in life.told(TurnOpened) if fact.cause == "letter"]
    assert 1 <= len(opened) <= (2 if ends == "one by one" else 3)
    assert life.value == [len(life.told(TurnOpened))] * 2
    assert len(life.told(LetterAbsorbed)) == 3
    last = life.asked()[-1]
    assert [marker_count(last, f"kid{n} is done") for n in range(3)] == [1, 1, 1]


@each_seed
def test_B33_two_people_and_a_letter_at_the_same_instant_open_one_turn(seed: int) -> None:
    """Whoever comes second is told that a turn is open; the letter is in one turn, whichever it was."""

    async def scene(stage: Stage) -> list[str]:
        root = await stage.root(under="resident")
        await stage.turn(root)
        await stage.world.clock.sleep(stage.world.rng.choice((3.97, 3.99, 4.0, 4.01, 4.03)))

        async def prompt(text: str) -> str:
            try:
                work = await stage.kernel.prompt(root, text)
            except RetinueError as error:
                return error.code
            await work.done.wait()
            return "open"

        found = list(await asyncio.gather(prompt("one"), prompt("two")))
        await stage.kernel.tree_rests(root)
        return found

    life = play(lambda world: _marker(world, calls(spawn("kid"))), scene, seed=seed)
    assert life.value is not None
    assert set(life.value) <= {"open", "turn_open"}
    assert life.value.count("open") <= 1 or len(life.told(TurnOpened)) >= 3
    assert len(life.told(LetterAbsorbed)) == 1
    assert marker_count(life.asked()[-1], "MARK-7Q2") == 1


@pytest.mark.parametrize("under", ["standard", "resident", "courier", "guarded"])
@each_seed
def test_B35_answers_then_the_persons_text_then_letters_in_every_kind_of_turn(under: str, seed: int) -> None:
    """A tool runs while a person steers and a child ends; in `resident`'s case in a turn that a letter started."""

    def model(world: World) -> Model:
        async def answer(request: ModelRequest) -> Finish:
            if not request.root:
                await world.clock.sleep(4.0 if request.name == "second" else 1.0)
                return says(f"{request.name} is done")
            ran = answers_of(request, "slow")
            if request.number == 1:
                return calls(spawn("first"), spawn("second"))
            if not ran and (marker_count(request, "first is done") or under == "guarded"):
                return calls(call("slow"), call("slow"))
            return says("noted")

        return FunctionModel(answer)

    async def scene(stage: Stage) -> None:
        root = await stage.root(under=under)
        work = await stage.kernel.prompt(root, "go")
        if under == "courier":
            await work.done.wait()
            await stage.until(lambda events: bool(places(events, LetterQueued)))
            await stage.kernel.prompt(root, "and now?")
        await stage.until(lambda events: bool(places(events, ToolStarted, name="slow")))
        await stage.world.clock.sleep(stage.world.rng.random() * 3.0)
        await stage.kernel.steer(root, "also do X")
        await stage.kernel.tree_rests(root)

    life = play(model, scene, tools=lambda world: [slow_tool(world.clock, 5.0)], seed=seed)
    request = next(r for r in life.asked() if len(answers_of(r, "slow")) == 2)
    behind = answers_in(request)
    assert [answer.name for answer in behind] == ["slow", "slow"]
    last_call = request.messages.index(behind[0])
    rest = request.messages[last_call + 2 :]
    assert [type(message) for message in rest] == [UserText] * len(rest)
    assert rest[0].text == "also do X"
    assert all(payload_of(message.text) for message in rest[1:])
    assert len(rest) == (1 if under == "guarded" else 2)
    assert [strict_faults(asked) for asked in life.requests] == [[]] * len(life.requests)
    assert marker_count(life.asked()[-1], "second is done") == 1
