"""The runtime with one deliberate bug each in what children begin with; every class breaks one rule."""

from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec

from retinue.core.decide.base import Decision
from retinue.core.decide.runs import Spawn, decide_spawn
from retinue.core.state import State
from retinue.runtime.kernel import Kernel, Parts
from tests.mutants.delegation import _Changed


class _RootsTalk:
    """A record that reads a root's log, whichever session of its tree is asked for."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    async def read(self, session_id: Any) -> Any:
        root_id = self._kernel.journal.state.sessions[session_id].header.root_id
        return await self._kernel.record.read(root_id)


class PacksTheTalkOfAnotherSession(Kernel):
    """A grandchild is given what was said in the root's session, not in its parent's."""

    def __init__(self, parts: Parts, position: int) -> None:
        super().__init__(parts, position)
        delegation: Any = self.delegation
        delegation._sources = msgspec.structs.replace(delegation._sources, record=_RootsTalk(self))


def _otherwise(state: State, decide: Any, command: Spawn, **spec: Any) -> Decision:
    changed = msgspec.structs.replace(command.spec, **spec)
    return decide(state, msgspec.structs.replace(command, spec=changed))


def _own(state: State, decide: Any, command: Any, decision: Decision) -> Decision:
    return _otherwise(state, decide, command, system_digest=None, opening=None)


class GivesEachForkASystemTextOfItsOwn(_Changed):
    """No provider has read a fork's beginning before."""

    changes: ClassVar = {decide_spawn: _own}


def _every_tool(state: State, decide: Any, command: Any, decision: Decision) -> Decision:
    if command.provider != "fork":
        return decision
    return _otherwise(state, decide, command, rights=msgspec.structs.replace(command.spec.rights, tools=None))


class GivesEachForkEveryTool(_Changed):
    """A fork of a child that was given a part of the tools has them all."""

    changes: ClassVar = {decide_spawn: _every_tool}


def _without_background(state: State, decide: Any, command: Any, decision: Decision) -> Decision:
    return _otherwise(state, decide, command, prompt=command.spec.prompt.partition("\n\n# ")[0])


class ForgetsTheContext(_Changed):
    """A child is told its task and nothing of what its parent added."""

    changes: ClassVar = {decide_spawn: _without_background}


CONTEXT_MUTANTS: Sequence[type[Kernel]] = (
    PacksTheTalkOfAnotherSession,
    GivesEachForkASystemTextOfItsOwn,
    GivesEachForkEveryTool,
    ForgetsTheContext,
)
"""Each deliberate bug is caught by the seeded worlds; the build fails when one is no longer."""
