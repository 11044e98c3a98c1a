"""The offline child's rules: which calls look at a scope, and what their answers prove; it calls nothing itself."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec

from retinue.core.messages import ToolText
from retinue.models.text import counted

FILES_READ_MAX: Final = 6
FOLDERS_LISTED_MAX: Final = 24
FOLDERS_NAMED_MAX: Final = 6
READ_LINES: Final = 60
TELLING_BYTES_MIN: Final = 200
TELLING_BYTES_MAX: Final = 256 * 1024
FINDINGS_BYTES_MAX: Final = 2400
"""Bytes of the findings: a result letter holds 900 tokens, which are 2 700 bytes."""
QUOTE_CHARS_MAX: Final = 90
SCOPE_HEADING: Final = "Look at:"
STARTS_SOMETHING: Final = r"^\s*(class|def|async def|func|fn|function) "
DOCUMENTS: Final = (".md", ".rst", ".txt", ".adoc")
SETTINGS: Final = (".toml", ".cfg", ".ini", ".yaml", ".yml", ".json")
CODE: Final = (".py", ".rs", ".go", ".ts", ".js", ".java", ".c", ".h", ".cpp", ".rb", ".sh", ".sql")

_ENTRY: Final = re.compile(r"^(dir|file) +(?:(\d+) (?:bytes|entries)|\? entries|(unreadable))  (.+)$")
_CUT: Final = re.compile(r"^\[(\d+) of (?:at least )?(\d+) entries shown")
_LINES: Final = re.compile(r"^\[lines \d+-(\d+)(?: of (\d+))?[;\]]")
_BINARY: Final = re.compile(r"^\[binary file of (\d+) bytes")
_MATCHES: Final = re.compile(r"^\[(\d+) match(?:es)? in (\d+) files searched(.*)\]$")
_PATH_LIKE: Final = re.compile(r"[/\\`]|\.\w")
_MARKS: Final = " \t#*/-=<>!\"'%;{}[]()"
_QUESTION: Final = re.compile(r"^Question: (\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Ask:
    """A tool call to make."""

    name: str
    arguments: dict[str, Any]

    @property
    def key(self) -> str:
        """What identifies the call among the answered ones."""
        return f"{self.name} {json.dumps(self.arguments, sort_keys=True)}"


Answers = Mapping[str, ToolText]
"""Answers by the key of their call."""


@dataclass(frozen=True, slots=True)
class Item:
    """One folder or file of a listing. A folder's path ends with a slash; `size` is bytes or entries, or unknown."""

    path: str
    size: int | None
    is_readable: bool = True

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return self.path.endswith("/")

    @property
    def is_plain(self) -> bool:
        """Whether the path can be named in a line of Markdown as it is on the disk."""
        return "\\" not in self.path and "`" not in self.path


@dataclass(frozen=True, slots=True)
class Listing:
    """What `list_dir` said: folders and files, and how many entries there are beside links and other things."""

    items: tuple[Item, ...]
    total: int
    left_out: int


def read_listing(text: str) -> Listing:
    """Return what a listing holds; lines that are none are passed over."""
    items: list[Item] = []
    total, left_out = 0, 0
    for line in text.split("\n"):
        if found := _ENTRY.match(line):
            items.append(Item(found[4], None if found[2] is None else int(found[2]), found[3] is None))
            total += 1
        elif cut := _CUT.match(line):
            total, left_out = int(cut[2]), int(cut[2]) - int(cut[1])
    return Listing(tuple(items), total, left_out)


def scope_of(prompt: str) -> tuple[str, ...]:
    """Return the paths a task names under its heading; the whole folder where it names none."""
    _, heading, rest = prompt.partition(f"\n{SCOPE_HEADING}\n")
    paths: list[str] = []
    for line in rest.split("\n") if heading else []:
        if not line.startswith("- "):
            break
        paths.append(line.removeprefix("- "))
    return tuple(paths) or (".",)


def question_of(prompt: str) -> str:
    """Return the word that says what a task asks for; `everything` where it says none."""
    found = _QUESTION.search(prompt)
    return found[1] if found else "everything"


