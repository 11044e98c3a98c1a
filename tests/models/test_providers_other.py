"""Google and Bedrock behind our port, over real HTTP: text, calls, signatures, endings, and what is not installed."""

import asyncio
import base64
import binascii
import importlib.util
import json
import struct
import subprocess
import sys
from typing import Any

import pytest

from retinue.core.errors import RetinueError
from retinue.core.ids import CallId
from retinue.models.extra import Access, ExtraModel
from retinue.models.kinds import Kind, require_installed
from retinue.models.openai import HttpOptions
from retinue.models.registry import ModelRegistry
from retinue.models.unanswered import TimeLimits
from retinue.ports import (
    AssistantText,
    Finish,
    ModelRequest,
    RequestCall,
    RequestMessage,
    ToolSchema,
    ToolText,
    UserText,
)
from tests.models.kit import heard, request_of
from tests.models.replyserver import ABORT, NEVER, Item, Reply, ReplyServer, Seen, Status

TOOLS = (ToolSchema(name="ping", description="Pings.", parameters={"type": "object", "properties": {}}),)
GEMINI, CLAUDE = "gemini-3-pro", "us.anthropic.claude-opus-4-6-v1"
AWS = {"AWS_ACCESS_KEY_ID": "AKIA1", "AWS_SECRET_ACCESS_KEY": "very-secret", "AWS_REGION": "eu-west-1"}


def asked(
    kind: str, reply: Reply, request: ModelRequest, options: HttpOptions | None = None, **access: Any
) -> tuple[Finish, list[Seen]]:
    async def ask() -> Finish:
        given = {"kind": kind, "base_url": server.base_url, **({"environment": AWS} if kind == "bedrock" else access)}
        model = ExtraModel(Access(**{"api_key": None if kind == "bedrock" else "AIza-secret", **given}), options)
        try:
            return (await heard(model, request))[1]
        finally:
            await model.aclose()

    with ReplyServer([reply], bare=True) as server:
        finish = asyncio.run(ask())
        assert len(server.requests) == 1, "only our own retries may ask again"
        return finish, server.requests


def steps_of(finish: Finish) -> list[RequestMessage]:
    calls = [
        RequestCall(call_id=CallId(f"c_{n}"), name=call.name, arguments=json.loads(call.arguments))
        for n, call in enumerate(finish.tool_calls, 1)
    ]
    answer = AssistantText(text=finish.text, reasoning=finish.reasoning, tool_calls=tuple(calls), kept=finish.kept)
    return [answer, *(ToolText(call_id=call.call_id, name=call.name, text="pong") for call in calls)]


# --------------------------------------------------------------------------------------------------------------- google


@pytest.fixture
def google() -> None:
    pytest.importorskip("pydantic_ai", reason="the extra `providers` is not installed")
    pytest.importorskip("google.genai", reason="the extra `providers` is not installed")


COUNTS = {"promptTokenCount": 10, "candidatesTokenCount": 5, "thoughtsTokenCount": 3, "cachedContentTokenCount": 4}
SIGNATURE = base64.b64encode(b"signed").decode()


