"""One owner at a time, named to everybody else, however the last one ended."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from retinue.core.errors import RetinueError
from retinue.stores.owner import LOCK_NAME, OwnerLock, prepare_data_dir, read_owner

NOBODY = 65534
ROUNDS = 15
RACE = """
import sys
from retinue.core.errors import RetinueError
from retinue.stores.owner import OwnerLock
lock = OwnerLock(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
try:
    lock.acquire("racer " + sys.argv[2])
    print("owner", flush=True)
except RetinueError as error:
    print(error.code, error.detail, flush=True)
sys.stdin.readline()
"""


@contextmanager
def _racer(data_dir: Path, name: str) -> Generator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", RACE, str(data_dir), name]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        assert _line(child) == "ready"
        try:
            yield child
        finally:
            child.kill()


def _line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().rstrip("\n")


def _go(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def test_the_owner_is_named_while_it_holds_the_lock(tmp_path: Path) -> None:
    lock = OwnerLock(tmp_path)
    assert read_owner(tmp_path) is None
    lock.acquire("retinue run")
    lock.acquire("retinue run")  # again is nothing new
    owner = read_owner(tmp_path)
    assert owner is not None
    assert (owner["pid"], owner["command"], owner["socket"]) == (os.getpid(), "retinue run", None)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", owner["started_at"])
    lock.announce("/a/socket")
    assert read_owner(tmp_path) == {**owner, "socket": "/a/socket"}
    lock.release()
    lock.release()
    assert read_owner(tmp_path) is None
    assert stat.S_IMODE((tmp_path / LOCK_NAME).stat().st_mode) == 0o600


def test_a_second_owner_is_refused_and_told_who_owns_it(tmp_path: Path) -> None:
    first, second = OwnerLock(tmp_path), OwnerLock(tmp_path)
    first.acquire("retinue chat")
    with pytest.raises(RetinueError) as refused:
        second.acquire("retinue run")
    assert refused.value.code == "store_owned"
    assert refused.value.detail == f"The data directory {tmp_path} is owned by process {os.getpid()} (retinue chat)."
    assert refused.value.hint
    assert read_owner(tmp_path) is not None  # a refused try takes nothing from the owner
    first.release()
    second.acquire("retinue run")
    second.release()


def test_of_processes_that_race_exactly_one_becomes_the_owner_and_the_others_name_it(tmp_path: Path) -> None:
    for number in range(ROUNDS):
        with _racer(tmp_path, "a") as a, _racer(tmp_path, "b") as b, _racer(tmp_path, "c") as c:
            racers = {"a": a, "b": b, "c": c}
            for racer in racers.values():
                _go(racer)
            said = {name: _line(racer) for name, racer in racers.items()}
            owners = [name for name, line in said.items() if line == "owner"]
            assert len(owners) == 1, (number, said)
            winner = owners[0]
            told = f"owned by process {racers[winner].pid} (racer {winner})"
            assert [
                name for name, line in said.items() if f"store_owned The data directory {tmp_path} is {told}" in line
            ] == [name for name in racers if name != winner]
            owner = read_owner(tmp_path)
            assert (owner and owner["pid"]) == racers[winner].pid
        # All were killed with the lock held: the next round begins on what a dead owner left.
        assert read_owner(tmp_path) is None
        assert json.loads((tmp_path / LOCK_NAME).read_text())["command"] == f"racer {winner}"


def test_asking_for_the_owner_never_makes_somebody_fail_to_become_it(tmp_path: Path) -> None:
    ask = f"from retinue.stores.owner import read_owner\nprint(flush=True)\nwhile True: read_owner({str(tmp_path)!r})"
    lock = OwnerLock(tmp_path)
    with subprocess.Popen([sys.executable, "-c", ask], stdout=subprocess.PIPE, text=True) as asker:
        try:
            _line(asker)
            for _ in range(200):
                lock.acquire("retinue run")
                lock.release()
        finally:
            asker.kill()


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"pid": "x"}', '{"pid": 999999999999999999999}', '{"pid": 4194305}']
)
def test_what_a_dead_owner_left_in_the_file_does_not_count(content: str, tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).write_text(content + " " * 500)
    assert read_owner(tmp_path) is None
    lock = OwnerLock(tmp_path)
    lock.acquire("retinue run")
    assert json.loads((tmp_path / LOCK_NAME).read_text())["command"] == "retinue run"
    lock.release()


def test_an_owner_that_cannot_be_named_is_still_an_owner(tmp_path: Path) -> None:
    lock = OwnerLock(tmp_path)
    lock.acquire("retinue run")
    (tmp_path / LOCK_NAME).write_text("")
    assert read_owner(tmp_path) == {"pid": None, "command": None, "started_at": None, "socket": None}
    with pytest.raises(RetinueError, match="is owned by another process"):
        OwnerLock(tmp_path).acquire("retinue run")
    lock.release()


def test_a_lock_that_cannot_be_made_is_store_failed(tmp_path: Path) -> None:
    with pytest.raises(
        RetinueError, match=r"store_failed: The owner's lock .* cannot be used: no such file or directory"
    ):
        OwnerLock(tmp_path / "missing").acquire("retinue run")
    (tmp_path / "file").touch()
    with pytest.raises(RetinueError, match=r"store_failed: The owner's lock .* a file stands in its place"):
        read_owner(tmp_path / "file")
    assert read_owner(tmp_path / "missing") is None


# -------------------------------------------------------------------------------------------------- the data directory


def test_a_new_data_directory_is_private_and_ignored_by_git(tmp_path: Path) -> None:
    folder = prepare_data_dir(tmp_path / "a" / ".retinue")
    assert folder == tmp_path / "a" / ".retinue"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (folder / ".gitignore").read_text() == "*\n"


def test_an_existing_data_directory_is_left_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    (tmp_path / ".gitignore").write_text("mine\n")
    prepare_data_dir(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o750
    assert (tmp_path / ".gitignore").read_text() == "mine\n"


def test_a_file_in_the_place_of_the_data_directory_is_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    for place in (file, file / "below"):
        with pytest.raises(RetinueError) as refused:
            prepare_data_dir(place)
        assert refused.value.code == "store_failed"
        assert refused.value.detail == f"The data directory {place} cannot be used: a file stands in its place."
        assert refused.value.hint


def test_a_data_directory_without_rights_is_one_sentence() -> None:
    folder = Path(tempfile.mkdtemp())
    (folder / ".gitignore").touch()
    folder.chmod(0o555)
    try:
        if os.geteuid() == 0:
            os.seteuid(NOBODY)
        for place in (folder, folder / "below"):
            with pytest.raises(RetinueError) as refused:
                prepare_data_dir(place)
            assert refused.value.detail == f"The data directory {place} cannot be used: permission denied."
        with pytest.raises(RetinueError, match="cannot be used: permission denied"):
            OwnerLock(folder).acquire("retinue run")
    finally:
        if os.getuid() == 0:
            os.seteuid(0)
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=2", "tmpfs", str(tmp_path)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"needs the right to mount a small tmpfs: {mounted.stderr.strip()}")
    try:
        (tmp_path / "full").touch()
        with pytest.raises(RetinueError, match="cannot be used: no space left on device"):
            prepare_data_dir(tmp_path / "below")
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
