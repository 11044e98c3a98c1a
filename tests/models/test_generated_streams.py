"""Legal streams, cut, merged and re-ordered in all legal ways, mean the same as the plain one."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from retinue.core.events import Usage
from retinue.models.failure import Endpoint
from retinue.models.reading import AnswerReader
from retinue.ports import Delta, Finish, Spent
from tests.models.dialects import Answer, Dialect, is_legal, packets, stream_of, whole, written
from tests.models.kit import STREAM_FILES

CASES = 2_000
FILE_CASES = 20

NAMES = st.sampled_from(("read_file", "read", "list_dir", "spawn_agent"))
HARD = ("", "data: [DONE]\n\n", "🙂👩\u200d👩\u200d👧 漢字\r\n", '{"choices": []}', "\u2028\x85\x00")
TEXTS = st.text(max_size=12) | st.sampled_from(HARD)
VALUES = st.dictionaries(st.text(max_size=4), st.text(max_size=6) | st.integers() | st.none(), max_size=2)
OBJECTS = st.builds(json.dumps, VALUES, ensure_ascii=st.booleans())
BROKEN = st.sampled_from(('{"path": "a', "[1, 2]", "null", '"{\\"path\\": 1}"', "{'path': 'a',}", ""))
CALLS = st.lists(st.tuples(NAMES, OBJECTS | OBJECTS | BROKEN), max_size=4).map(tuple)
COUNTS = st.integers(0, 10**6)
USAGES = st.none() | st.tuples(COUNTS, COUNTS, COUNTS, COUNTS).map(lambda n: (n[0] + n[1], n[1], n[2] + n[3], n[3]))
GENERATED = st.builds(Answer, TEXTS, TEXTS, CALLS, USAGES, st.booleans())


def heard(pieces: list[bytes], content_type: str = "text/event-stream") -> tuple[list[Delta | Spent], Finish]:
    reader = AnswerReader(content_type, Endpoint(shown="http://h"))
    shown: list[Delta | Spent] = []
    for piece in pieces:
        shown += reader.feed(piece)
    shown += reader.close()
    return shown, reader.finish()


def replies_of(path: Path) -> list[list[dict[str, Any]]]:
    """Return the chunks of each reply of a stream file that ends well."""
    meta, *lines = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    replies: list[list[dict[str, Any]]] = []
    for line in lines:
        if line.get("_ctl") == "reply":
            replies.append([])
        elif "_ctl" not in line:
            replies[-1].append(line)
    return [chunks for chunks, wanted in zip(replies, meta["expect"], strict=False) if wanted["outcome"] == "complete"]


def answer_of(chunks: list[dict[str, Any]]) -> Answer:
    _, finish = heard([b"".join(f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks)])
    assert finish.error is None
    used = finish.usage and (finish.usage.input, finish.usage.cached, finish.usage.output, finish.usage.reasoning)
    calls = tuple((call.name, call.arguments) for call in finish.tool_calls)
    return Answer(finish.text, finish.reasoning, calls, used, finish.reason == "length")


FILE_CHUNKS = [(path.stem, chunks) for path in STREAM_FILES for chunks in replies_of(path)]
FROM_FILES = st.sampled_from([answer_of(chunks) for _, chunks in FILE_CHUNKS])


def check(answer: Answer, shown: list[Delta | Spent], finish: Finish) -> None:
    if answer.cut:
        assert finish.reason == "length"
    else:
        # Named calls only: a reply of B110 says tool_calls and makes none, which is the loop's to judge.
        assert finish.reason == ("tool_calls" if answer.calls else finish.reason)
        assert finish.reason in {"stop", "tool_calls"}
    assert (finish.error, finish.status, finish.cause) == (None, None, None)
    assert (finish.text, finish.reasoning) == (answer.text, answer.reasoning)
    assert [(call.name, call.arguments) for call in finish.tool_calls] == list(answer.calls)
    assert finish.usage == (answer.usage and _usage(*answer.usage))
    seen = {kind: [d.text for d in shown if isinstance(d, Delta) and d.kind == kind] for kind in ("text", "reasoning")}
    assert {kind: "".join(pieces) for kind, pieces in seen.items()} == {
        "text": answer.text,
        "reasoning": answer.reasoning,
    }
    assert all(seen["text"] + seen["reasoning"])
    costs = [piece.usage for piece in shown if isinstance(piece, Spent)]
    assert costs[-1:] == ([finish.usage] if finish.usage else [])


def _usage(prompt: int, cached: int, completion: int, reasoning: int) -> Usage:
    total = prompt + completion
    return Usage(input=prompt, cached=cached, output=completion, reasoning=reasoning, total=total)


@settings(max_examples=CASES, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much], deadline=None)
@given(GENERATED | FROM_FILES, st.builds(Dialect), st.integers(0, 2**64))
def test_a_stream_means_the_same_however_it_is_written_cut_and_merged(
    answer: Answer, dialect: Dialect, seed: int
) -> None:
    assume(is_legal(answer, dialect))
    check(answer, *heard(written(answer, dialect, seed)))


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(GENERATED | FROM_FILES, st.integers(0, 2**64))
def test_an_answer_that_is_not_streamed_means_the_same(answer: Answer, seed: int) -> None:
    check(answer, *heard(packets(whole(answer), random.Random(seed)), "application/json"))


@pytest.mark.parametrize("chunks", [chunks for _, chunks in FILE_CHUNKS], ids=[name for name, _ in FILE_CHUNKS])
@settings(max_examples=FILE_CASES, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.builds(Dialect), st.integers(0, 2**64))
def test_a_stream_file_means_the_same_however_its_bytes_are_cut(
    chunks: list[dict[str, Any]], dialect: Dialect, seed: int
) -> None:
    rng = random.Random(seed)
    check(answer_of(chunks), *heard(packets(stream_of(chunks, dialect, rng), rng)))


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much], deadline=None)
@given(GENERATED, st.builds(Dialect), st.integers(0, 2**64), st.floats(0, 1))
def test_a_stream_that_ends_anywhere_is_whole_or_says_that_it_is_not(
    answer: Answer, dialect: Dialect, seed: int, share: float
) -> None:
    assume(is_legal(answer, dialect))
    data = b"".join(written(answer, dialect, seed))
    _, finish = heard([data[: int(len(data) * share)]])
    if finish.reason in {"stop", "tool_calls", "length"}:
        assert (finish.text, finish.reasoning) == (answer.text, answer.reasoning)
        assert [(call.name, call.arguments) for call in finish.tool_calls] == list(answer.calls)
    else:
        assert finish.error
        assert finish.tool_calls == ()
