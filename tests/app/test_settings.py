"""Settings: which file says what, what is refused, and whose directory is trusted."""

import json
import os
import stat
from pathlib import Path

import pytest

from retinue.core.errors import RetinueError
from retinue.settings import CONFIG, DATA_DIR, find_data_dir, read_settings, without_servers
from retinue.trust import Trust


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
        ("[mcp.db]\ncomand = 'x'", "invalid", "mcp.db"),
        ("[mcp.db]\ncommand = 'x'\ncall_timeout_s = -1", "invalid", "call_timeout_s"),
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


def test_servers_come_from_the_user_the_project_and_the_data_directory_in_that_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "home" / "project"
    (project / ".git").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "config" / "retinue").mkdir(parents=True)
    (tmp_path / "config" / "retinue" / CONFIG).write_text(
        "[mcp.one]\ncommand = 'user'\n[mcp.two]\ncommand = 'user'\n[models]\nsmall = 'a:b'\n"
    )
    servers = {
        "two": {"type": "streamable-http", "url": "http://x", "alwaysAllow": ["y"]},
        "three": {"command": "project", "disabled": True},
    }
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    data = written(tmp_path / "data", "[mcp.three]\ncommand = 'data'\n")

    before = read_settings(data, start=project)
    assert {name: table["command"] for name, table in before.mcp.items()} == {
        "one": "user", "two": "user", "three": "data",
    }  # fmt: skip
    assert ["retinue trust" in note for note in before.notes] == [True]
    assert before.model_aliases == {"small": "a:b"}

    Trust().add(project / ".mcp.json", (project / ".mcp.json").read_bytes())
    trusted = read_settings(data, start=project)
    assert trusted.mcp["two"] == {"url": "http://x", "transport": "http"}
    assert trusted.mcp["three"] == {"command": "data"}
    assert ["alwaysAllow" in note for note in trusted.notes] == [True]


def test_servers_of_a_data_directory_that_was_found_need_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RETINUE_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = written(tmp_path / DATA_DIR, "[mcp.one]\ncommand = 'x'\n")
    found = read_settings(start=tmp_path)
    assert found.mcp == {}
    assert any("retinue trust" in note for note in found.notes)
    Trust().add(folder / CONFIG, (folder / CONFIG).read_bytes())
    assert read_settings(start=tmp_path).mcp == {"one": {"command": "x"}}
    assert without_servers(read_settings(start=tmp_path)).mcp == {}


@pytest.mark.parametrize("body", ["{", "[]", '{"mcpServers": 3}', '{"mcpServers": {"a": 3}}', "\udcff"])
def test_a_projects_file_of_servers_that_is_wrong_is_left_out_and_said(
    tmp_path: Path, body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    project = tmp_path / "project"
    (project / ".git").mkdir(parents=True)
    file = project / ".mcp.json"
    file.write_bytes(body.encode(errors="surrogateescape"))
    Trust().add(file, file.read_bytes())
    settings = read_settings(tmp_path / "data", start=project)
    assert settings.mcp == {}
    assert [str(file) in note for note in settings.notes] == [True]


def test_what_a_server_is_given_is_not_shown(tmp_path: Path) -> None:
    text = "[mcp.a]\nurl = 'http://me:secret@x'\nheaders = { K = 'secret' }\nenv = { K = 'secret' }\n"
    shown = read_settings(written(tmp_path, text)).to_dict()
    assert "secret" not in json.dumps(shown)
