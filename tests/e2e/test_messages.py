"""`runs message` and `runs interrupt`: to a working owner, or as the owner until the tree rests."""

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kit import Line, Running, call, of_type, one_sentence, retinue, script

HOUR_MS = 3_600_000
ASKS: dict[str, Any] = {
    "agent": "parent",
    "text": "I ask one.",
    "tool_calls": [call("spawn_agent", prompt="x", name="kid")],
}
KID: tuple[dict[str, Any], ...] = (
    {"agent": "child", "n": 1, "text": "first"},
    {"agent": "child", "n": 2, "text": "second"},
)


def _parents(least: int = 2) -> list[dict[str, Any]]:
    return [{"agent": "parent", "n": n, "text": f"answer {n}"} for n in range(least, 8)]


def _ran(folder: Path, *lines: dict[str, Any], flags: tuple[str, ...] = ()) -> tuple[Line, Line]:
    """Run to the end; return the first run as it settled, and the root's header."""
    seen = retinue(folder, "run", "--model", script(folder, *lines), *flags, "go", "--json").lines()
    return of_type(seen, "run.settled")[0], seen[0]


def test_without_an_owner_a_message_runs_to_its_end_and_the_parent_goes_on(tmp_path: Path) -> None:
    first, root = _ran(tmp_path, ASKS, *_parents(), *KID)
    sent = retinue(tmp_path, "runs", "message", first["run_id"], "and now?", "--json")
    run = sent.document()
    assert sent.code == 0
    assert run["run_id"] != first["run_id"]
    assert (run["session_id"], run["status"], run["output"]) == (first["child_id"], "completed", "second")
    assert "kid" in sent.err
    shown = retinue(tmp_path, "sessions", "show", root["session_id"], "--json").document()
    assert (shown["status"], shown["last_turn"]["status"], shown["turns"]) == ("idle", "completed", 2)
    assert "(round 2)" in retinue(tmp_path, "tree", root["session_id"]).out
    assert retinue(tmp_path, "runs", "list", "--open", "--json").document()["items"] == []


def test_a_message_to_a_working_owner_is_queued_and_parked_when_the_run_before_is_interrupted(tmp_path: Path) -> None:
    two = [call("spawn_agent", prompt="x", name=name) for name in ("kid", "other")]
    slow = {"agent": "child", "n": 1, "text": "late", "delay_ms": HOUR_MS}
    model = script(tmp_path, {**ASKS, "tool_calls": two}, *_parents(), slow)
    with Running(tmp_path, "run", "--model", model, "go", "--json") as owner:
        first = owner.event("run.started", name="kid")
        other = owner.event("run.started", name="other")["run_id"]
        kid = first["child_id"]
        run = retinue(tmp_path, "runs", "message", kid, "and then", "--json").document()
        assert (run["session_id"], run["status"]) == (kid, "queued")
        stopped = retinue(tmp_path, "runs", "interrupt", kid, "--json")
        body = stopped.document()
        assert (stopped.code, sorted(body)) == (0, ["note", "reason", "run_id", "status"])
        assert (body["run_id"], body["status"], body["note"]) == (first["run_id"], "interrupted", None)
        parked = retinue(tmp_path, "runs", "show", run["run_id"], "--json").document()
        assert (parked["status"], parked["waiting_for"]["kind"]) == ("queued", "parked")
        assert "parked: " in retinue(tmp_path, "runs", "list").out
        again = retinue(tmp_path, "runs", "interrupt", first["run_id"], "--json")
        assert (again.code, again.document()["note"]) == (0, "already ended: interrupted")
        assert retinue(tmp_path, "runs", "cancel", other).code == 0
        ran = owner.end()
    assert ran.code == 0
    left = retinue(tmp_path, "runs", "show", run["run_id"], "--json").document()
    assert (left["status"], left["reason"]) == ("interrupted", "shutdown")


