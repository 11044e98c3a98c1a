"""The fold of one session's log: open turn and step, history, open calls, letters; it never decides what comes next."""

from typing import Any, Final

import msgspec

from retinue.core.context import RequestMessage, UserText, assistant_text, boundary_order, tool_text
from retinue.core.events import (
    ContextCompacted,
    LetterAbsorbed,
    LetterQueued,
    MessageAssistant,
    MessageUser,
    RunQueued,
    RunSettled,
    SessionOpened,
    StepClosed,
    StepOpened,
    ToolCall,
    ToolFinished,
    TurnClosed,
    TurnOpened,
    Usage,
    Value,
)
from retinue.core.ids import CallId, LetterId, RunId, SessionId, TurnNo
from retinue.core.run import usage_of_request
from retinue.core.text import estimate_tokens


class SessionRow(Value):
    """A session as the lists show it (SHAPES, Session); `stored_events` and `updated_at` are the store's to fill."""

    session_id: SessionId
    header: SessionOpened
    status: str
    turns: int
    last_status: str | None
    last_reason: str | None
    usage: Usage
    created_at: str
    updated_at: str = ""
    stored_events: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the Session object of SHAPES, every key present."""
        header: dict[str, Any] = msgspec.to_builtins(self.header)
        del header["type"]
        last = None if self.last_status is None else {"status": self.last_status, "reason": self.last_reason}
        return {
            "session_id": self.session_id,
            **header,
            "status": self.status,
            "turns": self.turns,
            "last_turn": last,
            "usage": msgspec.to_builtins(self.usage),
            "created_at": self.created_at,
            "updated_at": self.updated_at,
            "stored_events": self.stored_events,
        }


WAITING_TOOLS: Final = frozenset({"wait_agent", "list_agents"})
"""Tools that may be called again and again while a child is open."""
UNUSABLE: Final = frozenset({"unknown_tool", "invalid"})
"""Codes of calls that could not be used at all."""


class Turn:
    """An open turn: what it has done so far."""

    def __init__(self, fact: TurnOpened) -> None:
        """Open it."""
        self.opened: Final = fact
        self.steps = 0
        self.step_open: StepOpened | None = None
        self.usage = Usage()
        self.children_usage = Usage()
        self.last_text = ""
        self.spawned = 0
        self.unusable = 0
        """Messages in a row without a usable call: unknown name, bad arguments, a finish that promised a call."""
        self.repeats: dict[CallId, int] = {}
        """For each call of the last message, how often in a row that very call was made."""
        self._last_call: ToolCall | None = None
        self._repeated = 0

    def count_call(self, call: ToolCall) -> None:
        """Fold one call for the guard against endless repeats."""
        last = self._last_call
        same = last is not None and (last.name, last.arguments, last.invalid) == (
            call.name,
            call.arguments,
            call.invalid,
        )
        self._repeated = self._repeated + 1 if same else 1
        self._last_call = call
        self.repeats[call.call_id] = self._repeated


class Session:
    """One session in memory. Only `State.apply` changes it."""

    def __init__(self, session_id: SessionId, header: SessionOpened, created_at: str) -> None:
        """Begin with the header; everything else is folded in."""
        self.session_id: Final = session_id
        self.header: Final = header
        self.created_at: Final = created_at
        self.seq = 0
        self.turns = TurnNo(0)
        self.requests = 0
        self.children = 0
        self.turn: Turn | None = None
        self.last: TurnClosed | None = None
        self.usage = Usage()
        self.messages: list[RequestMessage] = []
        self._known_tokens = 0
        self._known_messages = 0
        self.waiting_input: list[MessageUser] = []
        self.calls: dict[CallId, ToolCall] = {}
        self.answers: dict[CallId, ToolFinished] = {}
        self.mail: dict[LetterId, LetterQueued] = {}
        self.open_runs: dict[RunId, None] = {}
        self.not_home: dict[RunId, None] = {}

    @property
    def open_calls(self) -> list[CallId]:
        """Calls of the last assistant message that have no answer yet."""
        return [call_id for call_id in self.calls if call_id not in self.answers]

    def row(self) -> SessionRow:
        """Return the projection of this session."""
        return SessionRow(
            session_id=self.session_id,
            header=self.header,
            status="idle" if self.turn is None else "running",
            turns=self.turns,
            last_status=self.last.status if self.last else None,
            last_reason=self.last.reason if self.last else None,
            usage=self.usage,
            created_at=self.created_at,
        )

    def request(self) -> tuple[RequestMessage, ...]:
        """Return the messages of the request that the open step sends."""
        return tuple(self.messages)

    def open_turn(self, fact: TurnOpened) -> None:
        """Fold a turn's begin."""
        self.turn = Turn(fact)
        self.turns = fact.turn

    def admit(self, fact: MessageUser) -> None:
        """Fold admitted input: it is shown at the next boundary, never between a call and its answer."""
        self.waiting_input.append(fact)

    def open_step(self, fact: StepOpened) -> None:
        """Fold a boundary: answers, then people, then letters enter the history."""
        self._cross_boundary()
        self.requests += 1
        if self.turn is not None:
            self.turn.steps += 1
            self.turn.step_open = fact

    def answer(self, fact: MessageAssistant) -> None:
        """Fold what the model said."""
        if fact.text or fact.tool_calls:
            self.messages.append(assistant_text(fact))
        self.calls = {call.call_id: call for call in fact.tool_calls}
        self.answers = {}
        if self.turn is not None:
            self._guard(self.turn, fact)
            if fact.text.strip():
                self.turn.last_text = fact.text

    def _guard(self, turn: Turn, fact: MessageAssistant) -> None:
        turn.repeats = {}
        for call in fact.tool_calls:
            if call.name not in WAITING_TOOLS or not self.open_runs:
                turn.count_call(call)
        if not fact.tool_calls:
            turn.unusable = turn.unusable + 1 if fact.finish == "tool_calls" else 0

    def close_step(self, fact: StepClosed) -> None:
        """Fold a request's end and what it used."""
        used = usage_of_request(fact)
        self.usage = self.usage.plus(used)
        self.requests += fact.retries
        if self.turn is not None:
            self.turn.usage = self.turn.usage.plus(used)
            self.turn.step_open = None
        if fact.usage is not None and fact.usage.requests - fact.usage.unreported <= 1:  # else it is a sum of tries
            self._known_tokens = fact.usage.input + fact.usage.output
            self._known_messages = len(self.messages)

    def compact(self, fact: ContextCompacted) -> None:
        """Fold a compaction: notes in the place of the older messages."""
        used = usage_of_request(fact)
        self.usage = self.usage.plus(used)
        self.requests += fact.retries + 1
        if self.turn is not None:
            self.turn.usage = self.turn.usage.plus(used)
        self.messages = [UserText(text=fact.text), *self.messages[len(self.messages) - fact.kept :]]
        self._known_tokens = 0
        self._known_messages = 0

    def next_request_tokens(self) -> int:
        """Return an estimate of the next request: the last one reported, and bytes/3 of what came since."""
        texts = [message.text for message in self.messages[self._known_messages :]]
        texts += [fact.text for fact in self.answers.values()]
        texts += [fact.text for fact in self.waiting_input]
        texts += [letter.text for letter in self.mail.values()]
        return self._known_tokens + sum(estimate_tokens(text) for text in texts)

    def finish_call(self, fact: ToolFinished) -> None:
        """Fold a call's answer."""
        self.answers[fact.call_id] = fact
        if self.turn is not None:
            self._count_unusable(self.turn)

    def _count_unusable(self, turn: Turn) -> None:
        """Count a message once, and only when no call of it could be used: a model must see first what was wrong."""
        if any(answer.code not in UNUSABLE for answer in self.answers.values()):
            turn.unusable = 0
        elif len(self.answers) == 1:
            turn.unusable += 1

    def spawn(self, fact: RunQueued) -> None:
        """Fold a child's new run."""
        self.children += 1
        self.open_runs[fact.run_id] = None
        if self.turn is not None:
            self.turn.spawned += 1

    def settle(self, fact: RunSettled) -> None:
        """Fold a child's ending."""
        self.open_runs.pop(fact.run_id, None)
        self.not_home[fact.run_id] = None
        if self.turn is not None and self.turn.opened.root_run_id == fact.root_run_id:
            self.turn.children_usage = self.turn.children_usage.plus(fact.usage_tree)

    def queue_letter(self, fact: LetterQueued) -> None:
        """Fold a letter's arrival."""
        self.mail[fact.letter_id] = fact

    def absorb(self, fact: LetterAbsorbed) -> None:
        """Fold a letter's entry into the context; a second one for the same letter changes nothing."""
        self.mail.pop(fact.letter_id, None)

    def close_turn(self, fact: TurnClosed) -> None:
        """Fold a turn's end: what was admitted and not yet shown stays in the history."""
        self._cross_boundary()
        self.turn = None
        self.last = fact

    def _cross_boundary(self) -> None:
        for call_id, call in self.calls.items():
            fact = self.answers.get(call_id)
            if fact is not None:
                self.messages.append(tool_text(call.name, fact))
        self.calls = {}
        self.answers = {}
        self.messages.extend(boundary_order(self.waiting_input))
        self.waiting_input = []
