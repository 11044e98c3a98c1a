"""The disk fills up at each commit of a delegating run: one sentence, nothing committed lost, the text handed over."""

import asyncio
import shutil
from pathlib import Path
from typing import Any

from retinue.app import DATABASE
from retinue.core.errors import RetinueError
from retinue.core.events import Event
from retinue.runtime.handles import Session, TurnResult
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.checkers import all_events
from tests.e2e.kit import Ran, call, of_type, one_sentence, retinue, script
from tests.faults.kit import empty, fill, life, require_sound, root_in, small_disk

SCRIPT: tuple[dict[str, Any], ...] = (
    {
        "agent": "parent",
        "n": 1,
        "text": "I ask two.",
        "tool_calls": [call("spawn_agent", prompt="look", name=name, mode="await") for name in ("one", "two")],
    },
    {"agent": "parent", "n": 2, "text": "the finished text of the parent"},
    {"agent": "child", "n": 1, "tool_calls": [call("list_agents")]},
    {"agent": "child", "n": 2, "text": "the finished text of a child"},
)
FINISHED = "the finished text of the parent"
TOLD = ("turn.closed", "failed", "store_failed", False)
LEFT_KIB = (0, 4, 80, *range(140, 1400, 70))
COMMITS_LEAST = 10


def _play(folder: Path, full_at: int | None) -> tuple[TurnResult | None, int, str]:
    """Play a life whose disk is full from a commit on; return the ending, the commits asked for, and the refusal."""
    commits = 0

    def before_commit(number: int) -> None:
        nonlocal commits
        commits = number
        if number == full_at:
            fill(folder.parent)

    async def main() -> TurnResult:
        async with life(folder, SCRIPT, before_commit=before_commit) as kernel:
            root = await root_in(kernel, folder)
            return await Session(kernel, root).prompt("go").result

    try:
        return asyncio.run(main()), commits, ""
    except RetinueError as error:  # where no turn could be opened the refusal is the answer
        return None, commits, str(error)


def _events_of(folder: Path) -> list[Event]:
    store = SQLiteStore(folder / DATABASE)
    events = all_events(store)
    store.close()
    return events


async def _start_again(folder: Path) -> str:
    """Start with the space given back: what was open is closed, and a further turn goes on behind it."""
    async with life(folder, SCRIPT) as kernel:
        root = await root_in(kernel, folder)
        return str((await Session(kernel, root).prompt("go").result).text)


def test_B47_a_disk_that_is_full_at_any_commit_loses_nothing_committed_and_no_finished_text(tmp_path: Path) -> None:
    texts: set[str | None] = set()
    with small_disk(tmp_path / "disk") as disk:
        (disk / "whole").mkdir()
        result, commits, _ = _play(disk / "whole", None)
        assert result is not None
        assert (result.text, commits >= COMMITS_LEAST) == (FINISHED, True)
        shutil.rmtree(disk / "whole")
        for number in range(1, commits + 1):
            folder = disk / str(number)
            folder.mkdir()
            result, asked, refusal = _play(folder, number)
            # Groups differ a little from life to life: the last commits may not be asked for at all.
            assert asked == number or (asked < number and result is not None and result.stored)
            if result is None or not result.stored:
                assert "the disk is full" in (refusal if result is None else result.detail)
                texts.add(result.text if result is not None else None)
            empty(disk)
            before = _events_of(folder)
            assert asyncio.run(_start_again(folder)) == FINISHED
            require_sound(folder, before)
            shutil.rmtree(folder)
    assert texts == {None, FINISHED}, "the turn's text was finished when its ending could not be stored"


def test_a_command_on_a_full_disk_ends_with_5_one_sentence_and_a_last_line_that_says_not_stored(tmp_path: Path) -> None:
    model = script(tmp_path, *SCRIPT)
    failed = 0
    with small_disk(tmp_path / "disk") as disk:
        for leave in LEFT_KIB:
            flags = ("--data-dir", str(disk / "data"))
            fill(disk, leave * 1024)
            ran = retinue(tmp_path, "run", *flags, "--model", model, "go", "--json")
            if ran.code == 0:
                break
            sentence = one_sentence(ran) if not of_type(ran.lines(), "turn.opened") else ""
            last = ran.lines()[-1]
            assert (ran.code, "disk" in sentence + str(last.get("detail"))) == (5, True), ran
            empty(disk)
            if not sentence:
                failed += 1
                _require_unstored(tmp_path, flags, ran)
            shutil.rmtree(disk / "data", ignore_errors=True)
        else:
            raise AssertionError("it never had enough space")
    assert failed >= 3


def _require_unstored(folder: Path, flags: tuple[str, ...], ran: Ran) -> None:
    *stored, last = ran.lines()
    assert (last["type"], last["status"], last["reason"], last["stored"]) == TOLD
    assert not {"seq", "position"} & set(last)
    shown = retinue(folder, "sessions", "show", last["session_id"], *flags, "--json").document()
    assert (shown["status"], shown["last_turn"]) == ("idle", {"status": "interrupted", "reason": "restart"})
    assert shown["stored_events"] >= sum(line["session_id"] == last["session_id"] for line in stored)
    runs = retinue(folder, "runs", "list", *flags, "--json").document()["items"]
    known = {line["run_id"]: line for line in of_type(stored, "run.settled")}
    for run in runs:
        assert run["status"] == known.get(run["run_id"], {"status": "interrupted"})["status"]
    assert retinue(folder, "run", "--session", last["session_id"], *flags, "go on").code in (0, 1)
