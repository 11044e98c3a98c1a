"""Checkers of children with several runs: their order, their numbers, what stays the same; they read events only."""

from collections import Counter
from typing import Final

from retinue.core.events import (
    ContextSeeded,
    Event,
    LetterQueued,
    RunQueued,
    RunSpec,
    RunStarted,
    RunWaiting,
    SessionOpened,
    Warned,
)
from retinue.core.ids import SessionId
from retinue.testing.logview import END, LogView, Story, at

VARIES: Final = frozenset({"prompt", "delivery", "cause", "sender_id", "round", "seed", "seed_seq"})
"""Fields of the spec that differ between the runs of one child."""
FROZEN: Final = tuple(name for name in RunSpec.__struct_fields__ if name not in VARIES)
ALIKE: Final = (
    "parent_id",
    "root_id",
    "name",
    "agent",
    "model",
    "depth",
    "provider",
    "access",
    "paths",
    "cwd",
    "continuable",
)
"""What every run of a child says alike."""


def check_children(log: LogView) -> list[str]:
    """A run that started has its session, opened before by its parent, and exactly one turn there.

    The session opens with the first run that starts, and its turns say why they were opened.
    """
    problems: list[str] = []
    turns = Counter(span.opened.run_id for span in log.spans)
    opened: dict[SessionId, SessionOpened] = {}
    for event in log.events:
        fact = event.fact
        if isinstance(fact, SessionOpened):
            opened[event.session_id] = fact
        if isinstance(fact, RunStarted) and fact.child_id not in log.deleted:
            problems += [at(event, text) for text in _place(fact, opened.get(fact.child_id))]
            if turns[fact.run_id] != 1:
                problems.append(at(event, f"run {fact.run_id} has {turns[fact.run_id]} turns, not one"))
    if log.at_rest:
        started = {story.started.child_id for story in log.stories.values() if story.started is not None}
        problems += [
            f"session {session_id} is open, but no run of it ever started"
            for session_id, header in log.headers.items()
            if header.parent_id is not None and session_id not in started
        ]
    return problems + _causes(log)


def _place(fact: RunStarted, header: SessionOpened | None) -> list[str]:
    if header is None:
        return [f"its session {fact.child_id} is not opened yet"]
    if (header.parent_id, header.root_id, header.depth) != (fact.parent_id, fact.root_id, fact.depth):
        return [f"the header of {fact.child_id} names another parent, root or depth"]
    return []


def _causes(log: LogView) -> list[str]:
    problems: list[str] = []
    firsts: set[SessionId] = set()
    for span in log.spans:
        where, opened = f"turn {span.opened.turn} of {span.session_id}", span.opened
        queued = log.story(opened.run_id).queued if opened.run_id is not None else None
        if queued is not None and (queued.spec.cause, queued.root_run_id) != (opened.cause, opened.root_run_id):
            problems.append(f"{where} names another cause or root run than its run {queued.run_id}")
        if opened.run_id is None and opened.cause == "message":
            problems.append(f"{where} is a root's and cannot begin with a message to a child")
        header = log.by_session[span.session_id][0]
        known = span.session_id in firsts
        firsts.add(span.session_id)
        if not known and queued is not None and log.story(queued.run_id).queued_at > header.position:
            problems.append(f"session {span.session_id} was opened before its first run was accepted")
    return problems


def check_rounds(log: LogView) -> list[str]:
    """The runs of a child are numbered, bounded and alike; only a continuable one has more than its first."""
    problems: list[str] = []
    for child_id, stories in log.kids.items():
        facts = [(story.queued_at, story.queued) for story in stories if story.queued is not None]
        number = 0
        for position, queued in facts:
            texts = _number(queued, number) + _bounds(log, position, queued) + _alike(facts[0][1], queued)
            problems += [f"run {queued.run_id} of {child_id}: {text}" for text in texts]
            number = queued.spec.round
        for position, later in facts[1:]:
            texts = _continued(log, position, facts[0][1], later)
            problems += [f"run {later.run_id} of {child_id}: {text}" for text in texts]
    return problems


def _number(queued: RunQueued, before: int) -> list[str]:
    spec = queued.spec
    wanted = before if spec.cause == "letter" else before + 1
    problems = [] if spec.round == wanted else [f"its round is {spec.round}, not {wanted}"]
    if (spec.cause == "prompt") is not (before == 0):
        problems.append(f"the cause {spec.cause} does not fit a child that had {before} instructions")
    if (spec.cause == "letter") is not (not spec.prompt):
        problems.append(f"its cause is {spec.cause} and its instruction {spec.prompt[:40]!r}")
    return problems


def _bounds(log: LogView, position: int, queued: RunQueued) -> list[str]:
    if queued.spec.cause != "message":
        return []
    policy = log.policy(queued.root_id, position)
    waiting = 1 + sum(
        story.queued is not None and story.queued.spec.cause == "message" and story.waiting_at(position)
        for story in log.kids[queued.child_id]
    )
    counts = {"life.rounds_max": queued.spec.round, "life.queued_messages_max": waiting}
    return [
        f"{key} is {most}, this is number {count}"
        for key, count in counts.items()
        if (most := policy.number(key)) is not None and count > most
    ]


