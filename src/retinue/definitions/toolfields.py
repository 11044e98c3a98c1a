"""The keys that say which tools a role has → `tools` and `disallowed_tools`; nothing here can widen what a parent has.

A dialect lists tools, or switches each on or off, or gives each a permission. What is not known here is left out and
reported; what would allow a tool only in part takes it away whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from retinue.definitions.diagnostic import Broken
from retinue.definitions.frontmatter import Entry
from retinue.definitions.gathering import FALSE, TRUE, Fields, Terms, names
from retinue.definitions.toolnames import CONNECTOR, DELEGATING, EVERYTHING, KNOWN, split_names

TOOL_KEYS: Final = ("disallowed_tools", "permission", "tools")
_ACTIONS: Final = frozenset({"allow", "ask", "deny"})
_NO_TOOLS: Final = frozenset({"external_directory", "doom_loop", "question"})
"""Permissions of another dialect that are about no tool."""


@dataclass(slots=True)
class _Choice:
    """What the keys say together: names given and taken away, in this project's spelling."""

    only: list[str] | None = None
    """Null where nothing limits the role to a list."""
    denied: list[str] = field(default_factory=list[str])

    def limit(self, given: list[str]) -> None:
        """Keep to a list, and to every one that was there before."""
        self.only = given if self.only is None else [name for name in self.only if name in given]


def read_tools(fields: Fields, entries: Mapping[str, Entry], terms: Terms) -> None:
    """Fill `tools` (null = the default, empty = none) and `disallowed_tools`; faults are kept in `fields`."""
    choice = _Choice()
    for key, read in (("disallowed_tools", _denied), ("permission", _permission), ("tools", _tools)):
        entry = entries.get(key)
        if entry is None:
            continue
        try:
            read(fields, entry, terms, choice)
        except Broken as broken:
            fields.fault(broken, entry)
    if choice.denied:
        fields.values["disallowed_tools"] = tuple(dict.fromkeys(choice.denied))
    if choice.only is None:
        return
    kept = tuple(dict.fromkeys(name for name in choice.only if name not in choice.denied))
    fields.values["tools"] = kept
    entry = entries.get("tools") or entries.get("permission") or entries.get("disallowed_tools")
    if not kept and entry is not None and entry.value not in ("", []):
        line = entry.line
        fields.note("warning", line, "None of its tools is left: the role has no tools at all.", "Name one.")


def _denied(fields: Fields, entry: Entry, terms: Terms, choice: _Choice) -> None:
    _deny(fields, entry, terms, choice, names(entry))
    fields.say(entry, f"never: {_listed(choice.denied)}")


def _deny(fields: Fields, entry: Entry, terms: Terms, choice: _Choice, written: list[str]) -> None:
    if EVERYTHING & {name.lower() for name in written}:
        choice.limit([])
        fields.note("warning", entry.line, f"{entry.key!r} takes every tool away.", "Name those to take away.")
    for name in (name for name in written if name.lower() not in EVERYTHING):
        found = terms.tools(name)[0]
        choice.denied.extend(found)
        unknown = [one for one in found if one not in KNOWN | terms.known_tools and not one.startswith(CONNECTOR)]
        if unknown:
            cause = f"There is no tool {name[:64]!r} here; nothing is taken away by it."
            fields.note("warning", entry.line, cause, _instead(terms.known_tools))


# -------------------------------------------------------------------------------------------------------------- tools


def _tools(fields: Fields, entry: Entry, terms: Terms, choice: _Choice) -> None:
    if isinstance(entry.value, dict):
        _switches(fields, entry, terms, choice)
        return
    if isinstance(entry.value, str) and entry.value.lower() in ("null", "~"):
        fields.say(entry, "its parent's tools")
        return
    written = names(entry)
    if EVERYTHING & {name.lower() for name in written}:
        cause = "'tools' names everything: the role has its parent's tools."
        fields.note("note", entry.line, cause, "Name some to narrow.")
        fields.say(entry, "its parent's tools")
        return
    _give(fields, entry, terms, choice, written)


def _switches(fields: Fields, entry: Entry, terms: Terms, choice: _Choice) -> None:
    """Read a map of names to true or false: what is not switched off stays, unless `*` is off."""
    table = _named(fields, entry, cast("dict[str, Any]", entry.value))
    switched: dict[str, bool] = {}
    for name, value in table.items():
        if not isinstance(value, str) or value.lower() not in TRUE | FALSE:
            cause = f"{name[:64]!r} in {entry.key!r} cannot be {str(value)[:40]!r}."
            raise Broken(entry.line_of(name), cause, "Write true or false, or a list of names.")
        switched[name] = value.lower() in TRUE
    given = [name for name, is_on in switched.items() if is_on and name not in EVERYTHING]
    taken = [name for name, is_on in switched.items() if not is_on and name not in EVERYTHING]
    is_closed = not all(switched.get(word, True) for word in EVERYTHING)
    _deny(fields, entry, terms, choice, taken)
    if is_closed:
        _give(fields, entry, terms, choice, given)
    else:
        fields.say(entry, f"its parent's tools but {_listed(choice.denied)}" if taken else "its parent's tools")


