"""The safe walk from a workspace to a file or folder inside it; it never follows a link blindly and never writes.

Every open starts at a descriptor of the workspace and takes one component at a time, without following. A link is
read and resolved here, against the descriptors already held, so swapping a component between check and open gains
nothing. Names are shown escaped (`shown`), and an escaped name is understood again when a model gives it back.
"""

import os
import re
import stat
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from retinue.core.errors import RetinueError

PATH_CHARS_MAX: Final = 4096
QUOTED_CHARS_MAX: Final = 200
LINKS_MAX: Final = 40
SCAN_ENTRIES_MAX: Final = 100_000
"""Entries of one folder that are looked at; what lies beyond is said to be left out."""

_FILE_FLAGS: Final = (
    os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
)
_DIR_FLAGS: Final = _FILE_FLAGS | getattr(os, "O_DIRECTORY", 0)
_KERNEL_TREES: Final = ("/proc", "/sys")
_NAMED_ESCAPES: Final = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\"}
_PLAIN_OF: Final = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}
_ESCAPE: Final = re.compile(r"\\(?:([ntr\\])|x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")
_BYTE_SURROGATES: Final = range(0xDC80, 0xDD00)
"""Code points by which Python stands for bytes of a name that are not UTF-8."""

Identity = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Place:
    """An open file or folder: its descriptor (closed by the walk), its real path's parts, what `fstat` said."""

    fd: int
    parts: tuple[str, ...]
    info: os.stat_result

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return stat.S_ISDIR(self.info.st_mode)

    @property
    def shown(self) -> str:
        """The path from the workspace as models read it, `.` for the workspace itself."""
        return shown_path(self.parts)


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a folder, not followed. `target` is where a link points, `size_bytes` is 0 unless a file."""

    name: str
    kind: str
    """`dir`, `file`, `link` or `other` (device, pipe, socket, or unreadable)."""
    size_bytes: int
    target: str = ""


def shown(name: str) -> str:
    """Return a name on one line: control characters, backslashes and bytes that are not UTF-8 are escaped."""
    if name.isprintable() and "\\" not in name:
        return name
    return "".join(char if char.isprintable() and char != "\\" else _escaped(char) for char in name)


def _escaped(char: str) -> str:
    code = ord(char)
    if char in _NAMED_ESCAPES:
        return _NAMED_ESCAPES[char]
    if code in _BYTE_SURROGATES:
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def meant(name: str) -> str:
    """Return the name that `shown` showed as this; a name without such escapes is returned as it is."""
    return _ESCAPE.sub(_unescaped, name)


def _unescaped(found: re.Match[str]) -> str:
    plain, byte, short, long = found.groups()
    if plain is not None:
        return _PLAIN_OF[plain]
    if byte is not None:
        code = int(byte, 16)
        return chr(code if code < 0x80 else 0xDC00 + code)
    code = int(short or long, 16)
    return chr(code) if code <= 0x10FFFF else found[0]


def shown_path(parts: tuple[str, ...]) -> str:
    """Return a path from the workspace as models read it, `.` for the workspace itself."""
    return "/".join(map(shown, parts)) or "."


class Workspace:
    """A folder that tools may read in, without the data directory. Every method blocks."""

    def __init__(self, cwd: str, data_dir: str) -> None:
        """Look at both folders; nothing is opened yet.

        Raises:
            RetinueError: `unsupported` where the system cannot open files relative to a folder; `outside_workspace`
                where the working directory lies inside the data directory.
            OSError: the working directory is not there.
        """
        if os.open not in os.supports_dir_fd:
            raise RetinueError(
                "unsupported", "This system cannot open files safely inside a folder.", "Use Linux or macOS."
            )
        real = Path(cwd).resolve(strict=True)
        hidden = Path(data_dir).resolve()
        if real == hidden or hidden in real.parents:
            raise _in_data_dir()
        self._bases: Final = tuple(dict.fromkeys((os.path.normpath(cwd), str(real))))
        self._root: Final = str(real)
        self._hidden: Final = _identity_of(data_dir)
        self._kernel: Final = _kernel_devices() - {Path("/").stat().st_dev}

    @contextmanager
    def open(self, path: str) -> Generator[Place, None, None]:
        """Open a file or folder by the path that a model gave, for the time of the `with` block.

        Raises:
            RetinueError: `outside_workspace`, `not_found`, or `invalid` for what is neither a file nor a folder.
            OSError: the system refuses it.
        """
        if "\0" in path or len(path) > PATH_CHARS_MAX:
            raise RetinueError(
                "invalid", f"A path has at most {PATH_CHARS_MAX} characters and no NUL.", "Correct the path."
            )
        with self._walk(self._relative(path, path).split("/"), path) as place:
            yield place

    @contextmanager
    def open_parts(self, parts: tuple[str, ...]) -> Generator[Place, None, None]:
        """Open a file or folder by real names, as `Place.parts` and `entries` gave them. Raises as `open`."""
        with self._walk([name.replace("\\", "\\\\") for name in parts], "/".join(parts)) as place:
            yield place

    def entries(self, place: Place) -> tuple[list[Entry], bool]:
        """Return what a folder holds, sorted by name, without the data directory, and whether all of it was seen."""
        found: list[Entry] = []
        with os.scandir(place.fd) as scan:
            for number, item in enumerate(scan):
                if number >= SCAN_ENTRIES_MAX:
                    return sorted(found, key=_by_name), False
                entry = self._entry(item, place.fd)
                if entry is not None:
                    found.append(entry)
        return sorted(found, key=_by_name), True

    def count(self, place: Place, entries_max: int) -> int:
        """Return how many entries a folder has, at most `entries_max`, the data directory not counted."""
        with os.scandir(place.fd) as scan:
            names = islice(scan, entries_max)
            return sum(1 for item in names if self._hidden is None or item.inode() != self._hidden[1])

    @contextmanager
    def open_entry(self, folder: Place, entry: Entry) -> Generator[Place, None, None]:
        """Open one entry of an open folder, for the time of the `with` block. Raises as `open`."""
        fd, info = self.enter(folder.fd, entry.name, entry.name)
        try:
            yield Place(fd=fd, parts=(*folder.parts, entry.name), info=info)
        finally:
            os.close(fd)

    def _entry(self, item: "os.DirEntry[str]", folder_fd: int) -> Entry | None:
        try:
            info = item.stat(follow_symlinks=False)
            target = os.readlink(item.name, dir_fd=folder_fd) if stat.S_ISLNK(info.st_mode) else ""
        except OSError:
            return Entry(name=item.name, kind="other", size_bytes=0)
        if stat.S_ISDIR(info.st_mode):
            return None if (info.st_dev, info.st_ino) == self._hidden else Entry(item.name, "dir", 0)
        if stat.S_ISREG(info.st_mode):
            return Entry(item.name, "file", info.st_size)
        if stat.S_ISLNK(info.st_mode):
            return Entry(item.name, "link", 0, target)
        return Entry(item.name, "other", 0)

    def _relative(self, path: str, asked: str) -> str:
        """Return an absolute path inside the workspace as one from the workspace."""
        if not path.startswith("/"):
            return path
        for base in self._bases:
            if path == base or path.startswith(base.rstrip("/") + "/"):
                return path[len(base) :].lstrip("/")
        raise _outside(asked)

    @contextmanager
    def _walk(self, names: list[str], asked: str) -> Generator[Place, None, None]:
        root = os.open(self._root, _DIR_FLAGS)
        walk = _Walk(self, asked, Place(fd=root, parts=(), info=os.fstat(root)))
        try:
            walk.check(walk.stack[0].info)
            yield walk.to(names)
        finally:
            for place in walk.stack:
                os.close(place.fd)

    def enter(self, folder_fd: int, name: str, asked: str) -> tuple[int, os.stat_result]:
        """Open one name without following it; refuse what is neither a file nor a folder before and after opening."""
        before = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
        _require_plain(before, asked)
        fd = os.open(name, _DIR_FLAGS if stat.S_ISDIR(before.st_mode) else _FILE_FLAGS, dir_fd=folder_fd)
        try:
            info = os.fstat(fd)
            _require_plain(info, asked)
            self.check(info, asked)
        except BaseException:
            os.close(fd)
            raise
        return fd, info

    def check(self, info: os.stat_result, asked: str) -> None:
        """Refuse the data directory and the kernel's own trees."""
        if (info.st_dev, info.st_ino) == self._hidden:
            raise _in_data_dir()
        if info.st_dev in self._kernel:
            raise _outside(asked)

    def link_names(self, target: str, asked: str) -> list[str]:
        """Return the names a link's target adds; an absolute one must lie inside the workspace."""
        return self._relative(target, asked).split("/")


