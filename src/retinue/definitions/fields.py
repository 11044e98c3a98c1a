"""Keys → the effective fields of a definition, with what was not understood; it reads no file.

The keys of every dialect come here under this project's spelling; which they are is in the table of dialects.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, cast

import msgspec

from retinue.core.policy import NUMBER_MAX
from retinue.definitions.diagnostic import Broken
from retinue.definitions.dialects import IGNORED
from retinue.definitions.frontmatter import NESTING_MAX, Document, Entry, Plain, Tree, lines_of
from retinue.definitions.gathering import ABSENT, FALSE, TRUE, Fields, Terms, flag, labels, phrase, text, words
from retinue.definitions.modelnames import INHERITED, model_name
from retinue.definitions.toolfields import TOOL_KEYS, read_tools

NAME_CHARS_MAX: Final = 64
DESCRIPTION_CHARS_MAX: Final = 16_000
SCHEMA_KEY_CHARS_MAX: Final = 200
_NAME: Final = re.compile(r"\w[\w .-]*")
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SPAN: Final = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?")
_CANONICAL: Final = {
    "max_turns": "max_steps",
    "steps": "max_steps",
    "timeout_s": "timeout",
    "allowed_tools": "tools",
    "reasoning_effort": "effort",
    "model_reasoning_effort": "effort",
    "disable": "disabled",
}
_TAKING: Final = ("permission", "exclude", "deny", "denied", "disallow", "forbid", "block", "restrict")
"""How keys begin that take something away: passed over, a role would have more than its author gave it."""
_SANDBOXES: Final = {"read-only": "read", "workspace-write": "write", "danger-full-access": "write"}


@dataclass(frozen=True, slots=True)
class _Reading:
    fields: Fields
    terms: Terms

    @property
    def values(self) -> dict[str, Any]:
        return self.fields.values


def read_fields(document: Document, stem: str, terms: Terms) -> Fields:
    """Return a document's fields; `stem` is the name that it has if it says none. What breaks it is in `faults`."""
    fields = Fields(name=stem)
    entries = _by_key(fields, document, terms)
    _name(fields, entries.get("name"), stem)
    reading = _Reading(fields, terms)
    for key, entry in entries.items():
        if key not in TOOL_KEYS and key not in ("name", terms.dialect.text_key):
            _read(reading, key, entry)
    read_tools(fields, entries, terms)
    if fields.reads_only:
        fields.values["access"] = "read"
    if not fields.disabled and all(entry.key.lower() != "description" for entry in document.entries):
        fields.fault(_no_description(None))
    _instructions(fields, document.body, entries.get(terms.dialect.text_key or ""))
    fields.keys.sort(key=lambda report: report.line)
    return fields


def _by_key(fields: Fields, document: Document, terms: Terms) -> dict[str, Entry]:
    """Return the entries under this project's spelling of their keys; what cannot be one is kept as a fault."""
    entries: dict[str, Entry] = {}
    for entry in document.entries:
        key = _HUMP.sub("_", entry.key).lower().replace("-", "_")
        key = terms.dialect.keys.get(key, _CANONICAL.get(key, key))
        first = entries.get(key)
        if not _is_text([entry.key, entry.value]):
            cause = "It holds half a character or a zero byte, which is no text."
            fields.fault(Broken(entry.line, cause, "Correct the escapes."))
        elif first is not None:
            cause = f"{entry.key!r} says the same as {first.key!r} in line {first.line}."
            fields.fault(Broken(entry.line, cause, "Keep one."), entry)
        else:
            entries[key] = entry
    return entries


def _is_text(value: Tree) -> bool:
    if isinstance(value, str):
        return "\0" not in value and not any("\ud800" <= char <= "\udfff" for char in value)
    if isinstance(value, dict):
        return all(_is_text([key, inner]) for key, inner in value.items())
    return all(_is_text(inner) for inner in value)


def _name(fields: Fields, entry: Entry | None, stem: str) -> None:
    try:
        name = unicodedata.normalize("NFC", stem if entry is None else phrase(entry)).strip()
    except Broken as broken:
        fields.fault(broken, entry)
        return
    if len(name) > NAME_CHARS_MAX or not _NAME.fullmatch(name):
        line = None if entry is None else entry.line
        cause = f"{name[:NAME_CHARS_MAX]!r} cannot be a name."
        fields.fault(Broken(line, cause, "Use letters, digits, '-', '_' and '.'."), entry)
        return
    fields.name = name
    if entry is not None:
        fields.say(entry, f"its name: {name}")


