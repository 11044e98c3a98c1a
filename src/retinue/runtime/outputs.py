"""Whether a child's last message is the JSON that was asked for; it changes no text and asks nobody again.

A schema comes from a model: a pattern in it can run for ever and cannot be interrupted inside this process. So every
check goes to another interpreter (`schemacheck.py`) that is killed when the time is over. All of it blocks.
"""

import subprocess
import sys
from functools import cache
from importlib import resources
from typing import Any, Final, Literal

import msgspec

from retinue.core.errors import RetinueError
from retinue.core.text import fit_bytes

SCHEMA_MAX_BYTES: Final = 65_536
"""Bytes of an output schema as JSON."""
CHECK_MAX_S: Final = 3.0
"""Seconds that a check may take, the start of its interpreter included."""
PROBLEM_MAX_BYTES: Final = 1000


def mismatch(schema: dict[str, Any], text: str) -> str | None:
    """Return in one sentence why a text is not JSON that matches a schema; null when it is. Blocks."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        return f"The last message is not JSON: {error}."
    found = _checked("value", schema, value)
    return None if found is None else f"The last message does not match the schema: {found}."


def require_schema(schema: dict[str, Any]) -> None:
    """Refuse what is no JSON schema (2020-12), or too large (`invalid`). Blocks."""
    try:
        size_bytes = len(msgspec.json.encode(schema))
    except (TypeError, ValueError, RecursionError) as error:
        detail = f"output_schema cannot be written as JSON: {type(error).__name__}."
        raise RetinueError("invalid", detail, "Give a schema as of draft 2020-12.") from error
    if size_bytes > SCHEMA_MAX_BYTES:
        raise RetinueError("invalid", f"The output schema has more than {SCHEMA_MAX_BYTES} bytes.", "Ask for less.")
    found = _checked("schema", schema, None)
    if found is not None:
        raise RetinueError(
            "invalid", f"output_schema is no JSON schema: {found}.", "Give a schema as of draft 2020-12."
        )


def _checked(check: Literal["schema", "value"], schema: dict[str, Any], value: Any) -> str | None:
    job = msgspec.json.encode({"schema": schema, "value": value, "check": check, "cpu_s": int(CHECK_MAX_S) + 1})
    command = [sys.executable, "-I", "-c", _source()]
    try:
        done = subprocess.run(command, input=job, capture_output=True, timeout=CHECK_MAX_S, check=True)  # noqa: S603 - our own source
        found = msgspec.json.decode(done.stdout, type=str | None)
    except subprocess.TimeoutExpired:
        return f"it could not be checked within {CHECK_MAX_S:g} s"
    except (OSError, subprocess.CalledProcessError, msgspec.DecodeError) as error:
        return f"it could not be checked: {type(error).__name__}"
    return None if found is None else fit_bytes(found, PROBLEM_MAX_BYTES).rstrip(".")


@cache
def _source() -> str:
    return resources.files("retinue.runtime").joinpath("schemacheck.py").read_text(encoding="utf-8")
