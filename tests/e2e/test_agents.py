"""`agents list|show|check`: the roles that hold in a folder, one in the own format, what was not understood."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from retinue.core.events import Snapshot
from tests.e2e.kit import Ran, one_sentence, retinue

REVIEWER = "---\nname: reviewer\ndescription: Reviews one file.\ntools: Read, Grep\nmodel: opus\n---\nReview it.\n"
CODEX = 'name = "seeker"\ndescription = "Seeks."\nsandbox_mode = "read-only"\ndeveloper_instructions = "Seek."\n'
OPEN = '---\nname: torn\ndescription: "no end\n---\nX\n'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with roles in two dialects, one hidden, one switched off, one broken, and a user's role."""
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    _write(folder / ".claude" / "agents" / "reviewer.md", REVIEWER)
    _write(folder / ".codex" / "agents" / "seeker.toml", CODEX)
    _write(folder / ".claude" / "agents" / "shy.md", "---\nname: shy\ndescription: d\nhidden: true\n---\nShy.\n")
    _write(folder / ".agents" / "agents" / "worker.md", "---\ndisabled: true\n---\n")
    _write(tmp_path / ".agents" / "agents" / "reviewer.md", "---\ndescription: the user's\n---\nReview.\n")
    return folder


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def agents(project: Path, *arguments: str, **more: Any) -> Ran:
    return retinue(project, "agents", *arguments, env={"HOME": str(project.parent)}, **more)


def test_the_list_shows_what_holds_here(project: Path) -> None:
    ran = agents(project, "list")
    assert ran.code == 0, ran.err
    head, *rows = ran.out.splitlines()
    assert head.split() == ["AGENT", "FROM", "MODEL", "TOOLS", "DESCRIPTION"]
    assert [row.split()[:2] for row in rows] == [
        ["reviewer", "project"],
        ["seeker", "project"],
        ["explorer", "builtin"],
        ["researcher", "builtin"],
    ]
    assert "read_file, grep" in rows[0]
    assert rows[0].endswith("Reviews one file.")
    assert {row.index("project") for row in rows[:2]} == {head.index("FROM")}


def test_all_shows_also_what_does_not_hold_and_where_each_lies(project: Path) -> None:
    _write(project / ".claude" / "agents" / "torn.md", OPEN)
    found = {tuple(row.split()[:2]): row.split()[2:] for row in agents(project, "list", "--all").out.splitlines()[1:]}
    assert found["project:worker", "disabled"] == ["agents", str(Path(".agents/agents/worker.md"))]
    assert found["project:shy", "hidden"] == ["claude", str(Path(".claude/agents/shy.md"))]
    assert found["project:torn", "broken"] == ["claude", str(Path(".claude/agents/torn.md"))]
    assert found["user:reviewer", "replaced"][1] == str(project.parent / ".agents" / "agents" / "reviewer.md")
    assert ("builtin:worker", "replaced") in found
    assert ("project:reviewer", "good") in found


def test_the_document_of_the_list_has_the_keys_of_a_snapshot(project: Path) -> None:
    _write(project / ".claude" / "agents" / "torn.md", OPEN)
    document = agents(project, "list", "--all", "--json").document()
    assert document["next"] is None
    more = {"status", "layer", "dialect", "path"}
    assert all(item.keys() == {*Snapshot.__struct_fields__, *more} for item in document["items"])
    items = {item["ref"]: item for item in document["items"]}
    assert items["project:reviewer"]["tools"] == ["read_file", "grep"]
    assert items["project:seeker"]["access"] == "read"
    assert (items["project:torn"]["status"], items["project:torn"]["digest"]) == ("broken", None)
    shown = agents(project, "list", "--json").document()["items"]
    assert [item["status"] for item in shown] == ["good"] * 4


def test_show_prints_the_own_format_on_stdout_and_the_place_on_stderr(project: Path, tmp_path: Path) -> None:
    ran = agents(project, "show", "reviewer")
    assert ran.code == 0
    assert ran.out.startswith("---\n")
    assert ran.err.startswith(f"# project:reviewer from {Path('.claude/agents/reviewer.md')} (claude)\n")
    assert "# .claude/agents/reviewer.md:5: The model 'opus'" in ran.err
    _write(tmp_path / "other" / ".agents" / "agents" / "reviewer.md", ran.out)
    before = agents(project, "show", "reviewer", "--json").document()
    after = agents(project, "show", "reviewer", "--json", "--cwd", str(tmp_path / "other")).document()
    same = set(Snapshot.__struct_fields__) - {"ref", "digest"}
    assert {key: before[key] for key in same} == {key: after[key] for key in same}
    assert after["dialect"] == "agents"
    assert [finding["line"] for finding in before["findings"]] == [5, None]
    assert "It replaces the 'reviewer' of" in before["findings"][1]["cause"]


def test_show_reaches_the_one_that_its_layer_names(project: Path) -> None:
    assert "the user's" in agents(project, "show", "user:reviewer").out
    assert "name: worker" in agents(project, "show", "builtin:worker").out


