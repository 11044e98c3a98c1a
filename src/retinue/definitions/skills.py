"""Agent Skills: folders with a `SKILL.md`, where they lie and what each says of itself; it keeps nothing between calls.

Order, first wins: for each folder from the working directory up to the project's root `.agents/skills`, then
`.claude/skills`, then those of other dialects; the same under the home directory. A skill is called what its folder is
called. A broken one stands for its name and hides nothing else.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final, Literal

from retinue.core.errors import RetinueError
from retinue.core.events import Value
from retinue.definitions.catalog import key_of
from retinue.definitions.diagnostic import Broken, Diagnostic, Severity
from retinue.definitions.frontmatter import FILE_BYTES_MAX, Document, Entry, Tree, read_document
from retinue.definitions.places import Unusable, project_folders, read_below, real_below
from retinue.definitions.scanning import plain

SKILLS_PER_ROOT_MAX: Final = 256
SCAN_ENTRIES_MAX: Final = 100_000
"""Entries of one folder of skills that are looked at."""
NAME_CHARS_MAX: Final = 64
DESCRIPTION_CHARS_MAX: Final = 1024
COMPATIBILITY_CHARS_MAX: Final = 500
FILE_NAMES: Final = ("SKILL.md", "skill.md", "Skill.md")
PROJECT_FOLDERS: Final = (
    ".agents/skills",
    ".claude/skills",
    ".opencode/skills",
    ".opencode/skill",
    ".codex/skills",
    ".gemini/skills",
    ".github/skills",
    ".pi/skills",
    ".omp/skills",
    ".deepagents/skills",
)
USER_FOLDERS: Final = (
    ".agents/skills",
    ".claude/skills",
    ".config/opencode/skills",
    ".config/opencode/skill",
    ".codex/skills",
    ".gemini/skills",
    ".copilot/skills",
    ".pi/agent/skills",
    ".omp/agent/skills",
    ".deepagents/agent/skills",
)
Layer = Literal["project", "user"]
_NAME: Final = re.compile(r"\w[\w .-]*")
_PUBLIC_NAME: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_PLAIN_KEYS: Final = frozenset({"name", "description", "license", "compatibility", "metadata"})
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_TRUE: Final = frozenset({"true", "yes", "on", "1"})


class Skill(Value):
    """A skill that can be read. `folder` is its real folder, `path` its `SKILL.md`, both absolute."""

    name: str
    description: str
    layer: Layer
    folder: str
    path: str
    compatibility: str = ""
    """What it needs, in its author's words; empty where it says nothing."""
    listed: bool = True
    """Whether models are told of it unasked; a skill that is not listed is loaded when somebody names it."""


@dataclass(frozen=True, slots=True)
class _Root:
    layer: Layer
    folder: Path
    inside: Path


@dataclass(slots=True)
class _Place:
    """A folder that should hold a skill, under the name that it has there."""

    root: _Root
    name: str
    path: Path
    findings: list[Diagnostic] = field(default_factory=list[Diagnostic])

    def note(self, severity: Severity, line: int | None, cause: str, remedy: str) -> Diagnostic:
        finding = Diagnostic(
            severity=severity, path=plain(self.path), line=line, name=plain(self.name), cause=cause, remedy=remedy
        )
        self.findings.append(finding)
        return finding


