"""Made-up facts, rows and batches for store checks; nothing in it is meant to be a plausible story."""

from collections import Counter
from typing import Any, Final

from retinue.core.events import (
    AnyFact,
    BudgetExceeded,
    ContextCompacted,
    ContextSeeded,
    Event,
    HookFailed,
    LetterAbsorbed,
    LetterQueued,
    MessageAssistant,
    MessageUser,
    NotesAsked,
    PolicyChanged,
    Rights,
    RunQueued,
    RunResumed,
    RunSettled,
    RunSpec,
    RunStarted,
    RunWaiting,
    SessionDeleted,
    SessionOpened,
    Snapshot,
    StepClosed,
    StepOpened,
    SwitchChanged,
    ToolCall,
    ToolFinished,
    ToolStarted,
    TurnClosed,
    TurnOpened,
    Usage,
    WaitingFor,
    Warned,
)
from retinue.core.ids import CallId, Digest, LetterId, OutputId, Position, RunId, Seq, SessionId, StepNo, TurnNo
from retinue.core.messages import AssistantText, RequestCall, RequestMessage, ToolText, UserText
from retinue.core.run import Run, queued, run_fact_keys
from retinue.core.session import SessionRow

ROOT: Final = SessionId("s_root")
HARD_TEXT: Final = 'quote " back\\slash \x00 nul \x1f \u2028 line é e\u0301 漢字 🧭 \U0010ffff \r\n\ttab'
"""Text that breaks what is not encoded with care."""
_TIME: Final = "2025-01-02T03:04:05.006Z"
_USAGE: Final = Usage(input=7, cached=1, output=5, reasoning=2, total=12, requests=2, unreported=1)


_RESERVED: Final[dict[str, Any]] = {"reserved": 9, "output_tokens_max": 4}
_CARRIES: Final[dict[str, Any]] = {"run_id": RunId("r_1"), "collected": (RunId("r_2"), RunId("r_3"))}
_HISTORY: Final[tuple[RequestMessage, ...]] = (
    UserText(text=HARD_TEXT),
    AssistantText(
        text=HARD_TEXT,
        reasoning=HARD_TEXT,
        tool_calls=(RequestCall(call_id=CallId("c_1"), name="grep", arguments={"n": [1, None, HARD_TEXT]}),),
    ),
    ToolText(call_id=CallId("c_1"), name="grep", text=HARD_TEXT, error=True),
)


class Numbering:
    """Numbers facts as the journal does: `seq` gapless in each session, `position` rising over all."""

    def __init__(self, position: int = 0) -> None:
        """Begin after `position`."""
        self.position = position
        self._seqs: Final[Counter[str]] = Counter()

    def resume(self, session_id: SessionId, seq: int) -> None:
        """Go on after a session's `seq`."""
        self._seqs[session_id] = seq

    def event(self, fact: AnyFact, session_id: SessionId = ROOT, root_id: SessionId = ROOT) -> Event:
        """Return the fact as the next event of its session; its time tells its position."""
        self.position += 1
        self._seqs[session_id] += 1
        return Event(
            session_id=session_id,
            root_id=root_id,
            seq=Seq(self._seqs[session_id]),
            position=Position(self.position),
            time=f"2025-01-02T03:04:05.{self.position % 1000:03d}Z",
            fact=fact,
        )

    def says(self, text: str, session_id: SessionId = ROOT, root_id: SessionId = ROOT) -> Event:
        """Return a user message as the next event."""
        return self.event(MessageUser(turn=TurnNo(1), text=text, source="user"), session_id, root_id)


def opened(root_id: SessionId = ROOT, parent_id: SessionId | None = None) -> SessionOpened:
    """Return a session's header with every field filled."""
    return SessionOpened(
        parent_id=parent_id,
        root_id=root_id,
        depth=0 if parent_id is None else 1,
        name=HARD_TEXT,
        agent="explorer",
        agent_digest=Digest("ab" * 32),
        provider="spawn",
        model="scripted:x",
        profile="build",
        approval="manual",
        cwd="/somewhere",
        policy={"name": "standard", "set": {"caps.running.root": 2, "wait.s": [1, 2, 3], "budget.include_root": None}},
        rights=Rights(tools=("read_file",), access="write", paths=("a", "b"), max_depth=2, may_delegate=False),
        environment_digest=Digest("cd" * 32),
        call_id=CallId("c_1"),
        effort="high",
        system_prompt=HARD_TEXT,
        definition=Snapshot(ref="user:x", name="x", digest=Digest("ef" * 32), tools=("grep",), timeout_s=1.5),
    )


def session_row(
    session_id: SessionId = ROOT, *, parent_id: SessionId | None = None, status: str = "idle"
) -> SessionRow:
    """Return a session's row as the fold leaves it: without what the store fills in."""
    return SessionRow(
        session_id=session_id,
        header=opened(ROOT if parent_id is not None else session_id, parent_id),
        status=status,
        turns=3,
        last_status="failed",
        last_reason="step_limit",
        usage=_USAGE,
        created_at=_TIME,
    )


def run(number: int, **changes: Any) -> Run:
    """Return the queued run `r_<number>` with some keys changed."""
    return queued(_run_queued(number, **changes))


