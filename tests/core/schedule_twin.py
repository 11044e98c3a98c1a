"""Admission as CONTRACT section 3 words it, over plain dicts and lists; it shares nothing with the code it judges."""

from typing import Any

Caps = dict[str, int | None]
NO_CAPS: Caps = {"process": None, "root": None, "parent": None}


class Twin:
    """Who works, who waits, whose turn it is."""

    def __init__(self) -> None:
        self.home: dict[str, tuple[str, str]] = {}
        """Each run's root and parent."""
        self.session: dict[str, str] = {}
        """Each run's session; where none was said, one of its own."""
        self.numbers: dict[str, int] = {}
        """The order in which runs came to wait."""
        self.working: list[str] = []
        self.queues: dict[str, list[str]] = {}
        """Each root's waiting runs, front first; those that wait for their session stand among them."""
        self.returning: set[str] = set()
        """Runs that had yielded and wait in front of all that never ran."""
        self.sitting: dict[str, str] = {}
        """Who has a session: its one run that runs, or that may be the next to."""
        self.parked: list[str] = []
        self.turns: list[str] = []
        """Roots with runs that wait only for a slot; the one that was served longest ago first."""
        self.caps: dict[str, Caps] = {}

    def wait(self, run: str, root: str, parent: str, *, front: bool = False, session: str | None = None) -> None:
        self.home[run] = (root, parent)
        self.session.setdefault(run, session or run)
        queue = self.queues.setdefault(root, [])
        if front:
            self.returning.add(run)
            queue.insert(sum(other in self.returning for other in queue), run)
        else:
            self.numbers[run] = len(self.numbers)
            queue.append(run)
        self._seat_somebody(self.session[run])
        self._tidy(root)

    def leave(self, run: str) -> None:
        """It settles, or is cancelled in the queue."""
        self._take_out(run)
        self.parked = [other for other in self.parked if other != run]
        if self.sitting.get(self.session[run]) == run:
            del self.sitting[self.session[run]]
            self._seat_somebody(self.session[run])
        self._tidy(self.home[run][0])

    def rest(self, run: str) -> None:
        """It yields: no slot, no place, but the session stays its own."""
        self._take_out(run)
        self._tidy(self.home[run][0])

    def park(self, run: str) -> None:
        self.leave(run)
        self.parked.append(run)

    def unpark(self, run: str) -> None:
        self.parked.remove(run)
        root = self.home[run][0]
        queue = self.queues.setdefault(root, [])
        earlier = [other for other in queue if other in self.returning or self.numbers[other] < self.numbers[run]]
        queue.insert(len(earlier), run)
        self._seat_somebody(self.session[run])
        self._tidy(root)

    def may_work(self, run: str) -> bool:
        if self.sitting[self.session[run]] != run:
            return False
        root, parent = self.home[run]
        caps = self.caps.get(root, NO_CAPS)
        used: dict[str, int] = {
            "process": len(self.working),
            "root": sum(self.home[other][0] == root for other in self.working),
            "parent": sum(self.home[other][1] == parent for other in self.working),
        }
        return all(cap is None or used[kind] < cap for kind, cap in caps.items())

    def admit(self) -> list[str]:
        """First admissible first inside a root, roots in turn."""
        admitted: list[str] = []
        while (run := self._next()) is not None:
            root = self.home[run][0]
            self.queues[root].remove(run)
            self.returning.discard(run)
            self.working.append(run)
            admitted.append(run)
            self.turns.remove(root)
            self.turns.append(root)
            self._tidy(root)
        return admitted

    def counts(self) -> dict[str, Any]:
        roots = [self.home[run][0] for run in self.working]
        parents = [self.home[run][1] for run in self.working]
        return {
            "total": len(self.working),
            "root": {root: roots.count(root) for root in roots},
            "parent": {parent: parents.count(parent) for parent in parents},
            "waiting": {root: len(queue) for root, queue in self.queues.items()},
        }

    def _next(self) -> str | None:
        for root in self.turns:
            for run in self.queues[root]:
                if self.may_work(run):
                    return run
        return None

    def _take_out(self, run: str) -> None:
        queue = self.queues.get(self.home[run][0], [])
        for place in (self.working, queue):
            if run in place:
                place.remove(run)
        self.returning.discard(run)

    def _seat_somebody(self, session: str) -> None:
        """A free session goes to its run that waits longest."""
        for queue in self.queues.values():
            for run in queue:
                if self.session[run] == session:
                    self.sitting.setdefault(session, run)

    def _tidy(self, root: str) -> None:
        queue = self.queues.get(root, [])
        ready = any(self.sitting[self.session[run]] == run for run in queue)
        if ready and root not in self.turns:
            self.turns.append(root)
        if not ready and root in self.turns:
            self.turns.remove(root)
        if not queue:
            self.queues.pop(root, None)
