"""Hooks as a program gives them: what is none is refused at once, and what never comes back takes nothing along."""

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import retinue
from retinue.core.events import HookFailed, ToolFinished
from retinue.models.scripted import ScriptedModel
from retinue.runtime.hooks import BLOCKED_S, THREADS_MAX

POINT = "agent.tool.before"


class Own:
    """A hook that is made by hand."""

    name: Any = "own"
    points: Any = frozenset((POINT,))
    timeout_s: Any = 5.0

    def __init__(self, **other: Any) -> None:
        self.__dict__.update(other)

    async def call(self, event: retinue.HookEvent, offload: Callable[..., Any]) -> None:
        """Allow."""


async def plain(_: retinue.HookEvent) -> None:
    """Allow, but nobody made a hook of it."""


NO_HOOKS: dict[str, Any] = {
    "a function": [plain],
    "the decorator": [retinue.hook],
    "a decorator that was not finished": [retinue.hook(POINT)],
    "null": [None],
    "a class": [Own],
    "a name": ["module:hook"],
    "one hook instead of a list": retinue.hook(POINT)(plain),
    "a text": "hooks",
    "no points": [Own(points=frozenset())],
    "an unknown point": [Own(points=frozenset(("PreToolUse",)))],
    "points that are no set": [Own(points=[POINT])],
    "no name": [Own(name="")],
    "a name that is none": [Own(name=None)],
    "half a character": [Own(name="\ud83d")],
    "a long name": [Own(name="x" * 101)],
    "no time": [Own(timeout_s=None)],
    "no time at all": [Own(timeout_s=0)],
    "endless": [Own(timeout_s=float("inf"))],
    "not a number": [Own(timeout_s=float("nan"))],
    "a call that is not async": [Own(call=print)],
}


@pytest.mark.parametrize("name", NO_HOOKS)
def test_what_is_no_hook_is_refused_before_anything_is_opened(name: str, tmp_path: Path) -> None:
    with pytest.raises(retinue.RetinueError) as caught:
        retinue.open(tmp_path / "data", hooks=NO_HOOKS[name])
    assert caught.value.code == "invalid"
    assert caught.value.detail.isascii()
    assert caught.value.hint
    assert not (tmp_path / "data").exists()


def gives(_: retinue.HookEvent) -> Iterator[None]:
    yield None


async def streams(_: retinue.HookEvent) -> AsyncIterator[None]:
    yield None


NO_FUNCTIONS: dict[str, Any] = {
    "a number": 5,
    "a generator": gives,
    "an async generator": streams,
    "no parameter": lambda: None,
    "two parameters": lambda _, __: None,
    "a keyword of its own": lambda _, *, more: None,
}


@pytest.mark.parametrize("name", NO_FUNCTIONS)
def test_a_function_that_could_never_answer_is_no_hook(name: str) -> None:
    with pytest.raises(retinue.RetinueError) as caught:
        retinue.hook(POINT)(NO_FUNCTIONS[name])
    assert caught.value.code == "invalid"


@pytest.mark.parametrize(
    ("points", "more"),
    [
        ((), {}),
        (("tool.before",), {}),
        ((POINT, ""), {}),
        ((plain,), {}),
        ((POINT,), {"timeout_s": 0}),
        ((POINT,), {"timeout_s": 601}),
        ((POINT,), {"timeout_s": "5"}),
        ((POINT,), {"name": "\ud83d"}),
        ((POINT,), {"name": ""}),
    ],
)
def test_a_decorator_that_makes_no_sense_is_refused(points: Any, more: Any) -> None:
    with pytest.raises(retinue.RetinueError) as caught:
        retinue.hook(*points, **more)(plain)
    assert caught.value.code == "invalid"


def test_what_can_be_called_with_one_event_is_a_hook() -> None:
    class Guard:
        def __call__(self, event: retinue.HookEvent) -> None:
            """Allow."""

        def method(self, event: retinue.HookEvent, more: int = 0) -> None:
            """Allow."""

    make = retinue.hook(POINT)
    made = [make(Guard()), make(Guard().method), make(functools.partial(print, "x")), make(max), make(dict)]
    assert [one.name for one in made] == ["Guard", "method", "partial", "max", "dict"]


