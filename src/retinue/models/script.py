"""Reads model scripts, short and long form, into replies, and picks the reply of a request; it plays nothing.

The formats are described in SHAPES (`scripted:FILE`) and in `tests/streams/README.md`.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, cast

import msgspec

from retinue.core.errors import RetinueError
from retinue.core.events import Value

SCRIPT_MAX_BYTES: Final = 32 * 1024 * 1024
DELTAS_MAX: Final = 4
"""Pieces in which the text of a short line is streamed."""
_KINDS: Final = frozenset({"parent", "child", "any"})
_SHORT_KEYS: Final = frozenset(
    {"agent", "n", "text", "reasoning", "tool_calls", "finish", "usage", "delay_ms", "error", "status", "retry_after_s"}
)
_PLACEHOLDER: Final = re.compile(r"\{\{(child|run):(\d+)\}\}")
_WORD: Final = re.compile(r"\S+\s*|\s+")
_ID: Final = {key: re.compile(rf'"{key}"\s*:\s*"([^"]+)"') for key in ("session_id", "run_id")}


class Chunk(Value, tag=True):
    """One chunk as JSON text, its placeholders not yet filled."""

    text: str


class Wait(Value, tag=True):
    """A pause before what follows."""

    delay_ms: float


class Raw(Value, tag=True):
    """Bytes to send exactly as they are."""

    data: bytes


class Http(Value, tag=True):
    """An HTTP answer instead of a stream."""

    status: int
    headers: dict[str, str]
    body: Any


class Pause(Value, tag=True):
    """The test acts here."""

    what: str


class End(Value, tag=True):
    """How the stream ends."""

    kind: Literal["done", "close", "abort"]


Action = Chunk | Wait | Raw | Http | Pause | End


class Reply(Value):
    """What answers one request. `n` is null for a line that is used in its order; `repeat` makes it answer for ever.

    `final` marks an error that is not tried again (a short line's `error` without a status).
    """

    agent: str
    n: int | None
    actions: tuple[Action, ...]
    where: str
    repeat: bool = False
    final: bool = False


class Expectation(Value):
    """What the n-th request of an agent must be like (`expect_request`)."""

    agent: str
    n: int
    strict_pairs: bool = False
    valid_arguments: bool = False
    unique_ids: bool = False
    need_reasoning: bool = False
    order: tuple[str, ...] = ()


class Script(Value):
    """All replies of a script, its expectations, and its `meta` line (empty in the short form)."""

    replies: tuple[Reply, ...]
    expectations: tuple[Expectation, ...] = ()
    meta: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])

    def reply(self, kinds: Sequence[str], number: int) -> Reply | None:
        """Return what answers request `number` (from 1) of a session; null once the script has run dry.

        `kinds` goes from the most specific to `any`; the first that has lines is used and no other. The choice
        depends on the number alone, so a restart changes nothing.
        """
        for kind in kinds:
            mine = [reply for reply in self.replies if reply.agent == kind]
            if mine:
                return _pick(mine, number)
        return None


class Spawned(Value):
    """A child as the spawn result in a request names it."""

    session_id: str
    run_id: str


def spawned_in(results: Iterable[tuple[str, str]]) -> list[Spawned]:
    """Return the children that `(tool name, result text)` pairs of a history name, in their order.

    A `mode=await` result is a Run object and may have been cut, so that it is no JSON any more; the ids stand first.
    """
    found: list[Spawned] = []
    for name, text in results:
        ids = [pattern.search(text) for pattern in _ID.values()] if name == "spawn_agent" else []
        if ids and ids[0] and ids[1]:
            found.append(Spawned(session_id=ids[0][1], run_id=ids[1][1]))
    return found


def filled(text: str, spawned: Sequence[Spawned]) -> str:
    """Return the text with `{{child:K}}` and `{{run:K}}` replaced; one without its child stays as it is."""

    def value(match: re.Match[str]) -> str:
        number = int(match[2])
        if not 1 <= number <= len(spawned):
            return match[0]
        child = spawned[number - 1]
        return child.session_id if match[1] == "child" else child.run_id

    return _PLACEHOLDER.sub(value, text)


def load_script(path: str | Path) -> Script:
    """Read a script file; raise `invalid`, naming file and line, when it cannot be read or understood. Blocks."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(SCRIPT_MAX_BYTES + 1)
    except OSError as error:
        raise RetinueError("invalid", f"The script {path} cannot be read: {error.strerror or error}.") from error
    if len(data) > SCRIPT_MAX_BYTES:
        raise RetinueError("invalid", f"The script {path} is larger than {SCRIPT_MAX_BYTES} bytes.")
    lines: list[tuple[str, Any]] = []
    for number, line in enumerate(data.splitlines(), start=1):
        if line.strip():
            where = f"{path}:{number}"
            lines.append((where, _json(line, where)))
    return _script(lines, str(path))


def script_of(lines: Iterable[Mapping[str, Any]]) -> Script:
    """Return the script that Python-given lines make; raise `invalid`, naming the line by its place."""
    return _script([(f"script line {number}", line) for number, line in enumerate(lines, start=1)], "the script")


def _pick(mine: Sequence[Reply], number: int) -> Reply | None:
    numbered = {reply.n: reply for reply in mine if reply.n is not None}
    if number in numbered:
        return numbered[number]
    ordered = [reply for reply in mine if reply.n is None]
    index = number - 1 - sum(1 for n in numbered if n < number)
    if index < len(ordered):
        return ordered[index]
    return mine[-1] if mine[-1].repeat else None


def _json(line: bytes, where: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise _bad(where, f"it is not JSON ({error})") from error


def _bad(where: str, why: str) -> RetinueError:
    return RetinueError("invalid", f"The model script is wrong at {where}: {why}.", "See the format `scripted:FILE`.")


def _script(lines: Iterable[tuple[str, Any]], name: str) -> Script:
    builder = _Builder()
    for where, line in lines:
        if not isinstance(line, Mapping):
            raise _bad(where, "a line must be one JSON object")
        builder.take(where, cast("Mapping[str, Any]", line))
    return builder.finish(name)


class _Builder:
    """Collects the lines of a script; a long reply stays open until its ending."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.expectations: list[Expectation] = []
        self.meta: dict[str, Any] = {}
        self.open: Reply | None = None

    def take(self, where: str, line: Mapping[str, Any]) -> None:
        if "_ctl" in line:
            self._control(where, str(line["_ctl"]), line)
        elif self.open is not None:
            body = {key: value for key, value in line.items() if key != "_send"}
            self._act(where, Chunk(text=json.dumps(body, ensure_ascii=False)))
        else:
            self._add(_short(where, line))

    def finish(self, name: str) -> Script:
        if self.open is not None:
            raise _bad(self.open.where, "the reply has no ending (done, close, abort or http)")
        if not self.replies:
            raise RetinueError("invalid", f"There is no reply in {name}.", "Write one JSON object a line.")
        return Script(replies=tuple(self.replies), expectations=tuple(self.expectations), meta=self.meta)

    def _add(self, reply: Reply) -> None:
        for other in self.replies:
            if reply.n is not None and (other.agent, other.n) == (reply.agent, reply.n):
                raise _bad(reply.where, f"{other.where} already answers request {reply.n} of {reply.agent!r}")
        self.replies.append(reply)

    def _control(self, where: str, kind: str, line: Mapping[str, Any]) -> None:
        if kind == "meta":
            self.meta = dict(line)
        elif kind == "expect_request":
            self.expectations.append(_converted(where, line, Expectation))
        elif kind == "reply":
            if self.open is not None:
                raise _bad(where, f"the reply of {self.open.where} has no ending before it")
            self.open = Reply(agent=_agent(where, line), n=_number(where, line), actions=(), where=where)
        elif kind in {"repeat_last", "pause_for_test"}:
            self._after_reply(where, kind, line)
        else:
            self._act(where, _action(where, kind, line))

    def _after_reply(self, where: str, kind: str, line: Mapping[str, Any]) -> None:
        if self.open is not None or not self.replies:
            raise _bad(where, f"{kind} must follow a reply")
        last = self.replies[-1]
        if kind == "repeat_last":
            self.replies[-1] = msgspec.structs.replace(last, repeat=True)
        else:
            pause = Pause(what=str(line.get("what", "")))
            self.replies[-1] = msgspec.structs.replace(last, actions=(*last.actions, pause))

    def _act(self, where: str, action: Action) -> None:
        if self.open is None:
            raise _bad(where, "it belongs to no reply")
        self.open = msgspec.structs.replace(self.open, actions=(*self.open.actions, action))
        if isinstance(action, End | Http):
            self._add(self.open)
            self.open = None


def _action(where: str, kind: str, line: Mapping[str, Any]) -> Action:
    if kind in {"done", "close", "abort"}:
        return End(kind=cast("Literal['done', 'close', 'abort']", kind))
    if kind == "sleep_ms":
        # The value's key is not fixed by the format; all three spellings are in use.
        delay = next((line[key] for key in ("ms", "sleep_ms", "value") if key in line), None)
        return Wait(delay_ms=_amount(where, "sleep_ms", delay))
    if kind == "raw_hex":
        text = next((line[key] for key in ("hex", "raw_hex", "value") if key in line), None)
        try:
            return Raw(data=bytes.fromhex(cast("str", text)))
        except (TypeError, ValueError) as error:
            raise _bad(where, "raw_hex needs its bytes as hexadecimal text") from error
    if kind == "http":
        return _converted(where, {"headers": {}, "body": None, **line}, Http)
    raise _bad(where, f"there is no control {kind!r}")


def _converted(where: str, line: Mapping[str, Any], kind: type[Any]) -> Any:
    fields = {key: value for key, value in line.items() if key != "_ctl"}
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise _bad(where, str(error)) from error


def _short(where: str, line: Mapping[str, Any]) -> Reply:
    unknown = sorted(set(line) - _SHORT_KEYS)
    if unknown:
        raise _bad(where, f"there is no key {unknown[0]!r}; the keys are {', '.join(sorted(_SHORT_KEYS))}")
    actions: list[Action] = []
    if line.get("delay_ms"):
        actions.append(Wait(delay_ms=_amount(where, "delay_ms", line["delay_ms"])))
    error = _string(where, line, "error")
    if not error and (line.get("status") is not None or line.get("retry_after_s") is not None):
        raise _bad(where, "status and retry_after_s belong to an error")
    if line.get("status") is not None:
        actions.append(_http(where, line, error))
    else:
        actions += [Chunk(text=json.dumps(body, ensure_ascii=False)) for body in _bodies(where, line, error)]
        actions.append(End(kind="done" if error or _finish(where, line) else "close"))
    final = bool(error) and line.get("status") is None
    return Reply(agent=_agent(where, line), n=_number(where, line), actions=tuple(actions), where=where, final=final)


def _bodies(where: str, line: Mapping[str, Any], error: str) -> list[dict[str, Any]]:
    """Return a short line as chunks, so that both forms are played by the same code."""
    bodies = [_delta(reasoning_content=piece) for piece in _pieces(_string(where, line, "reasoning"))]
    bodies += [_delta(content=piece) for piece in _pieces(_string(where, line, "text"))]
    calls: Any = line.get("tool_calls") or ()
    if not isinstance(calls, Sequence) or isinstance(calls, str):
        raise _bad(where, "tool_calls must be a list")
    for index, call in enumerate(cast("Sequence[Any]", calls)):
        bodies.append(_delta(tool_calls=[_call(where, index, call)]))
    if error:
        bodies.append({"choices": [], "error": {"message": error}})
    elif finish := _finish(where, line):
        bodies.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    if line.get("usage") is not None:
        bodies.append({"choices": [], "usage": _usage(where, line["usage"])})
    return bodies


def _delta(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


def _pieces(text: str) -> list[str]:
    words: list[str] = _WORD.findall(text)
    step = -(-len(words) // DELTAS_MAX) or 1
    return ["".join(words[start : start + step]) for start in range(0, len(words), step)]


def _call(where: str, index: int, call: Any) -> dict[str, Any]:
    if not isinstance(call, Mapping) or not isinstance(cast("Mapping[str, Any]", call).get("name"), str):
        raise _bad(where, 'a tool call must be {"name", "arguments"}')
    fields = cast("Mapping[str, Any]", call)
    arguments = fields.get("arguments", {})
    raw = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    function = {"name": fields["name"], "arguments": raw}
    return {"index": index, "id": f"call_{index}", "type": "function", "function": function}


def _finish(where: str, line: Mapping[str, Any]) -> str | None:
    if "finish" not in line:
        return "tool_calls" if line.get("tool_calls") else "stop"
    finish = _string(where, line, "finish")
    return None if finish in {"", "incomplete"} else finish


def _usage(where: str, usage: Any) -> dict[str, Any]:
    if not isinstance(usage, Mapping):
        raise _bad(where, 'usage must be an object like {"input": 1, "output": 1}')
    given = cast("Mapping[str, Any]", usage)
    if unknown := sorted(set(given) - {"input", "cached", "output", "reasoning", "total"}):
        raise _bad(where, f"usage has no key {unknown[0]!r}")
    counts = {key: int(_amount(where, key, value)) for key, value in given.items()}
    prompt, completion = counts.get("input", 0), counts.get("output", 0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": counts.get("total", prompt + completion),
        "prompt_tokens_details": {"cached_tokens": counts.get("cached", 0)},
        "completion_tokens_details": {"reasoning_tokens": counts.get("reasoning", 0)},
    }


def _http(where: str, line: Mapping[str, Any], error: str) -> Http:
    headers = {"Content-Type": "application/json"}
    if line.get("retry_after_s") is not None:
        headers["Retry-After"] = f"{_amount(where, 'retry_after_s', line['retry_after_s']):g}"
    return Http(
        status=int(_amount(where, "status", line["status"])), headers=headers, body={"error": {"message": error}}
    )


def _agent(where: str, line: Mapping[str, Any]) -> str:
    agent = line.get("agent", "any")
    if not isinstance(agent, str) or (agent not in _KINDS and not agent.startswith("name:")):
        raise _bad(where, f"agent must be parent, child, any or name:NAME, not {agent!r}")
    return agent


def _number(where: str, line: Mapping[str, Any]) -> int | None:
    number = line.get("n")
    if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
        raise _bad(where, f"n counts requests from 1, it cannot be {number!r}")
    return number


def _string(where: str, line: Mapping[str, Any], key: str) -> str:
    value = line.get(key)
    if value is not None and not isinstance(value, str):
        raise _bad(where, f"{key} must be text")
    return value or ""


def _amount(where: str, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise _bad(where, f"{key} must be a number that is not negative")
    return value
