"""The stage for budgets: children that cost what a test says, a limit that fits some of them, and sums; no test."""

import functools
from collections import Counter
from typing import Any

from retinue.core.events import ContextCompacted, Event, NotesAsked, RunSettled, StepClosed, StepOpened, Usage
from retinue.core.ids import SessionId
from retinue.ports import Finish, Model, ModelRequest, ToolText
from retinue.testing.world import World
from tests.scenarios.stage import FunctionModel, Life, ModelOf, calls, letters_in, play, says, spawn

KIDS = tuple(f"kid{number:02}" for number in range(20))
FITS = 7
OUTPUT_MAX = 4_000
WIDE: dict[str, Any] = {
    "caps.running.root": 20,
    "caps.running.process": None,
    "caps.created.turn": None,
    "budget.output_tokens_max": OUTPUT_MAX,
    "budget.include_root": False,
}
"""All twenty have a slot: only tokens can hold them back."""


def used(tokens: int, text: str = "found") -> Finish:
    """Return an answer that is reported to have cost so many tokens."""
    return Finish(reason="stop", text=text, usage=Usage(input=tokens - 10, output=10, total=tokens))


def fan(
    report: int | None, *, kids: tuple[str, ...] = KIDS, delay_s: float = 5.0, late: bool = True, reports: bool = True
) -> ModelOf:
    """Return the maker of a model: the root asks all at once, each answers at a cost; the root then asks once more.

    With `late` the root's spawns after the others have ended; `reports` false leaves every usage out.
    """

    def model(world: World) -> Model:
        async def answer(request: ModelRequest) -> Finish:
            if request.name == "main":
                return roots_answer(request, kids, late=late)
            await world.clock.sleep(delay_s)
            return used(report or 1) if reports and report is not None else says("found")

        return FunctionModel(answer)

    return model


def roots_answer(request: ModelRequest, kids: tuple[str, ...], *, late: bool) -> Finish:
    if request.number == 1:
        return calls(*(spawn(name) for name in kids))
    asked = any(message.name == "spawn_agent" for message in answers_so_far(request)[len(kids) :])
    if late and not asked and len(letters_in(request)) == len(kids):
        return calls(spawn("late"))
    return says("noted")


def answers_so_far(request: ModelRequest) -> list[ToolText]:
    return [message for message in request.messages if isinstance(message, ToolText)]


@functools.cache
def one_reservation() -> int:
    """Return what the first request of one of the children reserves; it is the same for each of them."""
    life = play(fan(1, kids=KIDS[:1], late=False), lambda stage: stage.go({**WIDE, "budget.tree_tokens_max": 10**6}))
    (opened,) = (fact for fact in life.told(StepOpened) if fact.reserved is not None)
    assert opened.reserved is not None
    assert OUTPUT_MAX < opened.reserved < 2 * OUTPUT_MAX
    return opened.reserved


def limit_for(count: int) -> int:
    """Return a limit that fits so many requests of children at once, and what is left no further one."""
    return count * one_reservation() + 200


def limited(count: int = FITS, **more: Any) -> dict[str, Any]:
    """Return the switches of a tree whose limit fits so many."""
    return {**WIDE, "budget.tree_tokens_max": limit_for(count), **{key.replace("__", "."): more[key] for key in more}}


class Book:
    """The tokens of one root run, added up from its events alone."""

    def __init__(self, events: list[Event], root_id: SessionId, *, root_too: bool = False) -> None:
        self.spent = self.excess = self.at_once = self.most_reserved = self.most_spent = 0
        self._open: dict[SessionId, int] = {}
        for event in events:
            if event.root_id == root_id and (root_too or event.session_id != root_id):
                self._feed(event)

    def _feed(self, event: Event) -> None:
        fact = event.fact
        if isinstance(fact, StepOpened | NotesAsked) and fact.reserved is not None:
            self._open[event.session_id] = fact.reserved
        if isinstance(fact, StepClosed | ContextCompacted):
            reserved = self._open.pop(event.session_id, 0)
            total = reserved if fact.usage is None else fact.usage.total
            self.spent += total
            self.excess += max(0, total - reserved)
        self.at_once = max(self.at_once, len(self._open))
        self.most_reserved = max(self.most_reserved, sum(self._open.values()))
        self.most_spent = max(self.most_spent, self.spent + sum(self._open.values()))


def root_of(life: Life[Any]) -> SessionId:
    """Return the only root."""
    (root_id,) = {event.root_id for event in life.events}
    return root_id


def outcomes(life: Life[Any], names: tuple[str, ...] = KIDS) -> Counter[tuple[str, str | None]]:
    """Return how many children ended how."""
    return Counter((fact.status, fact.reason) for fact in life.told(RunSettled) if fact.name in names)
