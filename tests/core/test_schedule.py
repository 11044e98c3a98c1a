"""The schedule book and its plan against a plain twin: caps, order, fairness, returning and parked runs, sessions."""

from collections import Counter
from typing import Any, Literal

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from retinue.core.ids import RunId, SessionId
from retinue.core.schedule import Caps, Plan, ScheduleBook, Seat
from tests.core.schedule_twin import Twin

ROOTS = ("s_a", "s_b", "s_c")
CAP = st.none() | st.integers(1, 4)
Step = tuple[Literal["join", "return", "yield", "settle", "park", "unpark"], str]


def seat(run: str, root: str, parent: str, session: str | None = None) -> Seat:
    child = SessionId(session or f"s_of_{run}")
    return Seat(run_id=RunId(run), session_id=child, root_id=SessionId(root), parent_id=SessionId(parent))


class Hall:
    """The book, driven as decisions and folds drive it: plan first, then apply what was planned."""

    def __init__(self) -> None:
        self.book = ScheduleBook()
        self.seats: dict[str, Seat] = {}
        self.caps: dict[str, Caps] = {}

    def caps_of(self, root_id: SessionId) -> Caps:
        return self.caps.get(root_id, Caps(process=None, root=None, parent=None))

    def decide(self, *steps: Step) -> list[str]:
        """One decision: everything is supposed first, then folded; who was planned must be who the book shows then."""
        plan = Plan(self.book, self.caps_of)
        for step in steps:
            self._suppose(plan, step)
        admitted = plan.admit()
        for step in steps:
            self._fold(step)
        assert Plan(self.book, self.caps_of).admit() == admitted, "the plan foresaw something else than came"
        for one in admitted:
            self.book.start(one.run_id)
        return [str(one.run_id) for one in admitted]

    def join(self, seat: Seat, *, front: bool = False, reject: bool = False) -> list[str]:
        self.seats[seat.run_id] = seat
        plan = Plan(self.book, self.caps_of)
        plan.join(seat, front=front)
        if reject and seat not in plan.admit():
            return []
        return self.decide(("return" if front else "join", str(seat.run_id)))

    def leave(self, run: str) -> list[str]:
        return self.decide(("settle", run))

    def _suppose(self, plan: Plan, step: Step) -> None:
        what, run = step
        match what:
            case "join" | "unpark":
                plan.join(self.seats[run])
            case "return":
                plan.join(self.seats[run], front=True)
            case "yield":
                plan.leave(RunId(run))
            case "settle" | "park":
                plan.leave(RunId(run), settled=True)

    def _fold(self, step: Step) -> None:
        what, run = step
        if what in ("join", "return"):
            self.book.enqueue(self.seats[run], front=what == "return")
            return
        book = self.book
        fold = {"yield": book.release, "settle": book.settle, "park": book.park, "unpark": book.unpark}[what]
        fold(RunId(run))


