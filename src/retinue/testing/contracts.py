"""What every store must do, as checks for any implementation; it never names one.

A store's tests run `store_contract` once for each way to open it:

    @pytest.mark.parametrize("check", store_contract(durable=True), ids=lambda check: check.__name__)
    def test_my_store_keeps_the_contract(check, tmp_path):
        check(lambda: MyStore(tmp_path / "store"))

The function given to a check opens the same store each time it is called; where a store is not durable, a new one.
"""

import threading
from collections.abc import Sequence
from typing import Final

import msgspec

from retinue.core.errors import RetinueError
from retinue.core.events import Event, StoredOutput, WaitingFor
from retinue.core.ids import Digest, OutputId, RunId, SessionId
from retinue.core.run import Run
from retinue.ports import Batch, Page, RunFilter, SeqConflict, Store, StoreError
from retinue.testing.deletions import DELETION_CHECKS, DURABLE_DELETION_CHECKS
from retinue.testing.rules import Check, Open, everything, opened, refused, same, true
from retinue.testing.samples import HARD_TEXT, ROOT, Numbering, every_fact, run, session_row

A, B, OTHER = SessionId("s_a"), SessionId("s_b"), SessionId("s_other")
LARGE_TEXT_CHARS: Final = 10 * 1024 * 1024
_NEVER_STORED: Final = Digest("00" * 32)
_THREAD_JOIN_S: Final = 60


def store_contract(*, durable: bool) -> tuple[Check, ...]:
    """Return the checks; with `durable` also those that open the same store twice or again."""
    return _CHECKS + _DURABLE_CHECKS if durable else _CHECKS


def an_empty_store_answers(open_store: Open) -> None:
    """Nothing is there, and asking for it is no error."""
    with opened(open_store) as store:
        found = (store.position(), store.last_seq(A), store.read(A), store.tail(0), store.session(A))
        same(found, (0, 0, [], [], None), "an empty store holds no events")
        same(store.sessions(Page()), ([], None), "an empty store lists no sessions")
        same(store.runs(RunFilter(), Page()), ([], None), "an empty store lists no runs")
        rest = (store.run(RunId("r_1")), store.blob(_NEVER_STORED), store.output(OutputId("o_1")))
        same(rest, (None, None, None), "unknown ids are null")
        store.commit([])
        store.commit([Batch(events=())])
        same(store.position(), 0, "empty commits store nothing")


def every_fact_comes_back_equal(open_store: Open) -> None:
    """What is read equals what was committed, for every type and for hard texts."""
    with opened(open_store) as store:
        numbers = Numbering()
        events = [numbers.event(fact) for fact in every_fact()]
        store.commit([Batch(events=tuple(events))])
        same(store.read(ROOT), events, "read returns what was committed")
        same(store.tail(0), events, "tail returns what was committed")
        same([e.to_dict() for e in store.read(ROOT)], [e.to_dict() for e in events], "the wire form is unchanged")


