"""`run` where the root's turn ends before its children: it stays until the tree rests, and says which turn counts."""

import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kit import Line, Running, call, of_type, retinue, script

HOUR_MS = 3_600_000
DETACH = ("--set", "result.turn_end=detach")
STORE = ("--set", "result.idle_parent=store")
ASKS: dict[str, Any] = {"agent": "parent", "text": "I ask one.", "tool_calls": [call("spawn_agent", prompt="x")]}


def _answers(*texts: str) -> list[dict[str, Any]]:
    return [{"agent": "parent", "n": n, "text": text} for n, text in enumerate(texts, 2)]


def _closed(lines: list[Line]) -> list[Line]:
    root = lines[0]["session_id"]
    return [line for line in of_type(lines, "turn.closed") if line["session_id"] == root]


def test_under_detach_the_stream_goes_on_until_the_children_have_settled(tmp_path: Path) -> None:
    model = script(tmp_path, ASKS, *_answers("asked"), {"agent": "child", "text": "found", "delay_ms": 300})
    ran = retinue(tmp_path, "run", "--model", model, *DETACH, *STORE, "go", "--json")
    lines = ran.lines()
    assert ran.code == 0
    assert [line["text"] for line in _closed(lines)] == ["asked"]
    behind = [line["type"] for line in lines[lines.index(_closed(lines)[0]) :]]
    assert behind[-2:] == ["run.settled", "letter.queued"]
    assert [line["status"] for line in of_type(lines, "run.settled")] == ["completed"]


def test_a_turn_that_a_letter_starts_belongs_to_the_command_and_its_text_is_the_final_one(tmp_path: Path) -> None:
    model = script(
        tmp_path, ASKS, *_answers("asked", "integrated"), {"agent": "child", "text": "found", "delay_ms": 300}
    )
    ran = retinue(tmp_path, "run", "--model", model, *DETACH, "go")
    assert (ran.code, ran.out) == (0, "integrated\n")
    root = retinue(tmp_path, "sessions", "list", "--json").document()["items"][0]
    assert (root["status"], root["turns"], root["last_turn"]["status"]) == ("idle", 2, "completed")
    assert retinue(tmp_path, "runs", "list", "--open", "--json").document()["items"] == []


def test_the_exit_code_is_that_of_the_prompts_own_turn_whatever_the_next_one_says(tmp_path: Path) -> None:
    failing = {"agent": "parent", "n": 3, "error": "the provider is gone"}
    model = script(tmp_path, ASKS, *_answers("asked"), failing, {"agent": "child", "text": "found", "delay_ms": 300})
    ran = retinue(tmp_path, "run", "--model", model, *DETACH, "go")
    assert (ran.code, ran.out) == (0, "asked\n")


def test_under_cancel_the_turn_ends_its_children_and_its_end_is_the_last_line(tmp_path: Path) -> None:
    model = script(tmp_path, ASKS, *_answers("asked"), {"agent": "child", "delay_ms": HOUR_MS})
    ran = retinue(tmp_path, "run", "--model", model, "--set", "result.turn_end=cancel", "go", "--json")
    lines = ran.lines()
    assert (ran.code, lines[-1]["type"], lines[-1]["text"]) == (0, "turn.closed", "asked")
    assert [line["status"] for line in of_type(lines, "run.settled")] == ["cancelled"]


def test_no_wait_returns_at_the_end_of_the_turn_and_open_runs_end_with_the_process(tmp_path: Path) -> None:
    model = script(tmp_path, ASKS, *_answers("asked"), {"agent": "child", "delay_ms": HOUR_MS})
    ran = retinue(tmp_path, "run", "--model", model, *DETACH, "--no-wait", "go", "--json")
    lines = ran.lines()
    assert (ran.code, lines[-1]["type"], lines[-1]["text"]) == (0, "turn.closed", "asked")
    (run,) = retinue(tmp_path, "runs", "list", "--json").document()["items"]
    assert (run["status"], run["reason"]) == ("interrupted", "shutdown")


def test_an_interrupt_while_only_detached_children_run_cancels_them_all_and_starts_no_turn(tmp_path: Path) -> None:
    calls = [call("spawn_agent", prompt="x"), call("spawn_agent", prompt="y")]
    model = script(tmp_path, {**ASKS, "tool_calls": calls}, *_answers("asked"), {"agent": "child", "delay_ms": HOUR_MS})
    with Running(tmp_path, "run", "--model", model, *DETACH, "go", "--json") as running:
        running.event("turn.closed", text="asked")
        running.process.send_signal(signal.SIGINT)
        ran = running.end()
    assert ran.code == 0
    assert [line["status"] for line in of_type(running.seen, "run.settled")] == ["cancelled"] * 2
    assert len(_closed(running.seen)) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_shutdown_while_only_detached_children_run_ends_them_and_keeps_the_roots_status(
    tmp_path: Path, number: int
) -> None:
    model = script(tmp_path, ASKS, *_answers("asked"), {"agent": "child", "delay_ms": HOUR_MS})
    with Running(tmp_path, "run", "--model", model, *DETACH, "go", "--json") as running:
        running.event("turn.closed", text="asked")
        running.process.send_signal(number)
        ran = running.end()
    assert ran.code == 0
    assert [line["reason"] for line in of_type(running.seen, "run.settled")] == ["shutdown"]
    shown = retinue(tmp_path, "sessions", "show", running.seen[0]["session_id"], "--json").document()
    assert shown["last_turn"] == {"status": "completed", "reason": "done"}


def test_a_commit_that_fails_after_the_roots_turn_is_exit_5_and_says_so(tmp_path: Path) -> None:
    big = {"agent": "child", "text": "x" * 1_500_000, "delay_ms": 300}
    model = script(tmp_path, ASKS, *_answers("asked"), big)
    assert retinue(tmp_path, "run", "--model", script(tmp_path, {"text": "ok"}, name="warm.jsonl"), "go").code == 0
    ran = retinue(tmp_path, "run", "--model", model, *DETACH, "go", "--json", preexec_fn=_small_disk)
    lines = ran.lines()
    assert (ran.code, "Traceback" in ran.err) == (5, False)
    assert (_closed(lines)[0]["status"], lines[-1]["stored"]) == ("completed", False)
    (run,) = retinue(tmp_path, "runs", "list", "--json").document()["items"]
    assert (run["status"], run["reason"]) == ("interrupted", "restart")


def _small_disk() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_200_000, 1_200_000))
