"""`policies`, `models`, `config show`: what there is to choose from, and never a key."""

import json
from pathlib import Path

import pytest

from retinue.core.policy import KEYS, NAMES, TABLE
from tests.e2e.kit import retinue

KEY = "sk-the-secret-of-this-test"
CONFIG = """
model = "local:small"

[policy]
"caps.running.root" = 2
life.max_steps = 5

[connections.local]
base_url = "http://person:hidden@127.0.0.1:1/v1"
api_key_env = "LOCAL_KEY"
models = ["small"]
headers = { "Authorization" = "Bearer hidden" }
"""


def test_policies_print_the_whole_table_and_what_is_not_acted_on(tmp_path: Path) -> None:
    document = retinue(tmp_path, "policies", "--json").document()
    assert [item["name"] for item in document["items"]] == list(NAMES)
    assert document["next"] is None
    for column, item in enumerate(document["items"]):
        wanted = {key.name: key.columns[column] for key in TABLE}
        assert item["values"] == json.loads(json.dumps(wanted))
    shown = retinue(tmp_path, "policies").out
    assert all(name in shown for name in KEYS)
    assert "only exclusive" in shown


@pytest.mark.parametrize("command", [("models",), ("config", "show"), ("doctor",)])
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_no_key_and_no_secret_is_ever_printed(tmp_path: Path, command: tuple[str, ...], flags: tuple[str, ...]) -> None:
    (tmp_path / ".retinue").mkdir()
    (tmp_path / ".retinue" / "config.toml").write_text(CONFIG)
    ran = retinue(tmp_path, *command, *flags, env={"LOCAL_KEY": KEY, "OPENAI_API_KEY": KEY})
    assert ran.code == 0
    assert "local" in ran.out
    assert not any(secret in ran.out + ran.err for secret in (KEY, "hidden"))


def test_config_show_says_where_each_setting_comes_from(tmp_path: Path) -> None:
    (tmp_path / ".retinue").mkdir()
    file = tmp_path / ".retinue" / "config.toml"
    file.write_text(CONFIG)
    user = tmp_path / ".config" / "retinue" / "config.toml"
    user.parent.mkdir(parents=True)
    user.write_text('model = "offline"\n[policy]\n"caps.running.root" = 3\n"caps.max_depth" = 2\n')
    env = {"XDG_CONFIG_HOME": str(tmp_path / ".config")}
    body = retinue(tmp_path, "config", "show", "--json", env=env).document()
    assert body["policy"] == {"caps.running.root": 2, "caps.max_depth": 2, "life.max_steps": 5}
    assert (body["model"], body["sources"]["model"]) == ("local:small", str(file))
    assert body["sources"]["policy.caps.running.root"] == str(file)
    assert body["sources"]["policy.caps.max_depth"] == str(user)
    named = retinue(tmp_path, "config", "show", "--json", env={**env, "RETINUE_MODEL": "offline"}).document()
    assert (named["model"], named["sources"]["model"]) == ("offline", "RETINUE_MODEL")


def test_models_say_which_keys_are_set(tmp_path: Path) -> None:
    for env, is_set in (({}, False), ({"OPENAI_API_KEY": KEY}, True)):
        rows = {row["name"]: row for row in retinue(tmp_path, "models", "--json", env=env).document()["items"]}
        assert rows["openai"]["key_set"] is is_set
        assert {"scripted:FILE", "offline"} <= set(rows)
