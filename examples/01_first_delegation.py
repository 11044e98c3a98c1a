"""One prompt, delegated: a parent sends explorers over a folder and integrates what they find. Needs no key.

python examples/01_first_delegation.py [FOLDER]
"""

import asyncio
import sys

import retinue


async def main(folder: str) -> None:
    # "offline" follows fixed rules and really delegates; name "openai:NAME" here to use a model of your own.
    async with retinue.open(model="offline") as runtime:
        root = await runtime.create_session(cwd=folder)
        turn = root.prompt("What lies in this folder?")

        # The events of the whole tree, as they are stored: the root's own and those of its children.
        async for event in turn:
            match event.to_dict():
                case {"type": "run.started", "name": name, "child_id": child_id}:
                    print(f"+ {name} works as {child_id}")
                case {"type": "run.settled", "name": name, "status": status, "reason": reason, "steps": steps}:
                    print(f"- {name}: {status}/{reason} after {steps} steps")

        result = await turn.result
        print(f"\n{result.text or result.detail}")

        # The record stays: every child has its own session, every run its one settlement.
        runs = await runtime.runs(root)
        print(f"{len(runs)} runs on record; 'retinue tree {root.session_id}' shows them.")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "."))
