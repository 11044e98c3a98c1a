"""Each contradiction that the policies decide is told as the code decides it, and proved by tests that exist."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from retinue.core import policy
from scripts import generate_docs

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "policies.md"
QUESTIONS = range(1, 38)
COMES_LATER = {24: "rights", 26: "rights", 27: "rights"}
"""The rows that no test can prove before the part they come with."""
ROW = re.compile(r"^### (?P<number>\d+)\. (?P<question>.+)\n(?P<body>(?:(?!^#).*\n)*)", re.MULTILINE)
SWITCH = re.compile(r"^\| `(?P<name>[\w.]+)` \| (?P<values>.+) \|$", re.MULTILINE)
HEAD = f"| switch | {' | '.join(policy.NAMES)} |"
PROOF = re.compile(r"`(?P<file>tests/[\w/]+\.py)::(?P<test>\w+)`")
LATER = re.compile(r"^Comes with (?P<what>\w+)\.$", re.MULTILINE)


class Row(NamedTuple):
    """One question of the page and what stands below it."""

    number: int
    question: str
    body: str


def rows(page: str) -> list[Row]:
    """Return the questions of the page, in its order."""
    return [Row(int(found["number"]), found["question"], found["body"]) for found in ROW.finditer(page)]


@cache
def defined_in(path: Path) -> set[str]:
    """Return the names of the tests that a file defines."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, functions) and node.name.startswith("test_")}


def complaints(page: str, root: Path = ROOT) -> list[str]:
    """Return what is wrong with the page, in sentences."""
    found = rows(page)
    numbers = [row.number for row in found]
    wrong = [] if numbers == list(QUESTIONS) else [f"the questions are {numbers}, not 1 to 37 each once"]
    for row in found:
        wrong += [f"row {row.number}: {what}" for what in (*_values(row), *_proofs(row, root))]
    return wrong


def _values(row: Row) -> list[str]:
    told = list(SWITCH.finditer(row.body))
    wrong = [] if told or "*always" in row.body.lower() else ["names no switch and does not say that it always holds"]
    if told and HEAD not in row.body:
        wrong.append("its table does not name the five policies in their order")
    for switch in told:
        key = policy.KEYS.get(switch["name"])
        values = switch["values"].split(" | ")
        if key is None:
            wrong.append(f"there is no switch {switch['name']}")
        elif values != [policy.show(policy.named(name)[key.name]) for name in policy.NAMES]:
            wrong.append(f"{key.name} has other values than core/policy.py")
    return wrong


def _proofs(row: Row, root: Path) -> list[str]:
    later = LATER.search(row.body)
    if later is not None:
        said = later["what"]
        return [] if COMES_LATER.get(row.number) == said else [f"is not among the rows that come with {said}"]
    proofs = list(PROOF.finditer(row.body))
    missing = [proof[0] for proof in proofs if not _exists(root / proof["file"], proof["test"])]
    return [f"there is no test {name}" for name in missing] if proofs else ["no test proves it"]


def _exists(path: Path, test: str) -> bool:
    return path.is_file() and test in defined_in(path)


@pytest.fixture
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_each_of_the_37_contradictions_is_decided_as_the_code_says_and_proved_by_tests_that_exist(page: str) -> None:
    assert complaints(page) == []


def test_the_whole_table_of_the_page_is_the_one_of_the_code(page: str) -> None:
    table = page.partition("<!-- generated: switches -->")[2].partition("<!-- end -->")[0].strip()
    assert HEAD in table
    assert [found["name"] for found in SWITCH.finditer(table)] == list(policy.KEYS)
    assert table == generate_docs.switch_blocks()


def test_every_switch_that_the_policies_disagree_on_is_part_of_a_row_or_of_no_contradiction(page: str) -> None:
    in_rows = {switch["name"] for row in rows(page) for switch in SWITCH.finditer(row.body)}
    disagreed = {key.name for key in policy.TABLE if len({policy.show(value) for value in key.columns}) > 1}
    assert disagreed - in_rows == {"step.parallel_tools_max", "hooks.on_failure"}


def _row(page: str, number: int) -> str:
    return next(found[0] for found in ROW.finditer(page) if int(found["number"]) == number)


@pytest.mark.parametrize(
    ("number", "pattern", "put", "complaint"),
    [
        (1, r"`tests/[^`]+`", "a test", "row 1: no test proves it"),
        (3, r"::test_\w+", "::test_that_was_renamed", "row 3: there is no test"),
        (3, r"tests/[\w/]+\.py", "tests/gone.py", "row 3: there is no test"),
        (6, r"\| push \| push", "| pull | push", "row 6: result.delivery has other values"),
        (6, r"result\.delivery", "result.way", "row 6: there is no switch result.way"),
        (7, r"\| courier \| resident", "| resident | courier", "row 7: its table does not name"),
        (5, r"(?s)\*Always\*", "Mostly", "row 5: names no switch"),
        (2, r"(?s)Proved by.*", "Comes with roles.\n", "row 2: is not among the rows that come with roles"),
        (24, r"Comes with rights\.", "Comes with roles.", "row 24: is not among the rows that come with roles"),
        (37, r"(?s).*", "", "not 1 to 37"),
    ],
)
def test_a_page_that_is_wrong_in_one_row_is_seen(
    page: str, number: int, pattern: str, put: str, complaint: str
) -> None:
    old = _row(page, number)
    new = re.sub(pattern, put, old)
    assert new != old
    assert any(complaint in said for said in complaints(page.replace(old, new)))
