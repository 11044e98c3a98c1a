"""Front matter keys → the effective fields of a definition, with what was not understood; it reads no file."""

import re
import unicodedata
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final

from retinue.core.policy import NUMBER_MAX
from retinue.definitions.diagnostic import Broken, Finding
from retinue.definitions.frontmatter import Document, Entry
from retinue.definitions.toolnames import DELEGATING, EVERYTHING, split_names, tool_name

NAME_CHARS_MAX: Final = 64
DESCRIPTION_CHARS_MAX: Final = 16_000
_NAME: Final = re.compile(r"\w[\w .-]*")
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SPAN: Final = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?")
_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})
_ABSENT: Final = frozenset({"", "null", "~", "none"})
_INHERITED_MODELS: Final = frozenset({"inherit", "default", "sonnet", "opus", "haiku"})
"""Words of another dialect that name no model of any connection here: the parent's model is used."""
_CANONICAL: Final = {
    "max_turns": "max_steps",
    "steps": "max_steps",
    "timeout_s": "timeout",
    "allowed_tools": "tools",
    "reasoning_effort": "effort",
}
_NOT_YET: Final = {
    "skills": "Write what the role must know into its text.",
    "output_schema": "Describe the form of the answer in its text.",
}
_QUIET: Final = frozenset({"color", "hidden", "disabled", "name", "description"})


@dataclass(slots=True)
class Fields:
    """What a document says, as keywords of a `Snapshot`, and how it is listed."""

    name: str
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    hidden: bool = False
    disabled: bool = False
    findings: list[Finding] = field(default_factory=list[Finding])

    def note(self, severity: Any, line: int | None, cause: str, remedy: str) -> None:
        """Keep a finding."""
        self.findings.append(Finding(severity=severity, line=line, cause=cause, remedy=remedy))


def read_fields(document: Document, stem: str, known_tools: Collection[str]) -> Fields:
    """Return a document's fields; `stem` is the file's name without `.md`. Raises `Broken` with the line and cause."""
    entries = _by_key(document)
    fields = Fields(name=_name(entries.get("name"), stem))
    try:
        _fill(fields, entries, known_tools)
    except Broken as broken:
        broken.name = fields.name
        raise
    fields.values["instructions"] = document.body
    if not document.body.strip():
        fields.note("warning", None, "There are no instructions below the front matter.", "Write what the role does.")
    return fields


def _by_key(document: Document) -> dict[str, Entry]:
    """Return the entries under this project's spelling of their keys."""
    entries: dict[str, Entry] = {}
    for entry in document.entries:
        key = _HUMP.sub("_", entry.key).lower().replace("-", "_")
        key = _CANONICAL.get(key, key)
        if key in entries:
            first = entries[key]
            raise Broken(entry.line, f"{entry.key!r} says the same as {first.key!r} in line {first.line}.", "Keep one.")
        entries[key] = entry
    return entries


def _name(entry: Entry | None, stem: str) -> str:
    name = unicodedata.normalize("NFC", stem if entry is None else _text(entry)).strip()
    if len(name) > NAME_CHARS_MAX or not _NAME.fullmatch(name):
        line = None if entry is None else entry.line
        raise Broken(
            line, f"{name[:NAME_CHARS_MAX]!r} cannot be a name.", "Use letters, digits, '-', '_' and '.'.", stem
        )
    return name


def _fill(fields: Fields, entries: dict[str, Entry], known_tools: Collection[str]) -> None:
    if "name" not in entries:
        fields.note("note", None, f"No name is given, so the file's is taken: {fields.name!r}.", "Add a line 'name:'.")
    description = entries.get("description")
    if description is None or not _text(description).strip():
        raise Broken(
            None if description is None else description.line,
            "There is no description.",
            "Say in 'description' what the role is for: that is how an agent chooses it.",
        )
    fields.values["description"] = _text(description).strip()[:DESCRIPTION_CHARS_MAX]
    fields.hidden = _flag(entries.get("hidden")) or False
    fields.disabled = _flag(entries.get("disabled")) or False
    for key, entry in entries.items():
        if key in _READERS:
            _READERS[key](fields, entry)
        elif key in _NOT_YET:
            fields.note("warning", entry.line, f"{entry.key!r} is not acted on yet.", _NOT_YET[key])
        elif key not in _QUIET and key not in ("tools", "disallowed_tools"):
            fields.note("warning", entry.line, f"The key {entry.key!r} is not known here and is ignored.", "Remove it.")
    _tools(fields, entries, known_tools)


# ------------------------------------------------------------------------------------------------------ single values


def _text(entry: Entry) -> str:
    if not isinstance(entry.value, str):
        raise Broken(entry.line, f"{entry.key!r} must be text.", f"Write '{entry.key}: …' on one line, or in quotes.")
    return entry.value


def _flag(entry: Entry | None) -> bool | None:
    if entry is None or _text(entry).lower() in _ABSENT:
        return None
    text = _text(entry).lower()
    if text not in _TRUE | _FALSE:
        raise Broken(entry.line, f"{entry.key!r} cannot be {text[:40]!r}.", "Write true or false.")
    return text in _TRUE


def _names(entry: Entry) -> list[str]:
    """Return a list of names: a YAML list, or a text separated by commas or blanks."""
    if isinstance(entry.value, str):
        return [] if entry.value.lower() in _ABSENT else split_names(entry.value)
    if isinstance(entry.value, dict) or not all(isinstance(item, str) for item in entry.value):
        raise Broken(entry.line, f"{entry.key!r} must be a list of names.", f"Write '{entry.key}: one, two'.")
    return [name for item in entry.value for name in split_names(item)]


