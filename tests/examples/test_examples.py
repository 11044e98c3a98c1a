"""Every example runs as a reader would run it: by itself, without a key; its words and its record are checked."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from retinue.core.events import BudgetExceeded, ContextSeeded, RunQueued, RunSettled, ToolFinished, TurnClosed
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.checkers import all_events, check_all
from tests.e2e.kit import environment

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))
LINES_MAX = 60
SECONDS_MAX = 60


def played(name: str, folder: Path, *arguments: str) -> str:
    """Run an example in a folder and return what it printed; nothing may go to stderr."""
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


def record(folder: Path) -> list[object]:
    """Return the facts that an example left, after every checker found them in order."""
    store = SQLiteStore(folder / ".retinue" / "retinue.sqlite3")
    events = all_events(store)
    store.close()
    assert check_all(events) == []
    return [event.fact for event in events]


def settled(folder: Path) -> dict[str, tuple[str, str | None]]:
    runs = [fact for fact in record(folder) if isinstance(fact, RunSettled)]
    return {run.name: (run.status, run.reason) for run in runs}


def test_there_are_ten_examples_and_each_is_tried_here() -> None:
    assert NAMES == [
        "01_first_delegation",
        "02_parallel_review",
        "03_continuable_helper",
        "04_fork",
        "05_budget",
        "06_test_your_agent",
        "07_roles_in_files",
        "08_context_modes",
        "09_hooks",
        "10_mcp_tool",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_short_and_uses_public_names_only(name: str) -> None:
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    tree = ast.parse(text)
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert len(text.splitlines()) <= LINES_MAX
    assert {module for module in modules if module and module.startswith("retinue")} <= {"retinue.testing.scripted"}
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert "kernel" not in attributes
    assert not [name for name in attributes if name.startswith("_") and not name.endswith("__")]


def test_01_a_parent_sends_explorers_and_integrates_what_they_found(tmp_path: Path) -> None:
    for part in ("alpha", "beta"):
        (tmp_path / "project" / part).mkdir(parents=True)
        (tmp_path / "project" / part / "notes.md").write_text(f"# All about {part}\n", encoding="utf-8")
    out = played("01_first_delegation", tmp_path, "project")
    found = settled(tmp_path)
    assert len(found) > 1
    assert set(found.values()) == {("completed", "done")}
    assert all(f"+ {name} works as s_" in out and f"- {name}: completed/done after " in out for name in found)
    assert "All about alpha" in out
    assert "All about beta" in out
    assert f"{len(found)} runs on record" in out


def test_02_four_reviews_run_two_at_a_time_and_one_fails_alone(tmp_path: Path) -> None:
    out = played("02_parallel_review", tmp_path)
    assert "4 reviews, never more than 2 at once, 1 failed." in out
    assert "(provider_error)" in out
    found = settled(tmp_path)
    assert found.pop("network") == ("failed", "provider_error")
    assert set(found) == {"storage", "command line", "documentation"}
    assert set(found.values()) == {("completed", "done")}


def test_03_a_helper_goes_on_in_a_new_process_with_its_own_history(tmp_path: Path) -> None:
    out = played("03_continuable_helper", tmp_path)
    assert "helper: Three points are open: store, network, texts.\n" in out
    assert "helper: The store, because the other two need it.\nparent: It says: the store comes first.\n" in out
    assert "held 3 messages, beginning with: Read the plan and remember its open points." in out
    queued = [fact for fact in record(tmp_path) if isinstance(fact, RunQueued)]
    assert len({run.child_id for run in queued}) == 1
    assert [(run.spec.round, run.spec.cause) for run in queued] == [(1, "prompt"), (2, "message")]


def test_04_a_fork_begins_with_the_completed_turns_and_a_spawn_with_nothing(tmp_path: Path) -> None:
    out = played("04_fork", tmp_path)
    forked, fresh = out.split("fresh (spawn, depth 1)")
    assert forked.startswith("forked (fork, depth 1): It is heron.")
    assert "it was sent: The code word is heron." in forked
    assert fresh.count("it was sent:") == 1
    assert "refused, depth_exceeded: A child of this session would have depth 1; the cap is 0." in fresh
    facts = record(tmp_path)
    assert len([fact for fact in facts if isinstance(fact, ContextSeeded)]) == 1
    assert [fact.depth for fact in facts if isinstance(fact, RunQueued)] == [1, 1]


def test_05_spent_never_passes_the_limit_and_one_event_says_so(tmp_path: Path) -> None:
    out = played("05_budget", tmp_path)
    assert "parent: completed: That is all that the budget allowed." in out
    facts = record(tmp_path)
    (exceeded,) = [fact for fact in facts if isinstance(fact, BudgetExceeded)]
    runs = [fact for fact in facts if isinstance(fact, RunSettled)]
    spent = sum(run.usage.total for run in runs)
    assert 0 < spent == exceeded.spent <= exceeded.limit
    assert f"Spent {spent} of {exceeded.limit}." in out
    assert {(run.status, run.reason) for run in runs} == {("completed", "done"), ("cancelled", "budget")}
    assert out.count("completed/done") == sum(run.status == "completed" for run in runs)


def test_06_an_agent_is_tested_without_a_model(tmp_path: Path) -> None:
    out = played("06_test_your_agent", tmp_path)
    assert out.splitlines() == [
        "holds: the model gets what the tool says",
        "holds: a child has the tool too and its answer comes home",
        "holds: a provider that fails is never a success",
    ]


def test_06_the_agent_that_it_tests_leaves_a_whole_record(tmp_path: Path) -> None:
    """The example throws its record away; the same agent, played once more, leaves one that shows the tool's answer."""
    code = (
        "import importlib; example = importlib.import_module('06_test_your_agent')\n"
        "from retinue.testing.scripted import ScriptedModel\n"
        "lines = [example.call('stock', item='nuts'), {'text': 'None are left.'}]\n"
        "print(example.agent('How many nuts?', ScriptedModel(lines), '.retinue').text)\n"
    )
    env = {**environment(tmp_path), "PYTHONPATH": str(EXAMPLES), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "None are left.\n"
    facts = record(tmp_path)
    assert [fact.text for fact in facts if isinstance(fact, ToolFinished)] == ["none"]
    assert [fact.status for fact in facts if isinstance(fact, TurnClosed)] == ["completed"]


def test_07_a_role_is_what_its_file_said_when_the_child_was_asked_for(tmp_path: Path) -> None:
    out = played("07_roles_in_files", tmp_path)
    assert out.count("told: You find what is missing. You praise nothing.\n") == 2
    assert out.count("tools: read_file, grep, report_to_parent\n") == 2
    assert "user:critic: completed/done: It still names none.\n" in out  # the test's folder is its home directory, too
    assert "You are kind." in (tmp_path / ".agents" / "agents" / "critic.md").read_text(encoding="utf-8")
    queued = [fact for fact in record(tmp_path) if isinstance(fact, RunQueued)]
    assert len({fact.spec.definition.digest for fact in queued if fact.spec.definition is not None}) == 1
    assert [fact.agent for fact in queued] == ["user:critic"] * 2


def test_08_a_child_is_told_what_its_parent_chose_marked_as_reference(tmp_path: Path) -> None:
    out = played("08_context_modes", tmp_path)
    shown = {part.partition(":")[0]: part for part in out.split("== ")[1:]}
    assert list(shown) == ["alone", "background", "selected", "last turn", "summary", "fork"]
    assert all("The plan holds." in part and "Does the plan hold?" in part for part in shown.values())
    assert shown["alone"].count("\n") == 2
    untrusted = {name: part.count("untrusted reference data") for name, part in shown.items()}
    assert untrusted == {"alone": 0, "background": 1, "selected": 1, "last turn": 1, "summary": 2, "fork": 0}
    assert '"content":"Plan the release."' in shown["selected"]
    assert "holiday" not in shown["selected"]
    assert shown["last turn"].count('"seq"') == 2
    assert shown["summary"].count('"seq"') == 4
    assert "    Then we ship on Thursday.\n" in shown["fork"]
    assert "refused, not_found: None of the selected messages exists: 999." in out
    assert len([fact for fact in record(tmp_path) if isinstance(fact, ContextSeeded)]) == 1


def test_a_child_has_an_mcp_tool_only_when_it_is_given_by_name(tmp_path: Path) -> None:
    pytest.importorskip("mcp", reason="the extra mcp is not installed")
    said = played("10_mcp_tool", tmp_path).splitlines()
    assert sorted(said) == sorted(
        ["called by the main session", "called by a child", "refused to a child that was not given it"]
    )
    assert settled(tmp_path) == {"without": ("completed", "done"), "with": ("completed", "done")}
