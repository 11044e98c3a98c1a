"""What the pages show runs, and what they link to exists."""

import re
import shutil
from pathlib import Path

import pytest

from tests.docs import blocks

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
BLOCKS = {block.where: block for page in PAGES for block in blocks.runnable(page)}
LINK = re.compile(r"\]\((?P<target>[^)#\s]*)(?:#(?P<part>[^)\s]*))?\)")


def test_the_readme_has_blocks_that_run() -> None:
    assert {block.language for block in blocks.runnable(ROOT / "README.md")} >= {"python", "console"}


@pytest.mark.parametrize("where", BLOCKS)
def test_a_block_that_the_pages_show_runs(where: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "README.md", tmp_path / "README.md")
    ran = blocks.run(BLOCKS[where], tmp_path)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def _anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_a_link_of_the_pages_leads_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for found in LINK.finditer(text):
        if "://" in found["target"]:
            continue
        target = (page.parent / found["target"]).resolve() if found["target"] else page
        assert target.exists(), f"{page.name}: {found[0]}"
        assert not found["part"] or found["part"] in _anchors(target), f"{page.name}: {found[0]}"
