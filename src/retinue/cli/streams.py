"""The three standard streams: that they are there, and what a failed write means; it words nothing."""

import errno
import os
import stat
import sys
from contextlib import suppress
from typing import Final, TextIO

_GONE: Final = frozenset({errno.EIO, errno.ENXIO})
"""What a terminal says of every write once it was closed."""
_OF_WRITES: Final = _GONE | {errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.ENOSPC}


class UnwrittenError(Exception):
    """A stream took no more though nobody closed it from the other end: a full disk, a closed descriptor.

    Attributes:
        reason: the system's words.
    """

    def __init__(self, cause: OSError) -> None:
        """Keep why."""
        self.reason = "it is closed" if cause.errno == errno.EBADF else (cause.strerror or str(cause)).lower()
        super().__init__(self.reason)


def fill_gaps() -> None:
    """Give the number of a stream that was closed to nothing, before a file of ours gets it.

    Writing to a closed stdout fails then, as it should; what goes to a closed stderr is lost without a word.
    """
    for number, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # the lowest free number is this one
    # The type says that they are always there; Python sets what was closed to None.
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - lives on


def send(stream: TextIO, data: bytes) -> None:
    """Write and flush; raise `BrokenPipeError` where the reader is gone, `UnwrittenError` where it cannot be written.

    After either the stream leads nowhere, so that nothing complains once more when the process ends.
    """
    try:
        stream.buffer.write(data)
        stream.buffer.flush()
    except OSError as cause:
        raise _given_up(stream, cause) from cause


def flush(stream: TextIO) -> None:
    """Write what is buffered; raise as `send` does."""
    try:
        stream.flush()
    except OSError as cause:
        raise _given_up(stream, cause) from cause


def library_failed(stream: TextIO, cause: OSError) -> None:
    """Raise as `send` does where a library, whose writing it was, met the fault; return where it was something else."""
    if cause.filename is None and cause.errno in _OF_WRITES:
        raise _given_up(stream, cause) from cause


def _given_up(stream: TextIO, cause: OSError) -> Exception:
    gone = isinstance(cause, BrokenPipeError) or (cause.errno in _GONE and _is_device(stream))
    with suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
        stream.flush()
    return BrokenPipeError(errno.EPIPE, "the reader is gone") if gone else UnwrittenError(cause)


def _is_device(stream: TextIO) -> bool:
    try:
        return stat.S_ISCHR(os.fstat(stream.fileno()).st_mode)
    except OSError:
        return False
