"""Each deliberate bug is caught by the seeded worlds; the build fails when one is no longer."""

import pytest

from retinue.runtime.kernel import Kernel
from retinue.testing.simloop import SimError
from tests.mutants.context import CONTEXT_MUTANTS
from tests.mutants.delegation import DELEGATION_MUTANTS
from tests.mutants.hooks import HOOK_MUTANTS
from tests.mutants.mutants import MUTANTS
from tests.sim.worlds import play

SEEDS_MAX = 300


def caught_by(mutant: type[Kernel]) -> int | None:
    """Return the first seed whose world shows the bug."""
    for seed in range(SEEDS_MAX):
        try:
            problems = play(seed, make=mutant).problems
        except (SimError, KeyError, AssertionError) as error:
            problems = [str(error)]
        if problems:
            return seed
    return None


ALL = (*MUTANTS, *DELEGATION_MUTANTS, *HOOK_MUTANTS, *CONTEXT_MUTANTS)


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.__name__)
def test_the_worlds_catch(mutant: type[Kernel]) -> None:
    assert caught_by(mutant) is not None


def test_the_same_worlds_find_nothing_in_the_runtime_itself() -> None:
    assert caught_by(Kernel) is None
