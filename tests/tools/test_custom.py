"""`@tool` and `load_tools`: typed functions as tools."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from retinue.core.errors import RetinueError
from retinue.ports import ToolContext, ToolResult
from retinue.tools.custom import load_tools, tool
from tests.tools.harness import FakeContext, call


@tool
def add(left: Annotated[int, "The first."], right: int = 2) -> int:
    """Add two numbers.

    Args:
        left: not this one, the annotation wins.
        right: The second,
            on two lines.

    More about it.
    """
    return left + right


@tool(name="where", exclusive=True)
async def find_place(context: ToolContext, suffix: str = "") -> str:
    """Say where."""
    await asyncio.sleep(0)
    return context.session_id + suffix


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_function_becomes_a_tool_with_its_name_text_and_parameters() -> None:
    assert add.schema.name == "add"
    assert add.schema.description == "Add two numbers.\n\nMore about it."
    assert add.schema.parameters["required"] == ["left"]
    assert add.schema.parameters["properties"] == {
        "left": {"type": "integer", "description": "The first."},
        "right": {"type": "integer", "description": "The second, on two lines.", "default": 2},
    }
    assert (add.group, add.exclusive) == ("custom", False)


def test_a_tool_is_still_the_function() -> None:
    assert add(1, right=5) == 6


def test_a_sync_function_runs_off_the_loop_and_its_value_is_json(tmp_path: Path) -> None:
    context = FakeContext(tmp_path)
    assert call(add, context, left=3).text == "5"
    assert context.offloaded == 1


def test_an_async_function_gets_the_context_which_no_model_sees(tmp_path: Path) -> None:
    context = FakeContext(tmp_path)
    assert find_place.schema.name == "where"
    assert find_place.exclusive
    assert list(find_place.schema.parameters["properties"]) == ["suffix"]
    assert call(find_place, context, suffix="!").text == "s_test!"
    assert context.offloaded == 0


def test_an_untyped_context_and_untyped_parameters_are_understood(tmp_path: Path) -> None:
    @tool
    def loose(context, anything=None):
        return [context.cwd, anything]

    assert msgspec.json.decode(call(loose, FakeContext(tmp_path), anything={"a": 1}).text) == [str(tmp_path), {"a": 1}]


@pytest.mark.parametrize(
    ("value", "text", "outcome"),
    [
        ("plain", "plain", "ok"),
        ("half \ud800", "half ?", "ok"),
        (None, "null", "ok"),
        ({"b": [1]}, '{"b":[1]}', "ok"),
        (ToolResult(text="mine", outcome="error"), "mine", "error"),
    ],
)
def test_what_a_function_returns_is_what_the_model_reads(tmp_path: Path, value: Any, text: str, outcome: str) -> None:
    @tool
    def give() -> Any:
        return value

    result = call(give, FakeContext(tmp_path))
    assert (result.text, result.outcome) == (text, outcome)


def test_a_value_that_is_no_json_is_an_error_result(tmp_path: Path) -> None:
    @tool
    def give() -> object:
        return object()

    assert call(give, FakeContext(tmp_path)).outcome == "error"


def test_a_default_that_is_a_list_is_fresh_in_each_call(tmp_path: Path) -> None:
    @tool
    def grow(items: list[int] = [1]) -> list[int]:  # noqa: B006 - the mutable default is the case
        items.append(2)
        return items

    assert call(grow, FakeContext(tmp_path)).text == "[1,2]"
    assert call(grow, FakeContext(tmp_path)).text == "[1,2]"


def test_functions_that_no_schema_can_be_made_of_are_refused() -> None:
    def rest(*args: int) -> None: ...
    def alien(what: FakeContext) -> None: ...
    def lost(what: "NoSuchType") -> None: ...  # noqa: F821  # pyright: ignore[reportUndefinedVariable] - the missing type is the case

    functions: list[Any] = [rest, alien, lost, lambda: 1]
    for function in functions:
        with pytest.raises(RetinueError) as caught:
            tool(function)
        assert caught.value.code == "invalid"


def test_tools_are_loaded_from_the_current_directory(folder: Path) -> None:
    (folder / "mytools.py").write_text(
        "def one(x: int) -> int:\n    'One.'\n    return x\n"
        "from retinue.tools.custom import tool\n"
        "@tool\ndef two() -> str:\n    return 'two'\n"
        "class Box:\n    three = staticmethod(one)\n"
        "both = [one, two]\nnumber = 7\n"
    )
    assert [t.schema.name for t in load_tools("mytools:both")] == ["one", "two"]
    assert [t.schema.name for t in load_tools("mytools:Box.three")] == ["one"]
    assert call(load_tools("mytools:one")[0], FakeContext(folder), x=4).text == "4"
    for ref in ("mytools:none", "mytools:number", "mytools", "mytools:", ":one", "nowhere_at_all:x"):
        with pytest.raises(RetinueError) as caught:
            load_tools(ref)
        assert caught.value.code == "invalid"


def test_a_module_that_fails_while_it_is_imported_is_refused_with_its_error(folder: Path) -> None:
    (folder / "bad_tools.py").write_text("raise KeyError('boom')\n")
    with pytest.raises(RetinueError, match="KeyError: 'boom'"):
        load_tools("bad_tools:x")
