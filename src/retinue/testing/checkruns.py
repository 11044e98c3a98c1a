"""Checkers of runs: lives, slots, endings, depth, created caps, the end of turns; they read events and nothing else."""

from collections import Counter
from typing import Final

from retinue.core.events import (
    Event,
    RunFact,
    RunQueued,
    RunResumed,
    RunSettled,
    RunStarted,
    RunWaiting,
    SessionOpened,
    StepClosed,
    TurnClosed,
)
from retinue.core.ids import RunId, SessionId
from retinue.testing.logview import LogView, Span, Story, at

REASONS: Final = {
    "completed": ("done", "done_empty"),
    "failed": (
        "step_limit",
        "token_limit",
        "timeout",
        "provider_error",
        "rate_limit",
        "stream_incomplete",
        "refusal",
        "empty_output",
        "bad_tool_calls",
        "output_schema",
        "hook_denied",
        "release_failed",
        "internal",
    ),
    "cancelled": ("cancelled", "parent_cancelled", "budget", "switched_off", "deleted", "restart"),
    "interrupted": ("interrupted", "shutdown", "restart"),
}
"""The table of SHAPES, Run, without `store_failed`, which is never stored."""
OPEN: Final = ("queued", "running")
LIVES: Final[dict[type[RunFact], tuple[tuple[str | None, ...], tuple[str, ...]]]] = {
    RunQueued: ((None,), ("queued",)),
    RunStarted: (("queued",), ("running",)),
    RunSettled: (OPEN, tuple(REASONS)),
}
"""What a run may have been before each fact of its life, and what it is after it."""
SAME: Final = ("child_id", "parent_id", "root_id", "root_run_id", "call_id", "name", "depth")
"""What every fact of a run says alike."""


def check_runs(log: LogView) -> list[str]:
    """Each run is queued, started and settled once and in this order; only a stop settles one in the queue."""
    problems: list[str] = []
    states: dict[RunId, str] = {}
    first: dict[RunId, RunFact] = {}
    for event in log.events:
        fact = event.fact
        if isinstance(fact, RunQueued | RunStarted | RunSettled):
            state = states.get(fact.run_id)
            states[fact.run_id] = fact.status
            origin = first.setdefault(fact.run_id, fact)
            problems += _place_of(event, fact) + _lifecycle(event, fact, state)
            problems += [
                at(event, f"{name} of run {fact.run_id} changed")
                for name in SAME
                if getattr(fact, name) != getattr(origin, name)
            ]
        elif isinstance(fact, RunWaiting | RunResumed):
            problems += [at(event, text) for text in _waits(event, fact, states, first)]
    if log.at_rest:
        problems += [f"run {run_id} is {s}, never settled" for run_id, s in states.items() if s in OPEN]
    return problems


IN_QUEUE: Final = ("cancelled", "interrupted")
"""How a run that never started may end."""


def _waits(
    event: Event, fact: RunWaiting | RunResumed, states: dict[RunId, str], first: dict[RunId, RunFact]
) -> list[str]:
    origin = first.get(fact.run_id)
    problems: list[str] = []
    if states.get(fact.run_id) != "running":
        problems.append(f"run {fact.run_id} is {states.get(fact.run_id)}, not running")
    if origin is not None and (origin.parent_id, origin.child_id) != (event.session_id, fact.child_id):
        problems.append(f"run {fact.run_id} is {origin.child_id}'s and belongs in the log of {origin.parent_id}")
    return problems


def _place_of(event: Event, fact: RunFact) -> list[str]:
    if event.session_id != fact.parent_id:
        return [at(event, f"it stands in the log of {event.session_id}, not in that of its parent {fact.parent_id}")]
    return []


def _lifecycle(event: Event, fact: RunFact, state: str | None) -> list[str]:
    before, after = LIVES[type(fact)]
    problems: list[str] = []
    if state not in before:
        problems.append(at(event, f"run {fact.run_id} was {state or 'unknown'}"))
    if fact.status not in after:
        problems.append(at(event, f"its status cannot be {fact.status}"))
    if isinstance(fact, RunSettled) and state == "queued" and fact.status not in IN_QUEUE:
        problems.append(at(event, f"run {fact.run_id} ended {fact.status} without having started"))
    return problems


