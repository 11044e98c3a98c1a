"""What a role says and what a session may do, as frozen values; it reads no file and decides nothing."""

from typing import Any, Literal

from retinue.core.ids import Digest
from retinue.core.messages import Value


class Rights(Value):
    """What a session may do at most, frozen when it was opened; never widened afterwards."""

    tools: tuple[str, ...] | None = None
    """Names of the tools it may be offered; null means every tool of its profile."""
    access: Literal["read", "write"] = "read"
    paths: tuple[str, ...] = ()
    max_depth: int | None = None
    """The deepest depth a descendant may have; null means no cap."""
    may_delegate: bool = True


class Snapshot(Value):
    """A definition as it was when it was frozen; later edits of its file change nothing here."""

    ref: str
    name: str
    digest: Digest
    description: str = ""
    instructions: str = ""
    model: str | None = None
    tools: tuple[str, ...] | None = None
    disallowed_tools: tuple[str, ...] = ()
    access: Literal["read", "write"] | None = None
    paths: tuple[str, ...] = ()
    max_steps: int | None = None
    timeout_s: float | None = None
    effort: str | None = None
    continuable: bool | None = None
    spawns: tuple[str, ...] = ()
    """Names of the definitions it may delegate to; `*` means any."""
    skills: tuple[str, ...] = ()
    """Names of skills whose texts its sessions begin with."""
    output_schema: dict[str, Any] | None = None
    """A JSON schema that the last message of its runs must match."""