class Admission(RuleBasedStateMachine):
    """Every order of spawn, message, settle, cancel, yield, return, park and cap change, alone and in one decision."""

    def __init__(self) -> None:
        super().__init__()
        self.hall = Hall()
        self.twin = Twin()
        self.yielded: list[str] = []
        self.made = 0
        self.begun: dict[str, list[str]] = {}
        """Each session's runs in the order in which they first got a slot."""
        self.ended: set[str] = set()
        self.were_parked: set[str] = set()

    @initialize(process=st.integers(1, 3))
    def begin_narrow(self, process: int) -> None:
        """Several roots wait at once only where the process is the narrow place."""
        self.change_caps("s_a", process, None, None)

    @rule(root=st.sampled_from(ROOTS), parent=st.integers(0, 2), reject=st.booleans())
    def spawn(self, root: str, parent: int, reject: bool) -> None:
        self.made += 1
        run, parent_id = f"r_{self.made}", f"{root}_{parent}"
        self.twin.wait(run, root, parent_id, session=f"s_of_{run}")
        expected = self._admitted()
        if reject and run not in expected:
            assert expected == [], "a spawn let somebody else in who could have been in before"
            self.twin.leave(run)
            self.ended.add(run)
        assert self.hall.join(seat(run, root, parent_id), reject=reject) == expected

    @precondition(lambda self: self.twin.sitting)
    @rule(data=st.data(), reject=st.booleans())
    def send_a_message(self, data: st.DataObject, reject: bool) -> None:
        """A further run on a session that has one, running or waiting."""
        session, sitting = data.draw(st.sampled_from(sorted(self.twin.sitting.items())))
        run = self._message(session, sitting)
        expected = self._admitted()
        if reject:
            assert expected == []
            self.twin.leave(run)
            self.ended.add(run)
        assert self.hall.join(self.hall.seats[run], reject=reject) == expected

    @precondition(lambda self: self.twin.working)
    @rule(data=st.data(), comes_back=st.booleans())
    def stop_working(self, data: st.DataObject, comes_back: bool) -> None:
        run = data.draw(st.sampled_from(self.twin.working))
        self._apply(("yield" if comes_back else "settle", run))

    @precondition(lambda self: self.yielded)
    @rule(data=st.data(), ends=st.booleans())
    def come_back(self, data: st.DataObject, ends: bool) -> None:
        run = data.draw(st.sampled_from(self.yielded))
        self._apply(("settle" if ends else "return", run))

    @precondition(lambda self: self._parkable())
    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        self._apply(("park", data.draw(st.sampled_from(self._parkable()))))

    @precondition(lambda self: self.twin.parked)
    @rule(data=st.data(), ends=st.booleans())
    def unpark(self, data: st.DataObject, ends: bool) -> None:
        self._apply(("settle" if ends else "unpark", data.draw(st.sampled_from(self.twin.parked))))

    @rule(data=st.data(), size=st.integers(1, 5))
    def much_in_one_decision(self, data: st.DataObject, size: int) -> None:
        """As a cancel in the queue, an interrupt, a cancel of a whole tree, or a waking message do it."""
        steps: list[Step] = []
        for _ in range(size):
            choices = self._choices({run for _, run in steps})
            if choices:
                steps.append(data.draw(st.sampled_from(choices)))
        self._apply(*steps)

    @rule(root=st.sampled_from(ROOTS), process=CAP, of_root=CAP, parent=CAP)
    def change_caps(self, root: str, process: int | None, of_root: int | None, parent: int | None) -> None:
        before = list(self.twin.working)
        for name in ROOTS:
            mine = self.twin.caps.get(name, {"root": None, "parent": None})
            own = {"root": of_root, "parent": parent} if name == root else mine
            self.twin.caps[name] = {**own, "process": process}
            self.hall.caps[name] = Caps(process=process, root=own["root"], parent=own["parent"])
        assert self.hall.decide() == self._admitted()
        assert self.twin.working[: len(before)] == before, "a cap change stopped somebody"

    def _message(self, session: str, like: str) -> str:
        self.made += 1
        run = f"r_{self.made}"
        root, parent = self.twin.home[like]
        self.hall.seats[run] = seat(run, root, parent, session)
        self.twin.wait(run, root, parent, session=session)
        return run

    def _waiting(self) -> list[str]:
        return [run for queue in self.twin.queues.values() for run in queue]

    def _parkable(self) -> list[str]:
        return [run for run in self._waiting() if run not in self.twin.returning]

    def _choices(self, taken: set[str]) -> list[Step]:
        every: list[Step] = [
            *(("settle", run) for run in (*self.twin.working, *self._waiting(), *self.yielded, *self.twin.parked)),
            *(("yield", run) for run in self.twin.working),
            *(("return", run) for run in self.yielded),
            *(("park", run) for run in self._parkable()),
            *(("unpark", run) for run in self.twin.parked),
        ]
        return [step for step in every if step[1] not in taken]

    def _apply(self, *steps: Step) -> None:
        for what, run in steps:
            root, parent = self.twin.home[run]
            if run in self.yielded:
                self.yielded.remove(run)
            match what:
                case "settle":
                    self.twin.leave(run)
                    self.ended.add(run)
                case "yield":
                    self.twin.rest(run)
                    self.yielded.append(run)
                case "return":
                    self.twin.wait(run, root, parent, front=True)
                case "park":
                    self.twin.park(run)
                    self.were_parked.add(run)
                case "unpark":
                    self.twin.unpark(run)
        assert self.hall.decide(*steps) == self._admitted()

    def _admitted(self) -> list[str]:
        admitted = self.twin.admit()
        for run in admitted:
            begun = self.begun.setdefault(self.twin.session[run], [])
            if run not in begun:
                begun.append(run)
        return admitted

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
        assert not any(self.twin.may_work(run) for run in self._waiting())

    @invariant()
    def nothing_is_lost_and_nothing_stays(self) -> None:
        book = self.hall.book
        known = {run for run in self.twin.home if run not in self.ended}
        assert set(book.seats) == known
        assert set(book.waiting) == set(self._waiting())
        assert set(book.parked) == set(self.twin.parked)
        assert not book.parked.keys() & {*book.working, *book.waiting}, "the parked never work"
        assert {*book.working, *book.waiting, *book.parked, *self.yielded} == known
        assert dict(book.occupied) == self.twin.sitting

    @invariant()
    def a_session_has_one_run_at_work_and_keeps_the_order_of_its_messages(self) -> None:
        sessions = [self.twin.session[run] for run in (*self.twin.working, *self.yielded, *self.twin.returning)]
        assert len(sessions) == len(set(sessions))
        for begun in self.begun.values():
            numbers = [int(run[2:]) for run in begun if run not in self.were_parked]
            assert numbers == sorted(numbers)

    @invariant()
    def roots_without_waiting_runs_leave_nothing(self) -> None:
        book = self.hall.book
        assert set(book.lines) == set(book.ring)
        assert list(book.ring) == self.twin.turns
        assert all(line for lines in book.lines.values() for line in lines.values())
        assert all(book.held.values())


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
    assert hall.decide() == []
    assert hall.book.total == 3
    assert [hall.leave(f"r_{number}") for number in range(3)] == [[], [], ["r_3"]]
    hall.caps = {"s_a": Caps(process=None, root=2, parent=None)}
    assert hall.decide() == ["r_4"], "raising admits at once"


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
    book.settle(RunId("r_1"))
    assert (book.total, dict(book.working), dict(book.waiting)) == (0, {}, {})


