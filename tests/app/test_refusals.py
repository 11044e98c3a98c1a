"""What the Python door refuses: each with a code, one sentence and what to do; nothing is left behind."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.models.scripted import ScriptedModel
from retinue.runtime.delegate import PROMPT_MAX_CHARS
from retinue.runtime.kernel import PROMPT_MAX_CHARS as TURN_PROMPT_MAX_CHARS

SPAWNS: list[tuple[dict[str, Any], str]] = [
    ({"access": "write"}, "unsupported"),
    ({"paths": ["a.txt"]}, "unsupported"),
    ({"output_schema": {"type": "no such type"}}, "invalid"),
    ({"context": {"mode": "everything"}}, "invalid"),
    ({"context": {"mode": "selected", "seqs": [99]}}, "not_found"),
    ({"continuable": True}, "invalid"),
    ({"prompt": "  "}, "invalid"),
    ({"prompt": "x" * (PROMPT_MAX_CHARS + 1)}, "invalid"),
    ({"max_steps": 0}, "invalid"),
    ({"max_steps": 1.5}, "invalid"),
    ({"timeout_s": -1.0}, "invalid"),
    ({"timeout_s": float("nan")}, "invalid"),
    ({"max_depth": -1}, "invalid"),
    ({"max_depth": 0}, "depth_exceeded"),
    ({"tools": ["no_such_tool"]}, "unknown_tool"),
    ({"model": "nobody:x"}, "unknown_model"),
    ({"agent": "nobody"}, "unknown_agent"),
    ({"cwd": ".."}, "outside_workspace"),
    ({"cwd": "no-such-folder"}, "invalid"),
]
SESSIONS: list[tuple[dict[str, Any], str]] = [
    ({"profile": "boss"}, "invalid"),
    ({"approval": "never"}, "invalid"),
    ({"policy": "nobody"}, "invalid"),
    ({"tools": ["no_such_tool"]}, "unknown_tool"),
    ({"model": "nobody:x"}, "unknown_model"),
    ({"agent": "nobody"}, "unknown_agent"),
    ({"set": {"caps.created.root_run": 3}}, "invalid"),
    ({"set": {"no.switch": 3}}, "invalid"),
    ({"set": {"rights.default_access": "inherit"}}, "unsupported"),
]


def held(folder: Path, act: Callable[[retinue.Runtime], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        model = ScriptedModel([{"text": "fine"}, {"text": "fine again"}])
        async with retinue.open(folder / "data", model=model) as runtime:
            return await act(runtime)

    return asyncio.run(main())


async def refusal(doing: Awaitable[Any]) -> retinue.RetinueError:
    with pytest.raises(retinue.RetinueError) as caught:
        await doing
    return caught.value


def test_a_child_that_cannot_be_is_refused_and_leaves_no_orphan(tmp_path: Path) -> None:
    async def act(runtime: retinue.Runtime) -> list[str]:
        root = await runtime.create_session(cwd=tmp_path)
        codes: list[str] = []
        for asked, _ in SPAWNS:
            error = await refusal(runtime.subagents.start("spawn", parent=root, **{"prompt": "do it", **asked}))
            assert error.detail.endswith((".", "}")) or ":" in error.detail
            codes.append(error.code)
        assert await runtime.runs(root) == []
        return codes

    assert held(tmp_path, act) == [code for _, code in SPAWNS]


def test_a_session_that_cannot_be_is_refused(tmp_path: Path) -> None:
    async def act(runtime: retinue.Runtime) -> list[str]:
        return [(await refusal(runtime.create_session(cwd=tmp_path, **asked))).code for asked, _ in SESSIONS]

    assert held(tmp_path, act) == [code for _, code in SESSIONS]


def test_depth_is_refused_with_both_numbers(tmp_path: Path) -> None:
    async def act(runtime: retinue.Runtime) -> str:
        root = await runtime.create_session(cwd=tmp_path)
        return (await refusal(runtime.subagents.start("spawn", parent=root, prompt="x", max_depth=0))).detail

    detail = held(tmp_path, act)
    assert "depth 1" in detail
    assert "cap is 0" in detail


def test_two_children_started_in_turn_both_have_depth_one(tmp_path: Path) -> None:
    async def act(runtime: retinue.Runtime) -> list[int]:
        root = await runtime.create_session(cwd=tmp_path)
        depths: list[int] = []
        for _ in range(2):
            async with await runtime.subagents.start("spawn", parent=root, prompt="x", max_depth=1) as child:
                depths.append((await child.result).depth)
        return depths

    assert held(tmp_path, act) == [1, 1]


def test_a_child_may_work_in_a_folder_below(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()

    async def act(runtime: retinue.Runtime) -> retinue.Run:
        root = await runtime.create_session(cwd=tmp_path)
        asked = {"prompt": "x", "cwd": "sub", "context": "what I know", "tools": ["read_file"]}
        return await (await runtime.subagents.start("spawn", parent=root, **asked)).result

    run = held(tmp_path, act)
    assert run.cwd == str(tmp_path / "sub")
    assert run.status == "completed"


def test_turns_that_cannot_be_are_refused(tmp_path: Path) -> None:
    async def act(runtime: retinue.Runtime) -> list[str]:
        root = await runtime.create_session(cwd=tmp_path)
        child = await (await runtime.subagents.start("spawn", parent=root, prompt="x")).result
        below = await runtime.session(child.session_id)
        return [
            (await refusal(root.prompt(" ").result)).code,
            (await refusal(root.prompt("x" * (TURN_PROMPT_MAX_CHARS + 1)).result)).code,
            (await refusal(below.prompt("hello").result)).code,
            (await refusal(runtime.session("s_nobody"))).code,
            (await refusal(runtime.session_row("s_nobody"))).code,
            (await refusal(runtime.run("r_nobody"))).code,
            (await refusal(runtime.subagents.start("teleport", parent=root, prompt="x"))).code,
        ]

    assert held(tmp_path, act) == [
        "invalid",
        "too_large",
        "invalid",
        "not_found",
        "not_found",
        "not_found",
        "unsupported",
    ]


def test_a_runtime_that_is_not_open_says_so(tmp_path: Path) -> None:
    runtime = retinue.open(tmp_path / "data", model="offline")
    with pytest.raises(retinue.RetinueError) as caught:
        _ = runtime.kernel
    assert caught.value.code == "stopping"


def test_the_sync_edge_runs_one_prompt(tmp_path: Path) -> None:
    model = ScriptedModel([{"text": "fine"}])
    result = retinue.run("go", data_dir=tmp_path / "data", model=model, cwd=tmp_path)
    assert result.to_dict()["text"] == "fine"
    assert result.stored


def test_a_role_delegates_only_to_the_roles_it_names(tmp_path: Path) -> None:
    roles = tmp_path / ".agents" / "agents"
    roles.mkdir(parents=True)
    lead = "---\nname: lead\ndescription: leads\nspawns: explorer\n---\nLead.\n"
    (roles / "lead.md").write_text(lead, encoding="utf-8")
    calls = [{"name": "spawn_agent", "arguments": {"prompt": "x", "agent": name}} for name in ("worker", "explorer")]
    model = ScriptedModel(
        [{"agent": "parent", "tool_calls": calls}, {"agent": "child", "text": "done"}]
        + [{"agent": "parent", "text": "noted"} for _ in range(3)]
    )

    async def main() -> list[retinue.Run]:
        async with retinue.open(tmp_path / "data", model=model) as runtime:
            root = await runtime.create_session(cwd=tmp_path, agent="lead")
            await root.prompt("go").result
            return await runtime.runs(root)

    assert [run.agent for run in asyncio.run(main())] == ["builtin:explorer"]
