"""Checkers of what ends others: the end of turns, the master switch, deletions; they read events and nothing else."""

from typing import Final

from retinue.core.events import (
    BudgetExceeded,
    Event,
    RunQueued,
    RunSettled,
    RunStarted,
    StepOpened,
    SwitchChanged,
    TurnClosed,
)
from retinue.core.ids import SessionId
from retinue.core.policy import Policy
from retinue.testing.logview import LogView, Span, Story, at

STEPS_LATE_MAX: Final = 1
"""Steps that a stopped session may still open: the one that was accepted before the stop reached it."""


def check_turn_ends(log: LogView) -> list[str]:
    """A turn closes after its children, as the policy binds them to it; a held one also has all their results."""
    problems: list[str] = []
    for span in log.spans:
        if span.closed is not None:
            root_id = log.headers[span.session_id].root_id if span.session_id in log.headers else span.session_id
            policies = log.policies(root_id, span.position, span.closed_at)
            for story in log.below.get(span.session_id, []):
                problems += _end(policies, span, span.closed, story)
    return problems


def _end(policies: list[Policy], span: Span, closed: TurnClosed, story: Story) -> list[str]:
    if story.open_at(span.closed_at):
        bound = all(_binds(policy, span, closed, story) for policy in policies)
        return [f"{_name(span)} closed before its run {story.run_id} was settled"] if bound else []
    over = story.settled_at < span.closed_at and not story.homes_before(span.closed_at)
    if over and _must_be_home(policies, closed, story):
        return [f"{_name(span)} completed without the result of its run {story.run_id}"]
    return []


def _name(span: Span) -> str:
    return f"turn {span.opened.turn} of {span.session_id}"


def _binds(policy: Policy, span: Span, closed: TurnClosed, story: Story) -> bool:
    """Return whether a policy lets a turn end only after an open run of a child."""
    spec = story.queued.spec if story.queued is not None else None
    if spec is None or (spec.delivery == "await" and story.queued_at > span.position):
        return True
    if closed.status == "completed":
        ends = policy["result.turn_end"]
        return ends == "cancel" or (ends == "hold_open" and not story.parked_at(span.closed_at))
    bound = policy["life.cancel_with_parent"]
    return bound == "always" or (bound == "opt_in" and spec.cancel_with_parent is True)


def _must_be_home(policies: list[Policy], closed: TurnClosed, story: Story) -> bool:
    held = all(policy["result.turn_end"] == "hold_open" for policy in policies)
    return held and closed.status == "completed" and story.queued is not None and story.queued.spec.delivery != "handle"


def check_switch(log: LogView) -> list[str]:
    """While the master switch is off no run is accepted or started, and what was open does not work on.

    It is one switch for the whole store, and stands in the log of each root that was in memory.
    """
    problems: list[str] = []
    on = True
    for event in log.events:
        fact = event.fact
        if isinstance(fact, SwitchChanged):
            on = fact.on
            problems += [] if on else _worked_on(log, event)
        if isinstance(fact, RunQueued | RunStarted) and not on:
            problems.append(at(event, "delegation is switched off"))
    return problems


def _worked_on(log: LogView, event: Event) -> list[str]:
    open_ones = [s for s in log.stories.values() if s.queued is not None and s.open_at(event.position)]
    mine = [story for story in open_ones if story.queued is not None and story.queued.root_id == event.root_id]
    return [
        at(event, f"run {story.run_id} worked on as if delegation were on")
        for story in mine
        if _steps_after(log, story, event.position) > STEPS_LATE_MAX
    ]


def _steps_after(log: LogView, story: Story, position: int) -> int:
    return sum(
        isinstance(event.fact, StepOpened) and position < event.position < story.settled_at
        for event in (log.by_session.get(story.queued.child_id, []) if story.queued is not None else [])
    )


def check_reasons(log: LogView) -> list[str]:
    """Who ends `budget` or `switched_off` does so after the event that says why."""
    problems: list[str] = []
    told: dict[SessionId, set[str]] = {}
    for event in log.events:
        fact = event.fact
        if isinstance(fact, BudgetExceeded):
            told.setdefault(event.root_id, set()).add("budget")
        if isinstance(fact, SwitchChanged) and not fact.on:
            told.setdefault(event.root_id, set()).add("switched_off")
        reason = fact.reason if isinstance(fact, RunSettled | TurnClosed) else None
        if reason in TOLD and reason not in told.get(event.root_id, set()):
            problems.append(at(event, f"it ends {reason}, and no event of its tree says why"))
    return problems


TOLD: Final = ("budget", "switched_off")
"""Reasons that an event of its own goes before."""


def check_deleted(log: LogView) -> list[str]:
    """A deleted child is its teller's, has no open run and no log, and starts nothing more."""
    problems: list[str] = []
    for child_id, position in log.deleted.items():
        stories = log.kids.get(child_id, [])
        if not stories:
            problems.append(f"{child_id} is deleted, but was nobody's child")
        if child_id in log.by_session:
            problems.append(f"{child_id} is deleted, and its log is still there")
        problems += [
            f"{child_id} is deleted, but its run {story.run_id} was not over"
            for story in stories
            if story.settled_at > position
        ]
    return problems
