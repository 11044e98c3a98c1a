"""What is said of a definition file, as values and as an exception; it reads no file."""

from typing import Literal

import msgspec

from retinue.core.events import Value

Severity = Literal["error", "warning", "note"]
Layer = Literal["project", "user", "builtin"]
Status = Literal["good", "broken", "disabled", "replaced"]


class Diagnostic(Value):
    """One finding about one file. An `error` breaks the definition; everything else leaves it usable."""

    severity: Severity
    path: str
    line: int | None
    """Counted from 1 in the file; null where it concerns the whole file or folder."""
    name: str | None
    """The definition's name, as far as it is known."""
    cause: str
    remedy: str

    def to_dict(self) -> dict[str, object]:
        """Return it with every key present."""
        return dict(msgspec.to_builtins(self))

    def __str__(self) -> str:
        """Return it as one line: `path:line: cause Remedy`."""
        return f"{self.path}{'' if self.line is None else f':{self.line}'}: {self.cause} {self.remedy}"


class KeyReport(Value):
    """What one key of a definition file means here, or why it is ignored."""

    key: str
    """As it was written."""
    line: int
    understood: bool
    meaning: str
    """What it means here; where it is not understood, why it is ignored or what is wrong with it."""


class FileReport(Value):
    """Everything there is to say of one definition in one file, or of a file or folder that holds none."""

    path: str
    dialect: str
    layer: Layer
    name: str | None
    """Null for a folder, and for a file that is ignored as a whole."""
    ref: str | None
    """What reaches this definition alone; null where `name` is."""
    status: Status
    keys: tuple[KeyReport, ...]
    findings: tuple[Diagnostic, ...]

    def to_dict(self) -> dict[str, object]:
        """Return it with every key present."""
        return dict(msgspec.to_builtins(self))


class Finding(Value):
    """A finding inside one file, before it is known which file that is."""

    severity: Severity
    line: int | None
    cause: str
    remedy: str


class Broken(Exception):  # noqa: N818 - a file is broken; it is no error of ours
    """A definition file that cannot be used; `name` is set where the file still said it."""

    def __init__(self, line: int | None, cause: str, remedy: str, name: str | None = None) -> None:
        super().__init__(cause)
        self.line = line
        self.cause = cause
        self.remedy = remedy
        self.name = name