class SkillShelf:
    """Finds skills. It reads the files anew for each question, so an edit holds from the next one on."""

    def __init__(self, home: Path | None, data_dir: str | None = None) -> None:
        """Keep where to look; nothing in `data_dir` is read, whatever links lead there."""
        self.home: Final = None if home is None else Path(os.path.realpath(home))
        self.closed: Final = () if data_dir is None else (Path(os.path.realpath(data_dir)),)

    def all(self, cwd: str) -> tuple[tuple[Skill, ...], tuple[Diagnostic, ...]]:
        """Return the skills that hold in a project, in order, and every finding. Blocks.

        Left out are those that another one of the same name replaces.
        """
        findings: list[Diagnostic] = []
        first: dict[str, _Place] = {}
        skills: list[Skill] = []
        for place in self._places(cwd, findings):
            above = first.setdefault(key_of(place.name), place)
            skill = self._read(place)
            findings.extend(place.findings)
            if above is not place:
                findings.append(_replaced(place, above))
            elif isinstance(skill, Skill):
                skills.append(skill)
        return tuple(skills), tuple(findings)

    def find(self, name: str, cwd: str) -> Skill:
        """Return the skill that a name means in a project; names are the same in any case. Blocks.

        Raises:
            RetinueError: `not_found` with the names that there are; `invalid` with the file and its fault.
        """
        wanted = key_of(name)
        for place in self._places(cwd, []):
            if key_of(place.name) == wanted:
                skill = self._read(place)
                if isinstance(skill, Skill):
                    return skill
                raise RetinueError("invalid", f"The skill {place.name!r} cannot be used: {skill}", "Correct its file.")
        names = ", ".join(skill.name for skill in self.all(cwd)[0])
        raise RetinueError(
            "not_found", f"There is no skill {name[:100]!r}.", f"There are: {names}." if names else "There are none."
        )

    def read(self, skill: Skill) -> str:
        """Return what a skill says below its front matter. Blocks.

        Raises:
            RetinueError: `invalid` for a file that became unreadable since it was found.
        """
        try:
            return self._document(Path(skill.path), Path(skill.folder)).body
        except (Broken, Unusable) as fault:
            detail = f"The skill {skill.name!r} cannot be read: {fault}"
            raise RetinueError("invalid", detail, "Correct its file.") from fault

    def _document(self, path: Path, folder: Path) -> Document:
        return read_document(read_below(path, folder, FILE_BYTES_MAX + 1, self.closed)[0])

    def _read(self, place: _Place) -> Skill | Diagnostic:
        """Return the skill in a folder, or why there is none; what else is to be said goes to its findings."""
        try:
            return self._skill(place)
        except Unusable as fault:
            return place.note("error", None, str(fault), "Put an ordinary file there.")
        except Broken as fault:
            return place.note("error", fault.line, fault.cause, fault.remedy)

    def _skill(self, place: _Place) -> Skill:
        folder = real_below(place.path.parent, place.root.folder, self.closed)
        if len(place.name) > NAME_CHARS_MAX or not _NAME.fullmatch(place.name):
            remedy = f"Use letters, digits and '-', at most {NAME_CHARS_MAX}."
            raise Broken(None, "The folder's name cannot be a skill's name.", remedy)
        document = self._document(folder / place.path.name, folder)
        entries = {_HUMP.sub("-", entry.key).lower().replace("_", "-"): entry for entry in document.entries}
        description = _said(entries.get("description"))
        if not description:
            raise Broken(None, "There is no description.", "Say in 'description' what it does and when to use it.")
        _check(place, entries, description)
        return Skill(
            name=place.name,
            description=description[:DESCRIPTION_CHARS_MAX],
            layer=place.root.layer,
            folder=str(folder),
            path=str(folder / place.path.name),
            compatibility=_said(entries.get("compatibility"))[:COMPATIBILITY_CHARS_MAX],
            listed=_said(entries.get("disable-model-invocation")).lower() not in _TRUE,
        )

    # ------------------------------------------------------------------------------------------------------- folders

    def _places(self, cwd: str, findings: list[Diagnostic]) -> Iterator[_Place]:
        """Yield every folder that should hold a skill, roots in order; a root that was seen is not seen again."""
        seen: set[Path] = set()
        for root in self._roots(cwd):
            if not os.path.lexists(root.folder):
                continue
            try:
                real = real_below(root.folder, root.inside, self.closed)
                if real not in seen:
                    seen.add(real)
                    yield from _folders(root, findings)
            except (Unusable, OSError) as fault:
                cause = str(fault) if isinstance(fault, Unusable) else f"It cannot be read: {fault.strerror}."
                findings.append(_of_root(root, "warning", cause, "It is ignored; put the skills here."))

    def _roots(self, cwd: str) -> Iterator[_Root]:
        for project in project_folders(Path(os.path.realpath(cwd)), self.home):
            yield from (_Root("project", project / folder, project) for folder in PROJECT_FOLDERS)
        if self.home is not None:
            yield from (_Root("user", self.home / folder, self.home) for folder in USER_FOLDERS)