def _named(fields: Fields, entry: Entry, table: dict[str, Any]) -> dict[str, Any]:
    """Return what in a map is about a tool that there can be."""
    named = {name: value for name, value in table.items() if split_names(name) == [name]}
    for name in (name for name in table if name not in named):
        fields.note("warning", entry.line_of(name), f"{name[:64]!r} is no name of a tool; it is ignored.", "Remove it.")
    return named


def _give(fields: Fields, entry: Entry, terms: Terms, choice: _Choice, written: list[str]) -> None:
    left: list[str] = []
    given: list[str] = []
    for name in written:
        found = _usable(fields, entry, terms, name)
        given.extend(found)
        if not found:
            left.append(name)
    choice.limit(given)
    meaning = f"only: {_listed(given)}"
    fields.say(entry, f"{meaning}; left out: {_listed(left)}" if left else meaning)


def _usable(fields: Fields, entry: Entry, terms: Terms, written: str) -> list[str]:
    """Return the tools that a name means here, reporting what is left out."""
    found, is_restricted = terms.tools(written)
    kept: list[str] = []
    for name in found:
        if name in DELEGATING and not fields.values.get("spawns"):
            fields.note("note", entry.line, f"{written!r} is left out: 'spawns' names nobody.", "Add 'spawns: …'.")
        elif name not in terms.known_tools and name not in DELEGATING and not name.startswith(CONNECTOR):
            fields.note(
                "warning",
                entry.line,
                f"There is no tool {written!r} here; it is left out.",
                _instead(terms.known_tools),
            )
        elif is_restricted and name not in DELEGATING:
            cause = f"{written!r} is left out: a tool cannot be narrowed that way."
            fields.note("warning", entry.line, cause, "Name it alone.")
        else:
            kept.append(name)
            continue
        if len(found) == 1:
            break
    return kept


def _instead(known_tools: frozenset[str]) -> str:
    return f"There are: {', '.join(sorted(known_tools))}."


def _listed(found: list[str]) -> str:
    return ", ".join(dict.fromkeys(found)) or "none"


# -------------------------------------------------------------------------------------------------------- permissions


def _permission(fields: Fields, entry: Entry, terms: Terms, choice: _Choice) -> None:
    """Read a map of tools to allow, ask or deny: deny takes the tool away, the session decides on all others."""
    value = _as_map(fields, entry) if isinstance(entry.value, list) else entry.value
    table = _named(fields, entry, value if isinstance(value, dict) else {"*": value})
    actions = {name: _action(fields, entry, name, value) for name, value in table.items() if name not in _NO_TOOLS}
    denied = [name for name, action in actions.items() if action == "deny" and name != "*"]
    _deny(fields, entry, terms, choice, denied)
    if actions.get("*") == "deny":
        _give(fields, entry, terms, choice, [name for name, action in actions.items() if action != "deny"])
        return
    rest = "the session's approval mode decides on all others"
    fields.say(entry, f"never: {_listed(choice.denied)}; {rest}" if denied else rest)


def _as_map(fields: Fields, entry: Entry) -> dict[str, Any]:
    """Return an ordered list of rules as a map: the last one for a tool holds, what is denied in part is denied."""
    found: dict[str, Any] = {}
    for rule in cast("list[Any]", entry.value):
        table = cast("dict[str, Any]", rule) if isinstance(rule, dict) else {}
        name, effect = table.get("action"), table.get("effect")
        if not isinstance(name, str) or not isinstance(effect, str) or effect.lower() not in _ACTIONS:
            raise Broken(entry.line, f"A rule of {entry.key!r} cannot be understood.", "Write action and effect.")
        is_whole = table.get("resource", "*") in ("*", "**")
        if is_whole and name == "*":
            found = {}
        if is_whole or effect.lower() == "deny":
            found[name] = effect
        if not is_whole and effect.lower() == "deny":
            cause = f"{name[:64]!r} is taken away: a tool cannot be allowed in part."
            fields.note("warning", entry.line, cause, "Allow or deny it as a whole.")
    return found


def _action(fields: Fields, entry: Entry, name: str, value: object) -> str:
    if isinstance(value, dict):
        table = cast("dict[str, object]", value)
        actions = {_action(fields, entry, name, inner) for inner in table.values() if not isinstance(inner, dict)}
        if actions == {"deny"} or "deny" not in actions:
            return "deny" if actions == {"deny"} else "ask"
        cause = f"{name!r} is taken away: a tool cannot be allowed in part."
        fields.note("warning", entry.line_of(name), cause, "Allow or deny it as a whole.")
        return "deny"
    if not isinstance(value, str) or value.lower() not in _ACTIONS:
        raise Broken(entry.line_of(name), f"{name[:64]!r} cannot be {str(value)[:40]!r}.", "Write allow, ask or deny.")
    return value.lower()
