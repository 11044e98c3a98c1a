"""Hooks that are asked whether a turn may end (B121): they can make it go on, a few times in a row."""

from typing import Any

import pytest

from retinue.core.events import (
    MessageUser,
    RunSettled,
    TurnClosed,
    TurnOpened,
    Warned,
)
from retinue.ports import Deny, HookEvent
from retinue.runtime.hooks import DENIALS_MAX
from retinue.testing.fakes import FakeTool, echo_tool
from tests.scenarios.hookstage import (
    Heard,
    failures,
    root_ends,
    with_hooks,
)
from tests.scenarios.stage import (
    AGAIN,
    Life,
    Stage,
    child,
    each_seed,
    parent,
    places,
    play,
    play_turn,
    script,
    spawn,
)

SPAWN = "agent.subagent.spawn.before"
TOOL = "agent.tool.before"
TURN = "agent.turn.before"
STOP = "agent.turn.stop"
NO = Deny(reason="not today")


def echo(_: Any) -> list[FakeTool]:
    return [echo_tool()]


def stops(life: Life[Any]) -> list[str]:
    return [fact.text for fact in life.told(MessageUser) if fact.source == "context"]


@each_seed
def test_B121_a_stop_hook_that_denies_twice_makes_two_more_steps_and_the_real_answer_is_the_result(seed: int) -> None:
    heard = Heard()
    says: list[Deny | None] = [Deny(reason="test it"), Deny(reason="and the docs"), None]
    life = play_turn(
        parent("first"),
        parent("second"),
        parent("third"),
        parts=with_hooks(heard.hook(STOP, says=lambda _: says.pop(0))),
        seed=seed,
    )
    (end,) = root_ends(life)
    assert (end.status, end.text) == ("completed", "third")
    assert len(life.requests) == 3
    assert [text.rpartition(": ")[2] for text in stops(life)] == ["test it", "and the docs"]
    assert life.requests[1].messages[-1].text == stops(life)[0]
    assert [event.data for event in heard.at(STOP)] == [
        {"turn": 1, "text": text, "denials": n} for n, text in enumerate(("first", "second", "third"))
    ]
    assert life.told(Warned) == []


@each_seed
@pytest.mark.parametrize("in_child", [False, True])
def test_B121_a_stop_hook_that_always_denies_is_believed_three_times_in_a_row(seed: int, *, in_child: bool) -> None:
    heard = Heard()
    depth = int(in_child)
    life = play_turn(
        parent("", spawn("kid", mode="await")),
        parent("at last"),
        AGAIN,
        child("kid", "still here"),
        AGAIN,
        parts=with_hooks(heard.hook(STOP, says=lambda event: NO if event.depth == depth else None)),
        seed=seed,
    )
    assert len([event for event in heard.at(STOP) if event.depth == depth]) == DENIALS_MAX == 3
    assert len(stops(life)) == 3
    (warned,) = life.told(Warned)
    assert warned.code == "stop_hooks"
    assert "3 times in a row" in warned.text
    assert [fact.status for fact in life.told(TurnClosed)] == ["completed", "completed"]
    assert life.settled("kid").output == "still here"


@pytest.mark.parametrize("note", ["keep it up", {"systemMessage": "well done"}, True])
def test_B121_a_note_without_a_decision_makes_no_further_step(note: object) -> None:
    heard = Heard()
    life = play_turn(parent("the real answer"), AGAIN, parts=with_hooks(heard.hook(STOP, says=note)))
    assert (len(life.requests), len(heard.at(STOP)), stops(life)) == (1, 1, [])
    assert root_ends(life)[0].text == "the real answer"
    (failed,) = failures(life)
    assert (failed.hook, failed.code) == ("guard", "unreadable")
    assert failed.detail.endswith("The turn may end.")


@pytest.mark.parametrize("meaning", ["deny", "allow"])
def test_B121_a_stop_hook_that_fails_lets_the_turn_end_whatever_the_policy_says(meaning: str) -> None:
    def broken(_: HookEvent) -> None:
        raise ValueError("oh no")

    life = play_turn(
        parent("the answer"),
        AGAIN,
        policy={"hooks.on_failure": meaning},
        parts=with_hooks(Heard().hook(STOP, says=broken)),
    )
    assert (len(life.requests), root_ends(life)[0].text) == (1, "the answer")
    assert [fact.code for fact in failures(life)] == ["error"]


