"""Decisions about single model requests: the step boundary, tokens set aside before, what came of it after.

Each request of a tree with a budget reserves before it is sent (CONTRACT section 8): estimated input and its output
limit. A report replaces the reservation.
"""

from typing import Any, Final

import msgspec

from retinue.core.budget import OVER, WAIT, Grant
from retinue.core.decide.absorb import absorb
from retinue.core.decide.base import Decision, Effect, Ending, Stamp, StopTurn, Wake, open_turn_of
from retinue.core.decide.stops import CancelRuns, decide_cancel_runs
from retinue.core.events import (
    BudgetExceeded,
    ContextCompacted,
    Draft,
    MessageAssistant,
    NotesAsked,
    RunResumed,
    RunWaiting,
    StepClosed,
    StepOpened,
    Value,
    WaitingFor,
)
from retinue.core.ids import Digest, RunId, SessionId, StepNo
from retinue.core.run import tokens_reported
from retinue.core.session import Session
from retinue.core.state import State

OVER_BUDGET: Final = Ending(
    status="cancelled", reason="budget", detail="The tokens of this root run are used up.", whole=True
)
FOR_TOKENS: Final = WaitingFor(kind="budget", what="tokens that requests of this tree have set aside")


class OpenStep(Value):
    """Cross a step boundary: letters in, then one model request.

    `fixed_tokens` estimates what the request carries besides its messages: system text and tools.
    """

    session_id: SessionId
    model: str
    prompt_digest: Digest
    tools_digest: Digest
    stamp: Stamp
    fixed_tokens: int = 0
    blobs: tuple[tuple[Digest, bytes], ...] = ()


class AskNotes(Value):
    """Set tokens aside for the request that compacts a history; `input_tokens` estimates what it reads."""

    session_id: SessionId
    input_tokens: int
    stamp: Stamp


class RecordStep(Value):
    """Put on record what a request brought: an answer and its end, or the notes of a compaction."""

    session_id: SessionId
    facts: tuple[MessageAssistant | StepClosed | ContextCompacted, ...]
    stamp: Stamp


class Wait:
    """The answer to a request that fits only when others of its tree are over: ask again then."""


class Over:
    """The answer to a request that no longer fits at all: its turn is being stopped."""


WAIT_FOR_TOKENS: Final = Wait()
NO_TOKENS: Final = Over()


def decide_open_step(state: State, command: OpenStep) -> Decision:
    """Absorb what waits and open the next step, its tokens set aside, in one commit.

    The value is the fact that opens it, or `WAIT_FOR_TOKENS`, or `NO_TOKENS` once the tree's budget is used up.
    """
    session, turn = open_turn_of(state, command.session_id)
    answer = _ask(state, session, session.next_request_tokens(command.fixed_tokens), command.stamp)
    if isinstance(answer, Decision):
        return answer
    number, step = turn.opened.turn, StepNo(turn.steps + 1)
    opened = StepOpened(
        turn=number,
        step=step,
        model=command.model,
        prompt_digest=command.prompt_digest,
        tools_digest=command.tools_digest,
        reserved=None if answer.grant is None else answer.grant.reserved,
        output_tokens_max=None if answer.grant is None else answer.grant.output_tokens_max,
    )
    facts = (*absorb(session, number, step), opened)
    drafts = tuple(Draft(session_id=command.session_id, fact=fact) for fact in facts)
    return Decision(drafts=(*answer.drafts, *drafts), effects=answer.effects, blobs=command.blobs, value=opened)


def decide_ask_notes(state: State, command: AskNotes) -> Decision:
    """Set tokens aside for notes; the value is the fact, null where no budget is set, or the answers of a step."""
    session, _ = open_turn_of(state, command.session_id)
    answer = _ask(state, session, command.input_tokens, command.stamp)
    if isinstance(answer, Decision):
        return answer
    if answer.grant is None:
        return Decision(drafts=answer.drafts, effects=answer.effects)
    fact = NotesAsked(reserved=answer.grant.reserved, output_tokens_max=answer.grant.output_tokens_max)
    draft = Draft(session_id=command.session_id, fact=fact)
    return Decision(drafts=(*answer.drafts, draft), effects=answer.effects, value=fact)


class _Answer(msgspec.Struct, frozen=True):
    """A request that may be sent; null `grant` where nothing is counted."""

    grant: Grant | None
    drafts: tuple[Draft, ...] = ()
    effects: tuple[Effect, ...] = ()


def _ask(state: State, session: Session, input_tokens: int, stamp: Stamp) -> _Answer | Decision:
    limit = limit_of(state, session)
    if limit is None or session.turn is None:
        return _resumed(state, session, _Answer(None), stamp)
    tree = state.trees[session.header.root_id]
    ledger = tree.ledger(session.turn.opened.root_run_id)
    output_max = tree.policy.number("budget.output_tokens_max")
    goes_on = tree.policy["budget.on_exceed"] != "cancel"
    beyond = Grant(reserved=input_tokens + (output_max or 0), output_tokens_max=output_max)
    if ledger.exceeded:
        # What is being stopped asks for nothing more, however little it is.
        return _resumed(state, session, _Answer(beyond), stamp) if goes_on else Decision(value=NO_TOKENS)
    found = ledger.ask(limit, input_tokens=input_tokens, output_max=output_max)
    if found == WAIT:
        return Decision(drafts=_waits(state, session, stamp), value=WAIT_FOR_TOKENS)
    if found == OVER:
        over = exceed(state, session, stamp)
        if not goes_on:
            return msgspec.structs.replace(over, value=NO_TOKENS)
        answer = _Answer(beyond, drafts=over.drafts, effects=over.effects)
        return _resumed(state, session, answer, stamp)
    return _resumed(state, session, _Answer(found), stamp)


