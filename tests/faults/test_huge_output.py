"""What went wrong elsewhere with huge outputs (B97, B99), through real tools of a person's own, for main and child."""

from pathlib import Path
from typing import Any

from retinue.testing.modelserver import ModelServer
from tests.e2e.kit import Line, Ran, call, of_type, retinue

RESULT_MAX_CHARS = 48_000
NOTE_MAX_CHARS = 300
REQUEST_MAX_BYTES = 600_000
LINE_BYTES = 8_000_000
TOOLS = '''
import subprocess
import sys

def flood() -> str:
    """Print 8 MB in one line from a process, a character of several bytes at every place where it may be cut."""
    code = "import sys; sys.stdout.buffer.write(('x' + '🪐' * 2_000_000)[:2_000_001].encode()[:8_000_000])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    return done.stdout.decode("utf-8", "replace")

async def mixed() -> str:
    """Return 8 MB in one line that is ASCII up to the cut."""
    return "a" * 47_999 + "é" * 4_000_000
'''
SCRIPT: tuple[dict[str, Any], ...] = (
    {
        "agent": "parent",
        "n": 1,
        "tool_calls": [call("flood"), call("mixed"), call("spawn_agent", prompt="[child] do the same", mode="await")],
    },
    {"agent": "parent", "n": 2, "text": "done"},
    {"agent": "child", "n": 1, "tool_calls": [call("flood"), call("mixed")]},
    {"agent": "child", "n": 2, "text": "the child is done"},
)


def _run(folder: Path, server: ModelServer) -> Ran:
    (folder / "mine.py").write_text(TOOLS, encoding="utf-8")
    env = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "k"}
    tools = ("--tools", "mine:flood", "--tools", "mine:mixed")
    return retinue(folder, "run", "--model", "openai:any", *tools, "go", "--json", env=env)


def test_B99_a_tool_that_prints_8_mb_in_one_line_is_cut_the_same_way_in_main_and_child(tmp_path: Path) -> None:
    with ModelServer(SCRIPT) as server:
        ran = _run(tmp_path, server)
        assert (ran.code, server.faults) == (0, []), ran.err
        sizes = [len(str(request.messages).encode()) for request in server.requests]
    assert len(sizes) == 4
    assert max(sizes) <= REQUEST_MAX_BYTES, "no request holds what a tool printed whole"
    lines = ran.lines()
    root = lines[0]["session_id"]
    cut = {line["call_id"]: line for line in of_type(lines, "tool.finished") if line["cut"]}
    assert len(cut) == 4
    assert sum(line["session_id"] == root for line in cut.values()) == 2
    for line in cut.values():
        _require_cut(line)
    shown = sorted(line["text"].split("\n")[0] for line in cut.values())
    assert shown[0] == shown[1]
    assert shown[2] == shown[3]


def _require_cut(line: Line) -> None:
    text, note = line["text"].split("\n", 1)
    assert len(text) <= RESULT_MAX_CHARS
    assert len(text) + len(note) <= RESULT_MAX_CHARS + NOTE_MAX_CHARS
    assert line["output_id"] in note
    assert str(RESULT_MAX_CHARS) in note
    assert "\ufffd" not in text, "it was cut between two characters"
    assert text.rstrip("🪐") == "x" if text.startswith("x") else text == "a" * 47_999 + "é"


def test_B97_what_was_cut_is_kept_whole_and_read_in_slices_by_the_session_that_made_it(tmp_path: Path) -> None:
    made = ({"agent": "parent", "n": 1, "tool_calls": [call("mixed")]}, {"agent": "parent", "n": 2, "text": "first"})
    with ModelServer(made) as server:
        first = _run(tmp_path, server).lines()
    (cut,) = [line for line in of_type(first, "tool.finished") if line["cut"]]
    asked = call("read_agent_output", id=cut["output_id"], offset=47_998, limit=4)
    more = ({"agent": "parent", "n": 1, "tool_calls": [asked]}, {"agent": "parent", "n": 2, "text": "done"})
    with ModelServer(more) as server:
        env = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "k"}
        lines = retinue(tmp_path, "run", "--continue", "go on", "--json", env=env).lines()
    (read,) = of_type(lines, "tool.finished")
    assert '"text":"aééé"' in read["text"]
    assert f'"total_chars":{47_999 + 4_000_000}' in read["text"]
