"""A log laid out for checkers: sessions, turns and runs as its events tell them; it judges nothing."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from retinue.core.events import (
    Event,
    LetterAbsorbed,
    LetterQueued,
    MessageAssistant,
    PolicyChanged,
    RunQueued,
    RunSettled,
    RunStarted,
    RunWaiting,
    SessionDeleted,
    SessionOpened,
    ToolFinished,
    TurnClosed,
    TurnOpened,
    tag_of,
)
from retinue.core.ids import LetterId, RunId, SessionId
from retinue.core.policy import Policy, stored, with_stored

END: Final = 2**62
"""Stands for the position of what never came."""
NO_RUN: Final = RunId("")


@dataclass
class Span:
    """One turn of one session and the events in it."""

    session_id: SessionId
    opened: TurnOpened
    position: int
    events: list[Event] = field(default_factory=list[Event])
    closed: TurnClosed | None = None
    closed_at: int = END


@dataclass
class Story:
    """One run: its facts and how its result went home; positions, `END` for what never came."""

    run_id: RunId
    queued: RunQueued | None = None
    queued_at: int = END
    started: RunStarted | None = None
    started_at: int = END
    settled: RunSettled | None = None
    settled_at: int = END
    waits: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """Positions and kinds of its waits."""
    letters: list[Event] = field(default_factory=list[Event])
    absorbed_at: list[int] = field(default_factory=list[int])
    collected_at: list[int] = field(default_factory=list[int])

    def homes_before(self, position: int) -> int:
        """Return how often the result had gone home before a position."""
        return sum(at < position for at in (*self.absorbed_at, *self.collected_at))

    def open_at(self, position: int) -> bool:
        """Return whether it was queued or running just before a position."""
        return self.queued_at < position <= self.settled_at

    def waiting_at(self, position: int) -> bool:
        """Return whether it was queued just before a position."""
        return self.open_at(position) and self.started_at >= position

    def parked_at(self, position: int) -> bool:
        """Return whether it was queued and set aside just before a position."""
        kinds = [kind for at, kind in self.waits if at < position]
        return self.waiting_at(position) and bool(kinds) and kinds[-1] == "parked"


class LogView:
    """A whole store's events in position order.

    Attributes:
        events: all of them.
        at_rest: whether nothing may be open at the end.
        kids: the runs of each child, in the order they were accepted.
        below: the runs of each parent's children, in that order.
        deleted: children whose deletion their parents' logs tell, with its position.
    """

    def __init__(self, events: Sequence[Event], policy: Policy | None = None, *, at_rest: bool = True) -> None:
        """Lay the events out; `policy` replaces the ones that the roots' logs hold."""
        self.events: Final = events
        self.at_rest: Final = at_rest
        self.by_session: Final[dict[SessionId, list[Event]]] = {}
        self.headers: Final[dict[SessionId, SessionOpened]] = {}
        self.spans: Final[list[Span]] = []
        self.stories: Final[dict[RunId, Story]] = {}
        self.kids: Final[dict[SessionId, list[Story]]] = {}
        self.below: Final[dict[SessionId, list[Story]]] = {}
        self.deleted: Final[dict[SessionId, int]] = {}
        self._policy = policy
        self._policies: dict[SessionId, list[tuple[int, Policy]]] = {}
        self._open: dict[SessionId, Span] = {}
        self._turns: dict[SessionId, list[Span]] = {}
        self._letters: dict[LetterId, Story] = {}
        for event in events:
            self._take(event)

    def policy(self, root_id: SessionId, position: int = END) -> Policy:
        """Return the policy of a tree just before a position; `standard` where its header is missing."""
        return self.policies(root_id, position, position)[-1]

    def policies(self, root_id: SessionId, since: int, until: int) -> list[Policy]:
        """Return every policy that was in force from one position to another, in order."""
        if self._policy is not None:
            return [self._policy]
        known = self._policies.get(root_id, [])
        positions = [position for position, _ in known]
        first = max(0, bisect_right(positions, since - 1) - 1)
        return [policy for position, policy in known[first:] if position < until] or [Policy()]

    def story(self, run_id: RunId) -> Story:
        """Return a run's story, an empty one for a run that no fact made."""
        return self.stories.get(run_id) or Story(run_id)

    def asked(self, queued: RunQueued, before: int) -> Mapping[str, Any] | None:
        """Return the arguments of the call that a run came from; null where a program asked for it."""
        found: Mapping[str, Any] | None = None
        for event in self.by_session.get(queued.parent_id, []):
            if event.position < before and isinstance(event.fact, MessageAssistant):
                calls = (call for call in event.fact.tool_calls if call.call_id == queued.call_id)
                found = next((call.arguments for call in calls if isinstance(call.arguments.get("prompt"), str)), found)
        return found

    def turn_at(self, session_id: SessionId, position: int) -> Span | None:
        """Return the turn of a session that was open just before a position."""
        spans = self._turns.get(session_id, [])
        before = bisect_right([span.position for span in spans], position - 1)
        last = spans[before - 1] if before else None
        return last if last is not None and position <= last.closed_at else None

    def _take(self, event: Event) -> None:
        self.by_session.setdefault(event.session_id, []).append(event)
        self._take_session(event)
        self._take_turn(event)
        self._take_run(event)
        self._take_home(event)

    def _take_session(self, event: Event) -> None:
        fact = event.fact
        if isinstance(fact, SessionOpened):
            self.headers.setdefault(event.session_id, fact)
            if fact.parent_id is None:
                self._policies.setdefault(event.session_id, [(event.position, stored(fact.policy))])
        if isinstance(fact, PolicyChanged) and event.session_id in self._policies:
            known = self._policies[event.session_id]
            known.append((event.position, with_stored(known[-1][1], fact.changes)))
        if isinstance(fact, SessionDeleted):
            self.deleted.setdefault(fact.child_id, event.position)

    def _take_turn(self, event: Event) -> None:
        fact = event.fact
        if isinstance(fact, TurnOpened):
            self._open[event.session_id] = Span(event.session_id, fact, event.position)
            self.spans.append(self._open[event.session_id])
            self._turns.setdefault(event.session_id, []).append(self._open[event.session_id])
        span = self._open.get(event.session_id)
        if span is not None:
            span.events.append(event)
        if isinstance(fact, TurnClosed) and span is not None:
            span.closed, span.closed_at = fact, event.position
            del self._open[event.session_id]

    def _take_run(self, event: Event) -> None:
        fact = event.fact
        if isinstance(fact, RunWaiting) and fact.run_id in self.stories:
            self.stories[fact.run_id].waits.append((event.position, fact.waiting_for.kind))
        if not isinstance(fact, RunQueued | RunStarted | RunSettled):
            return
        story = self.stories.setdefault(fact.run_id, Story(fact.run_id))
        if isinstance(fact, RunQueued) and story.queued is None:
            story.queued, story.queued_at = fact, event.position
            self.kids.setdefault(fact.child_id, []).append(story)
            self.below.setdefault(fact.parent_id, []).append(story)
        if isinstance(fact, RunStarted) and story.started is None:
            story.started, story.started_at = fact, event.position
        if isinstance(fact, RunSettled) and story.settled is None:
            story.settled, story.settled_at = fact, event.position

    def _take_home(self, event: Event) -> None:
        fact = event.fact
        if isinstance(fact, LetterQueued) and fact.kind == "result":
            story = self.stories.get(fact.run_id or NO_RUN)
            if story is not None:
                story.letters.append(event)
                self._letters[fact.letter_id] = story
        if isinstance(fact, LetterAbsorbed) and fact.letter_id in self._letters:
            self._letters[fact.letter_id].absorbed_at.append(event.position)
        if isinstance(fact, ToolFinished):
            for run_id in fact.carries:
                story = self.stories.get(run_id)
                if story is not None:
                    story.collected_at.append(event.position)


def at(event: Event, text: str) -> str:
    """Return a problem with the place where it shows."""
    return f"position {event.position}, {event.session_id} {event.seq} ({tag_of(event.fact)}): {text}"
