"""What is done to whole trees: switch, policy while it lives, draining, deletion; it runs no body."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from retinue.core.decide.base import Ending
from retinue.core.decide.stops import PARENT_CANCELLED, CancelRuns, decide_cancel_runs, open_below
from retinue.core.decide.trees import (
    ChangePolicy,
    Delete,
    SetSwitch,
    decide_change_policy,
    decide_delete,
    decide_set_switch,
    decide_wake,
)
from retinue.core.errors import not_found
from retinue.core.ids import RunId, SessionId
from retinue.core.policy import Policy, with_changes
from retinue.runtime.journal import Journal
from retinue.runtime.mailbox import Mailboxes
from retinue.runtime.record import Record
from retinue.runtime.recovery import load_session
from retinue.runtime.scheduler import CANCELLED, EVERYWHERE, Scheduler
from retinue.runtime.supervisor import Supervisor

DELETED: Final = Ending(status="cancelled", reason="deleted", detail="Its session was deleted.", whole=True)


class Trees:
    """Acts on trees."""

    def __init__(
        self, journal: Journal, record: Record, supervisor: Supervisor, parts: tuple[Scheduler, Mailboxes]
    ) -> None:
        """Wire it."""
        self._journal = journal
        self._record = record
        self._supervisor = supervisor
        self._scheduler, self._mailboxes = parts

    def require_alive(self, session_id: SessionId) -> None:
        """Refuse a session that is being deleted (`not_found`)."""
        if session_id in self._scheduler.deleting:
            raise not_found("session", session_id)

    async def set_switch(self, on: bool) -> None:  # noqa: FBT001 - the switch itself
        """Set the master switch; off returns once every child has ended."""
        open_runs = [run.run_id for run in self._journal.state.runs.values() if run.is_open]
        await self._journal.submit(decide_set_switch, SetSwitch(on=on, stamp=self._journal.stamp()))
        if not on and open_runs:
            await self._scheduler.ended(open_runs)

    async def change_policy(self, root_id: SessionId, changes: Mapping[str, Any], *, in_code: bool) -> Policy:
        """Set switches of a tree in memory and return its policy."""
        if self._journal.state.sessions[root_id].header.parent_id is not None:
            raise not_found("session", root_id)
        new = with_changes(self._journal.state.policy(root_id), changes, in_code=in_code)
        command = ChangePolicy(root_id=root_id, changes={key: new[key] for key in changes}, stamp=self._journal.stamp())
        return (await self._journal.submit(decide_change_policy, command)).value

    async def drain(self, session_ids: Sequence[SessionId] | None = None, ending: Ending = CANCELLED) -> None:
        """End everything below these sessions, or below all, and return once it is quiet.

        Meanwhile nothing is admitted there.
        """
        scheduler = self._scheduler
        closing = (EVERYWHERE,) if session_ids is None else session_ids
        mine = [session_id for session_id in closing if session_id not in scheduler.draining]
        scheduler.draining.update(mine)
        try:
            await self._end(lambda: self._below(self._roots() if session_ids is None else session_ids, ending))
        finally:
            scheduler.draining.difference_update(mine)
            self._reopened()

    def _roots(self) -> list[SessionId]:
        sessions = self._journal.state.sessions.values()
        return [session.session_id for session in sessions if session.header.parent_id is None]

    def _reopened(self) -> None:
        """Letters that could start no turn meanwhile may now."""
        if self._journal.error is None and not self._supervisor.closing:
            self._journal.submit(decide_wake, None)

    async def release(self, parent_id: SessionId, session_ids: Sequence[SessionId]) -> None:
        """End selected direct children of a session and everything below them; one of another parent is refused."""
        session = self._journal.state.sessions.get(parent_id)
        for session_id in session_ids:
            kid = None if session is None else session.kids.get(session_id)
            if kid is None:
                latest = await self._scheduler.latest(session_id)
                if latest is None or latest.parent_id != parent_id:
                    raise not_found("child", session_id)
        scheduler = self._scheduler
        mine = [session_id for session_id in session_ids if session_id not in scheduler.leaving]
        scheduler.leaving.update(mine)
        try:
            await self._end(lambda: [*self._own(parent_id, session_ids), *self._below(session_ids, PARENT_CANCELLED)])
        finally:
            scheduler.leaving.difference_update(mine)
            self._reopened()

    async def forget_one_shot(self, session_id: SessionId) -> None:
        """Let a one-shot child go: under `life.one_shot_sessions=delete` its log goes, and what is below it ends."""
        latest = await self._scheduler.latest(session_id)
        if latest is None or latest.continuable:
            return
        state = self._journal.state
        if latest.root_id not in state.trees and not await load_session(self._journal, self._record, latest.root_id):
            return
        if state.policy(latest.root_id)["life.one_shot_sessions"] != "delete":
            return
        if await load_session(self._journal, self._record, session_id):
            await self.delete(session_id)

    async def _end(self, wanted: Callable[[], Sequence[tuple[RunId, Ending]]]) -> None:
        """End what is wanted and wait for it, until nothing more is: letters may have started something meanwhile."""
        state = self._journal.state
        while runs := wanted():
            # From the bottom up, so that each ends for its own reason and not for that of the one above it.
            for ending in reversed(dict.fromkeys(ending for _, ending in runs)):
                run_ids = tuple(run_id for run_id, why in runs if why == ending)
                command = CancelRuns(run_ids=run_ids, ending=ending, stamp=self._journal.stamp())
                self._journal.submit(decide_cancel_runs, command)
            parents = {state.runs[run_id].parent_id: None for run_id, _ in runs if run_id in state.runs}
            await self._mailboxes.until(
                tuple(parents), lambda now=runs: not any(self._scheduler.is_open(run_id) for run_id, _ in now)
            )

    def _own(self, parent_id: SessionId, session_ids: Sequence[SessionId]) -> list[tuple[RunId, Ending]]:
        """Return the open runs of some children of a session."""
        parent = self._journal.state.sessions.get(parent_id)
        kids = [] if parent is None else [parent.kids.get(session_id) for session_id in session_ids]
        return [(run_id, CANCELLED) for kid in kids if kid is not None for run_id in kid.open]

    def _below(self, session_ids: Sequence[SessionId], ending: Ending) -> list[tuple[RunId, Ending]]:
        """Return the open runs below some sessions, their own children first; what is deeper goes with its parent."""
        state = self._journal.state
        found = {run_id: state.runs[run_id] for session_id in session_ids for run_id in open_below(state, session_id)}
        deeper = ending if ending.whole else PARENT_CANCELLED
        tops = set(session_ids)
        endings = {run_id: ending if run.parent_id in tops else deeper for run_id, run in found.items()}
        return sorted(endings.items(), key=lambda item: found[item[0]].depth)

    async def delete(self, session_id: SessionId) -> tuple[SessionId, ...]:
        """Delete a session in memory with everything below it; return the ids, children first."""
        self.require_alive(session_id)
        header = self._journal.state.sessions[session_id].header
        self._scheduler.deleting.add(session_id)
        try:
            await self._stop_own(session_id, header.parent_id, DELETED)
            await self._end(lambda: self._below([session_id], DELETED))
            await self._journal.flushed()
            session_ids = await self._with_below(session_id)
            command = Delete(session_ids=session_ids, parent_id=header.parent_id)
            # What is idle left memory meanwhile, and the parent's log has to say what was deleted.
            await load_session(self._journal, self._record, session_id)
            await self._journal.submit(decide_delete, command)
        finally:
            self._scheduler.deleting.discard(session_id)
        return session_ids

    async def _stop_own(self, session_id: SessionId, parent_id: SessionId | None, ending: Ending) -> None:
        """Stop the session's own turn, or a child's runs, and return once it has none."""
        if parent_id is None:
            work = self._supervisor.works.get(session_id)
            if work is not None:
                self._supervisor.stop(session_id, ending)
                await work.done.wait()
            return
        parent = self._journal.state.sessions.get(parent_id)
        kid = None if parent is None else parent.kids.get(session_id)
        if kid is not None and kid.open:
            command = CancelRuns(run_ids=tuple(kid.open), ending=ending, stamp=self._journal.stamp())
            self._journal.submit(decide_cancel_runs, command)
            await self._mailboxes.until((parent_id,), lambda: not kid.open)

    async def _with_below(self, session_id: SessionId) -> tuple[SessionId, ...]:
        runs = await self._scheduler.children(session_id, descendants=True)
        below = dict.fromkeys(run.session_id for run in runs)
        return (*reversed(below), session_id)
