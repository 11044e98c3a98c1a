"""`grep`: walks the workspace, and has each pattern run where it can be stopped; it never follows a link.

A regular expression can run for ever on a short line and cannot be interrupted inside this process. So the lines go,
a batch of files at a time, to a bare interpreter (`matcher.py`) that is killed when the time is over.
"""

import fnmatch
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Annotated, Final

import msgspec

from retinue.core.errors import RetinueError
from retinue.tools.paths import Entry, Place, Workspace
from retinue.tools.text import READ_BYTES_MAX, decode, is_binary, read_bytes

PATTERN_CHARS_MAX: Final = 1000
MATCHES_MAX: Final = 200
FILES_MAX: Final = 2000
FOLDERS_MAX: Final = 5000
BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
MATCH_CHARS_MAX: Final = 240
GREP_TIME_MAX_S: Final = 10
SKIPPED: Final = frozenset(
    {".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", ".tox", ".nox"}
    | {".mypy_cache", ".ruff_cache", ".pytest_cache", ".import_linter_cache", ".hypothesis"}
)
"""Folders that are left out of a search unless it begins inside one."""


class GrepParameters(msgspec.Struct, frozen=True, kw_only=True):
    """What `grep` takes."""

    pattern: Annotated[
        str,
        msgspec.Meta(
            min_length=1,
            max_length=PATTERN_CHARS_MAX,
            description="A regular expression (Python syntax), matched line by line.",
        ),
    ]
    path: Annotated[str, msgspec.Meta(description="The file or folder to search.")] = "."
    glob: (
        Annotated[
            str,
            msgspec.Meta(
                max_length=200,
                description="Only files whose name, or path if it has a slash, matches, as *.py or src/**/*.md.",
            ),
        ]
        | None
    ) = None
    ignore_case: Annotated[bool, msgspec.Meta(description="Whether upper and lower case are the same.")] = False


@dataclass(slots=True)
class Tally:
    """What was searched so far and why the search ended early."""

    lines: list[str] = field(default_factory=list[str])
    searched: int = 0
    folders: int = 0
    binary: int = 0
    unreadable: int = 0
    cut: int = 0
    runs: int = 0
    """Batches that were searched; even without a file there is one, which checks the pattern."""
    stopped: str = ""


def grep(workspace: Workspace, ask: GrepParameters) -> str:
    """Return the matching lines as `path:line: text`, and in a last line what was searched. Blocks."""
    tally = Tally()
    search = Search(workspace, ask, tally)
    with workspace.open(ask.path) as place:
        found = search.in_folder(place) if place.is_folder else search.in_file(place)
        batch: list[tuple[str, str]] = []
        size = 0
        for path, text in found:
            batch.append((path, text))
            size += len(text)
            if size >= BATCH_BYTES_MAX:
                search.match(batch)
                batch, size = [], 0
            if tally.stopped:
                break
        search.match(batch)
    return "\n".join([*tally.lines, footer(tally)])


