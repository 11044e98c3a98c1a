"""Tools of MCP servers through the command: whose they are, what a project's file may start, what a kill leaves."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kit import Ran, Running, retinue
from tests.tools.test_connectors import SERVERS, _lives, _until

pytest.importorskip("mcp", reason="the extra mcp is not installed")

ADD = {"name": "mcp__demo__add", "arguments": {"a": 20, "b": 22}}


def _config(folder: Path, **more: str) -> None:
    env = ", ".join(f"{key} = {json.dumps(value)}" for key, value in more.items())
    (folder / ".retinue").mkdir(exist_ok=True)
    (folder / ".retinue" / "config.toml").write_text(
        f"[mcp.demo]\ncommand = {json.dumps(sys.executable)}\nargs = [{json.dumps(str(SERVERS / 'demo.py'))}]\n"
        f"startup_timeout_s = 60\nenv = {{ {env} }}\n"
    )


def _script(folder: Path, *lines: dict[str, Any]) -> str:
    (folder / "script.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return f"scripted:{folder / 'script.jsonl'}"


def _spawn(name: str, **more: Any) -> dict[str, Any]:
    return {"name": "spawn_agent", "arguments": {"name": name, "prompt": "add", "mode": "await", **more}}


def _answers(ran: Ran) -> list[tuple[str, str | None, str]]:
    """Return how each call of a server's tool ended, in the order of the log."""
    events = ran.lines()
    calls = {call["call_id"] for e in events if e["type"] == "message.assistant" for call in e["tool_calls"]
             if call["name"].startswith("mcp__")}  # fmt: skip
    ended = [event for event in events if event["type"] == "tool.finished" and event["call_id"] in calls]
    return [(event["outcome"], event["code"], event["text"]) for event in ended]


def test_the_main_session_has_a_servers_tools_and_a_child_only_by_name(tmp_path: Path) -> None:
    _config(tmp_path)
    (tmp_path / ".agents" / "agents").mkdir(parents=True)
    (tmp_path / ".agents" / "agents" / "adder.md").write_text(
        "---\nname: adder\ndescription: Adds.\ntools: read_file, mcp__demo__*\n---\nAdd.\n"
    )
    lines = [
        {"agent": "parent", "tool_calls": [ADD]},
        {"agent": "parent", "tool_calls": [_spawn("without")]},
        {"agent": "parent", "tool_calls": [_spawn("asked", tools=["mcp__demo__add"])]},
        {"agent": "parent", "tool_calls": [_spawn("role", agent="adder")]},
        {"agent": "parent", "tool_calls": [_spawn("narrowed", agent="adder", tools=["read_file"])]},
        {"agent": "parent", "text": "42"},
        {"agent": "child", "tool_calls": [ADD]},
        {"agent": "child", "text": "done"},
    ]
    ran = retinue(tmp_path, "run", "--json", "--model", _script(tmp_path, *lines), "add")
    assert ran.code == 0, ran.err
    outcomes = [(outcome, code, text if outcome == "ok" else "") for outcome, code, text in _answers(ran)]
    refused = ("refused", "unknown_tool", "")
    assert outcomes == [("ok", None, "42"), refused, ("ok", None, "42"), ("ok", None, "42"), refused]


def test_a_profile_that_only_reads_has_none(tmp_path: Path) -> None:
    _config(tmp_path)
    model = _script(tmp_path, {"tool_calls": [ADD]}, {"text": "no"})
    ran = retinue(tmp_path, "run", "--json", "--profile", "plan", "--model", model, "add")
    assert [(outcome, code) for outcome, code, _ in _answers(ran)] == [("refused", "unknown_tool")]


def test_a_projects_own_file_acts_once_its_content_is_trusted_and_not_after_a_change(tmp_path: Path) -> None:
    project, home = tmp_path / "project", {"HOME": str(tmp_path)}
    project.mkdir()
    table = {"command": sys.executable, "args": [str(SERVERS / "demo.py")], "env": {"NOTES": str(tmp_path)}}
    file = project / ".mcp.json"
    file.write_text(json.dumps({"mcpServers": {"demo": {"type": "stdio", **table}}}))
    command = ("run", "--json", "--model", _script(tmp_path, {"tool_calls": [ADD]}, {"text": "end"}), "add")
    started = tmp_path / "notes"

    untrusted = retinue(project, *command, env=home)
    assert [(outcome, code) for outcome, code, _ in _answers(untrusted)] == [("refused", "unknown_tool")]
    assert "retinue trust" in untrusted.err
    assert "nobody has trusted this content yet" in retinue(project, "doctor", env=home).out
    assert not started.exists()

    assert retinue(project, "trust", env=home).code == 0
    assert "demo (not started by this check)" in retinue(project, "doctor", env=home).out
    assert not started.exists()
    trusted = retinue(project, *command, env=home)
    assert [text for _, _, text in _answers(trusted)] == ["42"], trusted.err
    assert started.exists()

    started.unlink()
    file.write_text(file.read_text() + " ")
    changed = retinue(project, *command, env=home)
    assert [code for _, code, _ in _answers(changed)] == ["unknown_tool"]
    assert not started.exists()


