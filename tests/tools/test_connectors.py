"""Tools of MCP servers, real ones over stdio and HTTP: what a server does wrong harms one call."""

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from retinue.app import RealClock
from retinue.core.errors import RetinueError
from retinue.ports import Tool, ToolContext, ToolResult
from retinue.tools.connectors import Connectors, expanded, servers_of, text_of, tool_name
from retinue.tools.mcplink import STARTS_IN_A_ROW_MAX

pytest.importorskip("mcp", reason="the extra mcp is not installed")

SERVERS = Path(__file__).parent / "mcp_servers"
PYTHON = sys.executable


def demo(**more: Any) -> dict[str, Any]:
    return {"command": PYTHON, "args": [str(SERVERS / "demo.py")], "startup_timeout_s": 60.0, **more}


def odd(kind: str, **more: Any) -> dict[str, Any]:
    return {"command": PYTHON, "args": [str(SERVERS / "odd.py"), kind], "startup_timeout_s": 30.0, **more}


@asynccontextmanager
async def connected(tables: Mapping[str, Any], cwd: str = ".") -> AsyncGenerator[Connectors]:
    servers, problems = servers_of(tables, dict(os.environ), cwd)
    connectors = Connectors()
    connectors.problems += problems
    try:
        await connectors.connect(servers, asyncio.create_task, RealClock())
        yield connectors
    finally:
        await connectors.close()


async def ask(connectors: Connectors, name: str, **arguments: Any) -> ToolResult:
    tool = next(tool for tool in connectors.tools if tool.schema.name == name)
    return await tool.call(cast("ToolContext", None), arguments)


def play(scene: Callable[[Connectors], Awaitable[None]], tables: Mapping[str, Any], cwd: str = ".") -> None:
    async def main() -> None:
        async with asyncio.timeout(120), connected(tables, cwd) as connectors:
            await scene(connectors)

    asyncio.run(main())


async def until(path: Path, word: str) -> None:
    """Return once a server has noted a word."""
    await asyncio.to_thread(_until, lambda: path.exists() and word in path.read_text())


async def until_gone(pid: int) -> None:
    """Return once a process has ended."""
    await asyncio.to_thread(_until, lambda: not _lives(pid))


def _until(is_so: Callable[[], bool]) -> None:
    beat = threading.Event()
    while not is_so():
        beat.wait(0.01)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_servers_tools_are_called_by_a_name_that_says_whose_they_are() -> None:
    async def scene(connectors: Connectors) -> None:
        schema = next(tool.schema for tool in connectors.tools if tool.schema.name == "mcp__demo__add")
        assert schema.description == "Add two numbers."
        assert set(schema.parameters["properties"]) == {"a", "b"}
        assert await ask(connectors, "mcp__demo__add", a=1, b=2) == ToolResult(text="3")
        failed = await ask(connectors, "mcp__demo__fail")
        assert (failed.outcome, "fail" in failed.text) == ("error", True)
        wrong = await ask(connectors, "mcp__demo__add", a="x")
        assert wrong.outcome == "error"

    play(scene, {"demo": demo()})


def test_ten_mebibytes_are_passed_on_and_more_than_sixteen_are_an_error_of_one_call() -> None:
    async def scene(connectors: Connectors) -> None:
        large = await ask(connectors, "mcp__demo__large", mebibytes=10)
        assert (large.outcome, len(large.text) > 10_000_000) == ("ok", True)
        larger = await ask(connectors, "mcp__demo__large", mebibytes=17)
        assert (larger.outcome, len(larger.text) < 1000) == ("error", True)
        assert (await ask(connectors, "mcp__demo__add", a=1, b=1)).text == "2"

    play(scene, {"demo": demo()})


def test_a_server_that_dies_in_a_call_harms_that_call_and_is_started_again_for_the_next(tmp_path: Path) -> None:
    async def scene(connectors: Connectors) -> None:
        died = await ask(connectors, "mcp__demo__die")
        assert died.outcome == "error"
        assert "is gone" in died.text
        assert "about to die" in died.text
        both = [ask(connectors, "mcp__demo__add", a=n, b=1) for n in range(5)]
        assert [result.text for result in await asyncio.gather(*both)] == ["1", "2", "3", "4", "5"]
        assert (tmp_path / "notes").read_text().count("started") == 2

    play(scene, {"demo": demo(env={"NOTES": str(tmp_path)})})


def test_a_server_that_always_dies_is_not_started_for_ever() -> None:
    async def scene(connectors: Connectors) -> None:
        said = [(await ask(connectors, "mcp__odd__go")).text for _ in range(STARTS_IN_A_ROW_MAX + 2)]
        assert all("is gone" in text for text in said[:STARTS_IN_A_ROW_MAX])
        assert all("is not started again" in text for text in said[STARTS_IN_A_ROW_MAX:])

    play(scene, {"odd": odd("always dies")})


