"""Runs one command line and turns refusals into sentences and exit codes; it knows no command's work."""

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Final

import cyclopts

from retinue.cli import printing
from retinue.cli.commands import app
from retinue.cli.later import later
from retinue.cli.streams import UnwrittenError, library_failed
from retinue.core.errors import RetinueError
from retinue.ports import StoreError

OK: Final = 0
REFUSED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 3
STORE: Final = 5
_STREAMING: Final = frozenset({"run", "demo", "chat"})
_STORE_CODES: Final = frozenset({"store_failed", "store_owned"})
_NO_FOLDER: Final = ("invalid", "The working directory is gone: somebody deleted it.", "Go to a folder that exists.")


def execute(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit code; everything it has to say is printed."""
    tokens = _tokens(arguments)
    as_json = "--json" in tokens[: tokens.index("--")] if "--" in tokens else "--json" in tokens
    streaming = bool(tokens) and tokens[0] in _STREAMING
    try:
        return _printed(tokens, as_json=as_json)
    except cyclopts.CycloptsError as error:
        printing.problem(later(tokens) or _usage(error, tokens), as_json=as_json)
        return USAGE
    except RetinueError as error:
        return _refused(error, as_json=as_json, streaming=streaming)
    except StoreError as error:
        refusal = RetinueError("store_failed", str(error), "Nothing was changed; 'retinue doctor' says more.")
        return _refused(refusal, as_json=as_json, streaming=streaming)


def _printed(tokens: Sequence[str], *, as_json: bool) -> int:
    """Run a command line; what the system refuses its output or its working directory is said here."""
    try:
        return _called(tokens)
    except UnwrittenError as error:
        printing.unwritten(error)
        return REFUSED
    except BrokenPipeError:
        return OK
    except FileNotFoundError:
        if _has_folder():
            raise
        printing.problem(RetinueError(*_NO_FOLDER), as_json=as_json)
        return USAGE


def _called(tokens: Sequence[str]) -> int:
    try:
        code = app(tokens, exit_on_error=False, print_error=False, result_action="return_value")
    except OSError as error:
        library_failed(sys.stdout, error)  # the library that prints the help
        raise
    return code if isinstance(code, int) else OK


def _refused(error: RetinueError, *, as_json: bool, streaming: bool) -> int:
    with contextlib.suppress(BrokenPipeError, UnwrittenError):
        printing.problem(error, as_json=as_json)
    if error.code in _STORE_CODES:
        return STORE
    if streaming:
        # A turn that was never opened did not fail: what was asked for cannot be done.
        return INTERRUPTED if error.code == "stopping" else USAGE
    return USAGE if error.code == "unknown_model" else REFUSED


def _has_folder() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def _tokens(arguments: Sequence[str]) -> list[str]:
    """Return the arguments without the `-` that means stdin: without a prompt stdin is read anyway."""
    if not arguments or arguments[0] != "run":
        return list(arguments)
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return [word for word in arguments[:end] if word != "-"] + list(arguments[end:])


def _usage(error: cyclopts.CycloptsError, tokens: Sequence[str]) -> RetinueError:
    hint = f"See 'retinue {' '.join([*_command_words(tokens), '--help'])}'."
    if isinstance(error, cyclopts.UnusedCliTokensError):
        extra = " ".join(repr(token) for token in error.unused_tokens or [])
        detail = f"There are more arguments than wanted: {extra}."
        return RetinueError("invalid", detail, f"Quote a text of several words. {hint}")
    return RetinueError("invalid", " ".join(str(error).split()), hint)


def _command_words(tokens: Sequence[str]) -> list[str]:
    """Return the words at the beginning that name a command."""
    words: list[str] = []
    here = app
    for token in tokens:
        if token.startswith("-") or token not in here:
            break
        words.append(token)
        here = here[token]
    return words