class Explorer:
    """Looks at a scope: first lists its folders, then reads what tells most, then counts definitions."""

    def __init__(self, scope: tuple[str, ...], question: str, answers: Answers) -> None:
        """Go on from the answers that are there."""
        self._scope: Final = scope
        self._question: Final = question
        self._answers: Final = answers
        self._lists: Final = [
            Ask("list_dir", {"path": path.rstrip("/") or ".", "depth": 2})
            for path in scope
            if path.endswith("/") or path == "."
        ][:FOLDERS_LISTED_MAX]
        self._listings: Final = {
            ask.key: read_listing(answers[ask.key].text)
            for ask in self._lists
            if ask.key in answers and not answers[ask.key].error
        }

    def next_calls(self, tools: frozenset[str]) -> list[Ask]:
        """Return the calls to make now, none when everything was looked at that can be."""
        for stage in (self._lists, self._reads(), self._counts()):
            missing = [ask for ask in stage if ask.key not in self._answers and ask.name in tools]
            if missing:
                return missing
        return []

    def findings(self) -> str:
        """Return what was found, one `- path: evidence` a line, within `FINDINGS_BYTES_MAX`."""
        lines = [self._totals(), ""]
        left = FINDINGS_BYTES_MAX - len(lines[0].encode()) - 80
        evidence = [*self._read_lines(), *self._refused_lists(), *self._count_lines(), *self._folder_lines()]
        for number, line in enumerate(evidence):
            left -= len(line.encode()) + 1
            if left < 0:
                lines.append(f"({len(evidence) - number} more findings are left out: they do not fit.)")
                break
            lines.append(line)
        if not evidence:
            lines.append("There is nothing here to read.")
        return "\n".join(lines)

    def _items(self) -> list[Item]:
        """Return what is known of the scope: what its listings show, and the files that it names itself."""
        listed = [item for listing in self._listings.values() for item in listing.items]
        named = [Item(path, None) for path in self._scope if not path.endswith("/") and path != "."]
        return list({item.path: item for item in [*named, *listed]}.values())

    def _reads(self) -> list[Ask]:
        if self._question == "layout":
            return []
        wanted = {"documentation": DOCUMENTS, "code": CODE + SETTINGS}.get(self._question)
        files = [item for item in self._items() if not item.is_folder and item.is_plain and _is_wanted(item, wanted)]
        chosen = sorted(files, key=_telling)[:FILES_READ_MAX]
        return [Ask("read_file", {"path": item.path, "limit": READ_LINES}) for item in chosen]

    def _counts(self) -> list[Ask]:
        """Return one search, in the folder of the scope with most code in sight."""
        if self._question in ("layout", "documentation"):
            return []
        code = {ask.arguments["path"]: self._code_in(ask) for ask in self._lists}
        most = max(code.values(), default=0)
        return [
            Ask("grep", {"pattern": STARTS_SOMETHING, "path": path})
            for path, files in code.items()
            if files == most > 0
        ][:1]

    def _code_in(self, ask: Ask) -> int:
        listing = self._listings.get(ask.key)
        return sum(item.path.lower().endswith(CODE) for item in listing.items) if listing else 0

    # -------------------------------------------------------------------------------------------------- what it proves

    def _totals(self) -> str:
        items = self._items()
        files = [item for item in items if not item.is_folder]
        sizes = [item.size for item in files if item.size is not None]
        size = f", {sum(sizes)} bytes" if len(sizes) == len(files) else ""
        odd = sum(not item.is_plain for item in items)
        beyond = sum(listing.left_out for listing in self._listings.values())
        more = f" {odd} names do not fit on a line and are not written here." if odd else ""
        more += f" {beyond} further entries were not listed." if beyond else ""
        folders = counted(len(items) - len(files), "folder")
        return f"In sight: {counted(len(files), 'file')} and {folders}{size}.{more}"

    def _read_lines(self) -> list[str]:
        sizes = {item.path: item.size for item in self._items()}
        return [
            f"- `{ask.arguments['path']}`: {_evidence(self._answers[ask.key], sizes.get(ask.arguments['path']))}"
            for ask in self._reads()
            if ask.key in self._answers
        ]

    def _refused_lists(self) -> list[str]:
        shut = [
            f"- `{i.path}`: not read, the folder cannot be opened"
            for i in self._items()
            if not i.is_readable and i.is_plain
        ]
        asked = [(ask.arguments["path"], self._answers.get(ask.key)) for ask in self._lists]
        refused = [f"- `{path}`: not read, {_reason(answer.text)}" for path, answer in asked if answer and answer.error]
        return refused + shut

    def _count_lines(self) -> list[str]:
        lines: list[str] = []
        for ask in self._counts():
            answer = self._answers.get(ask.key)
            found = None if answer is None or answer.error else _MATCHES.match(answer.text.rpartition("\n")[2])
            if found and found[1] != "0":
                least = "at least " if "stopped" in found[3] else ""
                where = f"{counted(int(found[2]), 'file')} searched"
                lines.append(f"- `{ask.arguments['path']}`: {least}{found[1]} classes and functions in {where}")
        return lines

    def _folder_lines(self) -> list[str]:
        folders = [item for item in self._items() if item.is_folder and item.is_plain and item.is_readable]
        most = sorted(folders, key=lambda item: (-(item.size or 0), item.path))[:FOLDERS_NAMED_MAX]
        return [f"- `{item.path}`: folder with {'?' if item.size is None else item.size} entries" for item in most]


