"""Shows a turn while it runs and how it ended, in one of three ways; it starts and stops nothing of the runtime.

Everything that may block (a pipe nobody reads, a stopped terminal) is written off the event loop.
"""

import importlib
import os
import sys
from typing import Any, Protocol

import msgspec

from retinue.cli import printing
from retinue.cli.plain import duration, line, steps
from retinue.cli.watch import Row, Tree
from retinue.core.events import Event, SessionOpened, TurnClosed, TurnOpened, Usage, Warned
from retinue.core.ids import SessionId
from retinue.ports import Executor, Live
from retinue.runtime.handles import TurnResult
from retinue.stores.codec import wire


class Show(Protocol):
    """One way of showing a turn."""

    async def begin(self) -> None:
        """Begin."""
        ...

    async def item(self, item: Event | Live) -> None:
        """Show one event of the tree."""
        ...

    async def result(self, result: TurnResult, answer: str | None, /) -> None:
        """Show how the prompt's own turn ended, and what the last turn said that completed; null where none did."""
        ...

    def stop(self) -> None:
        """Give the terminal back; idempotent, blocks for an instant."""
        ...


class JsonLines:
    """`--json`: the stored events on stdout, one object a line, and live deltas where the feed has them."""

    def __init__(self, session_id: SessionId, executor: Executor) -> None:
        """Print nothing yet."""
        self._session_id = session_id
        self.executor = executor
        self._turn: TurnOpened | None = None

    async def begin(self) -> None:
        """Do nothing: the first line is an event."""

    async def item(self, item: Event | Live) -> None:
        """Print one line."""
        if not isinstance(item, Event):
            await self.executor.run(printing.write_json, msgspec.json.encode(item.to_dict()))
            return
        if item.session_id == self._session_id and isinstance(item.fact, TurnOpened):
            self._turn = item.fact
        await self.executor.run(printing.write_json, wire(item))

    async def result(self, result: TurnResult, _answer: str | None, /) -> None:
        """Print the ending that could not be stored, without `seq` and `position`; a stored one was printed."""
        if result.stored:
            return
        ending: dict[str, Any] = {
            "type": "turn.closed",
            "session_id": self._session_id,
            "v": 1,
            "turn": None if self._turn is None else self._turn.turn,
            "root_run_id": None if self._turn is None else self._turn.root_run_id,
            **result.to_dict(),
        }
        await self.executor.run(printing.document, ending)

    def stop(self) -> None:
        """Do nothing: no terminal was taken."""


class Lines:
    """Plain lines on stderr, one for each change of a status, and the final text on stdout."""

    def __init__(self, tree: Tree, executor: Executor) -> None:
        """Print nothing yet."""
        self.tree = tree
        self.executor = executor

    async def begin(self) -> None:
        """Name the session."""
        root = self.tree.root
        await self._note(f"session {root.session_id}, model {line(root.model)}")

    async def item(self, item: Event | Live) -> None:
        """Print a line where a status changed or a warning came."""
        if not isinstance(item, Event):
            return
        row = self.tree.fold(item)
        if row is not None and row.status != "queued":
            await self._note(_line(row, is_root=row is self.tree.root))
        elif isinstance(item.fact, Warned):
            await self._note(f"warning: {line(item.fact.text)}")

    async def result(self, result: TurnResult, answer: str | None, /) -> None:
        """Print the final text, or why there is none."""
        await self.executor.run(ending, result, answer)

    def stop(self) -> None:
        """Do nothing: no terminal was taken."""

    async def _note(self, words: str) -> None:
        await self.executor.run(printing.note, words)


class Picture:
    """The live tree on a terminal's stderr, and the final text on stdout."""

    def __init__(self, tree: Tree, live: Any, executor: Executor) -> None:
        """Draw nothing yet."""
        self._tree = tree
        self._live = live
        self.executor = executor
        self._warnings: list[str] = []

    async def begin(self) -> None:
        """Name the session and begin to draw."""
        root = self._tree.root
        await self.executor.run(printing.note, f"session {root.session_id}, model {line(root.model)}")
        await self.executor.run(self._live.start)

    async def item(self, item: Event | Live) -> None:
        """Take one event; it is drawn with the next picture."""
        if not isinstance(item, Event):
            return
        self._tree.fold(item)
        if isinstance(item.fact, Warned):
            self._warnings.append(f"warning: {line(item.fact.text)}")

    async def result(self, result: TurnResult, answer: str | None, /) -> None:
        """Draw the last picture, then print the final text, or why there is none."""
        await self.executor.run(self._live.stop)
        for words in self._warnings:
            await self.executor.run(printing.note, words)
        await self.executor.run(printing.note, "")
        await self.executor.run(ending, result, answer)

    def stop(self) -> None:
        """Give the terminal back."""
        self._live.stop()


def show_for(header: SessionOpened, session_id: SessionId, executor: Executor, *, as_json: bool) -> Show:
    """Return the way that fits where stdout and stderr lead."""
    if as_json:
        return JsonLines(session_id, executor)
    tree = Tree(header, session_id)
    if not sys.stderr.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return Lines(tree, executor)
    # The library that draws is loaded only where something is drawn.
    return Picture(tree, importlib.import_module("retinue.cli.live").LiveTree(tree), executor)


def ending(result: TurnResult, answer: str | None) -> None:
    """Print the final text to stdout; of a turn that did not complete, the reason and the text so far to stderr."""
    if not (result.stored and result.status == "completed"):
        unfinished(result)
    printing.text(answer or "")


def unfinished(result: TurnResult | TurnClosed) -> None:
    """Print why a turn did not complete, and what it had said, to stderr."""
    how = result.status if result.reason == result.status else f"{result.status} ({result.reason})"
    printing.note(f"retinue: {how}: {line(result.detail, 2000)}")
    if isinstance(result, TurnResult) and not result.stored:
        printing.note("  Nothing more was stored. Mend the cause ('retinue doctor' looks for it), then start again.")
    partial = result.text or result.partial
    if partial:
        printing.note(f"The text so far:\n{partial}")


def unstored(detail: str) -> TurnResult:
    """Return the ending of a turn that could not even be opened on record."""
    return TurnResult(
        status="failed",
        reason="store_failed",
        text=None,
        partial=None,
        usage=Usage(),
        detail=detail,
        stored=False,
    )


def _line(row: Row, *, is_root: bool) -> str:
    name = line(row.name, 40) if is_root else f"  {line(row.name, 40)} ({row.session_id})"
    if row.is_open:
        return f"{name}: {row.status}"
    seconds = row.seconds()
    how = row.status if row.reason in (None, "done") else f"{row.status}, {row.reason}"
    return f"{name}: {how}, {steps(row.steps)}" + ("" if seconds is None else f", {duration(seconds)}")
