"""Which files of a root are definitions, and what each says; it does not know which of two with one name holds.

Nothing is followed out of a root: neither a link to a file, nor one to a folder.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final

from retinue.core.events import Snapshot
from retinue.core.ids import Digest
from retinue.definitions.diagnostic import Broken, Diagnostic, KeyReport, Layer, Severity, Status
from retinue.definitions.dialects import Dialect, Place
from retinue.definitions.fields import read_fields
from retinue.definitions.forms import Part, read_parts
from retinue.definitions.frontmatter import FILE_BYTES_MAX, Document, Entry, text_of
from retinue.definitions.gathering import Terms
from retinue.definitions.places import Unusable, read_below

FILES_PER_ROOT_MAX: Final = 256
SCAN_ENTRIES_MAX: Final = 8192
"""Entries of a root that are looked at, those of folders inside it among them."""
SCAN_DEPTH_MAX: Final = 8
_NAME_LINE: Final = re.compile(rb"^name[ \t]*[:=][ \t]*[\"']?([^\"'\r\n]{1,64})", re.MULTILINE)
_FILE_VALUE: Final = re.compile(r"\s*\{file:([^{}\n]{1,4096})\}\s*")
"""Another dialect's way to keep a long text in a file of its own."""


@dataclass(frozen=True, slots=True)
class Root:
    """One folder of definitions: its layer, its dialect, and the folder that it must lie in."""

    layer: Layer
    kind: Dialect
    place: Place
    inside: Path

    @property
    def dialect(self) -> str:
        """The dialect's name."""
        return self.kind.name

    @property
    def folder(self) -> Path:
        """The folder whose entries are looked at."""
        return self.inside / self.place.folder


@dataclass(slots=True)
class Role:
    """One definition as it stands in a file: a snapshot, or why it is broken."""

    name: str
    root: Root
    path: Path
    snapshot: Snapshot | None = None
    """What it says, without its digest."""
    broken: Diagnostic | None = None
    hidden: bool = False
    disabled: bool = False
    replaced: bool = False
    """Whether another one of the same name holds in its place."""
    ignored: bool = False
    """Whether it is no role at all, and stands for no name."""
    second_name: str | None = None
    """The file's name, where a broken file calls itself something else: it stands for both."""
    findings: list[Diagnostic] = field(default_factory=list[Diagnostic])
    keys: tuple[KeyReport, ...] = ()

    @property
    def status(self) -> Status:
        """Whether it can be used under its plain name, and if not, why."""
        if self.broken is not None:
            return "broken"
        if self.disabled or self.ignored:
            return "disabled"
        return "replaced" if self.replaced else "good"


@dataclass(slots=True)
class Scan:
    """What a root holds, with findings that concern no single definition."""

    root: Root
    roles: list[Role] = field(default_factory=list[Role])
    findings: list[Diagnostic] = field(default_factory=list[Diagnostic])


def finding(
    severity: Severity, path: Path, cause: str, remedy: str, *, line: int | None = None, name: str | None = None
) -> Diagnostic:
    """Return a finding about a file, with a path and a name that can be stored whatever bytes they have."""
    known = None if name is None else plain(name)
    return Diagnostic(severity=severity, path=plain(path), line=line, name=known, cause=plain(cause), remedy=remedy)


