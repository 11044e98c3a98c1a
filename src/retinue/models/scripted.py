"""A model that answers from a script, request by request; it reads no file while it streams and opens no socket."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from retinue.core.errors import RetinueError
from retinue.models.assembler import Assembler, Ending
from retinue.models.failure import message_of, retry_after_s
from retinue.models.script import (
    Chunk,
    End,
    Http,
    Pause,
    Raw,
    Script,
    Wait,
    filled,
    load_script,
    script_of,
    spawned_in,
)
from retinue.ports import AssistantText, Delta, Finish, Model, ModelRequest, Spent, ToolText

__all__ = ["ScriptedModel", "load_script"]

REQUESTS_KEPT: Final = 1000
"""Requests a scripted model remembers; the oldest go first."""


class ScriptedModel(Model):
    """Plays a script for every session that asks.

    Attributes:
        requests: the latest requests, oldest first, at most `REQUESTS_KEPT`.
    """

    def __init__(
        self,
        script: Script | Iterable[Mapping[str, Any]],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Take a loaded script or its lines; `sleep` waits out `delay_ms` (seconds; a virtual clock may serve).

        Raises `invalid`, naming the line, when the script is wrong.
        """
        self.script = _without_raw_bytes(script if isinstance(script, Script) else script_of(script))
        self.requests: list[ModelRequest] = []
        self._sleep = sleep

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Spent | Finish, None]:
        """Yield the reply's deltas, then its `Finish`; a script that has run dry ends in an error."""
        self.requests.append(request)
        del self.requests[:-REQUESTS_KEPT]
        reply = self.script.reply(_kinds(request), request.number)
        finish = Finish(reason="error", error="script ended", cause="lasting")
        spawned = spawned_in(_results(request))
        assembler = Assembler()
        for action in reply.actions if reply else ():
            match action:
                case Wait():
                    await self._sleep(action.delay_ms / 1000)
                case Chunk():
                    for piece in assembler.feed(json.loads(filled(action.text, spawned))):
                        yield piece
                    await self._sleep(0)  # between two pieces a reader, or a cancel, gets its turn
                case Http():
                    finish = _http_finish(action)
                case End():
                    finish = assembler.finish(_ENDINGS[action.kind])
                case Raw() | Pause():
                    pass  # raw bytes were refused at construction; only the loopback server pauses
        final = reply is not None and reply.final
        yield msgspec.structs.replace(finish, cause="lasting") if final else finish

    async def aclose(self) -> None:
        """Do nothing: there is no connection."""


def _http_finish(action: Http) -> Finish:
    words = message_of(action.body) or "no reason given"
    headers = {key.lower(): value for key, value in action.headers.items()}
    return Finish(
        reason="error",
        error=f"The provider answered HTTP {action.status}: {words}.",
        status=action.status,
        retry_after_s=retry_after_s(headers, time.time()),
    )


def _without_raw_bytes(script: Script) -> Script:
    for reply in script.replies:
        if any(isinstance(action, Raw) for action in reply.actions):
            detail = f"The model script is wrong at {reply.where}: raw_hex needs a real connection."
            raise RetinueError("invalid", detail, "Play this script with the loopback model server.")
    return script


_ENDINGS: Final[dict[str, Ending]] = {"done": "done", "close": "closed", "abort": "broken"}


def _kinds(request: ModelRequest) -> tuple[str, ...]:
    return (f"name:{request.name}", "parent" if request.root else "child", "any")


def _results(request: ModelRequest) -> list[tuple[str, str]]:
    """Return the tool results of the history with their tools' names; refused spawns name no child."""
    names = {
        call.call_id: call.name
        for message in request.messages
        if isinstance(message, AssistantText)
        for call in message.tool_calls
    }
    answers = [message for message in request.messages if isinstance(message, ToolText)]
    return [(names.get(answer.call_id, answer.name), answer.text) for answer in answers]
