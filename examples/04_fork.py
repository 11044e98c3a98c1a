"""Two children of one conversation: `fork` begins with the parent's completed turns, `spawn` with nothing.

python examples/04_fork.py
"""

import asyncio

import retinue
from retinue.testing.scripted import ScriptedModel

QUESTION = "What is the code word?"
MODEL = ScriptedModel(
    [
        {"agent": "parent", "text": "Noted: the code word is heron."},
        {"agent": "name:forked", "text": "It is heron."},
        {"agent": "name:fresh", "text": "Nobody told me one."},
    ]
)


async def ask(runtime: retinue.Runtime, root: retinue.Session, provider: str, name: str) -> None:
    child = await runtime.subagents.start(provider, parent=root, name=name, prompt=QUESTION)
    async with child:
        settled = await child.result
    (request,) = (request for request in MODEL.requests if request.name == name)
    print(f"{name} ({provider}, depth {settled.depth}): {settled.output}")
    for message in request.messages:
        print(f"    it was sent: {message.text}")


async def main() -> None:
    async with retinue.open(model=MODEL) as runtime:
        root = await runtime.create_session()
        await root.prompt("The code word is heron. Remember it.").result
        await ask(runtime, root, "fork", "forked")
        await ask(runtime, root, "spawn", "fresh")

        # Both children have depth 1, and a cap of 0 refuses the first one.
        try:
            await runtime.subagents.start("fork", parent=root, prompt=QUESTION, max_depth=0)
        except retinue.RetinueError as refused:
            print(f"\nrefused, {refused.code}: {refused.detail}")


if __name__ == "__main__":
    asyncio.run(main())
