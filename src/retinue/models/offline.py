"""The `offline` model: fixed rules that really delegate, without a key or a network; it keeps no state.

Everything follows from the request: the prompt, the answered calls, the letters. A root lists the folder, divides it,
spawns an explorer for each part, and writes one report when all have come home; a part that it may not give away it
looks at itself. A child lists and reads its paths and answers with evidence. There are no tokens here, so no usage is
reported: every request counts as `unreported`, as for any model that reports none.
"""

import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec

from retinue.core.messages import AssistantText, RequestMessage, ToolText, UserText
from retinue.models.explore import Answers, Ask, Explorer, question_of, read_listing, scope_of
from retinue.models.survey import REMARK, Outcome, Part, divide, report
from retinue.ports import Delta, Finish, FinishCall, ModelRequest

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
    return _gather(_Work(parts, answers, _letters(messages)), tools) or Reply(
        report(listing, _outcomes(_Work(parts, answers, _letters(messages))))
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """A divided folder: the parts, the answered calls, the results that came home by child."""

    parts: list[Part]
    answers: Answers
    letters: dict[str, str]

    def child_of(self, part: Part) -> str:
        """Return the id of the child that has a part, empty where none was started."""
        answer = self.answers.get(part.spawn().key)
        return "" if answer is None or answer.error else _child_id(answer.text)

    def explorer_of(self, part: Part) -> Explorer:
        """Return what the parent itself found of a part so far."""
        return Explorer(part.paths, part.question, self.answers)


def _gather(work: _Work, tools: frozenset[str]) -> Reply | None:
    """Return what is to be done before the report: look at what nobody took, or wait; null when all is there."""
    own = [part for part in work.parts if not work.child_of(part)]
    for part in own:
        calls = work.explorer_of(part).next_calls(tools)
        if calls:
            return Reply(f"I look at '{part.name}' myself.\n", tuple(calls))
    missing = [part.name for part in work.parts if (child := work.child_of(part)) and child not in work.letters]
    if missing and tools:
        return Reply(f"{len(work.parts) - len(missing)} of {len(work.parts)} parts are there; I wait for the rest.\n")
    return None


def _outcomes(work: _Work) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for part in work.parts:
        child = work.child_of(part)
        text = work.letters.get(child, "") if child else work.explorer_of(part).findings()
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


def _letters(messages: Sequence[RequestMessage]) -> dict[str, str]:
    """Return the results that came home, payload by sender."""
    found = [(_LETTER.match(m.text), m.text) for m in messages if isinstance(m, UserText)]
    return {letter[2]: text[letter.end() :] for letter, text in found if letter and letter[1] == "FINAL_ANSWER"}


def _child_id(text: str) -> str:
    """Return the session id in the answer of `spawn_agent`, empty where there is none."""
    try:
        body: Any = msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return ""
    return str(cast("dict[str, Any]", body).get("session_id") or "") if isinstance(body, dict) else ""


def _begin(messages: Sequence[RequestMessage]) -> int:
    """Return where the present job begins: at the last prompt, unless that only steers work that is under way.

    A prompt steers while children of the job before it are out, or come home finished after it. Children that were
    stopped with an interrupted turn come home unfinished: the prompt after them is a new job.
    """
    begin = 0
    letters = _letters(messages)
    for number, message in enumerate(messages):
        if isinstance(message, UserText) and not _LETTER.match(message.text):
            before = messages[begin:number]
            out = _children(before) - set(_letters(before))
            if all(_UNFINISHED in letters.get(child, "")[:_HEAD_CHARS] for child in out):
                begin = number
    return begin


def _children(messages: Sequence[RequestMessage]) -> set[str]:
    spawned = [m for m in messages if isinstance(m, ToolText) and m.name == "spawn_agent" and not m.error]
    return {_child_id(answer.text) for answer in spawned} - {""}
