"""Notices that a store's files were deleted, moved or replaced under their owner; it never opens or changes one.

An open file goes on living without a name: what is committed to it then is acknowledged and lost. So the owner asks,
around each commit, whether the names still mean the files that it opened.
"""

import os
from pathlib import Path
from typing import Final

from retinue.ports import StoreError

_ENDINGS: Final = ("", "-wal")
"""The database and its write-ahead log, which holds what the database does not have yet."""


class SameFiles:
    """The files of one open store."""

    def __init__(self, path: str) -> None:
        """Keep what the names mean now; the store must be open. A log that is not there yet is met at a commit."""
        self._path: Final = path
        self._known: Final[dict[str, tuple[int, int]]] = {}
        self.require()

    def require(self) -> None:
        """Return while every name means the same file; raise `StoreError` naming the one that does not."""
        for ending in _ENDINGS:
            try:
                found = os.stat(self._path + ending)
            except (FileNotFoundError, NotADirectoryError):
                identity = None
            except OSError:
                # A folder that may not be entered any more says nothing about its files: they are open, and safe.
                return
            else:
                identity = found.st_dev, found.st_ino
                self._known.setdefault(ending, identity)
            if self._known.get(ending) != identity:
                raise StoreError(_sentence(self._path + ending))


def _sentence(path: str) -> str:
    what = "replaced by another file" if Path(path).exists() else "deleted or moved"
    return (
        f"The store's file {path} was {what} while its owner worked, so nothing more is written: "
        "it would be lost. Put the files of the data directory back together, then start again."
    )
