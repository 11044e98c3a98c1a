"""Ways to start resident children and to read what their letters did; it holds no test."""

from typing import Any

from retinue.core.events import LetterAbsorbed, TurnOpened
from retinue.core.ids import SessionId
from tests.scenarios.stage import Life, Stage


async def start_kid(stage: Stage, root: SessionId, name: str, **asked: Any) -> SessionId:
    """Start a continuable child and return its session."""
    kid = await stage.subagents.start_continuable("spawn", parent=root, prompt=f"do {name}", name=name, **asked)
    return kid.session_id


def turns(life: Life[Any], session_id: SessionId) -> list[TurnOpened]:
    mine = (event.fact for event in life.events if event.session_id == session_id)
    return [fact for fact in mine if isinstance(fact, TurnOpened)]


def absorbed_at(life: Life[Any], session_id: SessionId) -> list[tuple[int, int]]:
    """Return the turn and step at which each letter of a session entered its context, in order."""
    mine = (event.fact for event in life.events if event.session_id == session_id)
    return [(fact.turn, fact.step) for fact in mine if isinstance(fact, LetterAbsorbed)]


def kinds(letters: list[str]) -> list[str]:
    return [letter.split("\n", 1)[0].removeprefix("Message Type: ") for letter in letters]
