"""Cuts the bytes of an event stream into events; it never reads what an event says."""

import codecs
from typing import Final

from retinue.core.events import Value

EVENT_MAX_BYTES: Final = 8 * 1024 * 1024
"""Longest line, and longest event, that is read; a longer one ends the stream."""


class StreamTooLongError(ValueError):
    """A line or an event went past `EVENT_MAX_BYTES`; the message is one sentence."""


class SseEvent(Value):
    """One event: its type (`message` where none was given) and its data lines joined by newlines."""

    event: str
    data: str


class SseParser:
    """Takes bytes as they come, however they are cut, and gives back whole events.

    It is as tolerant as providers need: any line end, comments, a missing last blank line, a byte order mark,
    broken UTF-8 (replaced), and a bare JSON object where a `data:` line should be.
    """

    def __init__(self) -> None:
        """Start before the first byte."""
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._after_cr = False
        self._first = True
        self._event = ""
        self._data: list[str] = []
        self._data_bytes = 0

    def feed(self, data: bytes) -> list[SseEvent]:
        """Return the events that these bytes complete; raise `StreamTooLongError` past the limit."""
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if b"\n" not in data and b"\r" not in data:
            self._keep(data)
            return []
        # bytes.splitlines cuts at LF, CR and CRLF only, as the event-stream format does.
        lines = (b"".join(self._rest) + data).splitlines(keepends=True)
        self._rest, self._rest_bytes = [], 0
        self._after_cr = lines[-1].endswith(b"\r")
        if not lines[-1].endswith((b"\n", b"\r")):
            self._keep(lines.pop())
        return [event for line in lines if (event := self._line(line.rstrip(b"\r\n"))) is not None]

    def close(self) -> list[SseEvent]:
        """Return the events that were complete but for their line end; the parser is empty afterwards."""
        line = b"".join(self._rest)
        self._rest, self._rest_bytes = [], 0
        events = [self._line(line), self._line(b"")] if line else [self._line(b"")]
        return [event for event in events if event is not None]

    def _keep(self, data: bytes) -> None:
        self._rest.append(data)
        self._rest_bytes += len(data)
        _check(self._rest_bytes)

    def _line(self, line: bytes) -> SseEvent | None:
        if self._first:
            self._first = False
            line = line.removeprefix(codecs.BOM_UTF8)
        if not line:
            return self._dispatch()
        if line.startswith(b"{"):
            # Some gateways drop a bare error object into the stream; it must not go unseen.
            line = b"data:" + line
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data_bytes += len(value)
            _check(self._data_bytes)
            self._data.append(value.removeprefix(b" ").decode("utf-8", "replace"))
        elif name == b"event":
            self._event = value.removeprefix(b" ").decode("utf-8", "replace")
        return None

    def _dispatch(self) -> SseEvent | None:
        data, event = "\n".join(self._data), self._event or "message"
        self._event, self._data, self._data_bytes = "", [], 0
        return SseEvent(event=event, data=data) if data else None


def _check(size_bytes: int) -> None:
    if size_bytes > EVENT_MAX_BYTES:
        raise StreamTooLongError(f"the stream holds one event of more than {EVENT_MAX_BYTES} bytes")
