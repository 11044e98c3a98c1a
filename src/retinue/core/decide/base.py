"""What every decision shares: its form, its effects, how a turn is closed; it decides nothing by itself."""

from typing import Any, Final

import msgspec

from retinue.core.errors import RetinueError
from retinue.core.events import (
    Draft,
    EndStatus,
    LetterQueued,
    MessageAssistant,
    StepClosed,
    StepOpened,
    StoredOutput,
    ToolFinished,
    TurnClosed,
    Usage,
    Value,
)
from retinue.core.ids import CallId, Digest, LetterId, OutputId, RunId, SessionId
from retinue.core.mailbox import DIAGNOSTIC_MAX_BYTES, QUIET_REASONS, result_letter
from retinue.core.run import Run, usage_of_request
from retinue.core.session import Session, Turn
from retinue.core.state import State
from retinue.core.text import fit_bytes

UNKNOWN_OUTCOME: Final = "The outcome of this call is unknown: the turn ended while it ran. It may have had effects."


class Stamp(Value):
    """The time of a decision: wall time to record, monotonic seconds to measure with."""

    wall: str
    clock_s: float


class Ending(Value):
    """How a body ended; `final` skips the last look around.

    Of a request that was cut off: the text and reasoning it had streamed, what was reported of its usage, its retries.
    """

    status: EndStatus
    reason: str
    detail: str
    streamed: str = ""
    reasoning: str = ""
    usage: Usage | None = None
    retries: int = 0
    final: bool = False


class StartRun(Value):
    """Start the body of a run that just got its slot."""

    run_id: RunId


class ResumeRun(Value):
    """Tell a run that it has a slot again."""

    run_id: RunId


class StopRun(Value):
    """Stop the body of a running run."""

    run_id: RunId
    ending: Ending


class Wake(Value):
    """Wake whoever waits on this session."""

    session_id: SessionId


Effect = StartRun | ResumeRun | StopRun | Wake


class Decision(Value):
    """Facts to commit as one batch, effects to run once they are durable, and the caller's answer."""

    drafts: tuple[Draft, ...] = ()
    effects: tuple[Effect, ...] = ()
    blobs: tuple[tuple[Digest, bytes], ...] = ()
    outputs: tuple[StoredOutput, ...] = ()
    value: Any = None


class Again:
    """The answer to a completed ending that came too early: something is still owed to this turn."""


AGAIN: Final = Again()


def open_session(state: State, session_id: SessionId) -> Session:
    """Return a session that is in memory; the shell loads it before it asks."""
    session = state.sessions.get(session_id)
    if session is None:
        raise RetinueError(
            "not_found", f"The session {session_id} is not open.", "List the sessions and use their ids."
        )
    return session


def open_turn_of(state: State, session_id: SessionId) -> tuple[Session, Turn]:
    """Return a session and its open turn; `already_ended` where there is none."""
    session = open_session(state, session_id)
    if session.turn is None:
        raise RetinueError("already_ended", f"The session {session_id} has no open turn.", "Send it a prompt.")
    return session, session.turn


def judge_empty(state: State, session: Session, ending: Ending) -> Ending:
    """Return the ending of a turn that completed without any text as `result.empty_output` says."""
    said = session.turn.last_text if session.turn is not None else ""
    if ending.status != "completed" or said.strip():
        return ending
    if state.policy(session.header.root_id)["result.empty_output"] == "fail":
        return Ending(status="failed", reason="empty_output", detail="The turn ended without any text.")
    return msgspec.structs.replace(ending, reason="done_empty", detail="Done, without any text.")


class Closing(Value):
    """The facts that close a turn, and what the turn leaves: its whole text and its sums."""

    drafts: tuple[Draft, ...]
    text: str
    steps: int
    usage: Usage
    usage_tree: Usage


