"""What a letter says and how much of it fits; it never stores, sends or wakes anything."""

from typing import Final

from retinue.core.events import LetterKind, LetterQueued, Value
from retinue.core.ids import SessionId
from retinue.core.run import Run

BYTES_PER_TOKEN: Final = 3
"""The only estimate of tokens where none is reported (SHAPES, Letters)."""
DIAGNOSTIC_MAX_BYTES: Final = 4096
"""Bytes of a run's `detail` (DSH; scenario S30)."""
REMARK_DETAIL_MAX_BYTES: Final = 240
"""Bytes of `detail` inside a letter: with header, sentence, remark and pointer it stays under 200 tokens."""
CUT_MARK: Final = "…[truncated]"
NO_OUTPUT: Final = "(subagent completed without output)"
HEADER_OF: Final[dict[LetterKind, str]] = {"result": "FINAL_ANSWER", "report": "REPORT", "message": "MESSAGE"}
QUIET_REASONS: Final = frozenset({"parent_cancelled", "budget", "switched_off", "deleted", "shutdown", "restart"})
"""Reasons whose result letters start no turn (CONTRACT section 4, Delivery)."""

_SENTENCE_BY_REASON: Final = {
    "step_limit": "Background subagent {id} ran out of steps.",
    "timeout": "Background subagent {id} ran out of time.",
    "token_limit": "Background subagent {id} ran out of room.",
    "budget": "Background subagent {id} was stopped: over budget.",
    "refusal": "Background subagent {id} declined.",
}
_SENTENCE_BY_STATUS: Final = {
    "completed": "Background subagent {id} finished.",
    "failed": "Background subagent {id} failed.",
    "cancelled": "Background subagent {id} was stopped.",
    "interrupted": "Background subagent {id} was interrupted.",
}


class Letter(Value):
    """A letter's text, and whether something was cut from it."""

    text: str
    cut: bool


def estimate_tokens(text: str) -> int:
    """Return ceil(UTF-8 bytes / 3)."""
    return -(-len(text.encode()) // BYTES_PER_TOKEN)


def fit_tokens(text: str, tokens_max: int | None) -> tuple[str, bool]:
    """Return the longest prefix of whole characters within `tokens_max`, marked when cut."""
    if tokens_max is None:
        return text, False
    bytes_max = tokens_max * BYTES_PER_TOKEN
    head = text[: bytes_max + 1]
    if len(head) == len(text) and len(head.encode()) <= bytes_max:
        return text, False
    low, high = 0, min(len(head), bytes_max)
    while low < high:
        middle = (low + high + 1) // 2
        if len(head[:middle].encode()) <= bytes_max:
            low = middle
        else:
            high = middle - 1
    return head[:low] + CUT_MARK, True


def fit_bytes(text: str, bytes_max: int) -> str:
    """Return the text within `bytes_max` bytes, marked when cut; a character is never split."""
    raw = text.encode()
    if len(raw) <= bytes_max:
        return text
    room = bytes_max - len(CUT_MARK.encode())
    return raw[:room].decode(errors="ignore") + CUT_MARK


def fit_chars(text: str, chars_max: int | None) -> tuple[str, bool]:
    """Return the first `chars_max` characters, and whether that cut anything."""
    if chars_max is None or len(text) <= chars_max:
        return text, False
    return text[:chars_max], True


def opening_sentence(run: Run) -> str:
    """Return the one sentence on how a run stopped."""
    by_reason = _SENTENCE_BY_REASON.get(run.reason or "")
    return (by_reason or _SENTENCE_BY_STATUS[run.status]).format(id=run.session_id)


def result_letter(run: Run, whole: str, tokens_max: int | None) -> Letter:
    """Return the letter that carries a settled run home; `whole` is its output or partial text, uncut."""
    payload, cut = fit_tokens(whole, tokens_max)
    parts = [opening_sentence(run)] if run.continuable else []
    if run.status == "completed":
        parts.append(payload if payload.strip() else NO_OUTPUT)
    else:
        parts.extend(_unfinished(run, payload))
    if cut:
        parts.append(f'The whole text: read_agent_output with id "{run.run_id}".')
    return Letter(text=frame("result", run.parent_id, run.session_id, "\n\n".join(parts)), cut=cut)


def _unfinished(run: Run, payload: str) -> list[str]:
    why = fit_bytes(run.detail or "no detail", REMARK_DETAIL_MAX_BYTES)
    parts = [f"The task did not finish ({run.status}/{run.reason}): {why}"]
    if payload.strip():
        parts.append(f"Text so far:\n{payload}")
    parts.append("What is left of the task is not done: do it yourself, or spawn it again with what is known now.")
    return parts


def frame(kind: LetterKind, receiver: SessionId, sender: SessionId, payload: str) -> str:
    """Return the four header lines and the payload from the fifth line on (SHAPES, Letters)."""
    return f"Message Type: {HEADER_OF[kind]}\nTask name: {receiver}\nSender: {sender}\nPayload:\n{payload}"


def ends_hold(mail: dict[str, LetterQueued], *, runs_open: bool) -> bool:
    """Return whether waiting letters are a reason for a step now: a waking one, or results with nothing left to wait for."""
    if any(letter.waking for letter in mail.values()):
        return True
    return not runs_open and any(letter.kind == "result" for letter in mail.values())
