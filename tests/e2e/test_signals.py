"""Signals and readers that leave: how the command ends, and that every ending is on record."""

import signal
from pathlib import Path

import pytest

from tests.e2e.kit import Running, call, of_type, retinue, script

HOUR_MS = 3_600_000
SHUTDOWN_MAX_S = 5.0
BUSY = (
    {"agent": "parent", "text": "I ask one.", "tool_calls": [call("spawn_agent", prompt="take long", name="slow")]},
    *({"agent": "parent", "n": n, "text": f"answer {n}"} for n in range(2, 6)),
    {"agent": "child", "text": "late", "delay_ms": HOUR_MS},
)
STUBBORN = '''
import asyncio
import time

async def stubborn() -> str:
    """Ignore every cancellation for a minute."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass
    return "late"

def stuck() -> str:
    """Block a thread for a minute."""
    time.sleep(60)
    return "late"
'''


def _start(folder: Path) -> Running:
    return Running(folder, "run", "--model", script(folder, *BUSY), "go", "--json")


@pytest.mark.parametrize(
    ("number", "reason", "childs"),
    [
        (signal.SIGINT, "interrupted", ("cancelled", "parent_cancelled")),
        (signal.SIGTERM, "shutdown", ("interrupted", "shutdown")),
        (signal.SIGHUP, "shutdown", ("interrupted", "shutdown")),
    ],
)
def test_a_signal_ends_the_turn_with_its_children_and_puts_it_on_record(
    tmp_path: Path, number: int, reason: str, childs: tuple[str, str]
) -> None:
    with _start(tmp_path) as running:
        running.event("run.started")
        running.process.send_signal(number)
        ran = running.end()
        lines = running.seen
    assert ran.code == 3
    assert (lines[-1]["type"], lines[-1]["status"], lines[-1]["reason"]) == ("turn.closed", "interrupted", reason)
    settled = of_type(lines, "run.settled")[0]
    assert (settled["status"], settled["reason"]) == childs
    shown = retinue(tmp_path, "sessions", "show", lines[-1]["session_id"], "--json").document()
    assert shown["last_turn"] == {"status": "interrupted", "reason": reason}


@pytest.mark.parametrize("tool", ["stubborn", "stuck"])
def test_a_tool_that_does_not_stop_cannot_hold_up_a_shutdown(tmp_path: Path, tool: str) -> None:
    (tmp_path / "mine.py").write_text(STUBBORN)
    model = script(tmp_path, {"text": "go", "tool_calls": [call(tool)]})
    with Running(tmp_path, "run", "--model", model, "--tools", f"mine:{tool}", "go", "--json") as running:
        running.event("tool.started")
        running.process.terminate()
        assert running.process.wait(SHUTDOWN_MAX_S) == 3
        running.end()
    assert (running.seen[-1]["type"], running.seen[-1]["reason"]) == ("turn.closed", "shutdown")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("tool", ["stubborn", "stuck"])
def test_tools_of_parent_and_child_that_do_not_stop_hold_up_no_shutdown_even_after_an_interrupt(
    tmp_path: Path, tool: str, number: int
) -> None:
    (tmp_path / "mine.py").write_text(STUBBORN)
    calls = [call("spawn_agent", prompt="x"), call(tool)]
    model = script(
        tmp_path,
        {"agent": "parent", "text": "go", "tool_calls": calls},
        {"agent": "child", "text": "me too", "tool_calls": [call(tool)]},
    )
    with Running(tmp_path, "run", "--model", model, "--tools", f"mine:{tool}", "go", "--json") as running:
        running.until(
            lambda _: len([line for line in of_type(running.seen, "tool.started") if line["name"] == tool]) == 2
        )
        if tool == "stuck":
            running.process.send_signal(signal.SIGINT)
        running.process.send_signal(number)
        assert running.process.wait(SHUTDOWN_MAX_S) == 3
        running.end()
    shown = retinue(tmp_path, "sessions", "show", running.seen[0]["session_id"], "--json").document()
    assert (shown["status"], shown["last_turn"]["status"]) == ("idle", "interrupted")
    runs = retinue(tmp_path, "runs", "list", "--json").document()["items"]
    assert [(run["status"] in ("interrupted", "cancelled"), run["partial"]) for run in runs] == [(True, "me too")]


def test_a_second_interrupt_leaves_at_once_and_the_next_start_closes_what_is_open(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(STUBBORN)
    calls = [call("spawn_agent", prompt="take long"), call("stubborn")]
    model = script(
        tmp_path, {"agent": "parent", "text": "go", "tool_calls": calls}, {"agent": "child", "delay_ms": HOUR_MS}
    )
    with Running(tmp_path, "run", "--model", model, "--tools", "mine:stubborn", "go", "--json") as running:
        running.until(lambda _: bool(of_type(running.seen, "run.started")) and _works(running, "stubborn"))
        root = running.seen[0]["session_id"]
        running.process.send_signal(signal.SIGINT)
        # The first one is taken: its children end at once, the stubborn tool holds the turn.
        running.event("run.settled")
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(SHUTDOWN_MAX_S) == 3
        running.end()
    assert not [line for line in of_type(running.seen, "turn.closed") if line["session_id"] == root]
    shown = retinue(tmp_path, "sessions", "show", root, "--json").document()
    assert (shown["status"], shown["last_turn"]) == ("idle", {"status": "interrupted", "reason": "restart"})


def _works(running: Running, tool: str) -> bool:
    return any(line["name"] == tool for line in of_type(running.seen, "tool.started"))


def test_a_reader_that_leaves_ends_it_quietly_as_a_shutdown(tmp_path: Path) -> None:
    model = script(tmp_path, BUSY[0], {"agent": "parent", "n": 2, "delay_ms": HOUR_MS}, BUSY[-1])
    with Running(tmp_path, "run", "--model", model, "go", "--json") as running:
        child = running.event("run.started")["run_id"]
        assert running.process.stdout is not None
        assert running.process.stderr is not None
        running.process.stdout.close()
        # Somebody else's cancel makes the next line, which nobody reads any more.
        assert retinue(tmp_path, "runs", "cancel", child).code == 0
        assert running.process.wait() == 3
        assert running.process.stderr.read() == ""
    shown = retinue(tmp_path, "sessions", "show", running.seen[0]["session_id"], "--json").document()
    assert (shown["status"], shown["last_turn"]) == ("idle", {"status": "interrupted", "reason": "shutdown"})