def _read(reading: _Reading, key: str, entry: Entry) -> None:
    fields = reading.fields
    reader = _READERS.get(key)
    if reader is None:
        ignored = IGNORED.get(key)
        if ignored is None and key.startswith(_TAKING):
            cause = f"The key {entry.key[:64]!r} is not known here, and it may take rights away."
            fields.fault(Broken(entry.line, cause, "Say it with 'tools' or 'disallowed_tools'."), entry)
        elif ignored is None:
            cause = f"The key {entry.key[:64]!r} is not known here and is ignored."
            fields.ignore(entry, cause, "Check its spelling; it may stay for a program that reads it.")
        else:
            cause = f"{entry.key!r} is not acted on. {ignored.why}"
            fields.ignore(entry, cause, ignored.remedy, ignored.severity)
        return
    try:
        reader(reading, entry)
    except Broken as broken:
        fields.fault(broken, entry)


def _instructions(fields: Fields, body: str, entry: Entry | None) -> None:
    if entry is not None:
        try:
            said = "\n".join(lines_of(phrase(entry))).strip("\n")
        except Broken as broken:
            fields.fault(broken, entry)
            return
        if body.strip():
            cause = f"{entry.key!r} is ignored: the text below the front matter holds."
            fields.ignore(entry, cause, "Keep one of the two.")
        else:
            body = said
            fields.say(entry, f"its instructions, {len(said)} characters")
    fields.values["instructions"] = body
    if "\0" in body:
        fields.fault(Broken(None, "The instructions hold a zero byte.", "Remove it."))
    if not body.strip() and not fields.disabled:
        fields.note("warning", None, "There are no instructions.", "Write what the role does.")


# ------------------------------------------------------------------------------------------------------ what it is for


def _no_description(line: int | None) -> Broken:
    remedy = "Say in 'description' what the role is for: that is how an agent chooses it."
    return Broken(line, "There is no description.", remedy)


def _description(reading: _Reading, entry: Entry) -> None:
    said = phrase(entry)
    if not said and not reading.fields.disabled:
        raise _no_description(entry.line)
    reading.values["description"] = said[:DESCRIPTION_CHARS_MAX].strip()
    reading.fields.say(entry, "what it is for")
    if len(said) > DESCRIPTION_CHARS_MAX:
        cause = f"The description is longer than {DESCRIPTION_CHARS_MAX} characters; it is cut."
        reading.fields.note("warning", entry.line, cause, "Shorten it.")


def _disabled(reading: _Reading, entry: Entry) -> None:
    reading.fields.disabled = flag(entry) or False
    reading.fields.say(entry, "switched off, and every role of its name below it" if reading.fields.disabled else "no")


def _hidden(reading: _Reading, entry: Entry) -> None:
    is_hidden = flag(entry) or False
    reading.fields.hidden = reading.fields.hidden or is_hidden
    reading.fields.say(entry, "not listed; found by its name" if is_hidden else "listed")


def _infer(reading: _Reading, entry: Entry) -> None:
    """Another dialect's word: whether a model may choose the role by itself."""
    is_hidden = flag(entry) is False
    reading.fields.hidden = reading.fields.hidden or is_hidden
    reading.fields.say(entry, "not listed; found by its name" if is_hidden else "listed")


def _color(reading: _Reading, entry: Entry) -> None:
    reading.fields.say(entry, "a colour for displays")


def _kind(reading: _Reading, entry: Entry) -> None:
    """Another dialect's word for where an agent runs."""
    kind = text(entry).lower()
    if kind == "remote":
        raise Broken(entry.line, "It is an agent on another machine.", "It cannot run here; remove it or write a role.")
    if kind not in (*ABSENT, "local"):
        raise Broken(entry.line, f"{entry.key!r} cannot be {kind[:40]!r}.", "Write local.")
    reading.fields.say(entry, "it runs here")


# ------------------------------------------------------------------------------------------------------------- limits