def chunk(*parts: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    candidate = {"index": 0, "content": {"role": "model", "parts": list(parts)}}
    return {
        "candidates": [{**candidate, **({"finishReason": finish} if finish else {})}],
        "usageMetadata": {**COUNTS, "totalTokenCount": 18},
        "responseId": "r1",
    }


def gemini(reply: Reply, *messages: RequestMessage, options: HttpOptions | None = None, **fields: Any) -> Finish:
    return asked("google", reply, request_of(*messages, model=GEMINI, **fields), options)[0]


GEMINI_CALLS: list[Item] = [
    chunk({"text": "Hm.", "thought": True}),
    chunk({"text": "I "}),
    chunk({"text": "ping."}),
    chunk(
        {"functionCall": {"name": "ping", "args": {"a": 1}}, "thoughtSignature": SIGNATURE},
        {"functionCall": {"name": "ping", "args": {"a": 2}}},
    ),
    chunk(finish="STOP"),
]


@pytest.mark.usefixtures("google")
def test_google_text_thoughts_calls_and_usage() -> None:
    finish, (seen,) = asked("google", GEMINI_CALLS, request_of(model=GEMINI, tools=TOOLS, system="be brief"))
    assert (finish.reason, finish.text, finish.reasoning) == ("tool_calls", "I ping.", "Hm.")
    assert [(call.name, json.loads(call.arguments)) for call in finish.tool_calls] == [
        ("ping", {"a": 1}),
        ("ping", {"a": 2}),
    ]
    usage = finish.usage
    assert usage
    assert (usage.input, usage.cached, usage.output, usage.reasoning, usage.total) == (10, 4, 8, 3, 18)
    assert seen.path == f"/v1beta/models/{GEMINI}:streamGenerateContent?alt=sse"
    assert seen.headers["x-goog-api-key"] == "AIza-secret"
    assert seen.body["systemInstruction"]["parts"] == [{"text": "be brief"}]


@pytest.mark.usefixtures("google")
def test_google_gets_its_thought_signature_back_with_the_call_it_came_with() -> None:
    first = gemini(GEMINI_CALLS, tools=TOOLS)
    request = request_of(UserText(text="go"), *steps_of(first), model=GEMINI, tools=TOOLS)
    _, (seen,) = asked("google", [chunk({"text": "done"}, finish="STOP")], request)
    _, answer, results = seen.body["contents"]
    assert [part.get("thoughtSignature") for part in answer["parts"]] == [None, SIGNATURE, None]
    assert [part["functionCall"]["args"] for part in answer["parts"][1:]] == [{"a": 1}, {"a": 2}]
    assert [part["functionResponse"]["name"] for part in results["parts"]] == ["ping", "ping"]


@pytest.mark.usefixtures("google")
@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "refusal"),
        ("RECITATION", "refusal"),
        ("MALFORMED_FUNCTION_CALL", "error"),
        ("OTHER", "error"),
        (None, "incomplete"),
    ],
)
def test_google_endings(finish: str | None, reason: str) -> None:
    assert gemini([chunk({"text": "Hel"}), chunk({"text": "lo"}, finish=finish)]).reason == reason


@pytest.mark.usefixtures("google")
def test_google_blocks_a_prompt() -> None:
    finish = gemini([{"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}])
    assert (finish.reason, finish.error) == ("refusal", "The model declined to answer: PROHIBITED_CONTENT.")


@pytest.mark.usefixtures("google")
def test_google_failures() -> None:
    broken = gemini([chunk({"text": "Hel"}), 0.05, ABORT])
    assert (broken.reason, broken.text) == ("incomplete", "Hel")
    inside = gemini([chunk({"text": "Hel"}), {"error": {"code": 503, "message": "busy", "status": "UNAVAILABLE"}}])
    assert (inside.reason, inside.status, inside.text) == ("error", 503, "Hel")
    error = {"error": {"code": 429, "message": "slow AIza-secret", "status": "RESOURCE_EXHAUSTED"}}
    limited = gemini(Status(429, error, **{"retry-after": "2"}))
    assert (limited.status, limited.retry_after_s) == (429, 2.0)
    assert "AIza" not in (limited.error or "")
    silent = gemini([chunk({"text": "Hel"}), NEVER], options=HttpOptions(times=TimeLimits(idle_timeout_s=0.2)))
    assert (silent.reason, silent.cause, silent.text) == ("error", "timeout", "Hel")


# -------------------------------------------------------------------------------------------------------------- bedrock


@pytest.fixture
def bedrock() -> None:
    pytest.importorskip("pydantic_ai", reason="the extra `providers` is not installed")
    pytest.importorskip("boto3", reason="the extra `providers` is not installed")


def frame(event: str, payload: dict[str, Any], kind: str = "event") -> bytes:
    """Return one message of Amazon's event-stream encoding."""
    names = {f":{kind}-type": event, ":content-type": "application/json", ":message-type": kind}
    headers = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for name, value in names.items()
    )
    body = json.dumps(payload).encode()
    prelude = struct.pack(">II", 16 + len(headers) + len(body), len(headers))
    message = prelude + struct.pack(">I", binascii.crc32(prelude)) + headers + body
    return message + struct.pack(">I", binascii.crc32(message))


def delta(index: int, **content: Any) -> bytes:
    return frame("contentBlockDelta", {"contentBlockIndex": index, "delta": content})


CLAUDE_CALL: list[Item] = [
    frame("messageStart", {"role": "assistant"}),
    delta(0, reasoningContent={"text": "Hm."}),
    delta(0, reasoningContent={"signature": "sig"}),
    delta(1, text="I ping."),
    frame("contentBlockStart", {"contentBlockIndex": 2, "start": {"toolUse": {"toolUseId": "t_1", "name": "ping"}}}),
    delta(2, toolUse={"input": '{"a":1}'}),
]
CACHED = {
    "inputTokens": 10,
    "outputTokens": 7,
    "totalTokens": 137,
    "cacheReadInputTokens": 100,
    "cacheWriteInputTokens": 20,
}
CLAUDE_END: list[Item] = [
    frame("messageStop", {"stopReason": "tool_use"}),
    frame("metadata", {"usage": CACHED, "metrics": {"latencyMs": 1}}),
]


def claude(reply: Reply, *messages: RequestMessage, options: HttpOptions | None = None, **fields: Any) -> Finish:
    return asked("bedrock", reply, request_of(*messages, model=CLAUDE, **fields), options)[0]


@pytest.mark.usefixtures("bedrock")
def test_bedrock_thoughts_go_back_with_their_signature() -> None:
    finish = claude([*CLAUDE_CALL, *CLAUDE_END], tools=TOOLS)
    assert (finish.reason, finish.text, finish.reasoning) == ("tool_calls", "I ping.", "Hm.")
    assert finish.usage
    assert (finish.usage.input, finish.usage.cached, finish.usage.output) == (130, 100, 7)
    request = request_of(UserText(text="go"), *steps_of(finish), model=CLAUDE, tools=TOOLS, effort="low")
    _, (seen,) = asked("bedrock", [*CLAUDE_CALL, *CLAUDE_END], request)
    assert seen.body["messages"][1]["content"] == [
        {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "sig"}}},
        {"text": "I ping."},
        {"toolUse": {"toolUseId": "t_1", "name": "ping", "input": {"a": 1}}},
    ]
    assert "/eu-west-1/bedrock/" in seen.headers["authorization"]


