"""The adapter for servers that speak OpenAI's chat-completions stream; it retries nothing and keeps no history."""

import asyncio
import contextlib
import time
import weakref
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import aiohttp
from multidict import CIMultiDict

from retinue.core.errors import RetinueError
from retinue.core.events import Value
from retinue.models.failure import Endpoint, HttpAnswer, http_failure
from retinue.models.reading import AnswerReader
from retinue.models.unanswered import LateError, Patience, TimeLimits, breach_sentence, refusal_of
from retinue.models.wire import body_of
from retinue.ports import Delta, Finish, Model, ModelRequest, Spent

CONNECTIONS_MAX: Final = 256
"""Requests in flight of one connection where its settings do not say: well below the usual 1 024 open files."""
ERROR_BODY_MAX_BYTES: Final = 64 * 1024
ERROR_BODY_TIMEOUT_S: Final = 5.0
DRAIN_TIMEOUT_S: Final = 0.5
"""How long a finished answer is read on for its proper end, so that the connection can be used again."""


class HttpOptions(Value):
    """How a connection behaves. `concurrency` bounds the requests in flight; further ones wait, without a time-out.

    `stream` asks for the answer piece by piece; without it the server sends it whole.
    """

    concurrency: int = CONNECTIONS_MAX
    times: TimeLimits = TimeLimits()
    stream: bool = True
    send_reasoning: bool = False


class _Lane:
    """What one event loop asks through: sockets belong to a loop."""

    def __init__(self, options: HttpOptions) -> None:
        self.places = asyncio.Semaphore(options.concurrency)
        # The places bound the connections, so that a connection is never waited for within a time-out.
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, connect=options.times.connect_timeout_s),
        )


class OpenAIModel(Model):
    """Streams answers of one chat-completions server, for any model name it knows."""

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        *,
        key_env: str | None = None,
        headers: Mapping[str, str] | None = None,
        options: HttpOptions | None = None,
    ) -> None:
        """Open nothing yet; raise `invalid` for a base URL that is none.

        Args:
            base_url: used as given, plus `/chat/completions`.
            api_key: sent as a bearer token; null sends none.
            key_env: the variable the key comes from, for the sentence of a refusal.
            headers: sent with each request, instead of our own of the same name; `{session_id}` in a value is filled.
            options: limits and time-outs.
        """
        self._url = chat_url(base_url)
        self._key = api_key
        self._headers = dict(headers or {})
        self._options = options or HttpOptions()
        self._lanes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Lane] = weakref.WeakKeyDictionary()
        secrets = [api_key or "", *secret_words(self._headers.values()), urlsplit(base_url).password or ""]
        self._endpoint = Endpoint(
            shown=shown_url(self._url),
            key_env=key_env,
            key_sent=bool(api_key),
            secrets=tuple(secret for secret in secrets if secret),
        )

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Spent | Finish, None]:
        """Yield what comes, then exactly one `Finish`; closing the iterator, or a cancel, closes the connection."""
        lane = self._lane()
        async with lane.places:
            response: aiohttp.ClientResponse | None = None
            reader: AnswerReader | None = None
            try:
                patience = Patience(self._options.times)
                response = await self._send(lane, request, patience)
                if response.status == 200:
                    reader = AnswerReader(response.content_type, self._endpoint, stream=self._options.stream)
                    while not reader.over and (data := await _read(response, patience)):
                        for piece in reader.feed(data):
                            yield piece
                        patience.heard(begun=reader.begun, finished=reader.finished)
                    if reader.over:
                        await _drain(response)
                    for piece in reader.close():
                        yield piece
                    finish = reader.finish()
                else:
                    finish = await self._refused(response, request.model)
            except Exception as error:  # noqa: BLE001 - the port promises that nothing but a cancel is ever raised
                finish = self._broken(error, reader)
            finally:
                if response is not None:
                    response.close()
        yield self._endpoint.cleaned(finish)

    async def aclose(self) -> None:
        """Close the connections of every loop; idempotent."""
        for lane in list(self._lanes.values()):
            with contextlib.suppress(RuntimeError):  # its loop may be closed already, and its sockets with it
                await lane.session.close()
        self._lanes.clear()

    async def _send(self, lane: _Lane, request: ModelRequest, patience: Patience) -> aiohttp.ClientResponse:
        accepted = "text/event-stream" if self._options.stream else "application/json"
        headers = CIMultiDict({"Accept": accepted, "Content-Type": "application/json"})
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        for name, value in self._headers.items():
            headers[name] = value.replace("{session_id}", request.session_id)
        data = body_of(request, send_reasoning=self._options.send_reasoning, stream=self._options.stream)
        ends_s, late = patience.until()
        try:
            async with asyncio.timeout_at(ends_s):
                # A redirect would carry the key, and the task, to an address that nobody named.
                return await lane.session.post(self._url, data=data, headers=headers, allow_redirects=False)
        except aiohttp.ConnectionTimeoutError as error:
            raise LateError("connect") from error
        except TimeoutError as error:
            raise late from error

    def _lane(self) -> _Lane:
        loop = asyncio.get_running_loop()
        lane = self._lanes.get(loop)
        if lane is None or lane.session.closed:
            lane = self._lanes[loop] = _Lane(self._options)
        return lane

    async def _refused(self, response: aiohttp.ClientResponse, model: str) -> Finish:
        body = b""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):  # the status alone says enough
            async with asyncio.timeout(ERROR_BODY_TIMEOUT_S):
                while len(body) < ERROR_BODY_MAX_BYTES and (data := await response.content.read(ERROR_BODY_MAX_BYTES)):
                    body += data
        headers = {name.lower(): value for name, value in response.headers.items()}
        return http_failure(
            self._endpoint, HttpAnswer(status=response.status, headers=headers, body=body), model, time.time()
        )

    def _broken(self, error: Exception, reader: AnswerReader | None) -> Finish:
        where, times = self._endpoint.shown, self._options.times
        if reader is None:
            return refusal_of(error, where, times)
        ending = "late" if isinstance(error, LateError) else "broken"
        return reader.broken(ending, breach_sentence(error, where, times))


def chat_url(base_url: str) -> str:
    """Return the address that requests go to: the base URL as given plus `/chat/completions`; raise `invalid`."""
    wrong = RetinueError(
        "invalid", "The base URL is no http or https address.", "Write it like http://127.0.0.1:8000/v1."
    )
    try:
        parts = urlsplit(base_url.strip())
        port = parts.port
    except ValueError as error:
        raise wrong from error
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        raise wrong
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + "/chat/completions"))


def shown_url(url: str) -> str:
    """Return an address without user, password and query, as a sentence may show it."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))


async def _read(response: aiohttp.ClientResponse, patience: Patience) -> bytes:
    """Return what comes next, no bytes at the end. A time-out must not span a `yield`: it would hit the reader."""
    ends_s, late = patience.until()
    try:
        async with asyncio.timeout_at(ends_s):
            return await response.content.readany()
    except TimeoutError as error:
        raise late from error


async def _drain(response: aiohttp.ClientResponse) -> None:
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with asyncio.timeout(DRAIN_TIMEOUT_S):
            await response.content.read(1024)


def secret_words(values: Iterable[str]) -> list[str]:
    """Return header values and, where one is a scheme with its credentials, these alone."""
    return [word for value in values for word in (value, value.partition(" ")[2])]
