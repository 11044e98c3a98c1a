"""Each guard is shown to work: a copy of the project is broken once per guard, and the guard has to say so."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs import blocks
from tests.tidy import documented, rules
from tests.tidy.breakages import BANNED, HEAD, LINT

BIN = Path(sys.executable).parent
COPIED = ("src", "docs", "scripts", "tests/tidy")
BROKEN = "src/retinue/core/broken.py"


@pytest.fixture
def copy(tmp_path: Path, repository: Path) -> Path:
    """A copy of the project that a test may break."""
    for folder in COPIED:
        shutil.copytree(repository / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(repository / name, tmp_path / name)
    return tmp_path


def run(copy: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a tool of the build inside the copy, on the copy's sources."""
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, timeout=120, check=False)


def codes(copy: Path, text: str, path: str = BROKEN) -> set[str]:
    """Return the codes ruff finds in a module of that text."""
    (copy / path).parent.mkdir(parents=True, exist_ok=True)
    (copy / path).write_text(text, encoding="utf-8")
    found = run(copy, "ruff", "check", "--no-cache", "--output-format=json", path)
    return {complaint["code"] for complaint in json.loads(found.stdout)}


@pytest.mark.parametrize("code", LINT)
def test_ruff_sees_each_mistake_it_is_there_for(copy: Path, code: str) -> None:
    assert code in codes(copy, LINT[code])


@pytest.mark.parametrize("name", BANNED)
def test_ruff_sees_time_and_chance_outside_their_ports(copy: Path, name: str) -> None:
    assert "TID251" in codes(copy, HEAD + BANNED[name], "src/retinue/runtime/broken.py")


def test_the_pytest_rules_hold_in_tests(copy: Path) -> None:
    text = HEAD + "import pytest\n\n\n@pytest.fixture()\ndef broken():\n    return 1\n"
    assert "PT001" in codes(copy, text, "tests/tidy/test_broken.py")


def test_an_unformatted_file_is_seen(copy: Path) -> None:
    (copy / BROKEN).write_text(HEAD + "X = {  'a':1 }\n", encoding="utf-8")
    assert run(copy, "ruff", "format", "--no-cache", "--check", BROKEN).returncode == 1


IMPORTS = {
    "upward": ("ports.py", "import retinue.core.broken\nimport retinue.runtime.broken\n", "Imports point down"),
    "sibling": ("models/broken.py", "import retinue.stores.broken\n", "Imports point down"),
    "unknown layer": ("broken.py", "", "Imports point down"),
    "asyncio in core": ("core/broken.py", "import asyncio\n", "core imports no clock"),
    "a clock in core": ("core/broken.py", "from time import monotonic\n", "core imports no clock"),
    "SQL outside stores": ("runtime/broken.py", "import apsw\n", "Only stores import an SQL driver"),
    "a cycle in core": ("core/ids.py", "import retinue.core.events\n", "No cycles"),
    "a cycle in runtime": ("runtime/broken.py", "import retinue.runtime.other\n", "No cycles"),
}


@pytest.mark.parametrize("name", IMPORTS)
def test_import_linter_sees_an_import_that_breaks_the_layers(copy: Path, name: str) -> None:
    path, line, contract = IMPORTS[name]
    package = copy / "src" / "retinue"
    for other in ("core", "runtime", "stores"):
        (package / other / "broken.py").write_text(HEAD, encoding="utf-8")
    (package / "runtime" / "other.py").write_text("import retinue.runtime.broken\n", encoding="utf-8")
    (package / path).write_text(line, encoding="utf-8")
    seen = run(copy, "lint-imports", "--no-cache", "--no-logo")
    assert seen.returncode == 1
    assert any(contract in row and "BROKEN" in row for row in seen.stdout.splitlines()), seen.stdout


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("X: int = 'one'\n", "reportAssignmentType"),
        ("def f(x) -> None:\n    del x\n", "reportMissingParameterType"),
        ("X: int = 1  # pyright: ig" + "nore\n", "reportUnnecessaryTypeIgnoreComment"),
    ],
)
def test_basedpyright_sees_a_type_error(copy: Path, text: str, rule: str) -> None:
    config = (copy / "pyproject.toml").read_text(encoding="utf-8")
    for old, new in (
        ('include = ["src", "tests", "examples", "scripts", "benchmarks"]', f'include = ["{BROKEN}"]'),
        ('venv = ".venv"', ""),
    ):
        assert old in config
        config = config.replace(old, new)
    (copy / "pyproject.toml").write_text(config, encoding="utf-8")
    (copy / BROKEN).write_text(HEAD + text, encoding="utf-8")
    seen = run(copy, "basedpyright", "--pythonpath", sys.executable)
    assert seen.returncode == 1
    assert rule in seen.stdout, seen.stdout


