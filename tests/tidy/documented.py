"""The rules that compare the pages of docs/ with the names the package really has; they change nothing."""

import ast
import importlib
import typing
from collections.abc import Iterator
from pathlib import Path

from retinue.core import errors, events, policy
from scripts import generate_docs

PINNED = "tests/tidy/public_names.txt"


def _missing(root: Path, page: str, wanted: Iterator[str]) -> list[str]:
    text = (root / "docs" / page).read_text(encoding="utf-8")
    return [f"docs/{page}: does not say what {mark} is" for mark in wanted if mark not in text]


def events_are_documented(root: Path) -> list[str]:
    """Every event type has its part."""
    return _missing(
        root, "events.md", (f"### `{fact.__struct_config__.tag}`\n" for fact in typing.get_args(events.AnyFact))
    )


def errors_are_documented(root: Path) -> list[str]:
    """Every error code has its line, and every code has a meaning."""
    strangers = [
        f"core/errors.py: {code} has no meaning" for code in errors.STATUS_OF.keys() ^ errors.MEANING_OF.keys()
    ]
    return strangers + _missing(root, "errors.md", (f"| `{code}` |" for code in errors.STATUS_OF))


def settings_are_documented(root: Path) -> list[str]:
    """Every switch of the policy has its line."""
    return _missing(root, "settings.md", (f"| `{key.name}` |" for key in policy.TABLE))


def flags_are_documented(root: Path) -> list[str]:
    """Every command and flag has its line."""
    commands = list(generate_docs.commands())
    names = (f"`retinue {command.name}" for command in commands)
    flags = (f"`{flag}`" for command in commands for flag, _ in command.flags)
    return _missing(root, "cli.md", names) + _missing(root, "cli.md", flags)


def _exported(root: Path) -> list[str]:
    tree = ast.parse((root / "src" / "retinue" / "__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and target.id == "__all__" and value is not None:
            return list(ast.literal_eval(value))
    return []


def public_names_are_pinned(root: Path) -> list[str]:
    """The public names are those of the pinned list: a new or lost one is a decision, not an accident."""
    pinned = (root / PINNED).read_text(encoding="utf-8").split()
    return [
        f"{PINNED}: {name} is not in both the list and retinue.__all__" for name in set(_exported(root)) ^ set(pinned)
    ]


def public_names_are_documented(root: Path) -> list[str]:
    """Every public name exists, says what it is, and has its part."""
    package = importlib.import_module("retinue")
    silent = [
        f"retinue.{name}: has no docstring"
        for name in _exported(root)
        if not (getattr(package, name, None).__doc__ or name == "__version__")
    ]
    return silent + _missing(root, "python.md", (f"### `{name}`\n" for name in _exported(root)))


def generated_pages_are_fresh(root: Path) -> list[str]:
    """The generated parts of docs/ are what the code says now."""
    return generate_docs.stale(root)


RULES = {
    rule.__name__: rule
    for rule in (
        events_are_documented,
        errors_are_documented,
        settings_are_documented,
        flags_are_documented,
        public_names_are_pinned,
        public_names_are_documented,
        generated_pages_are_fresh,
    )
}
