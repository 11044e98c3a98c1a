"""A commit group as table rows, checked to be one gapless piece of log; it never talks to a database."""

from collections.abc import Callable, Sequence
from typing import Final

from retinue.core.events import Event, tag_of
from retinue.core.run import Run
from retinue.core.session import SessionRow
from retinue.ports import Batch, SeqConflict
from retinue.stores.codec import encode

_EventRow = tuple[int, str, str, int, str, str, str]
_SessionColumns = tuple[str, bool, bool, str]
_RunColumns = tuple[str, str, str, str, bool, bool, str]


def groups_of(batches: Sequence[Batch]) -> list["Group"]:
    """Return the batches as groups to store one after the other, each ended by the deletion of its last batch."""
    groups: list[Group] = []
    rest: list[Batch] = []
    for batch in batches:
        rest.append(batch)
        if batch.deleted is not None:
            groups.append(Group(rest))
            rest = []
    return [*groups, Group(rest)] if rest else groups


class Group:
    """The rows of some batches, of which only the last may delete.

    Of several rows for one session or run only the last is kept.
    """

    def __init__(self, batches: Sequence[Batch]) -> None:
        """Encode the batches.

        Raises `SeqConflict` when positions do not rise or a session's seq has a gap inside the group, `StoreError`
        when a value cannot be encoded.
        """
        self.first_position = 0
        self.first_seq: Final[dict[str, int]] = {}
        self._last_position = 0
        self._last_seq: Final[dict[str, int]] = {}
        self.events: Final = [self._event(event) for batch in batches for event in batch.events]
        sessions = {row.session_id: row for batch in batches for row in batch.sessions}
        runs = {run.run_id: run for batch in batches for run in batch.runs}
        self.sessions: Final = [_session(row) for row in sessions.values()]
        self.runs: Final = [_run(run) for run in runs.values()]
        self.blobs: Final = [blob for batch in batches for blob in batch.blobs]
        self.outputs: Final = [(o.output_id, o.session_id, o.text) for batch in batches for o in batch.outputs]
        switches = [batch.switch for batch in batches if batch.switch is not None]
        self.switch: Final = switches[-1] if switches else None
        self.deleted: Final = batches[-1].deleted if batches else None
        # A run's row belongs to its parent: it outlives the session that carried it out.
        parents = (run.parent_id for run in runs.values())
        writers = (o.session_id for batch in batches for o in batch.outputs)
        self._owners: Final = dict.fromkeys((*self._last_seq, *sessions, *writers, *parents))

    def check_alive(self, is_deleted: Callable[[str], bool]) -> None:
        """Raise `SeqConflict` when something belongs to a deleted session."""
        for session_id in self._owners:
            if is_deleted(session_id):
                raise SeqConflict(f"The session {session_id} was deleted, so nothing more can be stored for it.")

    def check_continues(self, position: int, last_seq: Callable[[str], int]) -> None:
        """Raise `SeqConflict` unless the group begins where the stored log ends."""
        if self.events and self.first_position <= position:
            raise SeqConflict(f"Position {self.first_position} does not come after the last stored one, {position}.")
        for session_id, seq in self.first_seq.items():
            _require_next(session_id, seq, last_seq(session_id))

    def _event(self, event: Event) -> _EventRow:
        if event.position <= self._last_position:
            raise SeqConflict(f"Position {event.position} does not come after {self._last_position}.")
        if event.session_id in self._last_seq:
            _require_next(event.session_id, event.seq, self._last_seq[event.session_id])
        else:
            self.first_seq[event.session_id] = event.seq
        self.first_position = self.first_position or event.position
        self._last_position = event.position
        self._last_seq[event.session_id] = event.seq
        fact = event.fact
        return event.position, event.session_id, event.root_id, event.seq, event.time, tag_of(fact), encode(fact)


def _require_next(session_id: str, seq: int, last: int) -> None:
    if seq != last + 1:
        raise SeqConflict(f"Event {seq} of {session_id} does not continue its log, which ends at {last}.")


def _session(row: SessionRow) -> _SessionColumns:
    return row.session_id, row.header.parent_id is None, row.status == "running", encode(row)


def _run(run: Run) -> _RunColumns:
    parked = run.waiting_for is not None and run.waiting_for.kind == "parked"
    in_queue = run.status == "queued" and not parked
    return run.run_id, run.session_id, run.parent_id, run.root_id, run.is_open, in_queue, encode(run)
