"""Turns what a provider said in refusal into one sentence; it never sends anything and never shows a key."""

import email.utils
import math
import re
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from retinue.core.events import Value
from retinue.ports import Finish

MESSAGE_MAX_CHARS: Final = 400
"""What is shown of a provider's own words."""
RETRY_AFTER_MAX_S: Final = 86_400.0
_SECRET_MIN_CHARS: Final = 4
"""A shorter header value is no secret, and hiding it would hide half of every sentence."""
_TITLE: Final = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_HIDDEN: Final = "[redacted]"
_SECRET_PART_CHARS: Final = 6
"""Where a sentence was cut inside a secret, this much of it already says too much."""
_STATUSES: Final = {
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "rate_limited": 429,
    "too_many_requests": 429,
    "resource_exhausted": 429,
    "insufficient_quota": 429,
    "overloaded_error": 529,
    "overloaded": 529,
    "engine_overloaded_error": 529,
    "server_error": 500,
    "internal_server_error": 500,
    "internal_error": 500,
    "api_error": 500,
    "service_unavailable": 503,
    "unavailable": 503,
    "timeout": 504,
    "invalid_request_error": 400,
    "invalid_request": 400,
    "bad_request": 400,
    "invalid_argument": 400,
    "context_length_exceeded": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "unauthenticated": 401,
    "permission_error": 403,
    "permission_denied": 403,
    "not_found_error": 404,
    "model_not_found": 404,
}
"""Words by which an error inside a stream says what elsewhere is its HTTP status."""
_USED_UP: Final = ("insufficient_quota", "billing_hard_limit_reached", "billing_not_active")
"""Codes of a 429 that no waiting mends."""


class Endpoint(Value):
    """An address as sentences may show it: no user, no query, and the secrets that must not appear beside it."""

    shown: str
    key_env: str | None = None
    key_sent: bool = False
    secrets: tuple[str, ...] = ()

    def cleaned(self, finish: Finish) -> Finish:
        """Return the finish with every secret of the connection out of its sentence: the one place that hides them."""
        if finish.error is None:
            return finish
        text = finish.error
        for secret in sorted(self.secrets, key=len, reverse=True):
            if len(secret) >= _SECRET_MIN_CHARS:
                text = _without(text.replace(secret, _HIDDEN), secret)
        return msgspec.structs.replace(finish, error=text)


