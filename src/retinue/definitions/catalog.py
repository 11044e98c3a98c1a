"""The layers of definition files and what a name means in a project; it keeps nothing between two questions.

Order, first wins: for each folder from the working directory up to the project's root `.agents/agents`, then
`.claude/agents`; the same two under the home directory; the built-ins. The project's root is the nearest folder that
holds `.git`; where there is none (below the home directory), only the working directory itself is searched, so that
no folder further up can lend a role to a project. The home directory itself is only ever the user's layer.

A broken file stands for its name: what lies below it in the order is not used in its place.
"""

import hashlib
import os
import re
import stat
import unicodedata
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import msgspec

from retinue.core.errors import RetinueError
from retinue.core.events import Snapshot
from retinue.core.ids import Digest
from retinue.definitions.diagnostic import Broken, Diagnostic, Severity
from retinue.definitions.fields import Fields, read_fields
from retinue.definitions.frontmatter import FILE_BYTES_MAX, read_document
from retinue.definitions.toolnames import READING

FILES_PER_ROOT_MAX: Final = 256
PARENTS_MAX: Final = 64
FOLDERS: Final = (".agents/agents", ".claude/agents")
BUILTIN: Final = Path(__file__).parent / "builtin"

Layer = Literal["project", "user", "builtin"]
Sink = list[Diagnostic]
"""Where findings are added as they come up."""
_NAME_LINE: Final = re.compile(rb"^name[ \t]*:[ \t]*[\"']?([^\"'\r\n]{1,64})", re.MULTILINE)
_OPEN_FLAGS: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


@dataclass(frozen=True, slots=True)
class Root:
    """One folder of definitions: its layer, and the folder that it must lie in."""

    layer: Layer
    folder: Path
    inside: Path


@dataclass(slots=True)
class Role:
    """What one name means in one root: a snapshot, or why it is broken."""

    name: str
    root: Root
    path: Path
    snapshot: Snapshot | None = None
    broken: Diagnostic | None = None
    hidden: bool = False
    disabled: bool = False
    weak: bool = False
    """Whether it is only the file's name of a broken file that calls itself something else."""
    findings: list[Diagnostic] = field(default_factory=list[Diagnostic])


class Catalog:
    """Finds definitions. It reads the files anew for each question, so an edit holds from the next spawn on."""

    def __init__(
        self, home: Path | None, builtin: Path | None = BUILTIN, known_tools: Collection[str] = READING
    ) -> None:
        """Keep where to look: `home` and `builtin` may be null; `known_tools` are the tools a definition may name."""
        self._home: Final = home
        self._builtin: Final = builtin
        self._known_tools: Final = frozenset(known_tools)

    def list(self, cwd: str) -> tuple[tuple[Snapshot, ...], tuple[Diagnostic, ...]]:
        """Return the definitions that hold in a project, in order, and every finding. Blocks.

        Left out are those that another one of the same name replaces, and those marked hidden or disabled.
        """
        diagnostics: Sink = []
        first: dict[str, Role] = {}
        for role in self._roles(cwd, diagnostics):
            above = first.setdefault(key_of(role.name), role)
            if above is not role:
                diagnostics.append(_replaced(role, above))
        shown = [r.snapshot for r in first.values() if r.snapshot and not r.hidden and not r.disabled]
        return tuple(shown), tuple(diagnostics)

    def find(self, ref: str, cwd: str) -> Snapshot:
        """Return what `explorer` or `user:explorer` means in a project; names are the same in any case. Blocks.

        Raises:
            RetinueError: `unknown_agent` with the names that there are; `broken_agent` with the file and its fault.
        """
        layer, colon, name = ref.partition(":")
        wanted = key_of(name if colon else ref)
        roles = list(self._roles(cwd, []))
        for role in roles:
            if key_of(role.name) == wanted and (not colon or role.root.layer == layer):
                return _usable(role)
        names = sorted({r.name for r in roles if r.snapshot and not r.hidden and not r.disabled})
        there = f"There are: {', '.join(names)}." if names else "There are none."
        raise RetinueError("unknown_agent", f"There is no agent {ref[:100]!r}.", there)

    def _roles(self, cwd: str, diagnostics: Sink) -> Iterator[Role]:
        """Yield what each name means in each root, roots in order; findings are added as they come up."""
        for root in self._roots(Path(cwd)):
            yield from _roles_in(root, self._known_tools, diagnostics)

    def _roots(self, cwd: Path) -> Iterator[Root]:
        home = None if self._home is None else self._home.resolve()
        for project in _project_folders(cwd.resolve(), home):
            yield from (Root("project", project / folder, project) for folder in FOLDERS)
        if home is not None:
            yield from (Root("user", home / folder, home) for folder in FOLDERS)
        if self._builtin is not None:
            yield Root("builtin", self._builtin, self._builtin)


def key_of(name: str) -> str:
    """Return what two spellings of the same name have in common."""
    return unicodedata.normalize("NFC", name.strip()).casefold()


def _project_folders(cwd: Path, home: Path | None) -> list[Path]:
    """Return the working directory and its parents up to the project's root, never the home directory."""
    way: list[Path] = []
    for folder in [cwd, *cwd.parents][:PARENTS_MAX]:
        if folder == home:
            break
        way.append(folder)
        if (folder / ".git").exists():
            return way
    return way[:1]


# ------------------------------------------------------------------------------------------------------- one folder


