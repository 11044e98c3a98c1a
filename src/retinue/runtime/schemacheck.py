"""The check against a JSON schema that runs in a process of its own, so that it can be stopped; it fetches nothing.

It is sent as source text to another interpreter: it imports nothing of this package. It reads one JSON job
`{"schema", "value", "check", "cpu_s"}` and prints one line of JSON: null, or why it does not match. `check` is `schema`
(is it a schema at all?) or `value`.
"""

import importlib
import json
import sys
from typing import Any


def main() -> None:
    """Answer one job."""
    job: dict[str, Any] = json.load(sys.stdin)
    if sys.platform != "win32":
        # It ends by itself when whoever started it is gone and can no longer stop it.
        resource = importlib.import_module("resource")
        resource.setrlimit(resource.RLIMIT_CPU, (job["cpu_s"], job["cpu_s"]))
    sys.stdout.write(json.dumps(problem(job)) + "\n")


def problem(job: dict[str, Any]) -> str | None:
    """Return in one sentence what is wrong, null when nothing is."""
    library: Any = importlib.import_module("jsonschema")
    referencing: Any = importlib.import_module("referencing")
    kind = library.Draft202012Validator
    try:
        if job["check"] == "schema":
            kind.check_schema(job["schema"])
            return None
        # A registry of its own, with nothing in it: a schema may refer only to itself.
        found = next(iter(kind(job["schema"], registry=referencing.Registry()).iter_errors(job["value"])), None)
    except library.SchemaError as error:
        return str(error.message)
    except Exception as error:  # noqa: BLE001 - a reference that leads nowhere, or endless nesting
        return f"it could not be checked: {type(error).__name__}"
    return None if found is None else f"at {found.json_path}: {found.message}"


if __name__ == "__main__":
    main()
