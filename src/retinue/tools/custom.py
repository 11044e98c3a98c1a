"""`@tool` and `--tools`: a typed Python function as a tool; it knows no tool of its own."""

import copy
import functools
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import (
    Annotated,
    Any,
    Final,
    Generic,
    Literal,
    ParamSpec,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import msgspec

from retinue.core.errors import RetinueError
from retinue.ports import Tool, ToolContext, ToolResult, ToolSchema
from retinue.tools.schema import parameters_of, parse

P = ParamSpec("P")
R = TypeVar("R")

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_ARGS_HEADING: Final = re.compile(r"^\s*(?:Args|Arguments|Parameters):\s*$")
_ARG_LINE: Final = re.compile(r"^\s+\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.+)$")
_CONTEXT_NAMES: Final = frozenset({"context", "ctx", "tool_context"})
"""Names that mean the context in a function that does not say what type they have."""


@dataclass(frozen=True, slots=True)
class CustomTool(Generic[P, R]):
    """A function as a tool. Calling the object calls the function, as if it were not decorated."""

    function: Callable[P, R]
    schema: ToolSchema
    parameters: type[msgspec.Struct]
    context_parameter: str | None = None
    exclusive: bool = False
    group: Literal["read", "agents", "custom"] = "custom"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    async def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        """Answer one call: an async function runs on the loop, any other off it. What it raises goes through."""
        ask = parse(self.parameters, arguments)
        values: dict[str, Any] = {name: getattr(ask, name) for name in ask.__struct_fields__}
        if self.context_parameter is not None:
            values[self.context_parameter] = context
        call = functools.partial(cast("Callable[..., Any]", self.function), **values)
        answer = await call() if inspect.iscoroutinefunction(self.function) else await context.offload(call)
        return _result(answer, self.schema.name)


@overload
def tool(function: Callable[P, R], /) -> CustomTool[P, R]: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None, exclusive: bool = False
) -> Callable[[Callable[P, R]], CustomTool[P, R]]: ...
def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    exclusive: bool = False,
) -> CustomTool[P, R] | Callable[[Callable[P, R]], CustomTool[P, R]]:
    """Make a tool of a typed function: `@tool`, or `@tool(name=…, exclusive=True)`.

    The tool is called as the function is, says what the docstring says, and takes the function's parameters;
    `Annotated[int, "what it is"]` and the docstring's `Args:` describe them. A parameter of type `ToolContext` (or
    called `context` without a type) gets the call's context and is not shown to the model. Text goes to the model as
    it is, anything else as JSON. A function that is not async runs off the event loop.

    Args:
        function: the function, where the decorator is used without parentheses.
        name: the tool's name, by default the function's.
        description: what models are told, by default the docstring without its `Args:`.
        exclusive: whether no other call of the same message may run beside it.

    Raises:
        RetinueError: `invalid` for a function that no schema can be made of.
    """
    if function is None:
        return lambda made: _make(made, name, description, exclusive=exclusive)
    return _make(function, name, description, exclusive=exclusive)


def _make(function: Callable[P, R], name: str | None, description: str | None, *, exclusive: bool) -> CustomTool[P, R]:
    called = name or str(getattr(function, "__name__", ""))
    if not _NAME.fullmatch(called):
        raise RetinueError(
            "invalid", f"{called!r} cannot be a tool's name.", "Use letters, digits, '_' and '-', at most 64."
        )
    told, described = _docstring(inspect.getdoc(function) or "")
    fields, context_parameter = _fields(function, called, described)
    try:
        struct = msgspec.defstruct(f"{called}_parameters", fields, frozen=True, kw_only=True)
        shown = parameters_of(struct)
    except (TypeError, ValueError) as error:
        raise RetinueError(
            "invalid", f"The tool {called!r} has a parameter without a JSON schema: {error}.", "Use JSON types."
        ) from error
    schema = ToolSchema(name=called, description=description or told, parameters=shown)
    return CustomTool(function, schema, struct, context_parameter, exclusive)


