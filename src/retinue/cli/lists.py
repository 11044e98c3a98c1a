"""The reading commands: sessions, runs, tree; it prints what the record says and changes nothing."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from retinue.cli import printing
from retinue.cli.budgets import budgets
from retinue.cli.options import Paging, Where
from retinue.cli.plain import amount, duration, line, steps, tokens
from retinue.cli.reading import below, find_run, find_session, record
from retinue.core.errors import RetinueError
from retinue.core.events import Usage
from retinue.core.run import Run
from retinue.core.session import SessionRow
from retinue.ports import Page, RunFilter
from retinue.stores.sqlite import SQLiteStore

LIMIT_MAX_ROWS = 1000
_RUN_HEADS = ("RUN", "SESSION", "NAME", "ROUND", "STATUS", "WHY", "STEPS", "TOKENS", "TIME")


def sessions_list(options: Paging) -> int:
    """List the root sessions."""
    page = _page(options)
    with record(options) as store:
        rows, cursor = ([], None) if store is None else store.sessions(page)
    if options.json:
        printing.document({"items": [row.to_dict() for row in rows], "next": cursor})
    elif not rows:
        printing.note("No sessions yet. 'retinue run PROMPT' opens one.")
    else:
        heads = ("SESSION", "STATUS", "TURNS", "LAST", "MODEL", "UPDATED", "FOLDER")
        printing.table(heads, [_session_cells(row) for row in rows])
        _more(cursor)
    return 0


def sessions_show(session_id: str, options: Where) -> int:
    """Show one session."""
    with record(options) as store:
        row = find_session(store, session_id)
        runs = [] if store is None else below(store, row)
    if options.json:
        printing.document(row.to_dict())
        return 0
    printing.fields(_session_pairs(row))
    if runs:
        printing.text("\n")
        printing.table(_RUN_HEADS, [_run_cells(run) for run in runs])
    return 0


def runs_list(session_id: str | None, options: Paging, *, open_only: bool) -> int:
    """List runs, and what their root runs have spent where tokens are limited."""
    page = _page(options)
    with record(options) as store:
        rows, cursor = _runs(store, session_id, page, open_only=open_only)
        budget = [] if store is None else budgets(store, rows)
    if options.json:
        printing.document(
            {"items": [run.to_dict() for run in rows], "next": cursor, **({"budget": budget} if budget else {})}
        )
    elif not rows:
        printing.note("No runs here.")
    else:
        printing.table(_RUN_HEADS, [_run_cells(run) for run in rows])
        for row in budget:
            printing.text(_budget(row))
        _more(cursor)
    return 0


def _runs(
    store: SQLiteStore | None, session_id: str | None, page: Page, *, open_only: bool
) -> tuple[list[Run], str | None]:
    if session_id is not None:
        row = find_session(store, session_id)
        found = [] if store is None else below(store, row)
        return _slice([run for run in found if run.is_open or not open_only], page)
    return ([], None) if store is None else store.runs(RunFilter(open_only=open_only), page)


def _budget(row: dict[str, Any]) -> str:
    spent, limit = amount(row["spent"]), amount(row["limit"])
    more = f", {amount(row['reserved'])} reserved" if row["reserved"] else ""
    over = ", exceeded" if row["exceeded"] else ""
    return f"budget of {row['root_run_id']}: {spent} of {limit} tokens spent{more}{over}"


def runs_show(run_id: str, options: Where) -> int:
    """Show one run."""
    with record(options) as store:
        run = find_run(store, run_id)
    show_run(run.to_dict(), as_json=options.json)
    if not options.json and run.spec.round > 1:
        printing.note(f"It is round {run.spec.round} of {run.session_id}.")
    return 0


def show_run(run: dict[str, Any], *, as_json: bool) -> None:
    """Print a Run object, whole as JSON, or for a person what it holds."""
    if as_json:
        printing.document(run)
        return
    texts = ("output", "partial")
    pairs = [(key, _value(value)) for key, value in run.items() if key not in texts and value not in (None, [], "")]
    printing.fields(pairs)
    for key in texts:
        if run.get(key):
            cut = " (cut; 'retinue runs output' has the rest)" if run.get("output_cut") else ""
            printing.text(f"\n{key}{cut}:\n{run[key]}")


def tree(session_id: str, options: Where) -> int:
    """Show a session and its descendants."""
    with record(options) as store:
        row = find_session(store, session_id)
        runs = [] if store is None else below(store, row)
    ordered = _pre_order(row, runs)
    if options.json:
        rows = [run.to_dict() for _, run in ordered]
        printing.document({"items": rows, "next": None, "session": row.to_dict()})
        return 0
    printing.text(f"{line(row.header.name)}  {row.session_id}  {_how(row)}  {line(row.header.model)}")
    for depth, run in ordered:
        why = _why(run)
        nth = f" (round {run.spec.round})" if run.spec.round > 1 else ""
        shown = f"{'  ' * depth}{line(run.name, 40)}{nth}  {run.run_id}  {run.status}{': ' if why else ''}{line(why)}"
        printing.text(f"{shown}  {steps(run.steps)}, {tokens(run.usage)}{_took(run)}")
    return 0


def _pre_order(row: SessionRow, runs: Sequence[Run]) -> list[tuple[int, Run]]:
    """Return the runs, each parent's before those below it, with their depth below the session."""
    children: dict[str, list[Run]] = {}
    for run in runs:
        children.setdefault(run.parent_id, []).append(run)
    stack = [(1, run) for run in reversed(children.pop(row.session_id, []))]
    found: list[tuple[int, Run]] = []
    while stack:
        depth, run = stack.pop()
        found.append((depth, run))
        # Taken out, so that a session with several runs shows its children once, below its first.
        stack.extend((depth + 1, child) for child in reversed(children.pop(run.session_id, [])))
    return found