class HttpAnswer(Value):
    """An answer that is not a stream: its status, headers (lower-case names) and the beginning of its body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def _without(text: str, secret: str) -> str:
    """Return the text without the beginning of a secret at the place where `tidy` cut it."""
    if "…" not in text:
        return text
    for length in range(len(secret) - 1, _SECRET_PART_CHARS - 1, -1):
        text = text.replace(secret[:length] + "…", _HIDDEN + "…")
    return text


def tidy(text: str, limit: int = MESSAGE_MAX_CHARS) -> str:
    """Return the text on one line, cut to `limit` characters, without its full stop."""
    line = " ".join(text.split())
    if len(line) > limit:
        line = line[: limit - 1] + "…"
    return line.rstrip(".")


def message_of(body: Any) -> str:
    """Return the words of an error body of any common shape, or an empty string."""
    if isinstance(body, str):
        return tidy(body)
    if isinstance(body, list):
        items = cast("list[Any]", body)
        return message_of(items[0]) if items else ""
    if not isinstance(body, dict):
        return ""
    fields = cast("dict[str, Any]", body)
    for key in ("error", "message", "detail", "msg", "errors", "error_description"):
        if found := message_of(fields.get(key)):
            return found
    return ""


def status_of(body: Any) -> int | None:
    """Return the HTTP status that an error object inside a stream means by its code, status or type, if any."""
    fields = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
    found = (_as_status(fields.get(key)) for key in ("code", "status", "type"))
    return next((status for status in found if status is not None), None)


def _as_status(value: Any) -> int | None:
    if isinstance(value, str):
        value = int(value) if value.isdecimal() else _STATUSES.get(value.lower())
    return value if isinstance(value, int) and 400 <= value <= 599 else None


def is_used_up(body: Any) -> bool:
    """Return whether an error object says that the account is empty, which no waiting mends."""
    fields = cast("dict[str, Any]", body) if isinstance(body, dict) else {}
    return any(fields.get(key) in _USED_UP for key in ("code", "type"))


def words_of(answer: HttpAnswer) -> str:
    """Return what a body says, whatever it is: JSON, a web page, or plain text."""
    text = answer.body.decode("utf-8", "replace").strip()
    if text.startswith("<") or "html" in answer.headers.get("content-type", ""):
        title = _TITLE.search(text)
        return f"it sent a web page titled {tidy(title[1])!r}" if title else "it sent a web page"
    try:
        body = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return tidy(text) or "no reason given"
    return message_of(body) or tidy(text) or "no reason given"


def retry_after_s(headers: Mapping[str, str], now_s: float) -> float | None:
    """Return the wait that a provider asked for, in seconds, or null.

    A date is measured from the provider's own `Date`, because our clock may be wrong; from `now_s` (wall time) where it
    sent none.
    """
    asked = _number(headers.get("retry-after-ms"))
    if asked is not None:
        return _clamped(asked / 1000)
    text = headers.get("retry-after")
    asked = _number(text)
    if asked is not None:
        return _clamped(asked)
    until_s, sent_s = _moment(text), _moment(headers.get("date"))
    return None if until_s is None else _clamped(until_s - (now_s if sent_s is None else sent_s))


def _moment(text: str | None) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text or "").timestamp()
    except (ValueError, OverflowError):
        return None


def http_failure(endpoint: Endpoint, answer: HttpAnswer, model: str, now_s: float) -> Finish:
    """Return the `Finish` of an answer that refuses the request: one sentence that says what to do.

    It may still repeat a secret that the provider repeated: see `Endpoint.cleaned`.
    """
    wait_s = retry_after_s(answer.headers, now_s)
    return Finish(
        reason="error",
        error=_sentence(endpoint, answer, model, wait_s),
        status=answer.status,
        retry_after_s=wait_s,
        cause="lasting" if is_used_up(_error_object(answer)) else None,
    )


def _error_object(answer: HttpAnswer) -> Any:
    try:
        body = msgspec.json.decode(answer.body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return cast("dict[str, Any]", body).get("error") if isinstance(body, dict) else None


def _sentence(endpoint: Endpoint, answer: HttpAnswer, model: str, wait_s: float | None) -> str:
    status, where, words = answer.status, endpoint.shown, words_of(answer)
    if status in {401, 403}:
        return _key_sentence(endpoint, status, words)
    if status == 404:
        return (
            f"{where} does not know the model {model!r}, or is no address of models (HTTP 404: {words});"
            " check the model's name and the base URL."
        )
    if status == 429:
        later = "" if wait_s is None else f", asks to wait {wait_s:g} s"
        return f"{where} limits the rate (HTTP 429{later}): {words}."
    if 300 <= status < 400:
        target = tidy(answer.headers.get("location", "another address"))
        return f"{where} redirects to {target} (HTTP {status}); name that address as the base URL."
    if status >= 500:
        return f"{where} failed (HTTP {status}): {words}."
    return f"{where} refused the request (HTTP {status}): {words}."


def _key_sentence(endpoint: Endpoint, status: int, words: str) -> str:
    where = endpoint.shown
    if endpoint.key_sent and endpoint.key_env:
        return f"{where} refused the key of {endpoint.key_env} (HTTP {status}: {words}); check that variable."
    if endpoint.key_sent:
        return f"{where} refused the key of this connection (HTTP {status}: {words}); check the key."
    if endpoint.key_env:
        return f"{where} wants a key (HTTP {status}: {words}), but {endpoint.key_env} is not set; set that variable."
    return f"{where} wants a key (HTTP {status}: {words}), but this connection names none; give it an api_key_env."


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None


def _clamped(wait_s: float) -> float | None:
    return None if math.isnan(wait_s) else min(max(0.0, wait_s), RETRY_AFTER_MAX_S)
