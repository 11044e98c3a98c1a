"""Every fact a log can hold, and the envelope around a stored one; it never decides or folds anything.

The wire form of an event is flat: the envelope's keys and the fact's keys in one object (SHAPES, Events).
"""

from typing import Any, Literal, dataclass_transform

import msgspec

from retinue.core.ids import CallId, Digest, LetterId, OutputId, Position, RunId, Seq, SessionId, StepNo, TurnNo
from retinue.core.messages import Kept, RequestMessage, Value
from retinue.core.roles import Rights, Snapshot

Status = Literal["queued", "running", "completed", "failed", "cancelled", "interrupted"]
EndStatus = Literal["completed", "failed", "cancelled", "interrupted"]
ResultState = Literal["none", "stored", "absorbed", "collected"]
Outcome = Literal["ok", "error", "refused", "unknown"]
Source = Literal["user", "steer", "agent", "context"]
LetterKind = Literal["result", "report", "message"]
Cause = Literal["prompt", "letter", "message"]
Delivery = Literal["letter", "await", "handle"]
"""How a settlement goes home: as a letter, as the result of the awaiting call, or through a Python handle."""


class Usage(Value):
    """Tokens as the provider reported them. `cached` is part of input, `reasoning` of output."""

    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0
    total: int = 0
    requests: int = 0
    unreported: int = 0

    def plus(self, other: "Usage") -> "Usage":
        """Return the sum, field by field."""
        return Usage(
            input=self.input + other.input,
            cached=self.cached + other.cached,
            output=self.output + other.output,
            reasoning=self.reasoning + other.reasoning,
            total=self.total + other.total,
            requests=self.requests + other.requests,
            unreported=self.unreported + other.unreported,
        )


class ToolCall(Value):
    """One call of an assistant message. `invalid` holds the raw text when it was not a JSON object."""

    call_id: CallId
    name: str
    arguments: dict[str, Any]
    invalid: str | None = None


class WaitingFor(Value):
    """Why a run does not work at this moment."""

    kind: Literal["slot", "claim", "children", "approval", "budget", "rate", "parked"]
    what: str


class RunSpec(Value):
    """What was asked for: everything needed to start the run that its Run object does not show.

    All but the first four fields are frozen at the child's spawn and the same for each of its runs.
    """

    prompt: str
    """The instruction; empty for a run that a letter started."""
    delivery: Delivery = "letter"
    cause: Cause = "prompt"
    sender_id: SessionId | None = None
    """Who wrote the instruction; null is the parent."""
    round: int = 1
    """Which instruction of the child this is; a run that a letter started has the number of the one before."""
    background: str | None = None
    system_prompt: str | None = None
    max_steps: int | None = None
    timeout_s: float | None = None
    effort: str | None = None
    cancel_with_parent: bool | None = None
    rights: Rights = Rights()
    definition: Snapshot | None = None
    profile: str = "build"
    approval: str = "manual"
    environment_digest: Digest | None = None
    output_schema: dict[str, Any] | None = None
    """A JSON schema that the last message must match."""
    seed: tuple[RequestMessage, ...] = ()
    """The history that the child begins with: its parent's completed turns when it was spawned (provider `fork`)."""
    seed_seq: Seq | None = None
    system_digest: Digest | None = None
    """The system text to begin with, where it is its parent's to the letter (provider `fork`)."""
    opening: str | None = None
    """What the child is told before its first instruction, where its system text is its parent's."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Fact(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of everything that a log can hold."""


class SessionOpened(Fact, tag="session.opened"):
    """A session exists. `environment_digest` names the stored environment block."""

    parent_id: SessionId | None
    root_id: SessionId
    depth: int
    name: str
    agent: str | None
    agent_digest: Digest | None
    provider: str
    model: str
    profile: str
    approval: str
    cwd: str
    policy: dict[str, Any]
    """`{"name", "set": {key: value}}`: the named policy and what was set on top of it."""
    rights: Rights
    environment_digest: Digest | None
    call_id: CallId | None = None
    effort: str | None = None
    system_prompt: str | None = None
    definition: Snapshot | None = None
    output_schema: dict[str, Any] | None = None
    system_digest: Digest | None = None
    """The stored system text of every request, where the session has none of its own (provider `fork`)."""


