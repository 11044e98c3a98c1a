"""Writes the generated parts of docs/ from the code; what people wrote around them it never touches."""

import ast
import importlib
import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cyclopts
import msgspec

from retinue.core import errors, events, policy

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"(?P<head><!-- generated: (?P<name>\w+)(?P<of>[\w. ]*) -->\n).*?(?P<tail><!-- end -->)", re.DOTALL)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _text(thing: object) -> str:
    return inspect.cleandoc(thing.__doc__ or "").replace("\n", " ")


def _type(hint: Any) -> str:
    """Return a type in the words of JSON; an id keeps its own name."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " / ".join(str(value) for value in inner)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(sorted((_type(part) for part in inner), key="null".__eq__))
    if origin is tuple:
        return f"list of {_type(inner[0])}"
    if origin is dict or hint is dict:
        return "object"
    plain = {str: "text", int: "whole number", float: "number", bool: "true / false", type(None): "null"}
    return plain.get(hint) or str(hint.__name__)


def _fields(struct: type[Any]) -> list[tuple[str, ...]]:
    hints = typing.get_type_hints(struct)
    return [(f"`{field.encode_name}`", _type(hints[field.name])) for field in msgspec.structs.fields(struct)]


def event_blocks() -> str:
    """Every event type: what it says and its fields; the Run keys are listed once."""
    run_keys = {field.encode_name for field in msgspec.structs.fields(events.RunFact)}
    parts: list[str] = []
    for fact in typing.get_args(events.AnyFact):
        rows = _fields(fact)
        note = ""
        if issubclass(fact, events.RunFact):
            rows = [row for row in rows if row[0].strip("`") not in run_keys]
            note = (
                "The keys of a [run](#the-keys-of-a-run), and:" if rows else "The keys of a [run](#the-keys-of-a-run)."
            )
        table = _table(("field", "type"), rows) if rows else ""
        parts.append("\n\n".join(p for p in (f"### `{fact.__struct_config__.tag}`", _text(fact), note, table) if p))
    parts.append(
        "### The keys of a run\n\n"
        + _text(events.RunFact)
        + "\n\n"
        + _table(("field", "type"), _fields(events.RunFact))
    )
    values = (events.Usage, events.ToolCall, events.WaitingFor, events.Rights, events.Snapshot, events.RunSpec)
    parts.extend(
        f"### {value.__name__}\n\n{_text(value)}\n\n{_table(('field', 'type'), _fields(value))}" for value in values
    )
    return "\n\n".join(parts)


def error_blocks() -> str:
    """Every error code with its status, its meaning and what to do."""
    rows = [(f"`{code}`", str(status), *errors.MEANING_OF[code]) for code, status in errors.STATUS_OF.items()]
    return _table(("code", "status", "what happened", "what to do"), rows)


def _honoured(key: policy.Key) -> str:
    if key.honoured is None:
        return "all"
    extra = [policy.show(value) for value in key.honoured]
    return ", ".join([f"only {policy.show(key.columns[0])}", *extra])


def policy_blocks() -> str:
    """Every switch: its values in the five policies, what it means, which values this version acts on."""
    rows = [
        (
            f"`{key.name}`",
            key.about,
            " / ".join(key.choices)
            or {"number": "whole number, none", "bool": "true / false", "wait": "three numbers"}[key.kind],
            *(policy.show(value) for value in key.columns),
            _honoured(key) + ("" if key.settable else "; only in code"),
        )
        for key in policy.TABLE
    ]
    return _table(("switch", "meaning", "values", *policy.NAMES, "acted on"), rows)


def switch_blocks(*keys: str) -> str:
    """The values of some switches under the five policies; of all of them where none is named."""
    rows = [(f"`{name}`", *(policy.show(value) for value in policy.KEYS[name].columns)) for name in keys or policy.KEYS]
    return _table(("switch", *policy.NAMES), rows)


def _source(thing: Any) -> list[ast.stmt]:
    """Return the definition of a class or function as it is written, so that every Python shows it alike."""
    return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(thing)))).body


def _head(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    prefix = "async def" if isinstance(function, ast.AsyncFunctionDef) else "def"
    result = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    return f"{prefix} {function.name}({ast.unparse(function.args)}){result}"


def _first(docstring: str | None) -> str:
    return inspect.cleandoc(docstring or "").partition("\n\n")[0].replace("\n", " ")


def _members(definition: ast.stmt) -> list[tuple[str, str]]:
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    methods = [node for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [(f"`{_head(node)}`", _first(ast.get_docstring(node))) for node in methods if not node.name.startswith("_")]


def _public(name: str, thing: object) -> str:
    parts = [f"### `{name}`", _first(thing.__doc__)]
    if inspect.isclass(thing) or inspect.isfunction(thing):
        definition = _source(thing)[0]
        if isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef):
            parts.append(f"```python\n{_head(definition)}\n```")
        elif members := _members(definition):
            parts.append(_table(("method", "what one gets"), list(members)))
    return "\n\n".join(part for part in parts if part)


def python_blocks() -> str:
    """Every public name with its signature and what it is for."""
    package = importlib.import_module("retinue")
    return "\n\n".join(_public(name, getattr(package, name)) for name in sorted(getattr(package, "__all__", ())))


class Command(NamedTuple):
    """One command as a person types it, what it does, and its flags with their help."""

    name: str
    about: str
    flags: list[tuple[str, str]]


def commands() -> Iterator[Command]:
    """Yield every command of the command line, groups first."""
    yield from _commands(importlib.import_module("retinue.cli.main").app, ())


def _commands(app: cyclopts.App, path: tuple[str, ...]) -> Iterator[Command]:
    for name in app:
        if name.startswith("-"):
            continue
        command, here = app[name], (*path, name)
        if command.default_command is not None:
            flags = [_flag(argument) for argument in command.assemble_argument_collection(parse_docstring=True)]
            yield Command(" ".join(here), _first(command.help), [flag for flag in flags if flag[0]])
        yield from _commands(command, here)


def _flag(argument: Any) -> tuple[str, str]:
    return next((name for name in argument.names if name.startswith("--")), ""), argument.parameter.help or ""


def command_blocks() -> str:
    """Every command with its flags."""
    parts: list[str] = []
    for command in commands():
        flags = [(f"`{name}`", about) for name, about in command.flags]
        parts.append(
            f"### `retinue {command.name}`\n\n{command.about}"
            + ("\n\n" + _table(("flag", "meaning"), flags) if flags else "")
        )
    return "\n\n".join(parts)


BLOCKS: dict[str, Callable[..., str]] = {
    "events": event_blocks,
    "errors": error_blocks,
    "policy": policy_blocks,
    "switches": switch_blocks,
    "python": python_blocks,
    "commands": command_blocks,
}


def render(page: str) -> str:
    """Return a page with its generated blocks made anew; an unknown block or switch raises `KeyError`."""
    return BLOCK.sub(lambda found: f"{found['head']}{_made(found)}\n{found['tail']}", page)


def _made(found: re.Match[str]) -> str:
    return BLOCKS[found["name"]](*found["of"].split())


def pages(root: Path) -> list[Path]:
    """Return the pages that hold a generated block."""
    return [path for path in sorted((root / "docs").glob("*.md")) if BLOCK.search(path.read_text(encoding="utf-8"))]


def stale(root: Path) -> list[str]:
    """Return the pages whose generated blocks are not what the code says now."""
    return [
        f"{path}: not what the code says; run `make docs`"
        for path in pages(root)
        if (text := path.read_text(encoding="utf-8")) != render(text)
    ]


def main() -> None:
    """Write every page anew and name those that changed."""
    for path in pages(ROOT):
        text = path.read_text(encoding="utf-8")
        fresh = render(text)
        if fresh != text:
            path.write_text(fresh, encoding="utf-8")
            sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