class _Walk:
    """One walk: the folders held open, outermost first, and the way still to go."""

    def __init__(self, workspace: Workspace, asked: str, root: Place) -> None:
        self.workspace: Final = workspace
        self.asked: Final = asked
        self.stack: Final = [root]
        self.todo: Final[deque[str]] = deque()
        self.links = 0

    def check(self, info: os.stat_result) -> None:
        self.workspace.check(info, self.asked)

    def to(self, names: list[str]) -> Place:
        self.todo.extend(names)
        while self.todo:
            name = self.todo.popleft()
            if name == "..":
                self._up()
            elif name not in ("", "."):
                self._down(name)
        return self.stack[-1]

    def _up(self) -> None:
        if len(self.stack) == 1:
            raise _outside(self.asked)
        self._require_folder()
        os.close(self.stack.pop().fd)

    def _down(self, spelled: str) -> None:
        self._require_folder()
        here = self.stack[-1]
        name, info = self._look(here.fd, spelled)
        if stat.S_ISLNK(info.st_mode):
            self._follow(os.readlink(name, dir_fd=here.fd))
            return
        fd, info = self.workspace.enter(here.fd, name, self.asked)
        self.stack.append(Place(fd=fd, parts=(*here.parts, name), info=info))

    def _require_folder(self) -> None:
        if not self.stack[-1].is_folder:
            raise RetinueError(
                "invalid", f"A part of {quoted(self.asked)} is a file, not a folder.", "Name the file itself."
            )

    def _look(self, folder_fd: int, spelled: str) -> tuple[str, os.stat_result]:
        """Return the real name and what it is; an escaped name is tried as what it stands for first."""
        for name in dict.fromkeys((meant(spelled), spelled)):
            if "/" in name or "\0" in name or name in (".", ".."):
                continue
            try:
                return name, os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
            except (FileNotFoundError, UnicodeEncodeError):
                continue
        raise RetinueError(
            "not_found",
            f"There is no file or folder {quoted(self.asked)} in the workspace.",
            "List the folder to see its names.",
        )

    def _follow(self, target: str) -> None:
        self.links += 1
        if self.links > LINKS_MAX:
            raise RetinueError("invalid", f"{quoted(self.asked)} leads through too many links.", "Name the real file.")
        names = self.workspace.link_names(target, self.asked)
        if target.startswith("/"):
            while len(self.stack) > 1:
                os.close(self.stack.pop().fd)
        self.todo.extendleft(name.replace("\\", "\\\\") for name in reversed(names))


