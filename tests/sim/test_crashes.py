"""A crash before and after every commit of whole worlds: committed facts stay, nothing is run again."""

import pytest

from retinue.core.events import RunSettled, TurnClosed
from retinue.testing.faults import SeededFaults, StorePlan, WorldPlan
from tests.sim.worlds import History, play

WORLDS = {
    "flat, three children": (2, {}),
    "flat, four runs, one of them a message": (1, {}),
    "one slot, depth 2": (60, {"caps.running.root": 1, "caps.max_depth": 2}),
    "one slot, depth 2, a message": (105, {"caps.running.root": 1, "caps.max_depth": 2}),
    "two slots, depth 3": (30, {"caps.max_depth": 3, "caps.running.process": 2}),
}
"""Seed and switches; the seeds are those of worlds with several runs and a moderate number of commits."""


def plan(store: StorePlan, policy: dict[str, int]) -> WorldPlan:
    return WorldPlan(store=store, faults=SeededFaults(seed=0, rate=0.0), policy=policy)


def commits_of(seed: int, policy: dict[str, int]) -> int:
    """Return how many commits the undisturbed world makes."""
    history = History(seed=seed, plan=plan(StorePlan(), policy))
    assert history.live()
    assert history.problems == []
    return history.commits


@pytest.mark.parametrize("world", WORLDS)
def test_a_crash_at_any_commit_loses_nothing_and_runs_nothing_again(world: str) -> None:
    seed, policy = WORLDS[world]
    commits = commits_of(seed, policy)
    assert commits > 30
    restarts = 0
    for number in range(1, commits + 1):
        for store in (StorePlan(crash_before=number), StorePlan(crash_after=number)):
            history = play(seed, plan(store, policy))
            assert history.problems == [], store
            restarts += _restarts(history)
    assert restarts > commits / 2


@pytest.mark.parametrize("seed", [2, 118])
def test_a_failure_of_any_commit_makes_the_runtime_read_only_and_loses_nothing(seed: int) -> None:
    for number in range(1, commits_of(seed, {}) + 1):
        for store in (StorePlan(fail_at=number), StorePlan(conflict_at=number)):
            history = play(seed, plan(store, {}))
            assert history.problems == [], store


def _restarts(history: History) -> int:
    ended = [event.fact for event in history.events if isinstance(event.fact, RunSettled | TurnClosed)]
    return sum(fact.reason == "restart" for fact in ended)
