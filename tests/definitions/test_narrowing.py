"""What takes something away from a role is never passed over: cut names, denials, rules, unknown keys (B78)."""

import json
from pathlib import Path

import pytest

from retinue.core.errors import RetinueError
from retinue.definitions.catalog import Catalog
from retinue.definitions.toolnames import split_names
from tests.definitions.test_dialects import TOOLS, md, project, role, write

__all__ = ["project"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Read, Bash(git *", ["Read", "Bash(git *"]),
        ("Read, Bash(test (a) *) Grep", ["Read", "Bash(test (a) *)", "Grep"]),
        ("Bash(ls (x) all)", ["Bash(ls (x) all)"]),
        ("a) , b ((", ["a", "b"]),
        ("", []),
    ],
)
def test_what_a_tool_is_restricted_to_is_no_name_of_its_own(text: str, names: list[str]) -> None:
    assert split_names(text) == names


@pytest.mark.parametrize("tools", ["Read, Bash(git *", "Read, Bash(test (a) *)", "[Read, 'Bash(ls (x) all)']"])
def test_B78_a_restriction_that_is_cut_wrongly_gives_no_tool(tools: str, project: Path) -> None:
    found, _ = role(project, ".claude/agents/one.md", md(f"tools: {tools}"))
    assert found.tools == ("read_file",)


def test_a_denial_that_names_no_tool_is_said(project: Path) -> None:
    found, report = role(project, ".claude/agents/one.md", md("disallowedTools: Bsh, Write, mcp__db__drop"))
    assert found.disallowed_tools == ("Bsh", "write_file", "mcp__db__drop")
    assert [finding.cause for finding in report.findings if "Bsh" in finding.cause] == [
        "There is no tool 'Bsh' here; nothing is taken away by it."
    ]


@pytest.mark.parametrize("key", ["permissionz", "excludeTools", "deny", "forbidden_tools", "restrict-to"])
def test_an_unknown_key_that_may_take_rights_away_breaks_the_role(key: str, project: Path) -> None:
    write(project, ".claude/agents/one.md", md(f"{key}: Bash"))
    with pytest.raises(RetinueError, match="may take rights away"):
        Catalog(None, None, TOOLS).find("one", str(project))


def rules(*made: tuple[str, str, str]) -> str:
    return json.dumps([{"action": action, "resource": resource, "effect": effect} for action, resource, effect in made])


@pytest.mark.parametrize(
    ("made", "tools", "denied"),
    [
        ((("edit", "*", "deny"), ("shell", "*", "deny")), None, {"edit_file", "write_file", "shell"}),
        ((("shell", "*", "deny"), ("shell", "*", "allow")), None, set[str]()),
        ((("shell", "rm *", "deny"),), None, {"shell"}),
        ((("shell", "*", "deny"), ("shell", "git *", "allow")), None, {"shell"}),
        ((("shell", "*", "deny"), ("*", "*", "allow")), None, set[str]()),
        ((("*", "*", "deny"), ("read", "*", "allow")), ("read_file",), set[str]()),
    ],
)
def test_the_last_of_ordered_rules_holds_and_what_is_denied_in_part_is_denied(
    made: tuple[tuple[str, str, str], ...], tools: tuple[str, ...] | None, denied: set[str], project: Path
) -> None:
    found, _ = role(project, ".opencode/agents/one.md", md(f"permissions: {rules(*made)}"))
    assert (found.tools, set(found.disallowed_tools)) == (tools, denied)


@pytest.mark.parametrize("value", ['[{"action": "x"}]', '["x"]', '[{"action": "x", "effect": "perhaps"}]'])
def test_a_rule_that_cannot_be_understood_breaks_the_role(value: str, project: Path) -> None:
    write(project, ".opencode/agents/one.md", md(f"permissions: {value}"))
    with pytest.raises(RetinueError, match="cannot be understood"):
        Catalog(None, None, TOOLS).find("one", str(project))


def test_both_forms_of_another_programs_settings_file_are_read(project: Path) -> None:
    agents = {"one": {"description": "d", "system": "Work.", "model": "a/b#high"}}
    found, _ = role(project, "opencode.json", json.dumps({"agents": agents}))
    assert (found.instructions, found.model, found.effort) == ("Work.", "a:b", "high")


@pytest.mark.parametrize(("written", "model"), [("anthropic/claude-x:high", "anthropic:claude-x"), ("x:low", "x")])
def test_how_much_a_model_thinks_is_no_part_of_its_name(written: str, model: str, project: Path) -> None:
    found, _ = role(project, ".pi/agents/one.md", md(f"model: {written}"))
    assert (found.model, found.effort) == (model, written.rpartition(":")[2])


@pytest.mark.parametrize("path", [".agents/agents/ .md", ".claude/agents/.md"])
def test_a_file_without_a_name_makes_nothing_else_unusable(path: str, project: Path) -> None:
    write(project, path, md(""))
    write(project, "opencode.json", json.dumps({"agent": {"": {"description": "d", "prompt": "p"}}}))
    write(project, ".agents/agents/good.md", md(""))
    catalog = Catalog(None, None, TOOLS)
    assert [snapshot.name for snapshot in catalog.list(str(project))[0]] == ["good"]
    assert catalog.find("good", str(project)).name == "good"
    assert catalog.check(str(project))


def test_a_tool_of_ones_own_that_is_called_like_another_programs_can_be_named(project: Path) -> None:
    write(project, ".agents/agents/one.md", md("tools: write, view"))
    found = Catalog(None, None, (*TOOLS, "write")).find("one", str(project))
    assert found.tools == ("write", "read_file")


@pytest.mark.parametrize("key", ["prompt", "system"])
def test_no_definition_takes_its_text_from_the_data_directory(key: str, project: Path) -> None:
    write(project, ".retinue/config.toml", "model = 'offline'")
    write(project, "notes.md", "Work well.")
    catalog = Catalog(None, None, TOOLS, data_dir=project / ".retinue")
    for file, agent in ((".retinue/config.toml", "bad"), ("notes.md", "good")):
        agents = {agent: {"description": "d", key: f"{{file:{file}}}"}}
        write(project, "opencode.json", json.dumps({"agents": agents}))
        if agent == "bad":
            with pytest.raises(RetinueError, match="closed to agents"):
                catalog.find(agent, str(project))
        else:
            assert catalog.find(agent, str(project)).instructions == "Work well."
