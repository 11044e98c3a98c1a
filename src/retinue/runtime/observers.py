"""Which durable facts observing hooks are told of, and what of them; it asks nobody and decides nothing."""

from typing import Any, Final

from retinue.core.events import Event, RunSettled, RunStarted, SessionOpened, ToolFinished, ToolStarted, TurnClosed
from retinue.core.ids import CallId, SessionId
from retinue.ports import HookPoint
from retinue.runtime.hooks import Hooks

LEFT_OUT: Final = "clock_s"
"""The key of a fact that means nothing outside the process."""


class Observers:
    """Tells hooks what is on record: after it is, and after whoever waits for it has been woken."""

    def __init__(self, hooks: Hooks) -> None:
        """Wire it."""
        self._hooks = hooks
        self._born: set[SessionId] = set()
        """Children whose header has just been stored, and whose run comes next in the same commit."""
        self._started: dict[tuple[SessionId, CallId], ToolStarted] = {}

    def tell(self, event: Event) -> None:
        """Tell of a fact that has just become durable."""
        fact = event.fact
        match fact:
            case SessionOpened():
                if fact.parent_id is not None:
                    self._born.add(event.session_id)
                self._observe("agent.session.opened", event)
            case RunStarted():
                if fact.child_id in self._born:
                    self._born.discard(fact.child_id)
                    self._observe("agent.subagent.spawn.after", event)
            case RunSettled():
                self._observe("agent.subagent.complete", event)
            case TurnClosed():
                self._observe("agent.turn.closed", event)
            case ToolStarted() | ToolFinished():
                self._tell_of_call(event.session_id, fact)
            case _:
                pass

    def _tell_of_call(self, session_id: SessionId, fact: ToolStarted | ToolFinished) -> None:
        """Tell of a call that ran, once its answer is on record; what was refused never began."""
        if not self._hooks.wants("agent.tool.after"):
            return
        key = (session_id, fact.call_id)
        if isinstance(fact, ToolStarted):
            self._started[key] = fact
            return
        started = self._started.pop(key, None)
        if started is not None:
            self._hooks.observe("agent.tool.after", session_id, _call(started, fact))

    def _observe(self, point: HookPoint, event: Event) -> None:
        if self._hooks.wants(point):
            fact = event.fact
            told = {key: getattr(fact, key) for key in fact.__struct_fields__ if key != LEFT_OUT}
            self._hooks.observe(point, event.session_id, told)


def _call(started: ToolStarted, finished: ToolFinished) -> dict[str, Any]:
    """Return a call that ran, and how it ended."""
    keys = ("outcome", "code", "text", "cut", "output_id")
    asked = {"call_id": started.call_id, "name": started.name, "arguments": started.arguments}
    return {**asked, **{key: getattr(finished, key) for key in keys}}
