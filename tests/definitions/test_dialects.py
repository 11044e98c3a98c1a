"""Every dialect's own words: where its files lie, what its tools, limits and switches mean here."""

import json
from pathlib import Path

import pytest

from retinue.core.errors import RetinueError
from retinue.core.events import Snapshot
from retinue.definitions.catalog import Catalog
from retinue.definitions.diagnostic import FileReport
from retinue.definitions.toolnames import DELEGATING

TOOLS = ("read_file", "list_dir", "grep", "load_skill", "write_file", "edit_file", "shell", "web_fetch")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "home" / "project" / ".git").mkdir(parents=True)
    return tmp_path / "home" / "project"


@pytest.fixture
def home(project: Path) -> Path:
    return project.parent


def write(folder: Path, path: str, text: str) -> Path:
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def md(front: str, body: str = "Work.") -> str:
    return f"---\ndescription: d\n{front}\n---\n{body}\n"


def role(project: Path, path: str, text: str, name: str = "one") -> tuple[Snapshot, FileReport]:
    """Return the one definition that a file holds, and the report on it."""
    write(project, path, text)
    catalog = Catalog(None, None, TOOLS)
    (report,) = catalog.check(str(project))
    return catalog.find(name, str(project)), report


FILES = {
    ".agents/agents/one.md": "agents",
    ".claude/agents/one.md": "claude",
    ".claude/agents/a/b/one.md": "claude",
    ".opencode/agents/one.md": "opencode",
    ".opencode/agent/one.md": "opencode",
    ".gemini/agents/one.md": "gemini",
    ".github/agents/one.agent.md": "copilot",
    ".github/agents/one.md": "copilot",
    ".github/chatmodes/one.chatmode.md": "copilot",
    ".pi/agents/one.md": "pi",
    ".omp/agents/one.md": "omp",
    ".deepagents/agents/one/AGENTS.md": "deepagents",
    ".deepagents/agents/one.md": "deepagents",
}
HOME_FILES = (
    ".config/opencode/agents/one.md",
    ".config/opencode/agent/one.md",
    ".copilot/agents/one.agent.md",
    ".pi/agent/agents/one.md",
    ".omp/agent/agents/one.md",
    ".deepagents/agent/agents/one/AGENTS.md",
)


@pytest.mark.parametrize("path", FILES)
def test_each_folder_of_each_dialect_is_read_in_a_project_and_at_home(path: str, project: Path, home: Path) -> None:
    snapshot, report = role(project, path, md(""))
    assert (snapshot.ref, report.dialect, report.layer) == ("project:one", FILES[path], "project")
    (project / path).unlink()
    write(home, path, md(""))
    assert Catalog(home, None).find("one", str(project)).ref == "user:one"


@pytest.mark.parametrize("path", HOME_FILES)
def test_a_dialects_own_user_folder_is_read_at_home_only(path: str, project: Path, home: Path) -> None:
    write(project, path, md(""))
    assert Catalog(home, None).check(str(project)) == ()
    write(home, path, md(""))
    assert Catalog(home, None).find("one", str(project)).ref == "user:one"


def test_agents_come_before_claude_before_the_others_and_a_project_before_the_user(project: Path, home: Path) -> None:
    order = (".agents/agents", ".claude/agents", ".opencode/agents", ".gemini/agents", ".github/agents", ".pi/agents")
    for folder in (home, project):
        for dialect in reversed(order):
            write(folder, f"{dialect}/one.md", md("", f"{folder} {dialect}"))
            assert Catalog(home, None).find("one", str(project)).instructions == f"{folder} {dialect}"
    statuses = [report.status for report in Catalog(home, None).check(str(project))]
    assert statuses == ["good"] + ["replaced"] * (2 * len(order) - 1)


# ----------------------------------------------------------------------------------------------------------- switches


