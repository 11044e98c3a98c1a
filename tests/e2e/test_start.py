"""What a start costs: the names alone load no provider, server or terminal library, and `--version` answers at once."""

import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.kit import COMMAND, environment, retinue

VERSION_CPU_MAX_S = 0.150
HEAVY = {"aiohttp", "rich", "cyclopts", "uvicorn", "fastapi", "pydantic", "httpx", "anthropic", "openai"}


def _loaded(folder: Path, code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", code],
        env=environment(folder),
        capture_output=True,
        text=True,
        check=True,
    )
    return {line.rsplit("|", 1)[1].strip().partition(".")[0] for line in done.stderr.splitlines() if "|" in line}


@pytest.mark.parametrize("code", ["import retinue", "import retinue; retinue.open; retinue.Runtime; retinue.tool"])
def test_importing_the_package_loads_no_provider_server_or_terminal_library(tmp_path: Path, code: str) -> None:
    loaded = _loaded(tmp_path, code)
    assert "retinue" in loaded
    assert not loaded & HEAVY


def _cpu_of_version(folder: Path) -> float:
    before = os.times()
    subprocess.run([*COMMAND, "--version"], env=environment(folder), stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    return after.children_user - before.children_user + after.children_system - before.children_system


def test_the_version_is_said_within_its_budget_of_processor_time(tmp_path: Path) -> None:
    assert statistics.median(_cpu_of_version(tmp_path) for _ in range(10)) <= VERSION_CPU_MAX_S


def test_the_version_is_the_packages(tmp_path: Path) -> None:
    ran = retinue(tmp_path, "--version")
    assert (ran.code, ran.out.split()[0], ran.err) == (0, "retinue", "")


@pytest.mark.parametrize(
    "command", [(), ("run",), ("runs", "cancel"), ("sessions", "list"), ("config", "show"), ("demo",)]
)
def test_every_command_has_a_help(tmp_path: Path, command: tuple[str, ...]) -> None:
    ran = retinue(tmp_path, *command, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert "Usage: retinue" in ran.out
