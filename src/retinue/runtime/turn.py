"""The turn loop, one for roots and children: steps until the model stops and nothing is owed; it settles nothing."""

import asyncio
from collections.abc import Callable
from typing import Final

from retinue.core.decide.base import Ending, owes_a_step, uncollected
from retinue.core.decide.letters import HandOver, decide_hand_over
from retinue.core.decide.turns import Continue, Note, decide_continue, decide_note
from retinue.core.events import MessageUser, Warned
from retinue.core.mailbox import ends_hold
from retinue.core.session import Session
from retinue.core.state import State
from retinue.ports import Executor
from retinue.runtime.compaction import Compactor
from retinue.runtime.hooks import DENIALS_MAX, Hooks
from retinue.runtime.journal import Journal
from retinue.runtime.mailbox import Mailboxes
from retinue.runtime.outputs import mismatch
from retinue.runtime.scheduler import Scheduler
from retinue.runtime.step import StepRunner
from retinue.runtime.toolcalls import IN_A_ROW_MAX, ToolCalls
from retinue.runtime.work import Work

GATHER_S: Final = 0.05
"""Seconds that a hold waits for more results after one (CONTRACT section 4, Turn end)."""
GATHER_CHILD_S: Final = 0.002
"""Seconds more for each child still open: about what the processor needs for one that runs beside the others."""
GATHER_MAX_S: Final = 0.5
"""Seconds after the first result at which it waits no longer, however close upon each other they come."""
NUDGE: Final = "You ended your message with a tool call, but none arrived. Call the tool, or answer without one."
GO_ON: Final = "You are not done yet; a hook does not let you stop:"
ROOT_STEPS_MAX: Final = 250
"""Steps of a root's turn (CONTRACT section 3)."""