def played(folder: Path, hooks: list[Any], *lines: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Play a turn of a session with hooks; return its result and all facts."""

    async def main() -> tuple[Any, list[Any]]:
        async with retinue.open(folder / "data", model=ScriptedModel(lines), hooks=hooks) as runtime:
            turn = (await runtime.create_session(cwd=folder)).prompt("go")
            facts: list[Any] = [event.fact async for event in turn if isinstance(event, retinue.Event)]
            return await turn.result, facts

    return asyncio.run(main())


def looks(times: int = 1) -> dict[str, Any]:
    calls = [{"name": "list_dir", "arguments": {"path": ".", "n": n}} for n in range(times)]
    return {"tool_calls": calls}


def test_a_hook_of_a_program_guards_a_workspace_tool(tmp_path: Path) -> None:
    seen: list[str] = []

    @retinue.hook(POINT)
    def guard(event: retinue.HookEvent) -> retinue.Deny | None:
        assert threading.current_thread() is not threading.main_thread()
        return retinue.Deny(reason="look elsewhere") if event.data["name"] == "list_dir" else None

    @retinue.hook("agent.turn.closed")
    async def audit(event: retinue.HookEvent) -> None:
        seen.append(event.data["status"])

    result, facts = played(tmp_path, [guard, audit], looks(), {"text": "done"})
    assert result.text == "done"
    (answer,) = [fact for fact in facts if isinstance(fact, ToolFinished)]
    assert (answer.outcome, answer.code) == ("refused", "denied_hook")
    assert "look elsewhere" in answer.text
    assert seen == ["completed"]


def test_blocking_hooks_that_never_come_back_do_not_take_the_stores_threads(tmp_path: Path) -> None:
    """More of them than there are threads: every one is cut at its time, and what is said is committed all the same."""
    release = threading.Event()
    entered: list[None] = []

    @retinue.hook(POINT, timeout_s=0.05)
    def blocks(_: retinue.HookEvent) -> None:
        entered.append(None)
        release.wait(30)

    times = 3 * THREADS_MAX
    lines = [{**looks(2 * THREADS_MAX)}, {**looks(THREADS_MAX)}, {"text": "done"}]
    try:
        result, facts = played(tmp_path, [blocks], *lines)
    finally:
        release.set()
    assert result.text == "done"
    assert len(entered) <= THREADS_MAX
    failed = [fact for fact in facts if isinstance(fact, HookFailed)]
    assert [fact.code for fact in failed] == ["timeout"] * times
    assert [fact.code for fact in facts if isinstance(fact, ToolFinished)] == ["denied_hook"] * times


@pytest.mark.parametrize("error", [KeyboardInterrupt, StopIteration, SystemExit, ZeroDivisionError])
def test_what_a_blocking_hook_raises_in_its_thread_ends_neither_the_loop_nor_the_wait(
    error: type[BaseException], tmp_path: Path
) -> None:
    @retinue.hook(POINT)
    def breaks(_: retinue.HookEvent) -> None:
        raise error

    result, facts = played(tmp_path, [breaks], looks(), {"text": "done"})
    assert result.text == "done"
    (failed,) = [fact for fact in facts if isinstance(fact, HookFailed)]
    assert (failed.hook, failed.code) == ("breaks", "error")


def test_a_hook_that_blocks_the_loop_beyond_its_time_has_failed_whatever_it_says_then(tmp_path: Path) -> None:
    @retinue.hook("agent.turn.before", timeout_s=0.05)
    async def blocks(_event: retinue.HookEvent) -> None:
        ends_at = time.monotonic() + BLOCKED_S + 0.2
        while time.monotonic() < ends_at:
            pass

    async def main() -> retinue.TurnResult:
        async with retinue.open(tmp_path / "data", model=ScriptedModel([{"text": "no"}]), hooks=[blocks]) as runtime:
            root = await runtime.create_session(cwd=tmp_path)
            return await root.prompt("go").result

    result = asyncio.run(main())
    assert (result.status, result.reason) == ("failed", "hook_denied")
    assert "blocks failed (timeout)" in result.detail
