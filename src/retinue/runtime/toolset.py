"""Which tools a session is offered and which names the host accepts from it; it executes none."""

from typing import Final

from retinue.core.errors import RetinueError
from retinue.core.policy import Policy
from retinue.core.session import Session
from retinue.core.state import depth_cap
from retinue.ports import Tool, ToolSchema

SPAWN: Final = "spawn_agent"
SEND: Final = "send_agent_message"
SWITCHED: Final = frozenset({SPAWN, SEND, "interrupt_agent"})
"""Tools that the master switch takes away (CONTRACT section 3)."""
READING_PROFILES: Final = frozenset({"plan", "ask"})


class Toolset:
    """All tools of a runtime, by name, in the order they are offered."""

    def __init__(self) -> None:
        """Begin without tools."""
        self.tools: Final[dict[str, Tool]] = {}

    def add(self, tool: Tool) -> None:
        """Add a tool; a name that is taken is refused (`invalid`)."""
        name = tool.schema.name
        if name in self.tools:
            raise RetinueError("invalid", f"There are two tools named {name!r}.", "Rename one of them.")
        self.tools[name] = tool

    def offered(self, session: Session, policy: Policy, *, on: bool = True) -> tuple[ToolSchema, ...]:
        """Return what the session's next request carries: stable tools first, the others once it has had a child.

        `on` is the master switch.
        """
        shown = [tool for tool in self._allowed(session, policy) if self._is_shown(tool, session)]
        shown.sort(key=_comes_later)  # stable: what a session gets later leaves the beginning as it was
        return tuple(tool.schema for tool in shown if on or tool.schema.name not in SWITCHED)

    def offers(self, name: str, session: Session, policy: Policy, *, on: bool = True) -> bool:
        """Return whether the session's next request could carry a tool of this name."""
        tool = self.tools.get(name)
        return tool is not None and (on or name not in SWITCHED) and self._may_call(tool, session, policy)

    def find(self, name: str, session: Session, policy: Policy, *, on: bool = True) -> Tool:
        """Return a tool the session may call; refuse every other name, also a known one that was not offered."""
        tool = self.tools.get(name)
        if not on and name in SWITCHED:
            raise RetinueError(
                "switched_off",
                f"Delegation is switched off: {name} is refused.",
                "Go on without it; results that are there can still be read.",
            )
        if tool is not None and name == SPAWN and delegates(session, policy) and not has_depth(session, policy):
            # Let the scheduler refuse it with both numbers.
            return tool
        allowed = [allowed.schema.name for allowed in self._allowed(session, policy)]
        if tool is None or name not in allowed:
            raise RetinueError(
                "unknown_tool",
                f"There is no tool {name!r} for this session.",
                f"The tools are: {', '.join(allowed) or 'none'}.",
            )
        return tool

    def of_group(self, *groups: str) -> list[str]:
        """Return the names of the tools of some groups, in the order they are offered."""
        return [name for name, tool in self.tools.items() if tool.group in groups]

    def names(self, session: Session, policy: Policy) -> list[str]:
        """Return the names of everything the session may call."""
        return [tool.schema.name for tool in self._allowed(session, policy)]

    def _allowed(self, session: Session, policy: Policy) -> list[Tool]:
        return [tool for tool in self.tools.values() if self._may_call(tool, session, policy)]

    def _may_call(self, tool: Tool, session: Session, policy: Policy) -> bool:
        header = session.header
        name = tool.schema.name
        if tool.group == "agents":
            return _may_delegate(name, session, policy)
        if tool.group == "report":
            return header.parent_id is not None and bool(policy["life.report"])
        if tool.group in ("custom", "connector") and header.profile in READING_PROFILES:
            return False
        if tool.group == "connector" and header.rights.tools is None:
            return header.parent_id is None  # a child gets these by name only
        return header.rights.tools is None or name in header.rights.tools

    def _is_shown(self, tool: Tool, session: Session) -> bool:
        return not _comes_later(tool) or bool(session.kids)


def _comes_later(tool: Tool) -> bool:
    return tool.group == "agents" and tool.schema.name != SPAWN


def _may_delegate(name: str, session: Session, policy: Policy) -> bool:
    may_spawn = delegates(session, policy) and has_depth(session, policy)
    if name == SPAWN:
        return may_spawn
    if name == SEND and policy["life.continuation"] == "none" and policy["life.message_scope"] == "family":
        return False  # nobody could be written to
    in_family = bool(session.kids) or may_spawn
    return in_family or (name == SEND and policy["life.message_scope"] == "tree")


def delegates(session: Session, policy: Policy) -> bool:
    """Return whether the session's profile and rights let it delegate at all."""
    header = session.header
    return header.rights.may_delegate and header.profile in policy["rights.delegating_profiles"]


def has_depth(session: Session, policy: Policy) -> bool:
    """Return whether a child of the session would still be within its cap."""
    cap = depth_cap(session, policy)
    return cap is None or session.header.depth + 1 <= cap
