"""Several children at once, started from Python: each reviews one part, two at a time, and one of them fails.

python examples/02_parallel_review.py
"""

import asyncio

import retinue
from retinue.testing.scripted import ScriptedModel

PARTS = ("storage", "network", "command line", "documentation")
ANSWERS = [
    {"agent": "name:storage", "text": "Commits are atomic. Nothing to fix.", "delay_ms": 40},
    {"agent": "name:network", "error": "the provider went away", "delay_ms": 20},
    {"agent": "name:command line", "text": "Two flags have no help text.", "delay_ms": 10},
    {"agent": "name:documentation", "text": "One link leads nowhere.", "delay_ms": 10},
]


async def review(runtime: retinue.Runtime, root: retinue.Session, part: str) -> retinue.Run:
    # Published when `start` returns. A full cap queues the child (`caps.on_full`); its clock starts with its slot.
    child = await runtime.subagents.start("spawn", parent=root, name=part, prompt=f"Review the {part}.", timeout_s=60)
    async with child:  # releases it, and would cancel it if we left early
        return await child.result  # a child's own failure is a settlement with a reason, never an exception


async def main() -> None:
    async with retinue.open(model=ScriptedModel(ANSWERS)) as runtime:
        root = await runtime.create_session(set={"caps.running.root": 2})
        reviews = await asyncio.gather(*(review(runtime, root, part) for part in PARTS))

    for run in reviews:
        said = run.output if run.status == "completed" else f"({run.reason}) {run.detail}"
        print(f"{run.name:14} {run.status:10} {said}")

    stays = [(run.started_at or "", run.ended_at or "") for run in reviews]
    at_once = max(sum(begun <= start < ended for begun, ended in stays) for start, _ in stays)
    failed = sum(run.status == "failed" for run in reviews)
    print(f"\n{len(reviews)} reviews, never more than {at_once} at once, {failed} failed.")


if __name__ == "__main__":
    asyncio.run(main())
