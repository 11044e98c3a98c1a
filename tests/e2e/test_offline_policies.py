"""The offline model under each policy: its report holds what every explorer found, however results come home."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from retinue.stores.sqlite import open_reading
from retinue.testing.checkers import all_events, check_all, check_projections
from tests.e2e.kit import Line, of_type, retinue

POLICIES = ("standard", "courier", "resident", "guarded", "roster")
FETCHING = ("roster",)
"""Where results are fetched and the turn is not held open; `guarded` hands over what nobody fetched."""
HELD = ("standard", "guarded")
PARTS = ("amber", "birch", "cedar", "delta", "ember", "flint")


def _folder(home: Path) -> Path:
    """Make a folder of six parts, each with one thing to find."""
    folder = home / "folder"
    for part in PARTS:
        (folder / part).mkdir(parents=True)
        (folder / part / "notes.md").write_text(f"# What {part} is for\n" + "a line of notes\n" * 20)
    return folder


def _run(home: Path, *flags: str) -> list[Line]:
    folder = _folder(home)
    record = str(home / "record")
    ran = retinue(folder, "run", "What is here?", "--model", "offline", *flags, "--data-dir", record, "--json")
    assert ran.code == 0, ran.err
    return ran.lines()


def _require_whole(lines: list[Line], home: Path) -> str:
    """Hold the stream and the record against the promise; return the report of the one turn."""
    root = lines[0]["session_id"]
    (closed,) = [line for line in of_type(lines, "turn.closed") if line["session_id"] == root]
    assert closed["status"] == "completed"
    report: str = closed["text"]
    for part in PARTS:
        evidence = f'- `{part}/notes.md`: 21 lines, {len(part) + 15 + 320} bytes, opens with "What {part} is for"'
        assert report.count(evidence) == report.count(f"\n## {part}\n") == 1, report
    assert "6 parts, 6 of them complete" in report
    store = open_reading(home / "record" / "retinue.sqlite3")
    assert store is not None
    try:
        assert check_all(all_events(store)) == []
        assert check_projections(store) == []
    finally:
        store.close()
    return report


def _settled(lines: list[Line]) -> list[dict[str, Any]]:
    settled = of_type(lines, "run.settled")
    assert {line["status"] for line in settled} == {"completed"}
    assert sorted(line["run_id"] for line in settled) == sorted(line["run_id"] for line in of_type(lines, "run.queued"))
    return settled


def _of_tool(lines: list[Line], name: str) -> list[Line]:
    """Return the answers of a tool that the root called."""
    said = [line for line in of_type(lines, "message.assistant") if line["session_id"] == lines[0]["session_id"]]
    asked = {call["call_id"] for line in said for call in line["tool_calls"] if call["name"] == name}
    return [line for line in of_type(lines, "tool.finished") if line["call_id"] in asked]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_report_holds_what_every_explorer_found_exactly_once(tmp_path: Path, policy: str) -> None:
    lines = _run(tmp_path, "--policy", policy)
    report = _require_whole(lines, tmp_path)
    assert "6 parts: 6 by explorers, 0 looked at by the parent itself." in report
    settled = _settled(lines)
    assert len(settled) == 6
    fetched = Counter(run_id for line in _of_tool(lines, "wait_agent") for run_id in line["collected"])
    absorbed = Counter(line["run_id"] for line in of_type(lines, "letter.absorbed"))
    assert (fetched if policy in FETCHING else absorbed) == Counter(line["run_id"] for line in settled)
    assert not (absorbed if policy in FETCHING else fetched)
    refused = [line["code"] for line in _of_tool(lines, "spawn_agent") if line["code"] is not None]
    assert refused in ([], ["cap_running"], ["cap_running"] * 2)
    assert not refused or policy == "courier"
    _require_few_waits(lines, policy, 2 if refused else 1)


def _require_few_waits(lines: list[Line], policy: str, most: int) -> None:
    """A letter that is there before the next request saves a wait; what is fetched has to be asked for."""
    waits = len(_of_tool(lines, "wait_agent"))
    assert waits == (0 if policy in HELD else most) if policy not in ("courier", "resident") else waits <= most


@pytest.mark.parametrize("policy", POLICIES)
def test_with_one_slot_that_rejects_the_parts_go_to_one_explorer_after_the_other(tmp_path: Path, policy: str) -> None:
    one = ("--set", "caps.running.root=1", "--set", "caps.running.parent=1", "--set", "caps.on_full=reject")
    lines = _run(tmp_path, "--policy", policy, *one)
    assert "6 by explorers, 0 looked at by the parent itself." in _require_whole(lines, tmp_path)
    assert len(_settled(lines)) == 6
    # One that ends while the same message still asks for the next makes room for it: then one wait is for both.
    waits = len(_of_tool(lines, "wait_agent"))
    assert waits == 0 if policy in HELD else waits <= 6, waits


@pytest.mark.parametrize("policy", POLICIES)
def test_what_may_not_be_created_the_parent_looks_at_itself(tmp_path: Path, policy: str) -> None:
    lines = _run(tmp_path, "--policy", policy, "--set", "caps.created.turn=2")
    assert "2 by explorers, 4 looked at by the parent itself." in _require_whole(lines, tmp_path)
    assert len(_settled(lines)) == 2


@pytest.mark.parametrize("policy", POLICIES)
def test_a_second_prompt_is_looked_into_anew(tmp_path: Path, policy: str) -> None:
    _run(tmp_path, "--policy", policy)
    ran = retinue(tmp_path / "folder", "run", "--continue", "again", "--data-dir", str(tmp_path / "record"), "--json")
    assert ran.code == 0, ran.err
    lines = ran.lines()
    assert len(_settled(lines)) == 6
    _require_whole(lines, tmp_path)
