"""Ten thousand runs through one process leave nothing behind, and a thousand children at once stay small."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.many_runs import CHILDREN

RUNS = 10_000
RUNS_WARM = 1_000
GROWTH_MAX_KIB = 4096
"""What 9 000 runs may add to the process (under half a KiB each): the allocator keeps a little of every burst."""
OBJECTS_MAX = 500
AT_ONCE = 1_000
CHILD_MAX_KIB = 60
SECONDS_MAX = 300

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc/self/status")


def _run(what: str, folder: Path, *numbers: int) -> list[dict[str, Any]]:
    """Measure in a process of its own: nothing of the tests weighs in it."""
    command = [sys.executable, "-m", "tests.faults.many_runs", what, str(folder), *(str(number) for number in numbers)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_ten_thousand_runs_leave_memory_handles_tasks_and_threads_as_they_were_after_the_first_thousand(
    tmp_path: Path,
) -> None:
    turns, warm = RUNS // CHILDREN, RUNS_WARM // CHILDREN
    first, *later = _run("many", tmp_path, turns, warm, turns // 2, turns)
    for found in later:
        for name in ("handles", "threads", "tasks", "sessions", "runs", "trees", "works"):
            assert found[name] <= first[name], (name, first, found)
        assert found["objects"] <= first["objects"] + OBJECTS_MAX
        assert found["rss_kib"] <= first["rss_kib"] + GROWTH_MAX_KIB
    assert (first["sessions"], first["runs"], first["works"]) == (0, 0, 0)


def test_a_thousand_children_alive_at_once_take_at_most_60_kib_each(tmp_path: Path) -> None:
    before, during = _run("at_once", tmp_path, AT_ONCE)
    assert during["works"] >= AT_ONCE
    assert (during["rss_kib"] - before["rss_kib"]) / AT_ONCE <= CHILD_MAX_KIB
    assert during["threads"] <= before["threads"] + 8
