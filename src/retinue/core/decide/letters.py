"""Decisions about what one session sends another: messages, reports, results handed over, turns that letters start."""

from typing import Final

import msgspec

from retinue.core.decide.absorb import absorb
from retinue.core.decide.base import (
    Decision,
    Effect,
    Stamp,
    StartTurn,
    Wake,
    arrival,
    open_session,
    open_turn_of,
    owed_letters,
)
from retinue.core.decide.runs import accepted, next_run, require_delegation
from retinue.core.errors import RetinueError, not_found
from retinue.core.events import AnyFact, Draft, LetterKind, LetterQueued, StoredOutput, TurnOpened, Value
from retinue.core.ids import CallId, LetterId, OutputId, RunId, SessionId, StepNo, TurnNo
from retinue.core.mailbox import frame
from retinue.core.run import Run
from retinue.core.session import Kid, Session
from retinue.core.state import State
from retinue.core.text import fit_tokens

SPAWN_ANEW: Final = "Spawn a new child with what is known now."


class Send(Value):
    """A message to another session of the tree; `sender_id` null is the person, who acts for the direct parent.

    `last` is any run of the target, null for a root. The ids are fresh ones.
    """

    target_id: SessionId
    sender_id: SessionId | None
    text: str
    last: Run | None
    run_id: RunId
    root_run_id: RunId
    letter_id: LetterId
    stamp: Stamp
    call_id: CallId | None = None


class Report(Value):
    """What a child tells its direct parent before it ends; a quiet one (`waking` false) starts nothing."""

    child_id: SessionId
    text: str
    waking: bool
    letter_id: LetterId


class HandOver(Value):
    """Hand the results that nobody collected to the model of a turn that would end (delivery `pull`)."""

    session_id: SessionId


class Rouse(Value):
    """Open the turn that letters start; `last` is any run of a session that is a child. The id is a fresh one."""

    session_id: SessionId
    last: Run | None
    run_id: RunId
    stamp: Stamp


def decide_send(state: State, command: Send) -> Decision:
    """Accept a message: a letter for an open turn or an idle root, else the child's next run. The value says which.

    Its value is the `Run` that was queued, or the `LetterQueued`. Refuses `not_found`, `not_continuable`,
    `cap_rounds`, `cap_messages`, `switched_off`, `budget_exceeded`, `cap_running`.
    """
    last = command.last
    if last is None:
        return _to_root(state, command)
    scope = state.policy(last.root_id)["life.message_scope"]
    if scope != "tree" and command.sender_id not in (None, last.parent_id):
        raise not_found("child", command.target_id)
    target = state.sessions.get(command.target_id)
    if scope == "tree" and target is not None and target.turn is not None:
        return _letter(state, target, command)
    return _instruct(state, last, command)


def _to_root(state: State, command: Send) -> Decision:
    root = open_session(state, command.target_id)
    if state.policy(root.header.root_id)["life.message_scope"] != "tree":
        raise not_found("child", command.target_id)
    return _letter(state, root, command)


def require_on(state: State) -> None:
    """Refuse messages while the master switch is off."""
    if not state.switch_on:
        raise RetinueError(
            "switched_off", "Delegation is switched off: messages to agents are refused.", "Do the task yourself."
        )


def _letter(state: State, target: Session, command: Send) -> Decision:
    require_on(state)
    sender = command.sender_id or target.header.parent_id or target.session_id
    root_run_id = _sender_root_run(state, command)
    made = _Made("message", (sender, target.session_id), command.text, command.letter_id)
    return _sent(state, made, root_run_id)


class _Made(msgspec.Struct, frozen=True):
    """A letter that is not a result: its kind, from whom to whom, its whole text, its id."""

    kind: LetterKind
    way: tuple[SessionId, SessionId]
    text: str
    letter_id: LetterId


def _sent(
    state: State, made: _Made, root_run_id: RunId, *, run_id: RunId | None = None, waking: bool = True
) -> Decision:
    """Return a letter's arrival; of a text that is too long the receiver can read the whole."""
    sender, receiver = made.way
    tokens_max = state.policy(state.sessions[receiver].header.root_id).number("result.notice_max_tokens")
    shown, cut = fit_tokens(made.text, tokens_max)
    output_id = OutputId("o_l" + made.letter_id[2:]) if cut else None
    if cut:
        shown = f'{shown}\n\nThe whole text: read_agent_output with id "{output_id}".'
    letter = LetterQueued(
        letter_id=made.letter_id,
        kind=made.kind,
        sender_id=sender,
        receiver_id=receiver,
        run_id=run_id,
        text=frame(made.kind, receiver, sender, shown),
        cut=cut,
        output_id=output_id,
        waking=waking,
        root_run_id=root_run_id,
    )
    outputs = () if output_id is None else (StoredOutput(output_id=output_id, session_id=receiver, text=made.text),)
    effects: tuple[Effect, ...] = (Wake(session_id=receiver),)
    return Decision(drafts=tuple(arrival(state, letter)), effects=effects, outputs=outputs, value=letter)


