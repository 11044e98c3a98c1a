"""On a terminal: the live tree on stderr, the text after it, and no control character of a model in either."""

import json
import os
import pty
import re
import subprocess
from pathlib import Path

from tests.e2e.kit import COMMAND, call, environment, script

OWN_SEQUENCES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
EVIL = "\x1b]0;owned\x07\x1b[2J\u202eabc\x9b31m\x00"


def _on_terminal(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run a command with all its ends on a terminal and return its code and everything the terminal got."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, *arguments], cwd=folder, env=environment(folder), stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        got = b""
        while data := _read(ours):
            got += data
    os.close(ours)
    return process.returncode, got.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # Linux says so when the other end is closed
        return b""


def _model(folder: Path) -> str:
    return script(
        folder,
        {"agent": "parent", "text": EVIL, "tool_calls": [call("spawn_agent", prompt="x", name=f"kid{EVIL}")]},
        *({"agent": "parent", "n": n, "text": f"final {EVIL} text"} for n in range(2, 5)),
        {"agent": "child", "text": EVIL, "usage": {"input": 1500, "output": 3}},
    )


def test_the_live_tree_shows_each_session_and_the_text_comes_after_it(tmp_path: Path) -> None:
    code, got = _on_terminal(tmp_path, "run", "--model", _model(tmp_path), "go")
    plain = OWN_SEQUENCES.sub("", got)
    assert code == 0
    assert re.search(r"✓ main +completed +[0-9.]+ s +[23] +\?", plain)
    assert re.search(r"✓ kid.* completed .* 1 +1\.5k", plain)
    assert plain.rstrip().splitlines()[-1].startswith("final ")
    assert got.count("\x1b[?25l") == got.count("\x1b[?25h"), "the cursor is given back"


def test_no_control_character_of_a_model_reaches_the_terminal(tmp_path: Path) -> None:
    model = _model(tmp_path)
    shown = [_on_terminal(tmp_path, "run", "--model", model, "go")[1]]
    _, lines = _on_terminal(tmp_path, "run", "--model", model, "go", "--json")
    root = json.loads(lines.splitlines()[0])["session_id"]
    reading = (("tree", root), ("runs", "list"), ("sessions", "show", root), ("runs", "list", "--json"))
    shown += [_on_terminal(tmp_path, *arguments)[1] for arguments in reading]
    for got in [*shown, lines]:
        plain = OWN_SEQUENCES.sub("", got)
        assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", plain)
    assert "\x1b[2J" not in "".join(shown)


def test_without_a_prompt_a_terminal_is_not_waited_for(tmp_path: Path) -> None:
    code, got = _on_terminal(tmp_path, "run", "--model", "offline")
    assert (code, "There is no prompt" in got) == (2, True)