def check_children(log: LogView) -> list[str]:
    """A run that started has its session, opened before by its parent, and exactly one turn there."""
    problems: list[str] = []
    turns = Counter(span.opened.run_id for span in log.spans)
    opened: dict[SessionId, SessionOpened] = {}
    for event in log.events:
        fact = event.fact
        if isinstance(fact, SessionOpened):
            opened[event.session_id] = fact
        if isinstance(fact, RunStarted):
            header = opened.get(fact.child_id)
            if header is None:
                problems.append(at(event, f"its session {fact.child_id} is not opened yet"))
            elif (header.parent_id, header.root_id, header.depth) != (fact.parent_id, fact.root_id, fact.depth):
                problems.append(at(event, f"the header of {fact.child_id} names another parent, root or depth"))
            if turns[fact.run_id] != 1:
                problems.append(at(event, f"run {fact.run_id} has {turns[fact.run_id]} turns, not one"))
    return problems


def check_slots(log: LogView) -> list[str]:
    """Whoever takes a slot finds one free under each cap; waiting for children gives it up, resuming takes one."""
    problems: list[str] = []
    holders: dict[RunId, RunStarted] = {}
    started: dict[RunId, RunStarted] = {}
    for event in log.events:
        fact = event.fact
        if isinstance(fact, RunStarted):
            started[fact.run_id] = fact
        if isinstance(fact, RunStarted | RunResumed) and fact.run_id in started:
            if fact.run_id in holders:
                problems.append(at(event, f"run {fact.run_id} has a slot already"))
            holders[fact.run_id] = started[fact.run_id]
            problems += _over_caps(log, event, started[fact.run_id], holders)
        if isinstance(fact, RunWaiting | RunSettled):
            holders.pop(fact.run_id, None)
    return problems


def _over_caps(log: LogView, event: Event, taker: RunStarted, holders: dict[RunId, RunStarted]) -> list[str]:
    policy = log.policy(taker.root_id)
    counts = {
        "caps.running.process": len(holders),
        "caps.running.root": sum(run.root_id == taker.root_id for run in holders.values()),
        "caps.running.parent": sum(run.parent_id == taker.parent_id for run in holders.values()),
    }
    return [
        at(event, f"{count} runs work, {key} is {cap}")
        for key, count in counts.items()
        if (cap := policy.number(key)) is not None and count > cap
    ]


def check_endings(log: LogView) -> list[str]:
    """Status and reason are a pair of the table; text and output say the same; child and parent agree."""
    problems: list[str] = []
    for event in log.events:
        fact = event.fact
        if isinstance(fact, TurnClosed | RunSettled):
            problems += [at(event, text) for text in _ending(fact)]
    closed = {span.opened.run_id: span.closed for span in log.spans if span.closed is not None}
    steps = Counter(event.fact.run_id for event in log.events if isinstance(event.fact, StepClosed))
    for story in log.stories.values():
        if story.settled is not None:
            problems += _agreement(story.settled, closed.get(story.run_id), steps[story.run_id])
        elif story.run_id in closed:
            problems.append(f"run {story.run_id} is not settled, but its turn is closed")
    return problems


def _ending(fact: TurnClosed | RunSettled) -> list[str]:
    problems: list[str] = []
    text = fact.text if isinstance(fact, TurnClosed) else fact.output
    completed = fact.status == "completed"
    if fact.reason not in REASONS.get(fact.status, ()):
        problems.append(f"there is no ending {fact.status}/{fact.reason}")
    if completed is not (text is not None):
        problems.append(f"an ending {fact.status} has the output {text!r}")
    if completed and fact.partial is not None:
        problems.append("a completed ending has a partial text")
    if text is not None and (not text.strip()) is not (fact.reason == "done_empty"):
        problems.append(f"the reason is {fact.reason}, the output {text[:40]!r}")
    return problems


def _agreement(settled: RunSettled, closed: TurnClosed | None, steps: int) -> list[str]:
    if closed is None:
        return [] if settled.started_at is None else [f"run {settled.run_id} is settled, but its turn is not closed"]
    texts = {} if settled.output_cut else {"text": (closed.text, settled.output)}
    pairs = {
        "status": (closed.status, settled.status),
        "reason": (closed.reason, settled.reason),
        "usage": (closed.usage, settled.usage),
        "usage_tree": (closed.usage_tree, settled.usage_tree),
        "steps": (steps, settled.steps),
        **texts,
    }
    return [
        f"run {settled.run_id}: {name} is {inside!r} in its turn and {outside!r} in its settlement"
        for name, (inside, outside) in pairs.items()
        if inside != outside
    ]


