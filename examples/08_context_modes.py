"""What a child is told of its parent's conversation: nothing, a background, chosen messages, turns, a summary, all.

python examples/08_context_modes.py
"""

import asyncio

import retinue
from retinue.testing.scripted import ScriptedModel

CONTEXTS = {
    "alone": None,
    "background": "The release is on Friday.",
    "selected": {"mode": "selected", "seqs": [3]},
    "last turn": {"mode": "last_n_turns", "turns": 1},
    "summary": {"mode": "summary", "background": "It is urgent."},
    "fork": {"mode": "fork"},
}
MODEL = ScriptedModel(
    [
        {"agent": "parent", "text": "Three steps: build, test, ship."},
        {"agent": "parent", "text": "Then we ship on Thursday."},
        {"agent": "child", "text": "The plan holds."},
    ]
)


async def main() -> None:
    async with retinue.open(model=MODEL) as runtime:
        root = await runtime.create_session()
        await root.prompt("Plan the release.").result
        await root.prompt("Friday is a holiday.").result

        for name, context in CONTEXTS.items():
            child = await runtime.subagents.start(
                "spawn", parent=root, name=name, prompt="Does the plan hold?", context=context
            )
            async with child:
                settled = await child.result
            print(f"== {name}: {settled.output}")
            for message in MODEL.requests[-1].messages:
                print("\n".join(f"    {line}" for line in message.text.splitlines()))

        # A number that names no message is an error when no other one does.
        try:
            missing = {"mode": "selected", "seqs": [999]}
            await runtime.subagents.start("spawn", parent=root, prompt="Does the plan hold?", context=missing)
        except retinue.RetinueError as refused:
            print(f"refused, {refused.code}: {refused.detail}")


if __name__ == "__main__":
    asyncio.run(main())