def test_an_interrupt_while_a_message_is_worked_on_cancels_its_run(tmp_path: Path) -> None:
    slow = {"agent": "child", "n": 2, "text": "late", "delay_ms": HOUR_MS}
    first, root = _ran(tmp_path, ASKS, *_parents(), KID[0], slow)
    with Running(tmp_path, "runs", "message", first["child_id"], "more", "--json") as sender:
        assert sender.process.stderr is not None
        assert any("kid" in line for line in sender.process.stderr)
        sender.process.send_signal(signal.SIGINT)
        ran = sender.end()
    assert (ran.code, sender.seen[0]["status"]) == (3, "cancelled")
    shown = retinue(tmp_path, "sessions", "show", root["session_id"], "--json").document()
    assert (shown["status"], shown["turns"]) == ("idle", 1)


def test_a_one_shot_child_that_has_ended_takes_no_message(tmp_path: Path) -> None:
    first, _ = _ran(tmp_path, ASKS, *_parents(), *KID, flags=("--set", "life.continuable_default=false"))
    ran = retinue(tmp_path, "runs", "message", first["child_id"], "more", "--json")
    assert (ran.code, ran.document()["code"]) == (1, "not_continuable")
    assert "completed" in one_sentence(ran)


def test_the_rounds_of_a_child_are_counted_over_commands(tmp_path: Path) -> None:
    first, _ = _ran(tmp_path, ASKS, *_parents(), *KID, flags=("--set", "life.rounds_max=2"))
    assert retinue(tmp_path, "runs", "message", first["child_id"], "more").code == 0
    ran = retinue(tmp_path, "runs", "message", first["child_id"], "more", "--json")
    assert (ran.code, ran.document()["code"]) == (1, "cap_rounds")


@pytest.mark.parametrize("command", [("message", "r_x", "hello"), ("interrupt", "r_x")])
def test_without_a_record_nothing_is_found_and_nothing_made(tmp_path: Path, command: tuple[str, ...]) -> None:
    ran = retinue(tmp_path, "runs", *command, "--json")
    assert (ran.code, ran.document()["code"]) == (1, "not_found")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_id_and_an_empty_message_are_refused(tmp_path: Path) -> None:
    first, root = _ran(tmp_path, ASKS, *_parents(), *KID)
    for name in ("r_unknown", "s_unknown", root["session_id"]):
        ran = retinue(tmp_path, "runs", "message", name, "hello", "--json")
        assert (ran.code, ran.document()["code"]) == (1, "not_found"), name
    ran = retinue(tmp_path, "runs", "message", first["run_id"], " ", "--json")
    assert (ran.code, ran.document()["code"]) == (1, "invalid")
    note = retinue(tmp_path, "runs", "interrupt", first["run_id"], "--json").document()["note"]
    assert note == "already ended: completed"


def test_runs_list_shows_the_budget_of_a_root_run_that_has_one(tmp_path: Path) -> None:
    usage = {"input": 60, "output": 40}
    lines = [{**line, "usage": usage} for line in (ASKS, *_parents(), *KID)]
    model = script(tmp_path, *lines)
    flags = ("--set", "budget.tree_tokens_max=100000")
    seen = retinue(tmp_path, "run", "--model", model, *flags, "go", "--json").lines()
    requests = len(of_type(seen, "step.closed"))
    (row,) = retinue(tmp_path, "runs", "list", "--json").document()["budget"]
    assert row == {
        "root_run_id": of_type(seen, "run.queued")[0]["root_run_id"],
        "limit": 100_000,
        "spent": 100 * requests,
        "reserved": 0,
        "exceeded": False,
    }
    assert f"{100 * requests} of 100.0k tokens spent" in retinue(tmp_path, "runs", "list").out
    kid = of_type(seen, "run.queued")[0]["child_id"]
    assert retinue(tmp_path, "sessions", "delete", kid).code == 0
    (row,) = retinue(tmp_path, "runs", "list", "--json").document()["budget"]
    assert row["spent"] == 100 * requests
