"""TOML and JSON → the same keys with their lines that front matter gives; it knows no key's meaning.

Every value is text, as in `frontmatter`. What is hostile is bounded before a parser sees it.
"""

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from retinue.definitions.diagnostic import Broken
from retinue.definitions.dialects import Form
from retinue.definitions.frontmatter import NESTING_MAX, Bare, Document, Entry, Tree, read_document, text_of

DOTTED_MAX: Final = 100
_AGENTS: Final = ("agent", "agents")
"""The key of a JSON file whose value is the map of definitions."""
_DOTTED: Final = re.compile(
    r"(?<![\w-])(?:(?:[\w-]++|\"[^\"\n]*+\"|'[^'\n]*+')[ \t]*+\.[ \t]*+){" + str(DOTTED_MAX) + "}"
)
"""A key of so many parts that reading it takes time which grows with their square."""
_LONG_TEXT: Final = re.compile(r'"""(?:[^"\\]|\\.|"(?!""))*+(?:"""|\Z)' + r"|'''.*?(?:'''|\Z)", re.DOTALL)
_TOML_KEY: Final = re.compile(r"^[ \t]*\[{0,2}[ \t]*[\"']?([A-Za-z0-9_-]{1,100})[\"']?[ \t]*[.=\]]", re.MULTILINE)
_AT_LINE: Final = re.compile(r"\s*\(at line (\d+), column \d+\)$|\s*\(at end of document\)$")
_STRING: Final = r'"(?:[^"\\\n]|\\[^\n])*+"?'
_COMMENT: Final = re.compile(_STRING + r"|(?P<cut>//[^\n]*|/\*.*?(?:\*/|\Z))", re.DOTALL)
_COMMA: Final = re.compile(_STRING + r"|(?P<cut>,)(?=\s*+[}\]])")
_TOKEN: Final = re.compile(_STRING + r"|[{}\[\],:\n]")
_KEY_DEPTH_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class Part:
    """One definition of a file: the name that it has if it says none, and what it says or why it cannot be read."""

    name: str
    document: Document | None = None
    broken: Broken | None = None


def read_parts(form: Form, data: bytes, stem: str) -> list[Part]:
    """Return the definitions in a file. Raises `Broken` where the file as a whole cannot be read."""
    return _READERS[form](data, stem)


def _markdown(data: bytes, stem: str) -> list[Part]:
    return [Part(stem, read_document(data))]


# -------------------------------------------------------------------------------------------------------------- TOML


def _toml(data: bytes, stem: str) -> list[Part]:
    text = text_of(data).replace("\r\n", "\n")
    if not text.strip():
        raise Broken(1, "The file is empty.", "Write a description and instructions.")
    dotted = _DOTTED.search(text)
    if dotted:
        raise Broken(1 + text[: dotted.start()].count("\n"), "A key has too many parts.", "Use flat keys.")
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _AT_LINE.search(str(error))
        line = int(found[1]) if found and found[1] else 1 + text.rstrip("\n").count("\n")
        cause = _AT_LINE.sub("", str(error))[:200]
        raise Broken(line, f"The file is no TOML: {cause}.", "Correct that line.") from error
    except (RecursionError, ValueError) as error:  # a number with thousands of digits is a ValueError
        raise Broken(
            1, "The file is no TOML that can be read: a value is too long or too deep.", "Use flat values."
        ) from error
    blank = _LONG_TEXT.sub(lambda found: "\n" * found[0].count("\n"), text)
    lines: dict[tuple[str, ...], int] = {}
    for number, line in enumerate(blank.split("\n"), start=1):
        key = _TOML_KEY.match(line)
        if key:
            lines.setdefault((key[1],), number)
    return [Part(stem, _document(table, lines, ()))]


# -------------------------------------------------------------------------------------------------------------- JSON


