"""The tools that read the workspace: `read_file`, `list_dir`, `grep`; they never write and never leave it."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Generic, Literal, TypeVar

import msgspec

from retinue.core.errors import RetinueError
from retinue.ports import Tool, ToolContext, ToolResult, ToolSchema
from retinue.tools.paths import Entry, Place, Workspace, quoted, shown, shown_path
from retinue.tools.schema import parse, tool_schema
from retinue.tools.search import SKIPPED, GrepParameters, grep
from retinue.tools.text import READ_BYTES_MAX, cut_line, decode, is_binary, read_bytes, skip_lines

READ_LINES_MAX: Final = 2000
READ_CHARS_MAX: Final = 40_000
"""Characters of text that one call returns; the rest is reached by `offset`."""
SKIP_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes that are passed over to reach `offset`."""
LIST_ENTRIES_MAX: Final = 1000
LIST_DEPTH_MAX: Final = 5
COUNT_ENTRIES_MAX: Final = 100_000
"""Entries that one call counts inside the folders it shows."""

P = TypeVar("P", bound=msgspec.Struct)


class ReadParameters(msgspec.Struct, frozen=True, kw_only=True):
    """What `read_file` takes."""

    path: Annotated[str, msgspec.Meta(description="The file, from the working directory.")]
    offset: Annotated[int, msgspec.Meta(ge=1, description="The first line to show, counted from 1.")] = 1
    limit: Annotated[int, msgspec.Meta(ge=1, le=READ_LINES_MAX, description="How many lines to show.")] = READ_LINES_MAX


class ListParameters(msgspec.Struct, frozen=True, kw_only=True):
    """What `list_dir` takes."""

    path: Annotated[str, msgspec.Meta(description="The folder, from the working directory.")] = "."
    depth: Annotated[int, msgspec.Meta(ge=1, le=LIST_DEPTH_MAX, description="How many levels to show.")] = 1


@dataclass(frozen=True, slots=True)
class WorkspaceTool(Generic[P]):
    """A reading tool: its blocking part runs off the loop on the calling session's workspace."""

    schema: ToolSchema
    parameters: type[P]
    run: Callable[[Workspace, P], str]
    exclusive: bool = False
    group: Literal["read", "agents", "custom"] = "read"

    async def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        """Answer one call; raise `RetinueError` to refuse it. What the system refuses is an error result."""
        ask = parse(self.parameters, arguments)
        return await context.offload(_answer, self.run, context.cwd, context.data_dir, ask)


def workspace_tools() -> tuple[Tool, ...]:
    """Return `read_file`, `list_dir` and `grep`."""
    return (
        WorkspaceTool(tool_schema("read_file", ReadParameters), ReadParameters, read_file),
        WorkspaceTool(tool_schema("list_dir", ListParameters), ListParameters, list_dir),
        WorkspaceTool(tool_schema("grep", GrepParameters), GrepParameters, grep),
    )


def _answer(run: Callable[[Workspace, P], str], cwd: str, data_dir: str, ask: P) -> ToolResult:
    try:
        return ToolResult(text=run(Workspace(cwd, data_dir), ask))
    except OSError as error:
        path = str(getattr(ask, "path", "."))
        return ToolResult(text=f"{quoted(path)} cannot be read: {error.strerror or error}.", outcome="error")


def read_file(workspace: Workspace, ask: ReadParameters) -> str:
    """Return lines of a text file, under a header line where that is not simply all of it. Blocks."""
    with workspace.open(ask.path) as place:
        if place.is_folder:
            raise RetinueError(
                "invalid", f"{quoted(ask.path)} is a folder.", "Use list_dir, then read one of its files."
            )
        head, _ = read_bytes(place.fd, READ_BYTES_MAX if ask.offset == 1 else 8192)
        if is_binary(head):
            return f"[binary file of {place.info.st_size} bytes, not shown]"
        os.lseek(place.fd, 0, os.SEEK_SET)
        passed = skip_lines(place.fd, ask.offset - 1, SKIP_BYTES_MAX)
        data, whole = read_bytes(place.fd, READ_BYTES_MAX)
    if passed < ask.offset - 1:
        reached = "only the first {} lines can be reached" if data else "the file has {} lines"
        return f"[nothing at line {ask.offset}: {reached.format(passed)}]"
    return _page(ask, *decode(data), whole)