def queue_of_messages(hall: Hall, *runs: str) -> None:
    for run in runs:
        hall.join(seat(run, "s_a", "s_a", "s_kid"))


def test_S16_messages_to_one_session_run_one_after_another_in_their_order() -> None:
    hall = Hall()
    queue_of_messages(hall, "r_1", "r_2", "r_3", "r_4", "r_5")
    assert list(hall.book.working) == ["r_1"], "room for all, but one session has one turn"
    assert hall.book.queue_length(SessionId("s_a")) == 4
    assert hall.leave("r_1") == ["r_2"]
    assert hall.leave("r_2") == ["r_3"]
    assert hall.decide(("settle", "r_3"), ("settle", "r_4")) == ["r_5"], "also when several end in one decision"


def test_a_run_that_yielded_keeps_its_session() -> None:
    hall = Hall()
    queue_of_messages(hall, "r_1", "r_2")
    assert hall.decide(("yield", "r_1")) == []
    assert hall.decide(("return", "r_1")) == ["r_1"]
    assert hall.decide(("yield", "r_1")) == []
    assert hall.leave("r_1") == ["r_2"]


def test_a_held_run_enters_the_line_with_the_ticket_it_drew() -> None:
    hall = Hall()
    hall.caps = {"s_a": Caps(process=1, root=None, parent=None)}
    queue_of_messages(hall, "r_1", "r_2")
    hall.join(seat("r_3", "s_a", "s_a"))
    assert hall.leave("r_1") == ["r_2"], "it came before r_3"
    hall.join(seat("r_4", "s_a", "s_a"))
    hall.decide(("park", "r_3"))
    assert hall.decide(("unpark", "r_3"), ("settle", "r_2")) == ["r_3"], "parked meanwhile, it still comes before r_4"


def test_a_message_to_a_session_whose_run_still_waits_is_held_behind_it() -> None:
    hall = Hall()
    hall.caps = {"s_a": Caps(process=1, root=None, parent=None)}
    hall.join(seat("r_0", "s_a", "s_a"))
    queue_of_messages(hall, "r_1", "r_2")
    assert hall.leave("r_1") == [], "cancelled in the line: the next one moves up"
    assert hall.leave("r_0") == ["r_2"]


def test_S20_an_interrupt_that_parks_the_queue_starts_none_of_it_and_frees_the_slot_for_others() -> None:
    hall = Hall()
    hall.caps = {"s_a": Caps(process=1, root=None, parent=None)}
    queue_of_messages(hall, "r_1", "r_2", "r_3")
    hall.join(seat("r_4", "s_a", "s_a"))
    assert hall.decide(("settle", "r_1"), ("park", "r_2"), ("park", "r_3")) == ["r_4"]
    assert hall.book.queue_length(SessionId("s_a")) == 0
    assert SessionId("s_kid") not in hall.book.occupied
    queue_of_messages(hall, "r_5")
    assert hall.decide(("unpark", "r_3"), ("unpark", "r_2"), ("settle", "r_4")) == ["r_5"], "who sits, sits"
    assert hall.leave("r_5") == ["r_2"], "the parked ones come back in the order of their tickets"
    assert hall.leave("r_2") == ["r_3"]


