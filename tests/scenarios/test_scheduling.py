"""Scenarios S1 to S14: admission, caps, queues; each also under the policies that give it a meaning."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from retinue.core.events import RunQueued, RunSettled, RunStarted, SessionOpened, ToolFinished, TurnClosed
from retinue.core.ids import SessionId
from retinue.ports import Finish, ModelRequest
from retinue.runtime.delegate import SpawnRequest, Way
from tests.scenarios.stage import (
    AGAIN,
    FunctionModel,
    Life,
    Stage,
    Theatre,
    body_of,
    call,
    child,
    code_of,
    each_seed,
    names_of,
    parent,
    peak,
    place,
    places,
    play,
    play_turn,
    says,
    script,
    seconds_between,
    spawn,
    under_each,
)

CREATED_FREELY = {"caps.created.turn": None, "caps.created.root_run": None}


@under_each("standard", "roster")
@each_seed
def test_S1_start_returns_at_once_queued_without_a_slot_and_later_reading_shows_it_running(
    seed: int, under: str
) -> None:
    """CONTRACT reserves the child's session id, so it is told at once, not only once the child runs."""
    life = play_turn(
        parent("", spawn("first")),
        parent("", spawn("second")),
        parent("", call("list_agents")),
        parent("", call("wait_agent", ids=["{{run:1}}"])),
        parent("", call("list_agents")),
        parent("done"),
        AGAIN,
        child("first", "one", delay_ms=10_000),
        child("second", "two", delay_ms=10_000),
        policy={"caps.running.root": 1},
        under=under,
        seed=seed,
    )
    asked = life.asked()
    first, second = (body_of(life.answers(number)[0]) for number in (1, 2))
    assert (first["status"], first["queue_position"]) == ("running", None)
    assert (second["status"], second["queue_position"]) == ("queued", 1)
    assert life.settled("second").child_id == second["session_id"]
    early, late = (body_of(life.answers(number)[0])["items"] for number in (3, 5))
    assert [(row["name"], row["status"]) for row in early] == [("first", "running"), ("second", "queued")]
    assert [(row["name"], row["status"]) for row in late] == [("first", "completed"), ("second", "running")]
    assert early[1]["waiting_for"]["kind"] == "slot"
    assert late[1]["session_id"] == second["session_id"]
    queued = place(life.events, RunQueued, name="second")
    answered = place(life.events, ToolFinished, call_id=life.answers(2)[0].call_id)
    assert answered < place(life.events, RunStarted, name="second")
    assert seconds_between(life.events, queued, answered) < 1
    assert len(asked) >= 6


@under_each("standard", "roster")
@each_seed
def test_S2_of_three_children_under_a_limit_of_two_the_third_starts_only_after_a_release(seed: int, under: str) -> None:
    life = play_turn(
        parent("", spawn("a"), spawn("b"), spawn("c")),
        parent("done"),
        AGAIN,
        child(None, "found", delay_ms=5_000),
        policy={"caps.running.root": 2},
        under=under,
        seed=seed,
    )
    assert peak(life.events) == 2
    started, settled = places(life.events, RunStarted), places(life.events, RunSettled)
    assert started[1] < settled[0] < started[2]
    assert seconds_between(life.events, started[0], started[1]) < 1
    assert seconds_between(life.events, settled[0], started[2]) == 0  # the freed slot is given away in the same commit
    assert [fact.status for fact in life.told(RunSettled)] == ["completed"] * 3


@under_each("standard", "roster")
@each_seed
def test_S5_a_child_over_the_limit_of_a_root_run_is_refused_even_when_all_others_have_finished(
    seed: int, under: str
) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root({"caps.created.root_run": 3, "caps.max_depth": 2}, under)
        await stage.turn(root)
        await stage.turn(root, "a further prompt is a further root run")

    life = play(
        script(
            parent("", spawn("a", mode="await")),
            parent("", spawn("b", mode="await")),
            parent("", spawn("c", mode="await")),
            parent("three it was"),
            parent("", spawn("d", mode="await")),
            parent("one more"),
            child("a", "", spawn("inner", mode="await")),
            child("a", "alpha"),
            child(None, "found"),
        ),
        scene,
        seed=seed,
    )
    refused = life.answers(3)[0]
    assert code_of(refused) == "cap_created"
    assert "caps.created.root_run is 3" in body_of(refused)["error"]["message"]
    assert names_of(life, RunSettled) == ["inner", "a", "b", "d"]  # a grandchild counts, the refused one left nothing
    assert names_of(life, RunQueued) == ["a", "inner", "b", "d"]
    assert len(life.told(SessionOpened)) == 5