def _model(fields: Fields, entry: Entry) -> None:
    text = _text(entry).strip()
    if text.lower() in _INHERITED_MODELS:
        if text.lower() not in ("inherit", "default"):
            fields.note(
                "warning", entry.line, f"The model {text!r} names no connection here.", "The parent's model is used."
            )
    elif text.lower() not in _ABSENT:
        fields.values["model"] = text


def _access(fields: Fields, entry: Entry) -> None:
    text = _text(entry).strip().lower()
    if text in _ABSENT or text == "inherit":
        return
    if text not in ("read", "write"):
        raise Broken(entry.line, f"{entry.key!r} cannot be {text[:40]!r}.", "Write read or write.")
    fields.values.setdefault("access", text)


def _permission_mode(fields: Fields, entry: Entry) -> None:
    """Another dialect's word: `plan` means reading only; every other mode is the session's to choose."""
    if _text(entry).strip().lower() == "plan":
        fields.values["access"] = "read"
    else:
        fields.note("warning", entry.line, f"{entry.key!r} is not acted on.", "The session's approval mode holds.")


def _paths(fields: Fields, entry: Entry) -> None:
    value = entry.value
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, dict) or not all(isinstance(item, str) for item in value):
        raise Broken(entry.line, f"{entry.key!r} must be a list of files.", "Write one file a line, after '- '.")
    fields.values["paths"] = tuple(str(item) for item in value)


def _max_steps(fields: Fields, entry: Entry) -> None:
    text = _text(entry).strip()
    if text.lower() in _ABSENT or text == "0":
        return
    if not (text.isascii() and text.isdigit()) or int(text) > NUMBER_MAX:
        raise Broken(entry.line, f"{entry.key!r} cannot be {text[:40]!r}.", "Write a whole number from 1.")
    fields.values["max_steps"] = int(text)


def _timeout(fields: Fields, entry: Entry) -> None:
    text = _text(entry).strip().lower().replace(" ", "")
    if text in _ABSENT or text == "0":
        return
    seconds = _seconds(text)
    if seconds is None or not 0 < seconds <= NUMBER_MAX:
        raise Broken(entry.line, f"{entry.key!r} cannot be {text[:40]!r}.", "Write a span as 15m, 90s or 1h30m.")
    fields.values["timeout_s"] = seconds


def _seconds(text: str) -> float | None:
    """Return a span in seconds; a bare number is seconds."""
    found = _SPAN.fullmatch(text) if re.fullmatch(r"[\d.hms]{1,40}", text) else None
    if found and any(found.groups()):
        hours, minutes, seconds, milliseconds = (float(part or 0) for part in found.groups())
        return hours * 3600 + minutes * 60 + seconds + milliseconds / 1000
    return float(text) if re.fullmatch(r"\d{1,13}(\.\d{1,6})?", text) else None


def _effort(fields: Fields, entry: Entry) -> None:
    text = _text(entry).strip()
    if text.lower() not in _ABSENT:
        fields.values["effort"] = text


def _continuable(fields: Fields, entry: Entry) -> None:
    fields.values["continuable"] = _flag(entry)


def _spawns(fields: Fields, entry: Entry) -> None:
    text = entry.value.lower() if isinstance(entry.value, str) else None
    if text in EVERYTHING or text in _TRUE:
        fields.values["spawns"] = ("*",)
    elif text not in _FALSE:
        fields.values["spawns"] = tuple(dict.fromkeys(_names(entry)))


_READERS: Final[dict[str, Callable[[Fields, Entry], None]]] = {
    "model": _model,
    "access": _access,
    "permission_mode": _permission_mode,
    "paths": _paths,
    "max_steps": _max_steps,
    "timeout": _timeout,
    "effort": _effort,
    "continuable": _continuable,
    "spawns": _spawns,
}

# -------------------------------------------------------------------------------------------------------------- tools


def _tools(fields: Fields, entries: dict[str, Entry], known_tools: Collection[str]) -> None:
    """Fill `tools` (null = the default, empty = none) and `disallowed_tools`; names unknown here never widen."""
    denied = entries.get("disallowed_tools")
    if denied is not None:
        names = [tool_name(written)[0] for written in _names(denied)]
        fields.values["disallowed_tools"] = tuple(dict.fromkeys(names))
    entry = entries.get("tools")
    if entry is None or (isinstance(entry.value, str) and entry.value.lower() in ("null", "~")):
        return
    written = _names(entry)
    if EVERYTHING & {name.lower() for name in written}:
        fields.note(
            "note", entry.line, "'tools' names everything: the role has its parent's tools.", "Name some to narrow."
        )
        return
    refused = fields.values.get("disallowed_tools", ())
    kept = [name for name in map(_known(fields, entry, known_tools), written) if name and name not in refused]
    fields.values["tools"] = tuple(dict.fromkeys(kept))
    if written and not kept:
        fields.note("warning", entry.line, "None of its tools is left: the role has no tools at all.", "Name one.")


def _known(fields: Fields, entry: Entry, known_tools: Collection[str]) -> Callable[[str], str | None]:
    """Return a filter that passes the tools that are here under their name, and reports all others."""

    def keep(written: str) -> str | None:
        name, is_restricted = tool_name(written)
        if name in DELEGATING:
            if fields.values.get("spawns"):
                return name
            fields.note("note", entry.line, f"{written!r} is left out: 'spawns' names nobody.", "Add 'spawns: …'.")
        elif name not in known_tools:
            fields.note(
                "warning", entry.line, f"There is no tool {written!r} here; it is left out.", _instead(known_tools)
            )
        elif is_restricted:
            fields.note(
                "warning", entry.line, f"{written!r} is left out: a tool cannot be narrowed that way.", "Name it alone."
            )
        else:
            return name
        return None

    return keep


def _instead(known_tools: Collection[str]) -> str:
    return f"There are: {', '.join(sorted(known_tools))}."
