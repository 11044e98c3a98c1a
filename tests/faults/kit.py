"""The whole runtime on real parts (loop, clock, threads, SQLite on a file) with one part replaced; it holds no test."""

import errno
import os
import subprocess
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from retinue.app import DATABASE, RandomIds, RealClock, ThreadExecutor
from retinue.core.ids import SessionId
from retinue.core.policy import named, with_changes
from retinue.models.scripted import ScriptedModel
from retinue.ports import Clock, Model, Store, Tool
from retinue.runtime.kernel import Kernel, NewSession, Parts
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.checkers import all_events, check_all, check_kept, check_projections
from retinue.testing.fakes import BareSurroundings, OneModel
from retinue.testing.faults import FaultyStore
from retinue.tools.agents import agent_tools
from tests.sim.lives import TEXTS, OnlyTheWorker

DISK_BYTES = 2 * 1024 * 1024
PAGE_BYTES = 4096
Line = Mapping[str, Any]


class HookedStore(FaultyStore):
    """A real store that does something of the test's before each commit."""

    def __init__(self, inner: Store, before_commit: Callable[[int], None]) -> None:
        super().__init__(inner)
        self._before_commit = before_commit

    def commit(self, batches: Sequence[Any]) -> None:
        self._before_commit(self.commits + 1)
        super().commit(batches)


@asynccontextmanager
async def life(
    folder: Path,
    model: Model | Sequence[Line],
    *,
    before_commit: Callable[[int], None] | None = None,
    clock: Clock | None = None,
    tools: Sequence[Tool] = (),
    **more: Any,
) -> AsyncGenerator[Kernel]:
    """Give a started kernel over the database of a folder; leaving closes it, and the store after it."""
    executor = ThreadExecutor()
    inner = await executor.run(SQLiteStore, folder / DATABASE)
    store = inner if before_commit is None else HookedStore(inner, before_commit)
    parts = Parts(
        store=store,
        executor=executor,
        clock=clock or RealClock(),
        ids=RandomIds(),
        models=OneModel(ScriptedModel(model) if isinstance(model, Sequence) else model),
        definitions=OnlyTheWorker(),
        surroundings=BareSurroundings(),
        texts=TEXTS,
        data_dir=str(folder),
        tools=lambda kernel: (*tools, *agent_tools(kernel)),
        **more,
    )
    kernel = Kernel(parts, store.position())
    try:
        await kernel.start()
        try:
            yield kernel
        finally:
            await kernel.close()
    finally:
        await executor.run(inner.close)
        executor.close()


async def root_in(kernel: Kernel, folder: Path, **policy: Any) -> SessionId:
    """Open a root session; switches as `caps__running__root=2`."""
    changes = {name.replace("__", "."): value for name, value in policy.items()}
    chosen = with_changes(named("standard"), changes, in_code=True)
    return await kernel.create_session(NewSession(cwd=str(folder), model="any:model", policy=chosen))


def require_sound(folder: Path, before: Sequence[Any] = ()) -> list[Any]:
    """Read the record anew: whole, at rest, rows as the log says, nothing of `before` lost. Return its events."""
    store = SQLiteStore(folder / DATABASE)
    try:
        events = all_events(store)
        assert store.check() is None
        assert check_kept(before, events) == []
        assert check_all(events) == []
        assert check_projections(store) == []
        return events
    finally:
        store.close()


@contextmanager
def small_disk(place: Path, size: int = DISK_BYTES) -> Generator[Path]:
    """Mount a small tmpfs; skip visibly where that is not allowed, fail where `CI` is set."""
    place.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        why = f"needs the right to mount a small tmpfs: {mounted.stderr.strip()}"
        if os.environ.get("CI"):
            pytest.fail(why)
        pytest.skip(why)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def fill(disk: Path, leave: int = 0) -> None:
    """Take all space of a disk but `leave` bytes, rounded down to its pages."""
    with (disk / "filler").open("ab", buffering=0) as filler:
        try:
            while True:
                filler.write(bytes(PAGE_BYTES))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        size = filler.seek(0, os.SEEK_END)
        os.ftruncate(filler.fileno(), max(0, size - leave) // PAGE_BYTES * PAGE_BYTES)


def empty(disk: Path) -> None:
    """Give the space back; idempotent."""
    (disk / "filler").unlink(missing_ok=True)
