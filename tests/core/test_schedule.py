"""The schedule book and its plan against a plain twin: caps, order, fairness, returning runs, changing caps."""

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from retinue.core.ids import RunId, SessionId
from retinue.core.schedule import Caps, Plan, ScheduleBook, Seat
from tests.core.schedule_twin import Twin

ROOTS = ("s_a", "s_b", "s_c")
CAP = st.none() | st.integers(1, 4)


def seat(run: str, root: str, parent: str) -> Seat:
    return Seat(run_id=RunId(run), root_id=SessionId(root), parent_id=SessionId(parent))


class Hall:
    """The book, driven as decisions and folds drive it: plan first, then apply what was planned."""

    def __init__(self) -> None:
        self.book = ScheduleBook()
        self.seats: dict[str, Seat] = {}
        self.caps: dict[str, Caps] = {}

    def caps_of(self, root_id: SessionId) -> Caps:
        return self.caps.get(root_id, Caps(process=None, root=None, parent=None))

    def join(self, seat: Seat, *, front: bool = False, reject: bool = False) -> list[str]:
        plan = Plan(self.book, self.caps_of)
        plan.join(seat, front=front)
        admitted = plan.admit()
        if reject and seat not in admitted:
            return []
        self.seats[seat.run_id] = seat
        self.book.enqueue(seat, front=front)
        return self._start(admitted)

    def leave(self, run: str) -> list[str]:
        plan = Plan(self.book, self.caps_of)
        plan.leave(RunId(run))
        admitted = plan.admit()
        self.book.release(RunId(run))
        return self._start(admitted)

    def look(self) -> list[str]:
        return self._start(Plan(self.book, self.caps_of).admit())

    def _start(self, admitted: list[Seat]) -> list[str]:
        for one in admitted:
            self.book.start(one.run_id)
        return [str(one.run_id) for one in admitted]


class Admission(RuleBasedStateMachine):
    """Every order of spawn, settle, cancel, yield, return and cap change."""

    def __init__(self) -> None:
        super().__init__()
        self.hall = Hall()
        self.twin = Twin()
        self.yielded: list[str] = []
        self.made = 0

    @initialize(process=st.integers(1, 3))
    def begin_narrow(self, process: int) -> None:
        """Several roots wait at once only where the process is the narrow place."""
        self.change_caps("s_a", process, None, None)

    @rule(root=st.sampled_from(ROOTS), parent=st.integers(0, 2), reject=st.booleans())
    def spawn(self, root: str, parent: int, reject: bool) -> None:
        self.made += 1
        run, parent_id = f"r_{self.made}", f"{root}_{parent}"
        self.twin.wait(run, root, parent_id)
        expected = self.twin.admit()
        if reject and run not in expected:
            assert expected == [], "a spawn let somebody else in who could have been in before"
            self.twin.leave(run)
        assert self.hall.join(seat(run, root, parent_id), reject=reject) == expected

    @precondition(lambda self: self.twin.working)
    @rule(data=st.data(), comes_back=st.booleans())
    def stop_working(self, data: st.DataObject, comes_back: bool) -> None:
        run = data.draw(st.sampled_from(self.twin.working))
        self.twin.leave(run)
        assert self.hall.leave(run) == self.twin.admit()
        if comes_back:
            self.yielded.append(run)

    @precondition(lambda self: self.twin.queues)
    @rule(data=st.data())
    def cancel_in_the_queue(self, data: st.DataObject) -> None:
        waiting = [run for queue in self.twin.queues.values() for run in queue]
        run = data.draw(st.sampled_from(waiting))
        self.twin.leave(run)
        assert self.hall.leave(run) == self.twin.admit()

    @precondition(lambda self: self.yielded)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self.yielded))
        self.yielded.remove(run)
        root, parent = self.twin.home[run]
        self.twin.wait(run, root, parent, front=True)
        assert self.hall.join(self.hall.seats[run], front=True) == self.twin.admit()

    @rule(root=st.sampled_from(ROOTS), process=CAP, of_root=CAP, parent=CAP)
    def change_caps(self, root: str, process: int | None, of_root: int | None, parent: int | None) -> None:
        before = list(self.twin.working)
        for name in ROOTS:
            mine = self.twin.caps.get(name, {"root": None, "parent": None})
            own = {"root": of_root, "parent": parent} if name == root else mine
            self.twin.caps[name] = {**own, "process": process}
            self.hall.caps[name] = Caps(process=process, root=own["root"], parent=own["parent"])
        assert self.hall.look() == self.twin.admit()
        assert self.twin.working[: len(before)] == before, "a cap change stopped somebody"

    @invariant()
    def the_counters_are_true(self) -> None:
        book, counts = self.hall.book, self.twin.counts()
        assert book.total == counts["total"]
        assert dict(book.by_root) == counts["root"]
        assert dict(book.by_parent) == counts["parent"]
        assert set(book.working) == set(self.twin.working)
        assert {root: book.queue_length(SessionId(root)) for root in ROOTS if book.queue_length(SessionId(root))} == (
            counts["waiting"]
        )

    @invariant()
    def nobody_waits_who_could_work(self) -> None:
        assert Plan(self.hall.book, self.hall.caps_of).admit() == []

    @invariant()
    def roots_without_waiting_runs_leave_nothing(self) -> None:
        assert set(self.hall.book.lines) == set(self.twin.queues)
        assert list(self.hall.book.ring) == self.twin.turns


