"""What every test may ask for: the backend of asynchronous tests and the root of the repository."""

from pathlib import Path

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Asynchronous tests run on asyncio, the only backend the runtime has (decision 0001)."""
    return "asyncio"


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checked-out repository."""
    return Path(__file__).resolve().parents[1]
