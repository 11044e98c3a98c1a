"""Writes one answer as a chat-completions stream in every legal way; it assembles nothing and holds no test.

An answer is what a stream means. A `Dialect` is how a provider writes it: what marks a call's fragments, where usage
stands, how lines end. Where pieces are cut, merged and interleaved comes from a seed.
"""

import itertools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Chunk = dict[str, Any]
Usage = tuple[int, int, int, int]
"""Prompt, cached (part of it), completion, reasoning (part of it)."""


@dataclass(frozen=True)
class Answer:
    """What a stream means. Arguments are raw text: they need not be JSON."""

    text: str
    reasoning: str
    calls: tuple[tuple[str, str], ...]
    usage: Usage | None
    cut: bool = False
    """Whether it ended at the output limit."""


@dataclass(frozen=True)
class Dialect:
    """How a provider writes. `again` is what later fragments of a call repeat of its id and name."""

    marks: Literal["index", "id", "neither", "legacy"]
    ids: Literal["own", "same", "empty", "none"]
    again: Literal["nothing", "null", "empty", "whole"]
    thought: Literal["reasoning_content", "reasoning", "both", "part"]
    parts: bool
    """Whether content comes as a list of parts."""
    usage: Literal["own", "with_finish", "first", "cumulative", "choice", "x_groq", "in_two"]
    finish_alone: bool
    finish_word: int
    odd: bool
    """Whether chunks that say nothing stand between."""
    line_end: Literal["\n", "\r\n", "\r", "mixed"]
    comments: bool
    many_lines: bool
    """Whether the JSON of a chunk spans several data lines."""
    space: bool
    end: Literal["done", "done_unended", "close", "close_unended"]


ODD: tuple[Chunk, ...] = (
    {},
    {"choices": []},
    {"choices": None},
    {"object": "ping"},
    {"choices": [], "usage": None, "prompt_filter_results": [{"prompt_index": 0}]},
    {"choices": [{"index": 0, "delta": {}, "finish_reason": None}]},
    {"choices": [{"index": 0, "delta": None, "finish_reason": ""}]},
    {"choices": [{"delta": {"role": "assistant", "content": "", "tool_calls": []}}]},
    {"choices": [{"index": 0, "delta": {"content": None, "tool_calls": None, "refusal": None, "function_call": None}}]},
    {"choices": [{"index": 1, "delta": {"content": "another choice"}, "finish_reason": None}]},
    {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0}]}}]},
)
COMMENTS = (": keep-alive", ":", "id: 7", "retry: 100", "event: message", "unknown")


def is_legal(answer: Answer, dialect: Dialect) -> bool:
    """Return whether a dialect can say an answer at all without being ambiguous."""
    if dialect.marks == "legacy":
        return len(answer.calls) <= 1
    if dialect.marks == "id":
        return dialect.ids == "own"
    if dialect.marks == "neither":
        return dialect.again != "whole" and _are_told_apart(answer.calls)
    return True


def _are_told_apart(calls: tuple[tuple[str, str], ...]) -> bool:
    """Without any mark only a new name, or a second object after a whole one, begins a call."""
    return all(
        one[0] != other[0] or (_is_object(one[1]) and _is_object(other[1])) for one, other in itertools.pairwise(calls)
    )


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def written(answer: Answer, dialect: Dialect, seed: int) -> list[bytes]:
    """Return the stream as the packets of a connection."""
    rng = random.Random(seed)
    return packets(stream_of(chunks_of(answer, dialect, rng), dialect, rng), rng)