def close_turn(session: Session, turn: Turn, ending: Ending) -> Closing:
    """Return the facts that close the open step, answer open calls and close the turn.

    The text is the last non-empty assistant message of this turn, else what had been streamed (CONTRACT section 2).
    """
    drafts = _close_step(session, turn, ending)
    drafts += [_draft(session, unknown_outcome(call_id)) for call_id in session.open_calls]
    completed = ending.status == "completed"
    streamed = ending.streamed if not completed and ending.streamed.strip() else ""
    text = streamed or turn.last_text
    tree = turn.usage.plus(turn.children_usage)
    usage = turn.usage
    if turn.step_open is not None:
        cut_off = usage_of_request(_closed_step(turn, turn.step_open, ending))
        usage, tree = usage.plus(cut_off), tree.plus(cut_off)
    fact = TurnClosed(
        turn=turn.opened.turn,
        root_run_id=turn.opened.root_run_id,
        status=ending.status,
        reason=ending.reason,
        detail=fit_bytes(ending.detail, DIAGNOSTIC_MAX_BYTES),
        text=text if completed else None,
        partial=None if completed else text or None,
        usage=usage,
        usage_tree=tree,
        run_id=turn.opened.run_id,
    )
    return Closing(drafts=(*drafts, _draft(session, fact)), text=text, steps=turn.steps, usage=usage, usage_tree=tree)


def _close_step(session: Session, turn: Turn, ending: Ending) -> list[Draft]:
    if turn.step_open is None:
        return []
    drafts: list[Draft] = []
    number, step = turn.step_open.turn, turn.step_open.step
    if ending.streamed or ending.reasoning:
        said = MessageAssistant(
            turn=number,
            step=step,
            text=ending.streamed,
            reasoning=ending.reasoning,
            tool_calls=(),
            finish="incomplete",
            complete=False,
        )
        drafts.append(_draft(session, said))
    return [*drafts, _draft(session, _closed_step(turn, turn.step_open, ending))]


def _closed_step(turn: Turn, opened: StepOpened, ending: Ending) -> StepClosed:
    return StepClosed(
        turn=opened.turn,
        step=opened.step,
        usage=ending.usage,
        retries=ending.retries,
        run_id=turn.opened.run_id,
    )


def _draft(session: Session, fact: MessageAssistant | StepClosed | ToolFinished | TurnClosed | LetterQueued) -> Draft:
    return Draft(session_id=session.session_id, fact=fact)


def unknown_outcome(call_id: CallId) -> ToolFinished:
    """Return the answer to a call whose end nobody saw."""
    return ToolFinished(call_id=call_id, outcome="unknown", code=None, text=UNKNOWN_OUTCOME)


def owed_letters(state: State, session: Session) -> tuple[list[Draft], list[StoredOutput]]:
    """Return letters for results that a call of this turn awaited and never got, and the texts that they cut.

    A settlement goes home once (CONTRACT section 2).
    """
    drafts: list[Draft] = []
    outputs: list[StoredOutput] = []
    for run_id in session.not_home:
        run = state.runs[run_id]
        letter_id = result_letter_id(run_id)
        awaited = run.spec.delivery == "await" and run.result_state == "stored"
        if awaited and letter_id not in session.mail:
            text = run.output or run.partial or ""
            letter, cut = settled_letter(state, run, text, was_cut=run.output_cut)
            drafts.append(letter)
            if cut and run.output_id is None:
                outputs.append(StoredOutput(output_id=result_output_id(run_id), session_id=run.parent_id, text=text))
    return drafts, outputs


def result_letter_id(run_id: RunId) -> LetterId:
    """Return the id of a run's one result letter: it has an identity before it exists, so it cannot come twice."""
    return LetterId("l_" + run_id[2:])


def result_output_id(run_id: RunId) -> OutputId:
    """Return the id under which a run's whole text is kept when what is shown of it was cut."""
    return OutputId("o_r" + run_id[2:])


def call_output_id(call_id: CallId) -> OutputId:
    """Return the id under which a call's whole result is kept when what is shown of it was cut."""
    return OutputId("o_c" + call_id[2:])


def settled_letter(state: State, run: Run, text: str, *, was_cut: bool = False) -> tuple[Draft, bool]:
    """Return the result letter of a settled run, and whether it holds less than the whole text."""
    tokens_max = state.policy(run.root_id).number("result.notice_max_tokens")
    letter = result_letter(run, text, tokens_max, was_cut=was_cut)
    fact = LetterQueued(
        letter_id=result_letter_id(run.run_id),
        kind="result",
        sender_id=run.session_id,
        receiver_id=run.parent_id,
        run_id=run.run_id,
        text=letter.text,
        cut=letter.cut,
        output_id=result_output_id(run.run_id) if letter.cut else run.output_id,
        waking=run.reason not in QUIET_REASONS,
    )
    return Draft(session_id=run.parent_id, fact=fact), letter.cut