def _model(reading: _Reading, entry: Entry) -> None:
    value = entry.value
    if isinstance(value, list) and value and reading.terms.dialect.takes_first_model:
        entry = Entry(entry.key, value[0], entry.line)
    written = phrase(entry)
    if reading.terms.dialect.takes_first_model:
        written = written.partition(",")[0].strip()
    variant = reading.terms.dialect.model_variant
    thinks = None if variant is None else variant.search(written)
    if thinks is not None:
        written = written[: thinks.start()]
        reading.values.setdefault("effort", thinks["effort"].lower())
    name, why = model_name(written, reading.terms.aliases)
    if name is not None:
        reading.values["model"] = name
        reading.fields.say(entry, f"the model {name} ({why})" if why else f"the model {name}")
        return
    reading.fields.say(entry, f"its parent's model ({written})" if why else "its parent's model")
    if why is not None and written.lower() not in INHERITED:
        remedy = "The parent's model is used; [models] in the settings can say which one it means."
        reading.fields.note("warning", entry.line, why, remedy)


def _access(reading: _Reading, entry: Entry) -> None:
    word = text(entry).lower()
    if word in ABSENT or word == "inherit":
        reading.fields.say(entry, "its parent's, as the policy says")
        return
    if word not in ("read", "write"):
        raise Broken(entry.line, f"{entry.key!r} cannot be {word[:40]!r}.", "Write read or write.")
    reading.values["access"] = word
    reading.fields.say(entry, "it reads only" if word == "read" else "it may write what its parent may")


def _permission_mode(reading: _Reading, entry: Entry) -> None:
    """Another dialect's word: `plan` means reading only; every other mode is the session's to choose."""
    if text(entry).lower() == "plan":
        reading.fields.reads_only = True
        reading.fields.say(entry, "it reads only")
    else:
        reading.fields.ignore(entry, f"{entry.key!r} is not acted on.", "The session's approval mode holds.")


def _sandbox(reading: _Reading, entry: Entry) -> None:
    """Another dialect's word for what commands may change."""
    word = text(entry).lower()
    access = _SANDBOXES.get(word)
    if access is None:
        remedy = "Write read-only or workspace-write."
        raise Broken(entry.line, f"{entry.key!r} cannot be {word[:40]!r}.", remedy)
    if access == "read":
        reading.fields.reads_only = True
    else:
        reading.values.setdefault("access", access)
    reading.fields.say(entry, "it reads only" if access == "read" else "it may write what its parent may")
    if word == "danger-full-access":
        cause = f"{word!r} gives no more than writing in the workspace."
        reading.fields.note("warning", entry.line, cause, "Write workspace-write.")


def _paths(reading: _Reading, entry: Entry) -> None:
    reading.values["paths"] = tuple(words(entry))
    reading.fields.say(entry, f"the files it may write: {', '.join(reading.values['paths']) or 'none'}")


def _max_steps(reading: _Reading, entry: Entry) -> None:
    said = text(entry)
    if said.lower() in ABSENT or said == "0":
        reading.fields.say(entry, "the policy's limit")
        return
    if not (said.isascii() and said.isdigit()) or len(said) > 15 or int(said) > NUMBER_MAX:
        raise Broken(entry.line, f"{entry.key!r} cannot be {said[:40]!r}.", "Write a whole number from 1.")
    reading.values["max_steps"] = int(said)
    reading.fields.say(entry, f"at most {int(said)} steps a run")


def _timeout(reading: _Reading, entry: Entry) -> None:
    _span(reading, entry, text(entry).lower().replace(" ", ""))


def _timeout_minutes(reading: _Reading, entry: Entry) -> None:
    said = text(entry).lower()
    _span(reading, entry, f"{said}m" if re.fullmatch(r"[\d.]{1,39}", said) and said != "0" else said)


def _span(reading: _Reading, entry: Entry, said: str) -> None:
    if said in ABSENT or said == "0":
        reading.fields.say(entry, "the policy's limit")
        return
    seconds = _seconds(said)
    if seconds is None or not 0 < seconds <= NUMBER_MAX:
        raise Broken(entry.line, f"{entry.key!r} cannot be {said[:40]!r}.", "Write a span as 15m, 90s or 1h30m.")
    reading.values["timeout_s"] = seconds
    reading.fields.say(entry, f"at most {format(Decimal(repr(seconds)).normalize(), 'f')} s a run")


def _seconds(said: str) -> float | None:
    """Return a span in seconds; a bare number is seconds."""
    found = _SPAN.fullmatch(said) if re.fullmatch(r"[\d.hms]{1,40}", said) else None
    if found and any(found.groups()):
        hours, minutes, seconds, milliseconds = (float(part or 0) for part in found.groups())
        return hours * 3600 + minutes * 60 + seconds + milliseconds / 1000
    return float(said) if re.fullmatch(r"\d{1,13}(\.\d{1,6})?", said) else None


