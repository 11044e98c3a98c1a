"""The environment blocks of sessions: made once, stored by digest, and found again by it; it writes no request."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from retinue.core.errors import RetinueError
from retinue.core.ids import Digest
from retinue.ports import Executor, Surroundings
from retinue.runtime.prompt import Blob, blob
from retinue.runtime.record import Record

KEPT_TEXTS_MAX: Final = 256
"""Texts that are kept in memory; the others are read from the store again."""


class Texts:
    """Stored texts that requests begin with, by digest."""

    def __init__(self, record: Record, executor: Executor, surroundings: Surroundings) -> None:
        """Wire it."""
        self._record = record
        self._executor = executor
        self._surroundings = surroundings
        self._kept: OrderedDict[Digest, str] = OrderedDict()

    async def environment(self, cwd: str, *, roles: bool, skills: bool, preload: Sequence[str] = ()) -> Blob:
        """Return the environment block of a session, to be stored with it; raises `broken_agent` as the port does."""
        text = await self._executor.run(self._text, cwd, roles, skills, tuple(preload))
        made = blob(text.encode())
        self._keep(made.digest, text)
        return made

    def _text(self, cwd: str, roles: bool, skills: bool, preload: tuple[str, ...]) -> str:  # noqa: FBT001 - the executor passes places, not names
        return self._surroundings.text(cwd, roles=roles, skills=skills, preload=preload)

    async def find(self, digest: Digest | None) -> str:
        """Return a stored text; none for no digest. Raises `store_failed` for one that the store lost."""
        if digest is None:
            return ""
        text = self._kept.get(digest)
        if text is None:
            body = await self._record.blob(digest)
            if body is None:
                raise RetinueError("store_failed", f"The stored text {digest} is missing.", "Restore the record.")
            text = body.decode()
        self._keep(digest, text)
        return text

    def _keep(self, digest: Digest, text: str) -> None:
        self._kept[digest] = text
        self._kept.move_to_end(digest)
        if len(self._kept) > KEPT_TEXTS_MAX:
            self._kept.popitem(last=False)