def every_fact() -> tuple[AnyFact, ...]:
    """Return one fact of every type, fields filled."""
    turn, step, call_id, run_id, child_id = TurnNo(1), StepNo(2), CallId("c_1"), RunId("r_1"), SessionId("s_1")
    call = ToolCall(call_id=call_id, name="grep", arguments={"n": [1, 2.5, None, {"k": HARD_TEXT}]}, invalid=HARD_TEXT)
    return (
        opened(),
        TurnOpened(turn=turn, root_run_id=run_id, cause="prompt", run_id=run_id),
        MessageUser(turn=turn, text=HARD_TEXT, source="agent", sender_id=child_id, letter_id=LetterId("l_1")),
        StepOpened(turn=turn, step=step, model="m", prompt_digest=Digest("p"), tools_digest=Digest("t"), **_RESERVED),
        MessageAssistant(
            turn=turn,
            step=step,
            text=HARD_TEXT,
            reasoning=HARD_TEXT,
            tool_calls=(call,),
            finish="tool_calls",
            complete=True,
        ),
        StepClosed(turn=turn, step=step, usage=_USAGE, retries=1, run_id=run_id),
        ToolStarted(call_id=call_id, name="grep", arguments={"pattern": HARD_TEXT}),
        ToolFinished(call_id=call_id, outcome="error", code="invalid", text=HARD_TEXT, cut=True, **_CARRIES),
        TurnClosed(
            turn=turn,
            root_run_id=run_id,
            status="failed",
            reason="timeout",
            detail=HARD_TEXT,
            text=None,
            partial=HARD_TEXT,
            usage=_USAGE,
            usage_tree=_USAGE,
            run_id=run_id,
        ),
        _run_queued(1),
        RunStarted(**run_fact_keys(run(1, status="running", queued_s=0.25))),
        RunSettled(**run_fact_keys(run(1, status="completed", output=HARD_TEXT, files=("a",))), usage_tree=_USAGE),
        RunWaiting(
            run_id=run_id, child_id=child_id, waiting_for=WaitingFor(kind="children", what=HARD_TEXT), clock_s=0.1
        ),
        RunResumed(run_id=run_id, child_id=child_id, clock_s=1e9 + 0.125),
        LetterQueued(
            letter_id=LetterId("l_1"),
            kind="result",
            sender_id=child_id,
            receiver_id=ROOT,
            run_id=run_id,
            text=HARD_TEXT,
            cut=True,
            output_id=OutputId("o_1"),
            waking=False,
            root_run_id=RunId("r_0"),
        ),
        LetterAbsorbed(letter_id=LetterId("l_1"), turn=turn, step=step, run_id=run_id),
        ContextSeeded(from_id=ROOT, up_to_seq=Seq(4), messages=_HISTORY),
        ContextCompacted(up_to_seq=Seq(9), text="# Notes", kept=2, usage=Usage(input=9, total=9), run_id=RunId("r_1")),
        *_facts_of_trees(),
        Warned(code="leftover", text=HARD_TEXT),
    )


def _facts_of_trees() -> tuple[AnyFact, ...]:
    return (
        NotesAsked(reserved=300, output_tokens_max=256),
        BudgetExceeded(root_run_id=RunId("r_0"), limit=1000, spent=900, reserved=150),
        PolicyChanged(changes={"caps.running.root": 2, "wait.s": [1, 2, 3], "budget.tree_tokens_max": None}),
        SwitchChanged(on=False),
        SessionDeleted(child_id=SessionId("s_1")),
        HookFailed(hook="guard", code="timeout", detail=HARD_TEXT),
    )


def _run_queued(number: int, **changes: Any) -> RunQueued:
    keys: dict[str, Any] = {
        "run_id": RunId(f"r_{number}"),
        "child_id": SessionId(f"s_{number}"),
        "parent_id": ROOT,
        "root_id": ROOT,
        "root_run_id": RunId("r_0"),
        "call_id": CallId("c_1"),
        "name": HARD_TEXT,
        "agent": None,
        "model": "scripted:x",
        "depth": 1,
        "provider": "spawn",
        "status": "queued",
        "reason": None,
        "detail": None,
        "waiting_for": WaitingFor(kind="slot", what="a slot"),
        "queue_position": None,
        "steps": 2,
        "usage": _USAGE,
        "created_at": _TIME,
        "started_at": None,
        "ended_at": None,
        "queued_s": None,
        "elapsed_s": None,
        "access": "read",
        "paths": ("a/b", "c"),
        "cwd": "/somewhere",
        "continuable": True,
        "output": None,
        "output_cut": False,
        "output_id": None,
        "partial": None,
        "files": (),
        "result_state": "none",
        "clock_s": 12.5,
        "spec": RunSpec(
            prompt=HARD_TEXT,
            delivery="await",
            timeout_s=1.5,
            rights=Rights(paths=("a",)),
            output_schema={"type": "object", "properties": {HARD_TEXT: {"type": "string"}}},
            seed=_HISTORY,
            seed_seq=Seq(4),
        ),
    }
    return RunQueued(**{**keys, **changes})