def _roles_in(root: Root, known_tools: frozenset[str], diagnostics: Sink) -> list[Role]:
    roles: dict[str, Role] = {}
    for path in _files(root, diagnostics):
        for role in _read(root, path, known_tools):
            diagnostics.extend(role.findings)
            key = key_of(role.name)
            known = roles.get(key)
            if known is None or known.weak:
                roles[key] = role
            elif not role.weak:
                finding = _same_name(known, role)
                diagnostics.append(finding)
                roles[key] = Role(name=known.name, root=root, path=path, broken=finding)
    return list(roles.values())


def _files(root: Root, diagnostics: Sink) -> list[Path]:
    """Return the Markdown files of a root; folders and links that lead out of it are left out."""
    try:
        folder = root.folder.resolve(strict=True)
        if not folder.is_relative_to(root.inside.resolve()):
            cause = f"The folder is a link that leads out of {root.inside}."
            diagnostics.append(_finding("warning", root.folder, cause, "It is ignored; put the files here."))
            return []
        found = sorted(path for path in folder.iterdir() if path.suffix.lower() == ".md" and not path.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except (OSError, RuntimeError) as error:
        diagnostics.append(_finding("error", root.folder, f"The folder cannot be read: {error}.", "Check its rights."))
        return []
    inside: list[Path] = []
    for path in found:
        if path.is_symlink() and not _leads_into(path, folder):
            diagnostics.append(
                _finding("warning", path, "The link leads out of its folder.", "It is ignored; copy the file.")
            )
        else:
            inside.append(path)
    if len(inside) > FILES_PER_ROOT_MAX:
        cause = f"There are {len(inside)} definitions; the first {FILES_PER_ROOT_MAX} by name are read."
        diagnostics.append(_finding("error", root.folder, cause, "Remove some."))
    return inside[:FILES_PER_ROOT_MAX]


def _leads_into(link: Path, folder: Path) -> bool:
    try:
        return link.resolve().parent == folder
    except (OSError, RuntimeError):
        return False


def _read(root: Root, path: Path, known_tools: frozenset[str]) -> list[Role]:
    """Return the role in a file; a broken file stands for the name that it says and for its own."""
    data = b""
    try:
        data = _bytes(path)
        return [_role(root, path, read_fields(read_document(data), path.stem, known_tools))]
    except OSError as error:
        broken = Broken(None, f"The file cannot be read: {error.strerror}.", "Check its rights.")
    except Broken as fault:
        broken = fault
    said = _NAME_LINE.search(data)
    name = broken.name or (said[1].decode("utf-8", "replace").strip() if said else path.stem)
    finding = _finding("error", path, broken.cause, broken.remedy, line=broken.line, name=name)
    first = Role(name=name, root=root, path=path, broken=finding, findings=[finding])
    if key_of(name) == key_of(path.stem):
        return [first]
    return [first, Role(name=path.stem, root=root, path=path, broken=finding, weak=True)]


def _bytes(path: Path) -> bytes:
    """Return a file's bytes, one more than allowed at most; what is no ordinary file is refused unread."""
    fd = os.open(path, _OPEN_FLAGS)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise Broken(None, "It is no ordinary file.", "Remove it from this folder.")
        return file.read(FILE_BYTES_MAX + 1)


def _role(root: Root, path: Path, fields: Fields) -> Role:
    snapshot = freeze(Snapshot(ref=f"{root.layer}:{fields.name}", name=fields.name, digest=Digest(""), **fields.values))
    findings = [_finding(f.severity, path, f.cause, f.remedy, line=f.line, name=fields.name) for f in fields.findings]
    return Role(
        name=fields.name,
        root=root,
        path=path,
        snapshot=snapshot,
        hidden=fields.hidden,
        disabled=fields.disabled,
        findings=findings,
    )


def freeze(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with its digest: SHA-256 over the canonical JSON of every field but the digest itself."""
    body = msgspec.to_builtins(snapshot)
    del body["digest"]
    text = msgspec.json.encode(body, order="deterministic")
    return msgspec.structs.replace(snapshot, digest=Digest(hashlib.sha256(text).hexdigest()))


# -------------------------------------------------------------------------------------------------------- sentences


def _usable(role: Role) -> Snapshot:
    if role.broken is not None:
        raise RetinueError("broken_agent", f"The agent {role.name!r} is broken: {role.broken}", "Correct its file.")
    if role.disabled or role.snapshot is None:
        raise RetinueError(
            "unknown_agent", f"The agent {role.name!r} is switched off in {_plain(role.path)}.", "Remove 'disabled'."
        )
    return role.snapshot


def _finding(
    severity: Severity, path: Path, cause: str, remedy: str, *, line: int | None = None, name: str | None = None
) -> Diagnostic:
    return Diagnostic(severity=severity, path=_plain(path), line=line, name=name, cause=cause, remedy=remedy)


def _same_name(first: Role, second: Role) -> Diagnostic:
    cause = f"{_plain(second.path.name)} has the same name {second.name!r} as {_plain(first.path.name)}."
    return _finding("error", second.path, cause, "Rename one of them: neither is used.", name=second.name)


def _plain(path: Path | str) -> str:
    """Return a path that can be stored as text, whatever bytes its name has."""
    return str(path).encode("utf-8", "backslashreplace").decode()


def _replaced(role: Role, above: Role) -> Diagnostic:
    is_builtin = role.root.layer == "builtin"
    kind = "built-in " if is_builtin else ""
    cause = f"It replaces the {kind}{role.name!r} of {_plain(role.path.name) if is_builtin else _plain(role.path)}."
    remedy = f"Reach that one as '{role.root.layer}:{role.name}'."
    return _finding("warning" if is_builtin else "note", above.path, cause, remedy, name=above.name)
