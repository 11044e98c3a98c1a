"""Whether a child's last message is the JSON that was asked for; it changes no text and asks nobody again."""

import importlib
from typing import Any, Final

import msgspec

from retinue.core.decide.base import Ending
from retinue.core.errors import RetinueError
from retinue.core.session import Session

SCHEMA_MAX_BYTES: Final = 65_536
"""Bytes of an output schema as JSON."""


def checked(session: Session, ending: Ending) -> Ending:
    """Return the ending of a turn, `failed/output_schema` where a completed one's text does not match its schema."""
    schema = session.header.output_schema
    if schema is None or ending.status != "completed" or session.turn is None:
        return ending
    problem = mismatch(schema, session.turn.last_text)
    return ending if problem is None else Ending(status="failed", reason="output_schema", detail=problem)


def mismatch(schema: dict[str, Any], text: str) -> str | None:
    """Return in one sentence why a text is not JSON that matches a schema; null when it is."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        return f"The last message is not JSON: {error}."
    try:
        found = next(iter(_validator(schema).iter_errors(value)), None)
    except Exception as error:  # noqa: BLE001 - a reference that leads nowhere, or endless nesting: it does not match
        return f"The last message could not be checked against the schema: {type(error).__name__}: {error}."
    return None if found is None else f"The last message does not match at {found.json_path}: {found.message}."


def require_schema(schema: dict[str, Any]) -> None:
    """Refuse what is no JSON schema (2020-12), or too large (`invalid`)."""
    if len(msgspec.json.encode(schema)) > SCHEMA_MAX_BYTES:
        raise RetinueError("invalid", f"The output schema has more than {SCHEMA_MAX_BYTES} bytes.", "Ask for less.")
    library: Any = importlib.import_module("jsonschema")
    try:
        library.Draft202012Validator.check_schema(schema)
    except library.SchemaError as error:
        raise RetinueError(
            "invalid", f"output_schema is no JSON schema: {error.message}.", "Give a schema as of draft 2020-12."
        ) from error


def _validator(schema: dict[str, Any]) -> Any:
    """Return a validator that fetches nothing: a schema may refer only to itself."""
    library: Any = importlib.import_module("jsonschema")
    referencing: Any = importlib.import_module("referencing")
    return library.Draft202012Validator(schema, registry=referencing.Registry())