def _page(ask: ReadParameters, text: str, is_utf8: bool, whole: bool) -> str:  # noqa: FBT001 - both come from `decode` and `read_bytes`
    """Return the asked lines of a text that begins at `offset`."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    kept = _fitting([cut_line(line) for line in lines[: ask.limit]])
    last = ask.offset - 1 + len(kept)
    notes = [] if is_utf8 else ["not UTF-8: what could not be decoded is shown as \N{REPLACEMENT CHARACTER}"]
    if not lines:
        notes.append(
            "the file is empty" if ask.offset == 1 else f"nothing at line {ask.offset}: the file has {last} lines"
        )
    elif len(kept) < len(lines) or ask.offset > 1 or not whole:
        of = f" of {ask.offset - 1 + len(lines)}" if whole else ""
        more = f"; continue with offset={last + 1}" if len(kept) < len(lines) or not whole else ""
        notes.insert(0, f"lines {ask.offset}-{last}{of}{more}")
    return "\n".join([f"[{'; '.join(notes)}]", *kept] if notes else kept)


def _fitting(lines: list[str]) -> list[str]:
    """Return the first lines that fit the result, at least one."""
    left = READ_CHARS_MAX
    for number, line in enumerate(lines):
        left -= len(line) + 1
        if left < 0 and number > 0:
            return lines[:number]
    return lines


def list_dir(workspace: Workspace, ask: ListParameters) -> str:
    """Return a folder's entries, one a line, level by level, and in a last line how many there are. Blocks."""
    with workspace.open(ask.path) as place:
        if not place.is_folder:
            raise RetinueError("invalid", f"{quoted(ask.path)} is a file.", "Use read_file.")
        top = place.parts
    listing = _Listing(workspace)
    level = [top]
    for number in range(ask.depth):
        level = [inner for parts in level for inner in listing.add(parts, is_top=number == 0)]
    return "\n".join([*listing.lines, listing.footer()])


class _Listing:
    """One listing as it grows: its lines, and how many entries there are and were counted."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace: Final = workspace
        self.lines: Final[list[str]] = []
        self.total = 0
        self.counted = 0
        self.is_whole = True

    def add(self, parts: tuple[str, ...], *, is_top: bool) -> list[tuple[str, ...]]:
        """Show one folder's entries; return the folders in it that a next level shows."""
        if len(self.lines) >= LIST_ENTRIES_MAX:
            self.is_whole = False
            return []
        try:
            with self.workspace.open_parts(parts) as folder:
                entries, whole = self.workspace.entries(folder)
                self.is_whole = self.is_whole and whole
                self.total += len(entries)
                for entry in entries[: LIST_ENTRIES_MAX - len(self.lines)]:
                    self.lines.append(self._line(folder, entry))
        except (OSError, RetinueError):
            if is_top:
                raise
            return []
        return [(*parts, e.name) for e in entries if e.kind == "dir" and e.name not in SKIPPED]

    def _line(self, folder: Place, entry: Entry) -> str:
        path = shown_path((*folder.parts, entry.name))
        if entry.kind == "dir":
            return f"dir   {self._size_of(folder, entry)}  {path}/"
        if entry.kind == "file":
            return f"file  {entry.size_bytes} bytes  {path}"
        return f"link  {path} -> {shown(entry.target)}" if entry.kind == "link" else f"other {path}"

    def _size_of(self, folder: Place, entry: Entry) -> str:
        if self.counted >= COUNT_ENTRIES_MAX:
            return "? entries"
        try:
            with self.workspace.open_entry(folder, entry) as inner:
                count = self.workspace.count(inner, COUNT_ENTRIES_MAX)
        except (OSError, RetinueError):
            return "unreadable"
        self.counted += count
        return f"{count} entries"

    def footer(self) -> str:
        """Say how many entries there are and how many are shown."""
        if len(self.lines) == self.total and self.is_whole:
            return f"[{self.total} entries]" if self.total else "[the folder is empty]"
        least = "" if self.is_whole else "at least "
        return f"[{len(self.lines)} of {least}{self.total} entries shown; list a folder in it, or use grep with a glob]"
