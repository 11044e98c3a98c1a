"""What went wrong elsewhere when the store is blocked, failing or damaged (B07, B49, B51, B56)."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from retinue.app import DATABASE
from retinue.control import METHODS
from retinue.core.errors import RetinueError
from retinue.core.events import Event, RunQueued, RunSettled, SessionOpened
from retinue.core.ids import RunId, SessionId
from retinue.ports import StoreError
from retinue.runtime.handles import Child, Session, Subagents
from retinue.runtime.kernel import Kernel
from retinue.stores.connection import BUSY_TIMEOUT_MS
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.checkers import all_events
from tests.e2e.kit import call, one_sentence, retinue, script
from tests.faults.kit import PAGE_BYTES, life, require_sound, root_in

HOUR_MS = 3_600_000
WAIT_S = 0.2
MARGIN_S = 2.0
"""Seconds that a busy machine may need on top of a bound."""
SLOW: tuple[dict[str, Any], ...] = (
    {"agent": "name:c1", "tool_calls": [call("spawn_agent", prompt="deeper", name="g1")]},
    {"agent": "child", "text": "late", "delay_ms": HOUR_MS},
    *({"agent": "name:c1", "text": "waits"} for _ in range(3)),
)


class Block:
    """Holds every commit from `shut` on until `open`, as a disk that hangs does."""

    def __init__(self) -> None:
        self._free = threading.Event()
        self._free.set()
        self.held = threading.Event()

    def shut(self) -> None:
        self._free.clear()

    def open(self) -> None:
        self._free.set()

    def __call__(self, _: int) -> None:
        if not self._free.is_set():
            self.held.set()
            self._free.wait(60)


@asynccontextmanager
async def _tree(
    folder: Path, block: Callable[[int], None]
) -> AsyncGenerator[tuple[Kernel, SessionId, Child, SessionId]]:
    """Give a root with a child at work, and a grandchild below it: the root's id, the child, the child's session id."""
    async with life(folder, SLOW, before_commit=block) as kernel:
        root = await root_in(kernel, folder, caps__max_depth=3)
        child = await Subagents(kernel).start("spawn", parent=root, prompt="x", name="c1")
        await _queued(kernel, root, "g1")
        yield kernel, root, child, child.session_id


async def _queued(kernel: Kernel, root: SessionId, name: str) -> RunId:
    """Return the id of a run of a tree once it is on record."""
    feed = kernel.bus.subscribe(root)
    # What is on record already comes first; a reader passes over what it gets twice.
    for event in await kernel.record.tail(0, root):
        feed.push(event)
    try:
        async for item in feed:
            if isinstance(item, Event) and isinstance(item.fact, RunQueued) and item.fact.name == name:
                return item.fact.run_id
    finally:
        feed.close()
    raise AssertionError("the feed ended")


@pytest.mark.parametrize("asker", ["main", "child"])
def test_B56_a_wait_keeps_its_bound_while_the_store_takes_no_commit(tmp_path: Path, asker: str) -> None:
    block = Block()

    async def main() -> None:
        async with _tree(tmp_path, block) as (kernel, root, child, below):
            inside = asker == "child"
            block.shut()
            try:
                # Something is on its way to the disk and hangs there: what is asked now stands behind it.
                blocked = asyncio.ensure_future(
                    Subagents(kernel).start("spawn", parent=below if inside else root, prompt="y")
                )
                await asyncio.to_thread(block.held.wait)
                (waited_for,) = kernel.scheduler.open_runs(below)[:1] if inside else (child.run_id,)
                began = time.monotonic()
                waited = await kernel.scheduler.wait([waited_for], "all", WAIT_S)
                ask = {"ids": [waited_for], "mode": "any", "timeout_s": WAIT_S}
                body = await METHODS["runs.wait"](kernel, ask)
                took = time.monotonic() - began
                assert (waited.timed_out, waited.runs[0].status, body["timed_out"]) == (True, "running", True)
                assert body["items"][0]["status"] == "running"
                assert 2 * WAIT_S <= took <= 2 * WAIT_S + MARGIN_S
                assert not blocked.done()
            finally:
                block.open()
            assert (await blocked).run_id

    asyncio.run(main())
    require_sound(tmp_path)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("abandoned", [False, True])
def test_B56_a_spawn_answers_when_the_store_does_and_leaves_nothing_half_done(
    tmp_path: Path, abandoned: bool, inside: bool
) -> None:
    block = Block()

    async def main() -> str:
        async with _tree(tmp_path, block) as (kernel, root, _, below):
            parent = below if inside else root
            block.shut()
            spawn = asyncio.ensure_future(Subagents(kernel).start("spawn", parent=parent, prompt="y", name="new"))
            await asyncio.to_thread(block.held.wait)
            assert not spawn.done()
            if abandoned:
                spawn.cancel()
                await asyncio.wait([spawn])
                block.open()
                (run,) = [run for run in await kernel.scheduler.children(parent) if run.name == "new"]
                await kernel.scheduler.ended([run.run_id])
                return (await kernel.scheduler.run(run.run_id)).status
            block.open()
            return (await kernel.scheduler.run((await spawn).run_id)).status

    assert asyncio.run(main()) == ("cancelled" if abandoned else "running")
    events = require_sound(tmp_path)
    (queued,) = [event.fact for event in events if isinstance(event.fact, RunQueued) and event.fact.name == "new"]
    (settled,) = [event.fact for event in events if isinstance(event.fact, RunSettled) and event.fact.name == "new"]
    opened = {event.session_id for event in events if isinstance(event.fact, SessionOpened)}
    assert settled.run_id == queued.run_id
    assert (queued.child_id in opened) == (settled.started_at is not None)


def test_B56_a_spawn_while_another_process_holds_the_stores_lock_answers_once_it_is_free(tmp_path: Path) -> None:
    async def main() -> str:
        async with _tree(tmp_path, lambda _: None) as (kernel, root, _, _):
            other = apsw.Connection(str(tmp_path / DATABASE))
            other.execute("BEGIN IMMEDIATE")
            spawn = asyncio.ensure_future(Subagents(kernel).start("spawn", parent=root, prompt="y", name="new"))
            waited = await kernel.scheduler.wait(kernel.scheduler.open_runs(root)[:1], "all", WAIT_S)
            assert (waited.timed_out, spawn.done()) == (True, False)
            other.execute("ROLLBACK")
            other.close()
            return (await kernel.scheduler.run((await spawn).run_id)).status

    assert asyncio.run(main()) == "running"
    require_sound(tmp_path)


def test_B56_a_store_lock_that_stays_held_is_a_clear_error_within_seconds(tmp_path: Path) -> None:
    async def main() -> tuple[RetinueError, float]:
        async with _tree(tmp_path, lambda _: None) as (kernel, root, _, _):
            other = apsw.Connection(str(tmp_path / DATABASE))
            other.execute("BEGIN IMMEDIATE")
            began = time.monotonic()
            with pytest.raises(RetinueError) as refused:
                await Subagents(kernel).start("spawn", parent=root, prompt="y", name="new")
            took = time.monotonic() - began
            other.close()
            return refused.value, took

    error, took = asyncio.run(main())
    assert (error.code, "is locked by another process" in error.detail) == ("store_failed", True)
    assert took <= BUSY_TIMEOUT_MS / 1000 + MARGIN_S
    asyncio.run(_start(tmp_path))
    events = require_sound(tmp_path)
    assert not [event for event in events if isinstance(event.fact, RunQueued) and event.fact.name == "new"]


async def _start(folder: Path) -> None:
    async with life(folder, SLOW):
        pass


# ----------------------------------------------------------------------------------------------- B07: a result unstored

WAITING: tuple[dict[str, Any], ...] = (
    {"agent": "parent", "n": 1, "tool_calls": [call("spawn_agent", prompt="x", name="c1")]},
    {"agent": "parent", "n": 2, "tool_calls": [call("wait_agent", timeout_s=600)]},
    *({"agent": "parent", "n": n, "text": "the answer"} for n in (3, 4)),
    {"agent": "name:c1", "n": 1, "tool_calls": [call("spawn_agent", prompt="y", name="g1")]},
    {"agent": "name:c1", "n": 2, "tool_calls": [call("wait_agent", timeout_s=600)]},
    *({"agent": "name:c1", "n": n, "text": "the text of c1"} for n in (3, 4)),
    {"agent": "name:g1", "text": "the text of g1", "delay_ms": 5},
)


@pytest.mark.parametrize("whose", ["c1", "g1"])
def test_B07_a_result_that_cannot_be_stored_ends_every_wait_with_the_stores_error(tmp_path: Path, whose: str) -> None:
    kernels: list[Kernel] = []

    def fail_at_its_end(_: int) -> None:
        runs = kernels[0].journal.state.runs.values() if kernels else ()
        if any(run.name == whose and run.status == "completed" for run in runs):
            raise StoreError("The store x could not be written: the disk is full.")

    async def main() -> None:
        async with life(tmp_path, WAITING, before_commit=fail_at_its_end) as kernel:
            kernels.append(kernel)
            root = await root_in(kernel, tmp_path, caps__max_depth=3)
            turn = Session(kernel, root).prompt("go")
            run_id = await _queued(kernel, root, whose)
            waiting = asyncio.ensure_future(kernel.scheduler.wait([run_id], "all", 600))
            result = await turn.result
            assert (result.status, result.reason, result.stored) == ("failed", "store_failed", False)
            assert "the disk is full" in result.detail
            with pytest.raises(RetinueError, match="the disk is full"):
                await waiting
            with pytest.raises(RetinueError, match="the disk is full"):
                await Subagents(kernel).start("spawn", parent=root, prompt="more")

    asyncio.run(main())
    asyncio.run(_start(tmp_path))
    events = require_sound(tmp_path)
    ended = {event.fact.name: event.fact.reason for event in events if isinstance(event.fact, RunSettled)}
    assert ended[whose] == "restart", "what was never stored never happened"


# -------------------------------------------------------------------------- B49, B51: their counterpart in one database


def _made(folder: Path) -> tuple[str, list[Event]]:
    """Make a record of a session large enough to have many pages, and return its id and events."""
    lines = [
        {"n": n, "text": f"{n} " + "word " * 3000, "tool_calls": [call("list_dir", path=".")]} for n in range(1, 8)
    ]
    model = script(folder, *lines, {"n": 8, "text": "the end"}, {"n": 9, "text": "once more"})
    root = retinue(folder, "run", "--model", model, "go", "--json").lines()[0]["session_id"]
    return root, require_sound(folder / ".retinue")


@pytest.mark.parametrize("damage", ["nul", "half"])
def test_B49_a_damaged_page_is_loud_and_never_an_empty_or_shorter_session(tmp_path: Path, damage: str) -> None:
    _, whole = _made(tmp_path)
    database = tmp_path / ".retinue" / DATABASE
    data = database.read_bytes()
    loud = 0
    for page in range(len(data) // PAGE_BYTES):
        place = tmp_path / damage / str(page)
        place.mkdir(parents=True)
        start, end = page * PAGE_BYTES, (page + 1) * PAGE_BYTES
        harmed = data[:start] + bytes(PAGE_BYTES) + data[end:] if damage == "nul" else data[:start]
        (place / DATABASE).write_bytes(harmed)
        if not harmed:
            continue
        found = _events_or_why(place / DATABASE)
        assert str(place) in found if isinstance(found, str) else found == whole, (page, found)
        loud += isinstance(found, str)
        assert (place / DATABASE).stat().st_size == len(harmed), "what is damaged is left as it is"
    assert loud > 10


def _events_or_why(database: Path) -> list[Event] | str:
    """Return every event, or why they cannot be read."""
    try:
        store = SQLiteStore(database)
    except StoreError as error:
        return str(error)
    try:
        return all_events(store)
    except StoreError as error:
        return str(error)
    finally:
        store.close()


def test_B51_a_half_an_empty_or_a_truncated_record_is_refused_by_name_and_never_overwritten(tmp_path: Path) -> None:
    root, _ = _made(tmp_path)
    database = tmp_path / ".retinue" / DATABASE
    log = tmp_path / ".retinue" / f"{DATABASE}-wal"
    whole = database.read_bytes()
    half = whole[: len(whole) // 2]
    for content, rest in ((half, b""), (whole[:-1], b""), (whole[: PAGE_BYTES + 7], b""), (b"", b"not empty")):
        database.write_bytes(content)
        log.write_bytes(rest)
        for arguments in (("run", "--continue", "go on"), ("sessions", "show", root), ("sessions", "list")):
            ran = retinue(tmp_path, *arguments)
            if ran.code == 0:
                assert content == whole[:-1], "only the very last byte may be one that nothing needs"
                continue
            assert (ran.code, DATABASE in one_sentence(ran)) == (5, True), (len(content), arguments, ran)
        if content != whole[:-1]:
            assert (database.read_bytes(), log.read_bytes()) == (content, rest)
