"""Who waits for a slot and who works: caps, order and fairness; it never starts anything itself.

Inside a root the first admissible run goes first, between roots they take turns. A run that waits only for its own
descendants holds no slot; afterwards it stands at the front of its root's queue (CONTRACT section 3, Admission).
A session has at most one run in the line or at work; its further runs are held behind that one, in their order.
"""

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from retinue.core.events import Value
from retinue.core.ids import RunId, SessionId

FRONT: Final = 0
BACK: Final = 1
LAST: Final = 1 << 62
"""The number of a ticket that is not drawn yet: behind all that are."""
Ticket = tuple[int, int]
Line = deque[tuple[Ticket, RunId]]


class Caps(Value):
    """How many may work at once; null is no limit."""

    process: int | None
    root: int | None
    parent: int | None


class Seat(Value):
    """A run as the book knows it. `session_id` is the session whose turn the run is."""

    run_id: RunId
    session_id: SessionId
    root_id: SessionId
    parent_id: SessionId


CapsOf = Callable[[SessionId], Caps]


class ScheduleBook:
    """Queues and counters; changed only by folding facts."""

    def __init__(self) -> None:
        """Begin empty."""
        self.total = 0
        self.by_root: Counter[SessionId] = Counter()
        self.by_parent: Counter[SessionId] = Counter()
        self.seats: dict[RunId, Seat] = {}
        """Every run from its first `enqueue` until it is settled."""
        self.working: dict[RunId, Seat] = {}
        """The runs that have a slot."""
        self.waiting: dict[RunId, Ticket] = {}
        """The runs in a line, and those held behind a run of their session."""
        self.parked: dict[RunId, Ticket] = {}
        self.occupied: dict[SessionId, RunId] = {}
        """Each session's one run that is in the line or running, with or without a slot."""
        self.lines: dict[SessionId, dict[SessionId, Line]] = {}
        """By root, then by parent; never empty."""
        self.held: dict[SessionId, Line] = {}
        """By session; never empty, and only where the session is occupied."""
        self.ring: dict[SessionId, None] = {}
        """The roots that have lines; who was served longest ago comes first."""
        self._queued: Counter[SessionId] = Counter()
        self._drawn = 0

    def enqueue(self, seat: Seat, *, front: bool = False) -> None:
        """Fold waiting for a slot. `front` is for a run that gave its slot up and wants one again."""
        self._drawn += 1
        self.seats[seat.run_id] = seat
        self._place(seat, (FRONT if front else BACK, self._drawn))

    def start(self, run_id: RunId) -> None:
        """Fold getting a slot: the run leaves the line and its root goes behind the others."""
        if run_id not in self.waiting:
            return
        seat = self.seats[run_id]
        self._leave_queue(seat)
        self.working[run_id] = seat
        self.total += 1
        self.by_root[seat.root_id] += 1
        self.by_parent[seat.parent_id] += 1
        if seat.root_id in self.ring:
            del self.ring[seat.root_id]
            self.ring[seat.root_id] = None

    def release(self, run_id: RunId) -> None:
        """Fold giving up the slot or the place in the queue; the session stays the run's."""
        if run_id in self.waiting:
            self._leave_queue(self.seats[run_id])
        seat = self.working.pop(run_id, None)
        if seat is None:
            return
        self.total -= 1
        _take_one(self.by_root, seat.root_id)
        _take_one(self.by_parent, seat.parent_id)

    def settle(self, run_id: RunId) -> None:
        """Fold an ending: the run gives up whatever it has; the session's next held run moves into the line."""
        seat = self.seats.get(run_id)
        if seat is None:
            return
        self._vacate(seat)
        self.release(run_id)
        self.parked.pop(run_id, None)
        del self.seats[run_id]

    def park(self, run_id: RunId) -> None:
        """Fold setting a queued run aside: it counts nowhere and occupies nothing. One that has begun is not parked."""
        ticket = self.waiting.get(run_id)
        if ticket is None or ticket[0] == FRONT:
            return
        self._vacate(self.seats[run_id])
        self.release(run_id)
        self.parked[run_id] = ticket

    def unpark(self, run_id: RunId) -> None:
        """Fold the return of a parked run, with the ticket it had."""
        ticket = self.parked.pop(run_id, None)
        if ticket is not None:
            self._place(self.seats[run_id], ticket)

    def queue_length(self, root_id: SessionId) -> int:
        """Return how many wait below a root, in a line or held; parked ones do not count."""
        return self._queued[root_id]

    def line_length(self, root_id: SessionId) -> int:
        """Return how many stand in the lines of a root."""
        return sum(len(line) for line in self.lines.get(root_id, {}).values())

    def _place(self, seat: Seat, ticket: Ticket) -> None:
        self.waiting[seat.run_id] = ticket
        self._queued[seat.root_id] += 1
        if self.occupied.get(seat.session_id, seat.run_id) == seat.run_id:
            self._line_up(seat, ticket)
        else:
            insort(self.held.setdefault(seat.session_id, deque()), (ticket, seat.run_id))

    def _line_up(self, seat: Seat, ticket: Ticket) -> None:
        self.occupied[seat.session_id] = seat.run_id
        line = self.lines.setdefault(seat.root_id, {}).setdefault(seat.parent_id, deque())
        insort(line, (ticket, seat.run_id))
        self.ring.setdefault(seat.root_id)

    def _vacate(self, seat: Seat) -> None:
        # The next run moves up before this one leaves the line: a root that goes on waiting keeps its turn.
        if self.occupied.get(seat.session_id) != seat.run_id:
            return
        del self.occupied[seat.session_id]
        held = self.held.get(seat.session_id)
        if held is None:
            return
        ticket, run_id = held.popleft()
        if not held:
            del self.held[seat.session_id]
        self._line_up(self.seats[run_id], ticket)

    def _leave_queue(self, seat: Seat) -> None:
        entry = (self.waiting.pop(seat.run_id), seat.run_id)
        _take_one(self._queued, seat.root_id)
        held = self.held.get(seat.session_id)
        if held is not None and _strike(held, entry):
            if not held:
                del self.held[seat.session_id]
            return
        lines = self.lines[seat.root_id]
        line = lines[seat.parent_id]
        _strike(line, entry)
        if not line:
            del lines[seat.parent_id]
        if not lines:
            del self.lines[seat.root_id]
            self.ring.pop(seat.root_id, None)