def _by_name(entry: Entry) -> str:
    return entry.name


def _require_plain(info: os.stat_result, asked: str) -> None:
    if not stat.S_ISDIR(info.st_mode) and not stat.S_ISREG(info.st_mode):
        raise RetinueError(
            "invalid",
            f"{quoted(asked)} is a device, pipe, socket or moving link, not a file.",
            "Read ordinary files only.",
        )


def _identity_of(folder: str) -> Identity | None:
    try:
        info = os.stat(folder)
    except OSError:
        return None
    return info.st_dev, info.st_ino


def _kernel_devices() -> set[int]:
    """Return the devices of file systems that show processes, the environment with its keys among it."""
    return {found[0] for found in map(_identity_of, _KERNEL_TREES) if found is not None}


def quoted(path: str) -> str:
    """Return a path in quotes for a sentence, on one line and bounded."""
    name = shown(path)
    return f"'{name if len(name) <= QUOTED_CHARS_MAX else name[:QUOTED_CHARS_MAX] + '…'}'"


def _outside(path: str) -> RetinueError:
    return RetinueError(
        "outside_workspace", f"{quoted(path)} lies outside the workspace.", "Use a path inside the working directory."
    )


def _in_data_dir() -> RetinueError:
    return RetinueError("outside_workspace", "The data directory is closed to tools.", "Leave that folder out.")
