"""The commands that need the owner: cancel, wait, live output; they ask it, or become it where there is none."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from retinue.app import DATABASE, Runtime, run_async
from retinue.cli import printing
from retinue.cli.lists import show_run
from retinue.cli.options import Where
from retinue.cli.owning import OWNER_CHANGE_MAX_S, PAUSE_S, momentary_command
from retinue.cli.reading import find_run, is_text, last_answer, record, record_of
from retinue.control import METHODS, WAIT_MAX_S, call_owner
from retinue.core.errors import RetinueError, not_found
from retinue.runtime.scheduler import cut_slice
from retinue.settings import Settings, read_settings
from retinue.stores.owner import read_owner
from retinue.tools.agents import wait_row

OUTPUT_MAX_CHARS: Final = 200_000
"""Characters of one answer: with four bytes each they fit the control socket's line."""
CANCEL_MAX_S: Final = 15.0
"""Seconds in which an owner that is alive has cancelled a run: twice the grace of a body that ignores it, and more."""
WAIT_MARGIN_S: Final = 1.0
"""Seconds that an owner has to answer once the time of a wait has run out."""
OUTPUT_MAX_S: Final = 5.0
"""Seconds that an owner has to say what a run has streamed so far; then the record is read."""
_GONE: Final = frozenset({"stopping", "store_owned"})
"""What we are told where the owner changes while we ask."""


def runs_cancel(run_id: str, options: Where) -> int:
    """Cancel a run and print it after it has ended."""
    _require_text((run_id,))
    body = run_async(_cancelled(read_settings(options.data_dir), run_id))
    if options.json:
        printing.document(body)
        return 0
    note = body.pop("note", None)
    show_run(body, as_json=False)
    if note:
        printing.note(str(note))
    return 0


def runs_wait(ids: Sequence[str], mode: str, timeout_s: float, options: Where) -> int:
    """Wait for runs and print what became of them."""
    if not 0 <= timeout_s <= WAIT_MAX_S:
        detail = f"--timeout cannot be {timeout_s:g}."
        raise RetinueError("invalid", detail, f"Give 0 to {WAIT_MAX_S:g} seconds.")
    _require_text(ids)
    settings = read_settings(options.data_dir)
    body = run_async(_waited(settings, ids, mode, timeout_s)) or _as_stored(settings, ids)
    if options.json:
        printing.document(body)
        return 0
    keys = ("run_id", "session_id", "name", "status", "reason", "result_state")
    rows = [[item[key] or "" for key in keys] for item in body["items"]]
    printing.table(("RUN", "SESSION", "NAME", "STATUS", "REASON", "RESULT"), rows)
    if body["timed_out"]:
        printing.note("The time ran out; nothing was stopped.")
    return 0


def runs_output(run_id: str, window: tuple[int, int], options: Where) -> int:
    """Print a slice of a run's output."""
    offset, limit = window
    if offset < 0 or not 1 <= limit <= OUTPUT_MAX_CHARS:
        detail = f"--offset {offset} with --limit {limit} is no slice of a text."
        raise RetinueError("invalid", detail, f"Offsets begin at 0; ask for 1 to {OUTPUT_MAX_CHARS} characters.")
    _require_text((run_id,))
    body = (
        _roots_output(run_id, window, options)
        or _live_output(run_id, window, options)
        or _stored_output(run_id, window, options)
    )
    if options.json:
        printing.document(body)
        return 0
    printing.text(body["text"])
    if body["next_offset"] is not None:
        shown = f"{body['next_offset']} of {body['total_chars']} characters"
        printing.note(f"{shown}; go on with --offset {body['next_offset']}")
    return 0


def _require_text(ids: Sequence[str]) -> None:
    for name in ids:
        if not is_text(name):
            raise not_found("run", name)


def _roots_output(name: str, window: tuple[int, int], where: Where) -> dict[str, Any] | None:
    """Return what the last turn of a root session said, which no run holds; null for everything else."""
    if not name.startswith("s_"):
        return None
    with record(where) as store:
        answer = None if store is None else last_answer(store, name)
    if answer is None:
        return None
    body: dict[str, Any] = msgspec.to_builtins(cut_slice(answer, *window))
    return body


def _live_output(run_id: str, window: tuple[int, int], where: Where) -> dict[str, Any] | None:
    """Return what the owner says, which is the text as it streams; null where no owner answers."""
    owner = read_owner(read_settings(where.data_dir).data_dir)
    if owner is None or not owner["socket"]:
        return None
    ask = {"id": run_id, "offset": window[0], "limit": window[1]}
    try:
        return run_async(asyncio.wait_for(call_owner(owner["socket"], "runs.output", ask), OUTPUT_MAX_S))
    except TimeoutError:
        return None
    except RetinueError as error:
        if error.code in _GONE:
            return None
        raise


def _stored_output(run_id: str, window: tuple[int, int], where: Where) -> dict[str, Any]:
    with record(where) as store:
        run = find_run(store, run_id)
        kept = None if store is None or run.output_id is None else store.output(run.output_id)
    shown = run.output if run.output is not None else run.partial or ""
    body: dict[str, Any] = msgspec.to_builtins(cut_slice(shown if kept is None else kept.text, *window))
    return body


async def _cancelled(settings: Settings, run_id: str) -> dict[str, Any]:
    try:
        async with asyncio.timeout(CANCEL_MAX_S):
            return await _answer(settings, "runs.cancel", {"id": run_id})
    except TimeoutError as error:
        detail = f"The owner of {settings.data_dir} did not answer within {CANCEL_MAX_S:g} s; it may still cancel it."
        raise RetinueError(
            "store_owned", detail, "See 'retinue doctor' for its process; let it go on, or end it."
        ) from error


async def _waited(settings: Settings, ids: Sequence[str], mode: str, timeout_s: float) -> dict[str, Any] | None:
    """Return the owner's answer; null where it gives none in time."""
    ask = {"ids": list(ids), "mode": mode, "timeout_s": timeout_s}
    try:
        async with asyncio.timeout(timeout_s + WAIT_MARGIN_S):
            return await _answer(settings, "runs.wait", ask)
    except TimeoutError:
        return None


def _as_stored(settings: Settings, ids: Sequence[str]) -> dict[str, Any]:
    """Return what the record says, as a wait that ran out: its owner is stopped, or cannot store anything."""
    with record_of(settings) as store:
        return {"items": [wait_row(find_run(store, name)) for name in ids], "timed_out": True}


async def _answer(settings: Settings, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the owner's answer, whoever that is: it may come or go while we ask."""
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + OWNER_CHANGE_MAX_S
    while True:
        if not (settings.data_dir / DATABASE).exists():
            raise not_found("run", str(params.get("id") or (params.get("ids") or [""])[0]))
        try:
            return await _once(settings, method, params)
        except RetinueError as error:
            if error.code not in _GONE or loop.time() > give_up_s:
                raise
        await asyncio.sleep(PAUSE_S)


async def _once(settings: Settings, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    owner = read_owner(settings.data_dir)
    if owner is not None and owner["socket"]:
        return await call_owner(owner["socket"], method, params)
    async with Runtime(settings, command=momentary_command(method)) as runtime:
        return await METHODS[method](runtime.kernel, params)
