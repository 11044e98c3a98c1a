"""What a letter says and how much of it fits; it never stores, sends or wakes anything."""

from collections.abc import Mapping
from typing import Final

from retinue.core.events import LetterKind, LetterQueued, Value
from retinue.core.ids import LetterId, SessionId
from retinue.core.run import Run
from retinue.core.text import CUT_MARK, fit_bytes, fit_tokens

DIAGNOSTIC_MAX_BYTES: Final = 4096
"""Bytes of a run's `detail` (scenario S30)."""
REMARK_DETAIL_MAX_BYTES: Final = 208
"""Bytes of `detail` inside a letter: with header, sentence, remark and pointer it stays under 200 tokens."""
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


def opening_sentence(run: Run) -> str:
    """Return the one sentence on how a run stopped."""
    by_reason = _SENTENCE_BY_REASON.get(run.reason or "")
    return (by_reason or _SENTENCE_BY_STATUS[run.status]).format(id=run.session_id)


def result_letter(
    run: Run, text: str, tokens_max: int | None, *, was_cut: bool = False, whole_id: str | None = None
) -> Letter:
    """Return the letter that carries a settled run home; `text` is its output or partial text, `was_cut` or whole.

    `whole_id` is the id under which the whole text can be read, by default the run's.
    """
    payload, cut = fit_tokens(text, tokens_max)
    if was_cut and not cut:
        payload, cut = payload + CUT_MARK, True
    parts = [opening_sentence(run)] if run.continuable else []
    if run.status == "completed":
        parts.append(payload if payload.strip() else NO_OUTPUT)
    else:
        parts.extend(_unfinished(run, payload))
    if cut:
        parts.append(f'The whole text: read_agent_output with id "{whole_id or run.run_id}".')
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


def ends_hold(mail: Mapping[LetterId, LetterQueued], *, runs_open: bool) -> bool:
    """Return whether letters are a reason for a step now: a waking one, or results with no run left to wait for."""
    if any(letter.waking for letter in mail.values()):
        return True
    return not runs_open and any(letter.kind == "result" for letter in mail.values())
