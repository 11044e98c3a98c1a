"""Sixty agent files in eight dialects, fifteen of them broken: what the reader makes of each, as the manifest says."""

import shutil
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from retinue.core.errors import RetinueError
from retinue.core.events import Snapshot
from retinue.definitions.catalog import Catalog
from retinue.definitions.diagnostic import FileReport
from retinue.definitions.ownformat import shown_as_own

CORPUS: Final = Path(__file__).resolve().parents[1] / "fixtures" / "corpus"
ROLES: Final[list[dict[str, Any]]] = tomllib.loads((CORPUS / "manifest.toml").read_text(encoding="utf-8"))["role"]
BROKEN: Final = [role for role in ROLES if role.get("status") == "broken"]
GOOD: Final = [role for role in ROLES if role.get("status", "good") == "good"]
SAID: Final = {
    field: [role for role in GOOD if field in role]
    for field in ("max_steps", "timeout_s", "effort", "access", "continuable", "description")
}
LISTS: Final = ("disallowed_tools", "spawns", "skills", "paths")
PARENTS: Final = "parent"
Reports = dict[tuple[str, str | None], FileReport]
DIALECTS: Final = {"agents", "claude", "opencode", "codex", "gemini", "copilot", "pi", "omp", "deepagents"}
"""Eight formats: `.pi` and `.omp` have one, with different keys."""


def _id(role: dict[str, Any]) -> str:
    return f"{role['path']}:{role['name']}"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "project"
    shutil.copytree(CORPUS / "project", folder)
    (folder / ".git").mkdir()
    for role in ROLES:
        if "bytes" in role:
            head = f"---\nname: {role['name']}\ndescription: too much\n---\n".encode()
            (folder / role["path"]).write_bytes(head.ljust(role["bytes"], b"x"))
    return folder


@pytest.fixture(scope="module")
def reports(project: Path) -> Reports:
    found = Catalog(None, None).check(str(project))
    return {(str(Path(report.path).relative_to(project)), report.name): report for report in found}


def _snapshot(project: Path, role: dict[str, Any]) -> Snapshot:
    return Catalog(None, None).find(f"project:{role['name']}", str(project))


def test_the_corpus_has_sixty_files_in_eight_dialects_and_fifteen_are_broken(project: Path) -> None:
    paths = {role["path"] for role in ROLES}
    assert len(paths) == 60
    assert all((project / path).exists() for path in paths)
    assert {role["dialect"] for role in ROLES} == DIALECTS
    assert len({role["path"] for role in BROKEN}) == 15
    assert len({role["cause"] for role in BROKEN}) == 15
    beside = {".txt", ".toml"}
    there = {str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()}
    assert all(Path(path).suffix in beside for path in there - paths)


def test_S124_each_file_is_reported_once_and_nothing_else_is(reports: Reports) -> None:
    assert reports.keys() == {(role["path"], role["name"]) for role in ROLES}
    for role in ROLES:
        report = reports[role["path"], role["name"]]
        assert (report.dialect, report.layer) == (role["dialect"], "project"), _id(role)
        assert report.status == role.get("status", "good"), (_id(role), report.findings)


@pytest.mark.parametrize("role", BROKEN, ids=_id)
def test_B86_a_broken_file_is_named_with_line_cause_and_remedy(
    role: dict[str, Any], project: Path, reports: Reports
) -> None:
    found = [one for one in reports[role["path"], role["name"]].findings if one.severity == "error"]
    assert [one.path for one in found] == [str(project / role["path"])]
    assert (found[0].line or 0) == role["line"], found[0]
    assert role["cause"] in found[0].cause
    assert role["remedy"] in found[0].remedy
    with pytest.raises(RetinueError) as caught:
        _snapshot(project, role)
    assert caught.value.code == "broken_agent"
    assert role["path"] in caught.value.detail


