"""The tool names of other dialects and what they are called here; it offers no tool."""

import re
from typing import Final

READING: Final = ("read_file", "list_dir", "grep")
"""The workspace tools of this version."""

DELEGATING: Final = frozenset(
    {
        "spawn_agent",
        "list_agents",
        "wait_agent",
        "read_agent_output",
        "send_agent_message",
        "interrupt_agent",
        "cancel_agent",
    }
)
"""Tools by which an agent delegates: a definition keeps them only if its `spawns` names somebody."""

EVERYTHING: Final = frozenset({"*", "all"})
"""Words that mean no list at all."""

_SPELLINGS: Final = {
    "read_file": ("read", "view", "cat", "readfile", "read_files", "read_many_files", "notebookread"),
    "list_dir": ("ls", "list", "listdir", "list_directory", "list_files", "glob", "find"),
    "grep": ("search", "search_file_content", "search_files", "rg", "ripgrep"),
    "write_file": ("write", "create", "writefile"),
    "edit_file": ("edit", "multiedit", "multi_edit", "notebookedit", "replace", "apply_patch", "str_replace"),
    "shell": ("bash", "execute", "run_shell_command", "run_command", "terminal", "exec"),
    "load_skill": ("skill", "skills"),
    "web_fetch": ("webfetch", "fetch"),
    "spawn_agent": ("task", "agent", "subagent"),
    "list_agents": ("agent_search",),
    "wait_agent": ("wait_agents",),
}
_HERE: Final = {spelling: name for name, spellings in _SPELLINGS.items() for spelling in (name, *spellings)} | {
    name: name for name in DELEGATING
}
_ITEM: Final = re.compile(r"[^\s,()]+(?:\([^)]*\))?")
"""One name of a list, with what it is restricted to: `Bash(git diff:*)`."""


def split_names(text: str) -> list[str]:
    """Return the names in a text, separated by commas, blanks or both."""
    return _ITEM.findall(text)


def tool_name(written: str) -> tuple[str, bool]:
    """Return what a tool is called here (as written where no dialect's name matches), and whether it was restricted."""
    name, restricted, _ = written.partition("(")
    return _HERE.get(name.lower(), name), bool(restricted)
