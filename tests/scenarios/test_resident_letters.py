"""Scenarios S76 to S78 of DSH under `resident`: notices of children, and who is woken by them."""

import pytest

from retinue.core.events import (
    LetterAbsorbed,
    LetterQueued,
    RunQueued,
    RunSettled,
    RunStarted,
    TurnOpened,
    Warned,
)
from retinue.core.ids import SessionId
from retinue.ports import Page
from retinue.testing.fakes import slow_tool
from retinue.testing.faults import StorePlan
from retinue.tools.agents import activation
from tests.scenarios.letterstage import absorbed_at, kinds, start_kid, turns
from tests.scenarios.stage import (
    AGAIN,
    Stage,
    Theatre,
    call,
    child,
    each_seed,
    letters_in,
    parent,
    payload_of,
    place,
    places,
    play,
    script,
    spawn,
)

UNDER = "resident"
FOREVER_S = 1_000_000.0


@each_seed
def test_S76_an_idle_parent_gets_one_ordinary_turn_for_several_notices(seed: int) -> None:
    async def scene(stage: Stage) -> SessionId:
        root = await stage.root(under=UNDER)
        for name in ("one", "two", "three"):
            await start_kid(stage, root, name)
        await stage.kernel.tree_rests(root)
        return root

    life = play(
        script(
            parent("I see", delay_ms=8_000),
            AGAIN,
            child("one", "1", delay_ms=1_000),
            child("two", "2", delay_ms=3_000),
            child("three", "3", delay_ms=5_000),
        ),
        scene,
        seed=seed,
    )
    assert life.value is not None
    (turn,) = turns(life, life.value)
    assert (turn.cause, turn.run_id) == ("letter", None)
    assert turn.root_run_id == life.settled("one").root_run_id  # that of the oldest letter
    assert absorbed_at(life, life.value) == [(1, 1), (1, 2), (1, 2)]
    (first, second) = (letters_in(request) for request in life.asked())
    assert [payload_of(letter)[-1] for letter in first] == ["1"]
    assert [payload_of(letter)[-1] for letter in second] == ["1", "2", "3"]
    assert set(kinds(second)) == {"FINAL_ANSWER"}


@each_seed
def test_S76_a_busy_parent_gets_several_notices_in_one_step(seed: int) -> None:
    async def scene(stage: Stage) -> SessionId:
        root = await stage.root(under=UNDER)
        await stage.turn(root)
        await stage.kernel.tree_rests(root)
        return root

    life = play(
        script(
            parent("", spawn("one"), spawn("two"), call("slow")),
            parent("done"),
            child("one", "1", delay_ms=1_000),
            child("two", "2", delay_ms=3_000),
        ),
        scene,
        tools=lambda world: [slow_tool(world.clock, 9.0)],
        seed=seed,
    )
    assert life.value is not None
    assert len(turns(life, life.value)) == 1
    assert absorbed_at(life, life.value) == [(1, 2), (1, 2)]
    assert [payload_of(letter)[-1] for letter in letters_in(life.asked()[1])] == ["1", "2"]


NESTED = (
    parent("ok"),
    AGAIN,
    child("mid", "", spawn("leaf")),
    child("mid", "leaf works"),
    child("mid", "leaf is done"),
    child("leaf", "found", delay_ms=9_000),
)


@each_seed
def test_S77_the_notice_goes_out_before_the_release_and_a_parent_that_is_a_child_is_kept_for_it(seed: int) -> None:
    seen: list[tuple[int, str]] = []

    async def scene(stage: Stage) -> SessionId:
        root = await stage.root(under=UNDER)
        mid = await start_kid(stage, root, "mid")
        await stage.until(lambda events: bool(places(events, RunSettled, name="mid")))
        run = stage.run("mid")
        stage.world.loop.on_pass = lambda _: seen.append(
            (stage.kernel.journal.position, activation(stage.kernel.journal.state, run))
        )
        await stage.kernel.tree_rests(root)
        stage.world.loop.on_pass = None
        return mid

    life = play(script(*NESTED), scene, seed=seed)
    assert life.value is not None
    queued = place(life.events, LetterQueued, receiver_id=life.value)
    absorbed = place(life.events, LetterAbsorbed, letter_id=life.letter("leaf").letter_id)
    settled = place(life.events, RunSettled, name="leaf")
    assert settled < queued < absorbed
    assert queued - settled == 1  # one commit: there is no moment at which it is settled and nobody is told
    kept = {what for position, what in seen if position < absorbed}
    assert "waiting" in kept
    assert "released" not in kept
    assert seen[-1][1] == "released"
    assert [turn.cause for turn in turns(life, life.value)] == ["prompt", "letter"]
    assert payload_of(letters_in(life.asked("mid")[2])[0]).endswith("found")
    notices = [payload_of(letter).rsplit("\n", 1)[-1] for letter in letters_in(life.asked()[-1])]
    assert notices == ["leaf works", "leaf is done"]  # each run of the child tells its parent


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("fault", ["crash_before", "crash_after"])
def test_S77_a_crash_finds_the_settlement_and_its_notice_together_and_the_next_run_reads_it(
    fault: str, seed: int
) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root(under=UNDER)
        await start_kid(stage, root, "mid")
        await stage.kernel.tree_rests(root)

    async def go_on(stage: Stage) -> None:
        root = stage.store.sessions(Page())[0][0].session_id
        mid = next(event.fact.child_id for event in stage.events() if isinstance(event.fact, RunQueued))
        await stage.subagents.followup(root, mid, "and now?")
        await stage.kernel.tree_rests(root)

    lines = (*NESTED, child("mid", "read it"), AGAIN)
    commits = Theatre(seed=seed).live(script(*lines), scene).commits
    read = 0
    for number in range(1, commits + 1):
        theatre = Theatre(seed=seed)
        crashed = theatre.live(script(*lines), scene, plan=StorePlan(**{fault: number}))
        leaves = [fact for fact in crashed.told(RunSettled) if fact.name == "leaf"]
        notices = [fact for fact in crashed.told(LetterQueued) if leaves and fact.run_id == leaves[0].run_id]
        assert len(notices) == len(leaves)
        if not leaves or any(fact.letter_id == notices[0].letter_id for fact in crashed.told(LetterAbsorbed)):
            continue
        read += 1
        life = theatre.live(script(*lines), go_on)
        assert payload_of(letters_in(life.asked("mid")[0])[0]).endswith("found")
    assert read


