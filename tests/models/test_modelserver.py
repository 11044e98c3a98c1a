"""The loopback model server: how strict it is, whom it tells apart, and what it refuses."""

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from retinue.core.errors import RetinueError
from retinue.testing.modelserver import ModelServer, Setup

CALL = {"id": "c_1", "type": "function", "function": {"name": "ping", "arguments": "{}"}}
CALL_2 = {"id": "c_2", "type": "function", "function": {"name": "ping", "arguments": "{}"}}


def assistant(*calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **fields}


def tool(call_id: str, content: str = "ok") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def user(text: str = "go") -> dict[str, Any]:
    return {"role": "user", "content": text}


def posted(server: ModelServer, *messages: dict[str, Any], model: str = "m", **headers: str) -> tuple[int, str]:
    data = json.dumps({"model": model, "messages": list(messages)}).encode()
    headers = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    request = urllib.request.Request(server.base_url + "/chat/completions", data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([user(), assistant(CALL)], "are not answered"),
        ([user(), assistant(CALL), user(), tool("c_1")], "stands before the answers"),
        ([user(), assistant(CALL, CALL_2), tool("c_1"), user()], "stands before the answers"),
        ([user(), tool("c_1")], "answers no call"),
        ([user(), assistant(CALL), tool("c_1"), tool("c_1")], "answers no call"),
        ([user(), assistant(CALL), tool("c_1"), assistant(CALL), tool("c_1")], "used twice"),
        ([user(), assistant({**CALL, "function": {"name": "", "arguments": "{}"}}), tool("c_1")], "has no name"),
        ([user(), assistant({**CALL, "function": {"name": "a", "arguments": "[1]"}}), tool("c_1")], "no JSON object"),
        ([user(), assistant({**CALL, "function": {"name": "a", "arguments": "{"}}), tool("c_1")], "no JSON object"),
        ([user(), assistant({**CALL, "function": {"name": "a"}}), tool("c_1")], "no JSON object"),
    ],
)
def test_a_request_that_breaks_the_pairing_is_answered_400(messages: list[dict[str, Any]], why: str) -> None:
    with ModelServer([{"text": "ok"}]) as server:
        status, body = posted(server, *messages)
        assert (status, why in body) == (400, True)
        assert why in server.faults[0]
    with ModelServer([{"text": "ok"}], Setup(strict=False)) as server:
        assert posted(server, *messages)[0] == 200


def test_a_right_history_is_accepted_with_answers_in_any_order() -> None:
    messages = [user(), assistant(CALL, CALL_2), tool("c_2"), tool("c_1"), user("and"), user("more")]
    with ModelServer([{"text": "ok"}]) as server:
        assert posted(server, *messages)[0] == 200
        assert server.faults == []


def test_agents_are_told_apart_by_the_marker_in_their_task_or_by_their_model() -> None:
    script = [
        {"agent": "parent", "text": "I am the parent"},
        {"agent": "child", "text": "I am a child"},
        {"agent": "name:scout", "text": "I am the scout"},
    ]
    with ModelServer(script, Setup(by_model={"fake-child": "child", "fake-scout": "name:scout"})) as server:
        asked = [
            posted(server, user("go")),
            posted(server, user("[child] go")),
            posted(server, user("[child scout] go")),
            posted(server, user("[child other] go")),
            posted(server, user("go there"), model="fake-child"),
            posted(server, user("go there"), model="fake-scout"),
        ]
    texts = ["".join(_texts(body)) for _, body in asked]
    assert texts == [
        "I am the parent",
        "I am a child",
        "I am the scout",
        "I am a child",
        "I am a child",
        "I am the scout",
    ]


def test_sessions_that_look_alike_each_get_their_own_script() -> None:
    with ModelServer([{"n": 1, "text": "one"}, {"n": 2, "text": "two"}]) as server:
        first = [user("[child] same")]
        assert [_said(server, *first) for _ in range(3)] == ["one", "one", "one"]
        longer = [*first, {"role": "assistant", "content": "one"}, user("more")]
        assert [_said(server, *longer) for _ in range(3)] == ["two", "two", "two"]
        assert [request.number for request in server.requests] == [1, 1, 1, 2, 2, 2]


