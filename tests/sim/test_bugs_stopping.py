"""Delivery to a parent that has said its last word, and stops that reach exactly whom they should (B05, B22, B25)."""

from datetime import datetime
from typing import Any

import pytest

from retinue.core.events import Event, LetterAbsorbed, LetterQueued, RunSettled, StepOpened, ToolFinished, TurnClosed
from retinue.core.ids import SessionId
from retinue.models.scripted import ScriptedModel
from retinue.runtime.kernel import INTERRUPTED, Kernel
from retinue.runtime.scheduler import CANCELLED
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.checkers import all_events, check_all
from retinue.testing.fakes import RecordingModel
from retinue.testing.world import World, run_world
from tests.sim.lives import kernel_in, open_root

LONG_MS = 60_000
WHERE = ("main session", "inside a child")


def spawn(name: str, **more: Any) -> dict[str, Any]:
    return {"name": "spawn_agent", "arguments": {"prompt": f"work as {name}", "name": name, **more}}


def placed(where: str, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Let the lines of `boss` be those of the main session, or of its one child."""
    if where == "main session":
        return [{**line, "agent": "parent"} if line["agent"] == "name:boss" else line for line in lines]
    main = [{"agent": "parent", "tool_calls": [spawn("boss")]}, *({"agent": "parent", "text": "ok"} for _ in range(4))]
    return [*main, *lines]


class Stage:
    """One life with a recording model."""

    def __init__(self, world: World, store: SQLiteStore, lines: list[dict[str, Any]]) -> None:
        self.world = world
        self.model = RecordingModel(ScriptedModel(lines, sleep=world.clock.sleep))
        self.kernel: Kernel = kernel_in(world, store, self.model)

    async def begin(self) -> SessionId:
        await self.kernel.start()
        root = await open_root(self.kernel, {"caps.max_depth": 2})
        await self.kernel.prompt(root, "go")
        return root

    async def asked(self, *names: str) -> None:
        """Wait until each of these has sent a request."""
        while not set(names) <= {request.name for request in self.model.requests}:
            await self.world.clock.sleep(0.01)

    def session(self, name: str) -> SessionId:
        return next(request.session_id for request in self.model.requests if request.name == name)

    async def end(self, root: SessionId) -> None:
        work = self.kernel.supervisor.works.get(root)
        if work is not None:
            await work.done.wait()
        await self.kernel.close()


def facts(events: list[Event], kind: type[Any]) -> list[Any]:
    return [event.fact for event in events if isinstance(event.fact, kind)]


@pytest.mark.parametrize("where", WHERE)
def test_B05_a_result_that_comes_after_the_parents_last_word_is_handed_over_at_once(where: str) -> None:
    lines = [
        {"agent": "name:boss", "tool_calls": [spawn("kid")]},
        {"agent": "name:boss", "text": "That is all from me."},
        {"agent": "name:boss", "text": "The kid says seven."},
        {"agent": "name:kid", "text": "seven", "delay_ms": 3000},
    ]
    store = SQLiteStore(":memory:")

    async def main(world: World) -> None:
        stage = Stage(world, store, placed(where, lines))
        await stage.end(await stage.begin())

    run_world(main, 1)
    events = all_events(store)
    assert check_all(events) == []
    kid = next(fact for fact in facts(events, RunSettled) if fact.name == "kid")
    queued = next(event for event in events if isinstance(event.fact, LetterQueued) and event.fact.run_id == kid.run_id)
    absorbed = next(
        event for event in events if isinstance(event.fact, LetterAbsorbed) and event.fact.run_id == kid.run_id
    )
    assert absorbed.session_id == queued.session_id
    assert (datetime.fromisoformat(absorbed.time) - datetime.fromisoformat(queued.time)).total_seconds() < 2
    texts = [fact.text for fact in facts(events, TurnClosed)]
    assert "The kid says seven." in texts


@pytest.mark.parametrize("where", WHERE)
def test_B22_stopping_a_turn_closes_its_childrens_streams_and_sends_nothing_more(where: str) -> None:
    lines = [
        {"agent": "name:boss", "tool_calls": [spawn("one"), spawn("two")]},
        {"agent": "name:boss", "text": "waiting"},
        {"agent": "name:one", "text": "never", "delay_ms": LONG_MS},
        {"agent": "name:two", "text": "never", "delay_ms": LONG_MS},
    ]
    store = SQLiteStore(":memory:")

    async def main(world: World) -> tuple[float, int, int]:
        stage = Stage(world, store, placed(where, lines))
        root = await stage.begin()
        await stage.asked("one", "two")
        stopped_s = world.clock.monotonic()
        boss = root if where == "main session" else stage.session("boss")
        await stage.kernel.interrupt(boss, INTERRUPTED)
        took_s = world.clock.monotonic() - stopped_s
        below = [r for r in stage.model.requests if r.name in ("one", "two")]
        await world.clock.sleep(2 * LONG_MS / 1000)
        later = [r for r in stage.model.requests if r.name in ("one", "two")]
        await stage.end(root)
        return took_s, len(below), len(later)

    took_s, before, after = run_world(main, 1).value or (9.0, 0, 0)
    assert took_s < 1
    assert (before, after) == (2, 2)
    events = all_events(store)
    assert check_all(events) == []
    ended = {fact.name: (fact.status, fact.reason) for fact in facts(events, RunSettled)}
    assert ended["one"] == ended["two"] == ("cancelled", "parent_cancelled")


@pytest.mark.parametrize("where", WHERE)
def test_B25_a_wait_on_a_child_that_is_cancelled_in_its_stream_returns_cancelled(where: str) -> None:
    lines = [
        {"agent": "name:boss", "tool_calls": [spawn("kid")]},
        {"agent": "name:boss", "tool_calls": [{"name": "wait_agent", "arguments": {"timeout_s": 3600}}]},
        *({"agent": "name:boss", "text": "went on"} for _ in range(3)),
        {"agent": "name:kid", "text": "never", "delay_ms": LONG_MS},
    ]
    store = SQLiteStore(":memory:")

    async def main(world: World) -> None:
        stage = Stage(world, store, placed(where, lines))
        root = await stage.begin()
        await stage.asked("kid")
        scheduler = stage.kernel.scheduler
        run_id = await scheduler.resolve(stage.session("kid"), None)
        await scheduler.cancel(run_id, CANCELLED)
        await stage.end(root)

    run_world(main, 1)
    events = all_events(store)
    assert check_all(events) == []
    waits = [fact.text for fact in facts(events, ToolFinished) if '"timed_out"' in fact.text]
    assert len(waits) == 1
    assert '"status":"cancelled"' in waits[0]
    assert '"timed_out":false' in waits[0]
    assert all(fact.status == "completed" for fact in facts(events, TurnClosed) if fact.text == "went on")
    assert facts(events, StepOpened)
