"""The Python door on a real loop and a real store: what a program can do to it, and what it must be told."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.core.events import ToolFinished, TurnClosed
from retinue.models.scripted import ScriptedModel
from retinue.ports import StoreError
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.checkers import all_events, check_all

HALF = "\ud800"


@retinue.tool
async def cancelled_inside() -> str:
    """Wait for something that somebody else cancelled."""
    other = asyncio.get_running_loop().create_future()
    other.cancel()
    return await other


@retinue.tool
async def quits() -> str:
    """End the process."""
    sys.exit(3)


@retinue.tool
def quits_in_a_thread() -> str:
    """End the process from a thread."""
    sys.exit(3)


def calling(name: str) -> ScriptedModel:
    return ScriptedModel([{"tool_calls": [{"name": name, "arguments": {}}]}, {"text": "went on"}])


def held(folder: Path, model: ScriptedModel, act: Callable[[retinue.Runtime], Awaitable[Any]], **more: Any) -> Any:
    async def main() -> Any:
        async with retinue.open(folder / "data", model=model, **more) as runtime:
            return await act(runtime)

    return asyncio.run(main())


def log(folder: Path) -> list[Any]:
    store = SQLiteStore(folder / "data" / "retinue.sqlite3")
    events = all_events(store)
    store.close()
    assert check_all(events) == []
    return [event.fact for event in events]


@retinue.tool
async def quits_in_a_group() -> str:
    """End the process from a task group."""
    raise BaseExceptionGroup("a group", [SystemExit(3)])


@pytest.mark.parametrize(
    "tool", [cancelled_inside, quits, quits_in_a_thread, quits_in_a_group], ids=lambda made: made.schema.name
)
def test_a_tool_that_ends_oddly_harms_its_own_call_only(tool: Any, tmp_path: Path) -> None:
    async def act(runtime: retinue.Runtime) -> retinue.TurnResult:
        root = await runtime.create_session(cwd=tmp_path)
        return await root.prompt("go").result

    result = held(tmp_path, calling(tool.schema.name), act, tools=[tool])
    assert (result.status, result.text) == ("completed", "went on")
    answers = [fact for fact in log(tmp_path) if isinstance(fact, ToolFinished)]
    assert [answer.outcome for answer in answers] == ["error"]


def test_text_that_cannot_be_stored_is_refused_and_harms_nobody_else(tmp_path: Path) -> None:
    async def refused(doing: Awaitable[Any]) -> str:
        with pytest.raises(retinue.RetinueError) as caught:
            await doing
        return caught.value.code

    async def act(runtime: retinue.Runtime) -> list[str]:
        root = await runtime.create_session(cwd=tmp_path)
        codes = [
            await refused(root.prompt(f"half {HALF}").result),
            await refused(runtime.subagents.start("spawn", parent=root, prompt=HALF)),
            await refused(runtime.subagents.start("spawn", parent=root, prompt="x", name=HALF)),
            await refused(runtime.create_session(cwd=tmp_path, name=HALF)),
        ]
        assert (await root.prompt("whole").result).status == "completed"
        return codes

    assert held(tmp_path, ScriptedModel([{"text": "fine"}]), act) == ["invalid"] * 4


def test_a_childs_result_and_dispose_answer_after_the_runtime_was_left(tmp_path: Path) -> None:
    model = ScriptedModel([{"agent": "child", "text": "late", "delay_ms": 60_000}])

    async def main() -> tuple[retinue.Run, retinue.Run]:
        async with retinue.open(tmp_path / "data", model=model) as runtime:
            root = await runtime.create_session(cwd=tmp_path)
            child = await runtime.subagents.start("spawn", parent=root, prompt="take your time")
            before = child.result
        await child.dispose()
        await child.dispose()
        return await before, await child.result

    first, second = asyncio.run(main())
    assert first == second
    assert (first.status, first.reason) == ("interrupted", "shutdown")


def test_a_mistyped_limit_is_refused(tmp_path: Path) -> None:
    async def act(runtime: retinue.Runtime) -> str:
        root = await runtime.create_session(cwd=tmp_path)
        with pytest.raises(retinue.RetinueError) as caught:
            await runtime.subagents.start("spawn", parent=root, prompt="x", max_stepz=1)
        return str(caught.value)

    assert "max_stepz" in held(tmp_path, ScriptedModel([{"text": "x"}]), act)


def test_steering_needs_an_open_turn_before_and_after_one(tmp_path: Path) -> None:
    async def act(runtime: retinue.Runtime) -> list[str]:
        codes: list[str] = []
        root = await runtime.create_session(cwd=tmp_path)
        for _ in range(2):
            with pytest.raises(retinue.RetinueError) as caught:
                await root.steer("look there")
            codes.append(caught.value.code)
            await root.prompt("go").result
        return codes

    script = ScriptedModel([{"text": "one"}, {"text": "two"}])
    assert held(tmp_path, script, act) == ["already_ended", "already_ended"]


def test_iterating_a_turn_that_was_refused_raises_what_refused_it(tmp_path: Path) -> None:
    async def act(runtime: retinue.Runtime) -> str:
        root = await runtime.create_session(cwd=tmp_path)
        first, second = root.prompt("go"), root.prompt("go too")
        with pytest.raises(retinue.RetinueError) as caught:
            async for _ in second:
                pass
        assert (await first.result).status == "completed"
        return caught.value.code

    assert held(tmp_path, ScriptedModel([{"text": "one", "delay_ms": 20}]), act) == "turn_open"


def test_an_iteration_ends_with_the_turns_end(tmp_path: Path) -> None:
    async def act(runtime: retinue.Runtime) -> list[Any]:
        root = await runtime.create_session(cwd=tmp_path)
        return [item.fact async for item in root.prompt("go") if isinstance(item, retinue.Event)]

    facts = held(tmp_path, ScriptedModel([{"text": "done"}]), act)
    assert isinstance(facts[-1], TurnClosed)
    assert len([fact for fact in facts if isinstance(fact, TurnClosed)]) == 1


def test_an_approver_is_refused_until_something_acts_on_it(tmp_path: Path) -> None:
    with pytest.raises(retinue.RetinueError) as caught:
        retinue.open(tmp_path, approver=print)
    assert caught.value.code == "unsupported"


class FullDisk(SQLiteStore):
    """A store whose disk is full once a switch is on."""

    full = False

    def commit(self, batches: Any) -> None:
        if type(self).full:
            raise StoreError("The disk is full (a planned fault).")
        super().commit(batches)


class OnFullDisk(retinue.Runtime):
    """A runtime on such a disk."""

    def open_store(self, folder: Path) -> SQLiteStore:
        return FullDisk(folder / "retinue.sqlite3")


def test_B07_what_a_child_and_a_turn_had_said_is_returned_unstored(tmp_path: Path) -> None:
    holding = asyncio.Event()

    @retinue.tool
    async def hold() -> str:
        """Wait for ever."""
        holding.set()
        return await asyncio.get_running_loop().create_future()

    @retinue.tool
    async def fill() -> str:
        """Fill the disk."""
        FullDisk.full = True
        return "full"

    script = ScriptedModel(
        [
            {"agent": "parent", "text": "I look.", "tool_calls": [{"name": "hold", "arguments": {}}]},
            {"agent": "child", "text": "the answer", "tool_calls": [{"name": "fill", "arguments": {}}]},
        ]
    )
    settings = retinue.read_settings(tmp_path / "data", model="custom")

    async def main() -> tuple[retinue.Run, retinue.TurnResult]:
        async with OnFullDisk(settings, [hold, fill], {"custom": script}) as runtime:
            root = await runtime.create_session(cwd=tmp_path)
            turn = root.prompt("go")
            await holding.wait()
            child = await runtime.subagents.start("spawn", parent=root, prompt="look")
            return await child.result, await turn.result

    try:
        run, result = asyncio.run(main())
    finally:
        FullDisk.full = False
    assert (result.status, result.reason, result.stored) == ("failed", "store_failed", False)
    assert (result.text, result.partial) == (None, "I look.")
    assert (run.status, run.reason, run.partial) == ("failed", "store_failed", "the answer")
    assert run.to_dict()["stored"] is False
