"""Hears every byte of a provider's answer below its own client library, and bounds it; it understands none of them.

The library hides what keeps a connection alive, and reads without a limit. So its HTTP client is made here: each
request names, in a context variable, the `Ear` that listens to it.
"""

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextvars import ContextVar
from typing import Any, Final, TypeVar, cast

from retinue.models.unanswered import LateError, Patience, TimeLimits

STREAM_MAX_BYTES: Final = 64 * 1024 * 1024
"""Longest answer that is read; one event of a stream takes some 150 bytes, a token or less of text each."""
ERROR_BODY_MAX_BYTES: Final = 64 * 1024
_HEAD_BYTES: Final = 4096

T = TypeVar("T")


class TooLongError(Exception):
    """An answer went past `STREAM_MAX_BYTES`."""


class Ear:
    """Listens to one request.

    Attributes:
        patience: how long it may still take.
        begun: whether a piece of the answer has come; bytes that only keep the connection alive are none.
        status: the HTTP status of the latest answer, null before it.
        answer_headers: that answer's headers, names in lower case.
        head: the beginning of its body.
    """

    def __init__(self, patience: Patience, headers: Mapping[str, str]) -> None:
        """Listen to a request that is sent with these headers beside its client's own."""
        self.patience: Final = patience
        self.headers: Final = headers
        self.begun = False
        self.finished = False
        self.status: int | None = None
        self.answer_headers: dict[str, str] = {}
        self.head = b""
        self._response: Any = None
        self._read_bytes = 0
        self._limit: asyncio.Timeout | None = None
        self._late = LateError("request")

    async def wait(self, step: Awaitable[T]) -> T:
        """Return what a step of the request brings, or raise `LateError`. It spans no `yield`: that would hit others.

        Every byte that comes meanwhile puts the end of the wait off.
        """
        token = _EAR.set(self)
        ends_s, self._late = self.patience.until()
        limit = asyncio.timeout_at(ends_s)
        try:
            async with limit:
                self._limit = limit
                return await step
        except TimeoutError as error:
            if limit.expired():
                raise self._late from error
            raise
        finally:
            self._limit = None
            _EAR.reset(token)

    def heard(self, *, begun: bool) -> None:
        """Something came: whether it is a piece of the answer."""
        self.begun = self.begun or begun
        self.patience.heard(begun=self.begun, finished=self.finished)
        if self._limit is not None and not self._limit.expired():
            ends_s, self._late = self.patience.until()
            self._limit.reschedule(ends_s)

    def answered(self, response: Any) -> None:
        """An answer has begun; one before it, that the client library did not like, is forgotten."""
        self._response, self.status, self.head, self._read_bytes = response, response.status_code, b"", 0
        self.answer_headers = {name.lower(): value for name, value in response.headers.items()}

    async def aclose(self) -> None:
        """Close the socket of an answer that is not over: a client library may leave that to the garbage collector."""
        if self._response is not None:
            with contextlib.suppress(Exception):
                await self._response.aclose()

    def takes(self, data: bytes) -> bool:
        """Take bytes of the body and return whether the rest of it matters."""
        self._read_bytes += len(data)
        if len(self.head) < _HEAD_BYTES:
            self.head += data[:_HEAD_BYTES]
        self.heard(begun=False)
        if self.refused:
            return self._read_bytes < ERROR_BODY_MAX_BYTES
        if self._read_bytes > STREAM_MAX_BYTES:
            raise TooLongError(f"sent an answer of more than {STREAM_MAX_BYTES} bytes")
        return True

    @property
    def refused(self) -> bool:
        """Whether the latest answer is no success."""
        return self.status is not None and not 200 <= self.status < 300


_EAR: Final[ContextVar[Ear | None]] = ContextVar("retinue_ear", default=None)


def listening_client(library: str, times: TimeLimits) -> Any:
    """Return an asynchronous client of `httpx2` or `httpx` whose every request is heard; blocks for some milliseconds.

    It follows no redirect and reads no proxy, key or certificate path from the environment. How many requests are in
    flight is bounded by who asks.
    """
    http = cast("Any", importlib.import_module(library))
    stream_class = _stream_class(http)

    async def before(request: Any) -> None:
        ear = _EAR.get()
        request.headers["accept-encoding"] = "identity"
        # Client libraries send time-outs of their own; only the one for connecting is left to the socket.
        whole_s, connect_s = times.request_timeout_s, times.connect_timeout_s
        request.extensions["timeout"] = {"connect": connect_s, "read": whole_s, "write": whole_s, "pool": None}
        for name, value in () if ear is None else ear.headers.items():
            request.headers[name] = value

    async def after(response: Any) -> None:
        ear = _EAR.get()
        if ear is not None:
            ear.answered(response)
            response.stream = stream_class(response.stream, ear)

    return http.AsyncClient(
        timeout=http.Timeout(times.request_timeout_s, connect=times.connect_timeout_s, pool=None),
        limits=http.Limits(max_connections=None, max_keepalive_connections=32),
        trust_env=False,
        follow_redirects=False,
        event_hooks={"request": [before], "response": [after]},
    )


def _stream_class(http: Any) -> Any:
    """Return the class of a body that is heard: both libraries insist on a class of their own."""

    class Heard(http.AsyncByteStream):
        def __init__(self, inner: Any, ear: Ear) -> None:
            self.inner = inner
            self.ear = ear

        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for data in self.inner:
                more = self.ear.takes(data)
                yield data
                if not more:
                    return

        async def aclose(self) -> None:
            await self.inner.aclose()

    return Heard
