"""While a run works in one process, other processes read, wait and cancel; only one may own the directory."""

import signal
from pathlib import Path

from tests.e2e.kit import Running, call, of_type, retinue, script, without_root_rights

HOUR_MS = 3_600_000
HANGING = (
    {
        "agent": "parent",
        "text": "I ask two.",
        "tool_calls": [
            call("spawn_agent", prompt="take long", name="slow"),
            call("spawn_agent", prompt="be quick", name="quick"),
        ],
    },
    *({"agent": "parent", "n": n, "text": f"answer {n}"} for n in range(2, 6)),
    {"agent": "name:slow", "text": "late", "delay_ms": HOUR_MS},
    {"agent": "name:quick", "text": "quick result"},
)


def _start(folder: Path) -> Running:
    return Running(folder, "run", "--model", script(folder, *HANGING), "go", "--json")


def test_a_working_run_is_listed_shown_and_cancelled_from_elsewhere(tmp_path: Path) -> None:
    with _start(tmp_path) as owner:
        root = owner.event("session.opened")["session_id"]
        slow = owner.event("run.started", name="slow")["run_id"]
        owner.event("run.settled", name="quick")
        listed = retinue(tmp_path, "runs", "list", "--open", "--json").document()
        assert [run["run_id"] for run in listed["items"]] == [slow]
        shown = retinue(tmp_path, "sessions", "show", root, "--json").document()
        assert (shown["session_id"], shown["status"], shown["turns"]) == (root, "running", 1)
        assert "slow" in retinue(tmp_path, "tree", root).out
        cancelled = retinue(tmp_path, "runs", "cancel", slow, "--json")
        run = cancelled.document()
        assert (cancelled.code, run["status"], run["reason"], run["note"]) == (0, "cancelled", "cancelled", None)
        ran = owner.end()
        assert (ran.code, owner.seen[-1]["status"]) == (0, "completed")
    again = retinue(tmp_path, "runs", "cancel", slow, "--json")
    assert (again.code, again.document()["note"]) == (0, "already ended: cancelled")
    assert {**again.document(), "note": None, "result_state": None} == {**run, "result_state": None}
    assert "already ended: cancelled" in retinue(tmp_path, "runs", "cancel", slow).err


def test_a_wait_that_expires_is_no_error_and_stops_nobody(tmp_path: Path) -> None:
    with _start(tmp_path) as owner:
        slow = owner.event("run.started", name="slow")
        quick = owner.event("run.settled", name="quick")
        ids = (slow["child_id"], quick["run_id"])
        first = retinue(tmp_path, "runs", "wait", *ids, "--mode", "any", "--timeout", "60", "--json").document()
        assert [item["status"] for item in first["items"]] == ["running", "completed"]
        expired = retinue(tmp_path, "runs", "wait", slow["run_id"], "--timeout", "0.01", "--json")
        assert (expired.code, expired.document()["timed_out"]) == (0, True)
        text = retinue(
            tmp_path, "runs", "output", quick["run_id"], "--offset", "6", "--limit", "3", "--json"
        ).document()
        assert text == {"text": "res", "offset": 6, "total_chars": 12, "next_offset": 9}
        assert owner.process.poll() is None


def test_a_second_run_is_refused_with_the_owners_pid_and_command(tmp_path: Path) -> None:
    with _start(tmp_path) as owner:
        owner.event("run.started", name="slow")
        second = retinue(tmp_path, "run", "--model", "offline", "me too", "--json")
        problem = second.document()
        assert (second.code, problem["code"], problem["status"]) == (5, "store_owned", 503)
        assert str(owner.process.pid) in problem["detail"]
        assert "run --model scripted:script.jsonl go" in problem["detail"]
        assert owner.process.poll() is None


def test_what_a_killed_process_left_open_is_never_shown_as_running(tmp_path: Path) -> None:
    with _start(tmp_path) as owner:
        root = owner.event("session.opened")["session_id"]
        slow = owner.event("run.started", name="slow")["run_id"]
        owner.process.send_signal(signal.SIGKILL)
        owner.process.wait()
    run = retinue(tmp_path, "runs", "show", slow, "--json").document()
    assert (run["status"], run["reason"]) == ("interrupted", "restart")
    shown = retinue(tmp_path, "sessions", "show", root, "--json").document()
    assert (shown["status"], shown["last_turn"]) == ("idle", {"status": "interrupted", "reason": "restart"})
    waited = retinue(tmp_path, "runs", "wait", slow, "--json").document()
    assert waited == {
        "items": [{key: run[key] for key in ("run_id", "session_id", "name", "status", "reason", "result_state")}],
        "timed_out": False,
    }


def test_where_a_crash_cannot_be_closed_a_note_says_that_the_process_is_gone(tmp_path: Path) -> None:
    with _start(tmp_path) as owner:
        owner.event("run.started", name="slow")
        owner.process.kill()
        owner.process.wait()
    data = tmp_path / ".retinue"
    for path in (data, *data.iterdir()):
        path.chmod(0o555 if path.is_dir() else 0o444)
    ran = retinue(tmp_path, "runs", "list", "--json", **without_root_rights())
    assert (ran.code, ran.document()["items"][0]["status"]) == (0, "running")
    assert "its process is gone" in ran.err


def test_reading_commands_make_no_data_directory(tmp_path: Path) -> None:
    for arguments in (("sessions", "list"), ("runs", "list")):
        assert retinue(tmp_path, *arguments, "--json").document() == {"items": [], "next": None}
    for arguments in (("sessions", "show", "s_x"), ("runs", "show", "r_x"), ("runs", "cancel", "r_x"), ("tree", "s_x")):
        ran = retinue(tmp_path, *arguments, "--json")
        assert (ran.code, ran.document()["code"]) == (1, "not_found")
    assert list(tmp_path.iterdir()) == []


def test_lists_come_in_pages(tmp_path: Path) -> None:
    model = script(tmp_path, {"text": "ok"})
    roots = [retinue(tmp_path, "run", "--model", model, "x", "--json").lines()[0]["session_id"] for _ in range(3)]
    first = retinue(tmp_path, "sessions", "list", "--limit", "2", "--json").document()
    second = retinue(tmp_path, "sessions", "list", "--limit", "2", "--cursor", first["next"], "--json").document()
    assert [row["session_id"] for row in (*first["items"], *second["items"])] == roots[::-1]
    assert second["next"] is None
    assert retinue(tmp_path, "sessions", "list", "--cursor", "nonsense").code == 1
    assert retinue(tmp_path, "runs", "list", "--limit", "0").code == 1


def test_runs_of_one_session_are_those_below_it(tmp_path: Path) -> None:
    model = script(tmp_path, *HANGING[:-2], {"agent": "child", "text": "done"})
    lines = [retinue(tmp_path, "run", "--model", model, "x", "--json").lines() for _ in range(2)][1]
    wanted = [line["run_id"] for line in of_type(lines, "run.queued")]
    flags = ("--session", lines[0]["session_id"], "--json")
    first = retinue(tmp_path, "runs", "list", *flags, "--limit", "1").document()
    rest = retinue(tmp_path, "runs", "list", *flags, "--cursor", first["next"]).document()
    assert [run["run_id"] for run in (*first["items"], *rest["items"])] == wanted
    tree = retinue(tmp_path, "tree", lines[0]["session_id"], "--json").document()
    assert [run["run_id"] for run in tree["items"]] == wanted