@each_seed
def test_S78_a_parent_is_not_woken_while_the_runtime_closes_nor_by_the_next_start(seed: int) -> None:
    theatre = Theatre(seed=seed)
    lines = (parent("ok"), AGAIN, child(None, "never", delay_ms=60_000))

    async def scene(stage: Stage) -> SessionId:
        root = await stage.root(under=UNDER)
        await start_kid(stage, root, "one")
        await start_kid(stage, root, "two")
        await stage.until(lambda events: len(places(events, RunStarted)) == 2)
        return root  # the life ends here, with the kernel's close

    first = theatre.live(script(*lines), scene)
    assert first.value is not None
    assert {(fact.status, fact.reason) for fact in first.told(RunSettled)} == {("interrupted", "shutdown")}
    assert len(first.told(LetterQueued)) == 2
    assert turns(first, first.value) == []

    async def later(stage: Stage) -> None:
        root = stage.store.sessions(Page())[0][0].session_id
        await stage.kernel.load(root)
        await stage.kernel.tree_rests(root)
        assert places(stage.events(), TurnOpened, cause="letter") == []
        await stage.turn(root, "what came of them?")

    life = theatre.live(script(*lines), later)
    assert len(letters_in(life.asked()[0])) == 2
    assert [turn.cause for turn in turns(life, first.value)] == ["prompt"]


@each_seed
def test_S78_a_parent_that_is_being_deleted_is_not_woken_and_its_going_causes_no_error(seed: int) -> None:
    async def scene(stage: Stage) -> list[SessionId]:
        root = await stage.root(under=UNDER)
        mid = await start_kid(stage, root, "mid")
        await stage.until(lambda events: bool(places(events, RunStarted, name="leaf")))
        leaf = stage.run("leaf").session_id
        gone = await stage.kernel.delete(mid)
        assert list(gone) == [leaf, mid]
        await stage.kernel.tree_rests(root)
        assert stage.store.read(mid) == stage.store.read(leaf) == []
        return [mid, leaf]

    life = play(script(*NESTED), scene, seed=seed)
    assert life.value is not None
    assert life.told(Warned) == []
    assert not [fact for fact in life.told(TurnOpened) if fact.cause == "letter" and fact.run_id is not None]
    assert len(life.asked("leaf")) <= 1


@each_seed
def test_S78_a_cancelled_parent_is_not_woken_by_the_children_that_go_with_it(seed: int) -> None:
    async def scene(stage: Stage) -> SessionId:
        root = await stage.root(under=UNDER)
        mid = await start_kid(stage, root, "mid")
        await stage.until(lambda events: bool(places(events, RunStarted, name="leaf")))
        await stage.kernel.scheduler.cancel(stage.run("mid").run_id)
        await stage.kernel.tree_rests(root)
        return mid

    lines = (*NESTED[:3], child("mid", "thinking", delay_ms=60_000), child("mid", "woken"), AGAIN, NESTED[-1])
    life = play(script(*lines), scene, seed=seed)
    assert life.value is not None
    assert (life.settled("mid").status, life.settled("leaf").reason) == ("cancelled", "parent_cancelled")
    assert [turn.cause for turn in turns(life, life.value)] == ["prompt"]
    assert len(places(life.events, LetterQueued, receiver_id=life.value)) == 1  # stored for its next run


@each_seed
def test_S78_a_refused_notice_does_not_block_the_release(seed: int) -> None:
    """Refused: no more turns may be started by letters; the letter is stored with a warning and everything rests."""

    async def scene(stage: Stage) -> SessionId:
        root = await stage.root({"result.auto_turns_max": 1}, under=UNDER)
        await stage.turn(root)
        await stage.kernel.tree_rests(root)
        assert root not in stage.kernel.journal.state.sessions
        return root

    life = play(
        script(
            parent("", spawn("one"), spawn("two")),
            parent("ok"),
            AGAIN,
            child("one", "1", delay_ms=5_000),
            child("two", "2", delay_ms=20_000),
        ),
        scene,
        seed=seed,
    )
    assert life.value is not None
    assert [turn.cause for turn in turns(life, life.value)] == ["prompt", "letter"]
    assert [fact.code for fact in life.told(Warned)] == ["auto_turns_max"]
    assert {fact.status for fact in life.told(RunSettled)} == {"completed"}
    assert len(life.told(LetterQueued)) == 2
