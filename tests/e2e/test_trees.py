"""Real trees of three levels with four children each, killed or interrupted at random moments, and gone on with."""

import json
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from retinue.core.events import RunQueued, RunSettled, TurnClosed, TurnOpened
from retinue.stores.codec import wire
from retinue.stores.sqlite import open_reading
from retinue.testing.checkers import all_events, all_runs, check_all, check_projections
from tests.e2e.kit import Line, Running, call, retinue, script

RUNS = 20
RUNS_PER_TEST = 5
WHOLE = 4 + 16 + 64
EVENTS = 900
"""About as many as an undisturbed run prints."""
WAYS = (
    ("resident",),
    ("resident", "result.turn_end=hold_open", "life.cancel_with_parent=always", "caps.running.root=1"),
    ("guarded", "caps.max_depth=3"),
    ("resident", "result.turn_end=hold_open", "caps.running.root=3", "life.cancel_with_parent=opt_in"),
    ("guarded", "caps.max_depth=3", "caps.running.process=1"),
)
"""Policies without a cap on how many are created, with some switches: detached and held, pushed and pulled."""


def _lines() -> list[dict[str, Any]]:
    inner = ["t0", "t1", "t2", "t3"]
    inner += [f"{name}{number}" for name in inner for number in range(4)]
    asking = {"parent": "t", **{f"name:{name}": name for name in inner}}
    lines: list[dict[str, Any]] = []
    for agent, stem in asking.items():
        spawns = [call("spawn_agent", prompt="go", name=f"{stem}{number}") for number in range(4)]
        lines.append({"agent": agent, "n": 1, "text": "I ask four.", "tool_calls": spawns})
        lines += [{"agent": agent, "n": number, "text": "noted"} for number in range(2, 30)]
    return [*lines, {"agent": "child", "text": "found", "delay_ms": 2}]


def _stopped(folder: Path, seed: int) -> tuple[list[Line], int]:
    """Start a tree, stop it once it has printed some events, and return those and the exit code."""
    rng = random.Random(f"tree {seed}")
    policy, *switches = WAYS[seed % len(WAYS)]
    flags = [word for switch in switches for word in ("--set", switch)]
    kill = rng.random() < 0.5 if seed >= 2 else bool(seed)
    count = rng.randint(1, EVENTS)
    model = script(folder, *_lines())
    with Running(folder, "run", "go", "--model", model, "--json", "--policy", policy, *flags) as running:
        running.until(lambda line: len(running.seen) >= count or _ends(line, running.seen))
        running.process.send_signal(signal.SIGKILL if kill else signal.SIGINT)
        out, _ = running.process.communicate()
    for text in out.splitlines():
        try:
            running.seen.append(json.loads(text))
        except ValueError:
            break  # a kill cuts the last line
    return running.seen, running.process.returncode


def _ends(line: Line, seen: list[Line]) -> bool:
    return line["type"] == "turn.closed" and line["session_id"] == seen[0]["session_id"]


def _require_honest(folder: Path, seen: list[Line]) -> int:
    """Hold the record, as another process reads it, against what was printed; return how many runs completed."""
    store = open_reading(folder / ".retinue" / "retinue.sqlite3")
    events = all_events(store)
    stored = {event.position: json.loads(wire(event)) for event in events}
    assert all(stored[line["position"]] == line for line in seen)
    assert check_all(events) == []
    assert check_projections(store) == []
    facts = [event.fact for event in events]
    queued = Counter(fact.run_id for fact in facts if isinstance(fact, RunQueued))
    assert Counter(fact.run_id for fact in facts if isinstance(fact, RunSettled)) == queued
    assert set(queued.values()) <= {1}
    opened = Counter(event.session_id for event in events if isinstance(event.fact, TurnOpened))
    assert Counter(event.session_id for event in events if isinstance(event.fact, TurnClosed)) == opened
    runs = all_runs(store)
    assert [run.run_id for run in runs if run.is_open] == []
    store.close()
    return sum(run.status == "completed" for run in runs)


def test_a_real_tree_that_nobody_stops_is_whole(tmp_path: Path) -> None:
    model = script(tmp_path, *_lines())
    ran = retinue(tmp_path, "run", "go", "--model", model, "--json", "--policy", "guarded", "--set", "caps.max_depth=3")
    assert ran.code == 0, ran.err
    assert _require_honest(tmp_path, ran.lines()) == WHOLE


@pytest.mark.parametrize("first", range(0, RUNS, RUNS_PER_TEST))
def test_real_trees_killed_or_interrupted_at_any_event_lose_and_double_nothing(first: int, tmp_path: Path) -> None:
    cut_off = 0
    for seed in range(first, first + RUNS_PER_TEST):
        folder = tmp_path / str(seed)
        folder.mkdir()
        seen, code = _stopped(folder, seed)
        assert code in (-signal.SIGKILL, 0, 3), seed
        if code != -signal.SIGKILL:
            _require_honest(folder, seen)
        later = retinue(folder, "run", "go on", "--json", "--continue")
        assert later.code == 0, later.err
        assert later.lines()[0]["type"] == "turn.opened"
        cut_off += WHOLE - _require_honest(folder, [*seen, *later.lines()])
    assert cut_off > WHOLE  # else the signals came too late to show anything