def test_a_call_that_hangs_ends_with_its_time_and_a_cancelled_one_at_once_and_the_server_hears_of_both(
    tmp_path: Path,
) -> None:
    async def scene(connectors: Connectors) -> None:
        late = await ask(connectors, "mcp__demo__hang")
        assert late.outcome == "error"
        assert "did not answer within 1 s" in late.text
        await until(tmp_path / "notes", "cancelled")
        (tmp_path / "notes").unlink()
        call = asyncio.create_task(ask(connectors, "mcp__demo__hang"))
        await until(tmp_path / "notes", "hanging")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(tmp_path / "notes", "cancelled")
        assert (await ask(connectors, "mcp__demo__add", a=2, b=2)).text == "4"

    play(scene, {"demo": demo(env={"NOTES": str(tmp_path)}, call_timeout_s=1.0)})


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("floods", "that answer nothing"),
        ("asks", "it asked 1001 questions"),
        ("answers", "that answer nothing"),
        ("one line", "a message of more than"),
        ("unreadable", "an answer that cannot be read"),
    ],
)
def test_a_server_that_floods_is_ended_and_harms_one_call(kind: str, why: str) -> None:
    async def scene(connectors: Connectors) -> None:
        result = await ask(connectors, "mcp__odd__go")
        assert result.outcome == "error"
        assert why in result.text
        assert (await ask(connectors, "mcp__demo__add", a=2, b=2)).text == "4"

    play(scene, {"odd": odd(kind), "demo": demo()})


def test_a_pattern_in_a_servers_own_schema_freezes_nobody() -> None:
    async def scene(connectors: Connectors) -> None:
        assert (await ask(connectors, "mcp__odd__go")).outcome == "ok"

    play(scene, {"odd": odd("pattern")})


def test_a_server_that_reads_nothing_holds_up_no_cancel_and_is_started_anew(tmp_path: Path) -> None:
    async def scene(connectors: Connectors) -> None:
        call = asyncio.create_task(ask(connectors, "mcp__odd__go"))
        await until(tmp_path / "note", "deaf")
        call.cancel()
        began = asyncio.get_running_loop().time()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert asyncio.get_running_loop().time() - began < 2.0
        late = await ask(connectors, "mcp__odd__go")
        assert "did not answer within 1 s" in late.text
        (tmp_path / "note").write_text("hear")
        assert (await ask(connectors, "mcp__odd__go")).outcome == "ok"

    play(scene, {"odd": odd("deaf", env={"NOTES": str(tmp_path / "note")}, call_timeout_s=1.0)})


def test_what_a_server_writes_cannot_pass_for_a_line_of_ours() -> None:
    async def scene(connectors: Connectors) -> None:
        (problem,) = connectors.problems
        assert "all is well" in problem
        assert problem.isprintable()

    play(scene, {"odd": odd("dies", args=[str(SERVERS / "odd.py"), "dies", "\n\x1b[2Jretinue: all is well"])})


def test_what_came_from_the_environment_is_never_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(connectors: Connectors) -> None:
        (problem,) = connectors.problems
        assert "no such thing" in problem
        assert "sk-very-secret" not in problem

    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    play(scene, {"odd": odd("dies", args=[str(SERVERS / "odd.py"), "dies", "${MY_KEY}"])})


def test_notifications_and_stray_output_before_an_answer_are_passed_over() -> None:
    async def scene(connectors: Connectors) -> None:
        assert (await ask(connectors, "mcp__demo__notify", count=20_000)).text == "done"
        assert (await ask(connectors, "mcp__demo__garbage", lines=20_000)).text == "done"

    play(scene, {"demo": demo()})


def test_servers_that_cannot_be_opened_are_said_one_by_one_and_the_others_are_there() -> None:
    async def scene(connectors: Connectors) -> None:
        assert {tool.schema.name.split("__")[1] for tool in connectors.tools} == {"demo"}
        said = "\n".join(connectors.problems)
        assert "'silent' did not start within 1 s" in said
        assert "'rubbish' could not be started: it sent 100001 messages" in said
        assert "'dies' could not be started" in said
        assert "no such thing" in said
        assert "secret-of-mine" not in said
        assert "'nowhere' could not be started" in said
        assert "'both' is left out" in said
        assert "'unset' is left out: invalid: the variable NO_SUCH_VARIABLE is not set" in said or "NO_SUCH" in said
        assert "'typo' is left out" in said
        assert len(connectors.problems) == 7

    tables = {
        "silent": odd("silent", startup_timeout_s=1.0),
        "rubbish": odd("rubbish"),
        "dies": odd("dies", env={"KEY": "secret-of-mine"}),
        "nowhere": {"command": "/no/such/program"},
        "both": {"command": "x", "url": "http://127.0.0.1:1/mcp"},
        "unset": {"command": "${NO_SUCH_VARIABLE}"},
        "typo": {"comand": "x"},
        "off": {"command": "/no/such/program", "enabled": False},
        "demo": demo(),
    }
    play(scene, tables)


def test_names_are_such_as_every_provider_takes_and_no_two_are_the_same() -> None:
    async def scene(connectors: Connectors) -> None:
        names = [tool.schema.name for tool in connectors.tools]
        assert names[:1] == ["mcp__odd__a_b"]
        assert len(names) == len(set(names)) == 3
        assert all(len(name) <= 64 for name in names)
        said = "\n".join(connectors.problems)
        assert "'a_b' of the MCP server 'odd' is left out: another tool has that name" in said
        assert "its parameters take more than 65536 bytes" in said

    play(scene, {"odd": odd("names")})


