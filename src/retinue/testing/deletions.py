"""What every store must do when sessions are deleted, as checks of the store contract; it never names a store."""

from typing import Any, Final

import msgspec

from retinue.core.events import StoredOutput
from retinue.core.ids import OutputId, RunId, SessionId
from retinue.core.run import Run
from retinue.ports import Batch, Deletion, Page, RunFilter, SeqConflict, Store, StoreError
from retinue.testing.rules import Check, Open, everything, opened, refused, same, true
from retinue.testing.samples import ROOT, Numbering, run, session_row
from retinue.testing.samples import opened as header

CHILD, GRANDCHILD, OTHER = SessionId("s_child"), SessionId("s_grandchild"), SessionId("s_other")


def a_deleted_child_leaves_its_run_with_the_parent(open_store: Open) -> None:
    """Log, row, outputs and own runs of the child go; its run, the parent's outputs and every other session stay."""
    with opened(open_store) as store:
        numbers = _fill(store)
        runs = [found for found in store.runs(RunFilter(), Page())[0] if found.parent_id != CHILD]
        root_log, other_log = store.read(ROOT), store.read(OTHER)
        store.commit([_deletion(CHILD)])
        _require_gone(store, CHILD)
        same(store.runs(RunFilter(), Page()), (runs, None), "runs stay with a parent that stays")
        same((store.read(ROOT), store.read(OTHER)), (root_log, other_log), "other logs stay")
        same(_listed(store), [OTHER, GRANDCHILD, ROOT], "other sessions stay listed")
        same(_outputs(store), {ROOT, GRANDCHILD, OTHER}, "only the child's own outputs go")
        same([e.session_id for e in store.tail(0) if e.session_id == CHILD], [], "the tail skips what is gone")
        settled = msgspec.structs.replace(runs[0], result_state="absorbed")
        store.commit([Batch(events=(numbers.says("its result is read"),), runs=(settled,))])
        same(store.run(settled.run_id), settled, "the parent still owns the run and may change it")


def a_deleted_tree_takes_its_runs_with_it(open_store: Open) -> None:
    """The runs of the deleted sessions go as well, and nothing of another tree."""
    with opened(open_store) as store:
        _fill(store)
        others = [found for found in store.runs(RunFilter(), Page())[0] if found.root_id == OTHER]
        store.commit([_deletion(GRANDCHILD, CHILD, ROOT)])
        for session_id in (GRANDCHILD, CHILD, ROOT):
            _require_gone(store, session_id)
        same(store.runs(RunFilter(), Page()), (others, None), "runs of another tree stay")
        same((store.run(RunId("r_1")), store.run(RunId("r_2"))), (None, None), "runs of the tree go")
        same(_listed(store), [OTHER], "the other tree stays listed")
        same(store.tail(0, ROOT), [], "nothing of the tree is left")
        same(_outputs(store), {OTHER}, "outputs of the other tree stay")


def a_deletion_takes_what_its_own_batch_and_earlier_ones_store(open_store: Open) -> None:
    """Batches of one commit are done in order, and the deletion last in its batch."""
    with opened(open_store) as store:
        numbers = _fill(store)
        last = Batch(
            events=(numbers.says("its end", CHILD), numbers.says("it was deleted")),
            runs=(_run(1, CHILD, detail="deleted"),),
            sessions=(session_row(CHILD, parent_id=ROOT), session_row(ROOT, status="running")),
            outputs=(_output(CHILD, "o_last"), _output(ROOT, "o_kept")),
            deleted=Deletion(session_ids=(CHILD,)),
        )
        before = Batch(events=(numbers.says("an earlier batch", GRANDCHILD),), outputs=(_output(GRANDCHILD, "o_g"),))
        after = Batch(events=(numbers.says("a later batch"),), switch=False)
        # Numbered anew, for the group's positions must rise in the order of its batches.
        store.commit(_renumbered((before, last, _deletion(GRANDCHILD), after), store.position()))
        _require_gone(store, CHILD)
        _require_gone(store, GRANDCHILD)
        same(len(store.read(ROOT)), 4, "the parent's events are stored, before and after")
        row = store.session(ROOT)
        same(row and row.status, "running", "and its row")
        one = store.run(RunId("r_1"))
        same(one and one.detail, "deleted", "a run of the batch is stored")
        same([store.output(OutputId(name)) for name in ("o_last", "o_g")], [None, None], "late outputs go too")
        same(store.output(OutputId("o_kept")), _output(ROOT, "o_kept"), "the parent's output of that batch stays")
        true(not store.switch(), "the rest of the commit is done")


