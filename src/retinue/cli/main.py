"""The entry of the command: answers `--version` at once, loads the rest when it is needed; it parses nothing itself."""

import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from retinue.cli import streams

FAILED: Final = 1
KEYBOARD: Final = 130
"""The shell's code for a command that SIGINT ended before a turn could take it, or after one had ended."""
THREAD_END_MAX_S: Final = 0.2
"""Seconds that a thread has to end once its pool is closed; an idle one needs none of it."""


def main() -> None:
    """Run the command line of this process and leave with its exit code (SHAPES, The command)."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Whatever a KeyboardInterrupt would tear is made to be torn; only a turn has an ending to put on record.
        signal.signal(signal.SIGINT, _interrupted)
    streams.fill_gaps()
    _leave(_run(sys.argv[1:]))


def _interrupted(_number: int, _frame: object) -> None:
    os._exit(KEYBOARD)


def _run(arguments: Sequence[str]) -> int:
    if arguments == ["--version"]:
        version = importlib.import_module("importlib.metadata").version("retinue")
        return _sent(lambda: streams.send(sys.stdout, f"retinue {version}\n".encode()))
    code: int = importlib.import_module("retinue.cli.entry").execute(arguments)
    return code


def _leave(code: int) -> None:
    """End the process with `code`, also where a thread never ends (a tool that hangs, a pipe that nobody reads)."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(THREAD_END_MAX_S)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the code is known: nothing is left to be stopped
    flushed = _sent(lambda: streams.flush(sys.stdout))  # what a library has left in the buffer
    code = code or flushed
    with suppress(BrokenPipeError, streams.UnwrittenError):
        streams.flush(sys.stderr)
    if any(thread is not threading.main_thread() and not thread.daemon for thread in threading.enumerate()):
        os._exit(code)
    sys.exit(code)


def _sent(send: Callable[[], None]) -> int:
    """Return the exit code of writing to stdout."""
    try:
        send()
    except BrokenPipeError:
        return 0
    except streams.UnwrittenError as error:
        importlib.import_module("retinue.cli.printing").unwritten(error)
        return FAILED
    return 0


def __getattr__(name: str) -> Any:
    """Return the cyclopts `app`, made when somebody asks for it: the documentation does, `--version` does not."""
    if name == "app":
        return importlib.import_module("retinue.cli.commands").app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
