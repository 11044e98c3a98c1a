"""Folds the events of a tree into what a person watches: who works, on what, why it waits; it draws nothing.

It is folded on the event loop and read by the thread that draws: a row is only ever changed field by field, and the
list of rows is copied whole.
"""

import time
from typing import Final

from retinue.core.events import (
    ContextCompacted,
    Event,
    MessageAssistant,
    RunFact,
    RunQueued,
    RunResumed,
    RunStarted,
    RunWaiting,
    SessionOpened,
    StepClosed,
    StepOpened,
    ToolFinished,
    ToolStarted,
    TurnClosed,
    TurnOpened,
    Usage,
    WaitingFor,
)
from retinue.core.ids import CallId, SessionId
from retinue.core.run import usage_of_request

OPEN: Final = frozenset({"queued", "running"})


class Row:
    """One session of the tree, its latest run."""

    def __init__(self, session_id: SessionId, parent_id: SessionId | None, name: str, model: str) -> None:
        """Begin before anything happened."""
        self.session_id: Final = session_id
        self.parent_id: Final = parent_id
        self.name = name
        self.agent: str | None = None
        self.model = model
        self.status = "running"
        self.reason: str | None = None
        self.detail: str | None = None
        self.steps = 0
        self.usage = Usage()
        self.waiting: WaitingFor | None = None
        self.asking = False
        self.calls: dict[CallId, str] = {}
        self.began_s: float | None = None
        self.elapsed_s: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is queued or running."""
        return self.status in OPEN

    def seconds(self) -> float | None:
        """Return how long it has worked, or took; null before it started."""
        if self.elapsed_s is not None or self.began_s is None:
            return self.elapsed_s
        return time.monotonic() - self.began_s


class Tree:
    """All rows of one tree."""

    def __init__(self, root: SessionOpened, session_id: SessionId) -> None:
        """Begin with the root's header."""
        self.root: Final = Row(session_id, None, root.name, root.model)
        self.rows: Final[dict[SessionId, Row]] = {session_id: self.root}
        self.turn: TurnOpened | None = None

    def fold(self, event: Event) -> Row | None:
        """Fold one event and return the row whose status it changed."""
        fact = event.fact
        if isinstance(fact, RunFact):
            return self._run(fact)
        row = self.rows.get(event.session_id)
        if row is None:
            return None
        match fact:
            case TurnOpened():
                return self._open_turn(row, fact)
            case TurnClosed():
                return self._close_turn(row, fact)
            case RunWaiting() | RunResumed():
                self._wait(fact)
            case StepOpened() | MessageAssistant() | StepClosed() | ContextCompacted():
                _step(row, fact)
            case ToolStarted():
                row.calls[fact.call_id] = fact.name
            case ToolFinished():
                row.calls.pop(fact.call_id, None)
            case _:
                pass
        return None

    def ordered(self) -> list[tuple[int, Row]]:
        """Return every row with its depth below the root, each parent before its children."""
        below: dict[SessionId | None, list[Row]] = {}
        for row in list(self.rows.values()):
            below.setdefault(row.parent_id, []).append(row)
        found: list[tuple[int, Row]] = []
        stack = [(0, self.root)]
        while stack:
            depth, row = stack.pop()
            found.append((depth, row))
            stack.extend((depth + 1, child) for child in reversed(below.get(row.session_id, [])))
        return found

    def open_children(self, row: Row) -> int:
        """Return how many children of a session are queued or running."""
        return sum(child.parent_id == row.session_id and child.is_open for child in list(self.rows.values()))

    def doing(self, row: Row) -> str:
        """Return what a session does at this moment, or how it ended, in a few words."""
        if not row.is_open:
            return _ended(row)
        if row.status == "queued":
            return _why(row.waiting, "a slot")
        if row.calls:
            names = list(row.calls.values())
            return names[-1] if len(names) == 1 else f"{names[-1]} and {len(names) - 1} more"
        if row.waiting is not None:
            return _why(row.waiting, "its children")
        if row.asking:
            return "asks the model"
        children = self.open_children(row)
        return f"waits for {children} {'child' if children == 1 else 'children'}" if children else ""

    def _run(self, fact: RunFact) -> Row:
        row = self.rows.get(fact.child_id)
        if row is None:
            row = self.rows[fact.child_id] = Row(fact.child_id, fact.parent_id, fact.name, fact.model)
        row.agent = fact.agent
        row.status, row.reason, row.detail = fact.status, fact.reason, fact.detail
        row.waiting = fact.waiting_for
        row.elapsed_s = fact.elapsed_s if fact.ended_at is not None else None
        if isinstance(fact, RunQueued):
            row.began_s, row.steps, row.usage = None, 0, Usage()
        elif isinstance(fact, RunStarted):
            row.began_s = time.monotonic()
        else:
            row.steps, row.usage, row.asking = fact.steps, fact.usage, False
            row.calls.clear()
        return row

    def _open_turn(self, row: Row, fact: TurnOpened) -> Row | None:
        if row is not self.root:
            return None
        self.turn = fact
        row.status, row.began_s = "running", time.monotonic()
        return row

    def _close_turn(self, row: Row, fact: TurnClosed) -> Row | None:
        if row is not self.root:
            return None
        row.status, row.reason, row.detail = fact.status, fact.reason, fact.detail
        row.elapsed_s = row.seconds()
        row.asking = False
        row.calls.clear()
        return row

    def _wait(self, fact: RunWaiting | RunResumed) -> None:
        row = self.rows.get(fact.child_id)
        if row is not None:
            row.waiting = fact.waiting_for if isinstance(fact, RunWaiting) else None


def _ended(row: Row) -> str:
    """Return how a session ended: nothing for success, the whole sentence for a failure."""
    if row.status == "failed":
        return f"{row.reason}: {row.detail}"
    return "" if row.reason in (None, "done", row.status) else row.reason


def _step(row: Row, fact: StepOpened | MessageAssistant | StepClosed | ContextCompacted) -> None:
    row.asking = isinstance(fact, StepOpened)
    if isinstance(fact, StepOpened):
        row.steps += 1
    elif isinstance(fact, StepClosed | ContextCompacted):
        row.usage = row.usage.plus(usage_of_request(fact))


def _why(waiting: WaitingFor | None, default: str) -> str:
    return f"waits for {default if waiting is None else waiting.what or waiting.kind}"
