"""The store as the shell reads it: the async store and the two lists it needs whole; it writes nothing by itself."""

from typing import Final

from retinue.core.run import Run
from retinue.core.session import SessionRow
from retinue.ports import Page, RunFilter
from retinue.stores.threaded import AsyncStore

PAGE_ROWS: Final = 1000


class Record(AsyncStore):
    """The async store with lists that are read to their end."""

    async def all_runs(self, where: RunFilter) -> list[Run]:
        """Return every run that matches, in the order they were created."""
        rows: list[Run] = []
        cursor: str | None = None
        while True:
            page, cursor = await self.runs(where, Page(limit=PAGE_ROWS, cursor=cursor))
            rows.extend(page)
            if cursor is None:
                return rows

    async def open_sessions(self) -> list[SessionRow]:
        """Return every session with an open turn."""
        rows: list[SessionRow] = []
        cursor: str | None = None
        while True:
            page, cursor = await self.sessions(Page(limit=PAGE_ROWS, cursor=cursor), roots_only=False, open_only=True)
            rows.extend(page)
            if cursor is None:
                return rows