@pytest.mark.usefixtures("bedrock")
def test_bedrock_failures() -> None:
    assert claude(CLAUDE_CALL).reason == "incomplete"
    assert claude([*CLAUDE_CALL, 0.05, ABORT]).reason == "incomplete"
    limited = claude(
        Status(429, {"message": "slow"}, **{"x-amzn-errortype": "ThrottlingException", "retry-after": "2"})
    )
    assert (limited.status, limited.retry_after_s) == (429, 2.0)
    refused = claude(Status(403, {"message": "bad very-secret"}, **{"x-amzn-errortype": "AccessDeniedException"}))
    assert "refused the key of AWS_ACCESS_KEY_ID (HTTP 403: bad [redacted])" in (refused.error or "")
    inside = claude([*CLAUDE_CALL, frame("throttlingException", {"message": "Too many"}, "exception")])
    assert (inside.reason, inside.status) == ("error", 429)
    assert inside.error == "The provider reported an error in the stream: Too many."


@pytest.mark.usefixtures("bedrock")
def test_bedrock_times() -> None:
    first = claude([NEVER], options=HttpOptions(times=TimeLimits(first_chunk_timeout_s=0.3)))
    assert (first.cause, "first_chunk_timeout_s" in (first.error or "")) == ("timeout", True)
    idle = claude([*CLAUDE_CALL, NEVER], options=HttpOptions(times=TimeLimits(idle_timeout_s=0.3)))
    assert (idle.cause, "idle_timeout_s" in (idle.error or ""), idle.text) == ("timeout", True, "I ping.")


# --------------------------------------------------------------------------------------------------------- the registry


def refused(registry: ModelRegistry, name: str) -> RetinueError:
    with pytest.raises(RetinueError) as caught:
        registry.find(name)
    return caught.value


@pytest.fixture
def extra() -> None:
    pytest.importorskip("pydantic_ai", reason="the extra `providers` is not installed")


