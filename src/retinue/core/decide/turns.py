"""Decisions about a root's own turns: open, steer, close; never about slots, runs or single requests."""

from retinue.core.decide.absorb import absorb
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
    owes_a_step,
)
from retinue.core.errors import RetinueError
from retinue.core.events import (
    Cause,
    Draft,
    HookFailed,
    MessageUser,
    SessionOpened,
    TurnOpened,
    Value,
    Warned,
)
from retinue.core.ids import Digest, RunId, SessionId, StepNo, TurnNo
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


class CloseTurn(Value):
    """Close a root's turn."""

    session_id: SessionId
    ending: Ending
    stamp: Stamp


class Note(Value):
    """Put on record what a person should know that stops nothing."""

    session_id: SessionId
    fact: Warned | HookFailed


class Continue(Value):
    """Tell an open turn to go on, in the words of whoever does not let it end."""

    session_id: SessionId
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
    facts = (opened, text, *absorb(session, turn, StepNo(1)))
    return Decision(drafts=tuple(Draft(session_id=command.session_id, fact=fact) for fact in facts), value=turn)


def decide_steer(state: State, command: Steer) -> Decision:
    """Admit a person's text; it is shown at the next boundary, before letters. No open turn is refused."""
    _, turn = open_turn_of(state, command.session_id)
    fact = MessageUser(turn=turn.opened.turn, text=command.text, source="steer")
    draft = Draft(session_id=command.session_id, fact=fact)
    return Decision(drafts=(draft,), effects=(Wake(session_id=command.session_id),))


def decide_close_turn(state: State, command: CloseTurn) -> Decision:
    """Close a root's turn, or answer `AGAIN` when a completed one still owes a step."""
    session, turn = open_turn_of(state, command.session_id)
    if command.ending.status == "completed" and not command.ending.final and owes_a_step(state, session):
        return Decision(value=AGAIN)
    letters, outputs = owed_letters(state, session)
    closing = close_turn(session, turn, judge_empty(state, session, command.ending))
    keys = (command.session_id, turn.opened.root_run_id)
    effects: tuple[Effect, ...] = tuple(Wake(session_id=key) for key in keys)
    return Decision(
        drafts=(*letters, *closing.drafts),
        effects=effects,
        outputs=tuple(outputs),
        value=closing.drafts[-1].fact,
    )


def decide_note(state: State, command: Note) -> Decision:
    """Record it in a session's log; of a session that left memory nobody is told any more."""
    if command.session_id not in state.sessions:
        return Decision()
    return Decision(drafts=(Draft(session_id=command.session_id, fact=command.fact),))


def decide_continue(state: State, command: Continue) -> Decision:
    """Admit the words into the open turn; they are shown at its next step."""
    _, turn = open_turn_of(state, command.session_id)
    fact = MessageUser(turn=turn.opened.turn, text=command.text, source="context")
    return Decision(drafts=(Draft(session_id=command.session_id, fact=fact),))
