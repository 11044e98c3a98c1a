"""What a start does after a crash: load what was left open and close it, honestly; it runs nothing again."""

from retinue.core.decide.recovery import owed_closings
from retinue.core.events import Event
from retinue.core.ids import SessionId
from retinue.ports import RunFilter
from retinue.runtime.journal import Journal
from retinue.runtime.record import Record


async def recover(journal: Journal, record: Record) -> int:
    """Close every open run and turn and tell the parents; return how many there were."""
    wanted: dict[SessionId, None] = {row.session_id: None for row in await record.open_sessions()}
    for run in await record.all_runs(RunFilter(open_only=True)):
        wanted.setdefault(run.parent_id)
    events: list[Event] = []
    for session_id in wanted:
        events.extend(await record.read(session_id))
    journal.load(sorted(events, key=lambda event: event.position))
    owed = owed_closings(journal.state, journal.stamp())
    answers = [journal.submit(decide, command) for decide, command in owed]
    for answer in answers:
        await answer
    return len(owed)


async def load_session(journal: Journal, record: Record, session_id: SessionId) -> bool:
    """Have a session in the head, from its log; return whether there is such a session.

    An idle one stays only until the next batch: decide on it before the next await.
    """
    if session_id in journal.state.sessions:
        return True
    # What left memory may not be on disk yet.
    await journal.flushed()
    events = await record.read(session_id)
    if session_id not in journal.state.sessions and events:
        journal.load(events)
    return session_id in journal.state.sessions
