"""The blocking store as the event loop sees it: every call goes through the executor; it adds nothing else."""

from collections.abc import Sequence
from typing import Final

from retinue.core.events import Event, StoredOutput
from retinue.core.ids import Digest, OutputId, Position, RunId, SessionId
from retinue.core.run import Run
from retinue.core.session import SessionRow
from retinue.ports import Batch, Executor, Page, RunFilter, Store


class AsyncStore:
    """The methods of `Store` as coroutines, with the same results and errors."""

    def __init__(self, store: Store, executor: Executor) -> None:
        """Wrap a blocking store."""
        self._store: Final = store
        self._executor: Final = executor

    async def commit(self, batches: Sequence[Batch]) -> None:
        """Store the batches in order in one durable transaction."""
        await self._executor.run(self._store.commit, batches)

    async def read(self, session_id: SessionId, after: int = 0, limit: int | None = None) -> list[Event]:
        """Return a session's events with `seq` > `after`, in order."""
        return await self._executor.run(self._store.read, session_id, after, limit)

    async def tail(self, after: int, root_id: SessionId | None = None, limit: int = 1000) -> list[Event]:
        """Return events with `position` > `after`, in order, of one tree where `root_id` is given."""
        return await self._executor.run(self._store.tail, after, root_id, limit)

    async def position(self) -> Position:
        """Return the highest position ever stored, 0 for a new store; deleting events does not lower it."""
        return await self._executor.run(self._store.position)

    async def switch(self) -> bool:
        """Return whether the master switch is on; it is in a new store."""
        return await self._executor.run(self._store.switch)

    async def last_seq(self, session_id: SessionId) -> int:
        """Return a session's last `seq`, 0 for an unknown one."""
        return await self._executor.run(self._store.last_seq, session_id)

    async def session(self, session_id: SessionId) -> SessionRow | None:
        """Return one session's row."""
        return await self._executor.run(self._store.session, session_id)

    async def sessions(
        self, page: Page, *, roots_only: bool = True, open_only: bool = False
    ) -> tuple[list[SessionRow], str | None]:
        """Return rows, newest first, and the cursor of the next page; a damaged row is left out."""
        return await self._executor.run(self._store.sessions, page, roots_only=roots_only, open_only=open_only)

    async def run(self, run_id: RunId) -> Run | None:
        """Return one run; raise `StoreError` when its row is damaged."""
        return await self._executor.run(self._store.run, run_id)

    async def runs(self, where: RunFilter, page: Page) -> tuple[list[Run], str | None]:
        """Return runs in the order they were created, damaged ones as `(damaged)`, and the cursor of the next page."""
        return await self._executor.run(self._store.runs, where, page)

    async def blob(self, digest: Digest) -> bytes | None:
        """Return a stored blob."""
        return await self._executor.run(self._store.blob, digest)

    async def output(self, output_id: OutputId) -> StoredOutput | None:
        """Return a text that was stored whole."""
        return await self._executor.run(self._store.output, output_id)

    async def close(self) -> None:
        """Close the files; idempotent."""
        await self._executor.run(self._store.close)
