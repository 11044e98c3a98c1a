"""What root runs have spent of their token limits, folded from the record; it limits nothing."""

from collections.abc import Iterable
from typing import Any

from retinue.core.budget import Ledger
from retinue.core.events import PolicyChanged, RunSettled, SessionDeleted, SessionOpened
from retinue.core.ids import RunId, SessionId
from retinue.core.policy import Policy, stored, with_stored
from retinue.core.run import Run
from retinue.core.state import State
from retinue.stores.sqlite import SQLiteStore

LIMIT = "budget.tree_tokens_max"
PAGE_EVENTS = 1000


def budgets(store: SQLiteStore, runs: Iterable[Run]) -> list[dict[str, Any]]:
    """Return limit, spent and reserved tokens of each root run that these runs belong to, where it has a limit."""
    wanted: dict[SessionId, dict[RunId, None]] = {}
    for run in runs:
        wanted.setdefault(run.root_id, {})[run.root_run_id] = None
    rows: list[dict[str, Any]] = []
    for root_id, root_runs in wanted.items():
        limit = _policy(store, root_id).number(LIMIT)
        if limit is not None:
            rows += _of_tree(store, root_id, list(root_runs), limit)
    return rows


def _policy(store: SQLiteStore, root_id: SessionId) -> Policy:
    """Return the policy that holds for a tree by now."""
    policy = Policy()
    after = 0
    while events := store.read(root_id, after, PAGE_EVENTS):
        after = events[-1].seq
        for event in events:
            if isinstance(event.fact, SessionOpened):
                policy = stored(event.fact.policy)
            elif isinstance(event.fact, PolicyChanged):
                policy = with_stored(policy, event.fact.changes)
    return policy


def _of_tree(store: SQLiteStore, root_id: SessionId, root_runs: list[RunId], limit: int) -> list[dict[str, Any]]:
    state = State()
    settled: dict[SessionId, list[RunSettled]] = {}
    after = 0
    while events := store.tail(after, root_id, PAGE_EVENTS):
        after = events[-1].position
        for event in events:
            state.apply(event)
            if isinstance(event.fact, RunSettled):
                settled.setdefault(event.fact.child_id, []).append(event.fact)
            elif isinstance(event.fact, SessionDeleted):
                # Its log is gone, and with it what it had reserved; what was reported stays with its runs.
                for run in settled.get(event.fact.child_id, []):
                    state.trees[root_id].ledger(run.root_run_id).spent += run.usage_tree.total
    return [_row(root_run_id, limit, state.trees[root_id].ledger(root_run_id)) for root_run_id in root_runs]


def _row(root_run_id: RunId, limit: int, ledger: Ledger) -> dict[str, Any]:
    return {
        "root_run_id": root_run_id,
        "limit": limit,
        "spent": ledger.spent,
        "reserved": ledger.reserved,
        "exceeded": ledger.exceeded,
    }
