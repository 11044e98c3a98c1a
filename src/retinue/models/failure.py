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


class Endpoint(Value):
    """An address as sentences may show it: no user, no query, and the secrets that must not appear beside it."""

    shown: str
    key_env: str | None = None
    key_sent: bool = False
    secrets: tuple[str, ...] = ()

    def clean(self, text: str) -> str:
        """Return the text with every secret of the connection replaced."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            if len(secret) >= _SECRET_MIN_CHARS:
                text = text.replace(secret, _HIDDEN)
        return text


class HttpAnswer(Value):
    """An answer that is not a stream: its status, headers (lower-case names) and the beginning of its body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


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
    """Return the HTTP status that an error object inside a stream names as its code, if it is one."""
    code = cast("dict[str, Any]", body).get("code") if isinstance(body, dict) else None
    if isinstance(code, str) and code.isdecimal():
        code = int(code)
    return code if isinstance(code, int) and 400 <= code <= 599 else None


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
    """Return the wait that a provider asked for, in seconds from `now_s` (wall time), or null."""
    asked = _number(headers.get("retry-after-ms"))
    if asked is not None:
        return _clamped(asked / 1000)
    text = headers.get("retry-after")
    asked = _number(text)
    if asked is not None:
        return _clamped(asked)
    try:
        return _clamped(email.utils.parsedate_to_datetime(text or "").timestamp() - now_s)
    except (ValueError, OverflowError):
        return None


def http_failure(endpoint: Endpoint, answer: HttpAnswer, model: str, now_s: float) -> Finish:
    """Return the `Finish` of an answer that refuses the request: one sentence that says what to do."""
    wait_s = retry_after_s(answer.headers, now_s)
    sentence = _sentence(endpoint, answer, model, wait_s)
    return Finish(reason="error", error=endpoint.clean(sentence), status=answer.status, retry_after_s=wait_s)


def _sentence(endpoint: Endpoint, answer: HttpAnswer, model: str, wait_s: float | None) -> str:
    status, where, words = answer.status, endpoint.shown, words_of(answer)
    if status in {401, 403}:
        return _key_sentence(endpoint, status, words)
    if status == 404:
        return (
            f"{where} does not know the model {model!r}, or is no chat-completions address (HTTP 404: {words});"
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
