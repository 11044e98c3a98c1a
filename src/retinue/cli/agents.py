"""`retinue agents`: which roles there are, what one of them means, what was not understood; it changes no file."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from retinue.cli import printing
from retinue.cli.opening import workspace
from retinue.cli.plain import line
from retinue.core.errors import RetinueError
from retinue.core.events import Snapshot
from retinue.definitions.catalog import Catalog
from retinue.definitions.diagnostic import Diagnostic, FileReport
from retinue.definitions.ownformat import shown_as_own
from retinue.definitions.scanning import Role, plain
from retinue.settings import read_settings

REFUSED: Final = 1
PATH_MAX_CHARS: Final = 4_000
FINDING_MAX_CHARS: Final = 1_000


def agents_list(*, cwd: str | None, everything: bool, as_json: bool) -> int:
    """List the roles that hold in a folder, or every one that was found."""
    catalog, folder = _catalog(cwd)
    roles = [role for role in catalog.all(folder) if everything or _status(role) == "good"]
    if as_json:
        printing.document({"items": [_item(role) for role in roles], "next": None})
    elif not roles:
        printing.note("There are no agents here.")
    elif everything:
        cells = [(_ref(role), _status(role), role.root.dialect, _path(role.path)) for role in roles]
        printing.table(("AGENT", "STATUS", "DIALECT", "FILE"), cells, PATH_MAX_CHARS)
    else:
        heads = ("AGENT", "FROM", "MODEL", "TOOLS", "DESCRIPTION")
        printing.table(heads, [_cells(role.snapshot) for role in roles if role.snapshot is not None])
    return 0


def agents_show(ref: str, *, cwd: str | None, as_json: bool) -> int:
    """Print one role in the own format, and to stderr where it comes from and what was not understood."""
    catalog, folder = _catalog(cwd)
    snapshot = catalog.find(ref, folder)
    role = next((one for one in catalog.all(folder) if one.snapshot == snapshot), None)
    if role is None:
        raise RetinueError("unknown_agent", f"The file of {snapshot.ref!r} was changed just now.", "Ask again.")
    if as_json:
        printing.document({**_item(role), "findings": [one.to_dict() for one in role.findings]})
        return 0
    printing.note(f"# {snapshot.ref} from {_path(role.path)} ({role.root.dialect})")
    for finding in role.findings:
        printing.note(f"# {_sentence(finding)}")
    printing.text(shown_as_own(snapshot))
    return 0


def agents_check(path: str | None, *, cwd: str | None, keys: bool, as_json: bool) -> int:
    """Report on each file: its dialect, whether it is usable, every finding; exit 1 where one is an error."""
    catalog, folder = _catalog(cwd)
    if path is not None and not os.path.lexists(path):
        raise RetinueError("invalid", f"{path!r} does not exist.", "Name a file or a folder of agents.")
    reports = catalog.check(folder, None if path is None else os.path.abspath(path))
    if as_json:
        printing.document({"items": [report.to_dict() for report in reports], "next": None})
    else:
        _print_reports([one for one in reports if one.findings or one.layer != "builtin"], keys=keys)
    return REFUSED if any(one.severity == "error" for report in reports for one in report.findings) else 0


def _catalog(cwd: str | None) -> tuple[Catalog, str]:
    folder = workspace(cwd or ".")
    settings = read_settings(start=folder)
    return Catalog(settings.home, model_aliases=settings.model_aliases, data_dir=settings.data_dir), folder


# --------------------------------------------------------------------------------------------------------- the list


def _status(role: Role) -> str:
    return "hidden" if role.hidden and role.status == "good" else role.status


def _ref(role: Role) -> str:
    return f"{role.root.layer}:{role.name}"


def _item(role: Role) -> dict[str, Any]:
    """Return the keys of a snapshot, unknown ones null, and where it comes from."""
    body: dict[str, Any] = dict.fromkeys(Snapshot.__struct_fields__)
    if role.snapshot is not None:
        body.update(msgspec.to_builtins(role.snapshot))
    place = {"status": _status(role), "layer": role.root.layer, "dialect": role.root.dialect, "path": plain(role.path)}
    return {**body, "ref": plain(_ref(role)), "name": plain(role.name), **place}


def _cells(snapshot: Snapshot) -> tuple[str, ...]:
    layer, _, _ = snapshot.ref.partition(":")
    tools = "its parent's" if snapshot.tools is None else ", ".join(snapshot.tools) or "none"
    return snapshot.name, layer, snapshot.model or "its parent's", tools, snapshot.description


# ------------------------------------------------------------------------------------------------------- the report


def _print_reports(reports: Sequence[FileReport], *, keys: bool) -> None:
    if not reports:
        printing.note("There are no files of agents here.")
        return
    cells = [(_path(one.path), one.dialect, one.ref or one.name or "", one.status) for one in reports]
    head, *lines = printing.aligned(("FILE", "DIALECT", "AGENT", "STATUS"), cells, PATH_MAX_CHARS)
    printing.text(head)
    for words, report in zip(lines, reports, strict=True):
        printing.text(words)
        for finding in report.findings:
            printing.text(f"  {finding.severity}: {_sentence(finding)}")
        if keys:
            _print_keys(report)


def _print_keys(report: FileReport) -> None:
    for key in report.keys:
        state = "understood" if key.understood else "ignored"
        printing.text("  " + line(f"{state}: {key.key} (line {key.line}): {key.meaning}", FINDING_MAX_CHARS))


def _sentence(finding: Diagnostic) -> str:
    return line(str(msgspec.structs.replace(finding, path=_path(finding.path))), FINDING_MAX_CHARS)


def _path(path: Path | str) -> str:
    """Return a path as seen from the working directory where it lies below it."""
    here = os.path.realpath(".")
    return os.path.relpath(path, here) if Path(path).is_relative_to(here) else str(path)
