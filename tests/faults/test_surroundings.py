"""Where the record lies and what the clocks say: a network file system is named, durations come from no wall clock."""

import asyncio
import logging
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from retinue.app import RealClock, Runtime, Settings
from retinue.cli.doctor import doctor
from retinue.cli.options import Where
from retinue.core.events import RunSettled, RunStarted
from retinue.runtime.handles import Session
from retinue.stores.filesystem import FUSE, network_file_system, statfs_type
from tests.e2e.kit import call
from tests.faults.kit import life, require_sound, root_in

OPEN = """
import asyncio, sys
from pathlib import Path
from retinue.app import Runtime, Settings

async def main():
    async with Runtime(Settings(data_dir=Path(sys.argv[1]), environ={}), file_system=lambda _: "nfs"):
        pass

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("number", "name"),
    [(0x6969, "nfs"), (0xFF534D42, "cifs"), (0xFE534D42, "smb2"), (0x01021997, "9p"), (0xEF53, None), (None, None)],
)
def test_a_network_file_system_is_known_by_its_type(tmp_path: Path, number: int | None, name: str | None) -> None:
    assert network_file_system(tmp_path / "not" / "there" / "yet", lambda _: number) == name


@pytest.mark.parametrize(("kind", "name"), [("fuse.sshfs", "fuse.sshfs"), ("fuseblk", None)])
def test_a_file_system_that_a_program_serves_is_known_by_its_mount(tmp_path: Path, kind: str, name: str | None) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"disk / ext4 rw 0 0\nhost:/x {tmp_path.resolve()} {kind} rw 0 0\n")
    assert network_file_system(tmp_path / "data", lambda _: FUSE, mounts) == name
    assert network_file_system(tmp_path / "data", lambda _: FUSE, tmp_path / "none") is None


@pytest.mark.skipif(sys.platform != "linux", reason="Linux numbers its file systems")
def test_the_system_is_really_asked() -> None:
    assert statfs_type("/proc") == 0x9FA0
    assert statfs_type("/no/such/place") is None


def test_opening_a_record_on_a_network_file_system_warns_on_stderr_and_goes_on(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(tmp_path / "data")], capture_output=True, text=True, check=True
    )
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("retinue: warning: The data directory")
    assert "network file system (nfs)" in done.stderr


def test_opening_a_record_on_a_local_file_system_says_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Runtime(Settings(data_dir=tmp_path / "data", environ={})):
            pass

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert caplog.records == []


def test_the_doctor_warns_about_a_network_file_system(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert doctor(Where(data_dir=str(tmp_path)), lambda _: "nfs") == 0
    assert "network file system (nfs)" in capfd.readouterr().out
    assert doctor(Where(data_dir=str(tmp_path)), lambda _: None) == 0
    assert "network" not in capfd.readouterr().out


class JumpingClock(RealClock):
    """A clock whose wall time goes back an hour each time it is read; what it said is kept."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def wall(self) -> str:
        here = datetime.fromisoformat(super().wall()) - timedelta(hours=len(self.said))
        self.said.append(here.isoformat(timespec="milliseconds").replace("+00:00", "Z"))
        return self.said[-1]


def test_stored_times_are_the_walls_and_durations_are_not(tmp_path: Path) -> None:
    clock = JumpingClock()
    script = (
        {"agent": "parent", "tool_calls": [call("spawn_agent", prompt="x", mode="await", timeout_s=60)]},
        {"agent": "parent", "n": 2, "text": "done"},
        {"agent": "child", "text": "found", "delay_ms": 50},
    )

    async def main() -> str:
        async with life(tmp_path, script, clock=clock) as kernel:
            return (await Session(kernel, await root_in(kernel, tmp_path)).prompt("go").result).reason

    assert asyncio.run(main()) == "done"
    events = require_sound(tmp_path)
    assert {event.time for event in events} <= set(clock.said)
    assert events[-1].time < events[0].time, "the wall went back, and that is what is on record"
    (started,) = (event.fact for event in events if isinstance(event.fact, RunStarted))
    (settled,) = (event.fact for event in events if isinstance(event.fact, RunSettled))
    assert 0 <= (started.queued_s or 0) < 30
    assert 0.05 <= (settled.elapsed_s or 0) < 30
    assert settled.reason == "done", "no deadline is the wall's"
