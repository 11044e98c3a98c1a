"""Decisions about a session's own turns: open, steer, the step boundary, close; never about slots or runs."""

from retinue.core.decide.base import (
    AGAIN,
    Decision,
    Effect,
    Ending,
    Stamp,
    Wake,
    close_turn,
    judge_empty,
    open_session,
    open_turn_of,
    owed_letters,
)
from retinue.core.errors import RetinueError
from retinue.core.events import (
    Cause,
    Draft,
    LetterAbsorbed,
    MessageUser,
    SessionOpened,
    StepOpened,
    TurnOpened,
    Value,
    Warned,
)
from retinue.core.ids import Digest, RunId, SessionId, StepNo, TurnNo
from retinue.core.mailbox import ends_hold
from retinue.core.session import Session
from retinue.core.state import State


class OpenSession(Value):
    """Open a root session."""

    session_id: SessionId
    header: SessionOpened
    blobs: tuple[tuple[Digest, bytes], ...] = ()


class OpenTurn(Value):
    """Open a turn of an idle root with a person's text."""

    session_id: SessionId
    root_run_id: RunId
    text: str
    cause: Cause = "prompt"


class Steer(Value):
    """Admit a person's text into an open turn."""

    session_id: SessionId
    text: str


class OpenStep(Value):
    """Cross a step boundary: letters in, then one model request."""

    session_id: SessionId
    model: str
    prompt_digest: Digest
    tools_digest: Digest
    blobs: tuple[tuple[Digest, bytes], ...] = ()


class CloseTurn(Value):
    """Close a root's turn."""

    session_id: SessionId
    ending: Ending
    stamp: Stamp


class Warn(Value):
    """Put a warning on record."""

    session_id: SessionId
    code: str
    text: str


def decide_open_session(state: State, command: OpenSession) -> Decision:
    """Create a root session; a used id is refused (`invalid`)."""
    if command.session_id in state.sessions:
        raise RetinueError("invalid", f"The session {command.session_id} exists already.", "Use a fresh id.")
    draft = Draft(session_id=command.session_id, fact=command.header)
    return Decision(drafts=(draft,), blobs=command.blobs, value=command.session_id)


def decide_open_turn(state: State, command: OpenTurn) -> Decision:
    """Open a turn; letters that were waiting enter it in the same commit. An open turn is refused (`turn_open`)."""
    session = open_session(state, command.session_id)
    if session.turn is not None:
        raise RetinueError(
            "turn_open",
            f"The session {command.session_id} has an open turn.",
            "Steer it, interrupt it, or wait for its end.",
        )
    turn = TurnNo(session.turns + 1)
    opened = TurnOpened(turn=turn, root_run_id=command.root_run_id, cause=command.cause)
    text = MessageUser(turn=turn, text=command.text, source="user")
    facts = (opened, text, *_absorb(session, turn, StepNo(1)))
    return Decision(drafts=tuple(Draft(session_id=command.session_id, fact=fact) for fact in facts), value=turn)


def _absorb(session: Session, turn: TurnNo, step: StepNo) -> list[LetterAbsorbed | MessageUser]:
    facts: list[LetterAbsorbed | MessageUser] = []
    for letter in session.mail.values():
        facts.append(LetterAbsorbed(letter_id=letter.letter_id, turn=turn, step=step, run_id=letter.run_id))
        facts.append(
            MessageUser(
                turn=turn,
                text=letter.text,
                source="agent",
                sender_id=letter.sender_id,
                letter_id=letter.letter_id,
            )
        )
    return facts


def decide_steer(state: State, command: Steer) -> Decision:
    """Admit a person's text; it is shown at the next boundary, before letters. No open turn is refused."""
    _, turn = open_turn_of(state, command.session_id)
    fact = MessageUser(turn=turn.opened.turn, text=command.text, source="steer")
    draft = Draft(session_id=command.session_id, fact=fact)
    return Decision(drafts=(draft,), effects=(Wake(session_id=command.session_id),))


def decide_open_step(state: State, command: OpenStep) -> Decision:
    """Absorb what waits and open the next step, in one commit."""
    session, turn = open_turn_of(state, command.session_id)
    number, step = turn.opened.turn, StepNo(turn.steps + 1)
    opened = StepOpened(
        turn=number,
        step=step,
        model=command.model,
        prompt_digest=command.prompt_digest,
        tools_digest=command.tools_digest,
    )
    facts = (*_absorb(session, number, step), opened)
    drafts = tuple(Draft(session_id=command.session_id, fact=fact) for fact in facts)
    return Decision(drafts=drafts, blobs=command.blobs, value=step)


def owes_a_step(session: Session) -> bool:
    """Return whether a turn that would complete now still owes its session something."""
    return bool(session.waiting_input or session.open_runs) or ends_hold(session.mail, runs_open=False)


def decide_close_turn(state: State, command: CloseTurn) -> Decision:
    """Close a root's turn, or answer `AGAIN` when a completed one still owes a step."""
    session, turn = open_turn_of(state, command.session_id)
    if command.ending.status == "completed" and not command.ending.final and owes_a_step(session):
        return Decision(value=AGAIN)
    letters, outputs = owed_letters(state, session)
    closing = close_turn(session, turn, judge_empty(state, session, command.ending))
    effects: tuple[Effect, ...] = (Wake(session_id=command.session_id),)
    return Decision(
        drafts=(*letters, *closing.drafts),
        effects=effects,
        outputs=tuple(outputs),
        value=closing.drafts[-1].fact,
    )


def decide_warn(state: State, command: Warn) -> Decision:
    """Record a warning in a session's log; a session that is over keeps it from being lost silently elsewhere."""
    if command.session_id not in state.sessions:
        return Decision()
    fact = Warned(code=command.code, text=command.text)
    return Decision(drafts=(Draft(session_id=command.session_id, fact=fact),))
