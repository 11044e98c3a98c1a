"""Says how long a request may wait, and why it was not answered, or not to its end; it waits for nothing itself."""

import asyncio
import os
from typing import Final, Literal

import aiohttp

from retinue.core.events import Value
from retinue.models.failure import tidy
from retinue.ports import Finish

CONNECT_TIMEOUT_S: Final = 30.0
FIRST_CHUNK_TIMEOUT_S: Final = 600.0
"""Models may think for minutes before the first piece."""
IDLE_TIMEOUT_S: Final = 300.0
REQUEST_TIMEOUT_S: Final = 3600.0
AFTER_FINISH_TIMEOUT_S: Final = 10.0
"""What may still come after the finish reason is a report of usage; a provider that only stays silent is done."""

Late = Literal["connect", "first_chunk", "idle", "request"]


class TimeLimits(Value):
    """How long one request waits, in seconds.

    `connect` spans name resolution, connection and TLS; `first_chunk` goes from sending to the first piece of the
    answer; `idle` is the longest silence after it, a keep-alive comment is none; `request` spans everything.
    """

    connect_timeout_s: float = CONNECT_TIMEOUT_S
    first_chunk_timeout_s: float = FIRST_CHUNK_TIMEOUT_S
    idle_timeout_s: float = IDLE_TIMEOUT_S
    request_timeout_s: float = REQUEST_TIMEOUT_S


class LateError(Exception):
    """A time-out of ours ended the request."""

    def __init__(self, which: Late) -> None:
        """Say which one."""
        super().__init__(f"the {which} time-out ended the request")
        self.which: Final = which


class Patience:
    """How long one request may still wait at this moment; times are those of the running loop."""

    def __init__(self, times: TimeLimits) -> None:
        """Begin now."""
        self._clock = asyncio.get_running_loop().time
        now_s = self._clock()
        self._idle_s = times.idle_timeout_s
        self._request_ends_s = now_s + times.request_timeout_s
        self._first_ends_s: float | None = now_s + times.first_chunk_timeout_s

    def heard(self, *, begun: bool, finished: bool) -> None:
        """Bytes came: whether they hold a piece of the answer, and whether it is finished."""
        if begun:
            self._first_ends_s = None
        if finished:
            self._idle_s = min(self._idle_s, AFTER_FINISH_TIMEOUT_S)

    def until(self) -> tuple[float, LateError]:
        """Return when the wait that begins now must end, and what is wrong then."""
        first_ends_s = self._first_ends_s
        ends_s = self._clock() + self._idle_s if first_ends_s is None else first_ends_s
        if self._request_ends_s <= ends_s:
            return self._request_ends_s, LateError("request")
        return ends_s, LateError("idle" if first_ends_s is None else "first_chunk")


def refusal_of(error: Exception, where: str, times: TimeLimits) -> Finish:
    """Return the finish of a request to which there was no answer at all."""
    if isinstance(error, LateError):
        return Finish(reason="error", error=_late_sentence(error.which, where, times), cause="timeout")
    if isinstance(error, aiohttp.ClientError | OSError):
        lasting = isinstance(error, aiohttp.InvalidURL | aiohttp.ClientConnectorCertificateError)
        sentence = f"could not reach {where}: {_why(error)}."
    else:
        lasting, sentence = True, f"The request to {where} could not be made: {_cause(error)}."
    return Finish(reason="error", error=sentence, cause="lasting" if lasting else None)


def breach_sentence(error: Exception, where: str, times: TimeLimits) -> str:
    """Say how an answer that had begun was broken off."""
    if isinstance(error, LateError):
        return _late_sentence(error.which, where, times)
    return f"The connection to {where} broke in the middle of the answer: {_cause(error)}."


def _late_sentence(which: Late, where: str, times: TimeLimits) -> str:
    match which:
        case "connect":
            return f"could not reach {where}: no connection within {times.connect_timeout_s:g} s (connect_timeout_s)."
        case "first_chunk":
            limit = f"{times.first_chunk_timeout_s:g} s (first_chunk_timeout_s)"
            return f"{where} sent no piece of an answer within {limit}."
        case "idle":
            return f"{where} sent nothing for {times.idle_timeout_s:g} s in the middle of the answer (idle_timeout_s)."
        case "request":
            return f"The answer of {where} was not whole within {times.request_timeout_s:g} s (request_timeout_s)."


def _why(error: aiohttp.ClientError | OSError) -> str:
    match error:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
            return f"the TLS handshake failed ({_cause(error)})"
        case aiohttp.InvalidURL():
            return "it is no usable address; check the base URL"
        case aiohttp.ServerDisconnectedError():
            return "it closed the connection without an answer"
        case aiohttp.ClientConnectorError() | OSError():
            return _cause(error)
        case _:
            return f"no readable HTTP answer came ({_cause(error)})"


def _cause(error: Exception) -> str:
    inner = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    text = str(inner)
    if isinstance(inner, OSError):
        # asyncio hides "Connection refused" behind words of its own; name resolution has negative numbers.
        number = inner.errno or 0
        text = os.strerror(number) if number > 0 else inner.strerror or text
    return tidy(text) or type(error).__name__
