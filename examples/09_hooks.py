"""Hooks: one guards what children may be asked, one keeps a turn from ending too early, one only keeps the books.

python examples/09_hooks.py
"""

import asyncio
from collections import Counter
from typing import Any

import retinue
from retinue.testing.scripted import ScriptedModel

BOOKS: Counter[str] = Counter()


@retinue.hook("agent.subagent.spawn.before")
async def no_deletions(event: retinue.HookEvent) -> retinue.Deny | None:
    if "delete" in event.data["prompt"].lower():
        return retinue.Deny(reason="Children of this project delete nothing.")
    return None


@retinue.hook("agent.turn.stop", timeout_s=5)
async def names_a_file(event: retinue.HookEvent) -> retinue.Deny | None:
    if event.depth == 0 and ".md" not in event.data["text"]:
        return retinue.Deny(reason="Name the file that you mean.")
    return None


@retinue.hook("agent.subagent.spawn.after", "agent.subagent.complete", "agent.tool.after", "agent.turn.closed")
def keep_books(event: retinue.HookEvent) -> None:  # it only observes: a slow one delays nobody
    BOOKS[event.point] += 1


def spawn(name: str, prompt: str) -> dict[str, Any]:
    return {"name": "spawn_agent", "arguments": {"name": name, "prompt": prompt, "mode": "await"}}


SCRIPT = [
    {"agent": "parent", "tool_calls": [spawn("tidy", "Delete all notes."), spawn("read", "Read the notes.")]},
    {"agent": "parent", "text": "The notes are out of date."},
    {"agent": "parent", "text": "notes.md is out of date."},
    {"agent": "child", "text": "They are of last year."},
]


async def main() -> None:
    model = ScriptedModel(SCRIPT)
    async with retinue.open(model=model, hooks=[no_deletions, names_a_file, keep_books]) as runtime:
        root = await runtime.create_session()
        result = await root.prompt("Have the notes looked after.").result
        print("children:", ", ".join(run.name for run in await runtime.runs(root)))
        print("refused:", next(m.text for m in model.requests[-1].messages if "delete nothing" in m.text))
        print("sent on:", model.requests[-1].messages[-1].text)
        print("answer:", result.text)
    print("books:", ", ".join(f"{BOOKS[point]} {point}" for point in sorted(BOOKS)))


if __name__ == "__main__":
    asyncio.run(main())
