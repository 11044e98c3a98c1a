"""What a session may call: parent ∩ definition ∩ request, and nothing wider; it opens no session.

The tools of MCP servers are given by name only, unless the session is a root (CONTRACT section 2, rule 7).
"""

from collections.abc import Sequence
from typing import Final

from retinue.core.errors import RetinueError
from retinue.core.events import Rights, Snapshot
from retinue.core.policy import Policy
from retinue.runtime.toolset import SPAWN, Toolset

SERVER: Final = "mcp__"
LOAD_SKILL: Final = "load_skill"


def child_rights(
    mine: Rights, tools: Toolset, definition: Snapshot | None, asked: Sequence[str] | None, *, of_root: bool
) -> Rights:
    """Return what a child may call, its depth aside; `mine` are its parent's rights.

    Raises `unknown_tool` for a name in `asked` that is no tool here.
    """
    own = tools.of_group("read", "report", "custom")
    connectors = tools.of_group("connector")
    if asked is not None:
        _require_known(asked, tools)
    if mine.tools is None:
        held = own + ([name for name in connectors if _names(definition, asked, name)] if of_root else [])
    else:
        held = [name for name in mine.tools if name not in connectors or _names(definition, asked, name)]
    allowed = [name for name in held if _passes(name, definition, asked)]
    return Rights(
        tools=None if mine.tools is None and not _narrows(definition, asked) else tuple(allowed),
        access="read",
        max_depth=mine.max_depth,
        may_delegate=mine.may_delegate and _delegates(definition, asked),
    )


def root_rights(
    tools: Toolset, definition: Snapshot | None, asked: Sequence[str] | None, max_depth: int | None
) -> Rights:
    """Return what a root may call: every tool, but for what its role or whoever opens it leaves out.

    Raises `unknown_tool` for a name in `asked` that is no tool here.
    """
    if asked is not None:
        _require_known(asked, tools)
    everything = tools.of_group("read", "report", "custom", "connector")
    allowed = [name for name in everything if _passes(name, definition, asked)]
    return Rights(
        tools=tuple(allowed) if _narrows(definition, asked) else None,
        access="read",
        max_depth=max_depth,
        may_delegate=_delegates(definition, None),
    )


def is_told_roles(rights: Rights, profile: str, depth: int, policy: Policy) -> bool:
    """Return whether a session at this depth can use the list of roles it could delegate to."""
    has_depth = rights.max_depth is None or depth + 1 <= rights.max_depth
    return rights.may_delegate and has_depth and profile in policy["rights.delegating_profiles"]


def loads_skills(rights: Rights, tools: Toolset) -> bool:
    """Return whether a session can load skills."""
    return LOAD_SKILL in tools.tools and (rights.tools is None or LOAD_SKILL in rights.tools)


def _narrows(definition: Snapshot | None, asked: Sequence[str] | None) -> bool:
    """Return whether tools are left out; a list that names every tool of today leaves out those of tomorrow."""
    by_role = definition is not None and (definition.tools is not None or bool(definition.disallowed_tools))
    return by_role or asked is not None


def _delegates(definition: Snapshot | None, asked: Sequence[str] | None) -> bool:
    by_role = definition is None or (bool(definition.spawns) and SPAWN not in definition.disallowed_tools)
    return by_role and (asked is None or SPAWN in asked)


def _names(definition: Snapshot | None, asked: Sequence[str] | None, name: str) -> bool:
    """Return whether a role or a request names a connector's tool; either is enough, both narrow all the same."""
    written = [*(definition.tools or () if definition is not None else ()), *(asked or ())]
    return any(means(one, name) for one in written)


def _passes(name: str, definition: Snapshot | None, asked: Sequence[str] | None) -> bool:
    if definition is not None:
        if definition.tools is not None and not any(means(one, name) for one in definition.tools):
            return False
        if any(means(one, name) for one in definition.disallowed_tools):
            return False
    return asked is None or any(means(one, name) for one in asked)


def means(written: str, name: str) -> bool:
    """Return whether a written name means a tool: itself, `mcp__server__*`, or `mcp__server` for all of a server's."""
    if written == name:
        return True
    if not written.startswith(SERVER):
        return False
    if written.endswith("*"):
        return name.startswith(written[:-1])
    return "__" not in written.removeprefix(SERVER) and name.startswith(f"{written}__")


def _require_known(names: Sequence[str], tools: Toolset) -> None:
    for name in names:
        if not any(means(name, known) for known in tools.tools):
            raise RetinueError(
                "unknown_tool", f"There is no tool {name!r}.", f"The tools are: {', '.join(tools.tools)}."
            )
