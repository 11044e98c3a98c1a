"""What is gathered while one definition is read, and how a value becomes text, a switch or names; no meaning of a key.

A fault in one key is kept and the reading goes on, so that no fault hides another.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from retinue.definitions.diagnostic import Broken, Finding, KeyReport, Severity
from retinue.definitions.dialects import OWN, Dialect
from retinue.definitions.frontmatter import Bare, Entry, Tree
from retinue.definitions.toolnames import EVERYTHING, split_names, tool_names

TRUE: Final = frozenset({"true", "yes", "on", "1"})
FALSE: Final = frozenset({"false", "no", "off", "0"})
ABSENT: Final = frozenset({"", "null", "~", "none"})
MEANING_CHARS_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class Terms:
    """What a definition is read by: how its dialect names things, which tools there are, what model names mean."""

    dialect: Dialect = OWN
    known_tools: frozenset[str] = frozenset()
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])
    closed: tuple[Path, ...] = ()
    """Folders that no definition may take a text from."""

    def tools(self, written: str) -> tuple[tuple[str, ...], bool]:
        """Return what a tool is called here, and whether it was restricted; what a tool is called here comes first."""
        if written in self.known_tools:
            return (written,), False
        return tool_names(written, self.dialect.tools, self.dialect.server)


@dataclass(slots=True)
class Fields:
    """What a document says, as keywords of a `Snapshot`, and how it is listed."""

    name: str
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    hidden: bool = False
    disabled: bool = False
    faults: list[Broken] = field(default_factory=list[Broken])
    """Where it is not empty, the definition cannot be used."""
    findings: list[Finding] = field(default_factory=list[Finding])
    keys: list[KeyReport] = field(default_factory=list[KeyReport])
    reads_only: bool = False
    """Whether another dialect's word holds it to reading, whatever `access` says."""

    def note(self, severity: Severity, line: int | None, cause: str, remedy: str) -> None:
        """Keep a finding, once."""
        found = Finding(severity=severity, line=line, cause=cause, remedy=remedy)
        if found not in self.findings:
            self.findings.append(found)

    def say(self, entry: Entry, meaning: str) -> None:
        """Report a key as understood."""
        self._key(entry, meaning, understood=True)

    def ignore(self, entry: Entry, cause: str, remedy: str, severity: Severity = "warning") -> None:
        """Report a key as ignored, with a finding that says so."""
        self._key(entry, cause, understood=False)
        self.note(severity, entry.line, cause, remedy)

    def fault(self, broken: Broken, entry: Entry | None = None) -> None:
        """Keep what breaks the definition."""
        self.faults.append(broken)
        if entry is not None:
            self._key(entry, broken.cause, understood=False)

    def _key(self, entry: Entry, meaning: str, *, understood: bool) -> None:
        short = meaning if len(meaning) <= MEANING_CHARS_MAX else f"{meaning[: MEANING_CHARS_MAX - 1]}…"
        self.keys.append(KeyReport(key=entry.key[:100], line=entry.line, understood=understood, meaning=short))


def text(entry: Entry) -> str:
    """Return a value that is text, without blanks around it. Raises `Broken`."""
    if not isinstance(entry.value, str):
        raise Broken(entry.line, f"{entry.key!r} must be text.", f"Write '{entry.key}: …' on one line, or in quotes.")
    return str(entry.value).strip()


def phrase(entry: Entry) -> str:
    """Return a value that is text in every format, without blanks around it. Raises `Broken`."""
    if isinstance(entry.value, Bare):
        raise Broken(entry.line, f"{entry.key!r} must be text.", "Put the value in quotes.")
    return text(entry)


def flag(entry: Entry) -> bool | None:
    """Return a switch, null where it has no value. Raises `Broken`."""
    word = text(entry).lower()
    if word in ABSENT:
        return None
    if word not in TRUE | FALSE:
        raise Broken(entry.line, f"{entry.key!r} cannot be {word[:40]!r}.", "Write true or false.")
    return word in TRUE


def names(entry: Entry) -> list[str]:
    """Return names without blanks in them: a list, or a text separated by commas or blanks. Raises `Broken`."""
    if isinstance(entry.value, str):
        return [] if entry.value.lower() in ABSENT else split_names(entry.value)
    return [name for item in _items(entry) for name in split_names(item)]


def labels(entry: Entry) -> tuple[str, ...]:
    """Return names that may have blanks: a list, or a text separated by commas, else by blanks. Raises `Broken`."""
    value = entry.value
    if isinstance(value, str):
        items = [] if value.lower() in ABSENT else value.split(",") if "," in value else value.split()
    else:
        items = _items(entry)
    found = tuple(dict.fromkeys(str(item).strip() for item in items if item.strip()))
    return ("*",) if EVERYTHING & {item.lower() for item in found} else found


def words(entry: Entry) -> list[str]:
    """Return lines of a list as they are, or the parts of a text between commas. Raises `Broken`."""
    if isinstance(entry.value, str):
        return [part.strip() for part in entry.value.split(",") if part.strip()]
    return [str(item) for item in _items(entry)]


def _items(entry: Entry) -> list[str]:
    value: Tree = entry.value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    raise Broken(entry.line, f"{entry.key!r} must be a list of names.", f"Write '{entry.key}: one, two'.")
