"""Checkers of what children are told and requests begin with, derived anew; they read events and requests only."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from retinue.core.context import CUT_MARK, PACKED_MAX_CHARS, SUMMARY_ITEM_MAX_CHARS
from retinue.core.events import (
    ContextCompacted,
    Event,
    MessageAssistant,
    MessageUser,
    PolicyChanged,
    RunQueued,
    SessionDeleted,
    StepOpened,
    SwitchChanged,
    ToolStarted,
    TurnClosed,
    TurnOpened,
    Value,
)
from retinue.core.ids import Digest, SessionId
from retinue.ports import ModelRequest
from retinue.testing.fakes import Seen
from retinue.testing.logview import LogView, Story

HEADING: Final = re.compile(r"\n\n# [^\n]*untrusted reference data[^\n]*\n")
PACKED_MODES: Final = ("selected", "last_n_turns", "summary")


class _Said(Value):
    """One message of a log, and whether a turn began with it."""

    position: int
    shown: dict[str, Any]
    begins: bool


def check_context(log: LogView) -> list[str]:
    """The instruction of a child is what its parent's call asked for: the task, the background, the messages meant.

    What is given of the parent's conversation is derived from the parent's log as it was during the call. Children
    that a program started are left out: no log holds what it asked for.
    """
    problems: list[str] = []
    for story in log.stories.values():
        queued = story.queued
        if queued is None or queued.spec.cause != "prompt":
            continue
        asked = log.asked(queued, story.queued_at)
        if asked is not None:
            problems += [f"run {queued.run_id}: {text}" for text in _told(log, story, queued, asked)]
    return problems


def _told(log: LogView, story: Story, queued: RunQueued, asked: Mapping[str, Any]) -> list[str]:
    context = asked.get("context") or ""
    wanted: Mapping[str, Any] = {"background": context} if isinstance(context, str) else context
    rest = _behind(queued.spec.prompt, asked["prompt"])
    background = wanted.get("background", "")
    if rest is not None and background.strip():
        rest = _behind(_under_heading(rest), background)
    if rest is None:
        return ["its instruction does not begin with its task and its background"]
    if wanted.get("mode") not in PACKED_MODES:
        return [f"its instruction goes on with {rest[:40]!r}, which nobody asked for"] if rest else []
    listed, _, remark = (_under_heading(rest) or "").partition("\n")
    return _packed(log, story, queued, wanted, (listed, remark))


def _behind(text: str | None, head: str) -> str | None:
    return text.removeprefix(head) if text is not None and text.startswith(head) else None


def _under_heading(text: str) -> str | None:
    found = HEADING.match(text)
    return None if found is None else text[found.end() :]


def _packed(
    log: LogView, story: Story, queued: RunQueued, wanted: Mapping[str, Any], told: tuple[str, str]
) -> list[str]:
    listed, remark = told
    try:
        shown: list[dict[str, Any]] = json.loads(listed)
    except ValueError:
        return ["its messages are no JSON under a heading that calls them untrusted"]
    if len(listed) > PACKED_MAX_CHARS:
        return [f"its messages have {len(listed)} characters"]
    said = _said(log.by_session[queued.parent_id], story.queued_at)
    began = _began(log, queued)
    fewest = sum(one.position < began for one in said)
    # What came in while the call was being prepared may be in it or not.
    meant = [_meant(said[:count], wanted) for count in range(fewest, len(said) + 1)]
    if any(_is_packed(shown, listed, remark, one) for one in meant):
        return []
    return [f"its messages {[one.get('seq') for one in shown]} are not those that {wanted.get('mode')} means"]


def _said(events: Iterable[Event], before: int) -> list[_Said]:
    said: list[_Said] = []
    began = 0
    for event in events:
        if event.position >= before:
            break
        if isinstance(event.fact, TurnOpened):
            began = event.position
        if isinstance(event.fact, TurnClosed) and event.fact.reason == "hook_denied":
            said = [one for one in said if one.position < began or not one.begins]
        said += _message(event)
    return said


def _message(event: Event) -> Iterator[_Said]:
    fact = event.fact
    if not isinstance(fact, MessageUser | MessageAssistant) or not fact.text.strip():
        return
    role, begins = "assistant", False
    if isinstance(fact, MessageUser):
        if fact.source == "context":
            return
        role, begins = "user", fact.source != "steer" and fact.letter_id is None
    shown: dict[str, Any] = {"seq": event.seq, "role": role, "content": fact.text}
    yield _Said(position=event.position, shown=shown, begins=begins)


def _began(log: LogView, queued: RunQueued) -> int:
    """Return where the call began that a child came from."""
    events = log.by_session[queued.parent_id]
    starts = [e.position for e in events if isinstance(e.fact, ToolStarted) and e.fact.call_id == queued.call_id]
    return starts[-1] if starts else 0


def _meant(said: Sequence[_Said], wanted: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages that a mode means, whole, or for a summary shortened."""
    if wanted["mode"] == "selected":
        return [one.shown for one in said if one.shown["seq"] in wanted["seqs"]]
    if wanted["mode"] == "last_n_turns":
        begins = [number for number, one in enumerate(said) if one.begins][-int(wanted.get("turns", 1)) :]
        return [one.shown for one in said[begins[0] if begins else 0 :]]
    room = SUMMARY_ITEM_MAX_CHARS - len(CUT_MARK)
    return [
        one.shown
        if len(one.shown["content"]) <= SUMMARY_ITEM_MAX_CHARS
        else {**one.shown, "content": one.shown["content"][:room] + CUT_MARK}
        for one in said
    ]