def test_B121_after_a_yes_a_turn_that_goes_on_for_another_reason_counts_from_zero() -> None:
    heard = Heard()
    says: list[Deny | None] = [NO, NO, None, NO, NO, NO, None]

    async def scene(stage: Stage) -> TurnClosed:
        root = await stage.root()

        async def steered(event: HookEvent) -> Deny | None:
            answer = says.pop(0)
            if answer is None and len(says) > 3:
                await stage.kernel.steer(root, "one more thing")
            return answer

        bodies.append(steered)
        return await stage.turn(root)

    bodies: list[Any] = []
    hooks = with_hooks(heard.hook(STOP, says=lambda event: bodies[0](event)))
    life = play(script(parent("here"), AGAIN), scene, parts=hooks)
    assert [event.data["denials"] for event in heard.at(STOP)] == [0, 1, 2, 0, 1, 2]
    assert len(life.told(Warned)) == 1
    assert root_ends(life)[0].status == "completed"


@pytest.mark.parametrize("steps", [1, 2])
def test_a_turn_that_has_used_its_steps_is_not_asked_to_go_on(steps: int) -> None:
    heard = Heard()

    async def scene(stage: Stage) -> str | None:
        root = await stage.root()
        return (await (await stage.start(root, max_steps=steps)).result).output

    hooks = with_hooks(heard.hook(STOP, says=NO))
    life = play(script(child(None, "one"), child(None, "two"), AGAIN), scene, parts=hooks)
    assert (len(heard.at(STOP)), len(life.requests)) == (steps - 1, steps)
    assert life.value == ("one", "two")[steps - 1]
    assert life.told(RunSettled)[0].status == "completed"


@each_seed
@pytest.mark.parametrize("turn_end", ["hold_open", "detach", "cancel"])
def test_with_open_children_a_stop_hook_is_asked_when_the_turn_could_end(seed: int, turn_end: str) -> None:
    heard = Heard()
    life = play_turn(
        parent("", spawn("kid")),
        parent("waiting"),
        parent("done"),
        AGAIN,
        child("kid", "found", delay_ms=5000),
        policy={"result.turn_end": turn_end, "result.idle_parent": "store"},
        parts=with_hooks(heard.hook(STOP)),
        seed=seed,
    )
    (asked,) = [event for event in heard.at(STOP) if event.depth == 0]
    assert asked.data["text"] == ("done" if turn_end == "hold_open" else "waiting")
    (end,) = root_ends(life)
    assert (end.status, end.text) == ("completed", asked.data["text"])
    if turn_end == "hold_open":  # only once nothing was owed any more
        assert heard.points().index(STOP) >= 0
        assert end.detail == "Done."


@each_seed
def test_a_denial_in_a_hold_is_answered_before_the_children_are_awaited_again(seed: int) -> None:
    says: list[Deny | None] = [Deny(reason="check it"), None]
    life = play_turn(
        parent("", spawn("kid")),
        parent("waiting"),
        parent("integrated"),
        parent("checked"),
        child("kid", "found", delay_ms=2000),
        parts=with_hooks(Heard().hook(STOP, says=lambda event: None if event.depth else says.pop(0))),
        seed=seed,
    )
    assert root_ends(life)[0].text == "checked"
    assert [message.text for message in life.asked()[-1].messages][-1].endswith("check it")


def test_a_stop_hook_is_asked_before_the_schema_of_a_result_is_looked_at() -> None:
    schema = {"type": "object", "required": ["n"]}
    heard = Heard()
    says: list[Deny | None] = [Deny(reason="answer in JSON"), None]

    async def scene(stage: Stage) -> None:
        root = await stage.root()
        await (await stage.start(root, output_schema=schema)).result

    hooks = with_hooks(heard.hook(STOP, says=lambda _: says.pop(0)))
    life = play(script(child(None, "no JSON"), child(None, '{"n": 1}')), scene, parts=hooks)
    assert [event.data["text"] for event in heard.at(STOP)] == ["no JSON", '{"n": 1}']
    settled = life.told(RunSettled)[0]
    assert (settled.status, settled.output) == ("completed", '{"n": 1}')


@pytest.mark.parametrize("how", ["error", "refusal", "interrupt"])
def test_a_turn_that_does_not_end_by_itself_is_not_asked_to_go_on(how: str) -> None:
    heard = Heard()
    line = parent("", error="broken") if how == "error" else parent("no", finish="refusal")
    line = parent("slow", delay_ms=60_000) if how == "interrupt" else line

    async def scene(stage: Stage) -> None:
        root = await stage.root()
        work = await stage.kernel.prompt(root, "go")
        if how == "interrupt":
            await stage.until(lambda events: bool(places(events, TurnOpened)))
            await stage.kernel.interrupt(root)
        await work.done.wait()

    life = play(script(line), scene, parts=with_hooks(heard.hook(STOP, says=NO)))
    assert heard.at(STOP) == []
    assert root_ends(life)[0].status != "completed"
