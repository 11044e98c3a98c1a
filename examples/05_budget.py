"""A budget for one prompt and all it causes: each request reserves before it is sent, so the limit is not overshot.

python examples/05_budget.py
"""

import asyncio

import retinue
from retinue.testing.scripted import ScriptedModel

LIMIT = 8000
COST = {"input": 1100, "output": 200}
SPAWNS = [{"name": "spawn_agent", "arguments": {"name": f"part {n}", "prompt": f"Read part {n}."}} for n in range(1, 9)]
SCRIPT = [
    {"agent": "parent", "tool_calls": SPAWNS},
    {"agent": "parent", "tool_calls": [{"name": "wait_agent", "arguments": {"timeout_s": 60}}]},
    {"agent": "parent", "text": "That is all that the budget allowed."},
    {"agent": "child", "text": "Read.", "usage": COST, "delay_ms": 10},
]
SWITCHES = {
    "budget.tree_tokens_max": LIMIT,
    "budget.output_tokens_max": 300,
    "budget.on_exceed": "cancel",  # or refuse_new, or warn
    "budget.include_root": False,  # the children's requests count; the parent may still say how far they came
}


async def main() -> None:
    async with retinue.open(model=ScriptedModel(SCRIPT)) as runtime:
        root = await runtime.create_session(set=SWITCHES)
        turn = root.prompt("Read all eight parts.")
        events = [event.to_dict() async for event in turn]
        result = await turn.result
        runs = await runtime.runs(root)

    for run in runs:
        print(f"{run.name}: {run.status}/{run.reason}, {run.usage.total} tokens")
    spent = sum(run.usage.total for run in runs)
    reserved = max(event["reserved"] or 0 for event in events if event["type"] == "step.opened")
    (exceeded,) = (event for event in events if event["type"] == "budget.exceeded")
    print(f"\nSpent {spent} of {LIMIT}. Each request reserved up to {reserved} tokens before it was sent;")
    print(
        f"when that did not fit any more, with {exceeded['spent']} spent, one event said so and the rest was cancelled."
    )
    print(f"parent: {result.status}: {result.text}")


if __name__ == "__main__":
    asyncio.run(main())
