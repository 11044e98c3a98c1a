"""Prints durable appends a second through the SQLite store, and the start-up time; it judges neither."""

import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from retinue.core.events import Event, Warned
from retinue.core.ids import Position, Seq, SessionId
from retinue.ports import Batch
from retinue.stores.sqlite import SQLiteStore

SECONDS = 2.0
GROUPS = (1, 16, 64)
STARTS = 10


def batch(number: int) -> Batch:
    """Return a batch of one small event, the next of one session."""
    event = Event(
        session_id=SessionId("s_bench"),
        root_id=SessionId("s_bench"),
        seq=Seq(number),
        position=Position(number),
        time="2000-01-01T00:00:00.000Z",
        fact=Warned(code="bench", text="An event about as long as most of them are, give or take a word."),
    )
    return Batch(events=(event,))


def appends_per_second(path: Path, group: int) -> float:
    """Return how many events a second become durable when `group` batches share one sync."""
    store = SQLiteStore(path)
    stored, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < SECONDS:
        store.commit([batch(stored + n) for n in range(1, group + 1)])
        stored += group
    elapsed = time.perf_counter() - begin
    store.close()
    return stored / elapsed


def start_up_ms() -> float:
    """Return the median processor time of `retinue --version`, user and system, in milliseconds."""
    times: list[float] = []
    for _ in range(STARTS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([Path(sys.executable).parent / "retinue", "--version"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return statistics.median(times) * 1000


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for group in GROUPS:
            rate = appends_per_second(Path(folder) / f"{group}.db", group)
            print(f"durable appends, {group:2} to a commit: {rate:8.0f} a second")
    print(f"retinue --version, median of {STARTS}: {start_up_ms():.0f} ms of processor time")


if __name__ == "__main__":
    main()
