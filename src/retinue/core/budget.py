"""The token ledger of one root run: what was spent, what is reserved, what may still be sent; it never sends or stops.

A request reserves its estimated input and its output limit before it is sent, once for all its retries; its report
replaces the reservation, also when it is larger (CONTRACT section 8).
"""

from typing import Final, Literal

from retinue.core.events import Value
from retinue.core.ids import SessionId

OUTPUT_MIN_TOKENS: Final = 256
"""No request's output limit is lowered further than this."""
WAIT: Final = "wait"
"""It does not fit now; ask again when a reservation of the tree has been settled."""
OVER: Final = "over"
"""The budget is exceeded."""


class Grant(Value):
    """What a request may use. `output_tokens_max` is the output limit it carries; null, the budget sets none."""

    reserved: int
    output_tokens_max: int | None


Answer = Grant | Literal["wait", "over"]


class Ledger:
    """Tokens of one root run; changed only by folding facts."""

    def __init__(self) -> None:
        """Begin with nothing spent."""
        self.spent = 0
        """Reported tokens, and the reservations of requests that reported none."""
        self.unreported = 0
        """How many requests ended without a report."""
        self.open: dict[SessionId, int] = {}
        """The reservation of each session that has a request under way; a session has one at a time."""
        self.reserved = 0
        """The sum of the open reservations."""
        self.exceeded = False
        """Whether the budget was declared exceeded; it stays so."""

    def reserve(self, session_id: SessionId, tokens: int) -> None:
        """Fold the sending of a request; a session's reservation replaces the one it had."""
        self.reserved += tokens - self.open.get(session_id, 0)
        self.open[session_id] = tokens

    def settle(self, session_id: SessionId, reported_tokens: int | None) -> None:
        """Fold the end of a session's request: its report, or null for none, takes the place of its reservation.

        Without a report the reservation stays charged. A request that had reserved nothing adds only its report.
        """
        reservation = self.open.pop(session_id, 0)
        self.reserved -= reservation
        if reported_tokens is None:
            self.unreported += 1
            self.spent += reservation
        else:
            self.spent += reported_tokens

    def mark_exceeded(self) -> None:
        """Fold the event that says so."""
        self.exceeded = True

    def is_over(self, limit: int | None) -> bool:
        """Return whether as much as the limit is spent."""
        return limit is not None and self.spent >= limit

    def ask(
        self, limit: int | None, *, input_tokens: int, output_max: int | None, output_min: int = OUTPUT_MIN_TOKENS
    ) -> Answer:
        """Return what a request of a session without an open one may use: a grant, `WAIT` or `OVER`.

        What fits with its whole output limit is granted. Else it waits while other reservations are open; when none
        is, the output limit is lowered to what is left, but not below `output_min` (one that is less is never lowered).
        `output_max` null asks for all that is left: such a request fits only beside none. Without a `limit` nothing is
        reserved and the budget sets no output limit.
        """
        if limit is None:
            return Grant(reserved=0, output_tokens_max=None)
        if self.is_over(limit):
            return OVER
        left = limit - self.spent - self.reserved - input_tokens
        if output_max is not None and output_max <= left:
            return Grant(reserved=input_tokens + output_max, output_tokens_max=output_max)
        if self.open:
            return WAIT
        if left >= output_min:
            return Grant(reserved=input_tokens + left, output_tokens_max=left)
        return OVER
