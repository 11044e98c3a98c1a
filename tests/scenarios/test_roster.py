"""Scenarios of Foya, under `roster`: limits that change, what is fetched and when, stopped turns, the budget."""

from typing import Any

import pytest

from retinue.core.errors import RetinueError
from retinue.core.events import (
    BudgetExceeded,
    LetterQueued,
    PolicyChanged,
    RunQueued,
    RunSettled,
    RunStarted,
    SessionOpened,
    ToolFinished,
    TurnClosed,
    Usage,
)
from retinue.core.ids import RunId, SessionId
from retinue.core.policy import named, with_changes
from retinue.ports import Finish, ModelRequest, ToolText
from retinue.testing.fakes import hanging_tool, slow_tool
from retinue.testing.faults import StorePlan
from tests.scenarios.stage import (
    AGAIN,
    FunctionModel,
    Life,
    Stage,
    Theatre,
    answers_in,
    body_of,
    call,
    calls,
    child,
    code_of,
    each_seed,
    few_seeds,
    letters_in,
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
)

ROSTER = "roster"
IDLE = parent("nobody asks")


def fetched(life: Life[Any], run_id: RunId) -> int:
    """Return how many answers carried the result of a run."""
    return sum(run_id in fact.carries for fact in life.told(ToolFinished))


async def _started(stage: Stage, count: int) -> None:
    await stage.until(lambda events: len(places(events, RunStarted)) == count)


@each_seed
def test_S4_lowering_a_limit_interrupts_nobody_and_starts_nobody_until_use_has_dropped(seed: int) -> None:
    async def scene(stage: Stage) -> int:
        root = await stage.root({"caps.running.root": 3}, ROSTER)
        kids = [await stage.start(root, f"kid{number}") for number in range(5)]
        await stage.kernel.change_policy(root, {"caps.running.root": 1})
        assert [stage.run(f"kid{n}").status for n in range(5)] == ["running"] * 3 + ["queued"] * 2
        for kid in kids:
            await kid.result
        return place(stage.events(), PolicyChanged)

    lines = [child(f"kid{number}", "found", delay_ms=2_000 * (number + 1)) for number in range(3)]
    life = play(script(*lines, child(None, "found", delay_ms=1_000)), scene, seed=seed)
    assert life.value is not None
    settled = places(life.events, RunSettled)
    later = [position for position in places(life.events, RunStarted) if position > life.value]
    assert settled[0] < settled[1] < settled[2] < later[0] < settled[3] < later[1] < settled[4]
    assert seconds_between(life.events, settled[2], later[0]) == 0
    assert {fact.status for fact in life.told(RunSettled)} == {"completed"}