def whole(answer: Answer) -> bytes:
    """Return the answer as one JSON body."""
    calls = [
        {"id": f"call_{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(answer.calls)
    ]
    said = {"role": "assistant", "content": answer.text, "reasoning_content": answer.reasoning, "tool_calls": calls}
    choice = {"index": 0, "message": said, "finish_reason": _finish_word(answer, 0)}
    return json.dumps({"choices": [choice], "usage": answer.usage and _report(answer.usage)}).encode()


def chunks_of(answer: Answer, dialect: Dialect, rng: random.Random) -> list[Chunk]:
    """Return the chunks: pieces cut, interleaved, merged; finish and usage where the dialect puts them."""
    deltas = _merged(_pieces(answer, dialect, rng), rng)
    chunks: list[Chunk] = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    if dialect.finish_alone or not chunks:
        chunks.append({"choices": [{"index": 0, "delta": {}}]})
    chunks[-1]["choices"][0]["finish_reason"] = _finish_word(answer, dialect.finish_word)
    _add_usage(chunks, answer.usage, dialect)
    if dialect.odd:
        for _ in range(rng.randint(1, 4)):
            chunks.insert(rng.randint(0, len(chunks)), rng.choice(ODD))
    return chunks


def _finish_word(answer: Answer, choice: int) -> str:
    if answer.cut:
        return ("length", "max_tokens")[choice % 2]
    words = ("tool_calls", "stop", "function_call", "tool_use") if answer.calls else ("stop", "end_turn", "eos", "STOP")
    return words[choice % len(words)]


def cut_up(text: str, rng: random.Random) -> list[str]:
    """Return a text in pieces, cut anywhere, also between the two halves of a character."""
    units = text.encode("utf-16-le")
    places = sorted(rng.sample(range(len(units) // 2 + 1), k=min(rng.randint(0, 4), len(units) // 2 + 1)))
    spans = zip([0, *places], [*places, len(units) // 2], strict=True)
    return [units[2 * start : 2 * end].decode("utf-16-le", "surrogatepass") for start, end in spans]


def _pieces(answer: Answer, dialect: Dialect, rng: random.Random) -> list[Chunk]:
    """Return the pieces of all parts of the answer, interleaved in an order that keeps each part's own."""
    open_ones = [[_thought(piece, dialect) for piece in cut_up(answer.reasoning, rng)]] if answer.reasoning else []
    if answer.text:
        open_ones.append([_said(piece, dialect) for piece in cut_up(answer.text, rng)])
    calls = [_fragments(number, call, dialect, rng) for number, call in enumerate(answer.calls)]
    if dialect.marks == "neither" and calls:
        calls = [[fragment for fragments in calls for fragment in fragments]]  # one after the other
    if dialect.marks == "index":
        calls, open_ones = [], open_ones + calls  # only an index says which call is the first whatever comes first
    pieces: list[Chunk] = []
    while open_ones or calls:
        queue = rng.choice([*open_ones, *calls[:1]])
        if calls and queue is calls[0]:
            open_ones.append(calls.pop(0))
        pieces.append(queue.pop(0))
        open_ones = [one for one in open_ones if one]
    return pieces


def _thought(piece: str, dialect: Dialect) -> Chunk:
    if dialect.thought == "both":
        return {"reasoning": piece, "reasoning_content": piece}
    if dialect.thought == "part":
        return {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": piece}]}]}
    return {dialect.thought: piece}


def _said(piece: str, dialect: Dialect) -> Chunk:
    return {"content": [{"type": "text", "text": piece}] if dialect.parts else piece}


def _fragments(number: int, call: tuple[str, str], dialect: Dialect, rng: random.Random) -> list[Chunk]:
    name, arguments = call
    pieces = cut_up(arguments, rng)
    if dialect.marks == "neither" and not pieces[0]:
        pieces = [arguments]  # the object that tells two calls of one name apart must come with the name
    ids = {"own": f"call_{number}", "same": "call_0", "empty": "", "none": None}
    again: dict[str, Callable[[Any], Any]] = {
        "nothing": lambda _: None,
        "null": lambda _: None,
        "empty": lambda _: "",
        "whole": lambda value: value,
    }
    fragments: list[Chunk] = []
    for place, piece in enumerate(pieces):
        repeat = again[dialect.again] if place else (lambda value: value)
        function: Chunk = {"name": repeat(name), "arguments": piece}
        fragment: Chunk = {"id": repeat(ids[dialect.ids]), "type": "function", "function": function}
        if dialect.marks == "index":
            fragment["index"] = number
        elif dialect.marks == "id":
            fragment["id"] = ids["own"]
        else:
            fragment["id"] = None
        if dialect.again == "nothing" and place:
            function = {key: value for key, value in function.items() if value is not None}
            fragment = {key: value for key, value in fragment.items() if value is not None} | {"function": function}
        fragments.append({"function_call": function} if dialect.marks == "legacy" else {"tool_calls": [fragment]})
    return fragments


def _merged(deltas: list[Chunk], rng: random.Random) -> list[Chunk]:
    """Return the deltas, some of them as one."""
    merged: list[Chunk] = []
    for delta in deltas:
        if merged and rng.random() < 0.3 and _fits(merged[-1], delta):
            for key, value in delta.items():
                merged[-1][key] = merged[-1][key] + value if key in merged[-1] else value
        else:
            merged.append(dict(delta))
    return merged


def _fits(one: Chunk, other: Chunk) -> bool:
    """Return whether two deltas can be one: lists and strings join, a legacy call is one object a chunk."""
    shared = set(one) & set(other)
    return "function_call" not in shared and all(type(one[key]) is type(other[key]) for key in shared)


def _report(usage: Usage) -> Chunk:
    prompt, cached, completion, reasoning = usage
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def _add_usage(chunks: list[Chunk], usage: Usage | None, dialect: Dialect) -> None:
    if usage is None:
        return
    report = _report(usage)
    match dialect.usage:
        case "own":
            chunks.append({"choices": [], "usage": report})
        case "with_finish":
            chunks[-1]["usage"] = report
        case "first":
            chunks[0]["usage"] = report
        case "choice":
            chunks[-1]["choices"][0]["usage"] = report
        case "x_groq":
            chunks[-1]["x_groq"] = {"id": "req", "usage": report}
        case "cumulative":
            _add_growing(chunks, usage)
        case "in_two":
            chunks[0]["usage"] = {**report, "completion_tokens": 0, "total_tokens": None}
            chunks.append({"choices": [], "usage": {"completion_tokens": usage[2], **_details(usage)}})


def _add_growing(chunks: list[Chunk], usage: Usage) -> None:
    prompt, cached, completion, reasoning = usage
    for place, chunk in enumerate(chunks, start=1):
        share = place / len(chunks)
        chunk["usage"] = _report((prompt, cached, int(completion * share), int(reasoning * share)))


def _details(usage: Usage) -> Chunk:
    return {"completion_tokens_details": {"reasoning_tokens": usage[3]}}


def stream_of(chunks: list[Chunk], dialect: Dialect, rng: random.Random) -> bytes:
    """Return the bytes of the events."""
    ends = ("\n", "\r\n") if dialect.line_end == "mixed" else (dialect.line_end,)
    out: list[str] = ["\ufeff"] if rng.random() < 0.1 else []

    def line(text: str) -> None:
        out.append(text + rng.choice(ends))

    for chunk in chunks:
        if dialect.comments and rng.random() < 0.5:
            line(rng.choice(COMMENTS))
            if rng.random() < 0.5:
                line("")
        for data in _json_lines(chunk, dialect, rng):
            line(f"data:{' ' if dialect.space else ''}{data}")
        line("")
    if dialect.end == "done":
        line("data: [DONE]")
        line("")
    elif dialect.end == "done_unended":
        out.append("data: [DONE]")
    elif dialect.end == "close_unended":
        out.pop()  # the blank line that would end the last event
    return "".join(out).encode()


def _json_lines(chunk: Chunk, dialect: Dialect, rng: random.Random) -> list[str]:
    text = json.dumps(chunk, ensure_ascii=True, indent=1 if dialect.many_lines else None)
    plain = json.dumps(chunk, ensure_ascii=False, indent=1 if dialect.many_lines else None)
    halves = any("\ud800" <= char <= "\udfff" for char in plain)
    return (text if halves or rng.random() < 0.5 else plain).split("\n")


def packets(data: bytes, rng: random.Random) -> list[bytes]:
    """Return the bytes cut anywhere: in one packet, in a few, or byte by byte."""
    count = rng.choice((0, 1, 3, 10, len(data) - 1))
    places = sorted(rng.sample(range(1, len(data)), k=min(count, len(data) - 1)))
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]
