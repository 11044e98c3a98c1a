"""Which files of projects a person trusts to start commands: by path and content, kept per user; it runs nothing.

A cloned project can bring a file that names a command. It acts only after the person has said so, for exactly this
content: a changed file asks again. The list lies outside every project, so that no project can bring its own.
"""

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Final

import msgspec
import platformdirs

from retinue.core.errors import RetinueError

FILE_MAX_BYTES: Final = 1024 * 1024
LIST: Final = "trusted.json"
LIST_MAX_BYTES: Final = 16 * 1024 * 1024


class TrustedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file with the digest of the content that is trusted."""

    path: str
    sha256: str


class Trust:
    """What the person of this account trusts."""

    def __init__(self, file: Path | None = None) -> None:
        """Keep where the list lies: by default in the user's state folder."""
        self.file: Final = file or Path(platformdirs.user_state_dir("retinue", appauthor=False)) / LIST

    def holds(self, path: str | Path, content: bytes) -> bool:
        """Return whether a file is trusted with this content. Blocks."""
        return self._all().get(_real(path)) == digest_of(content)

    def all(self) -> tuple[TrustedFile, ...]:
        """Return every file that is trusted, by path. Blocks. Raises `invalid` for a list that cannot be read."""
        return tuple(TrustedFile(path=path, sha256=digest) for path, digest in sorted(self._all().items()))

    def add(self, path: str | Path, content: bytes) -> TrustedFile:
        """Trust a file with this content. Blocks. Raises `invalid` when the list cannot be written."""
        trusted = TrustedFile(path=_real(path), sha256=digest_of(content))
        self._write({**self._all(), trusted.path: trusted.sha256})
        return trusted

    def remove(self, path: str | Path) -> bool:
        """Trust a file no longer, and return whether it was trusted. Blocks."""
        known = self._all()
        found = known.pop(_real(path), None) is not None
        if found:
            self._write(known)
        return found

    def _all(self) -> dict[str, str]:
        try:
            with self.file.open("rb") as file:
                body = file.read(LIST_MAX_BYTES + 1)
            return msgspec.json.decode(body, type=dict[str, str])
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, msgspec.DecodeError) as error:
            detail = f"The list of trusted files {self.file} cannot be read: {error}."
            raise RetinueError(
                "invalid", detail, "Mend or remove it; what it holds must be trusted anew then."
            ) from error

    def _write(self, known: dict[str, str]) -> None:
        body = msgspec.json.format(msgspec.json.encode(known, order="sorted"))
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.file.parent, prefix=LIST, delete=False) as file:
                try:
                    file.write(body)  # made with mode 0600
                    file.flush()
                    os.fsync(file.fileno())
                    Path(file.name).replace(self.file)
                except BaseException:
                    Path(file.name).unlink(missing_ok=True)
                    raise
        except OSError as error:
            detail = f"The list of trusted files {self.file} cannot be written: {error.strerror}."
            raise RetinueError("invalid", detail, "Make room, or check its rights.") from error


def digest_of(content: bytes) -> str:
    """Return the SHA-256 of a content, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def content_of(path: str | Path) -> bytes:
    """Return a file's bytes. Blocks. Raises `invalid` for what is no ordinary file, too large, or unreadable."""
    where = Path(path)
    try:
        if not where.is_file():
            raise RetinueError("invalid", f"{str(path)!r} is no file.", "Name a file that is there.")
        with where.open("rb") as file:
            content = file.read(FILE_MAX_BYTES + 1)
    except OSError as error:
        raise RetinueError(
            "invalid", f"{str(path)!r} cannot be read: {error.strerror}.", "Check its rights."
        ) from error
    if len(content) > FILE_MAX_BYTES:
        raise RetinueError("too_large", f"{str(path)!r} has more than {FILE_MAX_BYTES} bytes.", "Shorten it.")
    return content


def _real(path: str | Path) -> str:
    """Return a path as it is kept, whatever bytes its name has."""
    return os.path.realpath(path).encode("utf-8", "backslashreplace").decode()
