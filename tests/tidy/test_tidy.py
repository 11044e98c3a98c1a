"""The repository keeps its own rules."""

from pathlib import Path

import pytest

from tests.tidy import documented, rules


@pytest.mark.parametrize("rule", rules.RULES.values(), ids=rules.RULES)
def test_the_code_is_tidy(rule: rules.Rule, repository: Path) -> None:
    assert rule(repository) == []


@pytest.mark.parametrize("rule", documented.RULES.values(), ids=documented.RULES)
def test_the_docs_name_everything(rule: rules.Rule, repository: Path) -> None:
    assert rule(repository) == []