TestAdmission = Admission.TestCase
TestAdmission.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def crowd(hall: Hall, waiting: int, roots: int) -> None:
    """One run works; the others come in root by root, so that only fairness can mix them."""
    for number in range(waiting):
        root = f"s_{number * roots // waiting}"
        hall.join(seat(f"r_{number}", root, f"{root}_{number % 2}"))


def drained(hall: Hall) -> list[str]:
    """Every run in the order in which it got its slot."""
    order = [str(run) for run in hall.book.working]
    for run in order:
        order.extend(hall.leave(run))
    return order


def test_S9_a_thousand_waiters_are_served_in_order_inside_a_root_and_in_turn_between_roots() -> None:
    hall = Hall()
    roots = 4
    hall.caps = {f"s_{root}": Caps(process=1, root=1, parent=None) for root in range(roots)}
    crowd(hall, 1001, roots)
    assert len(hall.book.waiting) == 1000
    order = drained(hall)
    assert len(order) == len(set(order)) == 1001
    by_root: dict[str, list[int]] = {}
    for run in order:
        by_root.setdefault(hall.seats[run].root_id, []).append(int(run[2:]))
    assert all(numbers == sorted(numbers) for numbers in by_root.values()), "FIFO inside a root"
    served: Counter[str] = Counter()
    for run in order:
        served[hall.seats[run].root_id] += 1
        open_roots = [root for root, numbers in by_root.items() if served[SessionId(root)] < len(numbers)]
        counts = [served[SessionId(root)] for root in open_roots]
        assert max(counts, default=0) - min(counts, default=0) <= 2, "between roots with waiters nobody runs ahead"


def test_a_full_root_blocks_no_other() -> None:
    hall = Hall()
    hall.caps = {"s_a": Caps(process=8, root=1, parent=None), "s_b": Caps(process=8, root=2, parent=None)}
    for number in range(5):
        hall.join(seat(f"r_a{number}", "s_a", "s_a"))
    assert hall.join(seat("r_b", "s_b", "s_b")) == ["r_b"]


def test_a_full_parent_lets_the_next_parents_run_pass() -> None:
    hall = Hall()
    hall.caps = {"s_a": Caps(process=None, root=2, parent=1)}
    assert hall.join(seat("r_1", "s_a", "s_p")) == ["r_1"]
    assert hall.join(seat("r_2", "s_a", "s_p")) == []
    assert hall.join(seat("r_3", "s_a", "s_q")) == ["r_3"], "the first admissible one, not the first one"


def test_a_run_that_yielded_stands_before_all_that_never_ran_and_behind_those_that_returned_earlier() -> None:
    hall = Hall()
    hall.caps = {"s_a": Caps(process=1, root=None, parent=None)}
    first, second = seat("r_1", "s_a", "s_p"), seat("r_2", "s_a", "s_q")
    hall.join(first)
    hall.join(second)
    assert hall.leave("r_1") == ["r_2"]
    assert hall.leave("r_2") == []
    hall.join(seat("r_3", "s_a", "s_p"))
    hall.join(seat("r_4", "s_a", "s_p"))
    hall.join(second, front=True)
    hall.join(first, front=True)
    assert hall.leave("r_3") == ["r_2"]
    assert hall.leave("r_2") == ["r_1"]
    assert hall.leave("r_1") == ["r_4"]


def test_S4_lowering_a_cap_stops_nobody_and_starts_nobody_until_use_has_dropped() -> None:
    hall = Hall()
    hall.caps = {"s_a": Caps(process=None, root=3, parent=None)}
    for number in range(5):
        hall.join(seat(f"r_{number}", "s_a", "s_a"))
    hall.caps = {"s_a": Caps(process=None, root=1, parent=None)}
    assert hall.look() == []
    assert hall.book.total == 3
    assert [hall.leave(f"r_{number}") for number in range(3)] == [[], [], ["r_3"]]
    hall.caps = {"s_a": Caps(process=None, root=2, parent=None)}
    assert hall.look() == ["r_4"], "raising admits at once"


def test_cancelling_far_back_in_a_long_queue_leaves_nothing_of_the_cancelled_behind() -> None:
    hall = Hall()
    hall.caps = {"s_a": Caps(process=1, root=None, parent=None)}
    hall.join(seat("r_works", "s_a", "s_a"))
    hall.join(seat("r_first", "s_a", "s_a"))
    for number in range(500):
        hall.join(seat(f"r_{number}", "s_a", "s_a"))
        hall.leave(f"r_{number}")
    kept: Any = hall.book.lines[SessionId("s_a")][SessionId("s_a")]
    assert len(kept) <= 20, "an unbounded thing is a bug"


def test_starting_or_releasing_a_run_that_is_not_there_changes_nothing() -> None:
    book = ScheduleBook()
    book.start(RunId("r_1"))
    book.release(RunId("r_1"))
    assert (book.total, dict(book.working), dict(book.waiting)) == (0, {}, {})
