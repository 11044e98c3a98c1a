"""No sentence of a failure shows a secret of its connection, wherever the provider repeats it."""

import json
from typing import Any

import pytest

from retinue.models.failure import MESSAGE_MAX_CHARS
from retinue.models.openai import HttpOptions
from retinue.testing.modelserver import ModelServer
from tests.models.kit import asked
from tests.models.test_openai import http_line, raw_lines

KEY = "sk-0123456789abcdefghijklmnop"
TOKEN = "t0k3n-of-another-kind"
SECRETS = (KEY, TOKEN)


def told(script: Any, **how: Any) -> str:
    with ModelServer(script) as server:
        finish = asked(server.base_url, api_key=KEY, headers={"X-Auth": f"Token {TOKEN}"}, **how)[1]
    assert finish.error
    return finish.error


def sse(event: Any, prefix: str = "data: ") -> list[dict[str, Any]]:
    return raw_lines(f"{prefix}{event if isinstance(event, str) else json.dumps(event)}\n\n".encode())


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500])
def test_an_http_failure(status: int, secret: str) -> None:
    assert secret not in told(http_line(status, {"error": {"message": f"bad {secret}"}}))
    assert secret not in told(http_line(status, f"bad {secret}"))


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize(
    "event",
    [
        {"error": {"message": "bad {}"}},
        {"error": "bad {}"},
        {"choices": [{"delta": {}, "finish_reason": "odd {}"}]},
        {"choices": [{"delta": {"refusal": "no, {}"}, "finish_reason": "stop"}]},
        "not JSON {}",
    ],
)
def test_a_stream(event: Any, secret: str) -> None:
    text = (event if isinstance(event, str) else json.dumps(event)).replace("{}", secret, 1)
    assert secret not in told(sse(text))


def test_a_redirect_a_web_page_and_a_whole_answer() -> None:
    assert KEY not in told(http_line(302, "", Location=f"http://h/?key={KEY}"))
    assert KEY not in told(http_line(200, f"<html><title>{KEY}</title></html>"))
    assert KEY not in told(http_line(200, {"detail": f"bad {KEY}"}), options=HttpOptions(stream=False))


@pytest.mark.parametrize("before", range(MESSAGE_MAX_CHARS - len(KEY) - 1, MESSAGE_MAX_CHARS))
def test_a_sentence_that_is_cut_inside_a_secret(before: int) -> None:
    """Hiding comes last, so it must also see what the cut left."""
    sentence = told(http_line(400, {"error": {"message": "x" * before + KEY}}))
    assert KEY[:6] not in sentence