@each_seed
def test_S4_a_limit_that_is_raised_admits_at_once_in_the_commit_that_raises_it(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root({"caps.running.root": 1}, ROSTER)
        kids = [await stage.start(root, f"kid{number}") for number in range(6)]
        await stage.kernel.change_policy(root, {"caps.running.root": "3"})
        assert [stage.run(f"kid{n}").status for n in range(6)] == ["running"] * 3 + ["queued"] * 3
        for kid in kids:
            await kid.result

    life = play(script(child(None, "found", delay_ms=3_000)), scene, seed=seed)
    raised = place(life.events, PolicyChanged)
    assert [position - raised for position in places(life.events, RunStarted)[1:3]] == [4, 8]
    assert peak(life.events) == 3


def test_S4_a_changed_limit_is_kept_by_the_log_and_holds_in_the_next_life() -> None:
    theatre = Theatre()

    async def first(stage: Stage) -> SessionId:
        root = await stage.root(under=ROSTER)
        await stage.kernel.change_policy(root, {"caps.running.root": 1})
        return root

    root = theatre.live(script(IDLE), first).value
    assert root is not None

    async def second(stage: Stage) -> list[str]:
        for number in range(2):
            await stage.start(root, f"kid{number}")
        return [stage.run(f"kid{number}").status for number in range(2)]

    life = theatre.live(script(child(None, "found", delay_ms=9_000)), second)
    assert life.value == ["running", "queued"]


@pytest.mark.parametrize("seed", range(3))
def test_S5_the_sixty_fifth_child_of_one_prompt_is_refused_at_once_though_all_others_have_finished(seed: int) -> None:
    batch = [spawn(f"kid{number}", mode="await") for number in range(16)]
    life = play_turn(
        *[parent("", *batch)] * 4,
        parent("", spawn("over"), spawn("over2", mode="await")),
        parent("sixty-four it was"),
        child(None, "found", delay_ms=100),
        AGAIN,
        under=ROSTER,
        seed=seed,
    )
    refused = life.answers(5)
    assert [code_of(answer) for answer in refused] == ["cap_created"] * 2
    assert "64 children were created in this root run and caps.created.root_run is 64" in refused[0].text
    assert len(life.told(RunQueued)) == len(life.told(SessionOpened)) - 1 == 64
    assert {fact.status for fact in life.told(RunSettled)} == {"completed"}
    assert peak(life.events) == 4


@pytest.mark.parametrize("value", [1_000, "1000", None, "none", 1])
def test_S6_the_safety_cap_cannot_be_changed_through_settings(value: Any) -> None:
    """Not to a larger number and not to a smaller one, at no door that a person has; choosing a policy sets it."""
    change = {"caps.created.root_run": value}

    async def scene(stage: Stage) -> str:
        root = await stage.root(under=ROSTER)
        with pytest.raises(RetinueError, match="safety cap") as refused:
            await stage.kernel.change_policy(root, change)
        assert stage.kernel.journal.state.policy(root).number("caps.created.root_run") == 64
        return refused.value.code

    life = play(script(IDLE), scene)
    assert life.value == "invalid"
    assert life.told(PolicyChanged) == []
    with pytest.raises(RetinueError, match="safety cap"):
        with_changes(named(ROSTER), change)
    assert [named(name).number("caps.created.root_run") for name in ("guarded", ROSTER)] == [None, 64]


@each_seed
def test_S22_a_turn_without_text_ends_failed_and_not_completed(seed: int) -> None:
    life = play_turn(
        parent("", spawn("mute", mode="await")),
        parent("", call("list_agents")),
        parent(""),
        child("mute", "", reasoning="I have nothing to say"),
        under=ROSTER,
        seed=seed,
    )
    settled = life.settled("mute")
    assert (settled.status, settled.reason, settled.output, settled.partial) == ("failed", "empty_output", None, None)
    answer = life.answers(1)[0]
    assert answer.error
    assert (body_of(answer)["status"], body_of(answer)["reason"]) == ("failed", "empty_output")
    assert [(fact.status, fact.reason) for fact in life.told(TurnClosed)] == [("failed", "empty_output")] * 2


@few_seeds
def test_S22_blank_text_is_no_text_and_an_earlier_message_of_the_turn_is(seed: int) -> None:
    life = play_turn(
        parent("", spawn("blank"), spawn("early")),
        parent("", call("wait_agent")),
        parent("done"),
        AGAIN,
        child("blank", " \n\t "),
        child("early", "I found it", call("slow")),
        child("early", ""),
        under=ROSTER,
        tools=lambda world: [slow_tool(world.clock, 1.0)],
        seed=seed,
    )
    assert (life.settled("blank").status, life.settled("blank").reason) == ("failed", "empty_output")
    assert (life.settled("early").status, life.settled("early").output) == ("completed", "I found it")


@each_seed
def test_S40_waiting_for_any_brings_the_first_result_once_and_the_rest_as_it_is(seed: int) -> None:
    life = play_turn(
        parent("", spawn("slow")),
        parent("", spawn("quick")),
        parent("", call("wait_agent", mode="any", timeout_s=600)),
        parent("", call("wait_agent", ids=["{{run:2}}", "{{run:1}}"], mode="any", timeout_s=600)),
        parent("", call("wait_agent", ids=["{{run:2}}", "{{run:1}}"], timeout_s=600)),
        parent("done"),
        child("slow", "one", delay_ms=60_000),
        child("quick", "two", delay_ms=2_000),
        under=ROSTER,
        seed=seed,
    )
    first, second, third = (body_of(life.answers(number)[0])["items"] for number in (3, 4, 5))
    assert [(row["name"], row["status"]) for row in first] == [("slow", "running"), ("quick", "completed")]
    assert (first[1]["output"], first[1]["result_state"]) == ("two", "collected")
    assert [(row["name"], row["result_state"]) for row in second] == [("quick", "collected"), ("slow", "none")]
    assert "output" not in second[0]  # it went home already
    assert [row.get("output") for row in third] == [None, "one"]
    assert [fetched(life, life.settled(name).run_id) for name in ("slow", "quick")] == [1, 1]
    assert life.told(LetterQueued) == []


@few_seeds
def test_S42_looking_at_a_foreign_result_collects_it_for_nobody(seed: int) -> None:
    leaked: list[str] = []

    async def answer(request: ModelRequest) -> Finish:
        if request.name == "kid":
            return says("mine alone")
        stopped = isinstance(request.messages[-1], ToolText)
        if request.messages[0].text == "steal":
            tools = ("wait_agent", "read_agent_output", "cancel_agent")
            return says("no") if stopped else calls(*(call(tool, id=leaked[0]) for tool in tools), call("list_agents"))
        if request.messages[-1].text == "go":
            return calls(spawn("kid"))
        return calls(call("list_agents")) if not stopped else says("ok")

    async def scene(stage: Stage) -> None:
        owner, thief = await stage.root(under=ROSTER), await stage.root(under=ROSTER)
        await stage.turn(owner)
        await stage.kernel.tree_rests(owner)
        leaked.append(stage.run("kid").run_id)
        await stage.turn(thief, "steal")
        assert stage.run("kid").result_state == "stored"
        await stage.turn(owner, "what came of it?")
        assert stage.run("kid").result_state == "collected"

    life = play(lambda _: FunctionModel(answer), scene, seed=seed)
    stolen = answers_in(next(r for r in life.requests if r.messages[0].text == "steal" and len(r.messages) > 1))
    assert [code_of(one) for one in stolen[:3]] == ["not_found"] * 3
    assert body_of(stolen[3])["items"] == []
    assert body_of(life.answers()[0])["items"][0]["output"] == "mine alone"


@each_seed
def test_S100_cancelling_a_turn_cancels_its_flagged_children_and_returning_from_the_tool_does_not(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root({"caps.running.root": None, "caps.running.process": None}, ROSTER)
        work = await stage.kernel.prompt(root, "go")
        await stage.start(root, "python")
        await stage.start(root, "python flagged", cancel_with_parent=True)
        await _started(stage, 4)
        await stage.world.clock.sleep(8.0)  # the spawning calls have long returned
        assert all(run.is_open for run in map(stage.run, ("flagged", "free", "python", "python flagged")))
        assert await stage.kernel.interrupt(root)
        assert [stage.run(name).reason for name in ("flagged", "python flagged")] == ["parent_cancelled"] * 2
        await stage.kernel.tree_rests(root)
        await work.done.wait()

    lines = (
        parent("", spawn("flagged"), spawn("free", cancel_with_parent=False)),
        parent("", call("hangs")),
        child(None, "found", delay_ms=20_000),
    )
    life = play(script(*lines), scene, tools=lambda _: [hanging_tool()], seed=seed)
    for name in ("free", "python"):
        assert (life.settled(name).status, life.settled(name).output) == ("completed", "found")
    closed = [event.position for event in life.events if isinstance(event.fact, TurnClosed) and not event.fact.run_id]
    ended = [place(life.events, RunSettled, name=name) for name in ("flagged", "python flagged")]
    assert max(ended) < closed[0] < place(life.events, RunSettled, name="free")


@few_seeds
def test_S100_a_turn_that_completes_lets_its_flagged_children_go_on(seed: int) -> None:
    """Detach: the flag acts on every end but completion (CONTRACT section 4, Turn end)."""
    life = play_turn(
        parent("", spawn("flagged", cancel_with_parent=True)),
        parent("I am done"),
        child("flagged", "found", delay_ms=30_000),
        under=ROSTER,
        seed=seed,
    )
    assert life.settled("flagged").output == "found"
    closed = [event.position for event in life.events if isinstance(event.fact, TurnClosed) and not event.fact.run_id]
    assert closed[0] < place(life.events, RunSettled)
    assert life.told(LetterQueued) == []


@each_seed
def test_S101_stopping_a_turn_cancels_queued_and_running_runs_of_its_root_and_of_no_other(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        stopped, other = [await stage.root({"caps.running.root": 2}, ROSTER) for _ in range(2)]
        work = await stage.kernel.prompt(stopped, "go")
        await stage.until(lambda events: len(places(events, RunQueued)) == 4)
        kid = await stage.start(other, "other")
        await stage.kernel.interrupt(stopped)
        assert work.done.is_set()
        assert stage.kernel.scheduler.open_runs(stopped) == []
        assert (await kid.result).status == "completed"

    lines = (
        parent("", *(spawn(f"kid{number}") for number in range(4))),
        parent("", call("hangs")),
        child(None, "found", delay_ms=9_000),
    )
    life = play(script(*lines), scene, tools=lambda _: [hanging_tool()], seed=seed)
    kids = [fact for fact in life.told(RunSettled) if fact.name != "other"]
    assert {(fact.status, fact.reason) for fact in kids} == {("cancelled", "parent_cancelled")}
    assert len(kids) == 4
    assert sum(fact.started_at is None for fact in kids) == 2  # they needed no slot to end
    assert len(life.told(RunStarted)) == 3


USED_TOKENS = 12_000
LIMITED = {"budget.tree_tokens_max": 10_000, "budget.output_tokens_max": 1_000}


def _overspending(stage_of: list[Stage]) -> FunctionModel:
    """A parent of three children whose first one reports far more than it had reserved, and that spawns again."""

    async def answer(request: ModelRequest) -> Finish:
        clock = stage_of[0].world.clock
        if request.name == "big":
            await clock.sleep(2.0)
            used = Usage(input=USED_TOKENS - 500, output=500, total=USED_TOKENS)
            return Finish(reason="stop", text="found a lot", usage=used)
        if request.name != "main":
            await clock.sleep(60.0)
            return says("found")
        if isinstance(request.messages[-1], ToolText) and request.number % 4 == 0:
            return says("that was it")
        plan = [
            [spawn("big"), spawn("one"), spawn("two")],
            [call("wait_agent")],
            [spawn("late"), spawn("later", mode="await")],
        ]
        return calls(*plan[(request.number - 1) % 4])

    return FunctionModel(answer)


@each_seed
def test_S138_a_report_larger_than_its_reservation_ends_the_running_children_and_says_exceeded(seed: int) -> None:
    """The count of a budget belongs to one root run: the next prompt of the same root starts children again."""
    stages: list[Stage] = []

    async def scene(stage: Stage) -> None:
        stages.append(stage)
        root = await stage.root(LIMITED, ROSTER)
        closed = await stage.turn(root)
        assert (closed.status, closed.text) == ("completed", "that was it")
        work = await stage.kernel.prompt(root, "once more")
        await _started(stage, 6)
        await stage.kernel.interrupt(root)
        await work.done.wait()

    life = play(lambda _: _overspending(stages), scene, seed=seed)
    exceeded = life.told(BudgetExceeded)[0]
    assert (exceeded.limit, exceeded.spent) == (10_000, USED_TOKENS)
    first = life.told(RunSettled)[:3]
    ends = {fact.name: (fact.status, fact.reason) for fact in first}
    assert ends == {"big": ("completed", "done"), **dict.fromkeys(("one", "two"), ("cancelled", "budget"))}
    waited = {row["name"]: row["reason"] for row in body_of(life.answers(2)[0])["items"]}
    assert waited == {"big": "done", "one": "budget", "two": "budget"}
    over, ended = place(life.events, BudgetExceeded), places(life.events, RunSettled)[:3]
    assert seconds_between(life.events, over, max(ended)) < 1
    refused = life.answers(3)
    assert [code_of(answer) for answer in refused] == ["budget_exceeded"] * 2
    assert "10000 tokens" in refused[0].text


@each_seed
def test_S140_after_exceeding_a_new_spawn_of_that_tree_is_refused_and_the_event_appears_once(seed: int) -> None:
    """Refused from the model and from Python; a report that comes later adds no second event; others spawn on."""
    stages: list[Stage] = []

    async def scene(stage: Stage) -> None:
        stages.append(stage)
        root, other = await stage.root(LIMITED, ROSTER), await stage.root(LIMITED, ROSTER)
        work = await stage.kernel.prompt(root, "go")
        await stage.until(lambda events: bool(places(events, BudgetExceeded)))
        with pytest.raises(RetinueError, match="budget of 10000 tokens") as refused:
            await stage.start(root, "python")
        assert refused.value.code == "budget_exceeded"
        free = await stage.start(other, "free")
        await work.done.wait()
        assert (await free.result).status == "completed"

    life = play(lambda _: _overspending(stages), scene, seed=seed)
    assert len(life.told(BudgetExceeded)) == 1
    assert {fact.name for fact in life.told(RunQueued)} == {"big", "one", "two", "free"}


@each_seed
def test_a_detached_result_stays_stored_and_is_fetched_in_the_next_turn_even_in_the_next_life(seed: int) -> None:
    theatre = Theatre(seed=seed)

    async def first(stage: Stage) -> SessionId:
        root = await stage.root(under=ROSTER)
        await stage.turn(root)
        assert stage.run("kid").is_open
        await stage.kernel.tree_rests(root)
        assert stage.run("kid").result_state == "stored"
        return root

    lines = (
        parent("", spawn("kid")),
        parent("I do not wait"),
        parent("nobody told me"),
        parent("", call("list_agents")),
        parent("", call("list_agents"), call("wait_agent", id="{{run:1}}")),
        parent("now I know"),
        child("kid", "found", delay_ms=5_000),
    )
    root = theatre.live(script(*lines), first).value
    assert root is not None

    async def second(stage: Stage) -> None:
        closed = await stage.turn(root, "anything?")
        assert (closed.text, letters_in(stage.model.requests[-1])) == ("nobody told me", [])
        await stage.turn(root, "look")

    life = theatre.live(script(*lines), second)
    (row,) = body_of(life.answers(2)[0])["items"]
    assert (row["output"], row["result_state"]) == ("found", "collected")
    listed, waited = (body_of(answer)["items"][0] for answer in life.answers(3))
    assert (listed["output"], listed["result_state"], listed["status"]) == (None, "collected", "completed")
    assert "output" not in waited
    assert fetched(life, life.settled("kid").run_id) == 1
    assert life.told(LetterQueued) == []


@few_seeds
def test_of_two_calls_in_one_message_one_brings_the_result_and_reading_shows_it_again(seed: int) -> None:
    life = play_turn(
        parent("", spawn("kid")),
        parent("", call("wait_agent", timeout_s=60), call("wait_agent", id="{{run:1}}", timeout_s=60)),
        parent("", call("read_agent_output", id="{{run:1}}")),
        parent("done"),
        child("kid", "found", delay_ms=5_000),
        under=ROSTER,
        seed=seed,
    )
    rows = [body_of(answer)["items"][0] for answer in life.answers(2)]
    assert sorted(row.get("output", "") for row in rows) == ["", "found"]
    assert body_of(life.answers(3)[0])["text"] == "found"
    assert fetched(life, life.settled("kid").run_id) == 1


@pytest.mark.parametrize("fault", ["crash_before", "crash_after"])
@few_seeds
def test_wherever_a_crash_falls_a_result_is_fetched_exactly_once_and_never_lost(fault: str, seed: int) -> None:
    lines = (parent("", spawn("kid")), parent("", call("wait_agent", timeout_s=60)), parent("done"))
    kid = child("kid", "found", delay_ms=1_000)

    async def first(stage: Stage) -> None:
        await stage.to_rest(under=ROSTER)

    async def looks(request: ModelRequest) -> Finish:
        return says("ok") if isinstance(request.messages[-1], ToolText) else calls(call("list_agents"))

    async def later(stage: Stage) -> None:
        for row in {event.root_id for event in stage.events()}:
            await stage.turn(row, "look")
            await stage.turn(row, "and again")

    commits = Theatre(seed=seed).live(script(*lines, kid), first).commits
    seen: set[str] = set()
    for number in range(1, commits + 1):
        theatre = Theatre(seed=seed)
        crashed = theatre.live(script(*lines, kid), first, plan=StorePlan(**{fault: number}))
        life = theatre.live(lambda _: FunctionModel(looks), later)
        if not crashed.told(RunQueued):
            continue
        settled = life.settled("kid")
        assert fetched(life, settled.run_id) == 1
        assert settled.status == ("completed" if crashed.told(RunSettled) else "interrupted")
        seen.add(settled.status)
    assert seen == {"completed", "interrupted"}
