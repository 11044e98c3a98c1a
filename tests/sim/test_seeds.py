"""Seeded worlds with every fault the kit knows: what must hold in every log holds in each of them."""

import os

import pytest

from tests.sim.worlds import play

SEEDS = int(os.environ.get("RETINUE_SIM_SEEDS", "1000"))
SEEDS_PER_TEST = 50


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_every_seeded_world_ends_with_an_honest_log(first: int) -> None:
    for seed in range(first, min(first + SEEDS_PER_TEST, SEEDS)):
        assert play(seed).problems == [], f"seed {seed}"


def test_the_same_seed_makes_the_same_log() -> None:
    logs = [[event.to_dict() for seed in range(15, 20) for event in play(seed).events] for _ in range(2)]
    assert logs[0] == logs[1]
    assert len(logs[0]) > 200
