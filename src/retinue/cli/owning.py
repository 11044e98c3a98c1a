"""Becomes the owner of a data directory, waiting out one that is there only for a moment; it writes nothing."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from retinue.app import Runtime
from retinue.cli.stops import Stops
from retinue.control import METHODS
from retinue.core.errors import RetinueError
from retinue.stores.owner import read_owner

OWNER_CHANGE_MAX_S: Final = 10.0
"""Seconds in which an owner that is starting or ending must be there or gone."""
PAUSE_S: Final = 0.05
RECOVERING: Final = "retinue: closing what a crash left open"
"""What an owner says of itself that only closes what a crash left open."""


def momentary_command(method: str) -> str:
    """Return what an owner says of itself that is there only for one method of the control socket."""
    return f"retinue {method}"


_MOMENTARY: Final = frozenset({RECOVERING, *(momentary_command(method) for method in METHODS)})


@asynccontextmanager
async def owning(make: Callable[[], Runtime], data_dir: Path, stops: Stops) -> AsyncGenerator[Runtime]:
    """Give an open runtime, unless it is told to stop first, also while it opens: a server may take its time to start.

    Raises what opening a runtime raises; `store_owned` at once, but only after `OWNER_CHANGE_MAX_S` where the owner is
    one that does a moment's work.
    """
    give_up_s = asyncio.get_running_loop().time() + OWNER_CHANGE_MAX_S
    while True:
        runtime = make()
        try:
            await _open(runtime, stops)
            break
        except RetinueError as error:
            in_time = asyncio.get_running_loop().time() < give_up_s
            if error.code != "store_owned" or not in_time or not _momentary(data_dir):
                raise
        await asyncio.sleep(PAUSE_S)
        stops.require_none()
    try:
        stops.require_none()
        yield runtime
    finally:
        await runtime.__aexit__(None, None, None)


async def _open(runtime: Runtime, stops: Stops) -> None:
    """Open a runtime; raise `stopping`, with everything closed again, where it is told to stop meanwhile."""
    opening = asyncio.create_task(runtime.__aenter__())
    told = asyncio.create_task(stops.told.wait())
    await asyncio.wait((opening, told), return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if not opening.done():
        opening.cancel()
        await asyncio.wait((opening,))
    if opening.cancelled():
        stops.require_none()
    await opening


def _momentary(data_dir: Path) -> bool:
    """Return whether the owner is gone by now, or will be in a moment."""
    owner = read_owner(data_dir)
    return owner is None or owner["command"] in _MOMENTARY
