"""Which version a database has and how it gets to ours; it never reads or writes the log."""

from functools import cache
from importlib.resources import files
from typing import Final

from retinue.ports import StoreError
from retinue.stores.connection import Connection

VERSION: Final = 2
"""The schema this version reads and writes; the number of its migrations."""


@cache
def migrations() -> tuple[str, ...]:
    """Return the scripts in order; the n-th makes version n of version n-1 and says so in `user_version`."""
    folder = files("retinue.stores").joinpath("migrations")
    scripts = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda file: file.name)
    return tuple(script.read_text("utf-8") for script in scripts)


def version_of(connection: Connection) -> int:
    """Return the schema version, 0 for an empty database; raise `StoreError` for a database that is not ours."""
    version = int(connection.value("version"))
    tables = int(connection.value("count_tables"))
    if version == 0 and tables == 0:
        return 0
    if version == 0 or not _is_ours(connection):
        raise StoreError(f"{connection.path} is a database of another program. Name another data directory.")
    return version


def _is_ours(connection: Connection) -> bool:
    return bool(connection.value("has_meta")) and connection.value("application") == "retinue"


def newer(path: str, version: int) -> str:
    """Return the sentence for a database that a newer Retinue has written."""
    return (
        f"The store {path} was written by a newer Retinue (schema {version}, this one knows {VERSION}), "
        "so it is open for reading only. Update Retinue to write to it."
    )


def reading(path: str, version: int) -> str:
    """Return the sentence for a store that somebody else owns; raise `StoreError` for one of an older version."""
    if version < VERSION:
        raise StoreError(
            f"The store {path} has schema {version} and this Retinue reads {VERSION}. "
            "Start one that writes, as 'retinue run', to bring it up to date."
        )
    return f"The store {path} is open for reading only; its owner writes to it."


def migrate(connection: Connection) -> None:
    """Bring a database of our version or an older one up to date, in one transaction."""
    with connection.transaction():
        for script in migrations()[version_of(connection) :]:
            connection.script(script)
