"""What belongs to one root run when nobody's turn is open: calls from Python are connected until the next prompt."""

from typing import Any

from retinue.core.events import RunQueued
from retinue.core.ids import SessionId
from tests.scenarios.stage import AGAIN, Stage, child, parent, play, refusal, script

ANSWER = child(None, "done", usage={"input": 900, "output": 100})


async def _ended(stage: Stage, root: SessionId) -> str:
    return (await (await stage.start(root)).result).status


def test_children_that_python_starts_one_after_another_share_one_budget_until_the_next_prompt() -> None:
    switches: dict[str, Any] = {"budget.tree_tokens_max": 3000, "budget.output_tokens_max": 300}

    async def scene(stage: Stage) -> tuple[list[str], str, str]:
        root = await stage.root(switches)
        ended = [await _ended(stage, root) for _ in range(3)]
        refused = (await refusal(stage.start(root))).code
        await stage.turn(root)
        return ended, refused, await _ended(stage, root)

    life = play(script(ANSWER, AGAIN, parent("hello")), scene)
    assert life.value == (["completed"] * 3, "budget_exceeded", "completed")
    root_runs = [fact.root_run_id for fact in life.told(RunQueued)]
    assert len(set(root_runs[:3])) == 1
    assert root_runs[3] != root_runs[0]


def test_the_cap_of_a_root_run_counts_what_python_starts_without_a_turn() -> None:
    async def scene(stage: Stage) -> tuple[list[str], str]:
        root = await stage.root({"caps.created.root_run": 2})
        ended = [await _ended(stage, root) for _ in range(2)]
        return ended, (await refusal(stage.start(root))).code

    assert play(script(ANSWER, AGAIN), scene).value == (["completed"] * 2, "cap_created")
