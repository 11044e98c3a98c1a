"""Runs the benchmarks against a loopback server in a process of its own and says which aims are met."""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RUNS = 5
CHILDREN = 100
ROUNDS = 2


@contextmanager
def server(*options: str) -> Iterator[str]:
    """Start the model server and yield its base URL."""
    command = [sys.executable, str(HERE / "server.py"), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    if process.stdout is None:
        raise RuntimeError("the server has no output")
    try:
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


def figures(script: str, url: str, *options: str) -> dict[str, Any]:
    """Run a script once and return what it printed."""
    command = [sys.executable, str(HERE / script), "--base-url", url, *options]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def cpu_ms_a_child(script: str, url: str, *options: str) -> float:
    """Return the median CPU a child, of five runs after a warm-up."""
    figures(script, url, *options)
    runs = [figures(script, url, *options)["cpu_s"] for _ in range(RUNS)]
    return statistics.median(runs) * 1000 / CHILDREN


def line(name: str, value: float, aim: float, unit: str, *, at_least: bool = False) -> bool:
    """Print one figure beside its aim and return whether it is met."""
    met = value >= aim if at_least else value <= aim
    print(
        f"{'pass' if met else 'FAIL'}  {name}: {value:.2f} {unit} (aim: {'≥' if at_least else '≤'} {aim:g})", flush=True
    )
    return met


def cpu(results: list[bool]) -> None:
    """Measure the CPU of 100 children with 2 tool rounds, streamed and not, beside the bare client."""
    size = ("--children", str(CHILDREN), "--rounds", str(ROUNDS))
    with server(*size) as url:
        for name, options, aim in (("streamed", ("--stream",), 6.0), ("not streamed", (), 5.0)):
            bare = cpu_ms_a_child("bare.py", url, *size, *options)
            print(f"      bare aiohttp client, {name}: {bare:.2f} ms CPU a child")
            results.append(line(f"CPU a child, {name}", cpu_ms_a_child("fanout.py", url, *size, *options), aim, "ms"))


def width(results: list[bool]) -> None:
    """Let 1 000 children end, and measure what each adds to memory."""
    with server("--children", "1000", "--rounds", "2", "--first-ms", "300") as url:
        many = figures("fanout.py", url, "--children", "1000", "--stream")
    results.append(line("children of 1 000 that ended with a result", many["children"], 1000, "", at_least=True))
    results.append(line("memory added a child", many["rss_added_mib"] * 1024 / 1000, 60, "KiB"))
    print(f"      1 000 children: {many}")


def critical_path(results: list[bool]) -> None:
    """Compare the wall time with what the answers alone take: the parent's twice, a child's three times."""
    with server("--children", str(CHILDREN), "--rounds", str(ROUNDS), "--first-ms", "300", "--gap-ms", "20") as url:
        runs = [figures("fanout.py", url, "--children", str(CHILDREN), "--stream") for _ in range(RUNS)]
    answer_s = 0.3 + 0.02 * 10
    ideal_s = answer_s + (ROUNDS + 1) * answer_s + answer_s
    wall_s = statistics.median(run["wall_s"] for run in runs)
    results.append(line("share of the critical path's ideal", 100 * ideal_s / wall_s, 90, "%", at_least=True))


def main() -> int:
    """Run everything; return 1 when an aim is missed."""
    results: list[bool] = []
    cpu(results)
    width(results)
    critical_path(results)
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