def test_a_request_repeated_after_a_failure_is_the_next_one_of_its_session() -> None:
    with ModelServer([{"error": "down", "status": 503}, {"text": "up"}]) as server:
        assert posted(server, user())[0] == 503
        assert _said(server, user()) == "up"


def test_a_session_header_decides_when_there_is_one() -> None:
    with ModelServer([{"text": "one"}, {"text": "two"}]) as server:
        assert _said(server, user(), X_Session_Id="s_1") == "one"
        assert _said(server, user(), X_Session_Id="s_2") == "one"
        assert _said(server, user(), X_Session_Id="s_1") == "two"


def test_children_are_filled_in_from_the_history() -> None:
    call = {"id": "c_1", "type": "function", "function": {"name": "spawn_agent", "arguments": "{}"}}
    messages = [user(), assistant(call), tool("c_1", '{"run_id":"r_1","session_id":"s_9"}')]
    with ModelServer([{"text": "wait for {{child:1}} {{run:1}}"}]) as server:
        assert _said(server, *messages) == "wait for s_9 r_1"


def test_a_script_that_has_run_dry_is_a_500() -> None:
    with ModelServer() as server:
        status, body = posted(server, user())
        assert (status, "script ended" in body) == (500, True)


def test_keys_models_and_rates_are_checked_before_the_script() -> None:
    setup = Setup(api_key="k", models=("m",), requests_per_s=1, retry_after_s=2)
    with ModelServer([{"text": "one"}], setup) as server:
        assert posted(server, user())[0] == 401
        assert posted(server, user(), model="x", Authorization="Bearer k")[0] == 404
        assert posted(server, user(), Authorization="Bearer k")[0] == 200
        assert posted(server, user(), Authorization="Bearer k")[0] == 429
        assert [request.status for request in server.requests] == [401, 404, 200, 429]
        with urllib.request.urlopen(server.base_url + "/models", timeout=10) as response:
            assert json.load(response)["data"][0]["id"] == "m"


def test_an_expected_order_is_checked_whatever_ids_the_client_uses() -> None:
    script = [
        {"_ctl": "reply", "n": 1, "agent": "any"},
        {
            "choices": [
                {"index": 0, "delta": {"tool_calls": [{"index": 0, **CALL, "id": "x"}]}, "finish_reason": "tool_calls"}
            ]
        },
        {"_ctl": "done"},
        {"_ctl": "expect_request", "agent": "any", "n": 2, "order": ["assistant:tool_calls", "tool:x", "user"]},
        {"n": 2, "text": "ok"},
    ]
    history = [user(), assistant(CALL), tool("c_1")]
    for extra, status in (([user()], 200), ([], 400), ([user(), user()], 400)):
        with ModelServer(script) as server:
            assert posted(server, user())[0] == 200
            assert posted(server, *history, *extra)[0] == status


def test_reasoning_can_be_demanded() -> None:
    script = [
        {"_ctl": "expect_request", "agent": "any", "n": 1, "need_reasoning": True},
        {"text": "ok"},
    ]
    for fields, status in (({}, 400), ({"reasoning_content": "hm"}, 200)):
        with ModelServer(script) as server:
            assert posted(server, user(), assistant(CALL, **fields), tool("c_1"))[0] == status


def test_a_body_that_is_no_json_is_a_400() -> None:
    with ModelServer([{"text": "ok"}]) as server:
        request = urllib.request.Request(server.base_url + "/chat/completions", data=b"{")
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=10)
        caught.value.close()
        assert caught.value.code == 400


def test_a_wrong_script_is_refused_before_the_server_starts() -> None:
    with pytest.raises(RetinueError, match="no key 'txt'"):
        ModelServer([{"txt": "a"}])


def test_a_condition_that_never_comes_is_a_timeout() -> None:
    with ModelServer() as server, pytest.raises(TimeoutError):
        server.wait_until(lambda it: bool(it.requests), timeout_s=0.01)


def _said(server: ModelServer, *messages: dict[str, Any], **headers: str) -> str:
    status, body = posted(server, *messages, **headers)
    assert status == 200, body
    return "".join(_texts(body))


def _texts(body: str) -> list[str]:
    chunks = [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: {")]
    return [choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]]
