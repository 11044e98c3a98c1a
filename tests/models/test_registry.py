"""The registry: which name means which model."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from retinue.core.errors import RetinueError
from retinue.models.kinds import KINDS
from retinue.models.registry import OPENAI_URL, Connection, ModelRegistry
from retinue.testing.modelserver import ModelServer, Setup
from retinue.testing.scripted import ScriptedModel
from tests.models.kit import FakeClock, heard, request_of


def refused(registry: ModelRegistry, name: str) -> RetinueError:
    with pytest.raises(RetinueError) as caught:
        registry.find(name)
    return caught.value


def test_openai_takes_key_and_address_from_the_given_environment() -> None:
    async def ask(registry: ModelRegistry) -> str:
        model, name = registry.find("openai:fake-a")
        finish = (await heard(model, request_of(model=name)))[1]
        await registry.aclose()
        return finish.text

    with ModelServer([{"text": "hi"}], Setup(api_key="k-123", models=("fake-a",))) as server:
        environment = {"OPENAI_API_KEY": "k-123", "OPENAI_BASE_URL": server.base_url}
        assert asyncio.run(ask(ModelRegistry(environment=environment))) == "hi"


def test_openai_without_a_key_is_refused_before_anything_is_sent() -> None:
    error = refused(ModelRegistry(), "openai:gpt-x")
    assert (error.code, error.detail) == (
        "unknown_model",
        "The model 'openai:gpt-x' needs a key, but OPENAI_API_KEY is not set.",
    )
    assert "offline" in error.hint


def test_a_server_of_ones_own_needs_no_key() -> None:
    registry = ModelRegistry(environment={"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"})
    assert registry.find("openai:any")[1] == "any"


def test_a_model_is_made_once_per_connection_and_again_after_closing() -> None:
    registry = ModelRegistry({"local": {"base_url": "http://127.0.0.1:9/v1"}})
    first = registry.find("local:a")[0]
    assert registry.find("local:b")[0] is first
    asyncio.run(registry.aclose())
    asyncio.run(registry.aclose())
    assert registry.find("local:a")[0] is not first


def test_a_model_name_may_hold_colons() -> None:
    registry = ModelRegistry({"local": {"base_url": "http://127.0.0.1:9/v1"}})
    assert registry.find("local:qwen:7b")[1] == "qwen:7b"


def test_a_configured_connection_is_asked_with_its_own_key_and_headers() -> None:
    table = {"kind": "openai", "api_key_env": "TEAM_KEY", "headers": {"X-Team": "a"}, "models": ["m"], "concurrency": 2}
    with ModelServer([{"text": "hi"}], Setup(api_key="team")) as server:
        registry = ModelRegistry({"team": {**table, "base_url": server.base_url}}, environment={"TEAM_KEY": "team"})

        async def ask() -> str:
            model, name = registry.find("team:m")
            finish = (await heard(model, request_of(model=name)))[1]
            await registry.aclose()
            return finish.text

        assert asyncio.run(ask()) == "hi"
        assert server.requests[0].headers["x-team"] == "a"
    assert refused(registry, "team:other").hint == "It has: team:m."


@pytest.mark.parametrize("name", ["nope", "nope:x", "openai", "openai:", "scripted", "scripted:", ""])
def test_an_unknown_name_is_refused_with_a_list_of_what_exists(name: str) -> None:
    custom = {"mine": ScriptedModel([{"text": "x"}])}
    error = refused(ModelRegistry({"local": {}}, environment={"OPENAI_API_KEY": "k"}, custom=custom), name)
    assert error.code == "unknown_model"
    listed = error.hint.removeprefix("There are: ").rstrip(".").split(", ")
    assert [one for one in listed if one.partition(":")[0] not in KINDS or one == "openai:MODEL"] == [
        "mine", "local:MODEL", "openai:MODEL", "scripted:FILE", "offline",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "table", "why"),
    [
        ("a", {"kind": "telepathy"}, "unknown kind 'telepathy'"),
        ("a", {"base_ulr": "x"}, "base_ulr"),
        ("a", {"concurrency": 0}, "concurrency below 1"),
        ("a", {"idle_timeout_s": 0}, "idle_timeout_s that is not between"),
        ("a", {"request_timeout_s": float("nan")}, "request_timeout_s that is not between"),
        ("a", {"connect_timeout_s": "soon"}, "connect_timeout_s"),
        ("a", 3, "is wrong"),
        ("offline", {}, "cannot be called 'offline'"),
        ("a:b", {}, "cannot be called 'a:b'"),
    ],
)
def test_a_wrong_connection_is_refused_at_load(name: str, table: object, why: str) -> None:
    with pytest.raises(RetinueError) as caught:
        ModelRegistry({name: table})
    assert caught.value.code == "invalid"
    assert why in caught.value.detail


def test_a_script_is_read_once_and_a_broken_one_names_its_line(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_text('{"text": "hi"}\n', encoding="utf-8")
    bad.write_text("oops\n", encoding="utf-8")
    registry = ModelRegistry()
    model, name = registry.find(f"scripted:{good}")
    assert name == str(good)
    assert registry.find(f"scripted:{good}")[0] is model
    assert f"{bad}:1" in refused(registry, f"scripted:{bad}").detail


def test_scripted_models_wait_with_the_given_sleep(tmp_path: Path) -> None:
    clock = FakeClock()
    path = tmp_path / "slow.jsonl"
    path.write_text('{"text": "hi", "delay_ms": 5000}\n', encoding="utf-8")
    model = ModelRegistry(clock=clock).find(f"scripted:{path}")[0]
    assert asyncio.run(heard(model, request_of()))[1].text == "hi"
    assert sum(clock.waited) == 5.0


def test_a_model_from_python_is_found_by_its_name_and_goes_first() -> None:
    model = ScriptedModel([{"text": "x"}])
    registry = ModelRegistry(environment={"OPENAI_API_KEY": "k"})
    registry.register("openai", model)
    assert registry.find("openai") == (model, "openai")
    assert registry.find("openai:gpt") == (model, "gpt")


def test_offline_is_made_once_and_only_when_it_is_asked_for() -> None:
    registry = ModelRegistry()
    model, name = registry.find("offline")
    assert (name, registry.find("offline")[0] is model) == ("offline", True)


def test_rows_show_every_connection_and_no_key() -> None:
    connections = {"local": Connection(base_url="http://127.0.0.1:9/v1", api_key_env="NONE")}
    rows = ModelRegistry(connections, environment={"OPENAI_API_KEY": "sk-secret"}).rows()
    assert [(row.name, row.base_url, row.key_set) for row in rows] == [
        ("local", "http://127.0.0.1:9/v1", False),
        ("openai", OPENAI_URL, True),
    ]
    assert "sk-secret" not in repr(rows)


def test_the_registry_alone_loads_no_http_library() -> None:
    program = "import sys, retinue.models.registry as r; r.ModelRegistry(); print('aiohttp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
