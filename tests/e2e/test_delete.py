"""`sessions delete`: a session goes with everything below it, after a question where a person can answer."""

from pathlib import Path

import pytest

from tests.e2e.kit import Running, Terminal, call, of_type, retinue, script

HOUR_MS = 3_600_000
DEEP = (
    {"agent": "parent", "n": 1, "text": "I ask", "tool_calls": [call("spawn_agent", prompt="x", name="kid")]},
    *({"agent": "parent", "n": n, "text": f"answer {n}"} for n in range(2, 6)),
    {"agent": "name:kid", "n": 1, "text": "me too", "tool_calls": [call("spawn_agent", prompt="y", name="grandkid")]},
    *({"agent": "name:kid", "n": n, "text": f"kid {n}"} for n in range(2, 6)),
    {"agent": "name:grandkid", "text": "found"},
)


def _tree(folder: Path) -> tuple[str, str, str]:
    """Run a tree of three levels; return root, child and grandchild."""
    flags = ("--set", "caps.max_depth=2")
    lines = retinue(folder, "run", "--model", script(folder, *DEEP), *flags, "go", "--json").lines()
    kid, grandkid = (line["child_id"] for line in of_type(lines, "run.queued"))
    return lines[0]["session_id"], kid, grandkid


def test_a_root_goes_with_its_whole_tree_children_first(tmp_path: Path) -> None:
    root, kid, grandkid = _tree(tmp_path)
    ran = retinue(tmp_path, "sessions", "delete", root, "--json")
    assert (ran.code, ran.document()) == (0, {"deleted": [grandkid, kid, root]})
    for name in (root, kid, grandkid):
        shown = retinue(tmp_path, "sessions", "show", name, "--json")
        assert (shown.code, shown.document()["code"]) == (1, "not_found")
    assert retinue(tmp_path, "sessions", "list", "--json").document()["items"] == []
    assert retinue(tmp_path, "runs", "list", "--json").document()["items"] == []


def test_a_childs_log_goes_and_its_run_stays_with_the_parent(tmp_path: Path) -> None:
    root, kid, grandkid = _tree(tmp_path)
    assert retinue(tmp_path, "sessions", "delete", kid, "--json").document() == {"deleted": [grandkid, kid]}
    assert retinue(tmp_path, "sessions", "show", kid).code == 1
    (run,) = [row for row in retinue(tmp_path, "runs", "list", "--json").document()["items"] if row["name"] == "kid"]
    assert (run["session_id"], run["status"], run["output"]) == (kid, "completed", "kid 3")
    assert retinue(tmp_path, "sessions", "show", root).code == 0
    ran = retinue(tmp_path, "runs", "message", kid, "more", "--json")
    assert (ran.code, ran.document()["code"]) == (1, "not_found")


def test_what_works_is_stopped_before_it_is_deleted(tmp_path: Path) -> None:
    model = script(
        tmp_path,
        DEEP[0],
        *({"agent": "parent", "n": n, "delay_ms": HOUR_MS} for n in (2, 3)),
        {"agent": "child", "delay_ms": HOUR_MS},
    )
    with Running(tmp_path, "run", "--model", model, "go", "--json") as owner:
        kid = owner.event("run.started")["child_id"]
        root = owner.seen[0]["session_id"]
        assert retinue(tmp_path, "sessions", "delete", root, "--json").document() == {"deleted": [kid, root]}
        ran = owner.end()
    assert (ran.code, "Traceback" in ran.err) == (3, False)
    assert retinue(tmp_path, "sessions", "list", "--json").document()["items"] == []


@pytest.mark.parametrize(("answer", "code", "left"), [("n", 1, 1), ("", 1, 1), ("y", 0, 0)])
def test_a_person_at_a_terminal_is_asked_first(tmp_path: Path, answer: str, code: int, left: int) -> None:
    root, _, _ = _tree(tmp_path)
    with Terminal(tmp_path, "sessions", "delete", root) as terminal:
        terminal.until(r"the 2 sessions below it for good\? \[y/N\]")
        terminal.type(f"{answer}\n")
        assert terminal.end() == code
    assert len(retinue(tmp_path, "sessions", "list", "--json").document()["items"]) == left


def test_yes_asks_nothing_and_an_unknown_session_is_not_found(tmp_path: Path) -> None:
    root, _, _ = _tree(tmp_path)
    with Terminal(tmp_path, "sessions", "delete", root, "--yes") as terminal:
        assert terminal.end() == 0
    assert "[y/N]" not in terminal.got
    for folder in (tmp_path, tmp_path / "new"):
        folder.mkdir(exist_ok=True)
        ran = retinue(folder, "sessions", "delete", "s_unknown", "--json")
        assert (ran.code, ran.document()["code"]) == (1, "not_found")
    assert list((tmp_path / "new").iterdir()) == []


def test_nothing_of_a_deleted_session_is_left_in_the_files(tmp_path: Path) -> None:
    model = script(tmp_path, {"agent": "parent", "text": "an answer like no other"})
    retinue(tmp_path, "run", "--model", model, "a question like no other")
    (session,) = retinue(tmp_path, "sessions", "list", "--json").document()["items"]
    files = list((tmp_path / ".retinue").glob("retinue.sqlite3*"))
    assert any(b"a question like no other" in file.read_bytes() for file in files)
    assert retinue(tmp_path, "sessions", "delete", session["session_id"], "--yes").code == 0
    for file in (tmp_path / ".retinue").glob("retinue.sqlite3*"):
        assert b"like no other" not in file.read_bytes()
