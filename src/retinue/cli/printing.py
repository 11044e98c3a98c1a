"""What a command writes to stdout and stderr: a document, a text, a table, a note, a problem; it decides no content."""

import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from retinue.cli import streams
from retinue.cli.plain import line, safe, safe_json
from retinue.core.errors import RetinueError

CELL_MAX_CHARS: Final = 60


def to_terminal() -> bool:
    """Return whether a person sees stdout as it is written."""
    return sys.stdout.isatty()


def write_json(data: bytes) -> None:
    """Write JSON to stdout as one line, at once."""
    _write((safe_json(data) if to_terminal() else data) + b"\n")


def document(body: Any) -> None:
    """Print one JSON document."""
    write_json(msgspec.json.encode(body))


def text(words: str) -> None:
    """Print a text to stdout: as it is into a pipe or file, without control characters on a terminal."""
    shown = safe(words) if to_terminal() else words
    if shown:
        _write(shown.encode("utf-8", "replace") + (b"" if shown.endswith("\n") else b"\n"))


def note(words: str) -> None:
    """Print a line for a person to stderr, never a control character with it; lost where stderr takes nothing."""
    with suppress(streams.UnwrittenError):
        streams.send(sys.stderr, safe(words).encode("utf-8", "replace") + b"\n")


def mark(words: str) -> None:
    """Print to stderr without an end of line, for a person who is to type behind it."""
    with suppress(streams.UnwrittenError):
        streams.send(sys.stderr, words.encode())


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], cell_max_chars: int = CELL_MAX_CHARS) -> None:
    """Print rows in columns under their heads."""
    for words in aligned(heads, rows, cell_max_chars):
        text(words)


def aligned(heads: Sequence[str], rows: Iterable[Sequence[object]], cell_max_chars: int = CELL_MAX_CHARS) -> list[str]:
    """Return rows in columns under their heads, a line each."""
    lines = [list(heads), *([line(str(cell), cell_max_chars) for cell in row] for row in rows)]
    widths = [max(len(cells[column]) for cells in lines) for column in range(len(heads))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in lines]


def fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair a line."""
    shown = [(name, line(str(value), 2000)) for name, value in pairs]
    width = max(len(name) for name, _ in shown)
    for name, value in shown:
        text(f"{name.ljust(width)}  {value}")


def problem(error: RetinueError, *, as_json: bool) -> None:
    """Print a refusal: a sentence and what to do to stderr, and with `--json` the problem object as the document."""
    note(f"retinue: {line(error.detail, 2000)}")
    if error.hint:
        note(f"  {line(error.hint, 2000)}")
    if as_json:
        document(error.to_dict())


def unwritten(error: streams.UnwrittenError, remedy: str = "") -> None:
    """Say that stdout did not take what was to be printed, and where else it is."""
    note(f"retinue: standard output cannot be written: {error.reason}.")
    if remedy:
        note(f"  {remedy}")


def _write(data: bytes) -> None:
    streams.send(sys.stdout, data)
