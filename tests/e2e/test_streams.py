"""Streams that are full, closed or gone, and a working directory that is gone: one sentence, and no answer is lost."""

import errno
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.kit import COMMAND, SEARCH, environment, one_sentence, retinue, script

HOUR_MS = 3_600_000
UNWRITTEN = "retinue: standard output cannot be written: "


def _shell(folder: Path, redirection: str, *arguments: str) -> tuple[int, str]:
    """Run a command with streams as a shell leads them and return its code and what reached stderr."""
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {redirection}', "sh", *COMMAND, *arguments],
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    return done.returncode, done.stderr if "2>" not in redirection else done.stdout


def _full(redirection: str) -> None:
    if "/dev/full" in redirection and not Path("/dev/full").exists():
        pytest.skip("There is no /dev/full here.")


@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
@pytest.mark.parametrize("mode", [(), ("--json",)])
def test_an_answer_that_stdout_does_not_take_is_stored_and_it_is_said_how_to_read_it(
    tmp_path: Path, redirection: str, mode: tuple[str, ...]
) -> None:
    _full(redirection)
    model = script(tmp_path, {"text": "the answer"})
    code, err = _shell(tmp_path, redirection, "run", "--model", model, "go", *mode)
    assert (code, err.count(UNWRITTEN)) == (0, 1)
    way = err.rstrip().rpartition("The answer is stored; retinue ")[2].removesuffix(" prints it.").split()
    read = retinue(tmp_path, *way)
    assert (read.code, read.out, read.err) == (0, "the answer\n", "")


@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
@pytest.mark.parametrize(
    "command", [("policies",), ("policies", "--json"), ("doctor",), ("config", "show"), ("--version",), ("--help",)]
)
def test_a_command_whose_stdout_takes_nothing_says_so_in_one_sentence(
    tmp_path: Path, redirection: str, command: tuple[str, ...]
) -> None:
    _full(redirection)
    code, err = _shell(tmp_path, redirection, *command)
    assert (code, err.startswith(UNWRITTEN), len(err.splitlines())) == (1, True, 1)


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_without_a_stderr_everything_works_as_usual(tmp_path: Path, redirection: str) -> None:
    _full(redirection)
    model = script(tmp_path, {"text": "the answer"})
    assert _shell(tmp_path, redirection, "run", "--model", model, "go") == (0, "the answer\n")
    assert _shell(tmp_path, redirection, "runs", "show", "r_none") == (1, "")
    shown = retinue(tmp_path, "doctor", "--json").document()["items"]
    assert next(check for check in shown if check["check"] == "record")["status"] == "ok"


@pytest.mark.parametrize(
    "command", [("run", "--model", "offline", "go"), ("demo", "."), ("doctor",), ("models",), ("runs", "list")]
)
def test_a_working_directory_that_is_gone_is_said_in_one_sentence(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "gone").mkdir()
    done = subprocess.run(
        ["/bin/sh", "-c", 'cd gone && rmdir ../gone && exec "$@"', "sh", *COMMAND, *command],
        cwd=tmp_path,
        env=environment(tmp_path, SEARCH),
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout, len(lines)) == (2, "", 2), done.stderr
    assert lines[0].startswith("retinue: The working directory is gone")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_while_it_loads_is_exit_130_without_a_word(tmp_path: Path) -> None:
    # The signal comes as soon as its first own line runs: what follows loads the libraries.
    code = (
        "import os, signal, threading; from retinue.cli import streams, main\n"
        "fill = streams.fill_gaps\n"
        "streams.fill_gaps = lambda: (fill(), os.kill(os.getpid(), signal.SIGINT))\n"
        "main.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "run", "--model", "offline", "go"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_that_is_closed_ends_the_turn_in_order_with_exit_3(tmp_path: Path) -> None:
    model = script(tmp_path, {"delay_ms": HOUR_MS, "text": "late"})
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.execve(COMMAND[0], [*COMMAND, "run", "--model", model, "go"], environment(tmp_path))
    try:
        got = b""
        while b"running" not in got:
            got += os.read(terminal, 65_536)
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
    except OSError as error:
        os.kill(pid, signal.SIGKILL)
        raise AssertionError(errno.errorcode.get(error.errno or 0)) from error
    assert os.waitstatus_to_exitcode(status) == 3
    session = retinue(tmp_path, "sessions", "list", "--json").document()["items"][0]
    assert (session["status"], session["last_turn"]) == ("idle", {"status": "interrupted", "reason": "shutdown"})


@pytest.mark.parametrize(
    "command",
    [
        ("runs", "show"),
        ("runs", "output"),
        ("runs", "cancel"),
        ("runs", "wait"),
        ("runs", "list", "--session"),
        ("sessions", "show"),
        ("tree",),
    ],
)
def test_an_id_that_is_no_text_is_simply_not_found(tmp_path: Path, command: tuple[str, ...]) -> None:
    assert retinue(tmp_path, "run", "--model", script(tmp_path, {"text": "ok"}), "go").code == 0
    ran = retinue(tmp_path, *command, os.fsdecode(b"s_\xff"))
    assert (ran.code, ran.out, one_sentence(ran).startswith("retinue: There is no ")) == (1, "", True)
