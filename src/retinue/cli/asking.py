"""Asks the owner of a data directory for a change, or becomes the owner where there is none; it prints nothing."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from retinue.app import DATABASE, Runtime
from retinue.cli.owning import OWNER_CHANGE_MAX_S, PAUSE_S, momentary_command
from retinue.control import METHODS, call_owner
from retinue.core.errors import RetinueError, not_found
from retinue.settings import Settings, without_servers
from retinue.stores.owner import read_owner

STOP_MAX_S: Final = 15.0
"""Seconds in which an owner that is alive has stopped a run: twice the grace of a body that ignores it, and more."""
GONE: Final = frozenset({"stopping", "store_owned"})
"""What we are told where the owner changes while we ask."""


def require_record(settings: Settings, what: str, name: str) -> None:
    """Raise `not_found` where there is no record that could hold a name; nothing is made."""
    if not (settings.data_dir / DATABASE).exists():
        raise not_found(what, name)


async def answer_in_time(settings: Settings, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `answer` does, at most `STOP_MAX_S` seconds later; `store_owned` then."""
    try:
        async with asyncio.timeout(STOP_MAX_S):
            return await answer(settings, method, params)
    except TimeoutError as error:
        detail = f"The owner of {settings.data_dir} did not answer within {STOP_MAX_S:g} s; it may still do it."
        raise RetinueError(
            "store_owned", detail, "See 'retinue doctor' for its process; let it go on, or end it."
        ) from error


async def answer(settings: Settings, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the owner's answer, whoever that is: it may come or go while we ask."""
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + OWNER_CHANGE_MAX_S
    while True:
        try:
            return await _once(settings, method, params)
        except RetinueError as error:
            if error.code not in GONE or loop.time() > give_up_s:
                raise
        await asyncio.sleep(PAUSE_S)


def owners_socket(settings: Settings) -> str | None:
    """Return where an owner listens; null where there is none."""
    owner = read_owner(settings.data_dir)
    return owner["socket"] or None if owner is not None else None


async def _once(settings: Settings, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    socket = owners_socket(settings)
    if socket is not None:
        return await call_owner(socket, method, params)
    async with Runtime(without_servers(settings), command=momentary_command(method)) as runtime:
        return await METHODS[method](runtime.kernel, params)