def test_S125_a_project_switches_a_role_of_the_user_and_a_built_in_off_for_itself_only(
    project: Path, home: Path, tmp_path: Path
) -> None:
    write(home, ".agents/agents/mine.md", md(""))
    write(project, ".agents/agents/mine.md", "---\ndisabled: true\n---\n")
    write(project, ".agents/agents/off.md", "---\nname: Worker\ndisabled: true\n---\n")
    catalog = Catalog(home)
    snapshots, findings = catalog.list(str(project))
    assert [s.name for s in snapshots] == ["explorer", "researcher"]
    assert sum("switches off the built-in 'worker'" in f.cause for f in findings) == 1
    assert sum("switches off the 'mine'" in f.cause for f in findings) == 1
    for name in ("mine", "worker"):
        with pytest.raises(RetinueError) as caught:
            catalog.find(name, str(project))
        assert caught.value.code == "unknown_agent"
        assert "switched off" in caught.value.detail
    assert catalog.find("user:mine", str(project)).name == "mine"
    assert not any(f.severity == "error" for f in findings)
    (tmp_path / "other").mkdir()
    assert {s.name for s in catalog.list(str(tmp_path / "other"))[0]} == {"mine", "explorer", "researcher", "worker"}


def test_S125_a_role_that_is_on_in_the_project_wins_over_one_that_the_user_switched_off(
    project: Path, home: Path
) -> None:
    write(home, ".agents/agents/mine.md", "---\nname: mine\ndisabled: true\n---\n")
    with pytest.raises(RetinueError):
        Catalog(home, None).find("mine", str(project))
    write(project, ".claude/agents/mine.md", md(""))
    assert Catalog(home, None).find("mine", str(project)).ref == "project:mine"
    assert [r.status for r in Catalog(home, None).all(str(project))] == ["good", "disabled"]


# ---------------------------------------------------------------------------------------------- delegation and tools


@pytest.mark.parametrize("tool", sorted(DELEGATING))
def test_S112_delegation_tools_of_a_definition_are_dropped_with_a_note_unless_it_spawns(
    tool: str, project: Path
) -> None:
    snapshot, report = role(project, ".claude/agents/one.md", md(f"tools: Read, {tool}"))
    assert snapshot.tools == ("read_file",)
    (found,) = [f for f in report.findings if f.line == 3]
    assert (found.severity, "'spawns' names nobody" in found.cause) == ("note", True)
    snapshot, report = role(project, ".claude/agents/one.md", md(f"tools: Read, {tool}\nspawns: [explorer]"))
    assert snapshot.tools == ("read_file", tool)


@pytest.mark.parametrize(
    ("path", "front", "tools", "denied"),
    [
        (".claude/agents/one.md", "tools: Bash, Read, Grep, Glob, WebFetch",
         "shell read_file grep list_dir web_fetch", ""),
        (".claude/agents/one.md", "disallowedTools: Write, Bash(rm:*)", None, "write_file shell"),
        (".gemini/agents/one.md", "tools: [read_file, run_shell_command, glob]", "read_file shell list_dir", ""),
        (".gemini/agents/one.md", "tools: [mcp_*, mcp_db_query, mcp_git_*]", "mcp__* mcp__db__query mcp__git__*", ""),
        (".gemini/agents/one.md", "tools: [search_file_content, google_web_search]", "grep", ""),
        (".github/agents/one.agent.md", "tools: ['search/codebase', edit, runCommands]",
         "grep list_dir edit_file write_file shell", ""),
        (".github/agents/one.agent.md", "tools: ['github/*', 'db/query', 'search/usages']",
         "mcp__github__* mcp__db__query", ""),
        (".github/agents/one.agent.md", "tools: ['*']", None, ""),
        (".github/agents/one.agent.md", "tools: []", "", ""),
        (".opencode/agents/one.md", "tools:\n  write: false\n  bash: false\n  db_*: false", None,
         "write_file shell mcp__db__*"),
        (".opencode/agents/one.md", "tools:\n  '*': false\n  read: true\n  grep: true", "read_file grep", ""),
        (".opencode/agents/one.md", "permission:\n  edit: deny\n  bash: ask", None, "edit_file write_file"),
        (".opencode/agents/one.md", "permission:\n  bash:\n    '*': ask\n    git push: deny", None, "shell"),
        (".opencode/agents/one.md", "permission:\n  '*': deny\n  read: allow", "read_file", ""),
        (".opencode/agents/one.md", "permission: deny", "", ""),
        (".opencode/agents/one.md", "permission:\n  '*': deny\n  read: allow\ntools:\n  '*': false\n  bash: true",
         "", ""),
        (".pi/agents/one.md", "tools: read, bash, find, ls", "read_file shell list_dir", ""),
        (".deepagents/agents/one.md", "tools: [ls, execute, fetch_url]", "list_dir shell web_fetch", ""),
    ],
)  # fmt: skip
def test_the_tool_names_of_each_dialect_mean_ours(
    path: str, front: str, tools: str | None, denied: str, project: Path
) -> None:
    snapshot, _ = role(project, path, md(front))
    assert snapshot.tools == (None if tools is None else tuple(tools.split()))
    assert snapshot.disallowed_tools == tuple(denied.split())


