"""Checkers of hooks: what was denied did not happen, nothing happened unasked, and only what is stored was told.

They read events and what planned hooks heard, and nothing else.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from retinue.core.events import (
    Event,
    HookFailed,
    RunQueued,
    RunSettled,
    RunStarted,
    SessionOpened,
    StepOpened,
    ToolFinished,
    ToolStarted,
    TurnClosed,
)
from retinue.core.ids import SessionId
from retinue.testing.hookfaults import FAILURES, Heard
from retinue.testing.logview import LogView, at

Key = tuple[str, SessionId, Any]


def check_hooks(events: Sequence[Event], heard: Sequence[Heard]) -> list[str]:
    """Return each broken rule, where a guard that heard everything stood at every point from the first event on."""
    log = LogView(events)
    return _asked(log, heard) + _told(log, heard) + _failed(log, heard)


def _denies(log: LogView, said: Heard) -> bool:
    if said.fault in FAILURES:
        return log.policy(said.root_id)["hooks.on_failure"] == "deny"
    return said.fault == "deny"


def _asked(log: LogView, heard: Sequence[Heard]) -> list[str]:
    """What a guard is asked about happens after it was asked, and not where it said no."""
    asked: dict[Key, Heard] = {}
    for said in heard:
        asked[said.point, said.session_id, said.which] = said
    problems: list[str] = []
    for event in log.events:
        key = _needs(event)
        if key is None:
            continue
        said = asked.get(key)
        if said is None or said.position >= event.position:
            problems.append(at(event, f"nobody was asked at {key[0]}"))
        elif _denies(log, said):
            problems.append(at(event, f"it was denied at {key[0]} ({said.fault})"))
    return problems


def _needs(event: Event) -> Key | None:
    """Return the question that must have been answered before an event."""
    fact = event.fact
    match fact:
        case RunQueued():
            asks = fact.spec.cause == "prompt"
            return ("agent.subagent.spawn.before", fact.parent_id, fact.child_id) if asks else None
        case ToolStarted():
            return ("agent.tool.before", event.session_id, fact.call_id)
        case StepOpened():
            return ("agent.turn.before", event.session_id, fact.turn)
        case _:
            return None


TELLS: Final[dict[type[Any], tuple[str, Callable[[Any], Any]]]] = {
    SessionOpened: ("agent.session.opened", lambda _: None),
    RunStarted: ("agent.subagent.spawn.after", lambda fact: fact.run_id),
    RunSettled: ("agent.subagent.complete", lambda fact: fact.run_id),
    TurnClosed: ("agent.turn.closed", lambda fact: fact.turn),
    ToolFinished: ("agent.tool.after", lambda fact: fact.call_id),
}
"""Which fact is told at which point, and what of it says which one it is."""


def _told(log: LogView, heard: Iterable[Heard]) -> list[str]:
    """An observer hears of each thing at most once, and of nothing that was not durable at that moment."""
    stored: dict[Key, int] = {}
    for event in log.events:
        if type(event.fact) in TELLS:
            point, which = TELLS[type(event.fact)]
            stored[point, event.session_id, which(event.fact)] = event.position
    points = {point for point, _ in TELLS.values()}
    before: set[Key] = set()
    problems: list[str] = []
    for said in heard:
        key = (said.point, said.session_id, said.which)
        if said.point not in points:
            continue
        if key in before:
            problems.append(f"{said.session_id}: {said.point} of {said.which} was told twice")
        before.add(key)
        # A log that was deleted since takes its events along.
        if said.session_id in log.by_session and stored.get(key, said.position + 1) > said.position:
            problems.append(f"{said.session_id}: {said.point} of {said.which} was told before it was stored")
    return problems


def _failed(log: LogView, heard: Sequence[Heard]) -> list[str]:
    """A failure on record is that of a hook which failed; there are no more of them than that."""
    problems: list[str] = []
    for session_id, events in log.by_session.items():
        recorded = [event for event in events if isinstance(event.fact, HookFailed)]
        failures = [said for said in heard if said.session_id == session_id and said.fault in FAILURES]
        if len(recorded) > len(failures):
            problems.append(at(recorded[-1], f"{len(recorded)} failures are on record, {len(failures)} hooks failed"))
    return problems
