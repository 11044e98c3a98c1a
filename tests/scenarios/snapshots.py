"""Processes to be killed: one rewrites a run's row at full speed, one delegates; and one that recovers. No test."""

import asyncio
import os
import sys
from pathlib import Path

import retinue
from retinue.core.events import Event
from retinue.core.ids import RunId
from retinue.models.scripted import ScriptedModel
from retinue.ports import Batch
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.samples import Numbering, run, session_row

RUN = RunId("r_1")
"""The run whose snapshot is rewritten."""
TEXT_CHARS = 40_000
SPAWNS = [{"name": "spawn_agent", "arguments": {"prompt": "p", "name": name}} for name in ("quick", "slow", "slower")]
SCRIPT = [
    {"agent": "parent", "tool_calls": SPAWNS},
    {"agent": "parent", "text": "ok"},
    {"_ctl": "repeat_last"},
    {"agent": "name:quick", "text": "found"},
    {"agent": "child", "text": "never", "delay_ms": 60_000},
]


def text_of(version: int) -> str:
    """Return the text of a snapshot: every part of it tells its version."""
    part = f"{version:08d} "
    return part * (TEXT_CHARS // len(part))


def rewrite(path: Path) -> None:
    """Write version after version of the run's row, each with one event, and say each that is durable."""
    store = SQLiteStore(path)
    numbers = Numbering(store.position())
    numbers.resume(session_row().session_id, store.position())
    while True:
        said = numbers.says("a new version")
        row = run(1, steps=numbers.position, partial=text_of(numbers.position))
        store.commit([Batch(events=(said,), runs=(row,), sessions=(session_row(),))])
        os.write(1, b"%d\n" % numbers.position)


async def delegate(folder: Path) -> None:
    """Delegate to children that take a minute, and say each durable event."""
    async with retinue.open(folder / "data", model=ScriptedModel(SCRIPT)) as runtime:
        root = await runtime.create_session(cwd=folder)
        async for event in root.prompt("go"):
            assert isinstance(event, Event)
            os.write(1, b"%d\n" % event.position)


async def recover(folder: Path) -> None:
    """Start over what was left, and end."""
    async with retinue.open(folder / "data", model="offline"):
        pass


def main(what: str, path: Path) -> None:
    """Do what the test asked for."""
    if what == "rewrite":
        rewrite(path)
    else:
        asyncio.run(delegate(path) if what == "delegate" else recover(path))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
