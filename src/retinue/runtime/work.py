"""One open turn while it is worked on: its body, what it streams, whether it only waits; it commits nothing."""

import asyncio
from contextvars import ContextVar
from typing import Final

from retinue.core.decide.base import Ending
from retinue.core.errors import RetinueError
from retinue.core.events import TurnClosed
from retinue.core.ids import CallId, RunId, SessionId
from retinue.core.run import Run
from retinue.core.session import Session
from retinue.ports import Spent


class Work:
    """The live side of one open turn; everything durable about it is in the log."""

    def __init__(self, session_id: SessionId, root_id: SessionId, run_id: RunId | None, turn: int = 0) -> None:
        """Begin working; `turn` is the number of a root's turn."""
        self.turn: Final = turn
        self.session_id: Final = session_id
        self.root_id: Final = root_id
        self.run_id: Final = run_id
        self.body: asyncio.Task[Ending] | None = None
        self.stop: Ending | None = None
        self.given_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done = asyncio.Event()
        self.spawning = asyncio.Lock()
        self.closed: TurnClosed | Run | None = None
        self.error: RetinueError | None = None
        self.unreleased = ""
        """What of this turn's own could not be put away, in one sentence; such a turn does not end well."""
        self.finished_text: str | None = None
        """The text of a completed turn, in case its ending cannot be stored."""
        self.said = ""
        """What the turn had said last, in case its ending cannot be stored."""
        self.timers: list[asyncio.TimerHandle] = []
        self.fetched: set[RunId] = set()
        """Results that calls of this turn carry home, so that two at once do not both."""
        self.attempt = 1
        """Which try of the request under way the deltas belong to."""
        self.spent = Spent()
        """What the request under way has cost so far."""
        self.denials = 0
        """How often in a row stop hooks have kept this turn from ending."""
        self.tool = ""
        """Name of the tool that started last, for the live view."""
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._working = 1
        self._waits: dict[CallId | None, None] = {}
        self._places: dict[CallId, asyncio.Semaphore] = {}

    @property
    def text(self) -> str:
        """The text streamed so far by the request under way."""
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        """The reasoning streamed so far by the request under way."""
        return "".join(self._reasoning)

    def stream(self, kind: str, text: str) -> None:
        """Keep a delta until its message is committed."""
        (self._text if kind == "text" else self._reasoning).append(text)

    def begin_request(self) -> None:
        """Forget the request before: its answer is on record."""
        self.forget_stream()
        self.attempt = 1
        self.spent = Spent()

    def forget_stream(self) -> None:
        """Drop the deltas: the request is tried again."""
        self._text = []
        self._reasoning = []

    def note_ending(self, ending: Ending, session: Session) -> None:
        """Keep what a completed turn said until its ending is stored."""
        if ending.status == "completed" and session.turn is not None:
            self.finished_text = session.turn.last_text

    def require_live(self) -> None:
        """End a body that was given up and comes back late: its turn is settled, it may write nothing more."""
        if self.given_up.done():
            raise asyncio.CancelledError

    @property
    def only_waits(self) -> bool:
        """Whether everything this turn does at the moment is waiting for its own descendants."""
        return self._working == 0 and bool(self._waits)

    def begin(self, count: int = 1) -> None:
        """Count activities that work."""
        self._working += count

    def end(self) -> None:
        """An activity that worked is over."""
        self._working -= 1

    def begin_wait(self, call_id: CallId | None) -> bool:
        """An activity that worked waits for descendants; return False for a call that waits already."""
        if call_id in self._waits:
            return False
        self._waits[call_id] = None
        self._working -= 1
        return True

    def end_wait(self, call_id: CallId | None) -> None:
        """It works again."""
        del self._waits[call_id]
        self._working += 1

    def take_place(self, call_id: CallId, pool: asyncio.Semaphore) -> None:
        """Remember that a call holds a place of the tool pool."""
        self._places[call_id] = pool

    def leave_place(self, call_id: CallId) -> None:
        """Give the place back, once: at the call's end, or when it begins to wait for children."""
        pool = self._places.pop(call_id, None)
        if pool is not None:
            pool.release()


def unreleased(work: Work) -> Ending | None:
    """Return the ending of a turn whose own clean-up failed: whatever came of it, it did not end well."""
    if not work.unreleased:
        return None
    return Ending(status="failed", reason="release_failed", detail=work.unreleased)


CURRENT_CALL: Final[ContextVar[tuple[Work, CallId] | None]] = ContextVar("retinue_current_call", default=None)
"""The tool call that the present task serves, so that a wait inside a tool knows whose wait it is."""