class Search:
    """One search: its time, its filter, its tally."""

    def __init__(self, workspace: Workspace, ask: GrepParameters, tally: Tally) -> None:
        self.workspace: Final = workspace
        self.ask: Final = ask
        self.tally: Final = tally
        self.ends_at: Final = time.monotonic() + GREP_TIME_MAX_S

    def in_file(self, place: Place) -> Iterator[tuple[str, str]]:
        """Yield the path and the text of one open file, nothing where it is binary."""
        text = self._text(place)
        if text is not None:
            yield place.shown, text

    def in_folder(self, top: Place) -> Iterator[tuple[str, str]]:
        """Walk breadth first; each folder is opened anew, so few descriptors are held however deep it goes."""
        waiting = [top.parts]
        while waiting and not self.tally.stopped:
            following: list[tuple[str, ...]] = []
            for parts in waiting:
                yield from self._one_folder(parts, following)
            waiting = following

    def _one_folder(self, parts: tuple[str, ...], following: list[tuple[str, ...]]) -> Iterator[tuple[str, str]]:
        if self._is_over():
            return
        self.tally.folders += 1
        try:
            with self.workspace.open_parts(parts) as folder:
                entries, whole = self.workspace.entries(folder)
                self.tally.unreadable += not whole
                following.extend((*parts, e.name) for e in entries if e.kind == "dir" and e.name not in SKIPPED)
                for entry in entries:
                    if entry.kind == "file" and self._is_wanted((*parts, entry.name)) and not self._is_over():
                        yield from self._one_file(folder, entry)
        except (OSError, RetinueError):
            self.tally.unreadable += 1

    def _one_file(self, folder: Place, entry: Entry) -> Iterator[tuple[str, str]]:
        try:
            with self.workspace.open_entry(folder, entry) as place:
                yield from self.in_file(place)
        except (OSError, RetinueError):
            self.tally.unreadable += 1

    def _text(self, place: Place) -> str | None:
        data, whole = read_bytes(place.fd, READ_BYTES_MAX)
        if is_binary(data):
            self.tally.binary += 1
            return None
        self.tally.searched += 1
        self.tally.cut += not whole
        return decode(data)[0]

    def _is_wanted(self, parts: tuple[str, ...]) -> bool:
        glob = self.ask.glob
        if glob is None:
            return True
        if "/" not in glob:
            return fnmatch.fnmatchcase(parts[-1], glob)
        path = "/".join(parts)
        return any(fnmatch.fnmatchcase(path, g) for g in (glob, glob.replace("**/", "")))

    def _is_over(self) -> bool:
        tally = self.tally
        if tally.stopped:
            return True
        if tally.searched >= FILES_MAX:
            tally.stopped = f"after {FILES_MAX} files"
        elif tally.folders >= FOLDERS_MAX:
            tally.stopped = f"after {FOLDERS_MAX} folders"
        elif time.monotonic() >= self.ends_at:
            tally.stopped = f"after {GREP_TIME_MAX_S} s"
        return bool(tally.stopped)

    def match(self, batch: list[tuple[str, str]]) -> None:
        """Search a batch of texts in a process that ends with the time; keep what it found until then."""
        left = self.ends_at - time.monotonic()
        if self.tally.runs and (not batch or len(self.tally.lines) >= MATCHES_MAX):
            return
        self.tally.runs += 1
        job = {
            "pattern": self.ask.pattern,
            "ignore_case": self.ask.ignore_case,
            "limit": MATCHES_MAX - len(self.tally.lines),
            "cpu_s": GREP_TIME_MAX_S + 1,
            "texts": [text for _, text in batch],
        }
        output, ended = _run_matcher(json.dumps(job).encode(), max(left, 0.0))
        if output.startswith("! "):
            raise RetinueError(
                "invalid",
                f"The pattern is not a regular expression: {output[2:].strip()}.",
                "Escape what is meant literally.",
            )
        self.tally.lines.extend(_shown_matches(output, batch))
        if not ended:
            self.tally.stopped = f"after {GREP_TIME_MAX_S} s; simplify the pattern or name a smaller folder"
        elif len(self.tally.lines) >= MATCHES_MAX:
            self.tally.stopped = f"after {MATCHES_MAX} matches"


def _run_matcher(job: bytes, timeout_s: float) -> tuple[str, bool]:
    """Return what the matcher printed and whether it came to its end."""
    command = [sys.executable, "-I", "-S", "-c", matcher_source()]
    try:
        done = subprocess.run(command, input=job, capture_output=True, timeout=timeout_s, check=False)  # noqa: S603 - our own source
    except subprocess.TimeoutExpired as late:
        return (late.stdout or b"").decode("ascii", "replace"), False
    except OSError as error:
        cause = f"The search cannot start {sys.executable!r}: {error.strerror}."
        raise RetinueError("unsupported", cause, "Read files instead, or repair the Python installation.") from error
    return done.stdout.decode("ascii", "replace"), done.returncode == 0


@cache
def matcher_source() -> str:
    """Return the program that searches, as text for a bare interpreter."""
    return resources.files("retinue.tools").joinpath("matcher.py").read_text(encoding="utf-8")


def _shown_matches(output: str, batch: list[tuple[str, str]]) -> list[str]:
    """Return the matches as lines for the model; a line that was half printed is left out."""
    found = [
        tuple(map(int, m.groups()))
        for m in re.finditer(r"^(\d+) (\d+) (\d+) (\d+)$", output.rpartition("\n")[0], re.MULTILINE)
    ]
    split: dict[int, list[str]] = {}
    lines: list[str] = []
    for number, at, start, end in found:
        if number not in split:
            split[number] = batch[number][1].split("\n")
        lines.append(f"{batch[number][0]}:{at}: {_window(split[number][at - 1], start, end)}")
    return lines


def _window(line: str, start: int, end: int) -> str:
    """Return the part of a line around a match, marked where it was cut."""
    line = line.rstrip("\r")
    if len(line) <= MATCH_CHARS_MAX:
        return line
    begin = max(0, min(start - (MATCH_CHARS_MAX - min(end - start, MATCH_CHARS_MAX)) // 2, len(line) - MATCH_CHARS_MAX))
    stop = begin + MATCH_CHARS_MAX
    return f"{'…' if begin else ''}{line[begin:stop]}{'…' if stop < len(line) else ''}"


def footer(tally: Tally) -> str:
    """Return the last line of an answer: how much was searched, what was not, why it ended."""
    skipped = [
        f"{tally.binary} binary" if tally.binary else "",
        f"{tally.unreadable} unreadable" if tally.unreadable else "",
        f"{tally.cut} searched only in their first {READ_BYTES_MAX // 1024} KiB" if tally.cut else "",
    ]
    notes = "; ".join(filter(None, [*skipped, f"stopped {tally.stopped}, there may be more" if tally.stopped else ""]))
    matches = f"{len(tally.lines)} matches" if len(tally.lines) != 1 else "1 match"
    return f"[{matches} in {tally.searched} files searched{'; ' + notes if notes else ''}]"
