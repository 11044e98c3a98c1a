"""What a start does after a crash: load what was left open and close it, honestly; it runs nothing again."""

from collections.abc import Iterable

from retinue.core.decide.recovery import owed_closings
from retinue.core.events import Event, SessionOpened
from retinue.core.ids import SessionId
from retinue.ports import RunFilter
from retinue.runtime.journal import Journal
from retinue.runtime.record import Record


async def recover(journal: Journal, record: Record) -> int:
    """Close every open run and turn and tell the parents; return how many there were."""
    journal.state.switch_on = await record.switch()
    wanted: dict[SessionId, None] = {row.session_id: None for row in await record.open_sessions()}
    for run in await record.all_runs(RunFilter(open_only=True)):
        wanted.setdefault(run.parent_id)
    journal.load(await _logs(record, journal, wanted))
    owed = owed_closings(journal.state, journal.stamp())
    answers = [journal.submit(decide, command) for decide, command in owed]
    for answer in answers:
        await answer
    return len(owed)


async def load_session(journal: Journal, record: Record, session_id: SessionId) -> bool:
    """Have a session and its ancestors in the head, from their logs; return whether there is such a session.

    An idle one stays only until the next batch: decide on it before the next await.
    """
    # One at a time: what is read must not have gone on, and left memory again, by the time it is folded.
    async with journal.loading:
        while session_id not in journal.state.sessions:
            with journal.touched() as changed:
                # What left memory may not be on disk yet.
                await journal.flushed()
                events = await _logs(record, journal, (session_id,))
            if not events:
                return False
            missing = {event.session_id for event in events} - journal.state.sessions.keys()
            # What went on or was deleted while it was read, or an ancestor that left memory meanwhile: read again.
            if not missing & changed and _parents(events) <= missing | journal.state.sessions.keys():
                journal.load([event for event in events if event.session_id in missing])
    return True


def _parents(events: Iterable[Event]) -> set[SessionId]:
    facts = (event.fact for event in events)
    return {fact.parent_id for fact in facts if isinstance(fact, SessionOpened) and fact.parent_id is not None}


async def _logs(record: Record, journal: Journal, wanted: Iterable[SessionId]) -> list[Event]:
    """Return the logs of these sessions and of their ancestors that are not in memory, in the order of the store."""
    logs: dict[SessionId, list[Event]] = {}
    ahead = list(wanted)
    while ahead:
        session_id = ahead.pop()
        if session_id in logs or session_id in journal.state.sessions:
            continue
        logs[session_id] = await record.read(session_id)
        header = logs[session_id][0].fact if logs[session_id] else None
        if isinstance(header, SessionOpened) and header.parent_id is not None:
            ahead.append(header.parent_id)
    return sorted((event for log in logs.values() for event in log), key=lambda event: event.position)
