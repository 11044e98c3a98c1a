"""Markdown with front matter → keys with their lines, and the body; it knows no key's meaning.

Every scalar is text: nothing turns `on`, `0123` or `12:30` into something else, and what a number or a switch is, its
field decides. YAML is read first. Where that fails, each entry is read for itself, and a `description` (or a lone `*`)
that is no YAML is taken as it stands, as long as it does not begin like a quoted text: people write colons, quotes
and `<example>` blocks there.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

from retinue.definitions.diagnostic import Broken

FILE_BYTES_MAX: Final = 256 * 1024
FRONT_CHARS_MAX: Final = 32 * 1024
NESTING_MAX: Final = 20
BRACKETS_MAX: Final = 200
"""Opening brackets of a front matter: reading them takes time that grows with their square."""
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_ENTRY: Final = re.compile(r"^([A-Za-z][A-Za-z0-9_-]*)[ \t]*:(?:[ \t]+(.*)|[ \t]*)$")
_FREE_TEXT: Final = frozenset({"description"})
_STAR: Final = frozenset({"tools", "allowed-tools", "allowed_tools", "spawns"})
_OPENS: Final = re.compile(r"<example\b")
_CLOSES: Final = re.compile(r"</example\b")

Tree = str | list[Any] | dict[str, Any]


class Plain(str):
    """A scalar that was written without quotes: it may be meant as a number or a switch."""

    __slots__ = ()


class Bare(Plain):
    """A number or a switch of a format that tells these from texts."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of the front matter as it was written, its value, its line in the file."""

    key: str
    value: Tree
    line: int
    inner: Mapping[str, int] = field(default_factory=dict[str, int])
    """Where the value is a map: the lines of its keys, as far as they are known."""

    def line_of(self, key: str) -> int:
        """Return the line of one key of the value, else that of the value."""
        return self.inner.get(key, self.line)


@dataclass(frozen=True, slots=True)
class Document:
    """A definition file, taken apart."""

    entries: tuple[Entry, ...]
    body: str


def read_document(data: bytes) -> Document:
    """Return the parts of a definition file. Raises `Broken` with the line and the cause."""
    lines = lines_of(text_of(data))
    first = next((number for number, line in enumerate(lines) if line.strip()), None)
    if first is None:
        raise Broken(1, "The file is empty.", "Write front matter with a description, then the instructions.")
    if lines[first].rstrip() != "---":
        raise Broken(
            first + 1, "There is no front matter.", "Begin the file with a line '---', then name and description."
        )
    last = next((number for number in range(first + 1, len(lines)) if lines[number].rstrip() == "---"), None)
    if last is None:
        raise Broken(len(lines), "The front matter is not closed.", "Put a line '---' after its last key.")
    front = lines[first + 1 : last]
    if sum(map(len, front)) > FRONT_CHARS_MAX:
        raise Broken(
            first + 2, f"The front matter is longer than {FRONT_CHARS_MAX} characters.", "Move text into the body."
        )
    return Document(entries=_entries(front, first + 2), body="\n".join(lines[last + 1 :]).strip("\n"))


def lines_of(text: str) -> list[str]:
    """Return the lines of a text, whichever way each of them ends."""
    return _LINE_END.split(text)