def _sender_root_run(state: State, command: Send) -> RunId:
    """Return the root run a message belongs to: that of the sender, where the person's messages are the parent's."""
    sender_id = command.sender_id or (None if command.last is None else command.last.parent_id)
    sender = None if sender_id is None else state.sessions.get(sender_id)
    return command.root_run_id if sender is None else sender.root_run(command.root_run_id)


def _instruct(state: State, last: Run, command: Send) -> Decision:
    """Queue the next run of a child."""
    parent = open_session(state, last.parent_id)
    kid = parent.kids[last.session_id]
    root_run_id = _sender_root_run(state, command)
    require_delegation(state, parent, root_run_id)
    _require_continuable(state, last, kid, root_run_id)
    _require_room(state, last, kid)
    spec = msgspec.structs.replace(
        last.spec,
        prompt=command.text,
        delivery="letter",
        cause="message",
        sender_id=command.sender_id,
        round=kid.rounds + 1,
        seed=last.spec.seed if kid.started == 0 else (),
        seed_seq=last.spec.seed_seq if kid.started == 0 else None,
    )
    run = next_run(state, last, spec, (command.run_id, root_run_id), command.stamp)
    run = msgspec.structs.replace(run, call_id=command.call_id)
    parked = [state.runs[run_id] for run_id in kid.open if run_id in parent.parked]
    return accepted(state, run, command.stamp, back=parked)


def _require_continuable(state: State, last: Run, kid: Kid, root_run_id: RunId) -> None:
    rule = state.policy(last.root_id)["life.continuation"]
    if kid.deleted or not last.continuable or rule == "none":
        status = "takes no further message" if last.is_open or kid.open else f"has ended ({last.status})"
        raise RetinueError("not_continuable", f"The child {last.session_id} is one-shot and {status}.", SPAWN_ANEW)
    if rule == "in_turn" and last.root_run_id != root_run_id:
        raise RetinueError(
            "not_continuable",
            f"The child {last.session_id} belongs to an earlier turn and has ended ({last.status}).",
            SPAWN_ANEW,
        )


def _require_room(state: State, last: Run, kid: Kid) -> None:
    policy = state.policy(last.root_id)
    rounds = policy.number("life.rounds_max")
    if rounds is not None and kid.rounds >= rounds:
        raise RetinueError(
            "cap_rounds",
            f"The child {last.session_id} has had {kid.rounds} instructions and life.rounds_max is {rounds}.",
            SPAWN_ANEW,
        )
    queued = policy.number("life.queued_messages_max")
    queued_runs = [state.runs[run_id] for run_id in kid.open if state.runs[run_id].status == "queued"]
    waiting = sum(run.spec.cause == "message" for run in queued_runs)
    if queued is not None and waiting >= queued:
        raise RetinueError(
            "cap_messages",
            f"{waiting} messages wait for the child {last.session_id} and life.queued_messages_max is {queued}.",
            "Wait until it has worked on some of them.",
        )


def decide_report(state: State, command: Report) -> Decision:
    """Send a child's report to its direct parent, ahead of the child's own result. The value is the letter."""
    child, turn = open_turn_of(state, command.child_id)
    parent = state.parent_of(child)
    if parent is None:
        raise RetinueError("invalid", "A main session has no parent to report to.", "Answer with text.")
    if not state.policy(child.header.root_id)["life.report"]:
        raise RetinueError("denied", "Reports are off here (life.report).", "Put it into your last message.")
    made = _Made("report", (child.session_id, parent.session_id), command.text, command.letter_id)
    opened = turn.opened
    return _sent(state, made, opened.root_run_id, run_id=opened.run_id, waking=command.waking)


def decide_hand_over(state: State, command: HandOver) -> Decision:
    """Queue letters for the results that nobody collected; the step that follows absorbs them."""
    session = open_session(state, command.session_id)
    letters, outputs = owed_letters(state, session, hand_over=True)
    return Decision(drafts=tuple(letters), outputs=tuple(outputs))


def decide_rouse(state: State, command: Rouse) -> Decision:
    """Open one turn for the letters that found a session idle; the turn belongs to the root run of the oldest."""
    session = state.sessions.get(command.session_id)
    if session is None or not state.rouses(session):
        return Decision()
    root_run_id = next(iter(session.rousing.values())).root_run_id or command.run_id
    if command.last is not None:
        return _rouse_child(state, session, command.last, (command.run_id, root_run_id), command.stamp)
    turn = TurnNo(session.turns + 1)
    opened = TurnOpened(turn=turn, root_run_id=root_run_id, cause="letter")
    facts: list[AnyFact] = [opened, *absorb(session, turn, StepNo(1))]
    drafts = tuple(Draft(session_id=session.session_id, fact=fact) for fact in facts)
    return Decision(drafts=drafts, effects=(StartTurn(session_id=session.session_id),), value=turn)


def _rouse_child(state: State, session: Session, last: Run, ids: tuple[RunId, RunId], stamp: Stamp) -> Decision:
    parent = state.sessions[last.parent_id]
    spec = msgspec.structs.replace(
        last.spec,
        prompt="",
        delivery="letter",
        cause="letter",
        sender_id=None,
        round=parent.kids[session.session_id].rounds,
        seed=(),
        seed_seq=None,
    )
    return accepted(state, next_run(state, last, spec, ids, stamp), stamp, patient=True)
