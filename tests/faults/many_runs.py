"""A process that runs thousands of runs, or holds many children at once, and prints what it has grown by; no test."""

import asyncio
import gc
import json
import os
import sys
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from retinue.ports import Delta, Finish, FinishCall, ModelRequest, Usage, UserText
from retinue.runtime.handles import Session
from retinue.runtime.kernel import Kernel
from tests.faults.kit import life, root_in

CHILDREN = 20
POLICY = {
    "caps__created__turn": None,
    "caps__created__root_run": None,
    "caps__running__root": None,
    "caps__running__process": None,
    "step__parallel_tools_max": None,
}


class Delegator:
    """A model that spawns children in its first step, lets each call a tool once, and answers."""

    def __init__(self, children: int) -> None:
        self.children = children
        self.gate: asyncio.Event | None = None
        """Where set, children wait here before they answer."""
        self.full = asyncio.Event()
        """Set once as many children wait there."""
        self._waiting = 0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Finish]:
        usage = Usage(input=10, output=5, total=15)
        if request.root and isinstance(request.messages[-1], UserText) and len(request.messages) == 1:
            spawn = [
                _call("spawn_agent", prompt=f"task {n}", name=f"kid{n}", mode="await") for n in range(self.children)
            ]
            yield Finish(reason="tool_calls", tool_calls=tuple(spawn), usage=usage)
            return
        if not request.root and len(request.messages) == 1 and self.gate is None:
            yield Finish(reason="tool_calls", tool_calls=(_call("list_agents"),), usage=usage)
            return
        if not request.root and self.gate is not None:
            self._waiting += 1
            if self._waiting == self.children:
                self.full.set()
            await self.gate.wait()
        yield Delta(kind="text", text="the answer of one")
        yield Finish(reason="stop", text="the answer of one", usage=usage)

    async def aclose(self) -> None:
        """Hold nothing."""


def _call(tool: str, /, **arguments: Any) -> FinishCall:
    return FinishCall(name=tool, arguments=json.dumps(arguments))


def measure(kernel: Kernel) -> dict[str, int]:
    """Return what a process that runs for days must not gather."""
    gc.collect()
    state = kernel.journal.state
    return {
        "rss_kib": _status("RssAnon:"),
        "handles": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "tasks": len(asyncio.all_tasks()),
        "objects": len(gc.get_objects()),
        "sessions": len(state.sessions),
        "runs": len(state.runs),
        "trees": len(state.trees),
        "works": len(kernel.supervisor.works),
    }


def _status(key: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1])


async def many(folder: Path, turns: int, marks: list[int]) -> list[dict[str, int]]:
    """Run turns of `CHILDREN` children each, every one in a session of its own; measure after the marked ones."""
    found: list[dict[str, int]] = []
    async with life(folder, Delegator(CHILDREN)) as kernel:
        for number in range(1, turns + 1):
            result = await Session(kernel, await root_in(kernel, folder, **POLICY)).prompt("go").result
            if (result.status, result.text) != ("completed", "the answer of one"):
                raise AssertionError(result)
            if number in marks:
                found.append({"turn": number, **measure(kernel)})
    return found


async def at_once(folder: Path, children: int) -> list[dict[str, int]]:
    """Measure with no child and with all children waiting for their model, then let them end."""
    async with life(folder, model := Delegator(10)) as kernel:
        await Session(kernel, await root_in(kernel, folder, **POLICY)).prompt("warm up").result
        model.children, model.gate = children, asyncio.Event()
        root = await root_in(kernel, folder, **POLICY)
        before = measure(kernel)
        turn = Session(kernel, root).prompt("go")
        await model.full.wait()
        found = [before, measure(kernel)]
        model.gate.set()
        result = await turn.result
        if result.status != "completed":
            raise AssertionError(result)
    return found


if __name__ == "__main__":
    what, place, number = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    work = many(place, number, [int(mark) for mark in sys.argv[4:]]) if what == "many" else at_once(place, number)
    print(json.dumps(asyncio.run(work)))
