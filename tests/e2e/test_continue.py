"""`--continue`, `--no-wait`, an owner that is there for a moment, and stops before there is a turn."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from retinue.cli.owning import RECOVERING, momentary_command
from retinue.stores.owner import OwnerLock, prepare_data_dir
from tests.e2e.kit import COMMAND, Running, call, environment, of_type, one_sentence, retinue, script

HOUR_MS = 3_600_000
linux = pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
ANSWERS = ({"n": 1, "text": "first"}, {"n": 2, "text": "second"})


def _opened(folder: Path, *flags: str, model: str) -> str:
    return retinue(folder, "run", "--model", model, *flags, "go", "--json").lines()[0]["session_id"]


def test_continue_takes_the_newest_root_session_of_the_working_directory(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    data = ("--data-dir", str(tmp_path / "data"))
    model = script(one, *ANSWERS, {"n": 3, "text": "third"})
    _opened(one, *data, model=model)
    newest = _opened(one, *data, model=model)
    script(two, *ANSWERS)
    elsewhere = _opened(two, *data, model=model)
    first = retinue(one, "run", *data, "--continue", "more", "--json").lines()
    assert (first[0]["type"], first[0]["session_id"], first[-1]["text"]) == ("turn.opened", newest, "second")
    named = retinue(tmp_path, "run", *data, "--continue", "--cwd", "one", "and more", "--json").lines()
    assert (named[0]["session_id"], named[-1]["text"]) == (newest, "third")
    (tmp_path / "link").symlink_to(two)
    assert retinue(tmp_path / "link", "run", *data, "--continue", "x", "--json").lines()[0]["session_id"] == elsewhere


def test_continue_passes_over_the_children_of_the_newest_session(tmp_path: Path) -> None:
    model = script(
        tmp_path,
        {"agent": "parent", "tool_calls": [call("spawn_agent", prompt="x", mode="await")]},
        *({"agent": "parent", "n": n, "text": "done"} for n in (2, 3)),
        {"agent": "child", "text": "found"},
    )
    root = _opened(tmp_path, model=model)
    assert retinue(tmp_path, "run", "--continue", "more", "--json").lines()[0]["session_id"] == root


def test_without_a_session_here_continue_says_so_and_makes_nothing(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    ran = retinue(here, "run", "--continue", "more")
    assert (ran.code, ran.out, str(here) in one_sentence(ran)) == (2, "", True)
    assert list(here.iterdir()) == []
    data = ("--data-dir", str(tmp_path / "data"))
    _opened(tmp_path, *data, model=script(tmp_path, *ANSWERS))
    ran = retinue(here, "run", *data, "--continue", "more", "--json")
    assert (ran.code, ran.document()["code"]) == (2, "not_found")


@pytest.mark.parametrize("flags", [("--session", "s_x"), ("--model", "offline"), ("--set", "caps.running.root=1")])
def test_what_a_session_was_opened_with_cannot_be_changed_by_continuing(tmp_path: Path, flags: tuple[str, ...]) -> None:
    ran = retinue(tmp_path, "run", "--continue", *flags, "more")
    assert ran.code == 2
    assert all(flag in one_sentence(ran) for flag in (flags[0], "--continue"))


def test_continue_closes_first_what_a_crash_left_open(tmp_path: Path) -> None:
    model = script(tmp_path, {"n": 1, "delay_ms": HOUR_MS}, {"n": 2, "text": "second"})
    with Running(tmp_path, "run", "--model", model, "go", "--json") as running:
        root = running.event("step.opened")["session_id"]
        running.process.kill()
        running.process.wait()
    lines = retinue(tmp_path, "run", "--continue", "go on", "--json").lines()
    assert (lines[0]["type"], lines[0]["session_id"], lines[-1]["text"]) == ("turn.opened", root, "second")


def test_no_wait_ends_at_the_first_end_of_the_roots_turn_and_leaves_nothing_open(tmp_path: Path) -> None:
    model = script(
        tmp_path,
        {"agent": "parent", "tool_calls": [call("spawn_agent", prompt="x")]},
        *({"agent": "parent", "n": n, "text": f"answer {n}"} for n in (2, 3)),
        {"agent": "child", "text": "found", "delay_ms": 20},
    )
    ran = retinue(tmp_path, "run", "--model", model, "--no-wait", "go", "--json")
    lines = ran.lines()
    assert (ran.code, lines[-1]["type"], lines[-1]["session_id"]) == (0, "turn.closed", lines[0]["session_id"])
    assert [line["status"] for line in of_type(lines, "run.settled")] == ["completed"]
    assert retinue(tmp_path, "runs", "list", "--open", "--json").document()["items"] == []


# ---------------------------------------------------------------------------------------------------- momentary owners


@linux
@pytest.mark.parametrize("command", [RECOVERING, momentary_command("runs.cancel")])
def test_a_run_waits_for_an_owner_that_is_there_only_for_a_moment(tmp_path: Path, command: str) -> None:
    lock = OwnerLock(prepare_data_dir(tmp_path / ".retinue"))
    lock.acquire(command)
    model = script(tmp_path, *ANSWERS)
    with Running(tmp_path, "run", "--model", model, "go", "--json") as running:
        # Refused once and trying again is all it can be doing: it sleeps, has the lock file open again and again.
        _until_it_tries(tmp_path / ".retinue" / "owner.lock", running.process.pid)
        lock.release()
        ran = running.end()
    assert (ran.code, running.seen[-1]["text"]) == (0, "first"), ran.err


def _until_it_tries(file: Path, pid: int) -> None:
    """Return once a process opened a file several times."""
    opened, was = 0, False
    while opened < 3:
        now = any(_is(link, file) for link in Path(f"/proc/{pid}/fd").iterdir())
        opened += now and not was
        was = now


def _is(link: Path, file: Path) -> bool:
    try:
        return os.readlink(link) == str(file)
    except FileNotFoundError:
        return False


@linux
def test_an_interrupt_while_waiting_for_such_an_owner_ends_the_command(tmp_path: Path) -> None:
    lock = OwnerLock(prepare_data_dir(tmp_path / ".retinue"))
    lock.acquire(RECOVERING)
    with Running(tmp_path, "run", "--model", script(tmp_path, *ANSWERS), "go") as running:
        _until_it_tries(tmp_path / ".retinue" / "owner.lock", running.process.pid)
        running.process.send_signal(signal.SIGINT)
        _, err = running.process.communicate()
    lock.release()
    assert (running.process.returncode, "before the turn began" in err) == (3, True)
    assert "Traceback" not in err


# ------------------------------------------------------------------------------------ stops before there is a turn


@linux
@pytest.mark.parametrize("loaded", ["msgspec", "apsw", "a prompt"])
def test_an_interrupt_during_the_start_leaves_no_traceback(tmp_path: Path, loaded: str) -> None:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [*COMMAND, "run", "--model", "offline"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment(tmp_path), text=True, **pipes) as process:
        _until(process.pid, loaded)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert (process.returncode in (3, 130), err) == (True, "")
    assert list(tmp_path.iterdir()) == []


def _until(pid: int, loaded: str) -> None:
    """Return once a process has loaded a library, or waits for its prompt."""
    while not (_reads_a_pipe(pid) if loaded == "a prompt" else loaded in Path(f"/proc/{pid}/maps").read_text()):
        pass


def _reads_a_pipe(pid: int) -> bool:
    return Path(f"/proc/{pid}/syscall").read_text().startswith("0 0x0 ")
