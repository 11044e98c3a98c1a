"""Reads the bytes of one HTTP 200 answer, stream or not, into deltas and a `Finish`; it owns no connection."""

import json
from typing import Any, Final, cast

import msgspec

from retinue.models.assembler import Assembler
from retinue.models.failure import Endpoint, HttpAnswer, message_of, tidy, words_of
from retinue.models.sse import SseEvent, SseParser, StreamTooLongError
from retinue.ports import Delta, Finish

BODY_MAX_BYTES: Final = 16 * 1024 * 1024
"""Longest answer that is read whole, from a server that does not stream."""
_HEAD_BYTES: Final = 4096


class AnswerReader:
    """Feed it bytes, then close it and take its `Finish`.

    Attributes:
        over: whether nothing that follows matters any more: `[DONE]` came, or the answer has failed.
    """

    def __init__(self, content_type: str, endpoint: Endpoint) -> None:
        """Start before the first byte of a body of this type."""
        self.over = False
        self._type = content_type
        self._whole = content_type.endswith(("/json", "/html"))
        self._endpoint = endpoint
        self._parser = SseParser()
        self._assembler = Assembler()
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._done = False
        self._events = 0

    def feed(self, data: bytes) -> list[Delta]:
        """Take bytes and return what they show."""
        if self._whole or self._body_bytes < _HEAD_BYTES:
            self._body.append(data)
            self._body_bytes += len(data)
        if self._whole:
            if self._body_bytes > BODY_MAX_BYTES:
                self._fail(f"sent an answer of more than {BODY_MAX_BYTES} bytes")
            return []
        try:
            return self._take(self._parser.feed(data))
        except StreamTooLongError as error:
            self._fail(f"broke a limit: {error}")
            return []

    def close(self) -> list[Delta]:
        """Return what the end of the body completes."""
        if self.over:
            return []
        deltas = self._take_whole() if self._whole else self._take(self._parser.close())
        if not self._whole and not self._events and self._body_bytes:
            self._fail(f"answered with something that is no stream: {self._said()}")
        return deltas

    def finish(self) -> Finish:
        """Return how a body that ended properly answers the request."""
        return self._clean(self._assembler.finish("done" if self._done else "closed"))

    def broken(self, sentence: str) -> Finish:
        """Return how a body that broke off answers the request."""
        return self._clean(self._assembler.finish("broken", sentence))

    def _take(self, events: list[SseEvent]) -> list[Delta]:
        deltas: list[Delta] = []
        for event in events:
            if self.over:
                break
            self._events += 1
            if event.data.strip() == "[DONE]":
                self._done = self.over = True
            else:
                deltas += self._take_chunk(event)
        return deltas

    def _take_chunk(self, event: SseEvent) -> list[Delta]:
        chunk = decoded(event.data)
        if event.event == "error" and "error" not in (chunk or {}):
            chunk = {"error": chunk or event.data}
        if not isinstance(chunk, dict):
            self._fail(f"sent a piece of the stream that is no JSON object: {tidy(event.data, 80)!r}")
            return []
        deltas = self._assembler.feed(cast("dict[str, Any]", chunk))
        self.over = self._assembler.failed
        return deltas

    def _take_whole(self) -> list[Delta]:
        """Read a body that is no stream: some servers ignore `stream`, some send an error or a web page as 200."""
        body = decoded(b"".join(self._body).decode("utf-8", "replace"))
        if isinstance(body, dict) and ("choices" in body or "error" in body):
            return self._assembler.feed(cast("dict[str, Any]", body))
        words = message_of(cast("Any", body)) or self._said()
        self._fail(f"answered with something that is no stream: {words}; check the base URL")
        return []

    def _said(self) -> str:
        head = b"".join(self._body)[:_HEAD_BYTES]
        return tidy(words_of(HttpAnswer(status=200, headers={"content-type": self._type}, body=head)), 120)

    def _fail(self, what: str) -> None:
        self._assembler.fail(f"{self._endpoint.shown} {what}.")
        self.over = True

    def _clean(self, finish: Finish) -> Finish:
        if finish.error is None:
            return finish
        return msgspec.structs.replace(finish, error=self._endpoint.clean(finish.error))


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
