"""The runtime with one deliberate bug each in what part of delegation decides; every class breaks one rule."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

from retinue.core.budget import Grant, Ledger
from retinue.core.decide.base import Decision, Ending, StopRun
from retinue.core.decide.letters import decide_send
from retinue.core.decide.runs import decide_settle, decide_spawn
from retinue.core.decide.steps import decide_open_step
from retinue.core.decide.stops import decide_cancel_children
from retinue.core.decide.trees import decide_set_switch
from retinue.core.events import AnyFact, LetterQueued, RunQueued, RunWaiting
from retinue.core.policy import Policy, with_stored
from retinue.core.session import Session
from retinue.core.state import State
from retinue.runtime.journal import Journal
from retinue.runtime.kernel import Kernel, Parts
from retinue.runtime.supervisor import Supervisor
from retinue.runtime.work import Work

Change = Callable[[State, Any, Any, Decision], Decision]


class _ChangingJournal(Journal):
    """Changes the decisions of some commands before they are accepted."""

    changes: ClassVar[dict[Any, Change]] = {}

    def submit(self, decide: Any, command: Any) -> "asyncio.Future[Decision]":
        change = self.changes.get(decide)
        if change is None or self.error is not None:
            return super().submit(decide, command)
        return super().submit(lambda state, asked: change(state, decide, asked, decide(state, asked)), command)


class _Changed(Kernel):
    changes: ClassVar[dict[Any, Change]] = {}

    def __init__(self, parts: Parts, position: int) -> None:
        super().__init__(parts, position)
        self.journal.__class__ = type("Changing", (_ChangingJournal,), {"changes": self.changes})


def _facts(decision: Decision, change: Callable[[AnyFact], AnyFact | None]) -> Decision:
    drafts = []
    for draft in decision.drafts:
        fact = change(draft.fact)
        if fact is not None:
            drafts.append(msgspec.structs.replace(draft, fact=fact))
    return msgspec.structs.replace(decision, drafts=tuple(drafts))


def _unparked(state: State, decide: Any, command: Any, decision: Decision) -> Decision:
    return _facts(
        decision, lambda fact: None if isinstance(fact, RunWaiting) and fact.waiting_for.kind == "parked" else fact
    )


class KeepsMessagesInLineAfterAnInterrupt(_Changed):
    """An interrupt sets the messages behind it not aside."""

    changes: ClassVar = {decide_settle: _unparked}


def _wider(state: State, decide: Any, command: Any, decision: Decision) -> Decision:
    def widen(fact: AnyFact) -> AnyFact:
        if not isinstance(fact, RunQueued):
            return fact
        rights = msgspec.structs.replace(fact.spec.rights, tools=None, max_depth=None)
        return msgspec.structs.replace(fact, spec=msgspec.structs.replace(fact.spec, rights=rights))

    return _facts(decision, widen)


class ForgetsRightsInAFollowUp(_Changed):
    """A message to a child comes with its role's rights as they might be today."""

    changes: ClassVar = {decide_send: _wider}


class ForgetsTheParentsDepth(_Changed):
    """A child gets no cap on depth, whatever its parent has."""

    changes: ClassVar = {decide_spawn: _wider}


class _BlindLedger(Ledger):
    def ask(self, limit: int | None, *, input_tokens: int, output_max: int | None, output_min: int = 256) -> Any:
        return Grant(reserved=input_tokens + (output_max or 0), output_tokens_max=output_max)


def _blind(state: State, decide: Any, command: Any, decision: Decision) -> Decision:
    for tree in state.trees.values():
        for ledger in tree.ledgers.values():
            ledger.__class__ = _BlindLedger
    return decision


class ChecksTheBudgetAfterTheRequest(_Changed):
    """Nothing is refused before it is sent."""

    changes: ClassVar = {decide_open_step: _blind}


class _ForgettingLedger(Ledger):
    def mark_exceeded(self) -> None:
        pass


def _forgetting(state: State, decide: Any, command: Any, decision: Decision) -> Decision:
    for tree in state.trees.values():
        for ledger in tree.ledgers.values():
            ledger.__class__ = _ForgettingLedger
    return decision


class SaysTwiceThatTheBudgetIsUsedUp(_Changed):
    """The event comes again with each request that no longer fits, and spawns go on."""

    changes: ClassVar = {decide_open_step: _forgetting}


def _nobody(state: State, decide: Any, command: Any, decision: Decision) -> Decision:
    stops = tuple(effect for effect in decision.effects if not isinstance(effect, StopRun))
    return Decision(effects=stops)


class _Careless(Supervisor):
    async def _end_children(self, work: Work, ending: Ending) -> None:
        pass


class LeavesChildrenBehind(_Changed):
    """A turn that is stopped takes nobody along, and waits for nobody."""

    changes: ClassVar = {decide_cancel_children: _nobody}

    def __init__(self, parts: Parts, position: int) -> None:
        super().__init__(parts, position)
        self.supervisor.__class__ = _Careless


def _awake(state: State, decide: Any, command: Any, decision: Decision) -> Decision:
    return _facts(
        decision,
        lambda fact: msgspec.structs.replace(fact, waking=True) if isinstance(fact, LetterQueued) else fact,
    )


class WakesForWhatThePersonStopped(_Changed):
    """Results of children that were cancelled with their turn start turns."""

    changes: ClassVar = {decide_settle: _awake, decide_cancel_children: _awake}


class _TirelessState(State):
    def rouses(self, session: Session) -> bool:
        tree = self.trees[session.header.root_id]
        policy, tree.policy = tree.policy, with_stored(tree.policy, {"result.auto_turns_max": None})
        try:
            return super().rouses(session)
        finally:
            tree.policy = policy


class StartsTurnsForEver(Kernel):
    """Letters start turns beyond `result.auto_turns_max`."""

    def __init__(self, parts: Parts, position: int) -> None:
        super().__init__(parts, position)
        self.journal.state.__class__ = _TirelessState


def _left_on(state: State, decide: Any, command: Any, decision: Decision) -> Decision:
    return msgspec.structs.replace(decision, switch=True)


class SwitchesOffInNameOnly(_Changed):
    """The switch ends the children there are and lets new ones in."""

    changes: ClassVar = {decide_set_switch: _left_on}


class _PushingPolicy(Policy):
    def __getitem__(self, key: str) -> Any:
        return "push" if key == "result.delivery" else super().__getitem__(key)


def _pushing(state: State, decide: Any, command: Any, decision: Decision) -> Decision:
    for tree in state.trees.values():
        tree.policy = _PushingPolicy(name=tree.policy.name, changes=tree.policy.changes)
    return decide(state, command)


class SendsLettersUnderPull(_Changed):
    """A settlement is sent although results are to be fetched."""

    changes: ClassVar = {decide_spawn: _pushing}


DELEGATION_MUTANTS: Sequence[type[Kernel]] = (
    KeepsMessagesInLineAfterAnInterrupt,
    ForgetsRightsInAFollowUp,
    ForgetsTheParentsDepth,
    ChecksTheBudgetAfterTheRequest,
    SaysTwiceThatTheBudgetIsUsedUp,
    LeavesChildrenBehind,
    WakesForWhatThePersonStopped,
    StartsTurnsForEver,
    SwitchesOffInNameOnly,
    SendsLettersUnderPull,
)
"""Each deliberate bug is caught by the seeded worlds; the build fails when one is no longer."""