@pytest.mark.parametrize("ref", ["nobody", "project:explorer", "worker", "torn"])
def test_show_refuses_what_is_not_there_switched_off_or_broken(project: Path, ref: str) -> None:
    _write(project / ".claude" / "agents" / "torn.md", OPEN)
    ran = agents(project, "show", ref, "--json")
    assert ran.code == 1
    assert one_sentence(ran)
    assert ran.document()["code"] == ("broken_agent" if ref == "torn" else "unknown_agent")


def test_check_ends_with_0_until_a_file_is_broken_and_names_line_and_remedy(project: Path) -> None:
    assert agents(project, "check").code == 0
    _write(project / ".claude" / "agents" / "torn.md", OPEN)
    ran = agents(project, "check")
    assert ran.code == 1
    words = {row.split()[0]: row.split()[1:] for row in ran.out.splitlines() if not row.startswith("  ")}
    assert words[".claude/agents/torn.md"] == ["claude", "project:torn", "broken"]
    assert words[".codex/agents/seeker.toml"] == ["codex", "project:seeker", "good"]
    faults = [row for row in ran.out.splitlines() if row.startswith("  error: ")]
    assert len(faults) == 1
    assert faults[0].startswith("  error: .claude/agents/torn.md:3: The front matter is no YAML")
    assert faults[0].endswith("Put the value in quotes, or use '|' and indent it.")


def test_check_of_one_file_or_folder_reports_on_that_alone(project: Path) -> None:
    torn = _write(project / ".claude" / "agents" / "torn.md", OPEN)
    for path, names, code in (
        (".claude/agents/torn.md", {"torn"}, 1),
        (str(torn), {"torn"}, 1),
        (".claude/agents/reviewer.md", {"reviewer"}, 0),
        (".claude", {"torn", "reviewer", "shy"}, 1),
        (".codex/agents", {"seeker"}, 0),
    ):
        ran = agents(project, "check", path, "--json")
        assert ({item["name"] for item in ran.document()["items"]}, ran.code) == (names, code), path
    gone = agents(project, "check", "nowhere.md")
    assert gone.code == 1
    assert "'nowhere.md' does not exist" in one_sentence(gone)


def test_check_says_of_each_key_what_it_means_or_why_it_is_ignored(project: Path) -> None:
    _write(project / ".claude" / "agents" / "one.md", REVIEWER.replace("reviewer", "one").replace("model", "hooks"))
    plain = agents(project, "check", ".claude/agents/one.md").out
    shown = agents(project, "check", ".claude/agents/one.md", "--keys").out
    assert "understood: tools (line 4): " in shown
    assert "ignored: hooks (line 5): " in shown
    assert "understood: " not in plain
    (item,) = agents(project, "check", ".claude/agents/one.md", "--json").document()["items"]
    assert {key["key"]: key["understood"] for key in item["keys"]} == {
        "name": True,
        "description": True,
        "tools": True,
        "hooks": False,
    }
    assert all(key["line"] and key["meaning"] for key in item["keys"])
    assert {"path", "line", "severity", "cause", "remedy", "name"} == set(item["findings"][0])


def test_the_corpus_is_checked_whole(tmp_path: Path, repository: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(repository / "tests" / "fixtures" / "corpus" / "project", project)
    (project / ".git").mkdir()
    ran = agents(project, "check")
    assert ran.code == 1
    assert sum(row.startswith("  error: ") for row in ran.out.splitlines()) == 14
    document = json.loads(agents(project, "check", "--json").out)
    assert sum(item["status"] == "broken" for item in document["items"]) == 14


def test_a_settings_alias_is_heeded_and_nothing_is_written(project: Path) -> None:
    config = _write(project / ".retinue" / "config.toml", '[models]\nopus = "anthropic:claude-opus-4-5"\n')
    before = sorted(project.rglob("*"))
    env = {"HOME": str(project.parent), "RETINUE_DATA_DIR": str(config.parent)}
    assert retinue(project, "agents", "show", "reviewer", "--json", env=env).document()["model"].endswith("opus-4-5")
    for command in ("list", "check"):
        assert retinue(project, "agents", command, env=env).code == 0
    assert sorted(project.rglob("*")) == before


def test_another_folder_is_looked_at_with_cwd(project: Path) -> None:
    ran = retinue(project.parent, "agents", "list", "--cwd", "project", env={"HOME": str(project.parent)})
    assert "seeker" in ran.out
    refused = retinue(project.parent, "agents", "list", "--cwd", "nowhere")
    assert refused.code == 1
    assert "is not a folder" in one_sentence(refused)


def test_what_a_file_says_steers_no_terminal(project: Path) -> None:
    text = "---\nname: evil\ndescription: a\\e[2Jb \x1b[31mred\x1b[0m\n---\nDo.\n"
    (project / ".claude" / "agents" / "evil.md").write_bytes(text.encode())
    for arguments in (("list",), ("check",), ("list", "--all")):
        ran = agents(project, *arguments)
        assert "\x1b" not in ran.out + ran.err
