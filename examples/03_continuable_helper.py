"""A helper that is continued: it answers, the process ends, and a new process sends it a further instruction.

python examples/03_continuable_helper.py
"""

import asyncio

import retinue
from retinue.testing.scripted import ScriptedModel

ASK = {"name": "helper", "prompt": "Read the plan and remember its open points."}  # continuable by default
SCRIPT = [
    {"agent": "parent", "tool_calls": [{"name": "spawn_agent", "arguments": ASK}]},
    {"agent": "parent", "tool_calls": [{"name": "wait_agent", "arguments": {}}]},
    {"agent": "parent", "text": "The helper knows the plan: three points are open."},
    {"agent": "parent", "tool_calls": [{"name": "wait_agent", "arguments": {}}]},
    {"agent": "parent", "text": "It says: the store comes first."},
    {"agent": "name:helper", "text": "Three points are open: store, network, texts.", "delay_ms": 20},
    {"agent": "name:helper", "text": "The store, because the other two need it.", "delay_ms": 20},
]
# A letter that finds the parent idle would start a turn of it; here it waits for the next prompt.
SWITCHES = {"result.idle_parent": "store"}


async def first_life() -> tuple[str, str]:
    async with retinue.open(model=ScriptedModel(SCRIPT)) as runtime:
        root = await runtime.create_session(set=SWITCHES)
        result = await root.prompt("Have a helper read the plan.").result
        print(f"parent: {result.text}")
        (run,) = await runtime.runs(root)
        print(f"helper: {run.output}")
        return root.session_id, run.session_id


async def second_life(root_id: str, helper_id: str) -> None:
    model = ScriptedModel(SCRIPT)  # it goes on where the record of each session ends
    async with retinue.open(model=model) as runtime:
        root = await runtime.session(root_id)
        run = await runtime.subagents.followup(root, helper_id, "Which of them comes first?")
        print(f"\nA new process. Run {run.run_id} of the same session is {run.status}.")

        result = await root.prompt("What does it say?").result
        print(f"helper: {(await runtime.run(run.run_id)).output}")
        print(f"parent: {result.text}")

        held = next(request for request in reversed(model.requests) if request.name == "helper")
        print(f"\nThe helper's request held {len(held.messages)} messages, beginning with: {held.messages[0].text}")


if __name__ == "__main__":
    asyncio.run(second_life(*asyncio.run(first_life())))
