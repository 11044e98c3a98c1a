"""The entry of the command: answers `--version` at once, loads the rest when it is needed; it parses nothing itself."""

import importlib
import importlib.metadata
import os
import sys
import threading
from contextlib import suppress
from typing import Any


def main() -> None:
    """Run the command line of this process and leave with its exit code (SHAPES, The command)."""
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        sys.stdout.write(f"retinue {importlib.metadata.version('retinue')}\n")
        return
    _leave(importlib.import_module("retinue.cli.entry").execute(arguments))


def _leave(code: int) -> None:
    """End the process with `code`, also where a thread never ends (a tool that hangs, a pipe that nobody reads)."""
    stuck = [thread for thread in threading.enumerate() if thread is not threading.main_thread() and not thread.daemon]
    for stream in (sys.stdout, sys.stderr):
        # Whoever read it may be gone; then there is nothing left to write, and nobody to tell.
        with suppress(OSError, ValueError):
            stream.flush()
    if stuck:
        os._exit(code)
    sys.exit(code)


def __getattr__(name: str) -> Any:
    """Return the cyclopts `app`, made when somebody asks for it: the documentation does, `--version` does not."""
    if name == "app":
        return importlib.import_module("retinue.cli.commands").app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
