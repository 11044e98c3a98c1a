"""Who waits for a slot and who works: caps, order and fairness; it never starts anything itself.

Inside a root the first admissible run goes first, between roots they take turns. A run that waits only for its own
descendants holds no slot; afterwards it stands at the front of its root's queue (CONTRACT section 3, Admission).
"""

from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from retinue.core.events import Value
from retinue.core.ids import RunId, SessionId

FRONT: Final = 0
BACK: Final = 1
Ticket = tuple[int, int]


class Caps(Value):
    """How many may work at once; null is no limit."""

    process: int | None
    root: int | None
    parent: int | None


class Seat(Value):
    """A run as the book knows it."""

    run_id: RunId
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
        self.working: dict[RunId, Seat] = {}
        self.waiting: dict[RunId, tuple[Seat, Ticket]] = {}
        self.lines: dict[SessionId, dict[SessionId, deque[tuple[Ticket, RunId]]]] = {}
        self.waiting_by_root: Counter[SessionId] = Counter()
        self.ring: dict[SessionId, None] = {}
        self._drawn = 0

    def enqueue(self, seat: Seat, *, front: bool = False) -> None:
        """Fold waiting for a slot."""
        self._drawn += 1
        ticket = (FRONT if front else BACK, self._drawn)
        self.waiting[seat.run_id] = (seat, ticket)
        line = self.lines.setdefault(seat.root_id, {}).setdefault(seat.parent_id, deque())
        if front:
            # Re-entrants keep their own order before everybody else; there are at most as many as there are parents.
            index = sum(1 for held, _ in line if held[0] == FRONT)
            line.insert(index, (ticket, seat.run_id))
        else:
            line.append((ticket, seat.run_id))
        self.waiting_by_root[seat.root_id] += 1
        self.ring.setdefault(seat.root_id)

    def start(self, run_id: RunId) -> None:
        """Fold getting a slot: the run leaves the queue and its root goes behind the others."""
        seat = self._leave_queue(run_id)
        if seat is None:
            return
        self.working[run_id] = seat
        self.total += 1
        self.by_root[seat.root_id] += 1
        self.by_parent[seat.parent_id] += 1
        if seat.root_id in self.ring:
            del self.ring[seat.root_id]
            self.ring[seat.root_id] = None

    def release(self, run_id: RunId) -> None:
        """Fold giving up whatever the run has: a slot, or a place in the queue."""
        self._leave_queue(run_id)
        seat = self.working.pop(run_id, None)
        if seat is None:
            return
        self.total -= 1
        _take_one(self.by_root, seat.root_id)
        _take_one(self.by_parent, seat.parent_id)

    def queue_length(self, root_id: SessionId) -> int:
        """Return how many wait below a root."""
        return self.waiting_by_root[root_id]

    def _leave_queue(self, run_id: RunId) -> Seat | None:
        held = self.waiting.pop(run_id, None)
        if held is None:
            return None
        seat, ticket = held
        _take_one(self.waiting_by_root, seat.root_id)
        lines = self.lines[seat.root_id]
        line = lines[seat.parent_id]
        # Found at once by who is admitted; only a cancel far back looks through the line.
        line.remove((ticket, run_id))
        if not line:
            del lines[seat.parent_id]
        if not lines:
            del self.lines[seat.root_id]
            self.ring.pop(seat.root_id, None)
        return seat


class Plan:
    """What would be admitted if some slots were given up and some runs joined; the book itself stays as it is."""

    def __init__(self, book: ScheduleBook, caps_of: CapsOf) -> None:
        """Look at the book as it is now."""
        self._book = book
        self._caps_of = caps_of
        self._total = book.total
        self._root_delta: Counter[SessionId] = Counter()
        self._parent_delta: Counter[SessionId] = Counter()
        self._gone: set[RunId] = set()
        self._joined: list[tuple[Seat, Ticket]] = []

    def leave(self, run_id: RunId) -> None:
        """Suppose the run gives up its slot or its place in the queue."""
        self._gone.add(run_id)
        seat = self._book.working.get(run_id)
        if seat is not None:
            self._total -= 1
            self._root_delta[seat.root_id] -= 1
            self._parent_delta[seat.parent_id] -= 1

    def join(self, seat: Seat, *, front: bool = False) -> None:
        """Suppose the run joins the queue."""
        self._joined.append((seat, (FRONT if front else BACK, 1 << 62)))

    def admit(self) -> list[Seat]:
        """Return who gets a slot, in order."""
        admitted: list[Seat] = []
        ring = deque(dict.fromkeys([*self._book.ring, *(seat.root_id for seat, _ in self._joined)]))
        while ring:
            root_id = ring.popleft()
            seat = self._first(root_id)
            if seat is not None:
                self._take(seat)
                admitted.append(seat)
                ring.append(root_id)
        return admitted

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
        candidates = [
            (ticket, seat)
            for ticket, seat in self._heads(root_id)
            if not self._parent_full(seat.parent_id, caps.parent)
        ]
        return min(candidates, key=lambda held: held[0])[1] if candidates else None

    def _heads(self, root_id: SessionId) -> list[tuple[Ticket, Seat]]:
        heads: list[tuple[Ticket, Seat]] = []
        for line in self._book.lines.get(root_id, {}).values():
            for ticket, run_id in line:
                if run_id not in self._gone:
                    heads.append((ticket, self._book.waiting[run_id][0]))
                    break
        for seat, ticket in self._joined:
            if seat.root_id == root_id and seat.run_id not in self._gone:
                heads.append((ticket, seat))
        return heads

    def _parent_full(self, parent_id: SessionId, cap: int | None) -> bool:
        return _full(self._book.by_parent[parent_id] + self._parent_delta[parent_id], cap)


def _full(count: int, cap: int | None) -> bool:
    return cap is not None and count >= cap


def _take_one(counter: Counter[SessionId], key: SessionId) -> None:
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]
