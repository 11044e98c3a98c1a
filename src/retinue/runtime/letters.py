"""Messages, reports and the turns that letters start, for every door; it decides nothing and holds no letter."""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from retinue.core.decide.letters import Report, Rouse, Send, decide_report, decide_rouse, decide_send
from retinue.core.errors import RetinueError, not_found
from retinue.core.events import LetterQueued
from retinue.core.ids import CallId, LetterId, RunId, SessionId
from retinue.core.run import Run
from retinue.ports import Ids
from retinue.runtime.delegate import PROMPT_MAX_CHARS, require_storable
from retinue.runtime.journal import Journal
from retinue.runtime.scheduler import Scheduler
from retinue.runtime.supervisor import Supervisor

Load = Callable[[SessionId], Awaitable[None]]


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a message: the child's next run, or a letter that the session's turn absorbs."""

    run: Run | None
    letter_id: LetterId | None


class Letters:
    """Sends."""

    def __init__(self, journal: Journal, scheduler: Scheduler, supervisor: Supervisor, ids: Ids, load: Load) -> None:
        """Wire it; `load` has a session and its ancestors in memory, or raises `not_found`."""
        self._journal = journal
        self._scheduler = scheduler
        self._supervisor = supervisor
        self._ids = ids
        self._load = load
        self._rousing: Final[set[SessionId]] = set()

    async def send(
        self,
        name: str,
        text: str,
        *,
        sender: SessionId | None,
        within: RunId | None = None,
        call_id: CallId | None = None,
    ) -> Sent:
        """Send a message to a session, named by its id or by that of one of its runs; return once it is durable.

        `sender` null is the person, who acts for the direct parent. With `within`, only children of that root run
        exist. `call_id` is the tool call that sends it. Raises `not_found`, `not_continuable`,
        `cap_rounds`, `cap_messages`, `cap_running`, `switched_off`, `budget_exceeded`, `stopping`, `invalid`.
        """
        require_text(text)
        last = await self._target(name)
        session_id = SessionId(name) if last is None else last.session_id
        if within is not None and last is not None and last.root_run_id != within:
            raise not_found("child", name)
        await self._require_known(session_id, last, sender)
        command = Send(
            target_id=session_id,
            sender_id=sender,
            call_id=call_id,
            text=text,
            last=last,
            run_id=RunId(self._ids.new("r")),
            root_run_id=RunId(self._ids.new("r")),
            letter_id=LetterId(self._ids.new("l")),
            stamp=self._journal.stamp(),
        )
        await self._have(session_id, last)
        self._scheduler.require_admission(session_id if last is None else last.parent_id)
        one_shot_ended = last is not None and not last.continuable and not last.is_open  # the decision says so
        if self._scheduler.is_leaving(session_id) and not one_shot_ended:
            raise RetinueError("stopping", f"The session {session_id} is being let go.", "Wait until it is quiet.")
        answer = (await self._journal.submit(decide_send, command)).value
        if isinstance(answer, LetterQueued):
            run = None if last is None else await self._scheduler.run(last.run_id)
            return Sent(run=run, letter_id=answer.letter_id)
        return Sent(run=answer, letter_id=None)

    async def _target(self, name: str) -> Run | None:
        """Return the latest run of the session that is meant; null for a root."""
        if name.startswith("s_"):
            return await self._scheduler.latest(SessionId(name))
        run = await self._scheduler.run(RunId(name))
        return await self._scheduler.latest(run.session_id)

    async def _require_known(self, session_id: SessionId, last: Run | None, sender: SessionId | None) -> None:
        if sender is None:
            if last is None:
                raise not_found("child", session_id)
            return
        if session_id == sender:
            raise RetinueError("invalid", "A session sends no message to itself.", "Name another session of the tree.")
        await self._load(sender)
        here = self._journal.state.sessions[sender].header.root_id
        if here != (session_id if last is None else last.root_id):
            raise not_found("child", session_id)

    async def _have(self, session_id: SessionId, last: Run | None) -> None:
        """Have the target in memory, and its ancestors; a child that has not run yet, or was let go, has only those."""
        if last is not None and (last.started_at is None or not last.continuable):
            await self._load(last.parent_id)
            kid = self._journal.state.sessions[last.parent_id].kids[session_id]
            if kid.deleted or not kid.started:
                return
        await self._load(session_id)

    async def report(self, child_id: SessionId, text: str, *, waking: bool = True) -> LetterId:
        """Send a child's report to its direct parent; return once it is durable.

        Raises `already_ended` or `not_found` when the child has no open turn, `stopping` when it is being stopped,
        `invalid` for a root, `denied` where reports are off.
        """
        require_text(text)
        if self._scheduler.is_ending(child_id):
            raise RetinueError("stopping", "This session is being stopped; it reports no more.", "")
        command = Report(child_id=child_id, text=text, waking=waking, letter_id=LetterId(self._ids.new("l")))
        letter: LetterQueued = (await self._journal.submit(decide_report, command)).value
        return letter.letter_id

    def rouse(self, session_id: SessionId) -> None:
        """Start the turn that letters owe an idle session, if they do."""
        session = self._journal.state.sessions.get(session_id)
        if session is None or session_id in self._rousing or not self._journal.state.rouses(session):
            return
        if not self._supervisor.closing and self._journal.error is None:
            self._rousing.add(session_id)
            self._supervisor.begin(self._rouse(session_id))

    async def _rouse(self, session_id: SessionId) -> None:
        try:
            parent_id = self._journal.state.sessions[session_id].header.parent_id
            last = None if parent_id is None else await self._scheduler.latest(session_id)
            # A parent whose own turn is being stopped holds nobody up: what goes with that turn is ended by it.
            if self._supervisor.closing or self._scheduler.is_drained(session_id):
                return
            command = Rouse(
                session_id=session_id, last=last, run_id=RunId(self._ids.new("r")), stamp=self._journal.stamp()
            )
            await self._journal.submit(decide_rouse, command)
        except RetinueError:
            # Refused while stopping or after the store failed: the letters are stored, the next turn absorbs them.
            pass
        finally:
            self._rousing.discard(session_id)


def require_text(text: str) -> None:
    """Refuse a message that is empty, too long, or that no record can hold (`invalid`, `too_large`)."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - Python callers are not checked
        raise RetinueError("invalid", f"The message is of type {type(text).__name__}.", "Give a text.")
    if not text.strip():
        raise RetinueError("invalid", "The message is empty.", "Say what to do.")
    if len(text) > PROMPT_MAX_CHARS:
        raise RetinueError(
            "too_large", f"The message has more than {PROMPT_MAX_CHARS} characters.", "Name files instead of quoting."
        )
    require_storable("The message", text)
