"""What must hold in every log, whatever happened: the checkers together; they read events, requests and rows only."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from retinue.core.events import Event, SessionDeleted, StepClosed, StepOpened
from retinue.core.ids import RunId, SessionId
from retinue.core.policy import Policy
from retinue.core.run import Run
from retinue.core.session import SessionRow
from retinue.core.state import State
from retinue.ports import ModelRequest, Page, RequestMessage, RunFilter, Store
from retinue.testing.checkbudget import check_budget
from retinue.testing.checkchildren import check_children, check_order, check_rounds, check_seeds
from retinue.testing.checkcontext import check_context, check_forks
from retinue.testing.checkletters import check_auto_turns, check_deliveries, check_letters, check_post
from retinue.testing.checkrights import check_depth, check_rights
from retinue.testing.checkruns import check_created, check_endings, check_runs, check_slots
from retinue.testing.checkstops import check_deleted, check_reasons, check_switch, check_turn_ends
from retinue.testing.checkturns import check_calls, check_sequence, check_turns, check_usage
from retinue.testing.fakes import Seen
from retinue.testing.logview import LogView

Rows = tuple[dict[RunId, Run], dict[SessionId, SessionRow]]
Key = TypeVar("Key", RunId, SessionId)
Row = TypeVar("Row", Run, SessionRow)

CHECKS: Final[tuple[Callable[[LogView], list[str]], ...]] = (
    check_sequence,
    check_turns,
    check_calls,
    check_runs,
    check_children,
    check_rounds,
    check_order,
    check_seeds,
    check_context,
    check_forks,
    check_slots,
    check_endings,
    check_depth,
    check_rights,
    check_created,
    check_letters,
    check_post,
    check_auto_turns,
    check_deliveries,
    check_turn_ends,
    check_budget,
    check_switch,
    check_reasons,
    check_deleted,
    check_usage,
)
PAGE_ROWS: Final = 500


def check_all(events: Sequence[Event], policy: Policy | None = None, *, at_rest: bool = True) -> list[str]:
    """Return every problem of a store's events in position order, in sentences; none is the good answer.

    `policy` replaces the ones that the roots' headers hold. With `at_rest=False` the log may end anywhere: runs,
    turns and letters may still be open.
    """
    log = LogView(events, policy, at_rest=at_rest)
    return [f"{check.__name__}: {problem}" for check in CHECKS for problem in check(log)] if events else []


def check_kept(before: Sequence[Event], after: Sequence[Event], gone: Collection[SessionId] = frozenset()) -> list[str]:
    """Return a problem unless the later log begins with the earlier one: nothing durable is lost or rewritten.

    `gone` are roots that somebody deleted, with their whole trees; of a child that was deleted the later log tells.
    """
    deleted = {event.fact.child_id for event in after if isinstance(event.fact, SessionDeleted)}
    kept = [event for event in before if event.root_id not in gone and event.session_id not in deleted]
    for old, new in zip(kept, after, strict=False):
        if old != new:
            return [f"position {old.position} of {old.session_id} reads differently in the later log"]
    lost = len(kept) - len(after)
    return [f"{lost} events of the earlier log are lost"] if lost > 0 else []


class _Step:
    """A step as the log's prefix tells it: which requests it may have sent, and what they said."""

    def __init__(self, event: Event, number: int, messages: tuple[RequestMessage, ...]) -> None:
        self.position = event.position
        self.first = number
        self.last: float = math.inf
        self.messages = messages
        self.answered = False

    def sent(self, request: ModelRequest, durable: int | None) -> bool:
        in_time = durable is None or self.position <= durable
        return in_time and self.first <= request.number <= self.last and request.messages == self.messages


def check_requests(events: Iterable[Event], requests: Iterable[ModelRequest | Seen]) -> list[str]:
    """Return each request that does not follow from the log's prefix up to its `step.opened`.

    A `Seen` with a position must also have been durable when it was sent (log first, act second).
    """
    steps = _steps(events)
    problems: list[str] = []
    for item in requests:
        request, durable = (item.request, item.position) if isinstance(item, Seen) else (item, None)
        if not any(step.sent(request, durable) for step in steps.get(request.session_id, [])):
            problems.append(
                f"request {request.number} of {request.session_id} with {len(request.messages)} messages follows from "
                f"no step of its log" + ("" if durable is None else f" up to position {durable}")
            )
    return problems


def _steps(events: Iterable[Event]) -> dict[SessionId, list[_Step]]:
    state = State()
    steps: dict[SessionId, list[_Step]] = {}
    for event in events:
        state.apply(event)
        fact = event.fact
        session = state.sessions[event.session_id]
        if isinstance(fact, StepOpened):
            steps.setdefault(event.session_id, []).append(_Step(event, session.requests, session.request()))
        if isinstance(fact, StepClosed) and fact.usage is not None:
            # Without a report the retries are not known for sure: the step may have been cut off in one of them.
            last = steps[event.session_id][-1]
            last.last = last.first + fact.retries
    return steps


def rebuild_rows(events: Iterable[Event]) -> Rows:
    """Return the rows of all runs and sessions, folded from the whole log."""
    state = State()
    for event in events:
        state.apply(event)
    return state.run_rows, state.session_rows


def check_projections(store: Store, rebuild: Callable[[Iterable[Event]], Rows] = rebuild_rows) -> list[str]:
    """Return each row that the store shows and the log does not give, or the other way round."""
    events = all_events(store)
    runs, sessions = rebuild(events)
    ends = {event.session_id: (event.time, event.seq) for event in events}
    wanted = {
        session_id: msgspec.structs.replace(row, updated_at=ends[session_id][0], stored_events=ends[session_id][1])
        for session_id, row in sessions.items()
        if session_id in ends
    }
    # The place in the queue is counted when a row is read.
    shown = {run.run_id: msgspec.structs.replace(run, queue_position=None) for run in all_runs(store)}
    folded = {run_id: msgspec.structs.replace(run, queue_position=None) for run_id, run in runs.items()}
    return _differences("run", shown, folded) + _differences(
        "session", {row.session_id: row for row in all_sessions(store)}, wanted
    )


def _differences(what: str, shown: Mapping[Key, Row], wanted: Mapping[Key, Row]) -> list[str]:
    problems = [f"the {what} {key} has a row, but no fact" for key in shown if key not in wanted]
    problems += [f"the {what} {key} has facts, but no row" for key in wanted if key not in shown]
    for key, row in shown.items():
        other = wanted.get(key, row)
        problems += [
            f"the {what} {key} shows {name} {getattr(row, name)!r}, its log says {getattr(other, name)!r}"
            for name in row.__struct_fields__
            if getattr(row, name) != getattr(other, name)
        ]
    return problems


def all_events(store: Store) -> list[Event]:
    """Return every event of a store, in position order."""
    events: list[Event] = []
    while page := store.tail(events[-1].position if events else 0, limit=PAGE_ROWS):
        events += page
    return events


def all_runs(store: Store) -> list[Run]:
    """Return every run of a store."""
    return _pages(lambda page: store.runs(RunFilter(), page))


def all_sessions(store: Store) -> list[SessionRow]:
    """Return every session of a store, children too."""
    return _pages(lambda page: store.sessions(page, roots_only=False))


def _pages(read: Callable[[Page], tuple[list[Row], str | None]]) -> list[Row]:
    rows, cursor = read(Page(limit=PAGE_ROWS))
    while cursor is not None:
        more, cursor = read(Page(limit=PAGE_ROWS, cursor=cursor))
        rows += more
    return rows