def _json(data: bytes, stem: str) -> list[Part]:  # noqa: ARG001 - each definition has its own name
    text = text_of(data).replace("\r\n", "\n").replace("\r", "\n")
    plain = _COMMA.sub(_blank, _COMMENT.sub(_blank, text))
    try:
        table: Any = json.loads(plain, parse_int=Bare, parse_float=Bare, parse_constant=Bare)
    except json.JSONDecodeError as error:
        remedy = "Correct that line; keys and texts stand in double quotes."
        raise Broken(error.lineno, f"The file is no JSON: {error.msg}.", remedy) from error
    except RecursionError as error:
        raise Broken(1, "The file is nested too deeply.", "Use flat values.") from error
    if not isinstance(table, dict):
        raise Broken(1, "The file is no JSON object.", "Begin it with '{'.")
    lines = _lines(plain)
    parts: list[Part] = []
    for key in _AGENTS:
        agents: Any = cast("dict[str, Any]", table).get(key, {})
        if not isinstance(agents, dict):
            raise Broken(lines[(key,)], f"{key!r} must be an object.", "Write one key for each agent's name.")
        parts += [_part((key, name), value, lines) for name, value in cast("dict[str, Any]", agents).items()]
    return parts


def _blank(found: re.Match[str]) -> str:
    """Return the same number of lines without what is cut; a text stays as it is."""
    return found[0] if found["cut"] is None else " " + "\n" * found[0].count("\n")


def _part(path: tuple[str, str], value: object, lines: Mapping[tuple[str, ...], int]) -> Part:
    line, name = lines.get(path, 1), path[1]
    if not isinstance(value, dict):
        return Part(name, broken=Broken(line, f"The agent {name[:64]!r} must be an object.", "Write its keys in '{}'."))
    table = cast("dict[str, Any]", value)
    try:
        return Part(name, _document(table, lines, path))
    except Broken as broken:
        return Part(name, broken=broken)


def _lines(text: str) -> dict[tuple[str, ...], int]:
    """Return the line of each key of a JSON text that is sound. Raises `Broken` for one that stands twice."""
    lines: dict[tuple[str, ...], int] = {}
    above: list[str] = []
    line, key, last = 1, "", ""
    for sign in _TOKEN.findall(text):
        if sign == "\n":
            line += 1
        elif sign in "{[":
            above.append(key)
            key = ""
        elif sign in "}]":
            above.pop()
        elif sign == ",":
            key = ""
        elif sign == ":":
            key = json.loads(last)
            path = (*above[1:], key) if len(above) <= _KEY_DEPTH_MAX else ()
            if path in lines:
                raise Broken(line, f"The key {key[:64]!r} stands twice, first in line {lines[path]}.", "Keep one.")
            if path:
                lines[path] = line
        else:
            last = sign
    return lines


# ------------------------------------------------------------------------------------------------------------ values


def _document(table: Mapping[str, Any], lines: Mapping[tuple[str, ...], int], above: tuple[str, ...]) -> Document:
    """Return a table as a document; `lines` tell where its keys stand, which lie below the keys `above`."""
    entries: list[Entry] = []
    first = lines.get(above, 1)
    for key, value in table.items():
        line = lines.get((*above, key), first)
        names = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        inner = {name: lines.get((*above, key, name), line) for name in names}
        entries.append(Entry(key, _tree(value, line, 0), line, inner))
    return Document(tuple(entries), "")


def _tree(value: Any, line: int, depth: int) -> Tree:
    """Return a value with every scalar as text."""
    if depth > NESTING_MAX:
        raise Broken(line, "The value is nested too deeply.", "Use a flat value.")
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return [_tree(item, line, depth + 1) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _tree(item, line, depth + 1) for key, item in cast("dict[str, Any]", value).items()}
    return Bare(_SWITCHES.get(value, str(value)) if value is None or isinstance(value, bool) else str(value))


_SWITCHES: Final = {None: "null", True: "true", False: "false"}
_READERS: Final[dict[Form, Callable[[bytes, str], list[Part]]]] = {
    "markdown": _markdown,
    "toml": _toml,
    "json": _json,
}