def a_deletion_is_atomic_with_its_commit(open_store: Open) -> None:
    """When anything of the commit fails nothing is deleted, and the session may go on."""
    with opened(open_store) as store:
        numbers = _fill(store)
        before = (everything(store), _outputs(store), store.switch())
        gap = Batch(events=(msgspec.structs.replace(numbers.says("gap"), seq=99),))
        half = Batch(events=(Numbering(500).says("\ud800", SessionId("s_new")),))
        late = Batch(events=(msgspec.structs.replace(numbers.says("late", CHILD), position=400),))
        deletion = msgspec.structs.replace(_deletion(CHILD, ROOT), switch=False)
        for error, bad in ((SeqConflict, gap), (StoreError, half), (SeqConflict, late)):
            with refused(error, "a bad batch behind a deletion"):
                store.commit([deletion, bad])
            same((everything(store), _outputs(store), store.switch()), before, "a failed commit deletes nothing")
        store.commit([Batch(events=(_next(store, CHILD),))])
        same(store.last_seq(CHILD), 3, "the session goes on: nothing remembers the failed deletion")


def nothing_late_recreates_a_deleted_session(open_store: Open) -> None:
    """Whatever belongs to a deleted session is refused as a conflict, its first event included, and stores nothing."""
    with opened(open_store) as store:
        numbers = _fill(store)
        numbers.position += 50  # room for what the same commits store before it
        late = numbers.says("late", CHILD)
        store.commit([_deletion(CHILD, SessionId("s_never"))])
        before = everything(store)
        again = Numbering(late.position)
        first = again.event(header(ROOT, ROOT), CHILD)
        unknown = again.event(header(), SessionId("s_never"))
        wrong: dict[str, Batch] = {
            "the next event": Batch(events=(late,)),
            "a new header with seq 1": Batch(events=(first,), sessions=(session_row(CHILD, parent_id=ROOT),)),
            "a header of an id that was deleted unseen": Batch(events=(unknown,)),
            "a row without an event": Batch(events=(), sessions=(session_row(CHILD, parent_id=ROOT),)),
            "an output": Batch(events=(), outputs=(_output(CHILD, "o_late"),)),
            "a run that it owns": Batch(events=(), runs=(_run(9, GRANDCHILD, parent_id=CHILD),)),
        }
        for what, batch in wrong.items():
            with refused(SeqConflict, f"{what} of a deleted session"):
                store.commit([Batch(events=(_next(store, ROOT),)), batch])
            same(everything(store), before, f"{what} of a deleted session stores nothing")
        for behind in (_reopening(store, OTHER), Batch(events=(_next(store, OTHER),))):
            with refused(SeqConflict, "a header or the next event behind the deletion in one commit"):
                store.commit([_deletion(OTHER), behind])
            same(everything(store), before, "and that commit deletes nothing")
        store.commit([_deletion(CHILD)])
        _require_gone(store, CHILD)
        same(everything(store), before, "deleting again changes nothing")


def the_position_never_falls_back(open_store: Open) -> None:
    """Positions of deleted events are not given again, were they the last ones or all of them."""
    with opened(open_store) as store:
        numbers = _fill(store)
        last = numbers.says("the last event of all", CHILD)
        store.commit([Batch(events=(last,))])
        store.commit([_deletion(CHILD)])
        same(store.position(), last.position, "the position stays when the last event goes")
        with refused(SeqConflict, "a position of a deleted event"):
            store.commit([Batch(events=(msgspec.structs.replace(_next(store, ROOT), position=last.position),))])
        store.commit([_deletion(GRANDCHILD, ROOT, OTHER)])
        same((store.position(), store.tail(0)), (last.position, []), "the position stays when every event is gone")
        new = Numbering(store.position()).says("new", SessionId("s_new"))
        store.commit([Batch(events=(new,))])
        same((store.position(), store.tail(0)), (last.position + 1, [new]), "the log goes on behind it")


