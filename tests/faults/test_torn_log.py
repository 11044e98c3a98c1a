"""The whole runtime on a write-ahead log that was torn: what is shown afterwards agrees with the log that is left."""

import asyncio
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from retinue.app import DATABASE
from retinue.core.events import Event, RunSettled, TurnClosed
from retinue.runtime.handles import Session
from retinue.stores.sqlite import open_reading
from retinue.testing.checkers import all_events
from tests.e2e.kit import call, retinue
from tests.faults.kit import life, require_sound, root_in

WAL = f"{DATABASE}-wal"
CUTS = 40
SHOWN = 4
SCRIPT: tuple[dict[str, Any], ...] = (
    {
        "agent": "parent",
        "n": 1,
        "tool_calls": [call("spawn_agent", prompt="look", name=name) for name in ("one", "two", "three")],
    },
    *({"agent": "parent", "n": n, "text": f"answer {n}"} for n in range(2, 6)),
    {"agent": "child", "n": 1, "tool_calls": [call("list_agents")]},
    {"agent": "child", "n": 2, "text": "the text of a child " * 200, "delay_ms": 5},
)


@pytest.fixture(scope="module")
def torn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Event]]:
    """A database and its log as a power cut leaves them after two turns, and the events they hold."""
    folder = tmp_path_factory.mktemp("torn")
    (folder / "live").mkdir()

    async def main() -> None:
        async with life(folder / "live", SCRIPT) as kernel:
            for _ in range(2):
                await Session(kernel, await root_in(kernel, folder)).prompt("go").result
            for name in (DATABASE, WAL):
                shutil.copy(folder / "live" / name, folder / name)

    asyncio.run(main())
    return folder, require_sound(folder / "live")


def _cut(torn: Path, folder: Path, size: int, *, garbled: bool) -> list[Event]:
    """Copy the files with the log cut (or garbled from there on) and return the events that are left to be read."""
    folder.mkdir()
    shutil.copy(torn / DATABASE, folder / DATABASE)
    data = (torn / WAL).read_bytes()
    tail = bytes(byte ^ 0x5A for byte in data[size : size + 512]) if garbled else b""
    (folder / WAL).write_bytes(data[:size] + tail)
    store = open_reading(folder / DATABASE)
    left = all_events(store)
    store.close()
    return left


async def _start(folder: Path) -> None:
    async with life(folder, SCRIPT):
        pass


@pytest.mark.parametrize("garbled", [False, True])
def test_after_any_tear_the_start_closes_what_is_open_and_rows_and_log_agree(
    torn: tuple[Path, list[Event]], tmp_path: Path, garbled: bool
) -> None:
    folder, whole = torn
    chance = random.Random(f"tear {garbled}")
    size = (folder / WAL).stat().st_size
    lengths: set[int] = set()
    for number in range(CUTS):
        place = tmp_path / str(number)
        left = _cut(folder, place, chance.randrange(8192, size), garbled=garbled)
        if not left:
            continue
        assert left == whole[: len(left)], "what is left is the beginning of what was"
        asyncio.run(_start(place))
        events = require_sound(place, left)
        lengths.add(len(left))
        later = [event.fact for event in events[len(left) :]]
        assert {fact.reason for fact in later if isinstance(fact, RunSettled | TurnClosed)} <= {"restart"}
    assert len(lengths) > CUTS // 4


def test_sessions_show_after_a_tear_agrees_with_the_log(torn: tuple[Path, list[Event]], tmp_path: Path) -> None:
    folder, _ = torn
    size = (folder / WAL).stat().st_size
    for number in range(1, SHOWN + 1):
        place = tmp_path / str(number)
        left = _cut(folder, place, size * number // SHOWN - 100, garbled=False)
        flags = ("--data-dir", str(place), "--json")
        rows = retinue(tmp_path, "sessions", "list", *flags).document()["items"]
        shown = [retinue(tmp_path, "sessions", "show", row["session_id"], *flags).document() for row in rows[:1]]
        events = require_sound(place, left)
        assert shown == rows[:1]
        for row in rows:
            _require_agrees(row, [event for event in events if event.session_id == row["session_id"]])


def _require_agrees(row: dict[str, Any], log: Sequence[Event]) -> None:
    closed = [event.fact for event in log if isinstance(event.fact, TurnClosed)]
    last = closed[-1] if closed else None
    assert (row["status"], row["stored_events"], row["updated_at"]) == ("idle", len(log), log[-1].time)
    assert row["turns"] == len(closed)
    assert row["last_turn"] == (None if last is None else {"status": last.status, "reason": last.reason})
