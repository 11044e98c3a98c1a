"""Whole runs through `retinue.open` with Anthropic behind a connection: parents, children, and forks to other kinds."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.core.events import Event, MessageAssistant
from retinue.settings import Settings
from retinue.testing.modelserver import ModelServer
from tests.models.replyserver import Item, ReplyServer, Seen, Strict, begin, end, said, text, thinking, tool

pytest.importorskip("pydantic_ai", reason="the extra `providers` is not installed")
pytest.importorskip("anthropic", reason="the extra `providers` is not installed")

CHILD = "Count the files."
SPAWN = json.dumps({"prompt": CHILD, "name": "counter", "mode": "await"})
DELEGATE: list[Item] = [
    begin(),
    *thinking(0, "A helper can count.", "sig-parent"),
    *text(1, "I ask a helper."),
    *tool(2, "toolu_1", "spawn_agent", SPAWN),
    *end("tool_use"),
]


def plays(seen: Seen) -> list[Item]:
    """Answer as parent or child, by what the conversation begins with and by whether it holds a result."""
    first, last = seen.body["messages"][0]["content"], seen.body["messages"][-1]["content"]
    if CHILD in json.dumps(first):
        return [begin(), *thinking(0, "One, two, three.", "sig-child"), *text(1, "Three files."), *end("end_turn")]
    return said("The helper counted three.") if last[0]["type"] == "tool_result" else DELEGATE


def settings(folder: Path, anthropic: ReplyServer, openai: ModelServer | None = None) -> Settings:
    connections: dict[str, dict[str, Any]] = {
        "claude": {"kind": "anthropic", "base_url": anthropic.base_url, "api_key_env": "TEAM_KEY"}
    }
    if openai is not None:
        connections["local"] = {"base_url": openai.base_url}
    return Settings(data_dir=folder / "data", environ={"TEAM_KEY": "team-key"}, connections=connections)


def strict() -> Strict:
    return Strict("sig-parent", "sig-child")


def test_an_anthropic_parent_delegates_to_an_anthropic_child(tmp_path: Path) -> None:
    async def play() -> tuple[str | None, list[Any]]:
        async with retinue.open(settings=settings(tmp_path, server), model="claude:claude-fake") as runtime:
            root = await runtime.create_session(cwd=tmp_path)
            result = await root.prompt("How many files are there?").result
            return result.text, await runtime.runs(root)

    with ReplyServer(plays, complaint=strict()) as server:
        answer, runs = asyncio.run(play())
        assert server.faults == []
        requests = server.requests
    assert answer == "The helper counted three."
    assert [(run.status, run.output) for run in runs] == [("completed", "Three files.")]
    assert {seen.headers.get("authorization") or seen.headers.get("x-api-key") for seen in requests} <= {
        "Bearer team-key",
        "team-key",
    }
    parent = requests[-1].body["messages"]
    assert [block["type"] for block in parent[1]["content"]] == ["thinking", "text", "tool_use"]
    assert parent[1]["content"][0] == {
        "type": "thinking",
        "thinking": "A helper can count.",
        "signature": "sig-parent",
    }
    assert (parent[1]["content"][2]["id"], parent[2]["content"][0]["tool_use_id"]) == ("toolu_1", "toolu_1")


def test_an_openai_parent_gives_its_child_an_anthropic_model(tmp_path: Path) -> None:
    spawn = {"prompt": CHILD, "mode": "await", "model": "claude:claude-fake"}
    script = [{"tool_calls": [{"name": "spawn_agent", "arguments": spawn}]}, {"text": "It says three."}]

    async def play() -> tuple[str | None, list[Any]]:
        async with retinue.open(settings=settings(tmp_path, server, other), model="local:gpt") as runtime:
            root = await runtime.create_session(cwd=tmp_path)
            result = await root.prompt("How many files are there? Have claude count.").result
            return result.text, await runtime.runs(root)

    with ReplyServer(plays, complaint=strict()) as server, ModelServer(script) as other:
        answer, runs = asyncio.run(play())
        assert (server.faults, other.faults, len(server.requests)) == ([], [], 1)
        assert server.requests[0].body["model"] == "claude-fake"
    assert answer == "It says three."
    assert [(run.status, run.output, run.usage.input) for run in runs] == [("completed", "Three files.", 130)]


def test_a_fork_to_another_kind_of_model_carries_no_thoughts(tmp_path: Path) -> None:
    async def play() -> tuple[list[Any], str | None]:
        async with retinue.open(settings=settings(tmp_path, server, other), model="claude:claude-fake") as runtime:
            root = await runtime.create_session(cwd=tmp_path)
            facts = [item.fact async for item in root.prompt("How many files are there?") if isinstance(item, Event)]
            child = await runtime.subagents.start("fork", parent=root, prompt="And now?", model="local:gpt")
            settlement = await child.result
            await child.dispose()
            return facts, settlement.output

    with ReplyServer(plays, complaint=strict()) as server, ModelServer([{"text": "Still three."}]) as other:
        facts, output = asyncio.run(play())
        assert (server.faults, other.faults, len(other.requests)) == ([], [], 1)
        forked = json.dumps(other.requests[0].body)
    assert output == "Still three."
    kept = [fact.kept for fact in facts if isinstance(fact, MessageAssistant) and fact.kept is not None]
    assert "sig-parent" in kept[0].body
    assert "The helper counted three." in forked
    assert "I ask a helper." in forked
    assert "sig-parent" not in forked
    assert "A helper can count." not in forked
