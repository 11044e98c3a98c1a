"""Reads the bytes of one HTTP 200 answer, stream or not, into deltas and a `Finish`; it owns no connection."""

import json
from typing import Any, Final, Literal, cast

import msgspec

from retinue.models.assembler import Assembler
from retinue.models.failure import Endpoint, HttpAnswer, message_of, tidy, words_of
from retinue.models.sse import SseEvent, SseParser, StreamTooLongError
from retinue.ports import Delta, Finish, Spent

BODY_MAX_BYTES: Final = 16 * 1024 * 1024
"""Longest answer that is read whole, from a server that does not stream."""
_HEAD_BYTES: Final = 4096
_STREAM_HEADS: Final = (b"data:", b"event:", b":")
"""How a stream begins that is sent as something else."""


class AnswerReader:
    """Feed it bytes, then close it and take its `Finish`.

    Attributes:
        over: whether nothing that follows matters any more: `[DONE]` came, or the answer has failed.
        begun: whether a piece of the answer has come; comments that only keep the connection alive are none.
    """

    def __init__(self, content_type: str, endpoint: Endpoint, *, stream: bool = True) -> None:
        """Start before the first byte of a body of this type; `stream` says what was asked for."""
        self.over = False
        self.begun = False
        self._type = content_type
        self._whole = content_type.endswith(("/json", "/html")) or not (stream or "event-stream" in content_type)
        self._endpoint = endpoint
        self._parser = SseParser()
        self._assembler = Assembler()
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._done = False

    @property
    def finished(self) -> bool:
        """Whether the provider has said how the answer ends."""
        return self._assembler.finished

    def feed(self, data: bytes) -> list[Delta | Spent]:
        """Take bytes and return what they show."""
        if self._whole or self._body_bytes < _HEAD_BYTES:
            self._body.append(data)
            self._body_bytes += len(data)
        if self._whole:
            self.begun = self.begun or bool(data)
            if self._body_bytes > BODY_MAX_BYTES:
                self._fail(f"sent an answer of more than {BODY_MAX_BYTES} bytes", cause="lasting")
            return []
        return self._take_stream(data)

    def close(self) -> list[Delta | Spent]:
        """Return what the end of the body completes."""
        if self.over:
            return []
        if self._whole:
            return self._take_whole()
        pieces = self._take(self._parser.close())
        if not self.begun and self._body_bytes:
            self._fail(f"answered with something that is no stream: {self._said()}")
        return pieces

    def finish(self) -> Finish:
        """Return how a body that ended properly answers the request."""
        return self._assembler.finish("done" if self._done else "closed")

    def broken(self, ending: Literal["broken", "late"], sentence: str) -> Finish:
        """Return how a body that broke off, or did not come in time, answers the request."""
        return self._assembler.finish(ending, sentence)

    def _take_stream(self, data: bytes) -> list[Delta | Spent]:
        try:
            return self._take(self._parser.feed(data))
        except StreamTooLongError as error:
            self._fail(f"broke a limit: {error}", cause="lasting")
            return []

    def _take(self, events: list[SseEvent]) -> list[Delta | Spent]:
        pieces: list[Delta | Spent] = []
        for event in events:
            if self.over:
                break
            self.begun = True
            if event.data.strip() == "[DONE]":
                self._done = self.over = True
            else:
                pieces += self._take_chunk(event)
        return pieces

    def _take_chunk(self, event: SseEvent) -> list[Delta | Spent]:
        chunk = decoded(event.data)
        if event.event == "error" and "error" not in (chunk or {}):
            chunk = {"error": chunk or event.data}
        if not isinstance(chunk, dict):
            self._fail(f"sent a piece of the stream that is no JSON object: {tidy(event.data, 80)!r}")
            return []
        pieces = self._assembler.feed(cast("dict[str, Any]", chunk))
        self.over = self._assembler.failed
        return pieces

    def _take_whole(self) -> list[Delta | Spent]:
        """Read a body that is no stream: asked for so, or not; some servers send an error or a web page as 200."""
        raw = b"".join(self._body)
        if raw.lstrip().startswith(_STREAM_HEADS):
            return [*self._take_stream(raw), *self._take(self._parser.close())]
        body = decoded(raw.decode("utf-8", "replace"))
        if isinstance(body, dict) and ("choices" in body or "error" in body):
            return self._assembler.feed(cast("dict[str, Any]", body))
        words = message_of(cast("Any", body)) or self._said()
        self._fail(f"answered with something that is no answer of a model: {words}; check the base URL")
        return []

    def _said(self) -> str:
        head = b"".join(self._body)[:_HEAD_BYTES]
        return tidy(words_of(HttpAnswer(status=200, headers={"content-type": self._type}, body=head)), 120)

    def _fail(self, what: str, cause: Literal["lasting"] | None = None) -> None:
        self._assembler.fail(f"{self._endpoint.shown} {what}.", cause=cause)
        self.over = True


def decoded(text: str) -> Any:
    """Return a JSON value, also one with lone surrogate escapes; null for anything that is no JSON."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        pass  # the standard library also takes lone surrogate escapes
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