def _folders(root: _Root, findings: list[Diagnostic]) -> list[_Place]:
    """Return the folders of a root that have a `SKILL.md`, by name; a second spelling of a name is left out."""
    with os.scandir(root.folder) as scan:
        names = sorted(item.name for item in islice(scan, SCAN_ENTRIES_MAX))
    found: dict[str, _Place] = {}
    for name in names:
        file = next((f for f in FILE_NAMES if os.path.lexists(root.folder / name / f)), None)
        if file is None:
            continue
        place = _Place(root, name, root.folder / name / file)
        if (root.folder / name).is_symlink() and not _stays(root, name):
            findings.append(place.note("warning", None, "The link leads out of its folder.", "It is ignored; copy it."))
            continue
        first = found.setdefault(key_of(name), place)
        if first is not place:
            cause = f"Its name differs from {plain(first.name)!r} only in case."
            findings.append(place.note("warning", None, cause, "It is ignored; rename one of the folders."))
    if len(found) > SKILLS_PER_ROOT_MAX:
        cause = f"There are {len(found)} skills; the first {SKILLS_PER_ROOT_MAX} by name are read."
        findings.append(_of_root(root, "error", cause, "Remove some."))
    return list(found.values())[:SKILLS_PER_ROOT_MAX]


def _stays(root: _Root, name: str) -> bool:
    try:
        return real_below(root.folder / name, root.folder).is_dir()
    except Unusable:
        return False


# ------------------------------------------------------------------------------------------------------ front matter


def _check(place: _Place, entries: dict[str, Entry], description: str) -> None:
    """Note what is not as the public format wants it, and what is not acted on here."""
    if not _PUBLIC_NAME.fullmatch(place.name):
        cause = "The folder's name is not made of lower-case letters, digits and single '-'."
        place.note("warning", None, cause, "It is used all the same; other programs may not.")
    name = entries.get("name")
    if name is None:
        place.note("note", None, f"No name is given; the folder's is taken: {place.name!r}.", "Add a line 'name:'.")
    elif key_of(_said(name)) != key_of(place.name):
        cause = f"It calls itself {_said(name)[:NAME_CHARS_MAX]!r}; the folder's name holds: {place.name!r}."
        place.note("warning", name.line, cause, "Give both the same name.")
    if len(description) > DESCRIPTION_CHARS_MAX:
        cause = f"The description is longer than {DESCRIPTION_CHARS_MAX} characters; it is cut."
        place.note("warning", entries["description"].line, cause, "Shorten it.")
    for key, entry in entries.items():
        if key == "allowed-tools":
            place.note("note", entry.line, "'allowed-tools' grants nothing here.", "A role's 'tools' say what it has.")
        elif key not in _PLAIN_KEYS and key != "disable-model-invocation":
            place.note("note", entry.line, f"The key {entry.key!r} is not known here and is ignored.", "Remove it.")


def _said(entry: Entry | None) -> str:
    """Return a key's value as text, empty where there is none; a list or a map is no text."""
    value: Tree = "" if entry is None else entry.value
    return value.strip() if isinstance(value, str) else ""


def _of_root(root: _Root, severity: Severity, cause: str, remedy: str) -> Diagnostic:
    return Diagnostic(severity=severity, path=plain(root.folder), line=None, name=None, cause=cause, remedy=remedy)


def _replaced(place: _Place, above: _Place) -> Diagnostic:
    cause = f"It replaces {plain(place.name)!r} of {plain(place.path)}."
    remedy = "Rename one of them to have both."
    return Diagnostic(
        severity="note", path=plain(above.path), line=None, name=plain(above.name), cause=cause, remedy=remedy
    )