def test_B86_no_broken_file_hides_another_and_nothing_else_is_an_error(project: Path) -> None:
    snapshots, findings = Catalog(None, None).list(str(project))
    errors = Counter(one.path for one in findings if one.severity == "error")
    assert errors == Counter(str(project / role["path"]) for role in BROKEN)
    assert {one.name for one in snapshots} == {role["name"] for role in GOOD if not role.get("hidden")}
    for role in GOOD:
        assert _snapshot(project, role).instructions, _id(role)


@pytest.mark.parametrize("role", GOOD, ids=_id)
def test_a_good_file_means_what_the_manifest_says(role: dict[str, Any], project: Path) -> None:
    snapshot = _snapshot(project, role)
    assert snapshot.name == role["name"]
    if "model" in role:
        assert (snapshot.model or PARENTS) == role["model"]
    if "tools" in role:
        assert (PARENTS if snapshot.tools is None else list(snapshot.tools)) == role["tools"]
    for field in SAID:
        if field in role:
            assert getattr(snapshot, field) == role[field], field
    for field in LISTS:
        if field in role:
            assert list(getattr(snapshot, field)) == role[field], field
    assert snapshot.description
    assert role.get("description_has", "") in snapshot.description
    assert snapshot.instructions.rstrip().endswith(role.get("instructions_end", ""))
    assert sorted(snapshot.output_schema or {}) == role.get("schema_keys", sorted(snapshot.output_schema or {}))


@pytest.mark.parametrize("role", GOOD, ids=_id)
def test_every_key_of_a_good_file_is_reported_as_understood_or_ignored_with_its_line(
    role: dict[str, Any], project: Path, reports: Reports
) -> None:
    report = reports[role["path"], role["name"]]
    lines = len((project / role["path"]).read_bytes().splitlines())
    assert report.keys
    assert all(key.meaning and 1 <= key.line <= lines for key in report.keys)
    ignored = {key.key for key in report.keys if not key.understood}
    assert ignored >= set(role.get("ignored", ()))
    said = " ".join(one.cause for one in report.findings) + " ".join(key.meaning for key in report.keys)
    assert role.get("notes", "") in said


@pytest.mark.parametrize("role", GOOD, ids=_id)
def test_a_definition_shown_as_our_own_format_means_the_same(
    role: dict[str, Any], project: Path, tmp_path: Path
) -> None:
    snapshot = _snapshot(project, role)
    file = tmp_path / ".agents" / "agents" / "again.md"
    file.parent.mkdir(parents=True)
    file.write_text(shown_as_own(snapshot), encoding="utf-8")
    again = Catalog(None, None).find(f"project:{snapshot.name}", str(tmp_path))
    assert _effective(again) == _effective(snapshot)


def _effective(snapshot: Snapshot) -> dict[str, Any]:
    body = msgspec.to_builtins(snapshot)
    return {key: value for key, value in body.items() if key not in ("ref", "digest")}


def test_an_alias_of_the_settings_names_the_model_of_another_dialects_word(project: Path) -> None:
    catalog = Catalog(None, None, model_aliases={"sonnet": "anthropic:claude-sonnet-4-5"})
    assert catalog.find("code-reviewer", str(project)).model == "anthropic:claude-sonnet-4-5"
    assert catalog.find("planner", str(project)).model is None


def test_two_good_files_of_one_name_in_one_folder_are_both_unused_and_the_second_is_named(
    project: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    shutil.copytree(project, folder)
    twin = folder / ".claude" / "agents" / "reviewer-too.md"
    shutil.copy(folder / ".claude" / "agents" / "code-reviewer.md", twin)
    snapshots, findings = Catalog(None, None).list(str(folder))
    assert "code-reviewer" not in {one.name for one in snapshots}
    found = [one for one in findings if one.severity == "error" and one.name == "code-reviewer"]
    assert [one.path for one in found] == [str(twin)]
    assert "code-reviewer.md" in found[0].cause
    assert "Rename" in found[0].remedy
    assert len(snapshots) == len(Catalog(None, None).list(str(project))[0]) - 1
