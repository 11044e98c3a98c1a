"""One parent, N children, K tool rounds each, against a server that plays the model; prints one JSON line."""

import argparse
import asyncio
import json
import os
import resource
import tempfile
import time

import retinue

UNLIMITED = {
    "caps.running.process": None,
    "caps.running.root": None,
    "caps.created.turn": None,
    "caps.created.root_run": None,
    "step.parallel_tools_max": None,
}


@retinue.tool
async def ping() -> str:
    """Answer at once."""
    return "pong"


async def fan_out(base_url: str, children: int) -> dict[str, float]:
    """Run it and return the figures of this process."""
    os.environ["OPENAI_BASE_URL"] = base_url
    os.environ.setdefault("OPENAI_API_KEY", "none")
    policy = retinue.Policy(changes=dict(UNLIMITED))
    with tempfile.TemporaryDirectory() as folder:
        async with retinue.open(folder, model="openai:load", tools=[ping]) as runtime:
            root = await runtime.create_session(cwd=folder, policy=policy)
            before_cpu, before_wall = time.process_time(), time.perf_counter()
            result = await root.prompt(f"spawn {children}").result
            wall, cpu = time.perf_counter() - before_wall, time.process_time() - before_cpu
            runs = await runtime.runs(root)
    done = sum(run.status == "completed" for run in runs)
    if result.status != "completed":
        raise SystemExit(f"the turn ended {result.status}/{result.reason}: {result.detail}")
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"wall_s": round(wall, 4), "cpu_s": round(cpu, 4), "rss_mib": round(rss, 1), "children": done}


def main() -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--children", type=int, default=100)
    options = parser.parse_args()
    print(json.dumps(asyncio.run(fan_out(options.base_url, options.children))))


if __name__ == "__main__":
    main()