def _alike(first: RunQueued, queued: RunQueued) -> list[str]:
    return [
        f"its {name} differs from that of the first run"
        for name in (*ALIKE, *FROZEN)
        if _of(first, name) != _of(queued, name)
    ]


def _of(fact: RunQueued, name: str) -> object:
    return getattr(fact.spec if name in FROZEN else fact, name)


def _continued(log: LogView, position: int, first: RunQueued, later: RunQueued) -> list[str]:
    continuation = log.policy(later.root_id, position)["life.continuation"]
    problems = [] if later.continuable else ["the child is not continuable"]
    if continuation == "none":
        problems.append("life.continuation is none")
    if continuation == "in_turn" and later.root_run_id != first.root_run_id:
        problems.append(f"it belongs to root run {later.root_run_id}, life.continuation is in_turn")
    return problems


def check_order(log: LogView) -> list[str]:
    """Of one child never two runs work at once; they start in the order they were accepted, parked ones never."""
    problems: list[str] = []
    for child_id, stories in log.kids.items():
        for story in stories:
            if story.started_at != END:
                texts = _starts(story, [other for other in stories if other is not story])
                problems += [f"run {story.run_id} of {child_id} starts: {text}" for text in texts]
            if story.settled is not None and story.started is not None and story.settled.reason == "interrupted":
                problems += _set_aside(log, story.settled.parent_id, story, stories)
            problems += _set_back(log, story)
    return problems


def _starts(story: Story, others: list[Story]) -> list[str]:
    position = story.started_at
    problems = ["it is parked"] if story.parked_at(position) else []
    for other in others:
        if other.open_at(position) and other.started_at < position:
            problems.append(f"{other.run_id} is running")
        elif other.queued_at < story.queued_at and other.waiting_at(position) and not other.parked_at(position):
            problems.append(f"{other.run_id} was accepted before and still waits")
    return problems


def _set_aside(log: LogView, parent_id: SessionId, story: Story, stories: list[Story]) -> list[str]:
    """Return each queued run that the interrupt of another did not park in the facts right behind it."""
    until = _end_of_batch(log.by_session[parent_id], story.settled_at)
    if until == END and not log.at_rest:
        return []
    return [
        f"run {other.run_id} waits behind {story.run_id}, which was interrupted, and was not parked with it"
        for other in stories
        if other is not story
        and other.waiting_at(story.settled_at)
        and not other.parked_at(story.settled_at)
        and not any(story.settled_at < at < until and kind == "parked" for at, kind in other.waits)
    ]


def _set_back(log: LogView, story: Story) -> list[str]:
    """Return each time that a parked run queued again without a new message to its child."""
    problems: list[str] = []
    for position, kind in story.waits:
        if kind == "slot" and story.queued is not None and story.parked_at(position):
            behind = (event.fact for event in log.by_session[story.queued.parent_id] if event.position > position)
            fact = next((fact for fact in behind if not isinstance(fact, RunWaiting)), None)
            if not isinstance(fact, RunQueued) or (fact.child_id, fact.spec.cause) != (
                story.queued.child_id,
                "message",
            ):
                problems.append(f"run {story.run_id} was parked and is back, and no message to its child came")
    return problems


def _end_of_batch(events: list[Event], position: int) -> int:
    behind = (event for event in events if event.position > position)
    return next((e.position for e in behind if not isinstance(e.fact, LetterQueued | Warned | RunWaiting)), END)


def check_seeds(log: LogView) -> list[str]:
    """A forked child, and no other, begins with the history that its spec holds; it ends before the open turn."""
    problems: list[str] = []
    for session_id, events in log.by_session.items():
        wanted = _seed_of(log, session_id)
        found = [event.fact if event.seq == 2 else None for event in events if isinstance(event.fact, ContextSeeded)]
        if found != ([] if wanted is None else [wanted]):
            problems.append(f"session {session_id} does not begin with the history that its spec holds")
    for story in log.stories.values():
        queued = story.queued
        if queued is not None and queued.spec.seed_seq is not None:
            turn = log.turn_at(queued.parent_id, story.queued_at)
            if turn is not None and turn.events[0].seq <= queued.spec.seed_seq:
                problems.append(f"run {story.run_id} is seeded with a part of its parent's open turn")
    return problems


def _seed_of(log: LogView, session_id: SessionId) -> ContextSeeded | None:
    queued = next((story.queued for story in log.kids.get(session_id, []) if story.queued is not None), None)
    if queued is None or queued.spec.seed_seq is None:
        return None
    return ContextSeeded(from_id=queued.parent_id, up_to_seq=queued.spec.seed_seq, messages=queued.spec.seed)
