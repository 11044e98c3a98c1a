"""Typed parameters of tools: their JSON schema, their parsing, their texts; it never runs a tool."""

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Final, TypeGuard, TypeVar, cast

import msgspec

from retinue.core.errors import RetinueError
from retinue.ports import ToolSchema

S = TypeVar("S", bound=msgspec.Struct)
NO_ALIASES: Final[Mapping[str, str]] = {}
_DROPPED: Final = frozenset({"title", "$defs"})
_AT: Final = re.compile(r"^(?P<what>.*?)(?: - at `(?P<where>[^`]*)`)?$", re.DOTALL)
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_DEPTH_MAX: Final = 12


@cache
def load_text(name: str) -> str:
    """Return what models are told about the tool `name`: the package's `tools/<name>.md`, without outer blanks."""
    return resources.files("retinue.tools").joinpath(f"{name}.md").read_text(encoding="utf-8").strip()


def tool_schema(name: str, struct: type[msgspec.Struct]) -> ToolSchema:
    """Return the schema of a tool whose text lies in `tools/<name>.md` and whose parameters are the struct's fields."""
    return ToolSchema(name=name, description=load_text(name), parameters=parameters_of(struct))


def parameters_of(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON schema of a struct as a model is shown it: one object, nothing referenced, no further keys.

    A field that may be null because it is optional is shown without the null; a default is shown unless it is null.
    Raises `invalid` for a type that has no JSON schema or that contains itself.
    """
    try:
        (root,), defined = msgspec.json.schema_components((struct,), ref_template="{name}")
    except (TypeError, NotImplementedError) as error:
        raise RetinueError("invalid", f"{struct.__name__} has no JSON schema: {error}.", "Use JSON types.") from error
    shown = cast("dict[str, Any]", _inline(root, defined, 0))
    shown.pop("description", None)
    return {"type": "object", "properties": {}, "required": [], **shown, "additionalProperties": False}


def _inline(node: Any, defined: Mapping[str, Any], depth: int) -> Any:
    """Return a schema with every reference replaced by what it names."""
    if depth > _DEPTH_MAX:
        raise RetinueError("invalid", "A parameter's type is nested too deeply or contains itself.", "Use a flat type.")
    if isinstance(node, list):
        return [_inline(item, defined, depth + 1) for item in cast("list[Any]", node)]
    if not isinstance(node, dict):
        return node
    schema = cast("dict[str, Any]", node)
    if "$ref" in schema:
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return _inline({**defined[schema["$ref"]], **rest}, defined, depth + 1)
    if "properties" in schema:
        return _inline_object(schema, defined, depth)
    return _without_null({k: _inline(v, defined, depth + 1) for k, v in schema.items() if k not in _DROPPED})


def _inline_object(schema: Mapping[str, Any], defined: Mapping[str, Any], depth: int) -> dict[str, Any]:
    fields: dict[str, Any] = schema["properties"]
    kept = {key: value for key, value in schema.items() if key not in _DROPPED}
    kept["properties"] = {name: _inline(field, defined, depth + 1) for name, field in fields.items()}
    return {**kept, "additionalProperties": False}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Drop what only says that an optional value may be null: models leave it out instead."""
    if schema.get("default", ...) is None:
        del schema["default"]
    if all(isinstance(choice, str) for choice in schema.get("enum", [0])):
        schema = {"type": "string", **schema}
    choices: list[Any] = schema.get("anyOf", [])
    solid = [choice for choice in choices if choice != {"type": "null"}]
    if len(solid) < len(choices):
        del schema["anyOf"]
        schema = {**solid[0], **schema} if len(solid) == 1 else {**schema, "anyOf": solid}
    return schema


def parse(struct: type[S], arguments: Mapping[str, Any], aliases: Mapping[str, str] = NO_ALIASES) -> S:
    """Return the struct that a model's arguments mean.

    A key is a field's name, one of `aliases` (alias → field), or the field's name in camelCase. A null for a field
    that has a default and cannot be null counts as left out; a whole number written as 2.0 counts as 2.

    Raises:
        RetinueError: `invalid` for an unknown key, a key given twice, a missing one, or a wrong type; the sentence
            names the parameter and the hint lists all of them.
    """
    known = {field.name: field for field in msgspec.structs.fields(struct)}
    values: dict[str, Any] = {}
    for key, value in arguments.items():
        name = key if key in known else aliases.get(key, _HUMP.sub("_", key).lower())
        field = known.get(name)
        if field is None:
            raise RetinueError("invalid", f"There is no parameter {key!r}.", _hint(struct))
        if name in values and values[name] != value:
            raise RetinueError("invalid", f"The parameter {name!r} is given twice, once as {key!r}.", _hint(struct))
        if value is not None or field.required or _takes_null(field.type):
            values[name] = int(value) if _is_whole(value) else value
    return _convert(struct, values)


def _is_whole(value: Any) -> TypeGuard[float]:
    """Return whether a value is a whole number written as a fraction; a negative zero is none (scenario S18)."""
    return isinstance(value, float) and value.is_integer() and str(value) != "-0.0"


def _convert(struct: type[S], values: Mapping[str, Any]) -> S:
    try:
        return msgspec.convert(values, struct)
    except msgspec.ValidationError as error:
        raise RetinueError("invalid", _sentence(str(error)), _hint(struct)) from error


def _sentence(message: str) -> str:
    """Turn `Expected int, got str - at $.limit` into a sentence that names the parameter."""
    found = _AT.match(message)
    what, where = (found["what"], found["where"]) if found else (message, None)
    if what.startswith("Object missing required field"):
        missing = what.rpartition("field ")[2].strip("`")
        return f"The parameter {missing!r} is missing{_inside(where)}."
    return f"The parameter {(where or '$').removeprefix('$.')!r} is wrong: {what[:1].lower()}{what[1:]}."


def _inside(where: str | None) -> str:
    return f" inside {where.removeprefix('$.')!r}" if where and where != "$" else ""


def _takes_null(kind: Any) -> bool:
    info = msgspec.inspect.type_info(kind)
    if isinstance(info, msgspec.inspect.Metadata):
        info = info.type
    if isinstance(info, msgspec.inspect.UnionType):
        return info.includes_none
    return isinstance(info, msgspec.inspect.NoneType | msgspec.inspect.AnyType)


def _hint(struct: type[msgspec.Struct]) -> str:
    shown = parameters_of(struct)
    required: list[str] = shown["required"]
    fields: dict[str, dict[str, Any]] = shown["properties"]
    if not fields:
        return "It takes no parameters."
    return f"Parameters: {', '.join(_listed(name, field, name in required) for name, field in fields.items())}."


def _listed(name: str, field: Mapping[str, Any], required: bool) -> str:  # noqa: FBT001 - private, one call site
    kind = "one of " + " / ".join(map(str, field["enum"])) if "enum" in field else str(field.get("type", "any"))
    return f"{name} ({kind}{', required' if required else ''})"
