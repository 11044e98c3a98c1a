"""The check against a JSON schema that runs in a process of its own, so that it can be stopped; it fetches nothing.

It is sent as source text to another interpreter: it imports nothing of this package. It reads one JSON job
`{"schema", "value", "check", "cpu_s"}` and prints one line of JSON: null, or why it does not match. `check` is `schema`
(is it a schema at all?) or `value`.
"""

import importlib
import json
import sys
from typing import Any, cast


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
            return lost_reference(job["schema"], referencing)
        # A registry of its own, with nothing in it: a schema may refer only to itself.
        found = next(iter(kind(job["schema"], registry=referencing.Registry()).iter_errors(job["value"])), None)
    except library.SchemaError as error:
        return str(error.message)
    except RecursionError:
        return "it is nested too deeply"
    except Exception as error:  # noqa: BLE001 - a reference that leads nowhere, or endless nesting
        return f"it could not be checked: {type(error).__name__}"
    return None if found is None else f"at {found.json_path}: {found.message}"


def lost_reference(schema: Any, referencing: Any) -> str | None:
    """Return in one sentence which reference leads nowhere; a schema with names of its own is not looked into."""
    found, names = references(schema)
    if names:
        return None
    specification = importlib.import_module("referencing.jsonschema").DRAFT202012
    resource = referencing.Resource.from_contents(schema, default_specification=specification)
    resolver = referencing.Registry().with_resource("", resource).resolver()
    for reference in found:
        try:
            resolver.lookup(reference)
        except Exception:  # noqa: BLE001 - whatever it is, it does not lead anywhere
            return f"the reference {reference!r} leads nowhere"
    return None


def references(schema: Any) -> tuple[list[str], bool]:
    """Return the references in a schema, and whether a part of it has an `$id`: then they mean something else there."""
    found: list[str] = []
    names = False
    left: list[Any] = [schema]
    while left:
        node = left.pop()
        if isinstance(node, list):
            left.extend(cast("list[Any]", node))
        elif isinstance(node, dict):
            keys = cast("dict[str, Any]", node)
            names = names or isinstance(keys.get("$id"), str)
            if isinstance(keys.get("$ref"), str):
                found.append(keys["$ref"])
            left.extend(value for key, value in keys.items() if key not in ("const", "enum", "default", "examples"))
    return found, names


if __name__ == "__main__":
    main()