def large_texts_come_back_whole(open_store: Open) -> None:
    """A text of 10 MiB is no special case, in an event, an output or a blob."""
    text = (HARD_TEXT * (LARGE_TEXT_CHARS // len(HARD_TEXT) + 1))[:LARGE_TEXT_CHARS]
    output = StoredOutput(output_id=OutputId("o_1"), session_id=A, text=text)
    blob = bytes(range(256)) * (LARGE_TEXT_CHARS // 256)
    with opened(open_store) as store:
        event = Numbering().says(text, A)
        store.commit([Batch(events=(event,), outputs=(output,), blobs=((Digest("d"), blob),))])
        true(store.read(A) == [event], "a large event comes back whole")
        true(store.output(output.output_id) == output, "a large output comes back whole")
        true(store.blob(Digest("d")) == blob, "a large blob comes back whole")


def a_session_reads_in_order_after_a_seq(open_store: Open) -> None:
    """`read` is one session, by seq, after and up to what was asked."""
    with opened(open_store) as store:
        events = _commit_interleaved(store)
        mine = [event for event in events if event.session_id == A]
        same(store.read(A), mine, "read returns one session in order")
        same(store.read(A, 2), mine[2:], "`after` leaves out what was read")
        same(store.read(A, 1, 2), mine[1:3], "`limit` cuts")
        same(store.read(A, len(mine)), [], "nothing comes after the end")
        same(store.last_seq(A), len(mine), "last_seq is the end of the session")


def the_tail_is_in_the_order_of_positions(open_store: Open) -> None:
    """`tail` runs over all sessions, or over one tree."""
    with opened(open_store) as store:
        events = _commit_interleaved(store)
        tree = [event for event in events if event.root_id == ROOT]
        same(store.tail(0), events, "tail returns everything in order")
        same(store.tail(events[3].position), events[4:], "`after` leaves out what was read")
        same(store.tail(0, ROOT), tree, "`root_id` keeps one tree")
        same(store.tail(tree[1].position, ROOT, 2), tree[2:4], "`root_id`, `after` and `limit` work together")
        same(store.tail(0, limit=3), events[:3], "`limit` cuts")
        same(store.position(), events[-1].position, "position is the last one")


def what_does_not_continue_the_log_is_a_conflict(open_store: Open) -> None:
    """A gap, a repeat, a wrong begin or a position that does not rise is refused, and nothing of it is stored."""
    with opened(open_store) as store:
        numbers = Numbering()
        first, second, third, fourth = (numbers.says(str(number), A) for number in range(4))
        begin = Numbering(100).says("b", B)
        store.commit([Batch(events=(first, second))])
        before = everything(store)
        late = msgspec.structs.replace(third, position=second.position)
        later = msgspec.structs.replace(begin, seq=2)
        wrong: dict[str, tuple[Event, ...]] = {
            "a gap after the stored log": (fourth,),
            "a gap inside a batch": (third, msgspec.structs.replace(fourth, seq=5)),
            "a seq that is stored already": (msgspec.structs.replace(second, position=9),),
            "a seq twice in a batch": (third, msgspec.structs.replace(third, position=9)),
            "a log that does not begin with 1": (later,),
            "a position that is stored already": (late,),
            "positions that fall": (
                msgspec.structs.replace(third, position=9),
                msgspec.structs.replace(begin, position=8),
            ),
        }
        for what, events in wrong.items():
            with refused(SeqConflict, what):
                store.commit([Batch(events=events, sessions=(session_row(A),))])
            same(everything(store), before, f"{what} stores nothing")
        store.commit([Batch(events=(third, fourth))])
        same(store.read(A), [first, second, third, fourth], "the store goes on after a conflict")


def one_bad_batch_leaves_its_whole_group_out(open_store: Open) -> None:
    """A group is committed whole or not at all, with its rows, blobs and outputs."""
    with opened(open_store) as store:
        numbers = Numbering()
        store.commit([Batch(events=(numbers.says("kept", A),), sessions=(session_row(A),))])
        before = everything(store)
        good = Batch(
            events=(numbers.says("lost", A),),
            runs=(run(1),),
            sessions=(session_row(A, status="running"), session_row(B)),
            blobs=((Digest("d"), b"lost"),),
            outputs=(StoredOutput(output_id=OutputId("o_1"), session_id=A, text="lost"),),
        )
        gap = Batch(events=(msgspec.structs.replace(numbers.says("gap", A), seq=9),))
        half = Batch(events=(Numbering(50).says("\ud800", B),))
        for error, bad in ((SeqConflict, gap), (StoreError, half)):
            with refused(error, "a bad batch"):
                store.commit([good, bad])
            same(everything(store), before, "a failing batch leaves nothing of its group")
            same((store.blob(Digest("d")), store.output(OutputId("o_1"))), (None, None), "no blob, no output either")
        store.commit([good])
        same(len(store.read(A)), 2, "the good batch alone is stored")


def rows_are_what_was_committed_last(open_store: Open) -> None:
    """Of several rows for one id the last one counts, in a group and over commits."""
    with opened(open_store) as store:
        numbers = Numbering()
        first, last = (
            run(1, status="running", waiting_for=None),
            run(1, status="completed", waiting_for=None, output="x"),
        )
        events = [numbers.says(str(number), A) for number in range(3)]
        store.commit([Batch(events=(events[0],), runs=(run(1),)), Batch(events=(events[1],), runs=(first,))])
        same(store.run(RunId("r_1")), first, "the last run of a group counts")
        store.commit([Batch(events=(events[2],), runs=(last,), sessions=(session_row(A),))])
        same(store.run(RunId("r_1")), last, "a later commit replaces a run")
        same(store.runs(RunFilter(), Page()), ([last], None), "and the run is listed once")
        filled = msgspec.structs.replace(session_row(A), updated_at=events[2].time, stored_events=3)
        same(store.session(A), filled, "the store fills updated_at and stored_events")
        same(store.sessions(Page()), ([filled], None), "in lists too")
        store.commit([Batch(events=(numbers.says("more", A),))])
        found = store.session(A)
        same(found and found.stored_events, 4, "a session's count follows its log without a new row")


def sessions_are_listed_newest_first(open_store: Open) -> None:
    """Pages are stable while sessions are added and changed; filters narrow."""
    with opened(open_store) as store:
        ids = [SessionId(f"s_{number}") for number in range(7)]
        for number, session_id in enumerate(ids):
            store.commit([Batch(events=(), sessions=(session_row(session_id, status=_status(number)),))])
        store.commit([Batch(events=(), sessions=(session_row(A, parent_id=ids[0], status="running"),))])
        page, cursor = store.sessions(Page(limit=3))
        seen = [row.session_id for row in page]
        store.commit([Batch(events=(), sessions=(session_row(OTHER), session_row(ids[1], status="running")))])
        while cursor is not None:
            page, cursor = store.sessions(Page(limit=3, cursor=cursor))
            seen += [row.session_id for row in page]
        same(seen, ids[::-1], "each root is listed once, newest first, whatever is added meanwhile")
        found = [row.session_id for row in store.sessions(Page(), roots_only=False)[0]]
        same(found, [OTHER, A, *ids[::-1]], "without roots_only children are listed too")
        running = [ids[6], ids[4], ids[2], ids[1], ids[0]]
        found = [row.session_id for row in store.sessions(Page(), open_only=True)[0]]
        same(found, running, "open_only keeps roots with an open turn")
        found = [row.session_id for row in store.sessions(Page(), roots_only=False, open_only=True)[0]]
        same(found, [A, *running], "open_only keeps children with an open turn")


def runs_are_listed_in_the_order_they_were_created(open_store: Open) -> None:
    """Pages are stable while runs are added and changed."""
    with opened(open_store) as store:
        store.commit([Batch(events=(), runs=tuple(run(number) for number in range(7)))])
        page, cursor = store.runs(RunFilter(), Page(limit=3))
        seen = [found.run_id for found in page]
        store.commit([Batch(events=(), runs=(run(0, status="running"), run(7)))])
        while cursor is not None:
            page, cursor = store.runs(RunFilter(), Page(limit=3, cursor=cursor))
            seen += [found.run_id for found in page]
        same(seen, [f"r_{number}" for number in range(8)], "each run is listed once, in order of creation")
        same(len(store.runs(RunFilter(), Page(limit=8))[0]), 8, "a page may hold everything")
        same(store.runs(RunFilter(), Page(limit=8))[1], None, "the last page has no cursor")


def run_filters_narrow_together(open_store: Open) -> None:
    """Every combination of filters returns what all of them allow."""
    with opened(open_store) as store:
        kinds = [(a, b, c, d) for a in (A, B) for b in (A, B) for c in (ROOT, OTHER) for d in ("running", "failed")]
        runs = [
            run(number, parent_id=parent_id, child_id=child_id, root_id=root_id, status=status, waiting_for=None)
            for number, (parent_id, child_id, root_id, status) in enumerate(kinds)
        ]
        store.commit([Batch(events=(), runs=tuple(runs))])
        for parent_id in (None, A):
            for session_id in (None, B):
                for root_id in (None, OTHER):
                    for open_only in (False, True):
                        where = RunFilter(
                            parent_id=parent_id, session_id=session_id, root_id=root_id, open_only=open_only
                        )
                        wanted = [found for found in runs if _matches(found, where)]
                        same(store.runs(where, Page())[0], wanted, f"runs of {where}")


def queued_runs_know_their_place(open_store: Open) -> None:
    """`queue_position` ranks what waits for admission, root by root; parked runs have no place."""
    parked = WaitingFor(kind="parked", what="interrupted")
    with opened(open_store) as store:
        store.commit(
            [
                Batch(
                    events=(),
                    runs=(
                        run(1, status="running", waiting_for=None),
                        run(2),
                        run(3, root_id=OTHER),
                        run(4, waiting_for=parked),
                        run(5, waiting_for=WaitingFor(kind="claim", what="a file")),
                        run(6, queue_position=77),
                    ),
                )
            ]
        )
        same(_places(store), [None, 1, 1, None, 2, 3], "places count from 1 in each root")
        store.commit([Batch(events=(), runs=(run(2, status="running", waiting_for=None), run(4)))])
        same(_places(store), [None, None, 1, 1, 2, 3], "the queue moves up, and an unparked run has its old place")
        one = store.run(RunId("r_6"))
        same(one and one.queue_position, 3, "a single run knows its place too")


def blobs_and_outputs_come_back(open_store: Open) -> None:
    """A blob is stored once for its digest; an output belongs to a session."""
    output = StoredOutput(output_id=OutputId("o_1"), session_id=A, text=HARD_TEXT)
    blob = (Digest("ab" * 32), b"\x00\xff" + HARD_TEXT.encode())
    with opened(open_store) as store:
        store.commit([Batch(events=(), blobs=(blob, blob), outputs=(output,)), Batch(events=(), blobs=(blob,))])
        store.commit([Batch(events=(), blobs=(blob, (_NEVER_STORED, b"")))])
        same(store.blob(blob[0]), blob[1], "a blob comes back by its digest, stored again or not")
        same(store.blob(_NEVER_STORED), b"", "an empty blob is not a missing one")
        same(store.output(output.output_id), output, "an output comes back")


def nonsense_is_refused(open_store: Open) -> None:
    """A cursor that is none and a negative limit are refused as `invalid`."""
    with opened(open_store) as store:
        for page in (Page(cursor="x"), Page(cursor="-1"), Page(cursor="9" * 40), Page(cursor=""), Page(limit=-1)):
            with refused(RetinueError, f"{page} for sessions"):
                store.sessions(page)
            with refused(RetinueError, f"{page} for runs"):
                store.runs(RunFilter(), page)


def readers_in_other_threads_see_whole_groups(open_store: Open) -> None:
    """Reads may run while a commit runs, and see all of a group or nothing of it."""
    with opened(open_store) as store:
        numbers = Numbering()
        groups = [[Batch(events=(numbers.says("x", A),)), Batch(events=(numbers.says("y", B),))] for _ in range(200)]
        failures: list[BaseException] = []

        def write() -> None:
            try:
                for group in groups:
                    store.commit(group)
            except BaseException as failure:  # noqa: BLE001 - handed to the thread that checks
                failures.append(failure)

        writer = threading.Thread(target=write)
        writer.start()
        seen = 0
        while writer.is_alive():
            events = store.tail(seen, limit=1000)
            same(len(events) % 2, 0, "a reader sees whole groups")
            seen += len(events)
            true(seen <= store.position(), "what was seen stays")
        writer.join(_THREAD_JOIN_S)
        same(failures, [], "commits beside readers succeed")
        same(store.position(), 400, "every group was stored")


def the_switch_is_stored_with_its_batch(open_store: Open) -> None:
    """The master switch is on at first; the last word of a commit counts, a batch without one leaves it."""
    with opened(open_store) as store:
        numbers = Numbering()
        true(store.switch(), "a new store is switched on")
        store.commit([Batch(events=(numbers.says("off", A),), switch=False)])
        true(not store.switch(), "off is stored")
        store.commit([Batch(events=(numbers.says("more", A),))])
        true(not store.switch(), "a batch without the switch leaves it")
        store.commit([Batch(events=(), switch=False), Batch(events=(), switch=True), Batch(events=())])
        true(store.switch(), "of several words the last one counts, and a batch may hold nothing else")
        store.commit([Batch(events=(), switch=True), Batch(events=(), switch=False)])
        true(not store.switch(), "off is the last word as well")


def a_batch_that_fails_leaves_the_switch_as_it_was(open_store: Open) -> None:
    """The switch belongs to its commit: it fails with it, whatever fails."""
    with opened(open_store) as store:
        numbers = Numbering()
        store.commit([Batch(events=(numbers.says("kept", A),), sessions=(session_row(A),))])
        before = everything(store)
        off = Batch(events=(numbers.says("off", A),), runs=(run(1),), switch=False)
        gap = Batch(events=(msgspec.structs.replace(numbers.says("gap", A), seq=9),))
        half = Batch(events=(numbers.says("\ud800", B),))
        for error, bad in ((SeqConflict, gap), (StoreError, half)):
            with refused(error, "a bad batch"):
                store.commit([off, bad])
            same((store.switch(), everything(store)), (True, before), "a failing commit leaves switch and rows")
        store.commit([off])
        true(not store.switch(), "the good batch alone is stored")


def a_closed_store_refuses(open_store: Open) -> None:
    """Closing twice is fine; using it afterwards is a `StoreError`."""
    store = open_store()
    store.close()
    store.close()
    with refused(StoreError, "reading a closed store"):
        store.position()
    with refused(StoreError, "writing a closed store"):
        store.commit([Batch(events=(Numbering().says("x", A),))])


def everything_is_there_after_reopening(open_store: Open) -> None:
    """Closing and opening again changes nothing, and the log goes on."""
    numbers = Numbering()
    with opened(open_store) as store:
        batch = Batch(
            events=tuple(numbers.event(fact, A) for fact in every_fact()),
            runs=(run(1), run(2)),
            sessions=(session_row(A), session_row(B)),
            blobs=((Digest("d"), b"blob"),),
            outputs=(StoredOutput(output_id=OutputId("o_1"), session_id=A, text="whole"),),
        )
        store.commit([batch])
        before = everything(store)
        _, cursor = store.runs(RunFilter(), Page(limit=1))
    with opened(open_store) as store:
        same(everything(store), before, "a reopened store holds the same")
        same((store.blob(Digest("d")), store.output(OutputId("o_1"))), (b"blob", batch.outputs[0]), "blobs and outputs")
        same(store.runs(RunFilter(), Page(cursor=cursor))[0], store.runs(RunFilter(), Page())[0][1:], "cursors hold")
        store.commit([Batch(events=(numbers.says("more", A),))])
        same(store.position(), numbers.position, "the log goes on")


def the_switch_survives_reopening(open_store: Open) -> None:
    """Off stays off in the next life, and on again stays on; a store beside this one sees it at once."""
    for wanted in (False, True):
        with opened(open_store) as store, opened(open_store) as other:
            store.commit([Batch(events=(), switch=wanted)])
            same(other.switch(), wanted, "another store sees the switch at once")
        with opened(open_store) as store:
            same(store.switch(), wanted, "a reopened store holds the switch")


def a_second_store_sees_what_is_committed(open_store: Open) -> None:
    """Two stores on one place: the other sees every commit at once and nothing else; a stale writer conflicts."""
    with opened(open_store) as writer, opened(open_store) as reader:
        numbers = Numbering()
        first, second = numbers.says("first", A), numbers.says("second", A)
        same(everything(reader), everything(writer), "both begin empty")
        writer.commit([Batch(events=(first,), runs=(run(1),), sessions=(session_row(A),))])
        same(everything(reader), everything(writer), "a commit is seen at once")
        with refused(SeqConflict, "a group with a gap"):
            writer.commit([Batch(events=(second,)), Batch(events=(first,))])
        same(reader.read(A), [first], "what failed is not seen")
        writer.commit([Batch(events=(second,))])
        with refused(SeqConflict, "a second writer that missed a commit"):
            reader.commit([Batch(events=(msgspec.structs.replace(second, position=9),))])
        same(writer.read(A), [first, second], "and its events are not stored")


_CHECKS: Final[tuple[Check, ...]] = (
    an_empty_store_answers,
    every_fact_comes_back_equal,
    large_texts_come_back_whole,
    a_session_reads_in_order_after_a_seq,
    the_tail_is_in_the_order_of_positions,
    what_does_not_continue_the_log_is_a_conflict,
    one_bad_batch_leaves_its_whole_group_out,
    rows_are_what_was_committed_last,
    sessions_are_listed_newest_first,
    runs_are_listed_in_the_order_they_were_created,
    run_filters_narrow_together,
    queued_runs_know_their_place,
    blobs_and_outputs_come_back,
    nonsense_is_refused,
    readers_in_other_threads_see_whole_groups,
    the_switch_is_stored_with_its_batch,
    a_batch_that_fails_leaves_the_switch_as_it_was,
    a_closed_store_refuses,
    *DELETION_CHECKS,
)
_DURABLE_CHECKS: Final[tuple[Check, ...]] = (
    everything_is_there_after_reopening,
    a_second_store_sees_what_is_committed,
    the_switch_survives_reopening,
    *DURABLE_DELETION_CHECKS,
)


def _commit_interleaved(store: Store) -> Sequence[Event]:
    """Commit ten events of three sessions and two trees, over several groups and batches."""
    numbers = Numbering()
    places = [(A, ROOT), (B, ROOT), (OTHER, OTHER), (A, ROOT), (OTHER, OTHER)] * 2
    events = [numbers.says(str(number), *place) for number, place in enumerate(places)]
    store.commit([Batch(events=tuple(events[:3])), Batch(events=tuple(events[3:4]))])
    store.commit([Batch(events=tuple(events[4:]))])
    return events


def _status(number: int) -> str:
    return "idle" if number % 2 else "running"


def _places(store: Store) -> list[int | None]:
    return [found.queue_position for found in store.runs(RunFilter(), Page())[0]]


def _matches(found: Run, where: RunFilter) -> bool:
    pairs = (
        (where.parent_id, found.parent_id),
        (where.session_id, found.session_id),
        (where.root_id, found.root_id),
    )
    return all(wanted in (None, value) for wanted, value in pairs) and (found.is_open or not where.open_only)