def _is_wanted(item: Item, endings: tuple[str, ...] | None) -> bool:
    return endings is None or item.path.lower().endswith(endings)


def _telling(item: Item) -> tuple[int, int, int, str]:
    """Order files by how much they are likely to tell: kind, nearness, size."""
    name = item.path.rpartition("/")[2].lower()
    size = TELLING_BYTES_MAX // 2 if item.size is None else item.size
    kinds = (name.startswith("readme"), name.endswith(DOCUMENTS), name.endswith(SETTINGS), name.endswith(CODE))
    kind = next((rank for rank, matches in enumerate(kinds) if matches), len(kinds))
    is_poor = size < TELLING_BYTES_MIN or size > TELLING_BYTES_MAX
    return (kind + len(kinds) * is_poor, item.path.count("/"), size, item.path)


def _evidence(answer: ToolText, size: int | None) -> str:
    """Return what the answer of `read_file` proves of the file."""
    if answer.error:
        return f"not read, {_reason(answer.text)}"
    if binary := _BINARY.match(answer.text):
        return f"not read, binary file of {binary[1]} bytes"
    if answer.text == "[the file is empty]":
        return "0 lines, empty"
    head, _, rest = answer.text.partition("\n")
    lines = _LINES.match(head)
    body = rest if lines or head.startswith("[not UTF-8") else answer.text
    count = (lines[2] or f"more than {lines[1]}") if lines else str(body.count("\n") + 1)
    quote = _quote(body)
    parts = [f"{count} lines", "" if size is None else f"{size} bytes", f'opens with "{quote}"' if quote else ""]
    return ", ".join(filter(None, parts))


def _quote(body: str) -> str:
    """Return the first telling line of a text, without its marks; nothing where it might be taken for a path."""
    for line in body.split("\n")[:20]:
        words = " ".join(line.strip(_MARKS).split())
        if len(words) >= 4 and not line.startswith("#!"):
            return "" if _PATH_LIKE.search(words) else _shortened(words.replace('"', "'"))
    return ""


def _shortened(words: str) -> str:
    return words if len(words) <= QUOTE_CHARS_MAX else words[:QUOTE_CHARS_MAX].rpartition(" ")[0] + " …"


def _reason(text: str) -> str:
    """Return why a call failed, in words that hold no path."""
    if code := refusal_of(text):
        return f"refused with {code}"
    cause = text.rpartition(": ")[2].strip(" .").lower()
    return cause if cause and len(cause) <= 60 and not _PATH_LIKE.search(cause) else "the tool failed"


def refusal_of(text: str) -> str:
    """Return the code in the answer of a refused call, empty where the call failed otherwise."""
    try:
        return str(object_in(text)["error"]["code"])
    except (KeyError, TypeError):
        return ""


def object_in(text: str) -> dict[str, Any]:
    """Return the object that a tool answered with, empty where it is none; the runtime may add a hint below it."""
    try:
        body: Any = msgspec.json.decode(text.partition("\n")[0])
    except msgspec.MsgspecError:
        return {}
    return cast("dict[str, Any]", body) if isinstance(body, dict) else {}
