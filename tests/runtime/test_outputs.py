"""A schema comes from a model: whatever it says, its check ends with the time and harms its own run only."""

import asyncio
import threading
import time
from typing import Any

import pytest

from retinue.core.errors import RetinueError
from retinue.runtime.outputs import CHECK_MAX_S, mismatch, require_schema

ENDLESS: list[tuple[dict[str, Any], str]] = [
    ({"type": "string", "pattern": "^(a+)+$"}, '"' + "a" * 40 + '!"'),
    ({"type": "array", "uniqueItems": True}, "[" + ",".join(f'{{"x":{n}}}' for n in range(20_000)) + "]"),
]


@pytest.mark.parametrize(("schema", "text"), ENDLESS, ids=["a pattern", "unique items"])
def test_a_check_that_would_run_for_ever_ends_with_the_time_and_holds_nobody_up(
    schema: dict[str, Any], text: str
) -> None:
    async def main() -> tuple[str | None, int]:
        turns = 0
        checking = asyncio.create_task(asyncio.to_thread(mismatch, schema, text))
        while not checking.done():
            await asyncio.wait((checking,), timeout=0.05)
            turns += 1
        return checking.result(), turns

    began = time.monotonic()
    problem, turns = asyncio.run(main())
    assert "could not be checked within" in (problem or "")
    assert time.monotonic() - began < CHECK_MAX_S + 5
    assert turns > CHECK_MAX_S / 0.05 / 4
    assert threading.active_count() == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [('{"n": 1}', None), ('{"n": "1"}', "at $.n"), ("{n: 1}", "not JSON"), ("", "not JSON"), ("[" * 5000, "not JSON")],
)
def test_what_does_not_match_is_said_in_one_sentence(text: str, says: str | None) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    found = mismatch(schema, text)
    assert found is None if says is None else says in (found or "")


@pytest.mark.parametrize("schema", [{"type": "no such"}, {"required": [1]}, {"description": "x" * 70_000}])
def test_what_is_no_schema_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(RetinueError, match="schema") as caught:
        require_schema(schema)
    assert caught.value.code == "invalid"


def _nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"$ref": "#/$defs/x"}, "'#/\\$defs/x' leads nowhere"),
        ({"properties": {"a": {"$ref": "http://127.0.0.1:9/x"}}}, "leads nowhere"),
        (_nested(150), "nested too deeply"),
        ({"description": "\ud800"}, "cannot be written as JSON"),
        ({"const": {1, object()}}, "cannot be written as JSON"),
    ],
    ids=["no such part", "elsewhere", "deep", "half a character", "no JSON"],
)
def test_a_schema_that_could_never_be_checked_is_refused_at_once(schema: dict[str, Any], why: str) -> None:
    with pytest.raises(RetinueError, match=why):
        require_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/x", "$defs": {"x": {"type": "string"}}},
        {"const": {"$ref": "just data"}},
        {"$id": "urn:mine", "$ref": "#/$defs/x", "$defs": {"x": {"$id": "urn:other", "type": "string"}}},
    ],
)
def test_references_that_lead_somewhere_are_no_fault(schema: dict[str, Any]) -> None:
    require_schema(schema)