def limit_of(state: State, session: Session) -> int | None:
    """Return the tokens that the session's root run may use; null where its requests are not counted."""
    policy = state.policy(session.header.root_id)
    if session.header.parent_id is None and not policy["budget.include_root"]:
        return None
    return policy.number("budget.tree_tokens_max")


def _waits(state: State, session: Session, stamp: Stamp) -> tuple[Draft, ...]:
    """Return the fact that a run waits for tokens, once; it keeps its slot."""
    run_id = session.turn.opened.run_id if session.turn is not None else None
    run = None if run_id is None else state.runs.get(run_id)
    if run is None or run.waiting_for is not None:
        return ()
    fact = RunWaiting(run_id=run.run_id, child_id=run.session_id, waiting_for=FOR_TOKENS, clock_s=stamp.clock_s)
    return (Draft(session_id=run.parent_id, fact=fact),)


def _resumed(state: State, session: Session, answer: _Answer, stamp: Stamp) -> _Answer:
    run_id = session.turn.opened.run_id if session.turn is not None else None
    run = None if run_id is None else state.runs.get(run_id)
    if run is None or run.waiting_for is None or run.waiting_for.kind != "budget":
        return answer
    fact = RunResumed(run_id=run.run_id, child_id=run.session_id, clock_s=stamp.clock_s)
    return msgspec.structs.replace(answer, drafts=(*answer.drafts, Draft(session_id=run.parent_id, fact=fact)))


def exceed(state: State, session: Session, stamp: Stamp) -> Decision:
    """Return what a used-up budget means: one event, and under `cancel` the end of all that is open in the root run."""
    if session.turn is None:
        return Decision()
    root_id, root_run_id = session.header.root_id, session.turn.opened.root_run_id
    tree = state.trees[root_id]
    ledger = tree.ledger(root_run_id)
    drafts: list[Draft] = []
    if not ledger.exceeded:
        limit = tree.policy.number("budget.tree_tokens_max") or 0
        fact = BudgetExceeded(root_run_id=root_run_id, limit=limit, spent=ledger.spent, reserved=ledger.reserved)
        drafts.append(Draft(session_id=root_id, fact=fact))
    effects: list[Effect] = [Wake(session_id=root_run_id)]
    if tree.policy["budget.on_exceed"] == "cancel":
        stopped = decide_cancel_runs(
            state, CancelRuns(run_ids=_open_in(state, root_id, root_run_id), ending=OVER_BUDGET, stamp=stamp)
        )
        root = state.sessions[root_id]
        own_turn = root.turn is not None and root.turn.opened.root_run_id == root_run_id
        if own_turn and tree.policy["budget.include_root"]:
            effects.append(StopTurn(session_id=root_id, ending=OVER_BUDGET))
        return msgspec.structs.replace(stopped, drafts=(*drafts, *stopped.drafts), effects=(*effects, *stopped.effects))
    return Decision(drafts=tuple(drafts), effects=tuple(effects))


def _open_in(state: State, root_id: SessionId, root_run_id: RunId) -> tuple[RunId, ...]:
    """Return a root run's open runs."""
    runs = (run for run in state.runs.values() if run.is_open and run.root_id == root_id)
    return tuple(run.run_id for run in runs if run.root_run_id == root_run_id)


def decide_record_step(state: State, command: RecordStep) -> Decision:
    """Put a request's end on record; a report that uses the budget up says so in the same commit."""
    session, turn = open_turn_of(state, command.session_id)
    drafts = tuple(Draft(session_id=command.session_id, fact=fact) for fact in command.facts)
    limit = limit_of(state, session)
    if limit is None:
        return Decision(drafts=drafts)
    ledger = state.trees[session.header.root_id].ledger(turn.opened.root_run_id)
    spent = ledger.spent + sum(_spends(fact, ledger.open.get(command.session_id, 0)) for fact in command.facts)
    if spent < limit or ledger.exceeded:
        return Decision(drafts=drafts, effects=(Wake(session_id=turn.opened.root_run_id),))
    over = exceed(state, session, command.stamp)
    reserved = ledger.reserved - ledger.open.get(command.session_id, 0)
    return msgspec.structs.replace(over, drafts=(*drafts, *_with_spent(over.drafts, spent, reserved)))


def _spends(fact: MessageAssistant | StepClosed | ContextCompacted, reserved: int) -> int:
    if isinstance(fact, MessageAssistant):
        return 0
    reported = tokens_reported(fact)
    return reserved if reported is None else reported


def _with_spent(drafts: tuple[Draft, ...], spent: int, reserved: int) -> tuple[Draft, ...]:
    """Return the facts with the sums as they are once the report in the same commit counts."""
    changed: list[Draft] = []
    for draft in drafts:
        fact: Any = draft.fact
        if isinstance(fact, BudgetExceeded):
            fact = msgspec.structs.replace(fact, spent=spent, reserved=reserved)
        changed.append(Draft(session_id=draft.session_id, fact=fact))
    return tuple(changed)
