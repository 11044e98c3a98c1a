"""What happens to the files under a working owner: rights revoked, names taken away, files replaced."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from retinue.stores.sqlite import SQLiteStore
from tests.e2e.kit import Ran, Running, call, of_type, one_sentence, retinue, script, without_root_rights
from tests.faults.kit import require_sound

GATE = """
import os

def gate() -> str:
    \"\"\"Say that the run is in its middle, and wait until the test has done what it does.\"\"\"
    with open("gate", "w") as told:
        told.write("open")
    with open("gate") as answer:
        return answer.read()
"""
DATABASE = "retinue.sqlite3"
MIDDLE = (
    {"agent": "parent", "tool_calls": [call("spawn_agent", prompt="look", name="kid", mode="await")]},
    {"agent": "parent", "n": 2, "text": "the finished text"},
    {"agent": "child", "tool_calls": [call("gate")]},
    {"agent": "child", "n": 2, "text": "the text of the child"},
)


class Middle:
    """A run of the command whose child stands in a tool until `go` is called."""

    def __init__(self, folder: Path) -> None:
        (folder / "mine.py").write_text(GATE)
        os.mkfifo(folder / "gate")
        self.data = folder / ".retinue"
        self._folder = folder
        flags = ("--model", script(folder, *MIDDLE), "--tools", "mine:gate", "go", "--json")
        self.running = Running(folder, "run", *flags, **without_root_rights())

    def __enter__(self) -> "Middle":
        with (self._folder / "gate").open() as told:
            assert told.read() == "open"
        return self

    def __exit__(self, *_: object) -> None:
        self.running.__exit__()

    def go(self) -> Ran:
        """Let the tool answer and the command end."""
        with (self._folder / "gate").open("w") as answer:
            answer.write("went on")
        return self.running.end()


def test_rights_revoked_while_a_run_works_cost_nothing_and_the_next_start_says_what_is_wrong(tmp_path: Path) -> None:
    with Middle(tmp_path) as middle:
        for path in middle.data.iterdir():
            path.chmod(0)
        middle.data.chmod(0)
        try:
            ran = middle.go()
            assert (ran.code, middle.running.seen[-1]["text"], ran.err) == (0, "the finished text", "")
            refused = retinue(tmp_path, "run", "--model", "offline", "go", **without_root_rights())
            assert (refused.code, ".retinue" in one_sentence(refused)) == (5, True)
        finally:
            middle.data.chmod(0o700)
            for path in middle.data.iterdir():
                path.chmod(0o600)
    seen = middle.running.seen
    assert len(require_sound(middle.data)) == len(seen)


def _delete(data: Path) -> None:
    for path in data.glob(f"{DATABASE}*"):
        path.unlink()


def _delete_the_database(data: Path) -> None:
    (data / DATABASE).unlink()


def _delete_the_log(data: Path) -> None:
    (data / f"{DATABASE}-wal").unlink()


def _delete_the_folder(data: Path) -> None:
    shutil.rmtree(data)


def _replace(data: Path) -> None:
    store = SQLiteStore(data / "other")
    store.close()
    (data / "other").replace(data / DATABASE)


@pytest.mark.parametrize("harm", [_delete, _delete_the_database, _delete_the_log, _delete_the_folder, _replace])
def test_a_database_taken_away_from_its_owner_is_noticed_at_the_next_commit(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    with Middle(tmp_path) as middle:
        harm(middle.data)
        ran = middle.go()
    last = middle.running.seen[-1]
    assert (ran.code, last["type"], last["reason"], last["stored"]) == (5, "turn.closed", "store_failed", False)
    assert f"/.retinue/{DATABASE}" in last["detail"]
    assert "while its owner worked" in last["detail"]
    assert "Traceback" not in ran.err
    if harm is _delete_the_database:
        _require_refused_beside_the_log(tmp_path, middle.data)
    # Whoever starts again has a sound record: a new one, the other one, or what was left.
    again = retinue(tmp_path, "run", "--model", script(tmp_path, {"text": "ok"}), "go", "--json")
    assert (again.code, again.lines()[-1]["text"]) == (0, "ok"), again.err
    require_sound(middle.data)


def _require_refused_beside_the_log(folder: Path, data: Path) -> None:
    """The log may hold all that is left: nothing begins anew beside it, which would throw it away."""
    log = data / f"{DATABASE}-wal"
    held = log.read_bytes()
    for arguments in (("run", "--model", "offline", "go"), ("sessions", "list"), ("run", "--continue", "go")):
        refused = retinue(folder, *arguments)
        assert (refused.code, f"{DATABASE}-wal" in one_sentence(refused)) == (5, True)
    (data / DATABASE).touch()
    assert retinue(folder, "run", "--model", "offline", "go").code == 5
    assert log.read_bytes() == held
    log.rename(folder / "log")


def test_a_database_that_was_moved_away_has_everything_told_before_once_it_is_back(tmp_path: Path) -> None:
    aside = tmp_path / "aside"
    with Middle(tmp_path) as middle:
        middle.data.rename(aside)
        assert middle.go().code == 5
    *seen, last = middle.running.seen
    aside.rename(middle.data)
    shown = retinue(tmp_path, "sessions", "show", last["session_id"], "--json").document()
    assert (shown["status"], shown["last_turn"]) == ("idle", {"status": "interrupted", "reason": "restart"})
    events = require_sound(middle.data)
    assert [event.position for event in events][: len(seen)] == [line["position"] for line in seen]
    assert of_type(seen, "run.started")