class Plan:
    """What would be admitted if some runs left and some joined; the book itself stays as it is.

    Suppose things in the order in which they will be folded.
    """

    def __init__(self, book: ScheduleBook, caps_of: CapsOf) -> None:
        """Look at the book as it is now."""
        self._book = book
        self._caps_of = caps_of
        self._total = book.total
        self._root_delta: Counter[SessionId] = Counter()
        self._parent_delta: Counter[SessionId] = Counter()
        self._line_delta: Counter[SessionId] = Counter()
        self._gone: set[RunId] = set()
        self._occupied: dict[SessionId, RunId | None] = {}
        """Where it differs from the book."""
        self._lined_up: dict[RunId, tuple[Ticket, Seat]] = {}
        """The runs that would stand in a line and do not yet."""
        self._held: dict[SessionId, list[tuple[Ticket, Seat]]] = {}
        """The runs that would be held and are not known to the book as such, by session."""
        self._ring = dict(book.ring)

    def leave(self, run_id: RunId, *, settled: bool = False) -> None:
        """Suppose the run gives up its slot or place; `settled`, that it ends (or is parked) and frees its session."""
        seat = self._book.seats.get(run_id)
        if seat is None or run_id in self._gone:
            return
        stands = self._stands_in_line(seat)
        self._gone.add(run_id)
        if settled and self._occupant(seat.session_id) == run_id:
            self._move_up(seat.session_id)
        if run_id in self._book.working:
            self._total -= 1
            self._root_delta[seat.root_id] -= 1
            self._parent_delta[seat.parent_id] -= 1
        elif stands:
            self._line_delta[seat.root_id] -= 1
            if not self._book.line_length(seat.root_id) + self._line_delta[seat.root_id]:
                del self._ring[seat.root_id]

    def join(self, seat: Seat, *, front: bool = False) -> None:
        """Suppose the run joins the queue; a parked one comes back with the ticket it had.

        It is no candidate while another run has its session.
        """
        ticket = self._book.parked.get(seat.run_id, (FRONT if front else BACK, LAST))
        if front or self._occupant(seat.session_id) is None:
            self._line_up(seat, ticket)
        else:
            self._held.setdefault(seat.session_id, []).append((ticket, seat))

    def admit(self) -> list[Seat]:
        """Return who gets a slot, in order."""
        admitted: list[Seat] = []
        ring = deque(self._ring)
        while ring:
            root_id = ring.popleft()
            seat = self._first(root_id)
            if seat is not None:
                self._take(seat)
                admitted.append(seat)
                ring.append(root_id)
        return admitted

    def _occupant(self, session_id: SessionId) -> RunId | None:
        return self._occupied.get(session_id, self._book.occupied.get(session_id))

    def _stands_in_line(self, seat: Seat) -> bool:
        run_id = seat.run_id
        if run_id in self._lined_up:
            return True
        return run_id in self._book.waiting and self._book.occupied[seat.session_id] == run_id

    def _line_up(self, seat: Seat, ticket: Ticket) -> None:
        self._occupied[seat.session_id] = seat.run_id
        self._lined_up[seat.run_id] = (ticket, seat)
        self._line_delta[seat.root_id] += 1
        self._ring.setdefault(seat.root_id)

    def _move_up(self, session_id: SessionId) -> None:
        self._occupied[session_id] = None
        held = self._book.held.get(session_id, ())
        # Whoever moved up before and is here again has gone.
        known = next(((ticket, self._book.seats[run]) for ticket, run in held if run not in self._gone), None)
        fresh = (entry for entry in self._held.get(session_id, ()) if entry[1].run_id not in self._gone)
        entries = [*fresh] if known is None else [known, *fresh]
        if entries:
            ticket, seat = min(entries, key=_by_ticket)
            self._line_up(seat, ticket)

    def _take(self, seat: Seat) -> None:
        self._gone.add(seat.run_id)
        self._total += 1
        self._root_delta[seat.root_id] += 1
        self._parent_delta[seat.parent_id] += 1

    def _first(self, root_id: SessionId) -> Seat | None:
        caps = self._caps_of(root_id)
        if _full(self._total, caps.process):
            return None
        if _full(self._book.by_root[root_id] + self._root_delta[root_id], caps.root):
            return None
        candidates = [entry for entry in self._heads(root_id) if not self._parent_full(entry[1].parent_id, caps.parent)]
        return min(candidates, key=_by_ticket)[1] if candidates else None

    def _heads(self, root_id: SessionId) -> list[tuple[Ticket, Seat]]:
        heads: list[tuple[Ticket, Seat]] = []
        for line in self._book.lines.get(root_id, {}).values():
            for ticket, run_id in line:
                if run_id not in self._gone:
                    heads.append((ticket, self._book.seats[run_id]))
                    break
        for ticket, seat in self._lined_up.values():
            if seat.root_id == root_id and seat.run_id not in self._gone:
                heads.append((ticket, seat))
        return heads

    def _parent_full(self, parent_id: SessionId, cap: int | None) -> bool:
        return _full(self._book.by_parent[parent_id] + self._parent_delta[parent_id], cap)


def _by_ticket(entry: tuple[Ticket, Seat]) -> Ticket:
    return entry[0]


def _full(count: int, cap: int | None) -> bool:
    return cap is not None and count >= cap


def _take_one(counter: Counter[SessionId], key: SessionId) -> None:
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]


def _strike(line: Line, entry: tuple[Ticket, RunId]) -> bool:
    # Lines are in ticket order: nobody looks through a long one.
    index = bisect_left(line, entry)
    if index == len(line) or line[index] != entry:
        return False
    del line[index]
    return True