def plain(path: Path | str) -> str:
    """Return a path that can be stored as text, whatever bytes its name has."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def scan(root: Root, terms: Terms) -> Scan:
    """Return every definition of a root, files in the order of their names. Blocks."""
    found = Scan(root)
    terms = replace(terms, dialect=root.kind)
    for path, stem in _files(root, found.findings):
        room = FILES_PER_ROOT_MAX - len(found.roles)
        if room <= 0:
            cause = f"There are more than {FILES_PER_ROOT_MAX} definitions; the others are left out."
            found.findings.append(finding("error", path, cause, "Remove some."))
            break
        found.roles += read_file(root, path, stem, terms)[:room]
    return found


# -------------------------------------------------------------------------------------------------------------- files


def _files(root: Root, findings: list[Diagnostic]) -> list[tuple[Path, str]]:
    """Return the files of a root with the name that each definition has if it says none."""
    try:
        folder = root.folder.resolve(strict=True)
        if not folder.is_relative_to(root.inside.resolve()):
            cause = f"The folder is a link that leads out of {root.inside}."
            findings.append(finding("warning", root.folder, cause, "It is ignored; put the files here."))
            return []
        found = sorted(_candidates(root.place, folder, findings))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, RuntimeError) as error:
        findings.append(finding("error", root.folder, f"The folder cannot be read: {error}.", "Check its rights."))
        return []
    inside: list[tuple[Path, str]] = []
    for path, stem in found:
        if _leads_out(path, folder):
            cause = "The link leads out of its folder."
            findings.append(finding("warning", path, cause, "It is ignored; copy the file."))
        else:
            inside.append((path, stem))
    if len(inside) > FILES_PER_ROOT_MAX:
        cause = f"There are {len(inside)} definitions; the first {FILES_PER_ROOT_MAX} by name are read."
        findings.append(finding("error", root.folder, cause, "Remove some."))
    return inside[:FILES_PER_ROOT_MAX]


def _candidates(place: Place, folder: Path, findings: list[Diagnostic]) -> Iterator[tuple[Path, str]]:
    if place.files:
        yield from ((folder / name, Path(name).stem) for name in place.files if os.path.lexists(folder / name))
        return
    if place.inner is not None:
        for entry in _entries(folder, findings, 0):
            path = folder / entry.name / place.inner
            if entry.is_dir() and os.path.lexists(path):
                yield path, entry.name
        return
    for entry in _entries(folder, findings, SCAN_DEPTH_MAX if place.is_deep else 0):
        path = Path(entry.path)
        stem = stem_of(place, entry.name)
        if stem is not None:
            yield path, stem


def stem_of(place: Place, name: str) -> str | None:
    """Return what a file's name says of the definition's, null for a file that is none."""
    ends = (suffix for suffix in place.suffixes if name.lower().endswith(suffix) and len(name) > len(suffix))
    return next((name[: -len(suffix)] for suffix in ends), None)


def _entries(folder: Path, findings: list[Diagnostic], depth_max: int) -> Iterator["os.DirEntry[str]"]:
    """Yield what lies in a folder and in those inside it, as far as it is allowed to go; links are not followed."""
    room = SCAN_ENTRIES_MAX
    below = [(str(folder), 0)]
    while below:
        here, depth = below.pop()
        with os.scandir(here) as entries:
            for entry in islice(entries, room):
                room -= 1
                yield entry
                if depth < depth_max and entry.is_dir(follow_symlinks=False) and not entry.name.endswith(".md"):
                    below.append((entry.path, depth + 1))
        if room <= 0:
            cause = f"The folder has {SCAN_ENTRIES_MAX} entries or more; the others are left out."
            findings.append(finding("error", folder, cause, "Remove some."))
            return


def _leads_out(path: Path, folder: Path) -> bool:
    try:
        return not path.resolve().is_relative_to(folder)
    except (OSError, RuntimeError):
        return True


# ------------------------------------------------------------------------------------------------------ definitions


def read_file(root: Root, path: Path, stem: str, terms: Terms) -> list[Role]:
    """Return the definitions of one file; a file that cannot be read is one that is broken. Blocks."""
    data, stem = b"", plain(stem)
    try:
        data, _ = read_below(path, root.inside, FILE_BYTES_MAX + 1)
        return [_role(root, path, part, terms) for part in read_parts(root.place.form, data, stem)]
    except Unusable as fault:
        broken = Broken(None, str(fault), "Put an ordinary file that can be read here, or nothing.")
    except Broken as fault:
        broken = fault
    said = None if root.place.files else _NAME_LINE.search(data)
    name = said[1].decode("utf-8", "replace").strip() if said else stem
    return [_broken(Role(name=name or stem, root=root, path=path), stem, [broken])]


def _broken(role: Role, stem: str, faults: list[Broken]) -> Role:
    """Return the role with what breaks it, which is said before everything else that was found."""
    found = [finding("error", role.path, f.cause, f.remedy, line=f.line, name=role.name) for f in faults]
    role.broken = found[0]
    role.second_name = stem
    role.findings = [*found, *role.findings]
    return role


def _role(root: Root, path: Path, part: Part, terms: Terms) -> Role:
    part = replace(part, name=plain(part.name))
    role = Role(name=part.name, root=root, path=path)
    if part.document is None:
        return _broken(role, part.name, [part.broken] if part.broken else [])
    document, fault = _with_text(root, path, part.document, terms.closed)
    fields = read_fields(document, part.name, terms)
    if fault is not None:
        fields.faults.append(fault)
    role.name, role.keys = fields.name, tuple(fields.keys)
    role.hidden, role.disabled = fields.hidden, fields.disabled
    if _only_changes(root.kind, part.name, document):
        role.ignored = True
        cause = f"It changes the agent {part.name!r} of another program, which is not here; it is no role."
        role.findings = [finding("note", path, cause, "It may stay for that program.", name=part.name)]
        return role
    role.findings = [
        finding(f.severity, path, f.cause, f.remedy, line=f.line, name=fields.name) for f in fields.findings
    ]
    if fields.faults:
        return _broken(role, part.name, fields.faults)
    ref = f"{root.layer}:{fields.name}"
    role.snapshot = Snapshot(ref=ref, name=fields.name, digest=Digest(""), **fields.values)
    return role


def _only_changes(dialect: Dialect, name: str, document: Document) -> bool:
    return name in dialect.own_agents and all(entry.key != "description" for entry in document.entries)


def _with_text(root: Root, path: Path, document: Document, closed: tuple[Path, ...]) -> tuple[Document, Broken | None]:
    """Return the document with the text of the file that its instructions name, or why that cannot be had."""
    key = root.kind.text_key
    entry = next((one for one in document.entries if root.kind.keys.get(one.key, one.key) == key), None)
    found = _FILE_VALUE.fullmatch(entry.value) if entry is not None and isinstance(entry.value, str) else None
    if entry is None or found is None:
        return document, None
    try:
        data, _ = read_below(path.parent / found[1].strip(), root.inside, FILE_BYTES_MAX + 1, closed)
        value = text_of(data)
    except (Unusable, Broken) as fault:
        cause = f"The file {found[1].strip()[:100]!r} of {entry.key!r}: {fault}"
        return document, Broken(entry.line, cause, "Name a text file of the project, relative to this file.")
    changed = tuple(Entry(one.key, value, one.line) if one is entry else one for one in document.entries)
    return Document(changed, document.body), None