def a_deletion_survives_reopening(open_store: Open) -> None:
    """Position and tombstones are of the store, not of one life of it."""
    with opened(open_store) as store:
        _fill(store)
        store.commit([_deletion(GRANDCHILD, CHILD, ROOT, OTHER)])
        position = store.position()
    for _ in range(2):
        with opened(open_store) as store:
            same((store.position(), everything(store)[1:]), (position, ([], ([], None), ([], None))), "all is gone")
            for session_id in (ROOT, CHILD):
                with refused(SeqConflict, "an event of a deleted session in a later life"):
                    store.commit([_reopening(store, session_id)])
    with opened(open_store) as store, opened(open_store) as other:
        store.commit([Batch(events=(Numbering(position).says("new", SessionId("s_new")),))])
        same(other.position(), position + 1, "the next life goes on behind the highest position")
        store.commit([_deletion(SessionId("s_new"))])
        same((other.position(), other.tail(0)), (position + 1, []), "another store sees the deletion at once")


DELETION_CHECKS: Final[tuple[Check, ...]] = (
    a_deleted_child_leaves_its_run_with_the_parent,
    a_deleted_tree_takes_its_runs_with_it,
    a_deletion_takes_what_its_own_batch_and_earlier_ones_store,
    a_deletion_is_atomic_with_its_commit,
    nothing_late_recreates_a_deleted_session,
    the_position_never_falls_back,
)
DURABLE_DELETION_CHECKS: Final[tuple[Check, ...]] = (a_deletion_survives_reopening,)


def _fill(store: Store) -> Numbering:
    """Store a tree of three levels and another root, each session with two events, a row and an output."""
    numbers = Numbering()
    for session_id, parent_id, root_id in (
        (ROOT, None, ROOT),
        (CHILD, ROOT, ROOT),
        (GRANDCHILD, CHILD, ROOT),
        (OTHER, None, OTHER),
    ):
        opening = numbers.event(header(root_id, parent_id), session_id, root_id)
        said = numbers.says("x", session_id, root_id)
        row = session_row(session_id, parent_id=parent_id)
        store.commit(
            [Batch(events=(opening, said), sessions=(row,), outputs=(_output(session_id, f"o_{session_id}"),))]
        )
    runs = (
        _run(1, CHILD),
        _run(2, GRANDCHILD, parent_id=CHILD),
        _run(3, SessionId("s_elsewhere"), parent_id=OTHER, root_id=OTHER),
    )
    store.commit([Batch(events=(), runs=runs)])
    return numbers


def _run(number: int, child_id: SessionId, **changes: Any) -> Run:
    keys: dict[str, Any] = {"status": "completed", "waiting_for": None, "child_id": child_id, **changes}
    return run(number, **keys)


def _output(session_id: SessionId, name: str) -> StoredOutput:
    return StoredOutput(output_id=OutputId(name), session_id=session_id, text=f"whole text of {name}")


def _deletion(*session_ids: SessionId) -> Batch:
    return Batch(events=(), deleted=Deletion(session_ids=session_ids))


def _next(store: Store, session_id: SessionId) -> Any:
    """Return an event that continues a session and the store."""
    numbers = Numbering(store.position())
    numbers.resume(session_id, store.last_seq(session_id))
    return numbers.says("next", session_id)


def _reopening(store: Store, session_id: SessionId) -> Batch:
    """Return a batch that would make a session with this id, behind all that could have been stored before."""
    event = Numbering(store.position() + 100).event(header(session_id), session_id, session_id)
    return Batch(events=(event,), sessions=(session_row(session_id),))


def _renumbered(batches: tuple[Batch, ...], position: int) -> list[Batch]:
    found: list[Batch] = []
    for batch in batches:
        events = [msgspec.structs.replace(e, position=position + n) for n, e in enumerate(batch.events, 1)]
        position += len(events)
        found.append(msgspec.structs.replace(batch, events=tuple(events)))
    return found


def _require_gone(store: Store, session_id: SessionId) -> None:
    found = (store.session(session_id), store.read(session_id), store.last_seq(session_id))
    same(found, (None, [], 0), f"nothing is left of {session_id}")


def _listed(store: Store) -> list[SessionId]:
    return [row.session_id for row in store.sessions(Page(), roots_only=False)[0]]


def _outputs(store: Store) -> set[SessionId]:
    """Return the sessions whose output of `_fill` is there."""
    ids = (ROOT, CHILD, GRANDCHILD, OTHER)
    return {session_id for session_id in ids if store.output(OutputId(f"o_{session_id}")) is not None}
