"""`read_file`, `list_dir` and `grep`: their bounds, and what they say when they cannot show something."""

import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from retinue.core.errors import RetinueError
from retinue.tools import search
from retinue.tools.paths import Workspace
from retinue.tools.workspace import READ_CHARS_MAX, workspace_tools
from tests.tools.harness import FakeContext, call, without_privileges


@pytest.fixture
def open_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def read(folder: Path, path: str, **more: int) -> str:
    return call("read_file", FakeContext(folder), path=path, **more).text


def in_sight(folder: Path) -> tuple[list[str], str]:
    """Return the files that a search would look at, and what it says of the others."""
    tally = search.Tally()
    workspace = Workspace(str(folder), str(folder / ".retinue"))
    with workspace.open(".") as top:
        found = [path for path, _ in search.Search(workspace, search.GrepParameters(pattern="x"), tally).in_folder(top)]
    return found, search.footer(tally)


def test_the_three_are_reading_tools_that_run_beside_others_and_off_the_loop(tmp_path: Path) -> None:
    tools = workspace_tools()
    assert [tool.schema.name for tool in tools] == ["read_file", "list_dir", "grep"]
    assert {tool.group for tool in tools} == {"read"}
    assert not any(tool.exclusive for tool in tools)
    context = FakeContext(tmp_path)
    call("list_dir", context)
    call("grep", context, pattern="x")
    assert context.offloaded == 2


def test_a_short_file_comes_as_it_is_and_a_slice_says_which_lines_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\r\nthree")
    assert read(tmp_path, "a.txt") == "one\ntwo\nthree"
    assert read(tmp_path, "a.txt", limit=2) == "[lines 1-2 of 3; continue with offset=3]\none\ntwo"
    assert read(tmp_path, "a.txt", offset=3) == "[lines 3-3 of 3]\nthree"
    assert read(tmp_path, "a.txt", offset=4) == "[nothing at line 4: the file has 3 lines]"
    assert read(tmp_path, "a.txt", offset=99) == "[nothing at line 99: the file has 3 lines]"


def test_following_the_offsets_gives_every_line_of_a_large_file_once(tmp_path: Path) -> None:
    lines = [f"line {n} {'é' * (n % 90)}" for n in range(40_000)]
    (tmp_path / "big.txt").write_text("\n".join(lines) + "\n")
    assert (tmp_path / "big.txt").stat().st_size > 2 * 1024 * 1024
    seen: list[str] = []
    while True:
        head, *rest = read(tmp_path, "big.txt", offset=len(seen) + 1).split("\n")
        seen += rest
        assert sum(map(len, rest)) <= READ_CHARS_MAX
        if "continue" not in head:
            break
    assert seen == lines


def test_a_long_line_is_cut_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("x" * 5000 + "\nend\n")
    assert read(tmp_path, "long.txt") == "x" * 2000 + "… [line cut, 5000 characters]\nend"


def test_empty_binary_and_badly_encoded_files_are_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "binary").write_bytes(b"ELF\0\1\2")
    (tmp_path / "latin").write_bytes(b"caf\xe9\n")
    (tmp_path / "bom").write_bytes(b"\xef\xbb\xbfhello\n")
    assert read(tmp_path, "empty") == "[the file is empty]"
    assert read(tmp_path, "binary") == "[binary file of 6 bytes, not shown]"
    assert read(tmp_path, "latin").split("\n")[1] == "caf\N{REPLACEMENT CHARACTER}"
    assert "not UTF-8" in read(tmp_path, "latin")
    assert read(tmp_path, "bom") == "hello"


def test_a_folder_is_not_read_and_a_file_not_listed(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    with pytest.raises(RetinueError, match="is a folder"):
        read(tmp_path, ".")
    with pytest.raises(RetinueError, match="is a file"):
        call("list_dir", FakeContext(tmp_path), path="f")


def test_what_may_not_be_read_is_an_error_in_one_sentence(open_folder: Path) -> None:
    (open_folder / "shut").mkdir(mode=0)
    (open_folder / "closed.txt").write_text("text\n")
    (open_folder / "closed.txt").chmod(0)
    (open_folder / "open.txt").write_text("text\n")
    context = FakeContext(open_folder)
    with without_privileges():
        file = call("read_file", context, path="closed.txt")
        folder = call("list_dir", context, path="shut")
        listing = call("list_dir", context, depth=2)
        searched, tally = in_sight(open_folder)
    (open_folder / "shut").chmod(0o755)
    assert (file.outcome, file.text) == ("error", "'closed.txt' cannot be read: Permission denied.")
    assert (folder.outcome, folder.text) == ("error", "'shut' cannot be read: Permission denied.")
    assert "dir   unreadable  shut/" in listing.text
    assert searched == ["open.txt"]
    assert tally == "[0 matches in 1 files searched; 2 unreadable]"


def test_a_listing_names_kinds_sizes_and_links_nearer_levels_first(tmp_path: Path) -> None:
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / "b" / "x.txt").write_text("12345")
    (tmp_path / "a.txt").write_text("1")
    (tmp_path / "link").symlink_to("a.txt")
    listing = call("list_dir", FakeContext(tmp_path), depth=2).text
    assert listing.split("\n") == [
        "file  1 bytes  a.txt",
        "dir   2 entries  b/",
        "link  link -> a.txt",
        "dir   0 entries  b/c/",
        "file  5 bytes  b/x.txt",
        "[5 entries]",
    ]
    assert call("list_dir", FakeContext(tmp_path), path="b/c").text == "[the folder is empty]"