def test_the_whole_of_ten_mebibytes_stays_readable_by_its_id(tmp_path: Path) -> None:
    _config(tmp_path)
    large = {"name": "mcp__demo__large", "arguments": {"mebibytes": 10}}
    model = _script(tmp_path, {"tool_calls": [large]}, {"text": "end"})
    ran = retinue(tmp_path, "run", "--json", "--model", model, "fetch")
    (event,) = [event for event in ran.lines() if event["type"] == "tool.finished"]
    assert (event["outcome"], event["cut"]) == ("ok", True)
    assert len(event["text"]) < 50_000
    assert f"of {10 * 1024 * 1024 // 1025 * 1025} characters" in event["text"]
    assert event["output_id"].startswith("o_")


def test_a_server_that_cannot_start_is_said_and_the_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / ".retinue").mkdir()
    (tmp_path / ".retinue" / "config.toml").write_text('[mcp.gone]\ncommand = "/no/such/program"\n')
    ran = retinue(tmp_path, "run", "--model", _script(tmp_path, {"text": "fine"}), "go")
    assert (ran.code, ran.out) == (0, "fine\n")
    assert "'gone' could not be started" in ran.err


def test_a_kill_of_the_owner_leaves_no_server_behind(tmp_path: Path) -> None:
    _config(tmp_path, NOTES=str(tmp_path))
    hang = {"name": "mcp__demo__hang", "arguments": {}}
    notes = tmp_path / "notes"
    with Running(tmp_path, "run", "--json", "--model", _script(tmp_path, {"tool_calls": [hang]}), "go") as running:
        _until(lambda: notes.exists() and "hanging" in notes.read_text())
        server = int(notes.read_text().split()[1])
        assert _lives(server)
        os.kill(running.process.pid, signal.SIGKILL)
        running.process.wait()
        _until(lambda: not _lives(server))


def _silent(folder: Path) -> None:
    """Have a server that notes its start and never says a word."""
    program = folder / "silent.py"
    program.write_text("import os, sys, time\nopen(sys.argv[1], 'w').write(str(os.getpid()))\ntime.sleep(600)\n")
    (folder / ".retinue").mkdir()
    (folder / ".retinue" / "config.toml").write_text(
        f"[mcp.silent]\ncommand = {json.dumps(sys.executable)}\n"
        f"args = [{json.dumps(str(program))}, {json.dumps(str(folder / 'pid'))}]\nstartup_timeout_s = 600\n"
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_while_a_server_starts_ends_the_command_and_the_server(tmp_path: Path, number: int) -> None:
    _silent(tmp_path)
    pid = tmp_path / "pid"
    with Running(tmp_path, "run", "--model", _script(tmp_path, {"text": "never"}), "go") as running:
        _until(lambda: pid.exists() and bool(pid.read_text()))
        running.process.send_signal(number)
        assert running.process.wait(timeout=20) in (3, 130)
        _until(lambda: not _lives(int(pid.read_text())))


def test_commands_that_run_no_turn_start_no_server(tmp_path: Path) -> None:
    model = _script(tmp_path, {"text": "fine"})
    session = retinue(tmp_path, "run", "--json", "--model", model, "go").lines()[0]["session_id"]
    (tmp_path / ".retinue" / "config.toml").unlink(missing_ok=True)
    folder = tmp_path / "other"
    folder.mkdir()
    _silent(folder)
    (folder / ".retinue" / "config.toml").rename(tmp_path / ".retinue" / "config.toml")
    for command in (("runs", "list"), ("switch", "off"), ("switch", "on"), ("sessions", "delete", session)):
        assert retinue(tmp_path, *command).code == 0
    assert not (folder / "pid").exists()
