"""One parent, N children, K tool rounds each, against a server that plays the model; prints one JSON line.

`cpu_s` and `wall_s` are those of the turn, of this process alone; `rss_mib` is its peak; `peak` is how many children
worked at once.
"""

import argparse
import asyncio
import json
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

import retinue
from retinue.core.events import RunSettled, RunStarted
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.checkers import all_events

UNLIMITED = {
    "caps.running.process": None,
    "caps.running.root": None,
    "caps.created.turn": None,
    "caps.created.root_run": None,
    "step.parallel_tools_max": None,
}


class InMemory(retinue.Runtime):
    """A runtime whose record is not written to disk."""

    def open_store(self, folder: Path) -> SQLiteStore:  # noqa: ARG002 - the method it replaces takes one
        """Return a store in memory."""
        return SQLiteStore(":memory:")


@retinue.tool
async def ping() -> str:
    """Answer at once."""
    return "pong"


def runtime_for(options: argparse.Namespace, folder: str) -> retinue.Runtime:
    """Return the runtime that the options ask for."""
    connection = {"kind": "openai", "base_url": options.base_url, "stream": options.stream}
    settings = retinue.read_settings(folder, model="load:any")
    settings = msgspec.structs.replace(settings, connections={"load": connection})
    kind = InMemory if options.no_persist else retinue.Runtime
    return kind(settings, [ping])


async def fan_out(options: argparse.Namespace) -> dict[str, Any]:
    """Run it and return the figures of this process."""
    policy = retinue.Policy(changes=dict(UNLIMITED))
    with tempfile.TemporaryDirectory() as folder:
        async with runtime_for(options, folder) as runtime:
            root = await runtime.create_session(cwd=folder, policy=policy)
            rss_before = rss_mib()
            cpu, wall = time.process_time(), time.perf_counter()
            result = await root.prompt(f"spawn {options.children}, {options.rounds} rounds each").result
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            runs = await runtime.runs(root)
            peak = working_at_once(runtime)
    if result.status != "completed":
        raise SystemExit(f"the turn ended {result.status}/{result.reason}: {result.detail}")
    done = sum(run.status == "completed" for run in runs)
    figures = {"wall_s": wall, "cpu_s": cpu, "rss_mib": rss, "rss_added_mib": rss - rss_before}
    return {**{name: round(value, 4) for name, value in figures.items()}, "children": done, "peak": peak}


def rss_mib() -> float:
    """Return the resident memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024 / 1024


def working_at_once(runtime: retinue.Runtime) -> int:
    """Return the most children that had a slot at the same time, from the record."""
    working = most = 0
    for event in all_events(runtime.kernel.parts.store):
        working += isinstance(event.fact, RunStarted)
        working -= isinstance(event.fact, RunSettled)
        most = max(most, working)
    return most


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--children", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2, help="said to the server, which decides")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--no-persist", action="store_true")
    print(json.dumps(asyncio.run(fan_out(parser.parse_args()))))


if __name__ == "__main__":
    main()
