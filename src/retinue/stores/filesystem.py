"""Says whether a folder lies on a network file system, where SQLite's locks may not hold; it only asks the system."""

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

MOUNTS: Final = Path("/proc/self/mounts")
FUSE: Final = 0x65735546
"""Programs serve these file systems; only the mount's own name says whether over a network."""
_KINDS: Final = {
    0x6969: "nfs",
    0x517B: "smb",
    0xFE534D42: "smb2",
    0xFF534D42: "cifs",
    0x01021997: "9p",
    0x5346414F: "afs",
    0x6B414653: "afs",
    0x73757245: "coda",
    0x00C36400: "ceph",
    0x0BD00BD0: "lustre",
    0x01161970: "gfs2",
    0x7461636F: "ocfs2",
    0x47504653: "gpfs",
    0x19830326: "beegfs",
    0x564C: "ncpfs",
}
"""The type that statfs(2) reports → its name."""
_FUSE_KINDS: Final = frozenset(
    {"fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "fuse.ceph", "fuse.davfs", "fuse.curlftpfs"}
)
_STATFS_BYTES: Final = 512
"""More than any system's `struct statfs`, whose first word is the type."""

Probe = Callable[[str], int | None]


def statfs_type(path: str) -> int | None:
    """Return the type of the file system a path lies on, as Linux numbers them; null where the system does not say."""
    if sys.platform != "linux":
        return None
    found = (ctypes.c_long * (_STATFS_BYTES // ctypes.sizeof(ctypes.c_long)))()
    if ctypes.CDLL(None).statfs(os.fsencode(path), ctypes.byref(found)) != 0:
        return None
    return int(found[0]) & 0xFFFF_FFFF


def network_file_system(folder: str | Path, probe: Probe = statfs_type, mounts: Path = MOUNTS) -> str | None:
    """Return the name of the network file system that a folder (or its nearest existing parent) lies on, else null."""
    place = Path(folder).absolute()
    while not os.path.lexists(place) and place != place.parent:
        place = place.parent
    kind = probe(str(place))
    if kind == FUSE:
        mounted = _mounted_as(os.path.realpath(place), mounts)
        return mounted if mounted in _FUSE_KINDS else None
    return None if kind is None else _KINDS.get(kind)


def warning(folder: str | Path, kind: str) -> str:
    """Return the sentence about a data directory on a network file system."""
    return f"The data directory {folder} lies on a network file system ({kind}), where SQLite's locks may not hold."


def _mounted_as(path: str, table: Path) -> str:
    """Return the type of the mount that a real path lies in, empty where the system does not say."""
    try:
        mounts = [entry.split() for entry in table.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return ""
    inside = [(entry[1], entry[2]) for entry in mounts if len(entry) > 2 and _is_inside(path, entry[1])]
    return max(inside, key=lambda entry: len(entry[0]), default=("", ""))[1]


def _is_inside(path: str, mount: str) -> bool:
    return path == mount or path.startswith(mount.rstrip("/") + "/")
