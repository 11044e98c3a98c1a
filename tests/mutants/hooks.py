"""The runtime with one deliberate bug each in how hooks are asked and told; every class breaks one rule."""

import asyncio
from collections.abc import Sequence
from typing import Any

from retinue.core.decide.base import Decision
from retinue.core.events import Event
from retinue.runtime.hooks import Hooks
from retinue.runtime.journal import Journal
from retinue.runtime.kernel import Kernel, Parts
from retinue.runtime.observers import Observers


class _Trusting(Hooks):
    async def _failed(self, hook: Any, matter: Any, failed: Any) -> str | None:
        await super()._failed(hook, matter, failed)
        return None


class LetsThroughWhereAHookFailed(Kernel):
    """A failed hook is recorded as a no, and what it was asked about happens all the same."""

    def __init__(self, parts: Parts, position: int) -> None:
        super().__init__(parts, position)
        self.hooks.__class__ = _Trusting


class _Telling(Journal):
    observers: Observers

    def _accept(self, decision: Decision) -> "asyncio.Future[Decision]":
        answer = super()._accept(decision)
        for event in self._queue[-1].batch.events:
            self.observers.tell(event)
        return answer


class _Silent(Observers):
    def tell(self, event: Event) -> None:
        pass


class TellsObserversBeforeTheCommit(Kernel):
    """Observers hear of facts that are accepted and not durable yet."""

    def __init__(self, parts: Parts, position: int) -> None:
        super().__init__(parts, position)
        journal: Any = self.journal
        journal.__class__ = _Telling
        journal.observers = Observers(self.hooks)
        self.observers.__class__ = _Silent


class _Deaf(Hooks):
    async def denied(self, point: Any, session: Any, data: Any) -> str | None:
        reason = await super().denied(point, session, data)
        return None if point == "agent.subagent.spawn.before" else reason


class CreatesTheChildAllTheSame(Kernel):
    """What a hook says about a child is heard and forgotten."""

    def __init__(self, parts: Parts, position: int) -> None:
        super().__init__(parts, position)
        self.hooks.__class__ = _Deaf


HOOK_MUTANTS: Sequence[type[Kernel]] = (
    LetsThroughWhereAHookFailed,
    TellsObserversBeforeTheCommit,
    CreatesTheChildAllTheSame,
)
"""Each deliberate bug is caught by the seeded worlds; the build fails when one is no longer."""
