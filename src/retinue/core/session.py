"""The fold of one session's log: open turn and step, history, open calls, letters; it never decides what comes next."""

from typing import Any, Final

import msgspec

from retinue.core.context import HOOK_DENIED, assistant_text, boundary_order, is_instruction, tool_text
from retinue.core.events import (
    ContextCompacted,
    ContextSeeded,
    LetterAbsorbed,
    LetterQueued,
    MessageAssistant,
    MessageUser,
    RunQueued,
    RunSettled,
    RunStarted,
    RunWaiting,
    SessionDeleted,
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
from retinue.core.ids import CallId, Digest, LetterId, RunId, SessionId, TurnNo
from retinue.core.messages import RequestMessage, UserText
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


class Kid:
    """What a parent's log tells of one child: how many instructions it had, and which of its runs are open."""

    def __init__(self) -> None:
        """Begin without a run."""
        self.rounds = 0
        self.started = 0
        self.open: dict[RunId, None] = {}
        self.continuable = False
        self.deleted = False


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
        self.turn: Turn | None = None
        self.last: TurnClosed | None = None
        self.usage = Usage()
        self.messages: list[RequestMessage] = []
        self.completed: tuple[RequestMessage, ...] = ()
        """The history up to the last closed turn: what a fork begins with."""
        self.completed_seq = 0
        self.system_digest = header.system_digest
        """The stored system text that requests begin with, where it is a parent's; none once notes took its turns."""
        self.prompt_digest: Digest | None = None
        """The system text of the last request."""
        self._known_tokens = 0
        self._known_messages = 0
        self.waiting_input: list[MessageUser] = []
        self.calls: dict[CallId, ToolCall] = {}
        self.answers: dict[CallId, ToolFinished] = {}
        self.mail: dict[LetterId, LetterQueued] = {}
        self.idle_root_run: RunId | None = None
        """The root run of what was started here since the last turn, without one: it lasts until the next turn."""
        self.rousing: dict[LetterId, LetterQueued] = {}
        """Waking letters that found this session idle, the oldest first: they start a turn."""
        self.kids: dict[SessionId, Kid] = {}
        self.open_runs: dict[RunId, None] = {}
        self.parked: dict[RunId, None] = {}
        self.not_home: dict[RunId, None] = {}

    @property
    def awaits_children(self) -> bool:
        """Whether a child's run is queued or running; a parked one is not waited for."""
        return len(self.open_runs) > len(self.parked)

    @property
    def open_calls(self) -> list[CallId]:
        """Calls of the last assistant message that have no answer yet."""
        return [call_id for call_id in self.calls if call_id not in self.answers]

    def root_run(self, fresh: RunId) -> RunId:
        """Return the root run that what is started here belongs to: the open turn's, else one until the next turn."""
        if self.turn is not None:
            return self.turn.opened.root_run_id
        return self.idle_root_run or fresh

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

    def seed(self, fact: ContextSeeded) -> None:
        """Fold the history that a forked session begins with."""
        self.messages = list(fact.messages)
        self.completed = fact.messages
        self.completed_seq = self.seq

    def open_turn(self, fact: TurnOpened) -> None:
        """Fold a turn's begin."""
        self.turn = Turn(fact)
        self.turns = fact.turn
        self.rousing = {}
        self.idle_root_run = None

    def admit(self, fact: MessageUser) -> None:
        """Fold admitted input: it is shown at the next boundary, never between a call and its answer."""
        self.waiting_input.append(fact)

    def open_step(self, fact: StepOpened) -> None:
        """Fold a boundary: answers, then people, then letters enter the history."""
        self._cross_boundary()
        self.requests += 1
        self.prompt_digest = fact.prompt_digest
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
            if call.name not in WAITING_TOOLS or not self.awaits_children:
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
        self.system_digest = None

    def next_request_tokens(self, fixed_tokens: int = 0) -> int:
        """Return an estimate of the next request: the last one reported, and bytes/3 of what came since.

        `fixed_tokens` is what it carries besides messages; a report holds that already.
        """
        texts = [message.text for message in self.messages[self._known_messages :]]
        texts += [fact.text for fact in self.answers.values()]
        texts += [fact.text for fact in self.waiting_input]
        texts += [letter.text for letter in self.mail.values()]
        known = self._known_tokens or fixed_tokens
        return known + sum(estimate_tokens(text) for text in texts)

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

    def accept_run(self, fact: RunQueued) -> None:
        """Fold a new run of a child: its first one, a message to it, or one that a letter started."""
        kid = self.kids.setdefault(fact.child_id, Kid())
        kid.rounds = fact.spec.round
        kid.continuable = fact.continuable
        kid.open[fact.run_id] = None
        self.open_runs[fact.run_id] = None
        if self.turn is None:
            self.idle_root_run = self.idle_root_run if fact.spec.cause == "letter" else fact.root_run_id
        elif fact.spec.cause == "prompt":
            self.turn.spawned += 1

    def start_run(self, fact: RunStarted) -> None:
        """Fold the start of a child's run."""
        self.kids[fact.child_id].started += 1

    def park(self, fact: RunWaiting) -> None:
        """Fold a queued run that is set aside, or stands in the queue again."""
        if fact.waiting_for.kind == "parked":
            self.parked[fact.run_id] = None
        else:
            self.parked.pop(fact.run_id, None)

    def settle(self, fact: RunSettled) -> None:
        """Fold a child's ending."""
        self.open_runs.pop(fact.run_id, None)
        self.parked.pop(fact.run_id, None)
        self.kids[fact.child_id].open.pop(fact.run_id, None)
        self.not_home[fact.run_id] = None
        if self.turn is not None and self.turn.opened.root_run_id == fact.root_run_id:
            self.turn.children_usage = self.turn.children_usage.plus(fact.usage_tree)

    def delete_kid(self, fact: SessionDeleted) -> None:
        """Fold the deletion of a child's log."""
        self.kids.setdefault(fact.child_id, Kid()).deleted = True

    def queue_letter(self, fact: LetterQueued) -> None:
        """Fold a letter's arrival."""
        self.mail[fact.letter_id] = fact
        if self.turn is None and fact.waking:
            self.rousing[fact.letter_id] = fact

    def absorb(self, fact: LetterAbsorbed) -> None:
        """Fold a letter's entry into the context; a second one for the same letter changes nothing."""
        self.mail.pop(fact.letter_id, None)

    def close_turn(self, fact: TurnClosed) -> None:
        """Fold a turn's end: what was admitted and not yet shown stays in the history."""
        if fact.reason == HOOK_DENIED:
            # What a hook turned away is on record, and no later request shows it.
            self.waiting_input = [said for said in self.waiting_input if not is_instruction(said)]
        self._cross_boundary()
        self.completed = tuple(self.messages)
        self.completed_seq = self.seq
        self.turn = None
        self.last = fact
        # What came too late for a turn that completed must not wait for an unrelated event.
        if fact.status == "completed":
            self.rousing = {letter_id: letter for letter_id, letter in self.mail.items() if letter.waking}

    def _cross_boundary(self) -> None:
        for call_id, call in self.calls.items():
            fact = self.answers.get(call_id)
            if fact is not None:
                self.messages.append(tool_text(call.name, fact))
        self.calls = {}
        self.answers = {}
        self.messages.extend(boundary_order(self.waiting_input))
        self.waiting_input = []
