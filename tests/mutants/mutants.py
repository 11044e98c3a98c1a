"""The runtime with one deliberate bug each; every class breaks one rule and nothing else."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from retinue.core.decide.base import AGAIN, Decision, Ending
from retinue.core.decide.runs import Settle, decide_settle
from retinue.core.decide.steps import decide_open_step
from retinue.core.events import Event, RunSettled, RunStarted
from retinue.core.state import State
from retinue.runtime.journal import Journal
from retinue.runtime.kernel import Kernel, Parts
from retinue.runtime.recovery import recover
from retinue.runtime.supervisor import Supervisor
from retinue.runtime.work import Work


class _OfKernel(Kernel):
    """A kernel whose journal or supervisor is replaced by the broken one."""

    journal_class: type[Journal] = Journal
    supervisor_class: type[Supervisor] = Supervisor

    def __init__(self, parts: Parts, position: int) -> None:
        super().__init__(parts, position)
        self.journal.__class__ = self.journal_class
        self.supervisor.__class__ = self.supervisor_class


class _EarlyJournal(Journal):
    def _accept(self, decision: Decision) -> "asyncio.Future[Decision]":
        answer = super()._accept(decision)
        pending = self._queue[-1]
        self._release(pending)
        return answer


class NotifiesBeforeDurable(_OfKernel):
    """Effects and answers do not wait for the commit."""

    journal_class = _EarlyJournal


class _SplittingJournal(Journal):
    def submit(self, decide: Any, command: Any) -> "asyncio.Future[Decision]":
        if decide is not decide_settle or self.error is not None:
            return super().submit(decide, command)
        decision = decide(self.state, command)
        cut = [i for i, draft in enumerate(decision.drafts) if isinstance(draft.fact, RunSettled)]
        if not cut:
            return self._accept(decision)
        first = msgspec.structs.replace(decision, drafts=decision.drafts[: cut[0] + 1], effects=())
        rest = msgspec.structs.replace(decision, drafts=decision.drafts[cut[0] + 1 :])
        self._accept(first)
        return self._accept(rest)

    async def _write_group(self) -> None:
        later = list(self._queue)[1:]
        while len(self._queue) > 1:
            self._queue.pop()
        await super()._write_group()
        if self.error is None:
            self._queue.extendleft(reversed(later))


class TwoBatchesForOneSettlement(_OfKernel):
    """The settlement and its letter are not one commit."""

    journal_class = _SplittingJournal


class _ForgetfulJournal(Journal):
    def submit(self, decide: Any, command: Any) -> "asyncio.Future[Decision]":
        if decide is not decide_settle or self.error is not None:
            return super().submit(decide, command)

        def forgetting(state: State, command: Settle) -> Decision:
            decision = decide_settle(state, command)
            admitted = {d.fact.child_id for d in decision.drafts if isinstance(d.fact, RunStarted)}
            kept = tuple(
                d for d in decision.drafts if d.session_id not in admitted and not isinstance(d.fact, RunStarted)
            )
            return msgspec.structs.replace(decision, drafts=kept)

        return super().submit(forgetting, command)


class ForgetsToAdmit(_OfKernel):
    """A freed slot is given to nobody."""

    journal_class = _ForgetfulJournal


class _SettlingBody(Supervisor):
    async def _to_the_end(self, work: Work) -> None:
        # The task that a cancel reaches is the one that settles.
        work.body = asyncio.current_task()
        try:
            while True:
                ending: Ending = await self._body(work)
                decision = await self._close(work, ending)
                if decision.value is not AGAIN:
                    work.closed = decision.value
                    return
        except asyncio.CancelledError:
            return


class SettlesInsideTheBody(_OfKernel):
    """No task outlives a cancel to settle the run."""

    supervisor_class = _SettlingBody


class _ForgettingIdentity(Journal):
    def submit(self, decide: Any, command: Any) -> "asyncio.Future[Decision]":
        if decide is not decide_open_step or self.error is not None:
            return super().submit(decide, command)
        mail = dict(self.state.sessions[command.session_id].mail)
        answer = super().submit(decide, command)
        session = self.state.sessions.get(command.session_id)
        if session is not None:
            # The head forgets which letters were absorbed: they come again at the next boundary.
            session.mail.update(mail)
        return answer


class AbsorbsWithoutIdentity(_OfKernel):
    """A letter already in the context is injected again."""

    journal_class = _ForgettingIdentity


class RerunsAfterACrash(Kernel):
    """A start goes on with what a crash left open."""

    async def start(self) -> None:
        self._writer = self.supervisor.begin(self.journal.run_writer())
        rows = await self.record.open_sessions()
        events: list[Event] = []
        for row in rows:
            events.extend(await self.record.read(row.session_id))
        for event in sorted(events, key=lambda event: event.position):
            self.journal.load([event])
        running = [run.run_id for run in self.journal.state.runs.values() if run.status == "running"]
        for run_id in running:
            self.supervisor.start_run(run_id)
        if running:
            await asyncio.wait([asyncio.ensure_future(work.done.wait()) for work in self.supervisor.works.values()])
        self.recovered = await recover(self.journal, self.record)


MUTANTS: Sequence[type[Kernel]] = (
    NotifiesBeforeDurable,
    TwoBatchesForOneSettlement,
    ForgetsToAdmit,
    SettlesInsideTheBody,
    AbsorbsWithoutIdentity,
    RerunsAfterACrash,
)
