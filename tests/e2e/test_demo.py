"""`demo`: no key, any folder; it delegates, and every file that its report names exists."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kit import SEARCH, Ran, of_type, one_sentence, retinue, without_root_rights

MANY = 10_000
NAMED = re.compile(r"`([^`\n]+)`")


def _demo(folder: Path, **more: Any) -> Ran:
    """Run the demo over a folder with its record elsewhere, so that the folder stays as it is."""
    record = folder.parent / "record"
    record.mkdir(exist_ok=True)
    record.chmod(0o777)
    return retinue(folder.parent, "demo", str(folder), "--data-dir", str(record), "--json", **more)


def _check(ran: Ran, folder: Path) -> str:
    lines = ran.lines()
    assert (ran.code, lines[-1]["type"], lines[-1]["status"]) == (0, "turn.closed", "completed"), ran.err
    assert len({line["child_id"] for line in of_type(lines, "run.settled")}) >= 3
    report = lines[-1]["text"]
    for name in NAMED.findall(report):
        assert (folder / name).exists(), name
    return report


def test_an_empty_folder_is_reported_as_empty(tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    report = _check(_demo(folder), folder)
    assert "no files" in report


def test_a_folder_of_ten_thousand_files_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    for number in range(100):
        (folder / f"part{number:02d}").mkdir(parents=True)
    for number in range(MANY):
        (folder / f"part{number % 100:02d}" / f"file{number}.txt").write_text(f"line {number}\n")
    assert NAMED.search(_check(_demo(folder), folder))


def test_binary_and_unreadable_files_are_named_with_the_reason(tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    (folder / "good.md").write_text("# Title\n\ntext\n")
    (folder / "picture.bin").write_bytes(bytes(range(256)) * 40)
    (folder / "latin.txt").write_bytes("grün\n".encode("latin-1"))
    (folder / "secret.txt").write_text("secret")
    (folder / "secret.txt").chmod(0o000)
    (folder / "broken").symlink_to("nowhere")
    (folder / "locked").mkdir()
    (folder / "locked").chmod(0o000)
    try:
        ran = _demo(folder, **without_root_rights())
    finally:
        (folder / "locked").chmod(0o700)
    (folder / "nowhere").touch()  # a link that leads nowhere is there all the same
    report = _check(ran, folder)
    assert "`good.md`" in report
    assert "`secret.txt`: not read" in report or "`secret.txt`" in report.split("could not be read")[1]


def test_the_report_stands_on_stdout_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("# Notes\n")
    ran = retinue(tmp_path, "demo", ".")
    assert (ran.code, ran.out.startswith("# Report on this folder\n")) == (0, True)
    assert (tmp_path / ".retinue" / ".gitignore").read_text() == "*\n"
    assert (tmp_path / ".retinue").stat().st_mode & 0o777 == 0o700


def test_the_record_lies_in_the_nearest_data_directory_upwards(tmp_path: Path) -> None:
    (tmp_path / ".retinue").mkdir()
    (tmp_path / "below" / "deep").mkdir(parents=True)
    assert retinue(tmp_path.parent, "demo", str(tmp_path / "below" / "deep"), env=SEARCH).code == 0
    assert (tmp_path / ".retinue" / "retinue.sqlite3").exists()
    assert not (tmp_path / "below" / ".retinue").exists()


@pytest.mark.parametrize("place", ["missing", "file.txt"])
def test_what_is_no_folder_is_exit_2(tmp_path: Path, place: str) -> None:
    (tmp_path / "file.txt").write_text("x")
    ran = retinue(tmp_path, "demo", place)
    assert (ran.code, ran.out, place in one_sentence(ran)) == (2, "", True)
    assert not (tmp_path / ".retinue").exists()
