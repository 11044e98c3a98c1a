"""Delegation over real HTTP: the command against the strict loopback model server."""

import json
from pathlib import Path
from typing import Any

import pytest

from retinue.testing.modelserver import ModelServer, Setup
from tests.e2e.kit import Line, call, of_type, one_sentence, retinue

NAMES = ("north", "east", "south")


def _script(mode: str) -> list[dict[str, Any]]:
    spawns = [call("spawn_agent", prompt=f"[child {name}] look", name=name, mode=mode) for name in NAMES]
    return [
        {"agent": "parent", "n": 1, "text": "I ask three.", "tool_calls": spawns},
        *({"agent": "parent", "n": n, "text": f"answer {n}"} for n in range(2, 9)),
        *({"agent": f"name:{name}", "text": f"seen from {name}", "delay_ms": 20} for name in NAMES),
    ]


def _run(folder: Path, server: ModelServer) -> list[Line]:
    env = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "sk-secret-of-the-test"}
    ran = retinue(folder, "run", "--model", "openai:test-model", "Ask three.", "--json", env=env)
    assert (ran.code, server.faults) == (0, []), ran.err
    assert "sk-secret-of-the-test" not in ran.out + ran.err
    return ran.lines()


def test_three_spawns_in_one_reply_bring_each_result_exactly_once_as_a_letter(tmp_path: Path) -> None:
    with ModelServer(_script("background")) as server:
        lines = _run(tmp_path, server)
        requests = [request.messages for request in server.requests if request.messages[1]["content"] == "Ask three."]
    root = lines[0]["session_id"]
    children = {line["child_id"]: line["name"] for line in of_type(lines, "run.queued")}
    letters = {line["letter_id"]: line for line in of_type(lines, "letter.queued")}
    absorbed = of_type(lines, "letter.absorbed")
    assert sorted(children.values()) == sorted(NAMES)
    assert sorted(line["letter_id"] for line in absorbed) == sorted(letters)
    assert {letter["sender_id"] for letter in letters.values()} == set(children)
    sent = [message["content"] for message in requests[-1] if message["role"] == "user"][1:]
    assert len(sent) == len(NAMES)
    for text in sent:
        kind, task, sender, payload = text.split("\n")[:4]
        assert (kind, task, payload) == ("Message Type: FINAL_ANSWER", f"Task name: {root}", "Payload:")
        name = children[sender.removeprefix("Sender: ")]
        assert f"seen from {name}" in text.split("\n", 4)[4]
    _at_the_first_boundary(lines, root)


def _at_the_first_boundary(lines: list[Line], root: str) -> None:
    """Between a letter's storing and its absorption no other step of the root is opened."""
    for queued in of_type(lines, "letter.queued"):
        taken = next(line for line in of_type(lines, "letter.absorbed") if line["letter_id"] == queued["letter_id"])
        between = [line for line in lines if queued["position"] < line["position"] < taken["position"]]
        assert not [line for line in of_type(between, "step.opened") if line["session_id"] == root]


def test_awaited_children_answer_their_calls_and_send_no_letter(tmp_path: Path) -> None:
    with ModelServer(_script("await")) as server:
        lines = _run(tmp_path, server)
        last = next(request.messages for request in server.requests if len(request.messages) > 3)
    answers = [json.loads(message["content"]) for message in last if message["role"] == "tool"]
    assert of_type(lines, "letter.queued") == []
    assert [answer["name"] for answer in answers] == list(NAMES)
    assert [answer["output"] for answer in answers] == [f"seen from {name}" for name in NAMES]
    assert {answer["result_state"] for answer in answers} == {"collected"}


def test_a_wrong_key_is_one_sentence_and_the_turn_failed(tmp_path: Path) -> None:
    with ModelServer(_script("await"), Setup(api_key="right")) as server:
        env = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "sk-wrong"}
        ran = retinue(tmp_path, "run", "--model", "openai:test-model", "go", env=env)
    assert (ran.code, ran.out) == (1, "")
    assert "401" in one_sentence(ran) or "key" in one_sentence(ran)
    assert "sk-wrong" not in ran.err


def test_a_model_that_the_server_does_not_know_fails_the_turn(tmp_path: Path) -> None:
    with ModelServer(_script("await"), Setup(models=("other",))) as server:
        env = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "k"}
        ran = retinue(tmp_path, "run", "--model", "openai:test-model", "go", env=env)
    assert (ran.code, ran.out) == (1, "")
    assert "test-model" in one_sentence(ran)


@pytest.mark.parametrize("port", [9])
def test_an_unreachable_server_is_one_sentence_and_nothing_is_lost(tmp_path: Path, port: int) -> None:
    env = {"OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1", "OPENAI_API_KEY": "k"}
    ran = retinue(tmp_path, "run", "--model", "openai:test-model", "keep this prompt", "--json", env=env)
    last = ran.lines()[-1]
    assert (ran.code, last["status"], last["reason"]) == (1, "failed", "provider_error")
    assert f"127.0.0.1:{port}" in last["detail"]
    shown = retinue(tmp_path, "sessions", "show", last["session_id"], "--json").document()
    assert shown["last_turn"] == {"status": "failed", "reason": "provider_error"}