@pytest.mark.parametrize(("under", "share"), [("standard", 100), ("resident", 10), ("guarded", 10), ("roster", 10)])
def test_S9_the_queue_is_first_in_first_out_inside_a_root_and_fair_between_roots_under_1000_waiters(
    under: str, share: int
) -> None:
    """All 1 000 wait under `standard`; the other policies queue by the same rule and show it with a tenth of them."""
    waiters = {0: 4 * share, 1: 3 * share, 2: 2 * share, 3: share}
    gate = asyncio.Event()

    async def answer(request: ModelRequest) -> Finish:
        if request.name == "blocker":
            await gate.wait()
        return says("ok")

    async def queue(stage: Stage, root: SessionId, name: str) -> None:
        request = SpawnRequest(prompt="wait and go", name=name)
        await stage.kernel.load(root)
        command = await stage.kernel.delegation.prepare(root, request, Way(delivery="handle"))
        await stage.kernel.load(root)
        await stage.kernel.scheduler.published(command, stage.kernel.scheduler.accept(command))

    async def fill(stage: Stage, root: SessionId, count: int) -> None:
        for number in range(count):
            await queue(stage, root, f"w{number}")

    async def scene(stage: Stage) -> dict[int, int]:
        policy = {"caps.running.process": 1, "caps.running.root": None, "life.run_timeout_s": None, **CREATED_FREELY}
        roots = [await stage.root(policy, under) for _ in waiters]
        await queue(stage, roots[0], "blocker")
        fillers = [stage.kernel.supervisor.begin(fill(stage, roots[n], count)) for n, count in waiters.items()]
        await asyncio.wait(fillers)
        held = {n: stage.kernel.journal.state.book.queue_length(root) for n, root in enumerate(roots)}
        gate.set()
        await stage.until(lambda events: len(places(events, RunSettled)) == 1 + 10 * share)
        return held

    life = play(lambda _: FunctionModel(answer), scene)
    assert life.value == waiters
    _require_first_in_first_out(life)
    _require_fair(life)
    assert peak(life.events) == 1


def _require_first_in_first_out(life: Life[dict[int, int]]) -> None:
    queued: dict[SessionId, list[str]] = {}
    started: dict[SessionId, list[str]] = {}
    for fact in life.told(RunQueued):
        queued.setdefault(fact.root_id, []).append(fact.run_id)
    for fact in life.told(RunStarted):
        started.setdefault(fact.root_id, []).append(fact.run_id)
    assert started == queued


def _require_fair(life: Life[dict[int, int]]) -> None:
    """Between two starts of one root, every other root that still has waiters gets exactly one."""
    left = Counter(fact.root_id for fact in life.told(RunQueued))
    since: dict[SessionId, Counter[SessionId]] = {}
    for fact in life.told(RunStarted)[1:]:
        left[fact.root_id] -= fact.name != "blocker"
        others = since.pop(fact.root_id, None)
        if others is not None:
            waiting = [root for root, count in left.items() if root != fact.root_id and count > 1]
            assert all(others[root] == 1 for root in waiting)
        for counter in since.values():
            counter[fact.root_id] += 1
        since[fact.root_id] = Counter()


CAPS_OF_FOUR = {"caps.running.root": 4, "caps.running.parent": 4}
REJECTING = [("standard", {**CAPS_OF_FOUR, "caps.on_full": "reject"}), ("courier", {})]
"""Policies with a cap of four at which a spawn is refused: what is set, and what the policy says by itself."""


def _six(seed: int, policy: dict[str, Any], under: str, *, shuffle: bool) -> Life[TurnClosed]:
    lines = (
        parent("", *(spawn(f"kid{number}") for number in range(1, 7))),
        parent("done"),
        AGAIN,
        child(None, "found", delay_ms=3_000),
    )
    theatre = Theatre(seed=seed, shuffle=shuffle)
    return theatre.live(script(*lines), lambda stage: stage.to_rest(policy, under))


@pytest.mark.parametrize(("under", "policy"), REJECTING)
def test_S13_under_a_cap_of_four_spawns_five_and_six_are_refused_and_the_first_four_stay_untouched(
    under: str, policy: dict[str, Any]
) -> None:
    life = _six(0, policy, under, shuffle=False)
    answers = life.answers(1)
    assert [body_of(answer)["name"] for answer in answers[:4]] == ["kid1", "kid2", "kid3", "kid4"]
    assert [code_of(answer) for answer in answers[4:]] == ["cap_running", "cap_running"]
    assert "4 of 4" in body_of(answers[4])["error"]["message"]
    assert names_of(life, RunQueued) == ["kid1", "kid2", "kid3", "kid4"]
    assert {(fact.status, fact.output) for fact in life.told(RunSettled)} == {("completed", "found")}


@pytest.mark.parametrize(("under", "policy"), REJECTING)
@each_seed
def test_S13_whatever_the_order_exactly_four_of_six_are_accepted(seed: int, under: str, policy: dict[str, Any]) -> None:
    life = _six(seed, policy, under, shuffle=True)
    assert sorted(answer.error for answer in life.answers(1)) == [False] * 4 + [True] * 2
    assert [fact.status for fact in life.told(RunSettled)] == ["completed"] * 4
    assert peak(life.events) == 4


@under_each("standard", "resident", "guarded", "roster")
@each_seed
def test_S14_six_spawns_issued_in_parallel_never_exceed_the_cap(seed: int, under: str) -> None:
    life = _six(seed, CAPS_OF_FOUR, under, shuffle=True)
    assert peak(life.events) == 4
    assert [fact.status for fact in life.told(RunSettled)] == ["completed"] * 6
    assert sorted(body_of(answer)["status"] for answer in life.answers(1)) == ["queued"] * 2 + ["running"] * 4


@under_each("standard", "resident", "guarded", "roster")
@each_seed
def test_S14_spawns_from_the_model_and_from_python_at_the_same_time_share_the_cap(seed: int, under: str) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root({"caps.running.root": 2}, under)
        work = await stage.kernel.prompt(root, "go")
        starts = [stage.kernel.supervisor.begin(stage.start(root, f"python{number}")) for number in range(3)]
        await asyncio.wait(starts)
        await work.done.wait()
        await stage.kernel.tree_rests(root)

    life = play(
        script(
            parent("", *(spawn(f"kid{n}") for n in range(3))), parent("done"), AGAIN, child(None, "x", delay_ms=900)
        ),
        scene,
        seed=seed,
    )
    assert peak(life.events) == 2
    assert [fact.status for fact in life.told(RunSettled)] == ["completed"] * 6
