"""Retinue: a sub-agent runtime. This module holds the public names; each is loaded when it is first used."""

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from retinue.app import Runtime, open, run
    from retinue.core.errors import RetinueError
    from retinue.core.events import Event, Snapshot, Usage
    from retinue.core.policy import Policy
    from retinue.core.run import Run
    from retinue.core.session import SessionRow
    from retinue.ports import (
        Delta,
        Deny,
        Finish,
        FinishCall,
        HookEvent,
        Model,
        ModelRequest,
        Tool,
        ToolContext,
        ToolResult,
        ToolSchema,
    )
    from retinue.runtime.handles import Child, Kid, Session, Subagents, Turn, TurnResult
    from retinue.runtime.hooking import hook
    from retinue.settings import Settings, read_settings
    from retinue.tools.custom import tool

__all__ = [
    "Child",
    "Delta",
    "Deny",
    "Event",
    "Finish",
    "FinishCall",
    "HookEvent",
    "Kid",
    "Model",
    "ModelRequest",
    "Policy",
    "RetinueError",
    "Run",
    "Runtime",
    "Session",
    "SessionRow",
    "Settings",
    "Snapshot",
    "Subagents",
    "Tool",
    "ToolContext",
    "ToolResult",
    "ToolSchema",
    "Turn",
    "TurnResult",
    "Usage",
    "hook",
    "open",
    "read_settings",
    "run",
    "tool",
]

_NAMES: Final = {
    "retinue.app": ("Runtime", "open", "run"),
    "retinue.settings": ("Settings", "read_settings"),
    "retinue.core.errors": ("RetinueError",),
    "retinue.core.events": ("Event", "Snapshot", "Usage"),
    "retinue.core.policy": ("Policy",),
    "retinue.core.run": ("Run",),
    "retinue.core.session": ("SessionRow",),
    "retinue.ports": (
        "Delta",
        "Deny",
        "Finish",
        "FinishCall",
        "HookEvent",
        "Model",
        "ModelRequest",
        "Tool",
        "ToolContext",
        "ToolResult",
        "ToolSchema",
    ),
    "retinue.runtime.hooking": ("hook",),
    "retinue.runtime.handles": ("Child", "Kid", "Session", "Subagents", "Turn", "TurnResult"),
    "retinue.tools.custom": ("tool",),
}
_HOME: Final = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a public name: the command answers `--version` in a few milliseconds because nothing is loaded before."""
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