class TurnLoop:
    """Runs turns."""

    def __init__(
        self,
        journal: Journal,
        scheduler: Scheduler,
        mailboxes: Mailboxes,
        compactor: Compactor,
        parts: tuple[StepRunner, ToolCalls, Executor, Hooks],
    ) -> None:
        """Wire it."""
        self._compactor = compactor
        self._journal = journal
        self._scheduler = scheduler
        self._mailboxes = mailboxes
        self._steps, self._calls, self._executor, self._hooks = parts

    async def run(self, work: Work) -> Ending:
        """Return how the turn ended; it can be called again on a turn that turned out to owe another step."""
        session = self._journal.state.sessions[work.session_id]
        step_owed = session.turn is not None and session.turn.steps == 0
        denied = await self._denied(session) if step_owed else None
        if denied is not None:
            return denied
        while step_owed or await self._hold(work, session) or await self._must_go_on(work, session):
            last = self._steps_used_up(work, session)
            if last:
                await self._wait_for_all(work, session)
            await self._scheduler.slot(work)
            await self._compactor.keep_within(work, session)
            said = await self._steps.run(work, with_tools=not last)
            if said.ending is not None:
                return said.ending
            if last:
                done = Ending(status="completed", reason="done", detail="Done, within its last step.", final=True)
                return await self._checked(session, done)
            step_owed = bool(said.calls) or said.promised
            if said.promised:
                self._journal.append(work.session_id, [_nudge(session)])
            if said.calls:
                await self._calls.run(work, said.calls)
            ending = _guarded(session) if step_owed else None
            if ending is not None:
                return ending
            if step_owed and self._steps_used_up(work, session):
                return self._step_limit(work)
        return await self._checked(session, Ending(status="completed", reason="done", detail="Done."))

    async def _denied(self, session: Session) -> Ending | None:
        """Ask the hooks before a turn's first step; return the end of a turn that they deny."""
        if session.turn is None or not self._hooks.wants("agent.turn.before"):
            return None
        opened = session.turn.opened
        texts = [fact.text for fact in session.waiting_input]
        data = {"turn": opened.turn, "cause": opened.cause, "run_id": opened.run_id, "texts": texts}
        reason = await self._hooks.denied("agent.turn.before", session, data)
        if reason is None:
            return None
        return Ending(status="failed", reason="hook_denied", detail=f"A hook denied the turn: {reason}", final=True)

    async def _must_go_on(self, work: Work, session: Session) -> bool:
        """The model stopped and nothing is owed: return whether a stop hook wants another step, a few times in a row.

        One that fails lets the turn end, and so does the last step (CONTRACT section 7).
        """
        if session.turn is None or not self._hooks.wants("agent.turn.stop") or self._steps_used_up(work, session):
            return False
        if work.denials >= DENIALS_MAX:
            return False
        data = {"turn": session.turn.opened.turn, "text": session.turn.last_text, "denials": work.denials}
        reason = await self._hooks.denied("agent.turn.stop", session, data)
        if reason is None:
            work.denials = 0
            return False
        work.denials += 1
        if work.denials == DENIALS_MAX:
            text = f"Stop hooks kept the turn from ending {DENIALS_MAX} times in a row; they are not asked again."
            note = Note(session_id=work.session_id, fact=Warned(code="stop_hooks", text=text))
            self._journal.submit(decide_note, note)
        go_on = Continue(session_id=work.session_id, text=f"{GO_ON} {reason}")
        await self._journal.submit(decide_continue, go_on)
        return True

    async def _checked(self, session: Session, ending: Ending) -> Ending:
        """Return the ending of a turn, `failed/output_schema` where its text does not match the schema asked for."""
        schema = session.header.output_schema
        owed = not ending.final and owes_a_step(self._journal.state, session)
        if schema is None or session.turn is None or owed:
            return ending
        problem = await self._executor.run(mismatch, schema, session.turn.last_text)
        return ending if problem is None else Ending(status="failed", reason="output_schema", detail=problem)

    def _step_limit(self, work: Work) -> Ending:
        limit = self._steps_max(work)
        return Ending(status="failed", reason="step_limit", detail=f"It used its {limit} steps and still called tools.")

    def _steps_max(self, work: Work) -> int | None:
        run = None if work.run_id is None else self._journal.state.runs.get(work.run_id)
        if run is not None:
            return run.spec.max_steps
        definition = self._journal.state.sessions[work.session_id].header.definition
        own = None if definition is None else definition.max_steps
        return min(ROOT_STEPS_MAX, own or ROOT_STEPS_MAX)

    def _steps_used_up(self, work: Work, session: Session) -> bool:
        limit = self._steps_max(work)
        return limit is not None and session.turn is not None and session.turn.steps >= limit

    async def _hold(self, work: Work, session: Session) -> bool:
        """The model stopped: wait while children are open; return whether a step is owed now."""
        state = self._journal.state
        if not owes_a_step(state, session):
            return False
        policy = state.policy(work.root_id)
        pulls = policy["result.delivery"] == "pull"
        if not _reason_for_a_step(state, session):
            async with self._scheduler.waiting(work):
                await self._mailboxes.until(
                    (work.session_id,), lambda: _reason_for_a_step(state, session) or not owes_a_step(state, session)
                )
                if not pulls and not session.waiting_input:
                    await self._gather(work, session)
        if pulls and policy["result.turn_end"] == "hold_open" and not session.awaits_children:
            await self._journal.submit(decide_hand_over, HandOver(session_id=work.session_id))
        return owes_a_step(state, session)

    async def _gather(self, work: Work, session: Session) -> None:
        """Let results that come close upon each other go into one step: every step is a whole request."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + GATHER_MAX_S
        more = True
        while more and session.awaits_children and not session.waiting_input and loop.time() < ends_at:
            patience_s = GATHER_S + GATHER_CHILD_S * len(session.open_runs)
            more = await self._mailboxes.until((work.session_id,), _has_changed(session), patience_s)

    async def _wait_for_all(self, work: Work, session: Session) -> None:
        holds = self._journal.state.policy(work.root_id)["result.turn_end"] == "hold_open"
        if holds and session.awaits_children:
            async with self._scheduler.waiting(work):
                await self._mailboxes.until((work.session_id,), lambda: not session.awaits_children)
        if holds:
            await self._journal.submit(decide_hand_over, HandOver(session_id=work.session_id))


def _has_changed(session: Session) -> Callable[[], bool]:
    """Return whether anything came since now: a letter, a person's word, or the end of the last child."""
    letters = len(session.mail)
    return lambda: len(session.mail) > letters or bool(session.waiting_input) or not session.awaits_children


def _nudge(session: Session) -> MessageUser:
    return MessageUser(turn=session.turns, text=NUDGE, source="context")


def _guarded(session: Session) -> Ending | None:
    """Return the end of a turn that calls the same thing for ever, or nothing usable (CONTRACT section 4)."""
    turn = session.turn
    if turn is None:
        return None
    if max(turn.repeats.values(), default=0) >= IN_A_ROW_MAX:
        detail = f"It made the same call with the same arguments {IN_A_ROW_MAX} times in a row."
        return Ending(status="failed", reason="bad_tool_calls", detail=detail)
    if turn.unusable >= IN_A_ROW_MAX:
        detail = f"It made unusable tool calls only, {turn.unusable} times in a row."
        return Ending(status="failed", reason="bad_tool_calls", detail=detail)
    return None


def _reason_for_a_step(state: State, session: Session) -> bool:
    if session.waiting_input or ends_hold(session.mail, runs_open=session.awaits_children):
        return True
    pulls = state.policy(session.header.root_id)["result.delivery"] == "pull"
    return pulls and not session.awaits_children and uncollected(state, session)
