"""Keeps a history within what its model can hold: the older part becomes notes, as a logged fact of that session.

It never splits a call from its result. The notes are the model's own; where it gives none, the oldest part is dropped
and the notes say so. What was said stays in the log.
"""

from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

import msgspec

from retinue.core.decide.steps import (
    NO_TOKENS,
    WAIT_FOR_TOKENS,
    AskNotes,
    RecordStep,
    decide_ask_notes,
    decide_record_step,
)
from retinue.core.events import ContextCompacted
from retinue.core.ids import Seq
from retinue.core.messages import AssistantText, RequestMessage, ToolText, UserText
from retinue.core.session import Session
from retinue.core.text import BYTES_PER_TOKEN, clean, fit_chars
from retinue.ports import Finish, ModelRequest, Models
from retinue.runtime.journal import Journal
from retinue.runtime.prompt import PromptTexts
from retinue.runtime.work import Work

FULL_SHARE: Final = 0.8
"""Share of what a model can hold at which the older part is compacted."""
KEPT_SHARE: Final = 0.25
"""Share of it that the newest messages may take and stay as they are."""
NOTES_MAX_CHARS: Final = 24_000
QUOTE_MAX_CHARS: Final = 2_000
HEADING: Final = "# Notes on the conversation so far (its older part was compacted)"
DROPPED: Final = "The older part of this conversation was dropped, because no notes on it could be made. It began with:"


class Asked(msgspec.Struct, frozen=True):
    """Notes may be asked for, with this limit on their tokens; null is none."""

    output_tokens_max: int | None


class Compactor:
    """Compacts histories."""

    def __init__(self, journal: Journal, models: Models, texts: PromptTexts) -> None:
        """Wire it."""
        self._journal = journal
        self._models = models
        self._texts = texts

    async def keep_within(self, work: Work, session: Session) -> None:
        """Compact the session's history if the next request would fill its model."""
        policy = self._journal.state.policy(work.root_id)
        room = self._models.room_tokens(session.header.model)
        if policy["life.compaction"] != "auto" or session.next_request_tokens() < room * FULL_SHARE:
            return
        kept = messages_to_keep(session.messages, int(room * KEPT_SHARE * BYTES_PER_TOKEN))
        older = session.messages[: len(session.messages) - kept]
        if len(older) < 2:
            return
        asked = await self._may_ask(work, older)
        if asked is None:
            return
        finish = await self._notes(session, older, asked.output_tokens_max)
        notes = clean(finish.text).strip() if finish.reason == "stop" else ""
        usage = None if finish.usage is None else msgspec.structs.replace(finish.usage, requests=finish.retries + 1)
        fact = ContextCompacted(
            up_to_seq=Seq(session.seq),
            text=f"{HEADING}\n\n{fit_chars(notes or _dropped(older), NOTES_MAX_CHARS)[0]}",
            kept=kept,
            usage=usage,
            retries=finish.retries,
            run_id=work.run_id,
        )
        record = RecordStep(session_id=work.session_id, facts=(fact,), stamp=self._journal.stamp())
        self._journal.submit(decide_record_step, record)

    async def _may_ask(self, work: Work, older: Sequence[RequestMessage]) -> "Asked | None":
        """Set the tokens of the request aside; null when there are none now: the step itself will wait, or end."""
        size = sum(size_bytes(message) for message in older) + len(self._texts.main_role.encode())
        command = AskNotes(
            session_id=work.session_id, input_tokens=size // BYTES_PER_TOKEN + 1, stamp=self._journal.stamp()
        )
        answer = (await self._journal.submit(decide_ask_notes, command)).value
        if answer is WAIT_FOR_TOKENS or answer is NO_TOKENS:
            return None
        return Asked(None if answer is None else answer.output_tokens_max)

    async def _notes(self, session: Session, older: Sequence[RequestMessage], output_tokens_max: int | None) -> Finish:
        model, name = self._models.find(session.header.model)
        request = ModelRequest(
            session_id=session.session_id,
            root=session.header.parent_id is None,
            name=session.header.name,
            model=name,
            system=self._texts.main_role,
            messages=(*older, UserText(text=self._texts.compaction)),
            tools=(),
            number=session.requests + 1,
            effort=session.header.effort,
            output_tokens_max=output_tokens_max,
        )
        async with aclosing(model.stream(request)) as chunks:
            async for chunk in chunks:
                if isinstance(chunk, Finish):
                    return chunk
        return Finish(reason="incomplete")


def messages_to_keep(messages: Sequence[RequestMessage], bytes_max: int) -> int:
    """Return how many of the newest messages stay: whole pairs within `bytes_max`, at least the last answer."""
    start, room = len(messages), bytes_max
    while start > 0 and (room := room - size_bytes(messages[start - 1])) >= 0:
        start -= 1
    while start < len(messages) and isinstance(messages[start], ToolText):
        start += 1
    if start == len(messages):
        start = max((i for i, message in enumerate(messages) if isinstance(message, AssistantText)), default=start - 1)
    return len(messages) - start


def size_bytes(message: RequestMessage) -> int:
    """Return the UTF-8 bytes of a message's text and calls, about as a request holds them."""
    size = len(message.text.encode())
    if isinstance(message, AssistantText):
        size += sum(len(msgspec.json.encode(call.arguments)) + len(call.name) for call in message.tool_calls)
        size += 0 if message.kept is None else len(message.kept.body.encode())
    return size


def _dropped(older: Sequence[RequestMessage]) -> str:
    first = next((message.text for message in older if isinstance(message, UserText)), "")
    if first.startswith(HEADING):
        return first.removeprefix(HEADING).strip()  # notes on what came before are kept, not quoted once more
    return f"{DROPPED}\n\n{fit_chars(first, QUOTE_MAX_CHARS)[0]}"
