"""The `offline` model: fixed rules that really delegate, without a key or a network; it keeps no state.

Everything follows from the request: the prompt, the answered calls, the letters. A root lists the folder, divides it,
spawns an explorer for each part, and waits: under every policy results come home before its turn ends, as letters or
in the answers of `wait_agent`. Then it writes one report; a part that it may not give away it looks at itself. A child
lists and reads its paths and answers with evidence. There are no tokens here, so no usage is reported: every request
counts as `unreported`, as for any model that reports none.
"""

import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import msgspec

from retinue.core.messages import AssistantText, RequestMessage, ToolText, UserText
from retinue.models.explore import Answers, Ask, Explorer, object_in, question_of, read_listing, refusal_of, scope_of
from retinue.models.survey import REMARK, Outcome, Part, divide, report
from retinue.ports import Delta, Finish, FinishCall, ModelRequest

ENDS: Final = "Your turn ends when you stop"
"""What the system text says where a turn is not held open for children (`tools/prompts/turn_ends.md`)."""
WAIT_S: Final = 3600
"""Seconds asked for in one wait; the policy may allow less."""
WAITS_MAX: Final = 40
"""Waits without a letter or a person's word between them; then the report says whose answer is missing."""

_LETTER: Final = re.compile(r"Message Type: (\w+)\nTask name: [^\n]*\nSender: ([^\n]*)\nPayload:\n")
_LIST: Final = Ask("list_dir", {"path": ".", "depth": 2})
_UNFINISHED: Final = "The task did not finish ("
_HEAD_CHARS: Final = 600


@dataclass(frozen=True, slots=True)
class Reply:
    """What the rules answer: a text, and calls."""

    text: str
    calls: tuple[Ask, ...] = ()


class OfflineModel:
    """A model of fixed rules behind the `Model` port."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Finish, None]:
        """Yield the answer line by line, then its one `Finish`."""
        reply = root_reply(request) if request.root else child_reply(request)
        for line in reply.text.splitlines(keepends=True):
            yield Delta(kind="text", text=line)
        calls = tuple(
            FinishCall(name=ask.name, arguments=msgspec.json.encode(ask.arguments).decode()) for ask in reply.calls
        )
        yield Finish(reason="tool_calls" if calls else "stop", text=reply.text, tool_calls=calls)

    async def aclose(self) -> None:
        """Do nothing: there is no connection."""


def child_reply(request: ModelRequest) -> Reply:
    """Return a child's answer: the next calls, or its findings."""
    start = max((n for n, message in enumerate(request.messages) if isinstance(message, UserText)), default=0)
    messages = request.messages[start:]
    prompt = messages[0].text if messages and isinstance(messages[0], UserText) else ""
    explorer = Explorer(scope_of(prompt), question_of(prompt), _answers(messages))
    calls = explorer.next_calls(_tools(request))
    return Reply("", tuple(calls)) if calls else Reply(explorer.findings())


def root_reply(request: ModelRequest) -> Reply:
    """Return a root's answer: the next calls, a word on what is still missing, or the report."""
    messages = request.messages[_begin(request.messages) :]
    answers = _answers(messages)
    tools = _tools(request)
    top = answers.get(_LIST.key)
    if top is None and "list_dir" in tools:
        return Reply("I look at the folder first.\n", (_LIST,))
    if top is None or top.error:
        return Reply(f"{REMARK}\nThe folder could not be listed: {top.text if top else 'I have no tool for it.'}\n")
    listing = read_listing(top.text)
    parts = divide(listing)
    spawns = [part.spawn() for part in parts]
    if "spawn_agent" in tools and not any(ask.key in answers for ask in spawns):
        return Reply(f"I divide the work into {len(parts)} parts and give each to an explorer.\n", tuple(spawns))
    work = _Work(parts, answers, _home(messages))
    return _gather(work, tools, ends=ENDS in request.system) or Reply(report(listing, _outcomes(work)))


@dataclass(slots=True)
class _Home:
    """What came home: the results by child, and what can still be waited for."""

    texts: dict[str, str] = field(default_factory=dict[str, str])
    over: set[str] = field(default_factory=set[str])
    """Children that were waited for to the end: no further wait brings more of them."""
    waits: int = 0
    """Waits since the last letter or word of the person."""
    is_fresh: bool = False
    """Whether anything came home after the last spawn: there may be a free slot."""


@dataclass(frozen=True, slots=True)
class _Work:
    """A divided folder: the parts, the answered calls, what came home."""

    parts: list[Part]
    answers: Answers
    home: _Home

    def child_of(self, part: Part) -> str:
        """Return the id of the child that has a part, empty where none was started."""
        answer = self.answers.get(part.spawn().key)
        return "" if answer is None or answer.error else _child_id(answer.text)

    def explorer_of(self, part: Part) -> Explorer:
        """Return what the parent itself found of a part so far."""
        return Explorer(part.paths, part.question, self.answers)

    def is_full(self, part: Part) -> bool:
        """Return whether a part was refused only because too many children worked at that moment."""
        answer = self.answers.get(part.spawn().key)
        return answer is not None and answer.error and refusal_of(answer.text) == "cap_running"

    def missing(self) -> list[str]:
        """Return the children whose results are not there."""
        children = filter(None, map(self.child_of, self.parts))
        return [child for child in children if child not in self.home.texts]


