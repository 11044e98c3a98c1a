"""How a contract for a store opens it, looks at all of it and says which rule is broken; it holds no rule itself."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from retinue.ports import Page, RunFilter, Store

Open = Callable[[], Store]
"""Opens the store that is checked: the same one each time, or a new one where a store is not durable."""
Check = Callable[[Open], None]
"""Raises `AssertionError` with the broken rule."""


@contextmanager
def opened(open_store: Open) -> Generator[Store]:
    """Give an open store and close it."""
    store = open_store()
    try:
        yield store
    finally:
        store.close()


@contextmanager
def refused(error: type[Exception], what: str) -> Generator[None]:
    """Expect the block to raise `error`."""
    try:
        yield
    except error:
        return
    raise AssertionError(f"broken rule: {what} must raise {error.__name__}")


def true(holds: bool, rule: str) -> None:  # noqa: FBT001 - the one thing it is about
    """Fail with the rule unless it holds."""
    if not holds:
        raise AssertionError(f"broken rule: {rule}")


def same(found: Any, wanted: Any, rule: str) -> None:
    """Fail with the rule unless what was found is what was wanted."""
    if found != wanted:
        raise AssertionError(f"broken rule: {rule}\nfound  {found!r:.2000}\nwanted {wanted!r:.2000}")


def everything(store: Store) -> tuple[Any, ...]:
    """Return all that lists and logs show of a store with few rows."""
    sessions = store.sessions(Page(), roots_only=False)
    return store.position(), store.tail(0), sessions, store.runs(RunFilter(), Page())