@pytest.mark.usefixtures("extra")
@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("anthropic:claude-x", "ANTHROPIC_API_KEY"),
        ("google:gemini-x", "GEMINI_API_KEY"),
        ("gemini:gemini-x", "GEMINI_API_KEY"),
    ],
)
def test_a_missing_key_is_named(name: str, variable: str) -> None:
    error = refused(ModelRegistry(), name)
    assert (error.code, error.detail) == (
        "unknown_model",
        f"The model {name!r} needs a key, but {variable} is not set.",
    )
    assert ModelRegistry(environment={variable: "k"}).find(name)[1] == name.partition(":")[2]


@pytest.mark.usefixtures("extra")
def test_bedrock_needs_a_region_and_says_who_asks() -> None:
    assert "AWS_REGION is not set" in refused(ModelRegistry(environment=AWS | {"AWS_REGION": ""}), "bedrock:x").detail
    region = {"AWS_DEFAULT_REGION": "us-east-1"}
    assert "AWS_ACCESS_KEY_ID is not set" in refused(ModelRegistry(environment=region), "bedrock:x").detail
    for keys in ({"AWS_BEARER_TOKEN_BEDROCK": "b"}, {"AWS_PROFILE": "team"}, AWS):
        assert ModelRegistry(environment=region | keys).find("bedrock:a.b-v1:0")[1] == "a.b-v1:0"


def test_a_provider_that_is_not_installed_is_unsupported_with_the_command() -> None:
    with pytest.raises(RetinueError) as caught:
        require_installed("made", Kind(packages=("no_such.part", "json"), keys=()))
    assert caught.value.code == "unsupported"
    assert caught.value.detail == "Models of 'made' need no-such-part, which is not installed."
    assert caught.value.hint == "Run: pip install 'retinue[providers]'"


@pytest.mark.skipif(importlib.util.find_spec("groq") is not None, reason="the package groq is installed")
def test_a_library_that_cannot_be_loaded_is_one_lasting_error() -> None:
    assert refused(ModelRegistry(environment={"GROQ_API_KEY": "k"}), "groq:m").code == "unsupported"
    finish = asyncio.run(heard(ExtraModel(Access(kind="groq", api_key="k")), request_of()))[1]
    assert (finish.reason, finish.cause) == ("error", "lasting")
    assert "run pip install 'pydantic-ai-slim[groq]'" in (finish.error or "")


def test_a_connection_reaches_another_address_without_a_key_of_ours() -> None:
    registry = ModelRegistry({"own": {"kind": "anthropic", "base_url": "http://127.0.0.1:9"}})
    assert registry.rows()[1].key_set is False
    named = ModelRegistry({"anthropic": {"concurrency": 2}}, environment={"ANTHROPIC_API_KEY": "k"}).rows()[0]
    assert (named.kind, named.api_key_env, named.key_set) == ("anthropic", "ANTHROPIC_API_KEY", True)
    plain = ModelRegistry({"groq": {"base_url": "https://api.groq.com/openai/v1"}}).rows()[0]
    assert plain.kind == "openai", "a connection with an address of its own is what it always was"


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"kind": "telepathy"}, "unknown kind 'telepathy'"),
        ({"kind": "anthropic", "stream": False}, "sets stream"),
        ({"kind": "anthropic", "send_reasoning": True}, "sets send_reasoning"),
        ({"kind": "bedrock", "headers": {"X": "y"}}, "sets headers"),
        ({"kind": "cohere", "base_url": "http://127.0.0.1:9"}, "sets base_url"),
    ],
)
def test_what_a_kind_does_not_know_is_refused_at_load(table: dict[str, Any], why: str) -> None:
    with pytest.raises(RetinueError) as caught:
        ModelRegistry({"a": table})
    assert (caught.value.code, why in caught.value.detail) == ("invalid", True)


@pytest.mark.usefixtures("extra")
def test_a_base_url_that_is_no_address_is_refused() -> None:
    registry = ModelRegistry({"a": {"kind": "anthropic", "base_url": "ftp://x"}})
    assert refused(registry, "a:m").code == "invalid"


def test_finding_a_model_loads_no_library() -> None:
    program = (
        "import sys, retinue, retinue.models.registry as r\n"
        "try: r.ModelRegistry(environment={'ANTHROPIC_API_KEY': 'k'}).find('anthropic:m')\n"
        "except retinue.RetinueError: pass\n"
        "print([name for name in ('pydantic_ai', 'anthropic', 'google.genai', 'boto3') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
