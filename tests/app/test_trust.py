"""Trust in a project's files: by path and content, outside every project, and never more than was said."""

import os
import stat
from pathlib import Path

import pytest

from retinue.core.errors import RetinueError
from retinue.trust import FILE_MAX_BYTES, Trust, content_of


def _made(folder: Path, content: bytes = b"{}") -> Path:
    path = folder / ".mcp.json"
    path.write_bytes(content)
    return path


def test_a_file_is_trusted_with_the_content_that_was_shown_and_no_other(tmp_path: Path) -> None:
    trust, path = Trust(tmp_path / "state" / "trusted.json"), _made(tmp_path)
    assert not trust.holds(path, b"{}")
    trust.add(path, b"{}")
    assert trust.holds(path, b"{}")
    assert Trust(trust.file).holds(path, b"{}")
    assert not trust.holds(path, b"{ }")
    assert not trust.holds(tmp_path / "other.json", b"{}")


def test_a_link_is_the_file_that_it_leads_to(tmp_path: Path) -> None:
    trust, path = Trust(tmp_path / "trusted.json"), _made(tmp_path)
    link = tmp_path / "link"
    link.symlink_to(path)
    trust.add(link, b"{}")
    assert trust.holds(path, b"{}")
    link.unlink()
    link.symlink_to(tmp_path / "elsewhere")
    assert not trust.holds(link, b"{}")


def test_trust_that_was_taken_back_is_gone(tmp_path: Path) -> None:
    trust, path = Trust(tmp_path / "trusted.json"), _made(tmp_path)
    trust.add(path, b"{}")
    assert trust.remove(path)
    assert not trust.remove(path)
    assert not trust.holds(path, b"{}")
    assert trust.all() == ()


def test_only_the_person_can_read_the_list_and_it_is_whole_or_not_there(tmp_path: Path) -> None:
    trust = Trust(tmp_path / "state" / "trusted.json")
    trust.add(_made(tmp_path), b"{}")
    assert stat.S_IMODE(trust.file.stat().st_mode) == 0o600
    assert stat.S_IMODE(trust.file.parent.stat().st_mode) == 0o700
    assert [path.name for path in trust.file.parent.iterdir()] == ["trusted.json"]


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"a": 1}', b"\xff"])
def test_a_list_that_cannot_be_read_trusts_nothing_and_says_so(tmp_path: Path, body: bytes) -> None:
    trust = Trust(tmp_path / "trusted.json")
    trust.file.write_bytes(body)
    with pytest.raises(RetinueError, match="cannot be read"):
        trust.holds(_made(tmp_path), b"{}")
    assert trust.file.read_bytes() == body


def test_a_list_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RetinueError, match="cannot be written"):
        Trust(tmp_path / "file" / "trusted.json").add(_made(tmp_path), b"{}")


def test_what_is_no_ordinary_file_or_too_large_is_not_trusted(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "none", tmp_path / "fifo"):
        with pytest.raises(RetinueError, match="is no file"):
            content_of(path)
    with pytest.raises(RetinueError, match="more than"):
        content_of(_made(tmp_path, b"x" * (FILE_MAX_BYTES + 1)))


def test_a_name_that_is_no_text_can_be_trusted(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.json"))
    path.write_bytes(b"{}")
    trust = Trust(tmp_path / "trusted.json")
    trust.add(path, b"{}")
    assert trust.holds(path, b"{}")
