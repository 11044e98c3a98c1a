"""Parameters of tools: what a model is shown, what is understood, what is refused and how."""

from typing import Annotated, Any, Literal

import msgspec
import pytest

from retinue.core.errors import RetinueError
from retinue.tools.schema import load_text, parameters_of, parse, tool_schema


class Inner(msgspec.Struct):
    mode: Literal["none", "fork"]
    turns: int = 1


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    path: Annotated[str, msgspec.Meta(description="Where.")]
    limit: Annotated[int, msgspec.Meta(ge=1, le=5)] = 3
    timeout_s: float | None = None
    context: Inner | str | None = None
    paths: tuple[str, ...] = ()


class Nothing(msgspec.Struct):
    pass


class Endless(msgspec.Struct):
    inner: "Endless | None" = None


def refused(arguments: dict[str, Any], struct: type[msgspec.Struct] = Sample) -> RetinueError:
    with pytest.raises(RetinueError) as caught:
        parse(struct, arguments, {"agentName": "path"})
    assert caught.value.code == "invalid"
    return caught.value


def test_a_schema_is_one_closed_object_without_references_titles_or_nulls() -> None:
    schema = parameters_of(Sample)
    assert schema["required"] == ["path"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["path"] == {"type": "string", "description": "Where."}
    assert schema["properties"]["timeout_s"] == {"type": "number"}
    assert schema["properties"]["limit"] == {"type": "integer", "minimum": 1, "maximum": 5, "default": 3}
    context = schema["properties"]["context"]
    assert context["anyOf"][1]["properties"]["mode"] == {"type": "string", "enum": ["fork", "none"]}
    text = msgspec.json.encode(schema).decode()
    assert not any(word in text for word in ("$ref", "$defs", '"title"', '"null"'))


def test_a_tool_without_parameters_has_an_empty_closed_object() -> None:
    assert parameters_of(Nothing) == {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


def test_a_type_that_contains_itself_is_refused() -> None:
    with pytest.raises(RetinueError, match="contains itself"):
        parameters_of(Endless)


def test_camel_case_aliases_nulls_and_whole_floats_are_understood() -> None:
    given = {"agentName": "x", "timeoutS": 2.0, "limit": None, "context": {"mode": "none"}}
    found = parse(Sample, given, {"agentName": "path"})
    assert found == Sample(path="x", timeout_s=2, limit=3, context=Inner(mode="none"))
    assert parse(Sample, {"path": "x", "limit": 2.0}).limit == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"path": "x", "colour": 1}, "There is no parameter 'colour'."),
        ({"limit": 1}, "The parameter 'path' is missing."),
        ({"path": 1}, "The parameter 'path' is wrong: expected `str`, got `int`."),
        ({"path": "x", "limit": "3"}, "The parameter 'limit' is wrong: expected `int`, got `str`."),
        ({"path": "x", "limit": 9}, "The parameter 'limit' is wrong: expected `int` <= 5."),
        ({"path": "x", "agentName": "y"}, "The parameter 'path' is given twice, once as 'agentName'."),
        ({"path": "x", "context": {"turns": 1}}, "The parameter 'mode' is missing inside 'context'."),
    ],
)
def test_what_is_wrong_is_one_sentence_that_names_the_parameter(arguments: dict[str, Any], sentence: str) -> None:
    error = refused(arguments)
    assert error.detail == sentence
    assert error.hint.startswith("Parameters: path (string, required), limit (integer)")


def test_the_hint_of_a_tool_without_parameters_says_so() -> None:
    assert refused({"x": 1}, Nothing).hint == "It takes no parameters."


def test_a_tools_text_comes_from_the_file_beside_it() -> None:
    schema = tool_schema("read_file", Sample)
    assert schema.description == load_text("read_file")
    assert schema.description.startswith("Read a text file of the workspace.")
