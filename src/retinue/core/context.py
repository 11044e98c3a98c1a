"""What a request repeats of a log, the order of input at a boundary, what is packed for a child; it reads no log.

Packing follows CONTRACT section 6: bounded, filled from the newest message backwards, whole messages only.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from retinue.core.events import Event, MessageAssistant, MessageUser, ToolFinished, TurnClosed, TurnOpened, Value
from retinue.core.ids import Seq
from retinue.core.messages import AssistantText, RequestCall, ToolText, UserText
from retinue.core.text import fit_chars

HOOK_DENIED: Final = "hook_denied"
PACKED_MAX_CHARS: Final = 24_000
"""Characters of a packed list, as JSON."""
SUMMARY_ITEM_MAX_CHARS: Final = 2_000
CUT_MARK: Final = " …[cut]"


class Item(Value):
    """One message of a log as a child is shown it."""

    seq: Seq
    role: Literal["user", "assistant"]
    content: str
    begins_turn: bool = False
    """Whether it is the instruction that a turn began with."""


class Packed(Value):
    """Messages in their order, as the text of a JSON list, and how many did not fit."""

    text: str
    count: int
    left_out: int


def assistant_text(fact: MessageAssistant) -> AssistantText:
    """Return an answer as later requests repeat it."""
    calls = tuple(RequestCall(call_id=c.call_id, name=c.name, arguments=c.arguments) for c in fact.tool_calls)
    return AssistantText(text=fact.text, reasoning=fact.reasoning, tool_calls=calls, kept=fact.kept)


def tool_text(name: str, fact: ToolFinished) -> ToolText:
    """Return an answered call as later requests repeat it."""
    return ToolText(call_id=fact.call_id, name=name, text=fact.text, error=fact.outcome != "ok")


def boundary_order(waiting: Sequence[MessageUser]) -> list[UserText]:
    """Return admitted input in the order a step boundary shows it: people first, then letters, each in log order."""
    people = [UserText(text=m.text) for m in waiting if m.letter_id is None]
    letters = [UserText(text=m.text) for m in waiting if m.letter_id is not None]
    return people + letters


def is_instruction(fact: MessageUser) -> bool:
    """Return whether a turn begins with this: a person's prompt, or a child's instruction; no letter, no steering."""
    return fact.letter_id is None and fact.source in ("user", "agent")


def items_of(events: Iterable[Event]) -> list[Item]:
    """Return the messages of a log that are not blank, in order: what was said to the session, and what it said.

    Left out is what the runtime itself said (source `context`), and an instruction that a hook turned away.
    """
    items: list[Item] = []
    began = 0
    for event in events:
        fact = event.fact
        if isinstance(fact, TurnOpened):
            began = len(items)
        elif isinstance(fact, MessageUser) and fact.source != "context" and fact.text.strip():
            items.append(Item(seq=event.seq, role="user", content=fact.text, begins_turn=is_instruction(fact)))
        elif isinstance(fact, MessageAssistant) and fact.text.strip():
            items.append(Item(seq=event.seq, role="assistant", content=fact.text))
        elif isinstance(fact, TurnClosed) and fact.reason == HOOK_DENIED:
            items[began:] = [item for item in items[began:] if not item.begins_turn]
    return items


def last_turns(items: Sequence[Item], turns: int) -> list[Item]:
    """Return the messages from the instruction on that began the last but `turns - 1` turn."""
    starts = [place for place, item in enumerate(items) if item.begins_turn]
    if not starts:
        return list(items)
    return list(items[starts[max(0, len(starts) - turns)] :])


def shortened(items: Sequence[Item]) -> list[Item]:
    """Return the messages, each cut to what a summary shows of it, and marked where it was cut."""
    return [_short(item) for item in items]


def _short(item: Item) -> Item:
    if len(item.content) <= SUMMARY_ITEM_MAX_CHARS:
        return item
    text, _ = fit_chars(item.content, SUMMARY_ITEM_MAX_CHARS - len(CUT_MARK))
    return msgspec.structs.replace(item, content=text + CUT_MARK)


def pack(items: Sequence[Item], max_chars: int = PACKED_MAX_CHARS) -> Packed:
    """Return a JSON list of `{seq, role, content}`; the first message from the end that does not fit ends it."""
    chosen: list[str] = []
    room = max_chars - len("[")
    for item in reversed(items):
        form = {"seq": item.seq, "role": item.role, "content": item.content}
        text = msgspec.json.encode(form).decode()
        room -= len(text) + len(",")  # the last one pays for the closing bracket
        if room < 0:
            break
        chosen.append(text)
    return Packed(text=f"[{','.join(reversed(chosen))}]", count=len(chosen), left_out=len(items) - len(chosen))
