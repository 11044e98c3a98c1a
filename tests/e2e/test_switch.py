"""`switch`: shown and set from elsewhere, kept over restarts, and what it stops."""

from pathlib import Path

from tests.e2e.kit import Running, call, of_type, retinue, script

HOUR_MS = 3_600_000


def test_the_switch_is_on_until_it_is_set_and_showing_it_makes_nothing(tmp_path: Path) -> None:
    shown = retinue(tmp_path, "switch", "--json")
    assert (shown.code, shown.document()) == (0, {"on": True})
    assert list(tmp_path.iterdir()) == []


def test_the_switch_outlives_the_process_that_set_it(tmp_path: Path) -> None:
    assert retinue(tmp_path, "switch", "off", "--json").document() == {"on": False}
    assert retinue(tmp_path, "switch").out == "delegation is off\n"
    model = script(
        tmp_path,
        {"agent": "parent", "n": 1, "text": "I ask", "tool_calls": [call("spawn_agent", prompt="x")]},
        {"agent": "parent", "n": 2, "text": "alone"},
    )
    lines = retinue(tmp_path, "run", "--model", model, "go", "--json").lines()
    (refused,) = of_type(lines, "tool.finished")
    assert (refused["outcome"], refused["code"]) == ("refused", "switched_off")
    assert (lines[-1]["status"], lines[-1]["text"]) == ("completed", "alone")
    assert retinue(tmp_path, "switch", "on", "--json").document() == {"on": True}


def test_switching_off_cancels_the_children_of_a_working_owner_and_the_main_session_goes_on(tmp_path: Path) -> None:
    model = script(
        tmp_path,
        {"agent": "parent", "n": 1, "text": "I ask", "tool_calls": [call("spawn_agent", prompt="x")]},
        *({"agent": "parent", "n": n, "text": f"answer {n}"} for n in range(2, 5)),
        {"agent": "child", "delay_ms": HOUR_MS},
    )
    with Running(tmp_path, "run", "--model", model, "go", "--json") as owner:
        kid = owner.event("run.started")["run_id"]
        assert retinue(tmp_path, "switch", "off", "--json").document() == {"on": False}
        run = retinue(tmp_path, "runs", "show", kid, "--json").document()
        assert (run["status"], run["reason"]) == ("cancelled", "switched_off")
        refused = retinue(tmp_path, "runs", "message", kid, "more", "--json")
        assert (refused.code, refused.document()["code"]) == (1, "switched_off")
        ran = owner.end()
    assert (ran.code, owner.seen[-1]["status"]) == (0, "completed")
    assert [line["on"] for line in of_type(owner.seen, "switch.changed")] == [False]


def test_a_state_that_is_neither_on_nor_off_is_a_usage_error(tmp_path: Path) -> None:
    ran = retinue(tmp_path, "switch", "maybe")
    assert (ran.code, list(tmp_path.iterdir())) == (2, [])
