"""Scenarios; the stage's own checks show what they found."""

import pytest

pytest.register_assert_rewrite("tests.scenarios.stage")
