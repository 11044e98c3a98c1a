"""The offline model against the real workspace tools; delegation, slots and letters are played by a tiny harness."""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from retinue.core.errors import RetinueError
from retinue.core.ids import CallId, SessionId
from retinue.core.mailbox import fit_tokens, frame
from retinue.core.messages import AssistantText, RequestCall, RequestMessage, ToolText, UserText
from retinue.models.offline import ENDS, OfflineModel
from retinue.ports import Delta, Finish, ModelRequest, ToolSchema
from tests.tools.harness import FakeContext, tool_named, without_privileges

READING = ("read_file", "list_dir", "grep")
PROMPT = "What is in this folder?"
NAMED = re.compile(r"`([^`]+)`")


@dataclass
class Stage:
    """One tree: the root's conversation, its children, and what went over the wire."""

    cwd: Path
    refuse: Callable[[int], str | None] = lambda _: None
    offered: tuple[str, ...] = (*READING, "spawn_agent")
    spawned: list[dict[str, Any]] = field(default_factory=list)
    messages: list[RequestMessage] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    steps: dict[str, int] = field(default_factory=dict)
    steps_max: int = 20
    pull: bool = False
    ends: bool = False
    ends_per_wait: int = 99
    waits: list[dict[str, Any]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    mail: list[UserText] = field(default_factory=list)

    def ask_once(self, prompt: str = PROMPT) -> str:
        """Play a turn that nothing holds open: what comes home comes home in it."""
        self.ends = True
        self.messages.append(UserText(text=prompt))
        return self.turn("s_root", self.messages, root=True)

    def run(self, prompt: str = PROMPT, batches: int = 2) -> str:
        """Play a turn under hold_open, letters coming home in batches; return the final text."""
        self.messages.append(UserText(text=prompt))
        home = 0
        text = self.turn("s_root", self.messages, root=True)
        while home < len(self.spawned):
            until = min(len(self.spawned), home + max(1, len(self.spawned) // batches))
            self.messages.extend(self.letter(number) for number in range(home, until))
            home = until
            text = self.turn("s_root", self.messages, root=True)
        return text

    def letter(self, number: int, payload: str | None = None) -> UserText:
        """Return the letter of a child that has done its task, or one with another payload."""
        child = f"s_child{number}"
        if payload is None:
            text = self.turn(child, [UserText(text=self.spawned[number]["prompt"])], root=False)
            payload = f"Background subagent {child} finished.\n\n{fit_tokens(text, 900)[0]}"
        return UserText(text=frame("result", SessionId("s_root"), SessionId(child), payload))

    def turn(self, session: str, messages: list[RequestMessage], *, root: bool) -> str:
        """Play steps until the model makes no call."""
        for number in range(1, self.steps_max + 1):
            self.steps[session] = self.steps.get(session, 0) + 1
            finish = self.ask(session, messages, number, root=root)
            calls = tuple(
                RequestCall(
                    call_id=CallId(f"c_{session}_{len(messages)}_{n}"), name=c.name, arguments=json.loads(c.arguments)
                )
                for n, c in enumerate(finish.tool_calls)
            )
            messages.append(AssistantText(text=finish.text, tool_calls=calls))
            self.texts.append(finish.text)
            if not calls:
                return finish.text
            messages.extend([self.answer(call) for call in calls])
            if root:
                messages.extend(self.mail)
                self.mail.clear()
        raise AssertionError(f"{session} used up its {self.steps_max} steps")

    def ask(self, session: str, messages: list[RequestMessage], number: int, *, root: bool) -> Finish:
        names = self.offered if root else READING
        request = ModelRequest(
            session_id=SessionId(session),
            root=root,
            name=session,
            model="offline",
            system=ENDS if self.ends else "",
            messages=tuple(messages),
            tools=tuple(ToolSchema(name=name, description="", parameters={}) for name in names),
            number=number,
        )
        chunks = streamed(request)
        finish = chunks[-1]
        assert isinstance(finish, Finish)
        deltas = [chunk for chunk in chunks[:-1] if isinstance(chunk, Delta)]
        assert len(deltas) == len(chunks) - 1
        assert "".join(delta.text for delta in deltas) == finish.text
        assert all(delta.text.count("\n") <= 1 for delta in deltas)
        return finish

    def answer(self, call: RequestCall) -> ToolText:
        if call.name == "spawn_agent":
            return self.spawn(call)
        if call.name == "wait_agent":
            return self.wait(call)
        context = FakeContext(self.cwd)
        try:
            result = anyio.run(tool_named(call.name).call, context, call.arguments)
        except RetinueError as refusal:
            self.errors.append(refusal.code)
            return ToolText(call_id=call.call_id, name=call.name, text=json.dumps(refusal.to_model()), error=True)
        self.errors += [result.text] if result.outcome != "ok" else []
        return ToolText(call_id=call.call_id, name=call.name, text=result.text, error=result.outcome != "ok")

    def spawn(self, call: RequestCall) -> ToolText:
        code = self.refuse(len(self.spawned))
        if code is not None:
            body = json.dumps(RetinueError(code, "No more.", "").to_model())
            return ToolText(call_id=call.call_id, name=call.name, text=body, error=True)
        self.spawned.append(call.arguments)
        child = {
            "run_id": f"r_{len(self.spawned)}",
            "session_id": f"s_child{len(self.spawned) - 1}",
            "status": "queued",
        }
        return ToolText(call_id=call.call_id, name=call.name, text=json.dumps(child))

    def wait(self, call: RequestCall) -> ToolText:
        """Let some of the children end, and tell of them as the policy would: here, or with a letter."""
        self.waits.append(call.arguments)
        ids = call.arguments["ids"]
        ending = [child for child in ids if child not in self.ended][: self.ends_per_wait]
        self.ended += ending
        letters = {child: self.letter(int(child.removeprefix("s_child"))) for child in ending}
        rows: list[dict[str, Any]] = [
            {"session_id": child, "status": "completed" if child in self.ended else "running"} for child in ids
        ]
        if self.pull:
            rows = [{**row, **self.output(letters.get(row["session_id"]))} for row in rows]
        else:
            self.mail += letters.values()
        body = {"items": rows, "timed_out": not set(ids) <= set(self.ended)}
        return ToolText(call_id=call.call_id, name=call.name, text=json.dumps(body))

    def output(self, letter: UserText | None) -> dict[str, str]:
        return {} if letter is None else {"output": letter.text.split(" finished.\n\n", 1)[1]}

    def assert_every_named_path_exists(self, report: str) -> set[str]:
        named = set(NAMED.findall(report))
        assert [path for path in sorted(named) if not os.path.lexists(self.cwd / path)] == []
        return named


def streamed(request: ModelRequest) -> list[Delta | Finish]:
    async def collect() -> list[Delta | Finish]:
        return [chunk async for chunk in OfflineModel().stream(request)]

    return anyio.run(collect)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that an unprivileged user can reach."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_a_source_tree_is_divided_and_every_named_path_exists(repository: Path) -> None:
    stage = Stage(repository / "src")
    shutil_free_report = Stage(repository / "src" / "retinue").run()
    report = stage.run()
    for text in (report, shutil_free_report):
        assert text.startswith("# Report on this folder")
    assert len(stage.spawned) >= 3
    assert len(stage.assert_every_named_path_exists(report)) >= 3
    assert stage.errors == []


def test_the_parts_of_a_wide_tree_are_disjoint_and_cover_it(repository: Path) -> None:
    stage = Stage(repository / "src" / "retinue")
    report = stage.run()
    paths = [
        line.removeprefix("- ")
        for spawn in stage.spawned
        for line in spawn["prompt"].split("Look at:\n")[1].split("\n\n")[0].splitlines()
        if line.startswith("- ")
    ]
    expected = {p.name + "/" * p.is_dir() for p in stage.cwd.iterdir() if p.name != "__pycache__"}
    assert sorted(paths) == sorted(expected)
    assert 3 <= len(stage.spawned) <= 6
    assert len({spawn["name"] for spawn in stage.spawned}) == len(stage.spawned)
    assert {"ports.py", "core/events.py"} & stage.assert_every_named_path_exists(report)
    assert "lines" in report
    assert max(stage.steps.values()) <= 20


def test_an_empty_folder_gets_three_questions_and_an_honest_report(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    report = stage.run()
    assert [spawn["name"] for spawn in stage.spawned] == ["layout", "documentation", "code"]
    assert "The folder holds no files and no folders." in report
    assert "0 files read" in report


def test_a_folder_of_ten_thousand_files_is_reported_with_its_true_count(tmp_path: Path) -> None:
    for number in range(10_000):
        (tmp_path / f"note{number:05}.txt").write_bytes(b"some words\n")
    stage = Stage(tmp_path)
    report = stage.run()
    assert len(stage.spawned) >= 3
    assert "9000 more of 10000 entries were not listed" in report
    assert len(stage.assert_every_named_path_exists(report)) >= 9


def test_binary_and_unreadable_files_are_named_with_the_reason(open_folder: Path) -> None:
    (open_folder / "README.md").write_text("# A small project\n\ntext\n")
    (open_folder / "image.png").write_bytes(b"\x89PNG\0\0\0" * 20)
    (open_folder / "secret.md").write_text("closed\n")
    (open_folder / "shut").mkdir()
    (open_folder / "shut" / "inner.txt").write_text("x")
    (open_folder / "secret.md").chmod(0)
    (open_folder / "shut").chmod(0)
    stage = Stage(open_folder)
    with without_privileges():
        report = stage.run()
    (open_folder / "shut").chmod(0o755)
    stage.assert_every_named_path_exists(report)
    unread = report.split("## What could not be read")[1]
    assert "- `image.png`: not read, binary file of 140 bytes" in unread
    assert "- `secret.md`: not read, permission denied" in unread
    assert "- `shut`" in unread
    assert '- `README.md`: 3 lines, opens with "A small project"' in report


def test_names_with_a_line_break_or_a_leading_dash_neither_break_nor_lie(tmp_path: Path) -> None:
    (tmp_path / "two\nlines.txt").write_text("a")
    (tmp_path / "back`tick.txt").write_text("a")
    (tmp_path / os.fsdecode(b"latin\xe9.txt")).write_text("a")
    for name in ("-rf.txt", " leading blank.txt", "plain.txt"):
        (tmp_path / name).write_text("some words\n")
    stage = Stage(tmp_path)
    report = stage.run()
    named = stage.assert_every_named_path_exists(report)
    assert {"-rf.txt", " leading blank.txt", "plain.txt"} <= named
    assert "3 names do not fit on a line" in report
    assert stage.errors == []


def test_a_quoted_line_that_looks_like_a_path_is_not_repeated(tmp_path: Path) -> None:
    for name in ("a.md", "b.md", "c.md"):
        (tmp_path / name).write_text("# See docs/missing.md and gone.py\n")
    report = Stage(tmp_path).run()
    assert "missing" not in report
    assert "gone" not in report
    assert "- `a.md`: 1 lines" in report


@pytest.mark.parametrize("allowed", [0, 1])
def test_parts_whose_spawn_is_refused_are_looked_at_by_the_parent(tmp_path: Path, allowed: int) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.md").write_text(f"# The folder {name}\n")
    code = "depth_exceeded" if allowed == 0 else "cap_created"
    stage = Stage(tmp_path, refuse=lambda count: code if count >= allowed else None)
    report = stage.run()
    assert f"3 parts: {allowed} by explorers, {3 - allowed} looked at by the parent itself." in report
    assert {"one/README.md", "two/README.md", "three/README.md"} <= stage.assert_every_named_path_exists(report)


def test_without_the_tool_to_delegate_it_looks_itself(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("some words\n")
    stage = Stage(tmp_path, offered=READING)
    report = stage.run()
    assert stage.spawned == []
    assert "- `notes.txt`: 1 lines" in report


def test_without_any_tool_it_says_so(tmp_path: Path) -> None:
    assert "I have no tool for it" in Stage(tmp_path, offered=()).run()


def test_while_children_are_out_it_says_one_sentence_and_stops(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.messages.append(UserText(text=PROMPT))
    stage.turn("s_root", stage.messages, root=True)
    assert stage.texts[-1] == "0 of 3 parts are there; I wait for the rest.\n"
    stage.messages.append(stage.letter(1))
    assert stage.turn("s_root", stage.messages, root=True) == "1 of 3 parts are there; I wait for the rest.\n"


def test_the_last_step_without_tools_reports_what_there_is(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.messages.append(UserText(text=PROMPT))
    stage.turn("s_root", stage.messages, root=True)
    stage.messages.append(stage.letter(0))
    stage.offered = ()
    report = stage.turn("s_root", stage.messages, root=True)
    assert "3 parts, 1 of them complete" in report
    assert "its explorer had not answered when the report was due" in report


def test_a_child_that_failed_is_named_in_the_report(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.messages.append(UserText(text=PROMPT))
    stage.turn("s_root", stage.messages, root=True)
    failed = "Background subagent s_child0 ran out of time.\n\nThe task did not finish (failed/timeout): 900 s."
    stage.messages.extend([stage.letter(0, failed), stage.letter(1), stage.letter(2)])
    report = stage.turn("s_root", stage.messages, root=True)
    assert "- Part 'layout': its explorer did not finish." in report


def test_steering_while_children_are_out_starts_nothing_anew(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.messages.append(UserText(text=PROMPT))
    stage.turn("s_root", stage.messages, root=True)
    stage.messages.extend([UserText(text="look at the documents first"), *(stage.letter(n) for n in range(3))])
    report = stage.turn("s_root", stage.messages, root=True)
    assert report.startswith("# Report")
    assert len(stage.spawned) == 3


def test_a_second_prompt_and_one_after_an_interrupt_are_new_jobs(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.run()
    stage.messages.append(UserText(text="again"))
    stage.turn("s_root", stage.messages, root=True)
    assert len(stage.spawned) == 6
    stopped = "Background subagent {} was stopped.\n\nThe task did not finish (cancelled/parent_cancelled): stopped."
    letters = [stage.letter(n, stopped.format(f"s_child{n}")) for n in (3, 4, 5)]
    stage.messages.extend([UserText(text="once more"), *letters])
    stage.turn("s_root", stage.messages, root=True)
    assert len(stage.spawned) == 9


def test_the_same_request_is_answered_the_same_and_without_usage(tmp_path: Path) -> None:
    first, second = Stage(tmp_path), Stage(tmp_path)
    assert first.run() == second.run()
    finish = first.ask("s_root", first.messages, 1, root=True)
    assert finish.usage is None
    assert finish.reason == "stop"


def test_a_childs_findings_fit_a_letter(tmp_path: Path) -> None:
    deep = tmp_path / ("folder" * 20)
    deep.mkdir()
    for number in range(40):
        (deep / f"{'long name ' * 15}{number}.md").write_text("# A heading that is quite long as well\n" * 9)
    stage = Stage(tmp_path)
    stage.run()
    assert all("[truncated]" not in message.text for message in stage.messages if isinstance(message, UserText))