def text_of(data: bytes) -> str:
    """Return a file's text without a byte order mark. Raises `Broken` for what is too large, binary or not UTF-8."""
    if len(data) > FILE_BYTES_MAX:
        raise Broken(None, f"The file is larger than {FILE_BYTES_MAX // 1024} KiB.", "Shorten it.")
    if b"\0" in data:
        raise Broken(
            1 + data[: data.index(b"\0")].count(b"\n"), "The file is binary, not text.", "Save it as UTF-8 text."
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Broken(1 + data[: error.start].count(b"\n"), "The file is not UTF-8.", "Save it as UTF-8.") from error


def _entries(front: list[str], first_line: int) -> tuple[Entry, ...]:
    """Return the front matter's keys, from YAML as a whole or else entry by entry."""
    try:
        found = _mapping("\n".join(front), first_line)
    except _NoYaml as whole:
        found = _one_by_one(front, first_line, whole)
    seen: dict[str, int] = {}
    for entry in found:
        if entry.key in seen:
            raise Broken(
                entry.line, f"The key {entry.key!r} stands twice, first in line {seen[entry.key]}.", "Keep one."
            )
        seen[entry.key] = entry.line
    return tuple(found)


class _NoYaml(Exception):  # noqa: N818 - the reason to read on more tolerantly
    """The text is no YAML."""

    def __init__(self, line: int, cause: str) -> None:
        super().__init__(cause)
        self.broken = Broken(
            line, f"The front matter is no YAML: {cause}.", "Put the value in quotes, or use '|' and indent it."
        )


def _mapping(text: str, first_line: int) -> list[Entry]:
    """Return the keys of a YAML mapping. Raises `_NoYaml`, and `Broken` for anchors and wrong shapes."""
    node = _compose(text, first_line)
    if node is None:
        return []
    if not isinstance(node, MappingNode):
        raise _NoYaml(first_line, "it is no list of 'key: value' lines")
    _refuse_anchor(node, first_line)
    pairs = cast("list[tuple[Any, Any]]", node.value)
    entries: list[Entry] = []
    for key, value in pairs:
        line = first_line + int(key.start_mark.line)
        name, tree = _key(key, first_line), _tree(value, first_line, 0)
        entries.append(Entry(key=name, value=tree, line=line, inner=_inner(value, first_line)))
    return entries


def _inner(node: Any, first_line: int) -> dict[str, int]:
    if not isinstance(node, MappingNode):
        return {}
    pairs = cast("list[tuple[Any, Any]]", node.value)
    return {str(key.value): first_line + int(key.start_mark.line) for key, _ in pairs}


def _compose(text: str, first_line: int) -> Any:
    if text.count("[") + text.count("{") > BRACKETS_MAX:
        raise Broken(first_line, f"The front matter has more than {BRACKETS_MAX} brackets.", "Use flat values.")
    try:
        reader = cast("Any", YAML(typ="safe", pure=True))
        reader.composer.warn_double_anchors = False  # anchors are refused anyway, with their line
        return reader.compose(text)
    except MarkedYAMLError as error:
        fault = cast("Any", error)
        mark: Any = fault.problem_mark or fault.context_mark
        line = first_line + (int(mark.line) if mark else 0)
        raise _NoYaml(line, " ".join(str(fault.problem or fault.context).split())) from error
    except (YAMLError, ValueError) as error:
        raise _NoYaml(first_line, " ".join(str(error).split())[:200]) from error
    except RecursionError as error:
        raise Broken(first_line, "The front matter is nested too deeply.", "Use flat values.") from error


def _key(node: Any, first_line: int) -> str:
    if not isinstance(node, ScalarNode):
        raise Broken(first_line + int(node.start_mark.line), "A key is not a plain word.", "Write 'key: value'.")
    _refuse_anchor(node, first_line)
    return str(cast("Any", node).value)


def _tree(node: Any, first_line: int, depth: int) -> Tree:
    """Return a value with every scalar as text."""
    _refuse_anchor(node, first_line)
    line = first_line + int(node.start_mark.line)
    if depth > NESTING_MAX:
        raise Broken(line, "The value is nested too deeply.", "Use a flat value.")
    if isinstance(node, SequenceNode):
        items = cast("list[Any]", node.value)
        return [_tree(item, first_line, depth + 1) for item in items]
    if isinstance(node, MappingNode):
        pairs = cast("list[tuple[Any, Any]]", node.value)
        return {_key(key, first_line): _tree(value, first_line, depth + 1) for key, value in pairs}
    return str(node.value) if node.style else Plain(node.value)


def _refuse_anchor(node: Any, first_line: int) -> None:
    if node.anchor is not None:
        line = first_line + int(node.start_mark.line)
        raise Broken(
            line, "Anchors and aliases ('&' and '*') are not allowed.", "Write the value out, or put it in quotes."
        )


def _one_by_one(front: list[str], first_line: int, whole: _NoYaml) -> list[Entry]:
    """Read each entry for itself, a description as it stands where it is no YAML."""
    starts = _starts(front)
    if not starts or any(line.strip() and not line.lstrip().startswith("#") for line in front[: starts[0]]):
        raise whole.broken from whole
    entries: list[Entry] = []
    for start, end in zip(starts, [*starts[1:], len(front)], strict=True):
        lines = front[start:end]
        try:
            entries.extend(_mapping("\n".join(lines), first_line + start))
        except (_NoYaml, Broken) as error:
            entries.append(_as_it_stands(lines, first_line + start, error))
    return entries


def _starts(front: list[str]) -> list[int]:
    """Return where entries begin; a line inside an `<example>` block begins none, unless the block never ends."""
    starts: list[int] = []
    depth = 0
    is_closed = sum(len(_OPENS.findall(line)) - len(_CLOSES.findall(line)) for line in front) == 0
    for number, line in enumerate(front):
        if _ENTRY.match(line) and (depth <= 0 or not is_closed):
            starts.append(number)
        depth += len(_OPENS.findall(line)) - len(_CLOSES.findall(line))
    return starts


def _as_it_stands(lines: list[str], line: int, error: _NoYaml | Broken) -> Entry:
    found = _ENTRY.match(lines[0])
    key, value = (found[1], found[2] or "") if found else ("", "")
    is_star = value.strip() == "*" and key.lower() in _STAR
    if not is_star and (key.lower() not in _FREE_TEXT or value[:1] in ("", '"', "'", "|", ">", "[", "{")):
        raise error.broken if isinstance(error, _NoYaml) else error
    return Entry(key=key, value="\n".join([value.strip(), *(text.strip() for text in lines[1:])]).strip(), line=line)