def _is_packed(shown: list[dict[str, Any]], listed: str, remark: str, meant: list[dict[str, Any]]) -> bool:
    """Return whether these are the newest of the messages that are meant, as many as fit, and the rest is counted."""
    left = len(meant) - len(shown)
    if left < 0 or meant[left:] != shown:
        return False
    if not left:
        return True
    comma = bool(shown)
    is_full = len(listed) + comma + len(msgspec.json.encode(meant[left - 1]).decode()) > PACKED_MAX_CHARS
    return is_full and str(left) in remark


def check_forks(log: LogView) -> list[str]:
    """A fork that differs in nothing from its parent begins each request with its parent's system text.

    Up to its first compaction, that is; what it is told as a child stands before its first instruction then.
    """
    problems: list[str] = []
    for session_id, header in log.headers.items():
        first = next(iter(log.kids.get(session_id, [])), None)
        if header.provider != "fork" or first is None or first.queued is None:
            continue
        spec, theirs = first.queued.spec, _last_prompt(log, first.queued.parent_id, first.queued_at)
        problems += [f"fork {session_id}: {text}" for text in _alike(log, first.queued, first.queued_at, theirs)]
        if (spec.opening is None) is not (spec.system_digest is None) or header.system_digest != spec.system_digest:
            problems.append(f"fork {session_id}: it has its parent's system text and is told nothing, or the reverse")
        used = {digest for digest in _prompts(log, session_id) if header.system_digest not in (None, digest)}
        problems += [f"fork {session_id}: a request begins with another system text" for _ in used]
    return problems


def _alike(log: LogView, queued: RunQueued, at: int, theirs: Digest | None) -> list[str]:
    mine, parent = queued.spec.system_digest, log.headers.get(queued.parent_id)
    if mine is not None and mine != theirs:
        return ["its system text is not the one of its parent's last request"]
    asked = log.asked(queued, at)
    if mine is not None or theirs is None or parent is None or asked is None:
        return []
    persona = asked.get("system_prompt", asked.get("systemPrompt"))
    differs = persona is not None or queued.spec.definition is not None or queued.cwd != parent.cwd
    plain = not differs and parent.output_schema is None
    return ["nothing about it differs from its parent, but its system text does"] if plain else []


def _last_prompt(log: LogView, session_id: SessionId, before: int) -> Digest | None:
    steps = (event for event in log.by_session.get(session_id, []) if event.position < before)
    return next((e.fact.prompt_digest for e in reversed(list(steps)) if isinstance(e.fact, StepOpened)), None)


def _prompts(log: LogView, session_id: SessionId) -> Iterator[Digest]:
    for event in log.by_session[session_id]:
        if isinstance(event.fact, ContextCompacted):
            return
        if isinstance(event.fact, StepOpened):
            yield event.fact.prompt_digest


def check_prefixes(events: Sequence[Event], requests: Iterable[ModelRequest | Seen]) -> list[str]:
    """Return each request that does not go on with what its session's last one held.

    Messages only come behind the others, a compaction aside; the system text stays, and tools are only appended, but
    for a last step without any, as long as nobody changes the policy, sets the switch or deletes a session.
    """
    roots = {event.session_id: event.root_id for event in events}
    compacted: set[SessionId] = set()
    unsteady: set[SessionId] = set()
    for event in events:
        if isinstance(event.fact, ContextCompacted):
            compacted.add(event.session_id)
        if isinstance(event.fact, PolicyChanged | SessionDeleted):
            unsteady.add(event.root_id)
        if isinstance(event.fact, SwitchChanged):  # the whole store's, but told to those in memory only
            unsteady |= set(roots.values())
    problems: list[str] = []
    last: dict[SessionId, ModelRequest] = {}
    offered: dict[SessionId, ModelRequest] = {}
    for item in requests:
        request = item.request if isinstance(item, Seen) else item
        name = request.session_id
        texts: list[str] = []
        if name not in compacted:
            texts += _moved(last.get(name, request), request)
        if name not in compacted and roots.get(name) not in unsteady:
            texts += _changed(last.get(name, request), offered.get(name, request), request)
        problems += [f"request {request.number} of {name} {text}" for text in texts]
        last[name] = request
        if request.tools:
            offered[name] = request
    return problems


def _moved(before: ModelRequest, request: ModelRequest) -> list[str]:
    same = request.messages[: len(before.messages)] == before.messages
    return [] if same else [f"does not begin with the {len(before.messages)} messages of the one before"]


def _changed(before: ModelRequest, with_tools: ModelRequest, request: ModelRequest) -> list[str]:
    problems = [] if request.system == before.system else ["has another system text"]
    if request.tools and request.tools[: len(with_tools.tools)] != with_tools.tools:
        problems.append("has other tools, or in another order")
    return problems