def _gather(work: _Work, tools: frozenset[str], *, ends: bool) -> Reply | None:
    """Return what is to be done before the report: look at what nobody took, spawn, or wait; null when all is there.

    Where the turn `ends` with the next word it waits with the tool; else a word is enough, and it goes on with what
    comes home.
    """
    missing = work.missing()
    out = [child for child in missing if child not in work.home.over]
    waits = ends and bool(out) and "wait_agent" in tools and work.home.waits < WAITS_MAX
    goes_on = waits or (not ends and bool(missing and tools))
    may_spawn = "spawn_agent" in tools and (goes_on or work.home.is_fresh)
    later = [part for part in work.parts if may_spawn and work.is_full(part)]
    for part in work.parts:
        calls = [] if part in later or work.child_of(part) else work.explorer_of(part).next_calls(tools)
        if calls:
            return Reply(f"I look at '{part.name}' myself.\n", tuple(calls))
    rest = f"{len(work.parts) - len(missing) - len(later)} of {len(work.parts)} parts are there; I wait for the rest.\n"
    if waits:
        return Reply(rest, (Ask("wait_agent", {"ids": out, "timeout_s": WAIT_S}),))
    if later and work.home.is_fresh:
        return Reply("I give what is left to explorers, too.\n", tuple(part.spawn() for part in later))
    return Reply(rest) if goes_on else None


def _outcomes(work: _Work) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for part in work.parts:
        child = work.child_of(part)
        text = work.home.texts.get(child, "") if child else work.explorer_of(part).findings()
        outcomes.append(Outcome(part, text, child, _fault(text)))
    return outcomes


def _fault(text: str) -> str:
    if not text:
        return "its explorer had not answered when the report was due."
    return "its explorer did not finish." if _UNFINISHED in text[:_HEAD_CHARS] else ""


# ------------------------------------------------------------------------------------------- what the request says


def _tools(request: ModelRequest) -> frozenset[str]:
    return frozenset(tool.name for tool in request.tools)


def _answers(messages: Sequence[RequestMessage]) -> dict[str, ToolText]:
    """Return the answered calls by the key of what was asked."""
    asked: dict[str, str] = {}
    answers: dict[str, ToolText] = {}
    for message in messages:
        if isinstance(message, AssistantText):
            asked.update({call.call_id: Ask(call.name, call.arguments).key for call in message.tool_calls})
        elif isinstance(message, ToolText) and message.call_id in asked:
            answers[asked[message.call_id]] = message
    return answers


def _home(messages: Sequence[RequestMessage]) -> _Home:
    """Return what came home: letters by their sender, and what was fetched with `wait_agent`."""
    home = _Home()
    waits: dict[str, list[str]] = {}
    for message in messages:
        if isinstance(message, AssistantText):
            waits.update({c.call_id: _ids(c.arguments) for c in message.tool_calls if c.name == "wait_agent"})
        elif isinstance(message, ToolText):
            if message.name == "spawn_agent":
                home.is_fresh = False
            elif message.call_id in waits:
                _fetch(home, waits[message.call_id], message)
        else:
            home.waits = 0
            letter = _LETTER.match(message.text)
            if letter and letter[1] == "FINAL_ANSWER":
                home.texts[letter[2]] = message.text[letter.end() :]
                home.is_fresh = True
    return home


def _ids(arguments: dict[str, Any]) -> list[str]:
    """Return whom a wait names; another model that worked in this session may have waited in its own way."""
    ids: Any = arguments.get("ids")
    return [str(name) for name in cast("list[Any]", ids)] if isinstance(ids, list) else []


def _fetch(home: _Home, ids: list[str], answer: ToolText) -> None:
    """Take in what a wait said; a result that is fetched stands in the answer, another comes as a letter."""
    home.waits += 1
    if answer.error:
        code = refusal_of(answer.text)
        # An interrupted wait can be made again; a refused one would be refused again.
        home.over.update(ids if code else ())
        if code == "not_found":
            # Children of a turn that was stopped, which nobody reaches any more.
            home.texts.update((name, f"{_UNFINISHED}out of reach).") for name in ids)
        return
    body = object_in(answer.text)
    home.over.update(() if body.get("timed_out") else ids)
    for row in cast("list[dict[str, Any]]", body.get("items") or []):
        if "output" in row:
            head = "Finished." if row["status"] == "completed" else f"{_UNFINISHED}{row['status']})."
            home.texts[row["session_id"]] = f"{head}\n\n{row['output'] or ''}"
            home.is_fresh = True


def _child_id(text: str) -> str:
    """Return the session id in the answer of `spawn_agent`, empty where there is none."""
    return str(object_in(text).get("session_id") or "")


def _begin(messages: Sequence[RequestMessage]) -> int:
    """Return where the present job begins: at the last prompt, unless that only steers work that is under way.

    A prompt steers while children of the job before it are out, or come home finished after it. Children that were
    stopped with an interrupted turn come home unfinished: the prompt after them is a new job.
    """
    begin = 0
    texts = _home(messages).texts
    for number, message in enumerate(messages):
        if isinstance(message, UserText) and not _LETTER.match(message.text):
            before = messages[begin:number]
            out = _children(before) - set(_home(before).texts)
            if all(_UNFINISHED in texts.get(child, "")[:_HEAD_CHARS] for child in out):
                begin = number
    return begin


def _children(messages: Sequence[RequestMessage]) -> set[str]:
    spawned = [m for m in messages if isinstance(m, ToolText) and m.name == "spawn_agent" and not m.error]
    return {_child_id(answer.text) for answer in spawned} - {""}
