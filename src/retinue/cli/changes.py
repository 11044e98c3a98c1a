"""The commands that ask the owner: cancel, interrupt, wait, delete, switch, live output; none of them stays one."""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from retinue.app import run_async
from retinue.cli import printing
from retinue.cli.asking import GONE, answer, answer_in_time, owners_socket, require_record
from retinue.cli.lists import show_run
from retinue.cli.options import Where
from retinue.cli.plain import line
from retinue.cli.reading import below, find_run, find_session, is_text, last_answer, record, record_of
from retinue.control import WAIT_MAX_S, call_owner
from retinue.core.errors import RetinueError, not_found
from retinue.runtime.scheduler import cut_slice
from retinue.settings import Settings, read_settings
from retinue.tools.agents import wait_row

OUTPUT_MAX_CHARS: Final = 200_000
"""Characters of one answer: with four bytes each they fit the control socket's line."""
WAIT_MARGIN_S: Final = 1.0
"""Seconds that an owner has to answer once the time of a wait has run out."""
OUTPUT_MAX_S: Final = 5.0
"""Seconds that an owner has to say what a run has streamed so far; then the record is read."""


def runs_cancel(run_id: str, options: Where) -> int:
    """Cancel a run and print it after it has ended."""
    _require_text((run_id,))
    settings = read_settings(options.data_dir)
    require_record(settings, "run", run_id)
    body = run_async(answer_in_time(settings, "runs.cancel", {"id": run_id}))
    if options.json:
        printing.document(body)
        return 0
    note = body.pop("note", None)
    show_run(body, as_json=False)
    if note:
        printing.note(str(note))
    return 0


def runs_interrupt(run_id: str, options: Where) -> int:
    """Stop what a child does now and print how its run ended."""
    _require_text((run_id,))
    settings = read_settings(options.data_dir)
    require_record(settings, "run", run_id)
    body = run_async(answer_in_time(settings, "runs.interrupt", {"id": run_id}))
    if options.json:
        printing.document(body)
    else:
        printing.text(f"{body['run_id']}: {body['note'] or body['status']}")
    return 0


def sessions_delete(session_id: str, options: Where, *, yes: bool) -> int:
    """Delete a session and everything below it."""
    if not is_text(session_id):
        raise not_found("session", session_id)
    settings = read_settings(options.data_dir)
    require_record(settings, "session", session_id)
    if not yes and sys.stdin is not None and sys.stdin.isatty():
        _require_wanted(settings, session_id)
    body = run_async(answer_in_time(settings, "sessions.delete", {"id": session_id}))
    if options.json:
        printing.document(body)
    else:
        printing.text("\n".join(f"{deleted} deleted" for deleted in body["deleted"]))
    return 0


def _require_wanted(settings: Settings, session_id: str) -> None:
    """Raise `denied` unless the person at the terminal says yes."""
    with record_of(settings) as store:
        row = find_session(store, session_id)
        runs = [] if store is None else below(store, row)
    sessions = len({run.session_id for run in runs})
    under = f" and the {sessions} session{'' if sessions == 1 else 's'} below it" if sessions else ""
    printing.mark(f"Delete {session_id} ({line(row.header.name, 40)}){under} for good? [y/N] ")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise RetinueError("denied", "Nothing was deleted.", "Say y, or give --yes.")


def switch(state: str | None, options: Where) -> int:
    """Set the master switch, or show it; off cancels every child that is queued or works."""
    settings = read_settings(options.data_dir)
    if state is None:
        with record_of(settings) as store:
            body: dict[str, Any] = {"on": store is None or store.switch()}
    else:
        body = run_async(answer_in_time(settings, "switch.set", {"on": state == "on"}))
    if options.json:
        printing.document(body)
    else:
        printing.text(f"delegation is {'on' if body['on'] else 'off'}")
    return 0


def runs_wait(ids: Sequence[str], mode: str, timeout_s: float, options: Where) -> int:
    """Wait for runs and print what became of them."""
    if not 0 <= timeout_s <= WAIT_MAX_S:
        detail = f"--timeout cannot be {timeout_s:g}."
        raise RetinueError("invalid", detail, f"Give 0 to {WAIT_MAX_S:g} seconds.")
    _require_text(ids)
    settings = read_settings(options.data_dir)
    require_record(settings, "run", ids[0])
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
    socket = owners_socket(read_settings(where.data_dir))
    if socket is None:
        return None
    ask = {"id": run_id, "offset": window[0], "limit": window[1]}
    try:
        return run_async(asyncio.wait_for(call_owner(socket, "runs.output", ask), OUTPUT_MAX_S))
    except TimeoutError:
        return None
    except RetinueError as error:
        if error.code in GONE:
            return None
        raise


def _stored_output(run_id: str, window: tuple[int, int], where: Where) -> dict[str, Any]:
    with record(where) as store:
        run = find_run(store, run_id)
        kept = None if store is None or run.output_id is None else store.output(run.output_id)
    shown = run.output if run.output is not None else run.partial or ""
    body: dict[str, Any] = msgspec.to_builtins(cut_slice(shown if kept is None else kept.text, *window))
    return body


async def _waited(settings: Settings, ids: Sequence[str], mode: str, timeout_s: float) -> dict[str, Any] | None:
    """Return the owner's answer; null where it gives none in time."""
    ask = {"ids": list(ids), "mode": mode, "timeout_s": timeout_s}
    try:
        async with asyncio.timeout(timeout_s + WAIT_MARGIN_S):
            return await answer(settings, "runs.wait", ask)
    except TimeoutError:
        return None


def _as_stored(settings: Settings, ids: Sequence[str]) -> dict[str, Any]:
    """Return what the record says, as a wait that ran out: its owner is stopped, or cannot store anything."""
    with record_of(settings) as store:
        return {"items": [wait_row(find_run(store, name)) for name in ids], "timed_out": True}
