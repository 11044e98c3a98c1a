"""`retinue trust`: what a project's files may start is said once, for what they hold now."""

from pathlib import Path

from tests.e2e.kit import retinue


def _project(folder: Path) -> Path:
    project = folder / "project"
    (project / ".git").mkdir(parents=True)
    (project / "src").mkdir()
    (project / ".mcp.json").write_text('{"mcpServers": {}}')
    return project


def test_the_files_of_a_project_are_trusted_from_any_folder_of_it_until_they_change(tmp_path: Path) -> None:
    project = _project(tmp_path)
    home = {"HOME": str(tmp_path)}
    ran = retinue(project / "src", "trust", env=home)
    assert (ran.code, "trusted" in ran.out, str(project / ".mcp.json") in ran.out) == (0, True, True)
    listed = retinue(project, "trust", "--list", "--json", env=home).document()
    assert [(item["path"], item["state"]) for item in listed["items"]] == [(str(project / ".mcp.json"), "trusted")]
    (project / ".mcp.json").write_text('{"mcpServers": {"a": {"command": "x"}}}')
    listed = retinue(project, "trust", "--list", "--json", env=home).document()
    assert [item["state"] for item in listed["items"]] == ["changed since"]
    assert "revoked" in retinue(project, "trust", "--revoke", env=home).out
    assert retinue(project, "trust", "--list", "--json", env=home).document() == {"items": [], "next": None}


def test_where_nothing_starts_commands_nothing_is_trusted_and_a_wrong_name_is_an_error(tmp_path: Path) -> None:
    ran = retinue(tmp_path, "trust")
    assert (ran.code, ran.out, ran.err) == (0, "", "Nothing here needs trust.\n")
    ran = retinue(tmp_path, "trust", "no-such-file")
    assert (ran.code, ran.out) == (1, "")
    assert "is no file" in ran.err
    assert not (tmp_path / ".local").exists()
