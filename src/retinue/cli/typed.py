"""What a person types, line by line, read off the event loop; it understands none of it."""

import asyncio
import os
import threading
from contextlib import suppress
from typing import Final

from retinue.core.errors import RetinueError

LINE_MAX_BYTES: Final = 8_000_000
_PIECE_BYTES: Final = 65_536
_PIECES_MAX: Final = 4
"""Pieces that lie ready; who sends more waits until they were taken."""


class TypedLines:
    """Iterate it for the lines of a descriptor, without their ends, until it ends.

    A thread of its own reads, because a terminal and a file cannot be waited for on every loop. It holds no lock of
    Python's while it waits, so that it keeps no process from ending.
    """

    def __init__(self, descriptor: int) -> None:
        """Read nothing yet."""
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue(_PIECES_MAX)
        self._rest = b""
        self._ended = False
        self._thread: threading.Thread | None = None

    def __aiter__(self) -> "TypedLines":
        """Return itself."""
        return self

    async def __anext__(self) -> str:
        """Return the next line; raise `too_large` for one beyond `LINE_MAX_BYTES`, `invalid` for one that is not UTF-8.

        After `invalid` it goes on with the line behind.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._read, name="retinue typed lines", daemon=True)
            self._thread.start()
        while b"\n" not in self._rest and not self._ended:
            piece = await self._pieces.get()
            self._ended = not piece
            self._rest += piece
            if len(self._rest) > LINE_MAX_BYTES + _PIECE_BYTES:
                raise RetinueError("too_large", f"A line has more than {LINE_MAX_BYTES} bytes.", "Put it into a file.")
        if not self._rest:
            raise StopAsyncIteration
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            return line.decode().removesuffix("\r")
        except UnicodeDecodeError as error:
            raise RetinueError("invalid", "The line is not UTF-8.", "Give it as UTF-8.") from error

    def _read(self) -> None:
        # The loop may be gone when the line comes: then nobody wants it.
        with suppress(RuntimeError, asyncio.CancelledError):
            while piece := self._next_piece():
                asyncio.run_coroutine_threadsafe(self._pieces.put(piece), self._loop).result()
            asyncio.run_coroutine_threadsafe(self._pieces.put(b""), self._loop).result()

    def _next_piece(self) -> bytes:
        try:
            return os.read(self._descriptor, _PIECE_BYTES)
        except OSError:  # a terminal that was closed
            return b""
