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
    Warned,
)
from retinue.core.ids import CallId, Digest, LetterId, OutputId, RunId, SessionId
from retinue.core.mailbox import DIAGNOSTIC_MAX_BYTES, QUIET_REASONS, ends_hold, result_letter
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
    """How a body ended; `final` skips the last look around, `whole` takes everything below along.

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
    whole: bool = False


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


class StopTurn(Value):
    """Stop the open turn of a root."""

    session_id: SessionId
    ending: Ending


class StartTurn(Value):
    """Start the body of a root's turn that letters opened."""

    session_id: SessionId


class Wake(Value):
    """Wake whoever waits on this session, or on this root run's budget."""

    session_id: SessionId | RunId


Effect = StartRun | ResumeRun | StopRun | StopTurn | StartTurn | Wake


class Deletion(Value):
    """Sessions whose logs, rows and outputs go for good; their ids never come back.

    The runs in their logs go too; those that they carried out stay with a parent that is not deleted.
    """

    session_ids: tuple[SessionId, ...]


class Decision(Value):
    """Facts to commit as one batch, effects to run once they are durable, and the caller's answer."""

    drafts: tuple[Draft, ...] = ()
    effects: tuple[Effect, ...] = ()
    blobs: tuple[tuple[Digest, bytes], ...] = ()
    outputs: tuple[StoredOutput, ...] = ()
    deleted: Deletion | None = None
    switch: bool | None = None
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


def owed_letters(state: State, session: Session, *, hand_over: bool = False) -> tuple[list[Draft], list[StoredOutput]]:
    """Return letters for results that were to come back in another way and did not, and the texts that they cut.

    Those are results that a call of this turn awaited and never got; to `hand_over` under `pull`, every result that
    nobody collected. A settlement goes home once (CONTRACT section 2).
    """
    drafts: list[Draft] = []
    outputs: list[StoredOutput] = []
    pull = state.policy(session.header.root_id)["result.delivery"] == "pull"
    for run_id in () if pull and not hand_over else session.not_home:
        run = state.runs[run_id]
        letter_id = result_letter_id(run_id)
        wanted = run.spec.delivery == "await" or (hand_over and run.spec.delivery == "letter")
        if wanted and run.result_state == "stored" and letter_id not in session.mail:
            text = run.output or run.partial or ""
            letter, cut = settled_letter(state, run, text, was_cut=run.output_cut)
            drafts.append(Draft(session_id=session.session_id, fact=letter))
            if cut and run.output_id is None:
                outputs.append(StoredOutput(output_id=result_output_id(run_id), session_id=run.parent_id, text=text))
    return drafts, outputs


def uncollected(state: State, session: Session) -> bool:
    """Return whether results of this session's children were fetched by nobody."""
    runs = (state.runs[run_id] for run_id in session.not_home)
    return any(run.spec.delivery != "handle" and run.result_state == "stored" for run in runs)


def owes_a_step(state: State, session: Session) -> bool:
    """Return whether a turn that would complete now still owes its session something (CONTRACT section 4, Turn end)."""
    if session.waiting_input or any(letter.waking for letter in session.mail.values()):
        return True
    policy = state.policy(session.header.root_id)
    if policy["result.turn_end"] != "hold_open":
        return False
    if session.awaits_children or ends_hold(session.mail, runs_open=False):
        return True
    return policy["result.delivery"] == "pull" and uncollected(state, session)


def arrival(state: State, letter: LetterQueued) -> list[Draft]:
    """Return the facts of a letter's arrival; a warning goes with one that would start a turn too many."""
    drafts = [Draft(session_id=letter.receiver_id, fact=letter)]
    session = state.sessions[letter.receiver_id]
    tree = state.trees[session.header.root_id]
    most = tree.policy.number("result.auto_turns_max")
    starts = tree.policy["result.idle_parent"] == "start_turn" and letter.waking and session.turn is None
    if starts and most is not None and letter.root_run_id is not None and tree.auto_turns[letter.root_run_id] >= most:
        text = f"Letters have started {most} turns of this root run, its limit; this one waits for the next turn."
        drafts.append(Draft(session_id=letter.receiver_id, fact=Warned(code="auto_turns_max", text=text)))
    return drafts


def result_letter_id(run_id: RunId) -> LetterId:
    """Return the id of a run's one result letter: it has an identity before it exists, so it cannot come twice."""
    return LetterId("l_" + run_id[2:])


def result_output_id(run_id: RunId) -> OutputId:
    """Return the id under which a run's whole text is kept when what is shown of it was cut."""
    return OutputId("o_r" + run_id[2:])


def call_output_id(call_id: CallId) -> OutputId:
    """Return the id under which a call's whole result is kept when what is shown of it was cut."""
    return OutputId("o_c" + call_id[2:])


def settled_letter(state: State, run: Run, text: str, *, was_cut: bool = False) -> tuple[LetterQueued, bool]:
    """Return the result letter of a settled run, and whether it holds less than the whole text."""
    policy = state.policy(run.root_id)
    # The letter may be read in a later turn, from which the run itself is out of reach under `in_turn`.
    whole_id = result_output_id(run.run_id) if policy["life.continuation"] == "in_turn" else None
    tokens_max = policy.number("result.notice_max_tokens")
    letter = result_letter(run, text, tokens_max, was_cut=was_cut, whole_id=whole_id)
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
        root_run_id=run.root_run_id,
    )
    return fact, letter.cut
