"""The layers of definition files and what a name means in a project; it keeps nothing between two questions.

Order, first wins: for each folder from the working directory up to the project's root the folders of every dialect, in
the order of their table; the same under the home directory; the built-ins. The project's root is the nearest folder
that holds `.git`; where there is none (below the home directory), only the working directory itself is searched, so
that no folder further up can lend a role to a project. The home directory itself is only ever the user's layer.

A broken file stands for its name: what lies below it in the order is not used in its place. A disabled one switches
its name off.
"""

import hashlib
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from retinue.core.errors import RetinueError
from retinue.core.events import Snapshot
from retinue.core.ids import Digest
from retinue.definitions.diagnostic import Diagnostic, FileReport
from retinue.definitions.dialects import CODEX, DIALECTS, OPENCODE, OWN, Dialect, Place
from retinue.definitions.gathering import Terms
from retinue.definitions.places import project_folders
from retinue.definitions.scanning import FILES_PER_ROOT_MAX, Role, Root, Scan, finding, plain, read_file, scan, stem_of
from retinue.definitions.toolnames import READING

__all__ = ["BUILTIN", "FILES_PER_ROOT_MAX", "Catalog", "Role", "freeze", "key_of"]

BUILTIN: Final = Path(__file__).parent / "builtin"
_BUILTIN_PLACE: Final = Place("")


class Catalog:
    """Finds definitions. It reads the files anew for each question, so an edit holds from the next spawn on."""

    def __init__(
        self,
        home: Path | None,
        builtin: Path | None = BUILTIN,
        known_tools: Collection[str] = READING,
        model_aliases: Mapping[str, str] | None = None,
        data_dir: str | Path | None = None,
    ) -> None:
        """Keep where to look: `home` and `builtin` may be null; `known_tools` are the tools a definition may name.

        `model_aliases` say what the model names in definitions mean here: `{"sonnet": "anthropic:NAME"}`. No definition
        takes a text from `data_dir`.
        """
        self._home: Final = home
        self._builtin: Final = builtin
        self._terms: Final = Terms(
            OWN,
            frozenset(known_tools),
            dict(model_aliases or {}),
            () if data_dir is None else (Path(data_dir).resolve(),),
        )

    def list(self, cwd: str) -> tuple[tuple[Snapshot, ...], tuple[Diagnostic, ...]]:
        """Return the definitions that hold in a project, in order, and every finding. Blocks.

        Left out are those that another one of the same name replaces, and those marked hidden or disabled.
        """
        scans = self._scans(cwd)
        shown = [r.snapshot for r in _roles(scans) if r.snapshot and not (r.hidden or r.disabled or r.replaced)]
        return tuple(shown), tuple(d for one in scans for d in _findings(one))

    def find(self, ref: str, cwd: str) -> Snapshot:
        """Return what `explorer` or `user:explorer` means in a project; names are the same in any case. Blocks.

        Raises:
            RetinueError: `unknown_agent` with the names that there are; `broken_agent` with the file and its fault.
        """
        layer, colon, name = ref.partition(":")
        wanted = key_of(name if colon else ref)
        scans: list[Scan] = []
        for root in self._roots(Path(cwd)):
            one = scan(root, self._terms)
            scans.append(one)
            _refuse_doubles(one.roles)
            role = _standing_for(one.roles, wanted) if not colon or one.root.layer == layer else None
            if role is not None:
                return freeze(_usable(role))
        _settle(scans)
        names = sorted({r.name for r in _roles(scans) if r.snapshot and not (r.hidden or r.disabled or r.replaced)})
        there = f"There are: {', '.join(names)}." if names else "There are none."
        raise RetinueError("unknown_agent", f"There is no agent {ref[:100]!r}.", there)

    def all(self, cwd: str) -> Sequence[Role]:
        """Return every role found in a project, in order: also hidden, disabled, replaced and broken ones. Blocks."""
        return [role for role in _roles(self._scans(cwd)) if not role.ignored]

    def check(self, cwd: str, path: str | None = None) -> tuple[FileReport, ...]:
        """Return what each key of each definition means here, and everything that was found, file by file. Blocks.

        With `path` only of that file, or of what lies in that folder: a file that is no definition of the project is
        read all the same, and a folder that holds none of them is searched as a project of its own.
        """
        reports = tuple(_reports(self._scans(cwd)))
        if path is None:
            return reports
        wanted = Path(cwd, path).expanduser()
        inside = tuple(report for report in reports if _is_below(Path(report.path), wanted))
        if inside:
            return inside
        if wanted.is_dir():
            found = _reports(self._scans(str(wanted)))
            return tuple(report for report in found if _is_below(Path(report.path), wanted))
        return tuple(_reports([self._alone(wanted)]))

    def _alone(self, path: Path) -> Scan:
        """Return one file, read in the dialect that its name tells."""
        dialect = next((one for end, one in _BY_END.items() if path.name.lower().endswith(end)), OWN)
        place = Place("", "toml" if dialect is CODEX else "markdown")
        if dialect is OPENCODE:
            place = Place("", "json", files=(path.name,))
        root = Root("project", dialect, place, path.parent)
        stem = stem_of(dialect.places[0], path.name) or path.stem
        one = Scan(root, read_file(root, path, stem, self._terms))
        _settle([one])
        return one

    def _scans(self, cwd: str) -> Sequence[Scan]:
        """Return what every root holds, in order, each role marked with what its name means."""
        scans = [scan(root, self._terms) for root in self._roots(Path(cwd))]
        _settle(scans)
        return scans

    def _roots(self, cwd: Path) -> Iterator[Root]:
        home = None if self._home is None else self._home.resolve()
        for project in project_folders(cwd.resolve(), home):
            for dialect in DIALECTS:
                yield from (Root("project", dialect, place, project) for place in dialect.places)
        if home is not None:
            for dialect in DIALECTS:
                yield from (Root("user", dialect, place, home) for place in (*dialect.places, *dialect.home_places))
        if self._builtin is not None:
            yield Root("builtin", OWN, _BUILTIN_PLACE, self._builtin)