def test_a_folder_of_ten_thousand_files_says_how_many_more_there_are(tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    for number in range(10_000):
        (tmp_path / "many" / f"{number:05}").touch()
    assert call("list_dir", FakeContext(tmp_path)).text.startswith("dir   10000 entries  many/")
    lines = call("list_dir", FakeContext(tmp_path), path="many").text.split("\n")
    assert len(lines) == 1001
    assert lines[-1].startswith("[1000 of 10000 entries shown;")


def test_grep_finds_lines_by_expression_case_and_name(tmp_path: Path) -> None:
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "x.py").write_text("def hidden(): ...\n")
    (tmp_path / "src" / "a.py").write_text("import os\ndef run(): ...\n")
    (tmp_path / "src" / "deep" / "b.py").write_text("DEF RUN\n")
    (tmp_path / "c.md").write_text("def in text\n")
    (tmp_path / "bin").write_bytes(b"def\0")
    context = FakeContext(tmp_path)
    assert call("grep", context, pattern=r"^def \w+\(").text == (
        "src/a.py:2: def run(): ...\n[1 match in 3 files searched; 1 binary]"
    )
    assert "src/deep/b.py:1: DEF RUN" in call("grep", context, pattern="def run", ignore_case=True).text
    assert (
        call("grep", context, pattern="def", glob="*.md").text == "c.md:1: def in text\n[1 match in 1 files searched]"
    )
    assert "src/a.py:2" in call("grep", context, pattern="def", glob="src/**/*.py").text
    assert call("grep", context, pattern="def", path="src/a.py").text.startswith("src/a.py:2: ")
    assert "hidden" in call("grep", context, pattern="def", path="node_modules").text


def test_grep_stops_at_its_number_of_matches_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hit\n" * 500)
    lines = call("grep", FakeContext(tmp_path), pattern="hit").text.split("\n")
    assert len(lines) == search.MATCHES_MAX + 1
    assert lines[-1] == "[200 matches in 1 files searched; stopped after 200 matches, there may be more]"


def test_grep_stops_at_its_number_of_files_and_says_so(tmp_path: Path) -> None:
    for number in range(search.FILES_MAX + 5):
        (tmp_path / f"{number:05}.txt").write_text("x\n")
    last = call("grep", FakeContext(tmp_path), pattern="nothing").text
    assert last == "[0 matches in 2000 files searched; stopped after 2000 files, there may be more]"


def test_grep_shows_a_long_line_around_its_match(tmp_path: Path) -> None:
    (tmp_path / "min.js").write_text("a" * 5000 + "needle" + "b" * 5000)
    found = call("grep", FakeContext(tmp_path), pattern="needle").text.split("\n")[0]
    assert re.fullmatch(r"min\.js:1: …a+needleb+…", found)
    assert len(found) < 300


def test_a_pattern_that_would_run_for_ever_is_stopped_and_what_was_found_before_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "GREP_TIME_MAX_S", 1)
    (tmp_path / "a.txt").write_text("first\n" + "a" * 60 + "!\n")
    started = time.monotonic()
    text = call("grep", FakeContext(tmp_path), pattern="first|(a+)+$").text
    assert time.monotonic() - started < 10
    assert text.startswith("a.txt:1: first\n")
    assert "stopped after 1 s" in text


@pytest.mark.parametrize("pattern", ["(a+", "*", "a{3,1}"])
def test_a_pattern_that_is_none_is_refused_with_the_reason(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "a").write_text("x\n")
    with pytest.raises(RetinueError, match="not a regular expression") as caught:
        call("grep", FakeContext(tmp_path), pattern=pattern)
    assert caught.value.code == "invalid"


def test_a_wrong_pattern_is_refused_even_where_there_is_nothing_to_search(tmp_path: Path) -> None:
    with pytest.raises(RetinueError, match="not a regular expression"):
        call("grep", FakeContext(tmp_path), pattern="(")


def test_links_are_listed_but_not_searched(tmp_path: Path) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").write_text("needle\n")
    (tmp_path / "ws" / "l").symlink_to("../out")
    assert call("grep", FakeContext(tmp_path / "ws"), pattern="needle").text == "[0 matches in 0 files searched]"


def test_the_matcher_runs_in_an_interpreter_that_sees_nothing_of_the_project() -> None:
    assert sys.executable
    assert "retinue" not in search.matcher_source().split('"""', 2)[2]