class ContextSeeded(Fact, tag="context.seeded"):
    """The history a forked session begins with: completed turns of `from_id` up to its `up_to_seq`."""

    from_id: SessionId
    up_to_seq: Seq
    messages: tuple[RequestMessage, ...]


class TurnOpened(Fact, tag="turn.opened"):
    """A turn began. `run_id` is the run that this turn is, null for a root's turn."""

    turn: TurnNo
    root_run_id: RunId
    cause: Cause
    run_id: RunId | None = None


class MessageUser(Fact, tag="message.user"):
    """User-role input that was admitted; while a step is open it waits for the next boundary."""

    turn: TurnNo
    text: str
    source: Source
    sender_id: SessionId | None = None
    letter_id: LetterId | None = None


class StepOpened(Fact, tag="step.opened"):
    """A model request is about to be sent; the digests name what it takes from outside the log."""

    turn: TurnNo
    step: StepNo
    model: str
    prompt_digest: Digest
    tools_digest: Digest
    reserved: int | None = None
    """Tokens set aside from the tree's budget; null where there is no limit."""
    output_tokens_max: int | None = None


class MessageAssistant(Fact, tag="message.assistant"):
    """What the model answered. `complete` is false when the request did not end properly."""

    turn: TurnNo
    step: StepNo
    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    finish: str
    complete: bool
    kept: Kept | None = None
    """What the provider wants back with this answer in later requests; null where it wants nothing."""


class StepClosed(Fact, tag="step.closed"):
    """The model request of a step is over. `usage` is null when the provider reported none."""

    turn: TurnNo
    step: StepNo
    usage: Usage | None
    retries: int = 0
    run_id: RunId | None = None


class ToolStarted(Fact, tag="tool.started"):
    """A tool call is about to run."""

    call_id: CallId
    name: str
    arguments: dict[str, Any]


class ToolFinished(Fact, tag="tool.finished"):
    """A tool call is answered. `run_id` and `collected` name the runs whose results this answer carries home."""

    call_id: CallId
    outcome: Outcome
    code: str | None
    text: str
    cut: bool = False
    output_id: OutputId | None = None
    run_id: RunId | None = None
    collected: tuple[RunId, ...] = ()

    @property
    def carries(self) -> tuple[RunId, ...]:
        """Every run whose result this answer carries home."""
        return self.collected if self.run_id is None else (self.run_id, *self.collected)


class TurnClosed(Fact, tag="turn.closed"):
    """A turn ended. `text` is null unless it completed; `usage_tree` adds its settled descendants."""

    turn: TurnNo
    root_run_id: RunId
    status: EndStatus
    reason: str
    detail: str
    text: str | None
    partial: str | None
    usage: Usage
    usage_tree: Usage
    run_id: RunId | None = None


class RunFact(Fact):
    """The keys of a Run object as it is at that moment; it stands in the parent's log."""

    run_id: RunId
    child_id: SessionId
    parent_id: SessionId
    root_id: SessionId
    root_run_id: RunId
    call_id: CallId | None
    name: str
    agent: str | None
    model: str
    depth: int
    provider: str
    status: Status
    reason: str | None
    detail: str | None
    waiting_for: WaitingFor | None
    queue_position: int | None
    steps: int
    usage: Usage
    created_at: str
    started_at: str | None
    ended_at: str | None
    queued_s: float | None
    elapsed_s: float | None
    access: str
    paths: tuple[str, ...]
    cwd: str
    continuable: bool
    output: str | None
    output_cut: bool
    output_id: OutputId | None
    partial: str | None
    files: tuple[str, ...]
    result_state: ResultState
    clock_s: float
    """Monotonic seconds of the owner process; differences mean something, the value does not."""


class RunQueued(RunFact, tag="run.queued"):
    """A run was accepted."""

    spec: RunSpec


class RunStarted(RunFact, tag="run.started"):
    """A run got its slot; its session and turn are opened in the same commit."""


class RunSettled(RunFact, tag="run.settled"):
    """A run ended, once. `usage_tree` is its own usage and that of its settled descendants."""

    usage_tree: Usage


class RunWaiting(Fact, tag="run.waiting"):
    """A running run gave up its slot (`children`), wants it back (`slot`), or waits for tokens (`budget`).

    Of a queued run: it is set aside (`parked`), or stands in the queue again (`slot`).
    """

    run_id: RunId
    child_id: SessionId
    waiting_for: WaitingFor
    clock_s: float


