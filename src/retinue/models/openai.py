"""The adapter for servers that speak OpenAI's chat-completions stream; it retries nothing and keeps no history."""

import asyncio
import contextlib
import os
import time
import weakref
from collections.abc import AsyncGenerator, Mapping
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import aiohttp
from multidict import CIMultiDict

from retinue.core.errors import RetinueError
from retinue.core.events import Value
from retinue.models.failure import Endpoint, HttpAnswer, http_failure, tidy
from retinue.models.reading import AnswerReader
from retinue.models.wire import body_of
from retinue.ports import Delta, Finish, Model, ModelRequest

CONNECT_TIMEOUT_S: Final = 30.0
IDLE_TIMEOUT_S: Final = 300.0
"""Longest silence, before the first byte and between two; a keep-alive comment is no silence."""
CONNECTIONS_MAX: Final = 64
ERROR_BODY_MAX_BYTES: Final = 64 * 1024
DRAIN_TIMEOUT_S: Final = 0.5
"""How long a finished answer is read on for its proper end, so that the connection can be used again."""


class HttpOptions(Value):
    """How a connection behaves. `concurrency` bounds the requests in flight; further ones wait for a connection."""

    concurrency: int = CONNECTIONS_MAX
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    idle_timeout_s: float = IDLE_TIMEOUT_S
    send_reasoning: bool = False


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
        self._sessions: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession] = (
            weakref.WeakKeyDictionary()
        )
        secrets = [api_key or "", *self._headers.values(), urlsplit(base_url).password or ""]
        self._endpoint = Endpoint(
            shown=shown_url(self._url),
            key_env=key_env,
            key_sent=bool(api_key),
            secrets=tuple(secret for secret in secrets if secret),
        )

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Finish, None]:
        """Yield deltas, then exactly one `Finish`; closing the iterator, or a cancel, closes the connection at once."""
        response: aiohttp.ClientResponse | None = None
        reader: AnswerReader | None = None
        try:
            response = await self._send(request)
            if response.status == 200:
                reader = AnswerReader(response.content_type, self._endpoint)
                async for data in response.content.iter_any():
                    for delta in reader.feed(data):
                        yield delta
                    if reader.over:
                        await _drain(response)
                        break
                for delta in reader.close():
                    yield delta
                finish = reader.finish()
            else:
                finish = await self._refused(response, request.model)
        except Exception as error:  # noqa: BLE001 - the port promises that nothing but a cancel is ever raised
            finish = self._broken(error, reader)
        finally:
            if response is not None:
                response.close()
        yield finish

    async def aclose(self) -> None:
        """Close the connections of every loop; idempotent."""
        for session in list(self._sessions.values()):
            with contextlib.suppress(RuntimeError):  # its loop may be closed already, and its sockets with it
                await session.close()
        self._sessions.clear()

    async def _send(self, request: ModelRequest) -> aiohttp.ClientResponse:
        headers = CIMultiDict({"Accept": "text/event-stream", "Content-Type": "application/json"})
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        for name, value in self._headers.items():
            headers[name] = value.replace("{session_id}", request.session_id)
        data = body_of(request, send_reasoning=self._options.send_reasoning)
        # A redirect would carry the key, and the task, to an address that nobody named.
        return await self._session().post(self._url, data=data, headers=headers, allow_redirects=False)

    def _session(self) -> aiohttp.ClientSession:
        """Return this loop's session, made at the first request: sockets belong to one loop."""
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.closed:
            options = self._options
            timeout = aiohttp.ClientTimeout(
                total=None,  # a run has its own clock; waiting for a free connection is no fault of the server
                sock_connect=options.connect_timeout_s,
                sock_read=options.idle_timeout_s,
            )
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=options.concurrency),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=timeout,
            )
            self._sessions[loop] = session
        return session

    async def _refused(self, response: aiohttp.ClientResponse, model: str) -> Finish:
        body = b""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):  # the status alone says enough
            while len(body) < ERROR_BODY_MAX_BYTES and (data := await response.content.read(ERROR_BODY_MAX_BYTES)):
                body += data
        headers = {name.lower(): value for name, value in response.headers.items()}
        return http_failure(
            self._endpoint, HttpAnswer(status=response.status, headers=headers, body=body), model, time.time()
        )

    def _broken(self, error: Exception, reader: AnswerReader | None) -> Finish:
        if reader is not None:
            return reader.broken(self._endpoint.clean(_breach(error, self._endpoint.shown, self._options)))
        return Finish(reason="error", error=self._endpoint.clean(_refusal(error, self._endpoint.shown, self._options)))


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


async def _drain(response: aiohttp.ClientResponse) -> None:
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with asyncio.timeout(DRAIN_TIMEOUT_S):
            await response.content.read(1024)


def _refusal(error: Exception, where: str, options: HttpOptions) -> str:
    """Say why there was no answer at all."""
    match error:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientSSLError():
            why = f"the TLS handshake failed ({_cause(error)})"
        case aiohttp.ConnectionTimeoutError():
            why = f"no connection within {options.connect_timeout_s:g} s"
        case TimeoutError():
            why = f"no answer within {options.idle_timeout_s:g} s"
        case aiohttp.InvalidURL():
            why = "it is no usable address; check the base URL"
        case aiohttp.ServerDisconnectedError():
            why = "it closed the connection without an answer"
        case aiohttp.ClientConnectorError() | OSError():
            why = _cause(error)
        case aiohttp.ClientError():
            why = f"no readable HTTP answer came ({_cause(error)})"
        case _:
            return f"The request to {where} could not be made: {_cause(error)}."
    return f"could not reach {where}: {why}."


def _breach(error: Exception, where: str, options: HttpOptions) -> str:
    """Say how an answer that had begun was broken off."""
    if isinstance(error, TimeoutError):
        return f"{where} sent nothing for {options.idle_timeout_s:g} s in the middle of the answer."
    return f"The connection to {where} broke in the middle of the answer: {_cause(error)}."


def _cause(error: Exception) -> str:
    inner = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    text = str(inner)
    if isinstance(inner, OSError):
        # asyncio hides "Connection refused" behind words of its own; name resolution has negative numbers.
        number = inner.errno or 0
        text = os.strerror(number) if number > 0 else inner.strerror or text
    return tidy(text) or type(error).__name__
