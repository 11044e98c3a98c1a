"""A log laid out for checkers: sessions, turns and runs as its events tell them; it judges nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from retinue.core.events import (
    Event,
    LetterAbsorbed,
    LetterQueued,
    RunQueued,
    RunSettled,
    RunStarted,
    SessionOpened,
    ToolFinished,
    TurnClosed,
    TurnOpened,
    tag_of,
)
from retinue.core.ids import LetterId, RunId, SessionId
from retinue.core.policy import Policy, stored

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

    def spawned(self) -> list[RunQueued]:
        """Return the runs that were queued while this turn was open."""
        return [event.fact for event in self.events if isinstance(event.fact, RunQueued)]


@dataclass
class Story:
    """One run: its facts and how its result went home; positions, `END` for what never came."""

    run_id: RunId
    queued: RunQueued | None = None
    started: RunStarted | None = None
    settled: RunSettled | None = None
    settled_at: int = END
    letters: list[Event] = field(default_factory=list[Event])
    absorbed_at: list[int] = field(default_factory=list[int])
    collected_at: list[int] = field(default_factory=list[int])

    def homes_before(self, position: int) -> int:
        """Return how often the result had gone home before a position."""
        return sum(at < position for at in (*self.absorbed_at, *self.collected_at))


class LogView:
    """A whole store's events in position order.

    Attributes:
        events: all of them.
        at_rest: whether nothing may be open at the end.
    """

    def __init__(self, events: Sequence[Event], policy: Policy | None = None, *, at_rest: bool = True) -> None:
        """Lay the events out; `policy` replaces the ones that the roots' headers hold."""
        self.events: Final = events
        self.at_rest: Final = at_rest
        self.by_session: Final[dict[SessionId, list[Event]]] = {}
        self.headers: Final[dict[SessionId, SessionOpened]] = {}
        self.spans: Final[list[Span]] = []
        self.stories: Final[dict[RunId, Story]] = {}
        self._policy = policy
        self._open: dict[SessionId, Span] = {}
        self._letters: dict[LetterId, Story] = {}
        for event in events:
            self._take(event)

    def policy(self, root_id: SessionId) -> Policy:
        """Return the policy of a tree; `standard` where its header is missing."""
        header = self.headers.get(root_id)
        if self._policy is not None:
            return self._policy
        return Policy() if header is None else stored(header.policy)

    def story(self, run_id: RunId) -> Story:
        """Return a run's story, an empty one for a run that no fact made."""
        return self.stories.get(run_id) or Story(run_id)

    def _take(self, event: Event) -> None:
        fact = event.fact
        self.by_session.setdefault(event.session_id, []).append(event)
        if isinstance(fact, SessionOpened):
            self.headers.setdefault(event.session_id, fact)
        if isinstance(fact, TurnOpened):
            self._open[event.session_id] = Span(event.session_id, fact, event.position)
            self.spans.append(self._open[event.session_id])
        span = self._open.get(event.session_id)
        if span is not None:
            span.events.append(event)
        if isinstance(fact, TurnClosed) and span is not None:
            span.closed, span.closed_at = fact, event.position
            del self._open[event.session_id]
        self._take_run(event)
        self._take_home(event)

    def _take_run(self, event: Event) -> None:
        fact = event.fact
        if isinstance(fact, RunQueued | RunStarted | RunSettled):
            story = self.stories.setdefault(fact.run_id, Story(fact.run_id))
            if isinstance(fact, RunQueued):
                story.queued = story.queued or fact
            elif isinstance(fact, RunStarted):
                story.started = story.started or fact
            elif story.settled is None:
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
            story = self.stories.get(fact.run_id or NO_RUN)
            if story is not None:
                story.collected_at.append(event.position)


def at(event: Event, text: str) -> str:
    """Return a problem with the place where it shows."""
    return f"position {event.position}, {event.session_id} {event.seq} ({tag_of(event.fact)}): {text}"
