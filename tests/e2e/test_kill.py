"""A real SIGKILL at random moments of a run with six children, then a new start: nothing committed is lost."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from retinue.core.events import (
    LetterAbsorbed,
    LetterQueued,
    RunQueued,
    RunSettled,
    ToolFinished,
    TurnClosed,
    TurnOpened,
)
from retinue.stores.codec import wire
from retinue.stores.sqlite import SQLiteStore, open_reading
from retinue.testing.checkers import all_events, check_all, check_projections
from retinue.testing.modelserver import ModelServer, Setup

CHILDREN = 6
KILLS = 50
KILLS_PER_TEST = 10
SCRIPT: list[dict[str, Any]] = [
    {
        "agent": "parent",
        "n": 1,
        "text": "I ask six children.",
        "tool_calls": [
            {"name": "spawn_agent", "arguments": {"prompt": f"[child] task {number}", "name": f"kid {number}"}}
            for number in range(CHILDREN)
        ],
    },
    {"agent": "child", "n": 1, "tool_calls": [{"name": "list_dir", "arguments": {}}]},
    {"agent": "child", "n": 2, "text": "The answer of a child."},
    *({"agent": "parent", "text": "noted"} for _ in range(30)),
]
COMMAND = (sys.executable, "-m", "retinue")


def environment(server: ModelServer) -> dict[str, str]:
    return {**os.environ, "OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "test-key"}


def start(server: ModelServer, folder: Path, *more: str) -> "subprocess.Popen[str]":
    command = [*COMMAND, "run", *more, "--json", "--data-dir", str(folder / "data"), "--cwd", str(folder)]
    return subprocess.Popen(
        command, env=environment(server), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder
    )


def kill_after(server: ModelServer, folder: Path, lines: int) -> list[dict[str, Any]]:
    """Run, kill it once it printed `lines` events, and return what it printed: each of these was durable."""
    process = start(server, folder, "go", "--model", "openai:any", "--set", "caps.running.root=3")
    assert process.stdout is not None
    seen: list[dict[str, Any]] = []
    for line in process.stdout:
        seen.append(json.loads(line))
        if len(seen) >= lines:
            break
    process.send_signal(signal.SIGKILL)
    rest, _ = process.communicate(timeout=60)
    for line in rest.splitlines():
        try:
            seen.append(json.loads(line))
        except ValueError:
            break
    return seen


def restart(server: ModelServer, folder: Path, session_id: str) -> list[dict[str, Any]]:
    process = start(server, folder, "go on", "--session", session_id)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()]


def read(folder: Path) -> SQLiteStore:
    return open_reading(folder / "data" / "retinue.sqlite3")


@pytest.mark.parametrize("first", range(0, KILLS, KILLS_PER_TEST))
def test_a_kill_at_a_random_moment_loses_no_committed_fact(first: int, tmp_path: Path) -> None:
    cut_off = 0
    for number in range(first, first + KILLS_PER_TEST):
        folder = tmp_path / str(number)
        folder.mkdir()
        with ModelServer(SCRIPT, Setup(first_token_delay_ms=5)) as server:
            lines = random.Random(f"kill {number}").randint(1, 130)
            seen = kill_after(server, folder, lines)
            session_id = seen[0]["session_id"]
            later = restart(server, folder, session_id)
            assert later[0]["type"] == "turn.opened"
            assert later[-1]["type"] == "turn.closed"
            assert later[-1]["status"] == "completed"
            assert server.faults == []
            cut_off += check_record(folder, seen, session_id)
    assert cut_off > 0


def check_record(folder: Path, seen: list[dict[str, Any]], session_id: str) -> int:
    """Hold the record, as another process reads it, against what was printed; return how many runs were cut off."""
    store = read(folder)
    events = all_events(store)
    stored = {event.position: json.loads(wire(event)) for event in events}
    for event in seen:
        assert stored[event["position"]] == event
    assert check_all(events) == []
    assert check_projections(store) == []
    facts = [event.fact for event in events]
    queued = [fact.run_id for fact in facts if isinstance(fact, RunQueued)]
    settled = {fact.run_id: fact for fact in facts if isinstance(fact, RunSettled)}
    assert sorted(settled) == sorted(queued)
    before = {event["run_id"] for event in seen if event["type"] == "run.settled"}
    cut_off = [fact for fact in settled.values() if fact.reason == "restart"]
    assert all(fact.status == "interrupted" and fact.run_id not in before for fact in cut_off)
    told = [str(fact.run_id) for fact in facts if isinstance(fact, LetterAbsorbed)]
    assert sorted(told) == sorted(queued)
    letters = [str(fact.run_id) for fact in facts if isinstance(fact, LetterQueued)]
    assert sorted(letters) == sorted(queued)
    unknown = [fact for fact in facts if isinstance(fact, ToolFinished) and fact.outcome == "unknown"]
    closed = [fact for fact in facts if isinstance(fact, TurnClosed) and fact.run_id is None]
    opened = [fact for fact in facts if isinstance(fact, TurnOpened) and fact.run_id is None]
    assert len(closed) == len(opened)
    assert all("unknown" in fact.text for fact in unknown)
    assert session_id == events[0].session_id
    store.close()
    return len(cut_off)
