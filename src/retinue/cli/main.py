"""The entry of the command: answers `--version` at once, loads the rest when it is needed; it parses nothing itself."""

import importlib
import importlib.metadata
import os
import sys
import threading
from typing import Any, Final, TextIO

THREAD_END_MAX_S: Final = 0.2
"""Seconds that a thread has to end once its pool is closed; an idle one needs none of it."""


def main() -> None:
    """Run the command line of this process and leave with its exit code (SHAPES, The command)."""
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        sys.stdout.write(f"retinue {importlib.metadata.version('retinue')}\n")
        return
    _leave(importlib.import_module("retinue.cli.entry").execute(arguments))


def _leave(code: int) -> None:
    """End the process with `code`, also where a thread never ends (a tool that hangs, a pipe that nobody reads)."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(THREAD_END_MAX_S)
    for stream in (sys.stdout, sys.stderr):
        _flush(stream)
    if any(thread is not threading.main_thread() and not thread.daemon for thread in threading.enumerate()):
        os._exit(code)
    sys.exit(code)


def _flush(stream: TextIO) -> None:
    try:
        stream.flush()
    except (OSError, ValueError):
        # Whoever read it is gone; what is still buffered goes nowhere, so that the interpreter does not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def __getattr__(name: str) -> Any:
    """Return the cyclopts `app`, made when somebody asks for it: the documentation does, `--version` does not."""
    if name == "app":
        return importlib.import_module("retinue.cli.commands").app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
