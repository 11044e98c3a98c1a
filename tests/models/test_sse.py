"""The event-stream parser."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.models import sse
from retinue.models.sse import SseEvent, SseParser, StreamTooLongError


def events_of(*pieces: bytes) -> list[SseEvent]:
    parser = SseParser()
    return [event for piece in pieces for event in parser.feed(piece)] + parser.close()


def data_of(*pieces: bytes) -> list[str]:
    return [event.data for event in events_of(*pieces)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end_is_read_alike(end: bytes) -> None:
    text = b"data: a\n\n: ping\n\ndata: b\ndata:c\n\n".replace(b"\n", end)
    assert data_of(text) == ["a", "b\nc"]


def test_a_line_end_cut_in_two_is_one_line_end() -> None:
    assert data_of(b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n") == ["a\nb"]


def test_a_last_event_without_its_blank_line_is_not_lost() -> None:
    assert data_of(b"data: a\n\ndata: b") == ["a", "b"]
    assert data_of(b"data: a\n\ndata: b\n") == ["a", "b"]


def test_a_character_cut_between_two_pieces_stays_whole() -> None:
    raw = "data: grüße 🙂\n\n".encode()
    assert data_of(*(raw[n : n + 1] for n in range(len(raw)))) == ["grüße 🙂"]


def test_broken_utf8_and_a_byte_order_mark_stop_nothing() -> None:
    assert data_of(b"\xef\xbb\xbfdata: a\xff\n\n") == ["a\N{REPLACEMENT CHARACTER}"]


def test_comments_ids_and_unknown_fields_are_passed_over() -> None:
    assert data_of(b":x\nid: 4\nretry: 3\nfoo\nevent: e\n\ndata\n\n") == []


def test_the_event_type_is_kept_for_one_event() -> None:
    assert [event.event for event in events_of(b"event: error\ndata: a\n\ndata: b\n\n")] == ["error", "message"]


def test_a_bare_json_object_in_the_stream_is_seen() -> None:
    assert data_of(b'data: a\n\n{"error": 1}\n\n') == ["a", '{"error": 1}']


def test_a_line_without_end_is_refused_at_the_limit() -> None:
    piece = b"x" * (1024 * 1024)
    parser = SseParser()
    for _ in range(sse.EVENT_MAX_BYTES // len(piece)):
        parser.feed(piece)
    with pytest.raises(StreamTooLongError, match="bytes"):
        parser.feed(piece)


def test_an_event_of_many_lines_is_refused_at_the_limit() -> None:
    line = b"data:" + b"x" * (1024 * 1024) + b"\n"
    parser = SseParser()
    for _ in range(sse.EVENT_MAX_BYTES // len(line)):
        parser.feed(line)
    with pytest.raises(StreamTooLongError):
        parser.feed(line * 2)


@given(
    st.lists(st.sampled_from([b"data: x\n", b"\r\n", b"\n", b"\r", b"data:", b"\xf0\x9f\x99\x82", b": c", b"{}"])),
    st.data(),
)
def test_where_the_bytes_are_cut_changes_nothing(parts: list[bytes], data: st.DataObject) -> None:
    raw = b"".join(parts)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=8)))
    pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert events_of(*pieces) == events_of(raw)
