"""Admission as CONTRACT section 3 words it, over plain dicts and lists; it shares nothing with the code it judges."""

from typing import Any

Caps = dict[str, int | None]
NO_CAPS: Caps = {"process": None, "root": None, "parent": None}


class Twin:
    """Who works, who waits, whose turn it is."""

    def __init__(self) -> None:
        self.home: dict[str, tuple[str, str]] = {}
        """Each run's root and parent."""
        self.working: list[str] = []
        self.queues: dict[str, list[str]] = {}
        """Each root's waiting runs, front first."""
        self.returning: set[str] = set()
        """Runs that had yielded and wait in front of all that never ran."""
        self.turns: list[str] = []
        """Roots with waiting runs; the one that was served longest ago first."""
        self.caps: dict[str, Caps] = {}

    def wait(self, run: str, root: str, parent: str, *, front: bool = False) -> None:
        self.home[run] = (root, parent)
        queue = self.queues.setdefault(root, [])
        if front:
            self.returning.add(run)
            queue.insert(sum(other in self.returning for other in queue), run)
        else:
            queue.append(run)
        if root not in self.turns:
            self.turns.append(root)

    def leave(self, run: str) -> None:
        """It settles, yields, or is cancelled in the queue."""
        root, _ = self.home[run]
        if run in self.working:
            self.working.remove(run)
        if run in self.queues.get(root, []):
            self.queues[root].remove(run)
            self.returning.discard(run)
            self._tidy(root)

    def may_work(self, run: str) -> bool:
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

    def _tidy(self, root: str) -> None:
        if not self.queues[root]:
            del self.queues[root]
            self.turns.remove(root)