@pytest.mark.parametrize(
    ("path", "front", "line"),
    [
        (".opencode/agents/one.md", "tools:\n  read: true\n  bash: perhaps", 5),
        (".opencode/agents/one.md", "permission:\n  bash: never", 4),
        (".gemini/agents/one.md", "kind: remote", 3),
        (".gemini/agents/one.md", "timeout_mins: soon", 3),
        (".github/agents/one.agent.md", "infer: perhaps", 3),
        (".omp/agents/one.md", "thinking-level: high\nthinking: low", 4),
    ],
)
def test_a_word_that_no_dialect_has_breaks_the_file_at_its_line(
    path: str, front: str, line: int, project: Path
) -> None:
    write(project, path, md(front))
    (report,) = Catalog(None, None).check(str(project))
    errors = [f for f in report.findings if f.severity == "error"]
    assert [(f.line, bool(f.remedy)) for f in errors] == [(line, True)]
    assert report.status == "broken"


def test_several_faults_of_one_file_are_all_named(project: Path) -> None:
    write(project, ".agents/agents/one.md", "---\nname: one\naccess: maybe\ntimeout: soon\nmax_steps: ten\n---\nB\n")
    (report,) = Catalog(None, None).check(str(project))
    assert sorted(f.line or 0 for f in report.findings if f.severity == "error") == [0, 3, 4, 5]
    assert [(k.key, k.understood) for k in report.keys] == [
        ("name", True),
        ("access", False),
        ("timeout", False),
        ("max_steps", False),
    ]


# ------------------------------------------------------------------------------------------------------- other keys


@pytest.mark.parametrize(
    ("path", "front", "field", "value"),
    [
        (".gemini/agents/one.md", "timeout_mins: 5\nmax_turns: 9", "timeout_s", 300),
        (".gemini/agents/one.md", "model: gemini-2.5-pro", "model", "google:gemini-2.5-pro"),
        (".opencode/agents/one.md", "model: anthropic/claude-sonnet-4", "model", "anthropic:claude-sonnet-4"),
        (".opencode/agents/one.md", "maxSteps: 4", "max_steps", 4),
        (".github/agents/one.agent.md", "agents: [a, 'Big Planner']", "spawns", ("a", "Big Planner")),
        (".github/agents/one.agent.md", "agents: ['*']", "spawns", ("*",)),
        (".github/agents/one.agent.md", "model: ['gpt-5', other]", "model", "openai:gpt-5"),
        (".github/agents/one.agent.md", "model: Claude Sonnet 4.5 (copilot)", "model", None),
        (".omp/agents/one.md", "thinking-level: high", "effort", "high"),
        (".omp/agents/one.md", "spawns: '*'", "spawns", ("*",)),
        (".omp/agents/one.md", "model: pi/smol, haiku", "model", None),
        (".claude/agents/one.md", "skills: pdf, git release", "skills", ("pdf", "git release")),
        (".claude/agents/one.md", "skills: [pdf, git]", "skills", ("pdf", "git")),
        (".claude/agents/one.md", "effort: high\nmodel: opus", "effort", "high"),
        (".agents/agents/one.md", "output_schema: '{\"type\": \"object\"}'", "output_schema", {"type": "object"}),
        (".agents/agents/one.md",
         "output_schema:\n  type: object\n  required: ['1', 2, true, ~, 1.5, x]", "output_schema",
         {"type": "object", "required": ["1", 2, True, None, 1.5, "x"]}),
    ],
)  # fmt: skip
def test_the_other_keys_of_each_dialect_mean_ours(
    path: str, front: str, field: str, value: object, project: Path
) -> None:
    snapshot, _ = role(project, path, md(front))
    assert getattr(snapshot, field) == value