def test_a_waking_message_lets_the_parked_ones_go_first() -> None:
    hall = Hall()
    queue_of_messages(hall, "r_1", "r_2")
    assert hall.decide(("settle", "r_1"), ("park", "r_2")) == []
    hall.seats["r_3"] = seat("r_3", "s_a", "s_a", "s_kid")
    assert hall.decide(("unpark", "r_2"), ("join", "r_3")) == ["r_2"]
    assert hall.leave("r_2") == ["r_3"]


def test_of_several_that_join_one_session_in_one_decision_the_plan_admits_one() -> None:
    hall = Hall()
    for run in ("r_1", "r_2"):
        hall.seats[run] = seat(run, "s_a", "s_a", "s_kid")
    assert hall.decide(("join", "r_1"), ("join", "r_2")) == ["r_1"]
    hall.seats["r_3"] = seat("r_3", "s_a", "s_a", "s_kid")
    assert hall.decide(("join", "r_3"), ("settle", "r_2"), ("settle", "r_1")) == ["r_3"]


def test_a_root_whose_waiting_run_is_replaced_by_a_sibling_keeps_its_turn_and_one_that_left_does_not() -> None:
    hall = Hall()
    hall.caps = {root: Caps(process=1, root=None, parent=None) for root in ROOTS}
    hall.join(seat("r_0", "s_c", "s_c"))
    queue_of_messages(hall, "r_1", "r_2")
    hall.join(seat("r_b", "s_b", "s_b"))
    assert hall.decide(("settle", "r_1"), ("settle", "r_0")) == ["r_2"]
    assert hall.leave("r_2") == ["r_b"]
    for run, root in (("r_3", "s_a"), ("r_c", "s_c"), ("r_4", "s_a")):
        hall.seats[run] = seat(run, root, root)
    hall.decide(("join", "r_3"), ("join", "r_c"))
    assert hall.decide(("settle", "r_3"), ("join", "r_4"), ("settle", "r_b")) == ["r_c"], "a newcomer's root comes last"


def test_one_decision_cancels_a_thousand_held_and_waiting_runs_and_leaves_nothing() -> None:
    hall = Hall()
    hall.caps = {"s_a": Caps(process=1, root=None, parent=None)}
    for number in range(1000):
        hall.join(seat(f"r_{number}", "s_a", f"s_{number % 3}", f"s_kid_{number % 30}"))
    steps: list[Step] = [("settle", run) for run in reversed(hall.seats)]
    assert hall.decide(*steps) == []
    book = hall.book
    assert (book.seats, book.waiting, book.held, book.lines, book.ring, book.occupied) == ({}, {}, {}, {}, {}, {})


def test_what_is_supposed_twice_or_of_nobody_counts_once_or_not_at_all() -> None:
    hall = Hall()
    hall.caps = {"s_a": Caps(process=1, root=None, parent=None)}
    for run in ("r_1", "r_2", "r_3"):
        hall.join(seat(run, "s_a", "s_a"))
    plan = Plan(hall.book, hall.caps_of)
    for run in ("r_1", "r_1", "r_nobody"):
        plan.leave(RunId(run), settled=True)
    assert [one.run_id for one in plan.admit()] == ["r_2"]


def test_who_has_begun_is_not_parked_and_who_is_not_parked_does_not_come_back() -> None:
    hall = Hall()
    hall.caps = {"s_a": Caps(process=1, root=None, parent=None)}
    hall.join(seat("r_1", "s_a", "s_a"))
    hall.join(seat("r_2", "s_a", "s_a"))
    hall.decide(("yield", "r_1"))
    hall.decide(("return", "r_1"))
    for run in ("r_1", "r_2", "r_nobody"):
        hall.book.park(RunId(run))
        hall.book.unpark(RunId(run))
    assert (list(hall.book.parked), list(hall.book.waiting), list(hall.book.working)) == ([], ["r_1"], ["r_2"])


def test_a_held_run_that_is_released_leaves_its_place() -> None:
    hall = Hall()
    queue_of_messages(hall, "r_1", "r_2")
    hall.book.release(RunId("r_2"))
    assert (hall.book.held, hall.book.waiting) == ({}, {})
    assert hall.leave("r_1") == []
