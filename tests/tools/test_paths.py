"""The safe walk: what it reaches, what it refuses, and names that do not fit on a line."""

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.errors import RetinueError
from retinue.tools.paths import Workspace, meant, shown
from tests.tools.harness import FakeContext, call

PROC_ROOT = "/".join(["", "proc", "self", "root"])


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("secret\n")
    return tmp_path / "outside"


@pytest.fixture
def ws(tmp_path: Path, outside: Path) -> Path:
    folder = tmp_path / "ws"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "main.py").write_text("print(1)\n")
    (folder / ".retinue").mkdir()
    (folder / ".retinue" / "log").write_text("log\n")
    return folder


def read(ws: Path, path: str) -> str:
    return call("read_file", FakeContext(ws), path=path).text


def refusal(ws: Path, path: str) -> RetinueError:
    with pytest.raises(RetinueError) as caught:
        call("read_file", FakeContext(ws), path=path)
    return caught.value


@pytest.mark.parametrize("path", ["src/main.py", "./src//main.py", "src/../src/main.py", "src/./main.py"])
def test_one_file_is_reached_by_each_of_its_spellings(ws: Path, path: str) -> None:
    assert read(ws, path) == "print(1)"


def test_an_absolute_path_inside_the_workspace_is_accepted(ws: Path) -> None:
    assert read(ws, str(ws / "src" / "main.py")) == "print(1)"


@pytest.mark.parametrize(
    "path", ["../outside/secret", "src/../../outside/secret", "/etc/passwd", f"{PROC_ROOT}/etc/passwd", ".."]
)
def test_a_path_that_leaves_is_refused(ws: Path, path: str) -> None:
    assert refusal(ws, path).code == "outside_workspace"


def test_an_absolute_path_that_only_begins_like_the_workspace_is_refused(ws: Path) -> None:
    ws.with_name("ws2").mkdir()
    (ws.with_name("ws2") / "x").write_text("x")
    assert refusal(ws, str(ws) + "2/x").code == "outside_workspace"


def test_B125_links_that_stay_inside_work_and_those_that_leave_are_refused(ws: Path, outside: Path) -> None:
    (ws / "inner").symlink_to("src/main.py")
    (ws / "absolute").symlink_to(ws / "src")
    (ws / "chain").symlink_to("inner")
    (ws / "notes").symlink_to(outside / "secret")
    (ws / "folder").symlink_to("../outside")
    (ws / "new").symlink_to(outside / "not-yet")
    (ws / "over").symlink_to("chain2")
    (ws / "chain2").symlink_to("notes")
    for name in ("inner", "absolute/main.py", "chain"):
        assert read(ws, name) == "print(1)"
    for name in ("notes", "folder/secret", "new", "over", "absolute/../../outside/secret"):
        error = refusal(ws, name)
        assert error.code == "outside_workspace"
        assert str(outside) not in error.detail


def test_links_in_a_circle_are_refused(ws: Path) -> None:
    (ws / "a").symlink_to("b")
    (ws / "b").symlink_to("a")
    assert refusal(ws, "a").code == "invalid"


def test_a_link_to_a_name_with_a_backslash_is_followed_literally(ws: Path) -> None:
    (ws / "odd\\nname").write_text("odd\n")
    (ws / "to-odd").symlink_to("odd\\nname")
    assert read(ws, "to-odd") == "odd"


def test_devices_pipes_and_sockets_are_refused_unopened(ws: Path) -> None:
    os.mkfifo(ws / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        here = Path.cwd()
        os.chdir(ws)
        try:
            server.bind("socket")
        finally:
            os.chdir(here)
    assert refusal(ws, "pipe").code == "invalid"
    assert refusal(ws, "socket").code == "invalid"


def test_the_data_directory_can_be_neither_read_nor_listed_nor_searched(ws: Path) -> None:
    (ws / "way-in").symlink_to(".retinue")
    context = FakeContext(ws)
    for path in (".retinue/log", "way-in/log", "src/../.retinue/log"):
        assert refusal(ws, path).code == "outside_workspace"
    for tool, arguments in (("list_dir", {"path": ".retinue"}), ("grep", {"pattern": "log", "path": ".retinue"})):
        with pytest.raises(RetinueError) as caught:
            call(tool, context, **arguments)
        assert caught.value.code == "outside_workspace"
    assert ".retinue/" not in call("list_dir", context, depth=3).text
    assert call("grep", context, pattern="^log$").text == "[0 matches in 1 files searched]"


def test_a_workspace_inside_the_data_directory_is_refused(ws: Path) -> None:
    with pytest.raises(RetinueError, match="data directory"):
        call("list_dir", FakeContext(ws / ".retinue", ws / ".retinue"))


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="only where the kernel shows processes as files")
def test_the_environment_cannot_be_read_from_a_workspace_that_is_the_whole_machine() -> None:
    for path in ("/proc/self/environ", f"{PROC_ROOT}/proc/1/environ", "sys/kernel/uevent_seqnum"):
        with pytest.raises(RetinueError) as caught:
            call("read_file", FakeContext("/", "/nowhere"), path=path)
        assert caught.value.code == "outside_workspace"


def test_a_component_swapped_for_a_link_after_the_check_is_not_followed(ws: Path, outside: Path) -> None:
    workspace = Workspace(str(ws), str(ws / ".retinue"))
    with workspace.open(".") as top:
        entries, _ = workspace.entries(top)
        (entry,) = [e for e in entries if e.name == "src"]
        (ws / "src").rename(ws / "moved")
        (ws / "src").symlink_to(outside)
        with pytest.raises(RetinueError), workspace.open_entry(top, entry):
            pass


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000])
def test_a_path_that_no_system_has_is_refused(ws: Path, path: str) -> None:
    assert refusal(ws, path).code == "invalid"


def test_a_name_that_is_not_there_or_too_long_is_a_sentence(ws: Path) -> None:
    assert refusal(ws, "src/none.py").code == "not_found"
    assert refusal(ws, "half \ud800").code == "not_found"
    assert refusal(ws, "src/main.py/x").code == "invalid"
    assert call("read_file", FakeContext(ws), path="n" * 300).outcome == "error"


def test_a_walk_leaves_no_descriptor_open(ws: Path) -> None:
    (ws / "inner").symlink_to(ws / "src")
    before = set(os.listdir("/dev/fd"))
    for path in ("inner/main.py", "src/none", "..", "src/../src/main.py"):
        try:
            read(ws, path)
        except RetinueError:
            continue
    assert set(os.listdir("/dev/fd")) == before


@given(st.text(st.characters(codec=None), min_size=1))
def test_what_is_shown_fits_on_a_line_and_means_the_name_again(name: str) -> None:
    name = os.fsdecode(os.fsencode(name.encode("utf-8", "replace").decode()))
    assert meant(shown(name)) == name
    assert len(shown(name).splitlines()) == 1


@pytest.mark.parametrize(
    "raw", [b"two\nlines", b"tab\t", b"latin\xe9", b"back\\slash", b"back\\nslash", b"\x07bell", b"-rf"]
)
def test_an_odd_name_is_listed_escaped_and_read_by_what_was_listed(tmp_path: Path, raw: bytes) -> None:
    (tmp_path / os.fsdecode(raw)).write_text("found\n")
    listed = call("list_dir", FakeContext(tmp_path)).text.splitlines()[0]
    name = listed.partition(" bytes  ")[2]
    name.encode()
    assert call("read_file", FakeContext(tmp_path), path=name).text == "found"
