"""How the offline model waits for its explorers, and takes in what comes as a letter or is fetched."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from retinue.core.errors import RetinueError
from retinue.core.ids import CallId
from retinue.core.messages import AssistantText, RequestCall, ToolText, UserText
from retinue.models.offline import WAIT_S, WAITS_MAX
from retinue.ports import Finish
from tests.models.test_offline import PROMPT, READING, Stage

WAITING = (*READING, "spawn_agent", "wait_agent")


def three_folders(folder: Path) -> set[str]:
    """Make three parts, and return the paths of which a report has to hold evidence."""
    for name in ("one", "two", "three"):
        (folder / name).mkdir()
        (folder / name / "README.md").write_text(f"# The folder {name}\n")
    return {"one/README.md", "two/README.md", "three/README.md"}


def assert_whole(report: str, paths: set[str]) -> None:
    assert [report.count(f"`{path}`") for path in sorted(paths)] == [1] * len(paths)
    assert f"{len(paths)} parts, {len(paths)} of them complete" in report


@pytest.mark.parametrize("pull", [False, True])
def test_with_nothing_to_do_but_wait_it_waits_once_for_all_and_reports_once(tmp_path: Path, pull: bool) -> None:
    paths = three_folders(tmp_path)
    stage = Stage(tmp_path, offered=WAITING, pull=pull)
    report = stage.ask_once()
    assert_whole(report, paths)
    assert stage.waits == [{"ids": ["s_child0", "s_child1", "s_child2"], "timeout_s": WAIT_S}]
    assert [text.startswith("# Report") for text in stage.texts if text.startswith("#")] == [True]
    assert "0 of 3 parts are there; I wait for the rest.\n" in stage.texts


@pytest.mark.parametrize("pull", [False, True])
def test_a_wait_that_timed_out_is_made_again_for_those_that_are_missing(tmp_path: Path, pull: bool) -> None:
    paths = three_folders(tmp_path)
    stage = Stage(tmp_path, offered=WAITING, pull=pull, ends_per_wait=1)
    assert_whole(stage.ask_once(), paths)
    assert [len(wait["ids"]) for wait in stage.waits] == [3, 2, 1]


@pytest.mark.parametrize("pull", [False, True])
def test_waits_that_bring_nothing_are_bounded_and_the_report_says_what_is_missing(tmp_path: Path, pull: bool) -> None:
    stage = Stage(tmp_path, offered=WAITING, pull=pull, ends_per_wait=0, steps_max=WAITS_MAX + 10)
    report = stage.ask_once()
    assert len(stage.waits) == WAITS_MAX
    assert "3 parts, 0 of them complete" in report
    assert report.count("its explorer had not answered when the report was due") == 3


@pytest.mark.parametrize("pull", [False, True])
def test_spawns_that_a_full_cap_refused_are_made_after_a_wait(tmp_path: Path, pull: bool) -> None:
    paths = three_folders(tmp_path)
    stage = Stage(tmp_path, offered=WAITING, pull=pull)
    stage.refuse = lambda count: "cap_running" if count - len(stage.ended) >= 1 else None
    report = stage.ask_once()
    assert_whole(report, paths)
    assert "3 parts: 3 by explorers, 0 looked at by the parent itself." in report
    assert [wait["ids"] for wait in stage.waits] == [["s_child0"], ["s_child1"], ["s_child2"]]


@pytest.mark.parametrize("allowed", [0, 1])
def test_parts_that_stay_refused_after_a_wait_are_looked_at_by_the_parent(tmp_path: Path, allowed: int) -> None:
    paths = three_folders(tmp_path)
    stage = Stage(tmp_path, offered=WAITING, refuse=lambda count: "cap_running" if count >= allowed else None)
    report = stage.ask_once()
    assert_whole(report, paths)
    assert f"3 parts: {allowed} by explorers, {3 - allowed} looked at by the parent itself." in report
    assert len(stage.waits) == allowed


def test_parts_over_the_cap_on_created_children_are_looked_at_before_it_waits(tmp_path: Path) -> None:
    paths = three_folders(tmp_path)
    stage = Stage(tmp_path, offered=WAITING, pull=True, refuse=lambda count: "cap_created" if count >= 1 else None)
    assert_whole(stage.ask_once(), paths)
    said = [text.split(" ")[0] for text in stage.texts if text.startswith(("I look at '", "0 of", "2 of"))]
    assert (said[0], said[-1]) == ("I", "2")


def test_a_fetched_result_that_is_none_is_named_in_the_report(tmp_path: Path) -> None:
    stage = Stage(tmp_path, offered=WAITING, pull=True, ends=True)
    stage.messages += [UserText(text=PROMPT)]
    begun = stage.ask("s_root", stage.messages, 1, root=True)
    _answered(stage, begun)
    _answered(stage, stage.ask("s_root", stage.messages, 2, root=True))
    rows: list[dict[str, Any]] = [
        {"session_id": "s_child0", "status": "failed", "output": None},
        {"session_id": "s_child1", "status": "completed", "output": "- `a.md`: 1 lines"},
        {"session_id": "s_child2", "status": "completed", "result_state": "collected"},
    ]
    wait = stage.ask("s_root", stage.messages, 3, root=True)
    _answered(stage, wait, json.dumps({"items": rows, "timed_out": False}))
    report = stage.ask("s_root", stage.messages, 4, root=True).text
    assert "- Part 'layout': its explorer did not finish." in report
    assert "- Part 'code': its explorer had not answered when the report was due." in report
    assert "3 parts, 1 of them complete" in report


class HintingStage(Stage):
    """Adds to each answer of a spawn what the runtime adds where that very call was made three times in a row."""

    def spawn(self, call: RequestCall) -> ToolText:
        answer = super().spawn(call)
        hint = "\n[You made this very call 3 times in a row; once more ends your turn.]"
        return ToolText(call_id=answer.call_id, name=answer.name, text=answer.text + hint, error=answer.error)


def test_a_hint_below_an_answer_hides_neither_a_child_nor_the_code_of_a_refusal(tmp_path: Path) -> None:
    paths = three_folders(tmp_path)
    stage = HintingStage(tmp_path, offered=WAITING)
    stage.refuse = lambda count: "cap_running" if count - len(stage.ended) >= 1 else None
    report = stage.ask_once()
    assert_whole(report, paths)
    assert "3 parts: 3 by explorers, 0 looked at by the parent itself." in report


def _answered(stage: Stage, said: Finish, text: str | None = None, *, error: bool = False) -> None:
    """Put what the model said into the history, with the answers to its calls, or with another one."""
    number = len(stage.messages)
    calls = tuple(
        RequestCall(call_id=CallId(f"c_{number}_{n}"), name=c.name, arguments=json.loads(c.arguments))
        for n, c in enumerate(said.tool_calls)
    )
    stage.messages.append(AssistantText(text=said.text, tool_calls=calls))
    for call in calls:
        other = None if text is None else ToolText(call_id=call.call_id, name=call.name, text=text, error=error)
        stage.messages.append(other or stage.answer(call))


def _up_to_the_wait(stage: Stage, wait: str) -> None:
    """Play a job until its wait, which fails with this answer."""
    stage.messages.append(UserText(text=PROMPT))
    for number, text in enumerate((None, None, wait), start=1):
        said = stage.ask("s_root", stage.messages, number, root=True)
        _answered(stage, said, text, error=text is not None)
    assert stage.messages[-1] == ToolText(
        call_id=CallId(f"c_{len(stage.messages) - 2}_0"), name="wait_agent", text=wait, error=True
    )


def test_a_refused_wait_is_not_made_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path, offered=WAITING, pull=True, ends=True)
    _up_to_the_wait(stage, json.dumps(RetinueError("stopping", "It stops.", "").to_model()))
    assert "3 parts, 0 of them complete" in stage.turn("s_root", stage.messages, root=True)
    assert stage.waits == []


def test_after_an_interrupted_wait_a_prompt_goes_on_with_the_children_that_work_on(tmp_path: Path) -> None:
    paths = three_folders(tmp_path)
    stage = Stage(tmp_path, offered=WAITING, pull=True, ends=True)
    _up_to_the_wait(stage, "The outcome is unknown.")
    assert_whole(stage.ask_once("go on"), paths)
    assert len(stage.spawned) == 3


def test_children_of_a_stopped_turn_that_nobody_reaches_are_a_reason_to_begin_anew(tmp_path: Path) -> None:
    paths = three_folders(tmp_path)
    stage = Stage(tmp_path, offered=WAITING, pull=True, ends=True)
    _up_to_the_wait(stage, "The outcome is unknown.")
    stage.messages.append(UserText(text="again"))
    lost = RetinueError("not_found", "There is no run.", "").to_model()
    _answered(stage, stage.ask("s_root", stage.messages, 1, root=True), json.dumps(lost), error=True)
    assert_whole(stage.turn("s_root", stage.messages, root=True), paths)
    assert len(stage.spawned) == 6


def test_a_second_prompt_after_fetched_results_is_a_new_job(tmp_path: Path) -> None:
    stage = Stage(tmp_path, offered=WAITING, pull=True, ends=True)
    reports = [stage.ask_once(), stage.ask_once("again")]
    assert len(stage.spawned) == 6
    for number, report in enumerate(reports):
        assert re.findall(r"Explorer s_child(\d)", report) == [str(3 * number + part) for part in range(3)]
        assert "3 parts, 3 of them complete" in report


def test_the_wait_of_another_model_in_the_history_does_not_disturb(tmp_path: Path) -> None:
    stage = Stage(tmp_path, offered=WAITING, ends=True)
    for number, arguments in enumerate(({}, {"ids": "s_x"}, {"id": "s_x"})):
        call = RequestCall(call_id=CallId(f"c_{number}"), name="wait_agent", arguments=arguments)
        stage.messages.append(AssistantText(text="", tool_calls=(call,)))
        stage.messages.append(ToolText(call_id=call.call_id, name=call.name, text='{"items":[],"timed_out":false}'))
    assert "3 parts, 3 of them complete" in stage.ask_once()
