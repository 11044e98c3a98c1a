"""Roles in files: what a Markdown file says is what the child is, and it stays that when the file is edited.

python examples/07_roles_in_files.py
"""

import asyncio
from pathlib import Path

import retinue
from retinue.testing.scripted import ScriptedModel

ROLE = """---
name: critic
description: Finds what is missing in a text.
tools: Read, Grep
max_steps: 5
---
You find what is missing. You praise nothing.
"""
MODEL = ScriptedModel(
    [
        {"agent": "name:critic", "text": "The plan names no date."},
        {"agent": "name:critic", "text": "It still names none."},
    ]
)


def write(text: str) -> None:
    folder = Path(".agents/agents")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "critic.md").write_text(text, encoding="utf-8")


def show(request: retinue.ModelRequest, run: retinue.Run) -> None:
    middle = next(line for line in request.system.splitlines() if line.startswith("You find"))
    print(f"{run.agent}: {run.status}/{run.reason}: {run.output}")
    print(f"    told: {middle}")
    print(f"    tools: {', '.join(tool.name for tool in request.tools)}")


async def main() -> None:
    write(ROLE)
    async with retinue.open(model=MODEL) as runtime:
        root = await runtime.create_session(set={"result.idle_parent": "store"})  # nobody reads the results here
        kid = await runtime.subagents.start_continuable("spawn", parent=root, agent="critic", prompt="Read the plan.")
        await runtime.rests(root)
        show(MODEL.requests[-1], await runtime.run(kid.run_id))

        # The role was frozen when the child was asked for; whoever is asked for from now on has the new one.
        write(ROLE.replace("You praise nothing.", "You are kind."))
        again = await runtime.subagents.followup(root, kid.session_id, "And now?")
        await runtime.rests(root)
        show(MODEL.requests[-1], await runtime.run(again.run_id))


if __name__ == "__main__":
    asyncio.run(main())
