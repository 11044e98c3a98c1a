"""Facts and rows survive being written, and the wire form is spliced right."""

import json

import msgspec
import pytest

from retinue.core.events import Event, MessageUser, ToolStarted, tag_of
from retinue.core.ids import CallId, SessionId, TurnNo
from retinue.ports import StoreError
from retinue.stores.codec import (
    TYPES,
    StoredEvent,
    decode_event,
    decode_run,
    decode_session,
    encode,
    wire,
)
from retinue.testing.samples import HARD_TEXT, Numbering, every_fact, run, session_row

EVENTS = [Numbering().event(fact) for fact in every_fact()]


def _row(event: Event, **changes: str) -> StoredEvent:
    body = encode(event.fact)
    row = StoredEvent(event.session_id, event.root_id, event.seq, event.position, event.time, tag_of(event.fact), body)
    return row._replace(**changes)


def test_the_samples_hold_every_fact_type() -> None:
    assert {tag_of(event.fact) for event in EVENTS} == TYPES


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: tag_of(event.fact))
def test_a_fact_survives_being_written(event: Event) -> None:
    assert decode_event(_row(event)) == event


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: tag_of(event.fact))
def test_the_wire_form_is_the_dict_of_the_event(event: Event) -> None:
    # As pairs: the order of the keys counts too, and a key that came twice would show.
    assert json.loads(wire(event), object_pairs_hook=list) == json.loads(
        json.dumps(event.to_dict()), object_pairs_hook=list
    )


def test_an_id_that_needs_escaping_does_not_break_the_wire_form() -> None:
    event = Numbering().says("x", SessionId(HARD_TEXT))
    assert msgspec.json.decode(wire(event)) == event.to_dict()


def test_a_number_of_any_size_survives_being_written() -> None:
    event = Numbering().event(ToolStarted(call_id=CallId("c_1"), name="x", arguments={"n": -(10**40), "f": 1e-300}))
    assert decode_event(_row(event)) == event


def test_rows_survive_being_written() -> None:
    assert decode_run(encode(run(1)), 4) == msgspec.structs.replace(run(1), queue_position=4)
    filled = msgspec.structs.replace(session_row(), updated_at="now", stored_events=7)
    assert decode_session(encode(session_row()), "now", 7) == filled
    assert decode_session(encode(session_row()), None, None).updated_at == session_row().created_at


def test_an_event_of_a_newer_version_is_named_with_its_position() -> None:
    row = _row(EVENTS[0], type="moon.landed", body='{"type":"moon.landed"}')._replace(position=41)
    with pytest.raises(StoreError, match=r"position 41 is a 'moon.landed'.*newer Retinue"):
        decode_event(row)


def test_an_unreadable_event_is_named_with_its_position() -> None:
    with pytest.raises(StoreError, match=r"position 1 \(session.opened\) cannot be read"):
        decode_event(_row(EVENTS[0], body='{"type":"session.opened"}'))


def test_unreadable_rows_are_a_store_error() -> None:
    with pytest.raises(StoreError, match="stored run cannot be read"):
        decode_run("{}", None)
    with pytest.raises(StoreError, match="stored session cannot be read"):
        decode_session("[]", None, None)


def test_half_a_character_cannot_be_written() -> None:
    with pytest.raises(StoreError, match="MessageUser cannot be written as JSON"):
        encode(MessageUser(turn=TurnNo(1), text="\ud800", source="user"))
