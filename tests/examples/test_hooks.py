"""The example of hooks: what it prints is what its record says."""

from pathlib import Path

from retinue.core.events import HookFailed, RunQueued, ToolFinished, ToolStarted, TurnClosed
from tests.examples.test_examples import played, record


def test_09_a_guard_denies_a_child_a_stop_hook_sends_the_model_on_and_the_books_are_kept(tmp_path: Path) -> None:
    out = played("09_hooks", tmp_path)
    assert "children: read\n" in out
    assert "A hook denied the child: Children of this project delete nothing." in out
    assert "sent on: You are not done yet; a hook does not let you stop: Name the file that you mean.\n" in out
    assert "answer: notes.md is out of date.\n" in out
    facts = record(tmp_path)
    started = [fact.call_id for fact in facts if isinstance(fact, ToolStarted)]
    assert [fact.name for fact in facts if isinstance(fact, RunQueued)] == ["read"]
    assert [fact.code for fact in facts if isinstance(fact, ToolFinished)] == ["denied_hook", None]
    assert [fact.status for fact in facts if isinstance(fact, TurnClosed)] == ["completed", "completed"]
    assert not [fact for fact in facts if isinstance(fact, HookFailed)]
    books = f"{len(started)} agent.tool.after, 2 agent.turn.closed"
    assert f"books: 1 agent.subagent.complete, 1 agent.subagent.spawn.after, {books}\n" in out