@pytest.mark.parametrize(
    "front",
    [
        "output_schema: [a]",
        "output_schema: 7",
        "output_schema: '[1]'",
        "output_schema: '{'",
        "output_schema: '" + '{"a":' * 30 + "1" + "}" * 30 + "'",
        'output_schema: \'{"a": "\\u0000"}\'',
        "output_schema: '" + '{"a":' * 150 + "'",
    ],
)
def test_a_schema_that_is_no_object_breaks_the_file(front: str, project: Path) -> None:
    write(project, ".agents/agents/one.md", md(front))
    (report,) = Catalog(None, None).check(str(project))
    assert [f.line for f in report.findings if f.severity == "error"] == [3]


@pytest.mark.parametrize("front", ["infer: false", "disable-model-invocation: true", "hidden: yes"])
def test_what_a_model_may_not_choose_is_not_listed(front: str, project: Path) -> None:
    write(project, ".github/agents/one.agent.md", md(front))
    catalog = Catalog(None, None)
    assert catalog.list(str(project))[0] == ()
    assert catalog.find("one", str(project)).name == "one"


def test_codex_gives_a_role_its_instructions_model_effort_and_access(project: Path) -> None:
    text = (
        'name = "one"\r\ndescription = """\r\nLong.\r\nname = "trap" """\r\nmodel = "gpt-5.3-codex"\r\n'
        'model_reasoning_effort = "high"\r\nsandbox_mode = "read-only"\r\n'
        'developer_instructions = """\r\nFirst.\r\n\r\nSecond.\r\n"""\r\n'
        'nickname_candidates = ["A"]\r\n[mcp_servers.db]\r\nurl = "x"\r\n[[skills.config]]\r\npath = "y"\r\n'
    )
    snapshot, report = role(project, ".codex/agents/file.toml", text)
    assert snapshot.instructions == "First.\n\nSecond."
    assert (snapshot.model, snapshot.effort, snapshot.access) == ("openai:gpt-5.3-codex", "high", "read")
    lines = {key.key: (key.line, key.understood) for key in report.keys}
    assert lines == {
        "name": (1, True),
        "description": (2, True),
        "model": (5, True),
        "model_reasoning_effort": (6, True),
        "sandbox_mode": (7, True),
        "developer_instructions": (8, True),
        "nickname_candidates": (13, False),
        "mcp_servers": (14, False),
        "skills": (16, False),
    }
    assert all(key.meaning for key in report.keys)


CONFIG = """{
  // a comment with "quotes" and a { brace
  "$schema": "https://example.invalid/config.json",
  "agent": {
    /* two
       lines */
    "one": {
      "description": "uses // and /* in text, ] too",
      "prompt": "{file:./prompts/one.txt}",
      "temperature": 0.1,
      "tools": { "bash": false, },
    },
    "bad": { "description": "d", "mode": "subagent", "steps": "ten" },
    "worse": 7,
    "off": { "disable": true },
    "build": { "model": "anthropic/claude-x" },
  },
}
"""


def test_one_json_file_holds_many_definitions_and_a_bad_one_hides_none(project: Path) -> None:
    write(project, "prompts/one.txt", "\ufeffFrom a file.\r\nTwice.\r\n")
    write(project, "opencode.jsonc", CONFIG)
    write(project, ".agents/agents/build.md", md(""))
    catalog = Catalog(None, None, TOOLS)
    reports = {r.name: r for r in catalog.check(str(project)) if r.dialect == "opencode"}
    assert {name: r.status for name, r in reports.items()} == {
        "one": "good",
        "bad": "broken",
        "worse": "broken",
        "off": "disabled",
        None: "disabled",
    }
    found = catalog.find("one", str(project))
    assert found.instructions == "From a file.\nTwice."
    assert found.description == "uses // and /* in text, ] too"
    assert found.disallowed_tools == ("shell",)
    assert {k.key: k.line for k in reports["one"].keys} == {
        "description": 8,
        "prompt": 9,
        "temperature": 10,
        "tools": 11,
    }
    assert [f.line for f in reports["bad"].findings if f.severity == "error"] == [13]
    assert [f.line for f in reports["worse"].findings] == [14]
    assert "another program" in reports[None].findings[0].cause
    assert catalog.find("build", str(project)).instructions == "Work."


