"""What the model tests share: requests, and ways to hear a stream to its end."""

import asyncio
import json
from pathlib import Path
from typing import Any

from retinue.models.openai import OpenAIModel
from retinue.ports import Delta, Finish, Model, ModelRequest, RequestMessage, Spent, UserText

STREAMS = Path(__file__).resolve().parents[1] / "streams"
STREAM_FILES = sorted(STREAMS.glob("*.jsonl"))


def request_of(*messages: RequestMessage, **fields: Any) -> ModelRequest:
    """Return a request of a root session, with one user message where none is given."""
    given = {
        "session_id": "s_1",
        "root": True,
        "name": "main",
        "model": "fake-model",
        "system": "",
        "messages": messages or (UserText(text="do it"),),
        "tools": (),
        "number": 1,
    }
    return ModelRequest(**{**given, **fields})


async def heard(model: Model, request: ModelRequest) -> tuple[list[Delta], Finish]:
    """Return the deltas of a stream and its one finish, which must come last."""
    *pieces, finish = [piece async for piece in model.stream(request)]
    assert isinstance(finish, Finish)
    assert all(isinstance(piece, Delta | Spent) for piece in pieces)
    return [piece for piece in pieces if isinstance(piece, Delta)], finish


def asked(base_url: str, request: ModelRequest | None = None, **how: Any) -> tuple[list[Delta], Finish]:
    """Ask one server once and close the connection."""

    async def ask() -> tuple[list[Delta], Finish]:
        model = OpenAIModel(base_url, **how)
        try:
            return await heard(model, request or request_of())
        finally:
            await model.aclose()

    return asyncio.run(ask())


def meta_of(path: Path) -> dict[str, Any]:
    """Return the first line of a stream file."""
    return json.loads(path.read_text(encoding="utf-8").splitlines()[0])


class FakeClock:
    """The `Clock` port: a wait passes at once and is counted."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    def wall(self) -> str:
        return "2030-01-01T00:00:00.000Z"

    def monotonic(self) -> float:
        return sum(self.waited)

    async def sleep(self, delay_s: float) -> None:
        self.waited.append(delay_s)