def _page(options: Paging) -> Page:
    if not 1 <= options.limit <= LIMIT_MAX_ROWS:
        detail = f"--limit cannot be {options.limit}."
        raise RetinueError("invalid", detail, f"Ask for 1 to {LIMIT_MAX_ROWS} rows.")
    return Page(limit=options.limit, cursor=options.cursor)


def _slice(found: list[Run], page: Page) -> tuple[list[Run], str | None]:
    """Return a page of a list that is whole in memory; its cursor counts rows."""
    cursor = page.cursor or "0"
    if not (cursor.isascii() and cursor.isdigit()):
        raise RetinueError("invalid", f"{cursor!r} is no cursor of this list.", "Use 'next' of the page before.")
    start = int(cursor)
    end = start + page.limit
    return found[start:end], str(end) if end < len(found) else None


def _more(cursor: str | None) -> None:
    if cursor is not None:
        printing.note(f"There are more: --cursor {cursor}")


def _session_cells(row: SessionRow) -> tuple[object, ...]:
    header = row.header
    return row.session_id, row.status, row.turns, _last(row), header.model, row.updated_at, header.cwd


def _session_pairs(row: SessionRow) -> list[tuple[str, object]]:
    header = row.header
    pairs: list[tuple[str, object]] = [
        ("session", row.session_id),
        ("name", header.name),
        ("parent", header.parent_id or "none: it is a root"),
        ("root", header.root_id),
        ("depth", header.depth),
        ("agent", header.agent or "none"),
        ("model", header.model),
        ("profile", header.profile),
        ("folder", header.cwd),
        ("policy", _policy(header.policy)),
        ("status", row.status),
        ("turns", row.turns),
        ("last turn", _last(row)),
        ("usage", _usage(row.usage)),
        ("created", row.created_at),
        ("updated", row.updated_at),
        ("events", row.stored_events),
    ]
    return pairs


def _policy(form: dict[str, Any]) -> str:
    changes = ", ".join(f"{key}={_value(value)}" for key, value in form.get("set", {}).items())
    return f"{form.get('name')}{' with ' if changes else ''}{changes}"


def _last(row: SessionRow) -> str:
    return "none yet" if row.last_status is None else f"{row.last_status} ({row.last_reason})"


def _how(row: SessionRow) -> str:
    return row.status if row.status == "running" else _last(row)


def _usage(usage: Usage) -> str:
    requests = f"{usage.requests} request{'' if usage.requests == 1 else 's'}"
    reported = f"{usage.total} tokens ({usage.input} in, of them {usage.cached} cached; {usage.output} out)"
    missing = f"; {usage.unreported} without a report" if usage.unreported else ""
    return f"{reported} in {requests}{missing}"


def _run_cells(run: Run) -> tuple[object, ...]:
    seconds = _seconds(run)
    time = "" if seconds is None else duration(seconds)
    why = _why(run)
    used = tokens(run.usage)
    return run.run_id, run.session_id, run.name, run.spec.round, run.status, why, run.steps, used, time


def _seconds(run: Run) -> float | None:
    """Return how long a run took, or has worked until now; null before it started."""
    if run.ended_at is not None or run.started_at is None:
        return run.elapsed_s
    return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(run.started_at)).total_seconds())


def _why(run: Run) -> str:
    """Return why a run waits, or how it ended where that is more than done."""
    if run.is_parked and run.waiting_for is not None:
        return f"parked: {run.waiting_for.what}"
    if run.waiting_for is not None:
        place = "" if run.queue_position is None else f", number {run.queue_position} in the queue"
        return f"waits for {run.waiting_for.what}{place}"
    return "" if run.reason in (None, "done") else str(run.reason)


def _took(run: Run) -> str:
    seconds = _seconds(run)
    return "" if seconds is None else f", {duration(seconds)}"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
