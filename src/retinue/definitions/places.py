"""Where a project begins, and the one safe way to a file in it: through no link that leads out; it knows no format.

A path is resolved first and must then lie where it should; it is opened part by part without following anything, so
that a folder swapped for a link in between gains nothing. What is no ordinary file is not opened at all.
"""

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

PARENTS_MAX: Final = 64
KERNEL_TREES: Final = (Path("/proc"), Path("/sys"))
"""File systems that show processes, the environment with its keys among it."""

_FILE_FLAGS: Final = (
    os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
)
_DIR_FLAGS: Final = _FILE_FLAGS | getattr(os, "O_DIRECTORY", 0)


class Unusable(Exception):  # noqa: N818 - the file is unusable; it is no error of ours
    """A file that is not read; the message is one sentence without a path."""


def project_folders(cwd: Path, home: Path | None) -> list[Path]:
    """Return a real working directory and its parents up to the project's root, never the home directory.

    The root is the nearest folder that holds `.git`; where there is none, only the working directory is returned.
    """
    way: list[Path] = []
    for folder in [cwd, *cwd.parents][:PARENTS_MAX]:
        if folder == home:
            break
        way.append(folder)
        if os.path.exists(folder / ".git"):  # Path.exists raises where a folder may not be searched
            return way
    return way[:1]


def real_below(path: Path, inside: Path, closed: Sequence[Path] = ()) -> Path:
    """Return the real path of something that lies in `inside` and in no `closed` folder. Raises `Unusable`. Blocks."""
    return _resolved(path, inside, closed)[1]


def read_below(path: Path, inside: Path, bytes_max: int, closed: Sequence[Path] = ()) -> tuple[bytes, int]:
    """Return the first bytes of an ordinary file in `inside`, and how many it has. Raises `Unusable`. Blocks."""
    top, real = _resolved(path, inside, closed)
    try:
        with os.fdopen(_opened(top, real.relative_to(top).parts), "rb") as file:
            info = os.fstat(file.fileno())
            _require_ordinary(info)
            return file.read(bytes_max), info.st_size
    except OSError as error:
        raise _unreadable(error) from error


def _resolved(path: Path, inside: Path, closed: Sequence[Path]) -> tuple[Path, Path]:
    try:
        top, real = Path(os.path.realpath(inside, strict=True)), Path(os.path.realpath(path, strict=True))
    except (OSError, ValueError) as error:
        raise _unreadable(error) from error
    if not real.is_relative_to(top):
        raise Unusable("It leads out of its place.")
    if any(real.is_relative_to(folder) for folder in (*closed, *KERNEL_TREES)):
        raise Unusable("It leads into a folder that is closed to agents.")
    return top, real


def _opened(top: Path, parts: tuple[str, ...]) -> int:
    """Return the descriptor of a file, every part of its path opened without following a link."""
    if not parts or os.open not in os.supports_dir_fd:
        _require_ordinary(os.stat(top.joinpath(*parts), follow_symlinks=False))
        return os.open(top.joinpath(*parts), _FILE_FLAGS)
    here = os.open(top, _DIR_FLAGS)
    for part in parts[:-1]:
        try:
            inner = os.open(part, _DIR_FLAGS, dir_fd=here)
        finally:
            os.close(here)
        here = inner
    try:
        _require_ordinary(os.stat(parts[-1], dir_fd=here, follow_symlinks=False))
        return os.open(parts[-1], _FILE_FLAGS, dir_fd=here)
    finally:
        os.close(here)


def _require_ordinary(info: os.stat_result) -> None:
    if not stat.S_ISREG(info.st_mode):
        raise Unusable("It is no ordinary file.")


def _unreadable(error: OSError | ValueError) -> Unusable:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else "its path is no path"
    return Unusable(f"It cannot be read: {reason}.")
