"""Events, runs and session rows as bytes and back; it never opens a file or decides what is stored."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, get_args

import msgspec

from retinue.core.events import AnyFact, Event, RunSpec, Usage, tag_of
from retinue.core.ids import Position, RunId, Seq, SessionId
from retinue.core.run import Run
from retinue.core.session import SessionRow
from retinue.ports import StoreError

TYPES: Final = frozenset(str(kind.__struct_config__.tag) for kind in get_args(AnyFact))
"""Every event type this version knows."""

_ENCODER: Final = msgspec.json.Encoder()
_FACT: Final[msgspec.json.Decoder[AnyFact]] = msgspec.json.Decoder(AnyFact)
_RUN: Final = msgspec.json.Decoder(Run)
_SESSION: Final = msgspec.json.Decoder(SessionRow)
_UNREADABLE: Final = (msgspec.MsgspecError, RecursionError)
_TYPE_FRAME_BYTES: Final = len('{"type":""')


class StoredEvent(NamedTuple):
    """The columns of a stored event."""

    session_id: str
    root_id: str
    seq: int
    position: int
    time: str
    type: str
    body: str | bytes


class _Head(msgspec.Struct, frozen=True):
    session_id: SessionId
    seq: Seq
    position: Position
    time: str
    v: int = 1


def encode(value: Any) -> str:
    """Return a fact, a run or a session row as JSON.

    Raises `StoreError` for text that no UTF-8 can hold and for values that JSON does not know.
    """
    try:
        return _ENCODER.encode(value).decode()
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as cause:
        what = type(value).__name__
        raise StoreError(f"A {what} cannot be written as JSON, so nothing was stored: {cause}.") from cause


def decode_event(row: StoredEvent) -> Event:
    """Return the stored event; raise `StoreError` naming its position when this version cannot read it."""
    try:
        fact = _FACT.decode(row.body)
    except _UNREADABLE as cause:
        raise _unreadable(row, cause) from cause
    return Event(
        session_id=SessionId(row.session_id),
        root_id=SessionId(row.root_id),
        seq=Seq(row.seq),
        position=Position(row.position),
        time=row.time,
        fact=fact,
    )


def decode_run(body: str | bytes, queue_position: int | None) -> Run:
    """Return the run with its present place in the queue."""
    try:
        run = _RUN.decode(body)
    except _UNREADABLE as cause:
        raise StoreError(f"A stored run cannot be read: {cause}. Open this store with the newest Retinue.") from cause
    return msgspec.structs.replace(run, queue_position=queue_position)


def damaged_run(ids: Sequence[bytes], cause: Exception) -> Run:
    """Return what stands in lists for a run whose row cannot be read, from its ids: run, session, parent and root.

    What is not known is empty: no run has depth 0, no name or time, and no id of a root run.
    """
    run_id, session_id, parent_id, root_id = (column.decode(errors="replace") for column in ids)
    return Run(
        run_id=RunId(run_id),
        session_id=SessionId(session_id),
        parent_id=SessionId(parent_id),
        root_id=SessionId(root_id),
        root_run_id=RunId(""),
        call_id=None,
        name="(damaged)",
        agent=None,
        model="",
        depth=0,
        provider="",
        status="failed",
        reason="internal",
        detail=f"The stored row of this run cannot be read ({cause.__cause__ or cause}); all others are as they were.",
        waiting_for=None,
        queue_position=None,
        steps=0,
        usage=Usage(),
        created_at="",
        started_at=None,
        ended_at=None,
        queued_s=None,
        elapsed_s=None,
        access="read",
        paths=(),
        cwd="",
        continuable=False,
        output=None,
        output_cut=False,
        output_id=None,
        partial=None,
        files=(),
        result_state="none",
        spec=RunSpec(prompt=""),
        clock_s=0.0,
    )


def decode_session(body: str | bytes, updated_at: str | None, stored_events: int | None) -> SessionRow:
    """Return the session row, filled with what the end of its log says."""
    try:
        row = _SESSION.decode(body)
    except _UNREADABLE as cause:
        raise StoreError(
            f"A stored session cannot be read: {cause}. Open this store with the newest Retinue."
        ) from cause
    return msgspec.structs.replace(row, updated_at=updated_at or row.created_at, stored_events=stored_events or 0)


def wire(event: Event) -> bytes:
    """Return the flat JSON object of SHAPES, equal to `Event.to_dict()`, without building that dict."""
    head = _ENCODER.encode(_Head(event.session_id, event.seq, event.position, event.time))
    body = _ENCODER.encode(event.fact)
    cut = _TYPE_FRAME_BYTES + len(tag_of(event.fact))
    return b"".join((body[:cut], b",", head[1:-1], body[cut:]))


def _unreadable(row: StoredEvent, cause: Exception) -> StoreError:
    if row.type not in TYPES:
        return StoreError(
            f"The event at position {row.position} is a {row.type!r}, which this version does not know. "
            "Open this store with a newer Retinue."
        )
    return StoreError(f"The event at position {row.position} ({row.type}) cannot be read: {cause}.")
