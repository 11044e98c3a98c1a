"""The offline parent's rules: how a folder is divided, what each child is told, and the report; it calls nothing."""

import re
from dataclasses import dataclass, field
from typing import Final

from retinue.models.explore import SCOPE_HEADING, Ask, Item, Listing
from retinue.models.text import counted

PARTS_MIN: Final = 3
PARTS_MAX: Final = 6
PATHS_PER_PART_MAX: Final = 24
NAME_CHARS_MAX: Final = 32
PASSED_OVER: Final = frozenset(
    {".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", ".tox", ".nox"}
    | {".mypy_cache", ".ruff_cache", ".pytest_cache", ".import_linter_cache", ".hypothesis"}
)
"""Top-level folders that tools made; they are named, not looked into."""
GOALS: Final = {
    "everything": "say what these paths hold, file by file",
    "layout": "say how the folder is laid out: what folders and files there are, how many and how large",
    "documentation": "say what the documents tell: titles, length, subject",
    "code": "say what code and settings there are: modules, their size and purpose",
}
REMARK: Final = "I work by fixed rules, without a language model: I list, read and count, and I judge nothing."

_BULLET: Final = re.compile(r"^- `([^`\\]+)`: (.+)$", re.MULTILINE)
_LINE_COUNT: Final = re.compile(r"^(\d+) lines")
_SIGHT: Final = re.compile(r"^In sight: .*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Part:
    """One bounded task: a short name, the question, its paths, and how many further paths it stands for."""

    name: str
    question: str
    paths: tuple[str, ...]
    beyond: int = 0

    def prompt(self) -> str:
        """Return what the child is told."""
        beyond = f"These stand for {self.beyond} more of the same kind.\n" if self.beyond else ""
        paths = "\n".join(f"- {path}" for path in self.paths)
        return (
            f"Explore one part of the working directory: {GOALS[self.question]}. Only read.\n"
            f"Question: {self.question}\n{SCOPE_HEADING}\n{paths}\n{beyond}\n"
            "It is done when each finding is a line '- `path`: evidence' with a path that you saw, and what could not "
            "be read is named with the reason."
        )

    def spawn(self) -> Ask:
        """Return the call that gives the task to a child."""
        arguments = {"agent": "explorer", "name": self.name, "prompt": self.prompt(), "mode": "background"}
        return Ask("spawn_agent", arguments)


@dataclass(slots=True)
class Outcome:
    """What came back for a part: the text, who found it, and why it is not whole where it is not."""

    part: Part
    text: str
    by: str
    fault: str = ""


@dataclass(slots=True)
class _Group:
    paths: list[str] = field(default_factory=list[str])
    beyond: int = 0
    weight: int = 0


def divide(listing: Listing) -> list[Part]:
    """Return at least three parts: the folder's own parts, balanced, or the same folder under three questions."""
    units = _units(listing)
    if len(units) < PARTS_MIN:
        return [Part(name, name, (".",)) for name in ("layout", "documentation", "code")]
    groups = [_Group() for _ in range(min(PARTS_MAX, len(units)))]
    for unit in sorted(units, key=lambda unit: (-unit.weight, unit.paths)):
        group = min(groups, key=lambda group: group.weight)
        group.paths += unit.paths
        group.beyond += unit.beyond
        group.weight += unit.weight
    parts = [_part(group) for group in sorted(groups, key=lambda group: group.paths[0])]
    return _with_names_apart(parts)


def _units(listing: Listing) -> list[_Group]:
    """Return what can be given away: each folder, and the files in one piece, or in more where folders are few."""
    items = [item for item in _top(listing) if item.is_plain and not _is_passed_over(item)]
    folders = [item for item in items if item.is_folder]
    files = [item.path for item in items if not item.is_folder]
    units = [_Group([item.path], 0, _weight(item, listing)) for item in folders]
    pieces = min(len(files), max(1, PARTS_MIN - len(folders)))
    for number in range(pieces):
        chunk = files[number * len(files) // pieces : (number + 1) * len(files) // pieces]
        units.append(_Group(chunk[:PATHS_PER_PART_MAX], max(0, len(chunk) - PATHS_PER_PART_MAX), len(chunk)))
    return units


def _top(listing: Listing) -> list[Item]:
    """Return the top level of a listing of two levels."""
    return [item for item in listing.items if "/" not in item.path.rstrip("/")]


def _weight(folder: Item, listing: Listing) -> int:
    """Return how many entries a folder has as far as two levels show."""
    inner = [item.size or 0 for item in listing.items if item.is_folder and item.path.startswith(folder.path)]
    return 1 + sum(inner)


def _is_passed_over(item: Item) -> bool:
    return item.is_folder and item.path.rstrip("/") in PASSED_OVER


def _part(group: _Group) -> Part:
    first = group.paths[0].rstrip("/")
    rest = len(group.paths) + group.beyond - 1
    name = first if len(first) <= NAME_CHARS_MAX else first[:NAME_CHARS_MAX] + "…"
    paths = tuple(group.paths[:PATHS_PER_PART_MAX])
    return Part(f"{name} +{rest}" if rest else name, "everything", paths, rest + 1 - len(paths))


def _with_names_apart(parts: list[Part]) -> list[Part]:
    names = [part.name for part in parts]
    if len(set(names)) == len(names):
        return parts
    return [Part(f"{p.name} ({n})", p.question, p.paths, p.beyond) for n, p in enumerate(parts, start=1)]


def report(listing: Listing, outcomes: list[Outcome]) -> str:
    """Return the report: overview, a section a part, what could not be read, totals. It names only what was seen."""
    lines = ["# Report on this folder", "", REMARK, "", "## Overview", "", *_overview(listing, outcomes)]
    found: dict[str, str] = {}
    refused: dict[str, str] = {}
    for outcome in outcomes:
        lines += ["", *_section(outcome, found, refused)]
    lines += ["", "## What could not be read", ""]
    lines += [f"- `{path}`: {why}" for path, why in refused.items()]
    lines += [f"- Part {o.part.name!r}: {o.fault}" for o in outcomes if o.fault]
    if not refused and not any(outcome.fault for outcome in outcomes):
        lines.append("Nothing was refused.")
    return "\n".join([*lines, "", "## Totals", "", _totals(outcomes, found, refused), ""])


def _overview(listing: Listing, outcomes: list[Outcome]) -> list[str]:
    top = _top(listing)
    folders = [item for item in top if item.is_folder]
    if listing.items:
        cut = f"; {listing.left_out} more of {listing.total} entries were not listed" if listing.left_out else ""
        found = f"{counted(len(folders), 'folder')} and {counted(len(top) - len(folders), 'file')}"
        lines = [f"- On the top level: {found}{cut}."]
    else:
        lines = ["- The folder holds no files and no folders."]
    passed = [f"`{item.path}`" for item in folders if _is_passed_over(item)]
    if passed:
        lines.append(f"- Not looked into, because tools made them: {', '.join(passed)}.")
    odd = sum(not item.is_plain for item in top)
    if odd:
        lines.append(f"- {odd} names do not fit on a line (line breaks, control characters) and are not written here.")
    own = sum(outcome.by == "" for outcome in outcomes)
    return [
        *lines,
        f"- {len(outcomes)} parts: {len(outcomes) - own} by explorers, {own} looked at by the parent itself.",
    ]


def _section(outcome: Outcome, found: dict[str, str], refused: dict[str, str]) -> list[str]:
    """Return a part's section; what it names joins `found` or `refused`."""
    lines = [f"## {outcome.part.name}", ""]
    sight = _SIGHT.search(outcome.text)
    lines.append(
        f"{'Explorer ' + outcome.by if outcome.by else 'The parent itself'}. {sight[0] if sight else ''}".strip()
    )
    named = _BULLET.findall(outcome.text)
    evidence = [f"- `{path}`: {what}" for path, what in named if not what.startswith("not read")]
    for path, what in named:
        (refused if what.startswith("not read") else found)[path] = what
    if outcome.part.beyond:
        lines.append(f"{outcome.part.beyond} more entries of this part were not looked at.")
    return [*lines, "", *(evidence or ["No file was read here."])]


def _totals(outcomes: list[Outcome], found: dict[str, str], refused: dict[str, str]) -> str:
    counts = [int(lines[1]) for what in found.values() if (lines := _LINE_COUNT.match(what))]
    return (
        f"{counted(len(outcomes), 'part')}, {sum(not outcome.fault for outcome in outcomes)} of them complete; "
        f"{counted(len(counts), 'file')} read with {counted(sum(counts), 'line')}; {len(refused)} not readable."
    )