class RunResumed(Fact, tag="run.resumed"):
    """A run that had given up its slot has one again, or has the tokens it waited for."""

    run_id: RunId
    child_id: SessionId
    clock_s: float


class LetterQueued(Fact, tag="letter.queued"):
    """A letter lies in the receiver's log. `waking` is false when it must start no turn."""

    letter_id: LetterId
    kind: LetterKind
    sender_id: SessionId
    receiver_id: SessionId
    run_id: RunId | None
    text: str
    cut: bool
    output_id: OutputId | None
    waking: bool = True
    root_run_id: RunId | None = None
    """The root run that caused it, and to which a turn belongs that it starts."""


class LetterAbsorbed(Fact, tag="letter.absorbed"):
    """A letter entered the receiver's context."""

    letter_id: LetterId
    turn: TurnNo
    step: StepNo
    run_id: RunId | None = None


class ContextCompacted(Fact, tag="context.compacted"):
    """The history up to a seq became notes; the `kept` newest messages before it stayed as they were.

    `usage` is that of the request for the notes, null when none was reported.
    """

    up_to_seq: Seq
    text: str
    kept: int
    usage: Usage | None = None
    retries: int = 0
    run_id: RunId | None = None


class NotesAsked(Fact, tag="context.compacting"):
    """Notes for a compaction are about to be asked for, out of the tree's budget."""

    reserved: int
    output_tokens_max: int | None


class BudgetExceeded(Fact, tag="budget.exceeded"):
    """A root run has used its tokens up; it stands in the root's log, once for each root run."""

    root_run_id: RunId
    limit: int
    spent: int
    reserved: int


class PolicyChanged(Fact, tag="policy.changed"):
    """Switches of a tree's policy were set while it lives; it stands in the root's log."""

    changes: dict[str, Any]


class SwitchChanged(Fact, tag="switch.changed"):
    """The master switch was set; it stands in the log of each root that was in memory."""

    on: bool


class SessionDeleted(Fact, tag="session.deleted"):
    """A child's log was deleted; it stands in its parent's log, where its runs stay."""

    child_id: SessionId


class HookFailed(Fact, tag="hook.failed"):
    """A hook did not answer properly; `code` says how, `detail` what that meant for the call it was asked about."""

    hook: str
    code: str
    detail: str


class Warned(Fact, tag="warning"):
    """Something a person should know that stops nothing."""

    code: str
    text: str


AnyFact = (
    SessionOpened
    | TurnOpened
    | MessageUser
    | StepOpened
    | MessageAssistant
    | StepClosed
    | ToolStarted
    | ToolFinished
    | TurnClosed
    | RunQueued
    | RunStarted
    | RunSettled
    | RunWaiting
    | RunResumed
    | LetterQueued
    | LetterAbsorbed
    | ContextSeeded
    | ContextCompacted
    | NotesAsked
    | BudgetExceeded
    | PolicyChanged
    | SwitchChanged
    | SessionDeleted
    | HookFailed
    | Warned
)
"""The closed union; a `match` over it ends in `assert_never`."""


class Draft(Value):
    """A fact on its way to the log of `session_id`, not yet numbered."""

    session_id: SessionId
    fact: AnyFact


class Event(Value):
    """A stored fact: contiguous `seq` in its session, rising `position` in the store, wall `time`."""

    session_id: SessionId
    root_id: SessionId
    seq: Seq
    position: Position
    time: str
    fact: AnyFact

    def to_dict(self) -> dict[str, Any]:
        """Return the flat wire form (SHAPES, Events)."""
        body: dict[str, Any] = msgspec.to_builtins(self.fact)
        return {
            "type": body.pop("type"),
            "session_id": self.session_id,
            "seq": self.seq,
            "position": self.position,
            "time": self.time,
            "v": 1,
            **body,
        }


class StoredOutput(Value):
    """A text kept whole under `output_id`, owned by the session whose log names it."""

    output_id: OutputId
    session_id: SessionId
    text: str


def tag_of(fact: AnyFact) -> str:
    """Return the wire type of a fact, as `run.queued`."""
    return str(fact.__struct_config__.tag)