@pytest.mark.parametrize("name", ["../outside.txt", "/etc/passwd", "gone.txt", "link.txt", "binary.txt"])
def test_a_text_file_that_is_not_there_or_not_of_the_project_breaks_the_role(name: str, project: Path) -> None:
    write(project.parent, "outside.txt", "secret")
    (project / "link.txt").symlink_to(project.parent / "outside.txt")
    (project / "binary.txt").write_bytes(b"\0\1")
    config = {"agent": {"one": {"description": "d", "prompt": f"{{file:{name}}}"}}}
    write(project, "opencode.json", json.dumps(config, indent=1))
    (report,) = Catalog(None, None).check(str(project))
    assert report.status == "broken"
    assert report.findings[0].line == 5
    assert "secret" not in str(report)


def test_text_below_the_front_matter_holds_over_a_prompt_key(project: Path) -> None:
    snapshot, report = role(project, ".opencode/agents/one.md", md("prompt: other"))
    assert snapshot.instructions == "Work."
    assert [k.understood for k in report.keys if k.key == "prompt"] == [False]


# ------------------------------------------------------------------------------------------------------ one question


def test_check_of_a_path_reports_that_file_or_folder_alone(project: Path, tmp_path: Path) -> None:
    write(project, ".agents/agents/one.md", md("foo: 1"))
    write(project, ".claude/agents/two.md", md(""))
    catalog = Catalog(None)
    assert {r.name for r in catalog.check(str(project), ".agents")} == {"one"}
    (report,) = catalog.check(str(project), str(project / ".claude/agents/two.md"))
    assert (report.name, report.status) == ("two", "good")
    write(tmp_path, "loose/three.agent.md", md("tools: ['search/codebase']"))
    (report,) = catalog.check(str(project), str(tmp_path / "loose/three.agent.md"))
    assert (report.name, report.dialect, report.status) == ("three", "copilot", "good")
    write(tmp_path, "loose/four.toml", 'description = "d"\ndeveloper_instructions = "w"\n')
    (report,) = catalog.check(str(project), str(tmp_path / "loose/four.toml"))
    assert (report.name, report.dialect, report.status) == ("four", "codex", "good")
    write(tmp_path, "elsewhere/.pi/agents/five.md", md(""))
    assert [r.name for r in catalog.check(str(project), str(tmp_path / "elsewhere"))] == ["five"]
    (report,) = catalog.check(str(project), "nowhere.md")
    assert report.status == "broken"


def test_a_report_is_a_value_with_every_key(project: Path) -> None:
    _, report = role(project, ".agents/agents/one.md", md("color: red"))
    body = report.to_dict()
    assert list(body) == ["path", "dialect", "layer", "name", "ref", "status", "keys", "findings"]
    keys = body["keys"]
    assert isinstance(keys, list | tuple)
    assert json.loads(json.dumps(keys))[1] == {
        "key": "color",
        "line": 3,
        "understood": True,
        "meaning": "a colour for displays",
    }


def test_S117_and_S124_broken_and_foreign_files_hide_no_good_one(project: Path) -> None:
    for number, folder in enumerate((".agents", ".claude", ".gemini", ".pi")):
        write(project, f"{folder}/agents/good{number}.md", md("", "line one\n\n  line two\n---\nline three"))
        write(project, f"{folder}/agents/silent{number}.md", "---\nname: silent\n---\nB\n")
        write(project, f"{folder}/agents/notes.txt", "no definition")
        write(project, f"{folder}/agents/bad{number}.md", "---\nname: [\n")
    snapshots, findings = Catalog(None, None).list(str(project))
    assert [s.name for s in snapshots] == ["good0", "good1", "good2", "good3"]
    assert {s.instructions for s in snapshots} == {"line one\n\n  line two\n---\nline three"}
    assert sum(f.severity == "error" for f in findings) == 8
    assert sum(f.cause == "There is no description." for f in findings) == 4