_BY_END: Final[Mapping[str, Dialect]] = {
    ".toml": CODEX,
    ".json": OPENCODE,
    ".jsonc": OPENCODE,
    **{end: one for one in DIALECTS for place in one.places for end in place.suffixes if end.count(".") > 1},
}
"""What the end of a file's name alone tells of its dialect."""


def key_of(name: str) -> str:
    """Return what two spellings of the same name have in common."""
    return unicodedata.normalize("NFC", name.strip()).casefold()


def freeze(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with its digest: SHA-256 over the canonical JSON of every field but the digest itself."""
    body = msgspec.to_builtins(snapshot)
    del body["digest"]
    text = msgspec.json.encode(body, order="deterministic")
    return msgspec.structs.replace(snapshot, digest=Digest(hashlib.sha256(text).hexdigest()))


# ----------------------------------------------------------------------------------------------- what each name means


def _settle(scans: Sequence[Scan]) -> None:
    """Freeze what is sound, break what has the same name in one root, and mark what something above replaces."""
    first: dict[str, Role] = {}
    for one in scans:
        for role in one.roles:
            role.snapshot = None if role.snapshot is None else freeze(role.snapshot)
        _refuse_doubles(one.roles)
        standing = {key: role for role in one.roles if (key := key_of(role.name)) and not role.ignored}
        for key, role in standing.items():
            above = first.setdefault(key, role)
            if above is not role:
                above.findings.append(_replaced(role, above))
        for role in one.roles:
            above = first.get(key_of(role.name))  # none for a name that is no name
            role.replaced = not role.ignored and above is not None and above.root is not role.root
        for role in one.roles:
            if role.second_name is not None:
                first.setdefault(key_of(role.second_name), role)


def _refuse_doubles(roles: Sequence[Role]) -> None:
    known: dict[str, Role] = {}
    for role in roles:
        if role.ignored:
            continue
        above = known.setdefault(key_of(role.name), role)
        if above is role:
            continue
        if above.broken and role.broken:
            continue
        found = _same_name(above, role)
        role.findings.append(found)
        for one in (above, role):
            one.broken = one.broken or found
            one.snapshot = None


def _standing_for(roles: Sequence[Role], wanted: str) -> Role | None:
    """Return what a name means in one root: what calls itself so, else a broken file that is called so."""
    known = [role for role in roles if not role.ignored]
    named = next((role for role in known if key_of(role.name) == wanted), None)
    second = (role for role in known if role.second_name is not None and key_of(role.second_name) == wanted)
    return named or next(second, None)


def _usable(role: Role) -> Snapshot:
    if role.broken is not None:
        raise RetinueError("broken_agent", f"The agent {role.name!r} is broken: {role.broken}", "Correct its file.")
    if role.disabled or role.snapshot is None:
        raise RetinueError(
            "unknown_agent", f"The agent {role.name!r} is switched off in {plain(role.path)}.", "Remove 'disabled'."
        )
    return role.snapshot


def _roles(scans: Sequence[Scan]) -> Iterator[Role]:
    for one in scans:
        yield from one.roles


# ----------------------------------------------------------------------------------------------------------- reports


def _findings(one: Scan) -> Iterator[Diagnostic]:
    yield from one.findings
    for role in one.roles:
        yield from role.findings


def _reports(scans: Sequence[Scan]) -> Iterator[FileReport]:
    for one in scans:
        for found in one.findings:
            yield FileReport(
                path=found.path,
                dialect=one.root.dialect,
                layer=one.root.layer,
                name=None,
                ref=None,
                status="broken",
                keys=(),
                findings=(found,),
            )
        for role in one.roles:
            yield _report(role)


def _report(role: Role) -> FileReport:
    name = None if role.ignored else plain(role.name)
    double = () if role.broken is None or role.broken in role.findings else (role.broken,)
    return FileReport(
        path=plain(role.path),
        dialect=role.root.dialect,
        layer=role.root.layer,
        name=name,
        ref=None if name is None else f"{role.root.layer}:{name}",
        status=role.status,
        keys=role.keys,
        findings=(*double, *role.findings),
    )


def _is_below(path: Path, wanted: Path) -> bool:
    return path == wanted or path.resolve().is_relative_to(wanted.resolve())


# --------------------------------------------------------------------------------------------------------- sentences


def _same_name(first: Role, second: Role) -> Diagnostic:
    cause = f"{plain(second.path.name)} has the same name {second.name!r} as {plain(first.path.name)}."
    return finding("error", second.path, cause, "Rename one of them: neither is used.", name=second.name)


def _replaced(role: Role, above: Role) -> Diagnostic:
    is_builtin = role.root.layer == "builtin"
    verb = "switches off" if above.disabled else "replaces"
    whose = plain(role.path.name) if is_builtin else plain(role.path)
    cause = f"It {verb} the {'built-in ' if is_builtin else ''}{role.name!r} of {whose}."
    remedy = f"Reach that one as '{role.root.layer}:{role.name}'."
    return finding("warning" if is_builtin else "note", above.path, cause, remedy, name=above.name)
