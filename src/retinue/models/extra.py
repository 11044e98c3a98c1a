"""Asks the providers that come with an extra, behind our port; it speaks no protocol and retries nothing.

Their libraries are loaded, in a thread, when the first request is made: finding a model has to be quick.
"""

import asyncio
import contextlib
import importlib
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, cast
from urllib.parse import urlsplit

import msgspec

from retinue.core.events import Value
from retinue.models.failure import Endpoint, tidy
from retinue.models.kinds import AWS_BEARER, AWS_KEY, AWS_REGIONS, KINDS
from retinue.models.listening import Ear
from retinue.models.openai import HttpOptions, chat_url, secret_words, shown_url
from retinue.models.unanswered import Patience
from retinue.models.vendors import Vendor, Wiring, reach
from retinue.ports import Delta, Finish, Model, ModelRequest, Spent

_UNREAD: Final = frozenset({"bedrock"})
"""Kinds whose stream is opened without its first event."""
_AWS_SECRETS: Final = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", AWS_BEARER)


class _Lane:
    """What one event loop asks through: sockets belong to a loop."""

    def __init__(self, concurrency: int) -> None:
        self.places = asyncio.Semaphore(concurrency)
        self.vendor: Vendor | None = None
        self._making = asyncio.Lock()

    async def reached(self, wiring: Wiring) -> Vendor:
        async with self._making:
            if self.vendor is None:
                self.vendor = await asyncio.to_thread(_reached, wiring)
            return self.vendor


class Access(Value):
    """What one provider is reached with.

    Attributes:
        kind: a key of `KINDS`.
        base_url: the provider's address; null means its own.
        api_key: null sends none that counts.
        key_env: the variable the key comes from, for the sentence of a refusal.
        headers: sent with each request; `{session_id}` in a value is filled.
        environment: the variables of Amazon, for Bedrock.
    """

    kind: str
    base_url: str | None = None
    api_key: str | None = None
    key_env: str | None = None
    headers: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    environment: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])


class ExtraModel(Model):
    """Streams answers of one provider, for any model name it knows."""

    def __init__(self, access: Access, options: HttpOptions | None = None) -> None:
        """Open and load nothing yet; raise `invalid` for a base URL that is none.

        Of the options, `stream` and `send_reasoning` mean nothing here.
        """
        self._kind = access.kind
        self._headers = access.headers
        self._options = options or HttpOptions()
        self._lanes: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Lane] = weakref.WeakKeyDictionary()
        self._wiring = Wiring(
            kind=access.kind,
            base_url=access.base_url or "",
            key=access.api_key,
            concurrency=self._options.concurrency,
            times=self._options.times,
            environment=access.environment,
        )
        self._endpoint = _endpoint(access)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Spent | Finish, None]:
        """Yield what comes, then exactly one `Finish`; closing the iterator, or a cancel, closes the connection."""
        lane = self._lane()
        async with lane.places:
            try:
                vendor = await lane.reached(self._wiring)
            except Exception as error:  # noqa: BLE001 - a library that cannot be loaded may raise anything
                yield self._endpoint.cleaned(self._unloaded(error))
                return
            headers = {name: text.replace("{session_id}", request.session_id) for name, text in self._headers.items()}
            ear = Ear(Patience(self._options.times), headers)
            reading: Any = None
            try:
                async with AsyncExitStack() as stack:
                    opened = _layered().opened(vendor.model(request.model), self._kind, request)
                    reading = _layered().Reading(await ear.wait(stack.enter_async_context(opened)), self._kind)
                    ear.heard(begun=self._kind not in _UNREAD)
                    events = cast("AsyncIterator[Any]", reading.events)
                    stack.push_async_callback(_closed, events)
                    while (event := await ear.wait(anext(events, None))) is not None:
                        for piece in reading.take(event):
                            yield piece
                        ear.finished = reading.finished
                        ear.heard(begun=True)
                finish = reading.finish(None)
            except Exception as error:  # noqa: BLE001 - the port promises that nothing but a cancel is ever raised
                finish = self._failed(error, ear, reading, request.model)
            finally:
                await ear.aclose()
        yield self._endpoint.cleaned(finish)

    async def aclose(self) -> None:
        """Close the connections of every loop; idempotent."""
        for lane in list(self._lanes.values()):
            if lane.vendor is not None:
                with contextlib.suppress(RuntimeError):  # its loop may be closed already, and its sockets with it
                    await lane.vendor.aclose()
        self._lanes.clear()

    def _lane(self) -> _Lane:
        loop = asyncio.get_running_loop()
        lane = self._lanes.get(loop)
        if lane is None:
            lane = self._lanes[loop] = _Lane(self._options.concurrency)
        return lane

    def _failed(self, error: Exception, ear: Ear, reading: Any, model: str) -> Finish:
        failure = _failing().failure_of(error, ear, self._endpoint, self._options.times, model)
        if reading is None:
            return failure
        return reading.failed(failure) if failure.cause == "lasting" else reading.finish(failure)

    def _unloaded(self, error: Exception) -> Finish:
        words = tidy(str(error)) or type(error).__name__
        sentence = f"What asks {self._endpoint.shown} could not be loaded: {words}; run {KINDS[self._kind].install}."
        return Finish(reason="error", error=sentence, cause="lasting")


def _endpoint(access: Access) -> Endpoint:
    region = next((found for name in AWS_REGIONS if (found := access.environment.get(name))), "REGION")
    address = access.base_url or (KINDS[access.kind].url or "").replace("{region}", region)
    if address:
        chat_url(address)  # refuses what is no address
    secrets = [
        access.api_key or "",
        *secret_words(access.headers.values()),
        urlsplit(address).password or "",
        *(access.environment.get(name, "") for name in _AWS_SECRETS),
    ]
    own = next((name for name in (AWS_BEARER, AWS_KEY) if access.environment.get(name)), None)
    return Endpoint(
        shown=shown_url(address) or f"the API of {access.kind}",
        key_env=access.key_env or own,
        key_sent=bool(access.api_key or own),
        secrets=tuple(secret for secret in secrets if secret),
    )


def _reached(wiring: Wiring) -> Vendor:
    """Load everything that a request needs, and return the provider. Blocks."""
    _layered()
    _failing()
    return reach(wiring)


def _layered() -> Any:
    return importlib.import_module("retinue.models.layered")


def _failing() -> Any:
    return importlib.import_module("retinue.models.failing")


async def _closed(events: AsyncIterator[Any]) -> None:
    close = getattr(events, "aclose", None)
    if close is not None:
        await close()
