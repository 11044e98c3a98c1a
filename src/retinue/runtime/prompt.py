"""The system text of a request: fixed parts from files, the environment block, the role; it reads no clock.

The order is environment block, role, notes. A custom role replaces the middle part only (CONTRACT section 4).
"""

import hashlib
from typing import Any

import msgspec

from retinue.core.ids import Digest
from retinue.core.policy import Policy
from retinue.core.session import Session
from retinue.ports import ToolSchema


class PromptTexts(msgspec.Struct, frozen=True, kw_only=True):
    """The fixed texts: what a main session and a child are told, and what is said of delegation."""

    main_role: str
    child_role: str
    delegation: str
    child_notes: str
    compaction: str
    output_schema: str
    delegation_pull: str
    turn_ends: str


class Blob(msgspec.Struct, frozen=True):
    """A text that requests refer to by digest."""

    digest: Digest
    body: bytes


def blob(body: bytes) -> Blob:
    """Return the body with its digest."""
    return Blob(Digest(hashlib.sha256(body).hexdigest()), body)


def system_text(session: Session, texts: PromptTexts, policy: Policy, environment: str, *, delegating: bool) -> str:
    """Return the system text of a session; it stays the same for as long as its rights and its policy do."""
    header = session.header
    child = header.depth > 0
    role = header.system_prompt
    if role is None and header.definition is not None:
        role = header.definition.instructions
    if role is None:
        role = texts.child_role if child else texts.main_role
    notes = [texts.child_notes] if child else []
    if header.output_schema is not None:
        schema = msgspec.json.encode(header.output_schema).decode()
        notes.append(f"{texts.output_schema}\n{schema}")
    if delegating:
        notes.append(texts.delegation_pull if policy["result.delivery"] == "pull" else texts.delegation)
        if policy["result.turn_end"] != "hold_open":
            notes.append(texts.turn_ends)
    return "\n\n".join([environment, role.strip(), *notes])


def fork_notes(texts: PromptTexts, output_schema: dict[str, Any] | None) -> str:
    """Return what a fork is told after its parent's turns: its system text is its parent's to the letter."""
    notes = [texts.child_notes]
    if output_schema is not None:
        notes.append(f"{texts.output_schema}\n{msgspec.json.encode(output_schema).decode()}")
    return "\n\n".join(notes)


def tools_blob(schemas: tuple[ToolSchema, ...]) -> Blob:
    """Return the offered tools as a blob."""
    return blob(msgspec.json.encode(schemas))
