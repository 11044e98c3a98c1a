"""Which tools a session is offered and which names the host accepts from it; it executes none."""

from typing import Final

from retinue.core.errors import RetinueError
from retinue.core.policy import Policy
from retinue.core.session import Session
from retinue.ports import Tool, ToolSchema

SPAWN: Final = "spawn_agent"
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

    def offered(self, session: Session, policy: Policy) -> tuple[ToolSchema, ...]:
        """Return what the session's next request carries: stable tools first, the others once it has had a child."""
        return tuple(tool.schema for tool in self._allowed(session, policy) if self._is_shown(tool, session))

    def find(self, name: str, session: Session, policy: Policy) -> Tool:
        """Return a tool the session may call; refuse every other name, also a known one that was not offered."""
        tool = self.tools.get(name)
        if tool is not None and name == SPAWN and delegates(session, policy) and not has_depth(session):
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

    def names(self, session: Session, policy: Policy) -> list[str]:
        """Return the names of everything the session may call."""
        return [tool.schema.name for tool in self._allowed(session, policy)]

    def _allowed(self, session: Session, policy: Policy) -> list[Tool]:
        return [tool for tool in self.tools.values() if self._may_call(tool, session, policy)]

    def _may_call(self, tool: Tool, session: Session, policy: Policy) -> bool:
        header = session.header
        name = tool.schema.name
        if tool.group == "agents":
            if name == SPAWN:
                return delegates(session, policy) and has_depth(session)
            return session.children > 0 or (delegates(session, policy) and has_depth(session))
        if tool.group == "custom" and header.profile in READING_PROFILES:
            return False
        return header.rights.tools is None or name in header.rights.tools

    def _is_shown(self, tool: Tool, session: Session) -> bool:
        return tool.group != "agents" or tool.schema.name == SPAWN or session.children > 0


def delegates(session: Session, policy: Policy) -> bool:
    """Return whether the session's profile and rights let it delegate at all."""
    header = session.header
    return header.rights.may_delegate and header.profile in policy["rights.delegating_profiles"]


def has_depth(session: Session) -> bool:
    """Return whether a child of the session would still be within its cap."""
    cap = session.header.rights.max_depth
    return cap is None or session.header.depth + 1 <= cap