def check_depth(log: LogView) -> list[str]:
    """A root has depth 0, a child one more than its parent, and nobody is deeper than the caps."""
    problems: list[str] = []
    for event in log.events:
        fact = event.fact
        if isinstance(fact, SessionOpened):
            problems += [at(event, text) for text in _depth(log, event.session_id, fact)]
    return problems


def _depth(log: LogView, session_id: SessionId, header: SessionOpened) -> list[str]:
    if header.parent_id is None:
        same = header.root_id == session_id and header.depth == 0
        return [] if same else [f"a root has root {header.root_id} and depth {header.depth}"]
    parent = log.headers.get(header.parent_id)
    if parent is None:
        return [f"its parent {header.parent_id} does not exist"]
    problems: list[str] = []
    if header.depth != parent.depth + 1 or header.root_id != parent.root_id:
        problems.append(f"depth {header.depth} and root {header.root_id} do not follow from its parent's")
    caps = (log.policy(header.root_id).number("caps.max_depth"), parent.rights.max_depth)
    deepest = min((cap for cap in caps if cap is not None), default=None)
    if deepest is not None and header.depth > deepest:
        problems.append(f"depth {header.depth} is over the cap {deepest}")
    return problems


def check_created(log: LogView) -> list[str]:
    """No turn and no root run creates more children than its cap; a further run of a child creates none."""
    problems: list[str] = []
    known: set[SessionId] = set()
    by_root_run: Counter[RunId] = Counter()
    by_turn: Counter[int] = Counter()
    turn_of = {event.position: number for number, span in enumerate(log.spans) for event in span.events}
    for event in log.events:
        fact = event.fact
        if not isinstance(fact, RunQueued) or fact.child_id in known:
            continue
        known.add(fact.child_id)
        by_root_run[fact.root_run_id] += 1
        number = turn_of.get(event.position)
        if number is not None:
            by_turn[number] += 1
        counts = {
            "caps.created.turn": 0 if number is None else by_turn[number],
            "caps.created.root_run": by_root_run[fact.root_run_id],
        }
        problems += [
            at(event, f"it is child number {count}, {key} is {cap}")
            for key, count in counts.items()
            if (cap := log.policy(fact.root_id).number(key)) is not None and count > cap
        ]
    return problems


def check_turn_ends(log: LogView) -> list[str]:
    """A turn closes after its children, as the policy binds them to it; a held one also has all their results."""
    problems: list[str] = []
    for span in log.spans:
        if span.closed is None:
            continue
        for queued in span.spawned():
            story = log.story(queued.run_id)
            if _bound(log, span.closed, queued) and story.settled_at > span.closed_at:
                problems.append(f"{_name(span)} closed before its run {queued.run_id} was settled")
            elif _must_be_home(log, span.closed, queued) and not story.homes_before(span.closed_at):
                problems.append(f"{_name(span)} completed without the result of its run {queued.run_id}")
    return problems


def _name(span: Span) -> str:
    return f"turn {span.opened.turn} of {span.session_id}"


def _bound(log: LogView, closed: TurnClosed, queued: RunQueued) -> bool:
    policy = log.policy(queued.root_id)
    if queued.spec.delivery == "await":
        return True
    if closed.status == "completed":
        return policy["result.turn_end"] in ("hold_open", "cancel")
    flag = queued.spec.cancel_with_parent
    return policy["life.cancel_with_parent"] == "always" or (
        policy["life.cancel_with_parent"] == "opt_in" and flag is True
    )


def _must_be_home(log: LogView, closed: TurnClosed, queued: RunQueued) -> bool:
    held = log.policy(queued.root_id)["result.turn_end"] == "hold_open"
    return held and closed.status == "completed" and queued.spec.delivery != "handle"


def settled_stories(log: LogView) -> list[tuple[Story, RunSettled]]:
    """Return the runs that ended."""
    return [(story, story.settled) for story in log.stories.values() if story.settled is not None]
