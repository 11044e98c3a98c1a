"""The commands that need the owner: cancel, wait, live output; they ask it, or become it where there is none."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from retinue.app import DATABASE, Runtime, Settings, read_settings, run_async
from retinue.cli import printing
from retinue.cli.lists import show_run
from retinue.cli.options import Where
from retinue.cli.reading import find_run, record
from retinue.control import METHODS, WAIT_MAX_S, call_owner
from retinue.core.errors import RetinueError, not_found
from retinue.runtime.scheduler import cut_slice
from retinue.stores.owner import read_owner

OUTPUT_MAX_CHARS: Final = 200_000
"""Characters of one answer: with four bytes each they fit the control socket's line."""
OWNER_CHANGE_MAX_S: Final = 10.0
"""Seconds in which an owner that is starting or ending must be there or gone."""
_PAUSE_S: Final = 0.05
_GONE: Final = frozenset({"stopping", "store_owned"})
"""What we are told where the owner changes while we ask."""


def runs_cancel(run_id: str, options: Where) -> int:
    """Cancel a run and print it after it has ended."""
    body = _ask(options, "runs.cancel", {"id": run_id})
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
    body = _ask(options, "runs.wait", {"ids": list(ids), "mode": mode, "timeout_s": timeout_s})
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
    body = _live_output(run_id, window, options) or _stored_output(run_id, window, options)
    if options.json:
        printing.document(body)
        return 0
    printing.text(body["text"])
    if body["next_offset"] is not None:
        shown = f"{body['next_offset']} of {body['total_chars']} characters"
        printing.note(f"{shown}; go on with --offset {body['next_offset']}")
    return 0


def _live_output(run_id: str, window: tuple[int, int], where: Where) -> dict[str, Any] | None:
    """Return what the owner says, which is the text as it streams; null where no owner answers."""
    owner = read_owner(read_settings(where.data_dir).data_dir)
    if owner is None or not owner["socket"]:
        return None
    ask = {"id": run_id, "offset": window[0], "limit": window[1]}
    try:
        return run_async(call_owner(owner["socket"], "runs.output", ask))
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


def _ask(where: Where, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    return run_async(_answer(read_settings(where.data_dir), method, params))


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
        await asyncio.sleep(_PAUSE_S)


async def _once(settings: Settings, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    owner = read_owner(settings.data_dir)
    if owner is not None and owner["socket"]:
        return await call_owner(owner["socket"], method, params)
    async with Runtime(settings, command=f"retinue {method}") as runtime:
        return await METHODS[method](runtime.kernel, params)
