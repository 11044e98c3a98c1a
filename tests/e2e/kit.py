"""Runs the real command in processes of its own and reads what it prints; it waits on conditions, never on time."""

import ctypes
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

SECONDS_MAX = 120
"""After this many seconds a process is killed: a test that hangs fails instead."""
CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, PR_CAPBSET_DROP = 1, 2, 24
COMMAND = [sys.executable, "-m", "retinue"]
SEARCH: Final = {"RETINUE_DATA_DIR": ""}
"""What a test sets that is about the search for a data directory."""
Line = dict[str, Any]


class Ran(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    def document(self) -> Any:
        """Return the one JSON document on stdout."""
        return json.loads(self.out)

    def lines(self) -> list[Line]:
        """Return the JSON lines on stdout."""
        return [json.loads(line) for line in self.out.splitlines()]


def _heed_signals() -> None:
    """Let commands have the default for signals that this process ignores, as below nohup or behind `&`.

    What is ignored is inherited; what has a handler, even one that does nothing, begins with the default.
    """
    for number in (signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


_heed_signals()


def environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment without keys, models, data directories or settings of the person who runs the tests.

    The record lies in `.retinue` of the test's folder whatever stands above it; `SEARCH` lets a test look upwards.
    """
    own = ("OPENAI_", "ANTHROPIC_", "RETINUE_", "XDG_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    own_record = {"RETINUE_DATA_DIR": str(home / ".retinue")}
    return {**kept, "HOME": str(home), "TERM": "xterm-256color", **own_record, **(extra or {})}


def retinue(folder: Path, *arguments: str, stdin: str = "", env: Mapping[str, str] | None = None, **more: Any) -> Ran:
    """Run a command in a folder to its end."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        env=environment(folder, env),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
        **more,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


class Running:
    """A command at work, inside a `with` block."""

    def __init__(self, folder: Path, *arguments: str, env: Mapping[str, str] | None = None, **more: Any) -> None:
        """Start it."""
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=folder,
            env=environment(folder, env),
            **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **more},
        )
        self.seen: list[Line] = []
        self._alarm = threading.Timer(SECONDS_MAX, self.process.kill)
        self._alarm.start()

    def __enter__(self) -> "Running":
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill what still lives."""
        self._alarm.cancel()
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def say(self, line: str) -> None:
        """Type a line into a command that was started with `stdin=subprocess.PIPE`."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def until(self, wanted: Callable[[Line], bool]) -> Line:
        """Read JSON lines until one is as wanted, and return it."""
        assert self.process.stdout is not None
        for text in self.process.stdout:
            line: Line = json.loads(text)
            self.seen.append(line)
            if wanted(line):
                return line
        _, err = self.process.communicate()
        raise AssertionError(f"The command ended with {self.process.returncode} before that line came: {err}")

    def event(self, kind: str, **fields: Any) -> Line:
        """Read until an event of this type, with these fields, and return it."""
        return self.until(lambda line: line["type"] == kind and fields.items() <= line.items())

    def end(self) -> Ran:
        """Read the rest and return what it left; its lines join `seen`."""
        out, err = self.process.communicate()
        self.seen += [json.loads(text) for text in out.splitlines()]
        return Ran(self.process.returncode, out, err)


class Terminal:
    """A command with all its ends on a terminal, inside a `with` block; a person's side of it."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        """Start it as the terminal's own, so that Ctrl-C reaches it."""
        pid, self._ours = pty.fork()
        if pid == 0:
            os.chdir(folder)
            os.execve(COMMAND[0], [*COMMAND, *arguments], environment(folder))
        self.pid = pid
        self.got = ""
        self._seen = 0
        self._code: int | None = None
        self._alarm = threading.Timer(SECONDS_MAX, os.kill, (pid, signal.SIGKILL))
        self._alarm.start()

    def __enter__(self) -> "Terminal":
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill what still lives."""
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self._alarm.cancel()
        os.close(self._ours)

    def until(self, wanted: str) -> str:
        """Read until the terminal shows, behind what was waited for before, a text that the pattern finds."""
        while (found := re.search(wanted, self.got[self._seen :])) is None:
            more = self._read()
            assert more, f"It ended before {wanted!r} came: {self.got}"
            self.got += more
        self._seen += found.end()
        return found[0]

    def type(self, text: str) -> None:
        """Type; a line ends with its newline, `\x03` is Ctrl-C and `\x04` the end of the input."""
        os.write(self._ours, text.encode())

    def end(self) -> int:
        """Read the rest and return the exit code."""
        while more := self._read():
            self.got += more
        _, status = os.waitpid(self.pid, 0)
        self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def _read(self) -> str:
        try:
            return os.read(self._ours, 65_536).decode("utf-8", "replace")
        except OSError:  # Linux says so when the other end is closed
            return ""


def without_root_rights() -> dict[str, Any]:
    """Return what makes a command of root's heed the rights of files, as everybody else's does."""
    if os.geteuid() != 0:
        return {}
    if sys.platform != "linux":
        pytest.skip("Only Linux lets root give its rights up for one command.")
    return {"preexec_fn": _drop_file_rights}


def _drop_file_rights() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")


def script(folder: Path, *lines: Mapping[str, Any], name: str = "script.jsonl") -> str:
    """Write a script and return the model that plays it."""
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return f"scripted:{name}"


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    """Return a tool call of a script."""
    return {"name": tool, "arguments": arguments}


def of_type(lines: Sequence[Line], kind: str) -> list[Line]:
    """Return the events of one type."""
    return [line for line in lines if line["type"] == kind]


def one_sentence(ran: Ran) -> str:
    """Return the sentence that a refusal prints, after looking that there is one and no traceback."""
    assert "Traceback" not in ran.err, ran.err
    found = [line for line in ran.err.splitlines() if line.startswith("retinue: ")]
    assert len(found) == 1, ran.err
    return found[0]
