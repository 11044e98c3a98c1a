"""The tool names of other dialects and what they are called here; it offers no tool."""

import re
from collections.abc import Mapping
from typing import Final

READING: Final = ("read_file", "list_dir", "grep", "load_skill")
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
CONNECTOR: Final = "mcp__"
"""How the name of a connector's tool begins: `mcp__SERVER__TOOL`."""

_SPELLINGS: Final = {
    "read_file": ("read", "view", "cat", "readfile", "read_files", "read_many_files", "notebookread"),
    "list_dir": ("ls", "list", "listdir", "list_directory", "list_files", "glob", "find"),
    "grep": ("search", "search_file_content", "search_files", "grep_search", "rg", "ripgrep"),
    "write_file": ("write", "create", "writefile"),
    "edit_file": ("edit", "multiedit", "multi_edit", "notebookedit", "replace", "patch", "apply_patch", "str_replace"),
    "shell": ("bash", "execute", "run_shell_command", "run_command", "terminal", "exec"),
    "load_skill": ("skill", "skills", "activate_skill"),
    "web_fetch": ("webfetch", "fetch", "fetch_url"),
    "spawn_agent": ("task", "agent", "subagent"),
    "list_agents": ("agent_search",),
    "wait_agent": ("wait_agents",),
}
_HERE: Final = {spelling: name for name, spellings in _SPELLINGS.items() for spelling in (name, *spellings)} | {
    name: name for name in DELEGATING
}
KNOWN: Final = frozenset(_SPELLINGS) | DELEGATING
"""Every tool that there is, or will be in a later version."""


def split_names(text: str) -> list[str]:
    """Return the names in a text, separated by commas, blanks or both, each with what it is restricted to.

    A restriction may hold separators and further parentheses: `Bash(git diff:*)`. One that is never closed takes the
    rest of the text with it: nothing in it may be read as a name of its own.
    """
    names: list[str] = []
    name, depth = "", 0
    for char in text:
        if depth == 0 and (char.isspace() or char in ",)"):
            names.append(name)
            name = ""
            continue
        depth += {"(": 1, ")": -1}.get(char, 0)
        name += char
    return [found for found in (*names, name) if found.strip("(")]


def tool_names(
    written: str, spellings: Mapping[str, tuple[str, ...]], server: re.Pattern[str] | None = None
) -> tuple[tuple[str, ...], bool]:
    """Return what a tool is called here (as written where nothing matches), and whether it was restricted.

    `spellings` are a dialect's own names, in lower case; `server` finds the groups `server` and `tool` in the name of a
    connector's tool, where the dialect writes those in another way.
    """
    name, restricted, _ = written.partition("(")
    lower = name.lower()
    if name.startswith(CONNECTOR):
        return (name,), bool(restricted)
    if lower in spellings:
        return spellings[lower], bool(restricted)
    if lower in _HERE:
        return (_HERE[lower],), bool(restricted)
    found = server and server.fullmatch(name)
    return (f"{CONNECTOR}{found['server']}__{found['tool']}" if found else name,), bool(restricted)