def _fields(
    function: Callable[..., Any], called: str, described: Mapping[str, str]
) -> tuple[list[tuple[str, Any] | tuple[str, Any, Any]], str | None]:
    """Return the struct's fields, and which parameter gets the context."""
    hints = _hints(function, called)
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    context_parameter: str | None = None
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise RetinueError(
                "invalid",
                f"The tool {called!r} has the parameter {str(parameter)!r}.",
                "Give each parameter a name of its own.",
            )
        kind = hints.get(parameter.name)
        if _is_context(parameter.name, kind):
            context_parameter = parameter.name
            continue
        shown = _described(Any if kind is None else kind, described.get(parameter.name))
        if parameter.default is parameter.empty:
            fields.append((parameter.name, shown))
        else:
            default = parameter.default
            fields.append(
                (parameter.name, shown, _fresh(default) if isinstance(default, list | dict | set) else default)
            )
    return fields, context_parameter


def _hints(function: Callable[..., Any], called: str) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise RetinueError(
            "invalid", f"A type of the tool {called!r} cannot be found: {error}.", "Import it in the tool's module."
        ) from error


def _is_context(name: str, kind: Any) -> bool:
    return kind is ToolContext or (kind is None and name in _CONTEXT_NAMES)


def _described(kind: Any, text: str | None) -> Any:
    """Return a type with its description where msgspec looks for it: `Annotated[…, "text"]`, else the docstring's."""
    if get_origin(kind) is Annotated:
        inner, *notes = get_args(kind)
        if any(isinstance(note, msgspec.Meta) for note in notes):
            return kind
        kind = inner
        text = next((note for note in notes if isinstance(note, str)), text)
    return kind if text is None else Annotated[kind, msgspec.Meta(description=text)]


def _fresh(value: Any) -> Any:
    """Return a default that no call can change."""
    return msgspec.field(default_factory=functools.partial(copy.copy, value))


def _docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return a docstring without its `Args:`, and what that says of each parameter."""
    told: list[str] = []
    described: dict[str, str] = {}
    inside = False
    last = ""
    for line in text.splitlines():
        if _ARGS_HEADING.match(line):
            inside = True
        elif inside and (not line.strip() or line[0].isspace()):
            found = _ARG_LINE.match(line)
            if found:
                last = found[1]
                described[last] = found[2].strip()
            elif last and line.strip():
                described[last] += " " + line.strip()
        else:
            inside = False
            told.append(line)
    return "\n".join(told).strip(), described


def _result(answer: Any, name: str) -> ToolResult:
    if isinstance(answer, ToolResult):
        return answer
    if isinstance(answer, str):
        return ToolResult(text=answer.encode("utf-8", "replace").decode())
    try:
        return ToolResult(text=msgspec.json.encode(answer).decode())
    except (TypeError, ValueError, RecursionError) as error:
        return ToolResult(text=f"The tool {name!r} answered with something that is no JSON: {error}.", outcome="error")


def load_tools(ref: str) -> tuple[Tool, ...]:
    """Return the tools that `module:object` names: a tool, a typed function, or a list of those.

    The module is looked for in the current directory first, then among what is installed. Blocks: it is imported.

    Raises:
        RetinueError: `invalid` where the module cannot be imported, has no such object, or it is no tool.
    """
    module, colon, path = ref.partition(":")
    if not colon or not module or not path:
        raise RetinueError("invalid", f"{ref!r} names no tools.", "Write module:object, as in 'mytools:search'.")
    found = _import(module, ref)
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError as error:
            raise RetinueError(
                "invalid", f"There is no {path!r} in the module {module!r}.", f"Define it in {module}."
            ) from error
    items = cast("list[Any] | tuple[Any, ...]", found) if isinstance(found, list | tuple) else [found]
    return tuple(_as_tool(item, ref) for item in items)


def _import(module: str, ref: str) -> Any:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module)
    except Exception as error:  # a module of the user may fail in any way
        raise RetinueError(
            "invalid",
            f"The tools {ref!r} cannot be loaded: {type(error).__name__}: {error}.",
            "Check the module's name and that it imports.",
        ) from error


def _as_tool(item: Any, ref: str) -> Tool:
    if isinstance(getattr(item, "schema", None), ToolSchema) and callable(getattr(item, "call", None)):
        return cast("Tool", item)
    if inspect.isroutine(item):
        return tool(cast("Callable[..., Any]", item))
    raise RetinueError(
        "invalid",
        f"{ref!r} holds a {type(item).__name__}, which is no tool.",
        "Use a function, @retinue.tool, or a list of those.",
    )
