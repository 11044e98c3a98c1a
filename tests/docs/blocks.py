"""Finds the blocks of a page that are marked as runnable and runs one; it never changes the page.

A block is runnable when the word `run` stands after its language: ```` ```python run ````, ```` ```console run ````.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(r"^```(?P<language>python|bash|console) run$\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
SECONDS_MAX = 60


class Block(NamedTuple):
    """One runnable block and where it stands."""

    where: str
    language: str
    text: str


def runnable(page: Path) -> list[Block]:
    """Return the runnable blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(f"{page.name}:{text.count(chr(10), 0, found.start()) + 1}", found["language"], found["text"])
        for found in FENCE.finditer(text)
    ]


def run(block: Block, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a block in a folder, with no key, no model and no data directory in its environment.

    Of a `console` block the lines that begin with `$ ` are run; what stands between them is for the reader.
    """
    lines = [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
    script = "\n".join(lines) if block.language == "console" else block.text
    command = (
        [sys.executable, "-c", script] if block.language == "python" else ["bash", "-euo", "pipefail", "-c", script]
    )
    own = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "ANTHROPIC_", "RETINUE_"))}
    own["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{own['PATH']}"
    return subprocess.run(
        command, cwd=folder, env=own, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
