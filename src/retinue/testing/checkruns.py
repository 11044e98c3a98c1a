"""Checkers of runs: their lives, slots, endings and the caps on new ones; they read events and nothing else."""

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
    StepClosed,
    TurnClosed,
)
from retinue.core.ids import RunId
from retinue.core.run import SLOTLESS
from retinue.testing.logview import LogView, at

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
WAITS: Final = {
    "queued": ("slot", "claim", "parked"),
    "running": ("slot", "claim", "children", "approval", "budget", "rate"),
}
"""What a queued and a running run may wait for."""


def _waits(
    event: Event, fact: RunWaiting | RunResumed, states: dict[RunId, str], first: dict[RunId, RunFact]
) -> list[str]:
    origin = first.get(fact.run_id)
    problems: list[str] = []
    state = states.get(fact.run_id)
    if isinstance(fact, RunResumed) and state != "running":
        problems.append(f"run {fact.run_id} is {state}, not running")
    if isinstance(fact, RunWaiting) and fact.waiting_for.kind not in WAITS.get(state or "", ()):
        problems.append(f"run {fact.run_id} is {state} and cannot wait for {fact.waiting_for.kind}")
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


def check_slots(log: LogView) -> list[str]:
    """Whoever takes a slot finds one free under each cap; waiting for children gives it up, resuming takes one.

    Waiting for tokens keeps the slot, and a queued run has none to give up.
    """
    problems: list[str] = []
    slots = _Slots()
    for event in log.events:
        problems += [at(event, text) for text in slots.feed(event)]
        taker = slots.taker
        if taker is not None:
            problems += _over_caps(log, event, taker, slots.holders)
    return problems


class _Slots:
    """Who has a slot, who took the last one, and what the others wait for."""

    def __init__(self) -> None:
        self.holders: dict[RunId, RunStarted] = {}
        self.taker: RunStarted | None = None
        self._started: dict[RunId, RunStarted] = {}
        self._waits: dict[RunId, str] = {}

    def feed(self, event: Event) -> list[str]:
        fact = event.fact
        self.taker = None
        if isinstance(fact, RunStarted):
            self._started[fact.run_id] = fact
            return self._take(fact.run_id)
        if isinstance(fact, RunResumed) and fact.run_id in self._started:
            return self._take(fact.run_id) if self._waits.pop(fact.run_id, "slot") in SLOTLESS else []
        if isinstance(fact, RunWaiting) and fact.run_id in self._started:
            return self._wait(fact)
        if isinstance(fact, RunSettled):
            self.holders.pop(fact.run_id, None)
        return []

    def _take(self, run_id: RunId) -> list[str]:
        problems = [f"run {run_id} has a slot already"] if run_id in self.holders else []
        self.taker = self.holders[run_id] = self._started[run_id]
        return problems

    def _wait(self, fact: RunWaiting) -> list[str]:
        kind = self._waits[fact.run_id] = fact.waiting_for.kind
        if kind in SLOTLESS:
            self.holders.pop(fact.run_id, None)
        elif fact.run_id not in self.holders:
            return [f"run {fact.run_id} waits for {kind} and has no slot"]
        return []


def _over_caps(log: LogView, event: Event, taker: RunStarted, holders: dict[RunId, RunStarted]) -> list[str]:
    policy = log.policy(taker.root_id, event.position)
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
        if story.settled is not None and story.settled.child_id not in log.deleted:
            problems += _agreement(story.settled, closed.get(story.run_id), steps[story.run_id])
        if story.settled is None and story.run_id in closed:
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


def check_created(log: LogView) -> list[str]:
    """No turn and no root run creates more children than its cap; a further run of a child creates none."""
    problems: list[str] = []
    by_root_run: Counter[RunId] = Counter()
    by_turn: Counter[int] = Counter()
    for event in log.events:
        fact = event.fact
        if not isinstance(fact, RunQueued) or fact.spec.cause != "prompt" or fact.spec.round != 1:
            continue
        by_root_run[fact.root_run_id] += 1
        turn = log.turn_at(fact.parent_id, event.position)
        by_turn[-1 if turn is None else turn.position] += 1
        counts = {
            "caps.created.turn": 0 if turn is None else by_turn[turn.position],
            "caps.created.root_run": by_root_run[fact.root_run_id],
        }
        policy = log.policy(fact.root_id, event.position)
        problems += [
            at(event, f"it is child number {count}, {key} is {cap}")
            for key, count in counts.items()
            if (cap := policy.number(key)) is not None and count > cap
        ]
    return problems
