"""A process that is stopped for seconds (SIGSTOP) and goes on: nothing lost or timed out, no client left hanging."""

import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from retinue.cli.asking import STOP_MAX_S
from retinue.cli.changes import WAIT_MARGIN_S
from retinue.testing.modelserver import ModelServer
from tests.e2e.kit import COMMAND, Running, call, environment, of_type, one_sentence, retinue, script
from tests.faults.kit import require_sound

STOPPED_S = 2.5
START_MAX_S = 5.0
"""Seconds that a command may take to start on a busy machine."""
HOUR_MS = 3_600_000
SCRIPT = (
    {
        "agent": "parent",
        "n": 1,
        "tool_calls": [call("spawn_agent", prompt=f"[child] {name}", name=name, timeout_s=60) for name in ("a", "b")],
    },
    *({"agent": "parent", "n": n, "text": f"answer {n}"} for n in (2, 3, 4)),
    {"agent": "child", "text": "the answer of a child", "delay_ms": 400},
)


def _pause(seconds: float) -> None:
    """Let real time pass while another process stands still: there is nothing else to wait for."""
    threading.Event().wait(seconds)


def test_a_process_that_was_stopped_for_seconds_loses_no_result_and_times_nothing_out(tmp_path: Path) -> None:
    with ModelServer(SCRIPT) as server:
        env = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "k"}
        with Running(tmp_path, "run", "--model", "openai:any", "go", "--json", env=env) as running:
            running.event("step.opened", step=1, turn=1)
            running.event("run.started", name="b")
            server.wait_until(lambda it: len(it.requests) >= 3)
            running.process.send_signal(signal.SIGSTOP)
            _pause(STOPPED_S)
            running.process.send_signal(signal.SIGCONT)
            ran = running.end()
        assert (ran.code, server.faults) == (0, [])
    settled = of_type(running.seen, "run.settled")
    assert [(run["status"], run["output"]) for run in settled] == [("completed", "the answer of a child")] * 2
    assert all(STOPPED_S - 0.5 <= run["elapsed_s"] <= STOPPED_S + 30 for run in settled), "measured, not guessed"
    require_sound(tmp_path / ".retinue")


def test_B56_a_stopped_owner_keeps_no_client_beyond_its_time(tmp_path: Path) -> None:
    model = script(
        tmp_path,
        {"agent": "parent", "tool_calls": [call("spawn_agent", prompt="x", name="slow")]},
        *({"agent": "parent", "n": n, "text": "done"} for n in (2, 3)),
        {"agent": "child", "text": "late", "delay_ms": HOUR_MS},
    )
    with Running(tmp_path, "run", "--model", model, "go", "--json") as owner:
        run_id = owner.event("run.started", name="slow")["run_id"]
        owner.process.send_signal(signal.SIGSTOP)
        command = [*COMMAND, "runs", "cancel", run_id, "--json"]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        began = time.monotonic()
        with subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path), text=True, **pipes) as cancel:
            waited = retinue(tmp_path, "runs", "wait", run_id, "--timeout", "1", "--json")
            took = time.monotonic() - began
            assert (waited.code, waited.document()["timed_out"]) == (0, True)
            assert [item["status"] for item in waited.document()["items"]] == ["running"]
            assert 1 <= took <= 1 + WAIT_MARGIN_S + START_MAX_S
            said = retinue(tmp_path, "runs", "output", run_id, "--json")
            assert (said.code, said.document()["text"]) == (0, "")
            out, err = cancel.communicate()
        assert time.monotonic() - began <= STOP_MAX_S + START_MAX_S
        assert (cancel.returncode, "did not answer" in err, '"store_owned"' in out) == (5, True, True)
        owner.process.send_signal(signal.SIGCONT)
        # It was told, and does it once it goes on.
        assert owner.event("run.settled")["status"] == "cancelled"
        assert owner.end().code == 0
    require_sound(tmp_path / ".retinue")


def test_a_second_run_beside_a_stopped_owner_is_refused_and_not_held(tmp_path: Path) -> None:
    model = script(tmp_path, {"text": "late", "delay_ms": HOUR_MS})
    with Running(tmp_path, "run", "--model", model, "go", "--json") as owner:
        owner.event("step.opened")
        owner.process.send_signal(signal.SIGSTOP)
        refused = retinue(tmp_path, "run", "--model", model, "me too")
        assert (refused.code, str(owner.process.pid) in one_sentence(refused)) == (5, True)
        listed = retinue(tmp_path, "sessions", "list", "--json").document()["items"]
        assert [row["status"] for row in listed] == ["running"]