def _effort(reading: _Reading, entry: Entry) -> None:
    said = phrase(entry)
    if said.lower() in ABSENT:
        reading.fields.say(entry, "its parent's effort")
        return
    reading.values["effort"] = said
    reading.fields.say(entry, f"the thinking effort {said}")


def _continuable(reading: _Reading, entry: Entry) -> None:
    reading.values["continuable"] = flag(entry)
    meaning = {True: "it takes further messages", False: "it runs once", None: "as the policy says"}
    reading.fields.say(entry, meaning[reading.values["continuable"]])


def _spawns(reading: _Reading, entry: Entry) -> None:
    word = entry.value.lower() if isinstance(entry.value, str) else None
    if word in TRUE:
        reading.values["spawns"] = ("*",)
    elif word not in FALSE:
        reading.values["spawns"] = labels(entry)
    may = ", ".join(reading.values.get("spawns", ()))
    reading.fields.say(entry, "it may spawn any role" if may == "*" else f"it may spawn: {may or 'nobody'}")


# ------------------------------------------------------------------------------------------------ skills and the answer


def _skills(reading: _Reading, entry: Entry) -> None:
    if isinstance(entry.value, str) and entry.value.lower() in FALSE:
        found: tuple[str, ...] = ()
    else:
        found = labels(entry)
    if found == ("*",):
        reading.fields.ignore(entry, "A role cannot begin with every skill.", "Name some; all are listed anyway.")
        return
    reading.values["skills"] = found
    reading.fields.say(entry, f"it begins with the skills: {', '.join(found) or 'none'}")


def _output_schema(reading: _Reading, entry: Entry) -> None:
    value = entry.value
    if isinstance(value, str) and value.strip().lower() in ABSENT:
        reading.fields.say(entry, "any answer")
        return
    schema: object = _json(value) if isinstance(value, str) else _typed(value)
    if not isinstance(schema, dict):
        cause = f"{entry.key!r} must be an object or its JSON text."
        raise Broken(entry.line, cause, 'Write for example {"type": "object"}.')
    if not _is_sound(cast("dict[str, object]", schema), 0):
        cause = f"{entry.key!r} is nested too deeply, has a key that is too long, or holds a zero byte."
        raise Broken(entry.line, cause, "Write a simpler schema.")
    reading.values["output_schema"] = cast("dict[str, Any]", schema)
    reading.fields.say(entry, "its last message must be JSON that matches this schema")


def _is_sound(value: object, depth: int) -> bool:
    """Return whether a value can be written as front matter again."""
    if isinstance(value, str):
        return "\0" not in value
    if not isinstance(value, dict | list):
        return True
    inner: list[object] = []
    if isinstance(value, dict):
        table = cast("dict[str, object]", value)
        inner = list(table.values())
        if any(len(key) > SCHEMA_KEY_CHARS_MAX or "\0" in key for key in table):
            return False
    else:
        inner = cast("list[object]", value)
    return depth < NESTING_MAX and all(_is_sound(item, depth + 1) for item in inner)


def _typed(value: Tree) -> object:
    """Return a value with its numbers, switches and nulls where they were written without quotes."""
    if isinstance(value, dict):
        return {str(key): _typed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_typed(inner) for inner in value]
    if not isinstance(value, Plain):
        return value
    found: object = None if value in ("~", "") else _json(value)
    return str(value) if isinstance(found, str | dict | list) or found is _NO_JSON else found


_NO_JSON: Final = object()


def _json(said: str) -> object:
    try:
        return msgspec.json.decode(str(said))  # msgspec takes no subclass of str
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return _NO_JSON


_READERS: Final[dict[str, Callable[[_Reading, Entry], None]]] = {
    "description": _description,
    "disabled": _disabled,
    "hidden": _hidden,
    "disable_model_invocation": _hidden,
    "infer": _infer,
    "color": _color,
    "kind": _kind,
    "model": _model,
    "access": _access,
    "permission_mode": _permission_mode,
    "sandbox_mode": _sandbox,
    "paths": _paths,
    "max_steps": _max_steps,
    "timeout": _timeout,
    "timeout_mins": _timeout_minutes,
    "effort": _effort,
    "continuable": _continuable,
    "spawns": _spawns,
    "skills": _skills,
    "output_schema": _output_schema,
}
