"""A snapshot → the Markdown that means the same when it is read; it writes no file."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final, cast

import msgspec

from retinue.core.events import Snapshot
from retinue.definitions.frontmatter import BRACKETS_MAX

_BRACKETS: Final = "[{"
_ESCAPES: Final = {"\n": "\\n", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
_WORDS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
"""How a text must begin that is written without quotes; what follows may have a few signs more."""
_MORE: Final = _WORDS | frozenset("0123456789-./")


def shown_as_own(snapshot: Snapshot) -> str:
    """Return a definition in this project's own format: read again it has the same effective fields.

    Its layer, its digest, and whether it is hidden are no part of the text.
    """
    front = "\n".join(_front(snapshot, ""))
    if sum(front.count(bracket) for bracket in _BRACKETS) > BRACKETS_MAX:
        front = "\n".join(_front(snapshot, _BRACKETS))
    return f"---\n{front}\n---\n{snapshot.instructions}\n"


def _front(snapshot: Snapshot, escaped: str) -> Iterator[str]:
    """Yield the lines of the front matter; `escaped` are characters that may not stand in it as they are."""
    yield f"name: {_scalar(snapshot.name, escaped)}"
    yield f"description: {_quoted(snapshot.description, escaped)}"
    for key, value in (("model", snapshot.model), ("effort", snapshot.effort), ("access", snapshot.access)):
        if value is not None:
            yield f"{key}: {_scalar(value, escaped)}"
    if snapshot.tools is not None:
        yield from _lines("tools", list(snapshot.tools), escaped)
    for key in ("disallowed_tools", "paths", "spawns", "skills"):
        found = cast("tuple[str, ...]", getattr(snapshot, key))
        if found:
            yield from _lines(key, list(found), escaped)
    if snapshot.max_steps is not None:
        yield f"max_steps: {snapshot.max_steps}"
    if snapshot.timeout_s is not None:
        yield f"timeout: {format(Decimal(repr(snapshot.timeout_s)).normalize(), 'f')}s"
    if snapshot.continuable is not None:
        yield f"continuable: {'true' if snapshot.continuable else 'false'}"
    if snapshot.output_schema is not None:
        yield from _lines("output_schema", snapshot.output_schema, escaped)


def _lines(key: str, value: Any, escaped: str, indent: str = "") -> Iterator[str]:
    """Yield a key with its value, in block style where it is a list or a map that has something in it."""
    if isinstance(value, dict) and value:
        yield f"{indent}{key}:"
        for inner, item in cast("dict[str, Any]", value).items():
            yield from _lines(_scalar(inner, escaped), item, escaped, f"{indent}  ")
    elif isinstance(value, list) and value:
        yield f"{indent}{key}:"
        for item in cast("list[Any]", value):
            yield from _item(item, escaped, f"{indent}  ")
    else:
        yield f"{indent}{key}: {_plain(value, escaped)}"


def _item(value: Any, escaped: str, indent: str) -> Iterator[str]:
    if isinstance(value, dict | list) and value:
        yield f"{indent}-"
        pairs: list[Any] = cast("list[Any]", value) if isinstance(value, list) else []
        for item in pairs:
            yield from _item(item, escaped, f"{indent}  ")
        if isinstance(value, dict):
            for key, item in cast("dict[str, Any]", value).items():
                yield from _lines(_scalar(key, escaped), item, escaped, f"{indent}  ")
    else:
        yield f"{indent}- {_plain(value, escaped)}"


def _plain(value: Any, escaped: str) -> str:
    """Return a text, number, switch or null, or an empty list or map."""
    return _quoted(value, escaped) if isinstance(value, str) else msgspec.json.encode(value).decode()


def _scalar(value: str, escaped: str) -> str:
    """Return a text without quotes where it is one plain word, which every field here reads as text."""
    is_word = value[:1] in _WORDS and set(value) <= _MORE and len(value) <= 64
    return value if value and is_word else _quoted(value, escaped)


def _quoted(value: str, escaped: str) -> str:
    """Return a text as one line in double quotes, everything that is not printed as an escape."""
    return '"' + "".join(_char(char, escaped) for char in value) + '"'


def _char(char: str, escaped: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char.isprintable() and char not in escaped:
        return char
    return f"\\u{ord(char):04x}" if ord(char) <= 0xFFFF else f"\\U{ord(char):08x}"
