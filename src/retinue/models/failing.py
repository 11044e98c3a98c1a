"""Says why a request to a provider that comes with an extra failed; it judges no answer that is whole."""

import time
from collections.abc import Iterator
from typing import Any, Final, cast

import msgspec
from pydantic_ai.exceptions import (
    ModelAPIError,
    ModelConnectionError,
    ModelHTTPError,
    ModelQuotaExceededError,
    UnexpectedModelBehavior,
)

from retinue.models.failure import Endpoint, HttpAnswer, http_failure, message_of, tidy, words_of
from retinue.models.layered import TooMuchError
from retinue.models.listening import Ear, TooLongError
from retinue.models.unanswered import LateError, TimeLimits, breach_sentence, refusal_of
from retinue.ports import Finish

_CAUSES_MAX: Final = 16
_LATE: Final = frozenset({"ConnectTimeout", "ConnectTimeoutError", "PoolTimeout"})
"""Exceptions of the HTTP libraries, by name, that say that no connection was made in time."""
_SILENT: Final = frozenset({"ReadTimeout", "ReadTimeoutError", "WriteTimeout"})
_UNDECODED: Final = (ValueError, RecursionError)


def failure_of(error: Exception, ear: Ear, endpoint: Endpoint, times: TimeLimits, model: str) -> Finish:
    """Return the `Finish` of a request that raised this: one sentence, with its status and whether waiting can help."""
    chain = list(_causes(error))
    if (sentence := next((words for cause in chain if (words := _too_much(cause, endpoint))), None)) is not None:
        return Finish(reason="error", error=sentence, cause="lasting")
    late = next((found for cause in chain if (found := _late(cause, ear)) is not None), None)
    if ear.refused or (isinstance(error, ModelHTTPError) and not error.in_stream):
        return _refused(error, ear, endpoint, model)
    if late is not None:
        return _too_late(late, ear, endpoint, times)
    if isinstance(error, ModelAPIError) and error.in_stream:
        return _reported(error)
    connected = not isinstance(error, ModelConnectionError | OSError)
    return _misunderstood(chain, ear, endpoint) if connected else _unconnected(chain, ear, endpoint, times)


def _too_much(error: BaseException, endpoint: Endpoint) -> str | None:
    if isinstance(error, TooLongError):
        return f"{endpoint.shown} {error}."
    return str(error) if isinstance(error, TooMuchError) else None


def _causes(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    for _ in range(_CAUSES_MAX):
        if found is None:
            return
        yield found
        found = found.__cause__ or found.__context__


def _late(error: BaseException, ear: Ear) -> LateError | None:
    name = type(error).__name__
    if isinstance(error, LateError):
        return error
    if name in _LATE:
        return LateError("connect")
    return LateError("idle" if ear.begun else "first_chunk") if name in _SILENT else None


def _too_late(late: LateError, ear: Ear, endpoint: Endpoint, times: TimeLimits) -> Finish:
    if ear.begun:
        return Finish(reason="error", error=breach_sentence(late, endpoint.shown, times), cause="timeout")
    return refusal_of(late, endpoint.shown, times)


def _refused(error: Exception, ear: Ear, endpoint: Endpoint, model: str) -> Finish:
    status, headers, body = ear.status or 0, ear.answer_headers, ear.head
    if isinstance(error, ModelHTTPError):
        status, headers = error.status_code, error.headers or headers
        body = _as_bytes(error.body) or body
    answer = HttpAnswer(status=status, headers=headers, body=body)
    finish = http_failure(endpoint, answer, model, time.time())
    if isinstance(error, ModelQuotaExceededError):
        return msgspec.structs.replace(finish, cause="lasting")
    return finish


def _as_bytes(body: Any) -> bytes:
    body = _plain(body)
    try:
        return body.encode() if isinstance(body, str) else msgspec.json.encode(body) if body else b""
    except (TypeError, ValueError):
        return b""


def _plain(body: Any) -> Any:
    """Return an error body, Amazon's in the form of all others."""
    inner = cast("dict[str, Any]", body).get("Error") if isinstance(body, dict) else None
    if not isinstance(inner, dict):
        return cast("Any", body)
    fields = cast("dict[str, Any]", inner)
    return {"error": {"message": fields.get("Message"), "type": fields.get("Code")}}


def _reported(error: ModelAPIError) -> Finish:
    words = message_of(_plain(error.body)) or tidy(error.message) or "no reason given"
    return Finish(
        reason="error",
        error=f"The provider reported an error in the stream: {words}.",
        status=error.status_code if isinstance(error, ModelHTTPError) else None,
        cause="lasting" if isinstance(error, ModelQuotaExceededError) else None,
    )


def _unconnected(chain: list[BaseException], ear: Ear, endpoint: Endpoint, times: TimeLimits) -> Finish:
    root = next((cause for cause in reversed(chain) if isinstance(cause, OSError)), chain[min(1, len(chain) - 1)])
    if ear.begun or ear.status is not None:
        sentence = breach_sentence(cast("Exception", root), endpoint.shown, times)
        return Finish(reason="incomplete", error=sentence)
    words = tidy(str(root)) or type(root).__name__
    if any(_is_tls(cause) for cause in chain):
        return Finish(reason="error", error=f"could not reach {endpoint.shown}: the TLS handshake failed ({words}).")
    if isinstance(root, OSError):
        return refusal_of(root, endpoint.shown, times)
    return Finish(reason="error", error=f"could not reach {endpoint.shown}: no readable HTTP answer came ({words}).")


def _is_tls(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] == "ssl" or "SSL" in type(error).__name__


def _misunderstood(chain: list[BaseException], ear: Ear, endpoint: Endpoint) -> Finish:
    where, error = endpoint.shown, chain[0]
    said = tidy(str(error)) or type(error).__name__
    if ear.status is None and not ear.begun:
        return Finish(reason="error", error=f"The request to {where} could not be made: {said}.", cause="lasting")
    if not ear.begun and "event-stream" not in ear.answer_headers.get("content-type", "event-stream"):
        words = words_of(HttpAnswer(status=200, headers=ear.answer_headers, body=ear.head))
        sentence = f"{where} answered with something that is no stream: {tidy(words, 120)}; check the base URL."
        return Finish(reason="error", error=sentence)
    if any(isinstance(cause, _UNDECODED) for cause in chain):
        return Finish(reason="error", error=f"{where} sent a piece of the stream that is no JSON.")
    if not ear.begun and isinstance(error, UnexpectedModelBehavior):
        return Finish(reason="incomplete", error="The stream ended without any piece of an answer.")
    return Finish(reason="error", error=f"The answer of {where} could not be understood: {said}.")
