"""Scenarios S141 and S142: what a kill leaves, and what a restart does with it."""

import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from retinue.app import DATABASE
from retinue.core.events import Event, RunQueued, RunSettled, RunStarted, TurnOpened
from retinue.core.ids import SessionId
from retinue.ports import Finish, ModelRequest, ToolText
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.checkers import all_events, check_all, check_kept, check_projections
from retinue.testing.simloop import SimCrash
from tests.scenarios import snapshots
from tests.scenarios.stage import (
    AGAIN,
    PULLING,
    FunctionModel,
    Stage,
    Theatre,
    body_of,
    call,
    calls,
    child,
    each_seed,
    letters_in,
    parent,
    places,
    says,
    script,
    spawn,
    under_each,
)

KILLS = 8
REPOSITORY = Path(__file__).resolve().parents[2]


async def _lists_once(request: ModelRequest) -> Finish:
    """Look at the children, then stop; nobody but the root is to ask."""
    assert request.root
    return says("ok") if isinstance(request.messages[-1], ToolText) else calls(call("list_agents"))


@under_each("standard", "roster")
@each_seed
def test_S141_a_run_found_running_at_restart_is_interrupted_and_never_re_run(seed: int, under: str) -> None:
    theatre = Theatre(seed=seed)

    async def killed(stage: Stage) -> None:
        await stage.kernel.prompt(await stage.root({"caps.running.root": 1}, under), "go")
        await stage.until(lambda events: bool(places(events, RunStarted)) and len(places(events, RunQueued)) == 2)
        await stage.world.clock.sleep(stage.world.rng.random() * 2)
        raise SimCrash

    async def later(stage: Stage) -> SessionId:
        (root,) = {event.root_id for event in stage.events()}
        await stage.world.clock.sleep(100.0)  # long enough for anything that would be re-run
        assert stage.model.seen == []
        await stage.turn(root, "continue")
        return root

    lines = (
        parent("", spawn("running"), spawn("queued")),
        parent("ok"),
        AGAIN,
        child(None, "found", delay_ms=5_000),
    )
    first = theatre.live(script(*lines), killed)
    assert first.crashed
    life = theatre.live(lambda _: FunctionModel(_lists_once), later)
    for name in ("running", "queued"):
        settled = life.settled(name)
        assert (settled.status, settled.reason, settled.output) == ("interrupted", "restart", None)
        assert life.asked(name) == []
    assert [fact.name for fact in life.told(RunStarted)] == [fact.name for fact in first.told(RunStarted)]
    children = [fact for fact in life.told(TurnOpened) if fact.run_id is not None]
    assert len(children) == 1
    if under in PULLING:
        assert letters_in(life.asked()[0]) == []
        rows = body_of(life.answers(1)[0])["items"]
        assert {row["name"]: row["status"] for row in rows} == dict.fromkeys(("running", "queued"), "interrupted")
    else:
        assert len(letters_in(life.asked()[0])) == 2
    root_id = first.told(RunQueued)[0].root_id
    third = theatre.live(lambda _: FunctionModel(_lists_once), lambda stage: stage.turn(root_id, "and again"))
    assert len(third.told(RunSettled)) == 2
    assert third.asked("running") + third.asked("queued") == []


@pytest.mark.parametrize(("under", "policy"), [("standard", {"life.on_restart": "cancelled"}), ("guarded", {})])
def test_S141_under_on_restart_cancelled_the_same_run_reads_cancelled(under: str, policy: dict[str, Any]) -> None:
    theatre = Theatre()

    async def killed(stage: Stage) -> None:
        await stage.kernel.prompt(await stage.root(policy, under), "go")
        await stage.until(lambda events: bool(places(events, RunStarted)))
        raise SimCrash

    async def later(_: Stage) -> None:
        """Only start and end."""

    lines = (parent("", spawn("kid")), parent("ok"), AGAIN, child(None, "found", delay_ms=5_000))
    theatre.live(script(*lines), killed)
    settled = theatre.live(script(*lines), later).settled("kid")
    assert (settled.status, settled.reason) == ("cancelled", "restart")


def _killed(what: str, path: Path, lines_min: int) -> int:
    """Let a process write, kill it with SIGKILL, and return the last number that it said."""
    command = [sys.executable, "-m", snapshots.__name__, what, str(path)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=REPOSITORY)
    assert writer.stdout is not None
    with writer, writer.stdout:
        lines = [writer.stdout.readline() for _ in range(lines_min)]
        writer.kill()
        lines += writer.stdout.readlines()
    assert writer.returncode == -signal.SIGKILL
    return int([line for line in lines if line.endswith(b"\n")][-1])


def test_S142_after_a_kill_during_a_snapshot_write_the_row_is_the_old_or_the_new_version_never_half(
    tmp_path: Path,
) -> None:
    """Our snapshot is the run's row, written in the transaction of its events."""
    path = tmp_path / "store.db"
    chance = random.Random(142)
    for _ in range(KILLS):
        acknowledged = _killed("rewrite", path, chance.randint(1, 30))
        store = SQLiteStore(path)
        row = store.run(snapshots.RUN)
        assert row is not None
        assert acknowledged <= row.steps <= acknowledged + 1
        assert row.partial == snapshots.text_of(row.steps)
        assert store.position() == row.steps  # and its event is of the same version
        store.close()


def test_S142_what_a_killed_runtime_leaves_is_whole_and_the_next_start_closes_it(tmp_path: Path) -> None:
    for lines_min in (6, 14, 30):
        folder = tmp_path / str(lines_min)
        folder.mkdir()
        acknowledged = _killed("delegate", folder, lines_min)
        path = folder / "data" / DATABASE
        before = _read(path, at_rest=False)
        assert len(before) >= acknowledged
        subprocess.run([sys.executable, "-m", snapshots.__name__, "recover", folder], cwd=REPOSITORY, check=True)
        after = _read(path, at_rest=True)
        assert check_kept(before, after) == []
        settled = {event.fact.name: event.fact.reason for event in after if isinstance(event.fact, RunSettled)}
        assert settled.pop("quick", "done") in {"done", "restart"}
        assert set(settled.values()) <= {"restart"}
    assert set(settled) == {"slow", "slower"}


def _read(path: Path, *, at_rest: bool) -> list[Event]:
    """Return a store's events after checking them and every row."""
    store = SQLiteStore(path)
    events = all_events(store)
    assert check_all(events, at_rest=at_rest) == []
    assert check_projections(store) == []
    store.close()
    return events
