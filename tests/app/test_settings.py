"""Settings: which file says what, what is refused, and whose directory is trusted."""

import os
import stat
from pathlib import Path

import pytest

from retinue.core.errors import RetinueError
from retinue.settings import CONFIG, DATA_DIR, find_data_dir, read_settings


def written(folder: Path, text: str) -> Path:
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / CONFIG).write_text(text, encoding="utf-8")
    return folder


def refusal(folder: Path) -> RetinueError:
    with pytest.raises(RetinueError) as caught:
        read_settings(folder)
    return caught.value


def test_a_projects_file_sets_model_policy_connections_and_tools(tmp_path: Path) -> None:
    text = 'model = "a:b"\n[policy]\ncaps.running.root = 2\n[connections.a]\nbase_url = "http://x"\n'
    text += "[tools]\ntimeout_s = 5\n"
    settings = read_settings(written(tmp_path, text))
    assert settings.policy == {"caps.running.root": 2}
    assert settings.connections == {"a": {"base_url": "http://x"}}
    assert settings.tool_timeout_s == 5
    assert settings.sources["connections.a"] == str(tmp_path / CONFIG)


def test_no_bound_on_a_tool_call_is_written_none(tmp_path: Path) -> None:
    assert read_settings(written(tmp_path, '[tools]\ntimeout_s = "none"\n')).tool_timeout_s is None


@pytest.mark.parametrize(
    ("text", "code", "word"),
    [
        ('modle = "x"', "invalid", "modle"),
        ("[hooks]\nstop = 'x'", "unsupported", "hooks"),
        ("[mcp.db]\ncommand = 'x'", "unsupported", "mcp"),
        ("[tools]\ntimeuot_s = 5", "invalid", "timeuot_s"),
        ("[tools]\ntimeout_s = -1", "invalid", "timeout_s"),
        ("[tools]\ntimeout_s = 0", "invalid", "timeout_s"),
        ("[tools]\ntimeout_s = nan", "invalid", "timeout_s"),
        ("[tools]\ntimeout_s = inf", "invalid", "timeout_s"),
        ("model = [", "invalid", CONFIG),
    ],
)
def test_what_nothing_acts_on_is_refused_with_its_file(tmp_path: Path, text: str, code: str, word: str) -> None:
    error = refusal(written(tmp_path, text))
    assert error.code == code
    assert word in error.detail
    assert str(tmp_path / CONFIG) in error.detail


def test_the_nearest_directory_upwards_is_found(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b"
    deep.mkdir(parents=True)
    (tmp_path / DATA_DIR).mkdir(mode=0o700)
    assert find_data_dir(None, deep, {}) == tmp_path / DATA_DIR
    assert find_data_dir(None, deep, {"RETINUE_DATA_DIR": str(tmp_path / "x")}) == tmp_path / "x"


def test_a_found_directory_that_everybody_may_write_to_is_not_trusted_unless_named(tmp_path: Path) -> None:
    found = written(tmp_path / DATA_DIR, 'model = "evil:x"')
    found.chmod(stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO)
    with pytest.raises(RetinueError) as caught:
        find_data_dir(None, tmp_path, {})
    assert caught.value.code == "denied"
    assert find_data_dir(found, tmp_path, {}) == found


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give a folder away")
def test_a_found_directory_of_another_user_is_not_trusted(tmp_path: Path) -> None:
    found = written(tmp_path / DATA_DIR, 'model = "evil:x"')
    os.chown(found, 65534, 65534)
    with pytest.raises(RetinueError) as caught:
        find_data_dir(None, tmp_path, {})
    assert "another user" in caught.value.detail