_LONG = "\n".join(f"    x = {n}" for n in range(61))
_MIDDLING = "\n\n".join(f"def f{n}() -> None:\n" + "    print()\n" * 20 for n in range(1000))
TIDY = {
    "imports_at_the_top": (BROKEN, HEAD + "def f() -> None:\n    import json\n"),
    "to_dos_with_a_reason": (BROKEN, HEAD + "# TO" + "DO later\n"),
    "modules_open_with_a_sentence": (BROKEN, "X = 1\n"),
    "short_files": (BROKEN, HEAD + "X = 1\n" * 500),
    "short_functions": (BROKEN, f"{HEAD}def f() -> None:\n{_LONG}\n"),
    "small_functions_mostly": (BROKEN, HEAD + _MIDDLING),
    "telling_module_names": ("src/retinue/core/utils.py", HEAD),
    "silencers_with_a_reason": (BROKEN, HEAD + "import json  # no" + "qa: F401\n"),
    "no_places": ("docs/broken.md", "See /ro" + "ot/project.\n"),
    "core_needs_only_msgspec": (BROKEN, HEAD + "import numpy\n"),
    "nobody_imports_the_front": (BROKEN, HEAD + "from retinue import Runtime\n"),
}


@pytest.mark.parametrize("name", rules.RULES)
def test_the_tidy_test_sees_each_untidiness(copy: Path, name: str) -> None:
    path, text = TIDY[name]
    before = set(rules.RULES[name](copy))
    (copy / path).write_text(text, encoding="utf-8")
    assert set(rules.RULES[name](copy)) - before


@pytest.mark.parametrize("silencer", ["no" + "qa", "ruff: no" + "qa", "type: ig" + "nore", "pragma: no cover"])
def test_a_silencer_without_rule_or_reason_is_seen(copy: Path, silencer: str) -> None:
    (copy / BROKEN).write_text(f"{HEAD}X = 1  # {silencer}\n", encoding="utf-8")
    assert rules.silencers_with_a_reason(copy)


def _without(page: str, mark: str) -> Callable[[Path], object]:
    def cut(root: Path) -> None:
        path = root / page
        text = path.read_text(encoding="utf-8")
        assert mark in text
        path.write_text(text.replace(mark, ""), encoding="utf-8")

    return cut


def _with_name(root: Path) -> None:
    front = root / "src" / "retinue" / "__init__.py"
    front.write_text('__all__ = ["a_new_name"]\n', encoding="utf-8")


DOCUMENTED = {
    "events_are_documented": _without("docs/events.md", "### `run.queued`"),
    "errors_are_documented": _without("docs/errors.md", "| `no_claim` |"),
    "settings_are_documented": _without("docs/settings.md", "| `caps.max_depth` |"),
    "flags_are_documented": _without("docs/cli.md", "`--data-dir`"),
    "public_names_are_pinned": _with_name,
    "public_names_are_documented": _with_name,
    "generated_pages_are_fresh": _without("docs/events.md", "A run was accepted."),
}


@pytest.mark.parametrize("name", documented.RULES)
def test_a_page_that_does_not_say_what_the_code_says_is_seen(copy: Path, name: str) -> None:
    assert documented.RULES[name](copy) == []
    DOCUMENTED[name](copy)
    assert documented.RULES[name](copy)


def test_a_block_of_the_pages_that_does_not_run_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python run\nraise SystemExit(3)\n```\n", encoding="utf-8")
    (block,) = blocks.runnable(page)
    assert blocks.run(block, tmp_path).returncode == 3


def test_the_coverage_gate_sees_an_untested_branch(tmp_path: Path, repository: Path) -> None:
    for layer in ("core", "runtime"):
        module = tmp_path / "retinue" / layer / "half.py"
        module.parent.mkdir(parents=True)
        (module.parent / "__init__.py").touch()
        module.write_text("import sys\nif len(sys.argv) > 5:\n    print()\n", encoding="utf-8")
    (tmp_path / "retinue" / "__init__.py").touch()
    main = tmp_path / "main.py"
    main.write_text("import retinue.core.half\nimport retinue.runtime.half\n", encoding="utf-8")
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    cover = (sys.executable, "-m", "coverage", "run", "--branch", str(main))
    for command in (cover, (str(repository / "scripts" / "coverage-gate"),)):
        last = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
    assert last.returncode == 2, last.stdout + last.stderr
