"""Bytes of a file as text for a model: binary or not, decoding, cutting into lines; it opens no file."""

import os
from typing import Final

READ_BYTES_MAX: Final = 2 * 1024 * 1024
"""Bytes of one file that one call takes in."""
LINE_CHARS_MAX: Final = 2000
_SNIFF_BYTES: Final = 8192
_CHUNK_BYTES: Final = 1024 * 1024


def read_bytes(fd: int, bytes_max: int) -> tuple[bytes, bool]:
    """Return at most `bytes_max` bytes from here on, and whether that is all there is; a cut is at a line's end."""
    chunks: list[bytes] = []
    left = bytes_max + 1
    while left > 0:
        chunk = os.read(fd, min(left, _CHUNK_BYTES))
        if not chunk:
            return b"".join(chunks), True
        chunks.append(chunk)
        left -= len(chunk)
    data = b"".join(chunks)[:bytes_max]
    return data[: data.rfind(b"\n") + 1] or data, False


def skip_lines(fd: int, lines: int, bytes_max: int) -> int:
    """Move behind that many lines, looking at no more than `bytes_max` bytes; return how many were passed."""
    passed, at = 0, 0
    ends_open = False
    while passed < lines and at < bytes_max:
        chunk = os.read(fd, _CHUNK_BYTES)
        if not chunk:
            passed += ends_open
            break
        here = chunk.count(b"\n")
        ends_open = not chunk.endswith(b"\n")
        at += len(chunk) if passed + here < lines else _end_of_line(chunk, lines - passed)
        passed = min(lines, passed + here)
    os.lseek(fd, at, os.SEEK_SET)
    return passed


def _end_of_line(chunk: bytes, number: int) -> int:
    """Return the offset behind the `number`-th line end of a chunk that has that many."""
    at = 0
    for _ in range(number):
        at = chunk.index(b"\n", at) + 1
    return at


def is_binary(data: bytes) -> bool:
    """Whether the bytes look like no text: there is a NUL near their begin."""
    return b"\0" in data[:_SNIFF_BYTES]


def decode(data: bytes) -> tuple[str, bool]:
    """Return the bytes as text, and whether all of them were UTF-8; those that are not are replaced."""
    try:
        return data.decode("utf-8-sig"), True
    except UnicodeDecodeError:
        return data.decode("utf-8-sig", "replace"), False


def cut_line(line: str) -> str:
    """Return a line without its end, cut where it is too long, and then saying so."""
    line = line.rstrip("\r")
    if len(line) <= LINE_CHARS_MAX:
        return line
    return f"{line[:LINE_CHARS_MAX]}… [line cut, {len(line)} characters]"