def test_only_the_tools_that_are_wanted_are_taken() -> None:
    async def scene(connectors: Connectors) -> None:
        assert [tool.schema.name for tool in connectors.tools] == ["mcp__demo__add"]

    play(scene, {"demo": demo(tools=["add", "die"], disabled_tools=["die"])})


def test_a_servers_process_has_nothing_of_our_environment_that_could_be_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(connectors: Connectors) -> None:
        names = (await ask(connectors, "mcp__demo__variables")).text.split()
        assert "OPENAI_API_KEY" not in names
        assert {"PATH", "MINE"} <= set(names)

    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    play(scene, {"demo": demo(env={"MINE": "${OPENAI_API_KEY}"})})


def test_nothing_of_a_server_is_left_when_the_runtime_closes(tmp_path: Path) -> None:
    note = tmp_path / "child"

    async def main() -> None:
        async with connected({"odd": odd("forks", env={"NOTES": str(note)}), "stays": odd("stays")}) as connectors:
            assert (await ask(connectors, "mcp__odd__go")).text == "went"
            assert (await ask(connectors, "mcp__stays__go")).text == "went"
        await until_gone(int(note.read_text()))

    asyncio.run(asyncio.wait_for(main(), 60))


@contextmanager
def served(kind: str, notes: Path, port: int = 0) -> Generator[int]:
    """Run the demo server over HTTP and yield its port."""
    command = [PYTHON, str(SERVERS / "demo.py"), kind, str(port)]
    environment = {**os.environ, "NOTES": str(notes)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout is not None
            yield int(server.stdout.readline())
        finally:
            server.kill()


def test_a_server_over_http_is_called_cancelled_and_may_come_back(tmp_path: Path) -> None:
    async def scene(connectors: Connectors) -> None:
        assert (await ask(connectors, "mcp__web__add", a=1, b=2)).text == "3"
        assert len((await ask(connectors, "mcp__web__large", mebibytes=10)).text) > 10_000_000
        call = asyncio.create_task(ask(connectors, "mcp__web__hang"))
        await until(tmp_path / "notes", "hanging")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(tmp_path / "notes", "cancelled")
        died = await ask(connectors, "mcp__web__die")
        assert died.outcome == "error"
        nobody = await ask(connectors, "mcp__web__add", a=1, b=2)
        assert nobody.outcome == "error"
        assert "secret" not in nobody.text
        with served("http", tmp_path, port):
            assert (await ask(connectors, "mcp__web__add", a=1, b=2)).text == "3"

    with served("http", tmp_path) as port:
        url = f"http://127.0.0.1:{port}/mcp"
        play(scene, {"web": {"url": url, "headers": {"X-Key": "secret"}, "call_timeout_s": 20.0}})


def test_a_server_of_the_older_form_is_called_too(tmp_path: Path) -> None:
    async def scene(connectors: Connectors) -> None:
        assert (await ask(connectors, "mcp__web__add", a=1, b=2)).text == "3"

    with served("sse", tmp_path) as port:
        play(scene, {"web": {"url": f"http://127.0.0.1:{port}/sse", "transport": "sse", "call_timeout_s": 20.0}})


def test_variables_are_filled_in_and_one_that_is_not_set_is_said() -> None:
    used: list[str] = []
    environment = {"B": "b", "EMPTY": ""}
    assert expanded("a ${B} ${C:-d} ${E:-} ${EMPTY} ${EMPTY:-f}", environment, used) == "a b d   f"
    assert used == ["b", "", ""]
    with pytest.raises(RetinueError, match="NOPE is not set"):
        expanded("${NOPE}", {}, used)


def test_long_names_keep_apart() -> None:
    names = {tool_name("server", "x" * 80 + str(n)) for n in range(10)}
    assert len(names) == 10
    assert all(len(name) == 64 for name in names)


class Part:
    def __init__(self, **keys: Any) -> None:
        self.__dict__.update(keys)


def test_what_is_no_text_is_named() -> None:
    parts = [
        Part(type="text", text="words"),
        Part(type="image", mime_type="image/png", data="A" * 400),
        Part(type="resource_link", name="file", uri="file:///x"),
        Part(type="resource", resource=Part(text="inside")),
        Part(type="resource", resource=Part(blob="AAAA")),
    ]
    said = text_of(Part(content=parts, structured_content=None))
    assert (
        said
        == "words\n[image image/png, 300 bytes, not shown]\n[resource file: file:///x]\ninside\n[resource, not shown]"
    )
    assert text_of(Part(content=[], structured_content={"a": 1})) == '{"a":1}'
    assert text_of(Part(content=[], structured_content=None)) == "(no content)"


def test_without_servers_nothing_is_loaded() -> None:
    tools: list[Tool] = []

    async def main() -> None:
        connectors = Connectors()
        await connectors.connect([], asyncio.create_task, RealClock())
        tools.extend(connectors.tools)
        await connectors.close()

    asyncio.run(main())
    assert tools == []
