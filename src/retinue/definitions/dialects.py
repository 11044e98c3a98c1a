"""The table of dialects: where each keeps its definitions and how it names things; it reads nothing itself.

A dialect is data. What the keys mean once they have this project's names is the same for all of them (`fields`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from retinue.definitions.diagnostic import Severity

Form = Literal["markdown", "toml", "json"]
_NONE: Final[Mapping[str, tuple[str, ...]]] = {}


@dataclass(frozen=True, slots=True)
class Place:
    """One folder of definitions, below a project or below the home directory."""

    folder: str
    form: Form = "markdown"
    suffixes: tuple[str, ...] = (".md",)
    """Which files are definitions; the first that fits is no part of the name."""
    files: tuple[str, ...] = ()
    """Where it is not empty: the only files that are read, each of which may hold many definitions."""
    is_deep: bool = False
    """Whether folders inside it are read too."""
    inner: str | None = None
    """Where it is set, a definition is this file in a folder that has the definition's name."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one program writes its agents."""

    name: str
    places: tuple[Place, ...]
    home_places: tuple[Place, ...] = ()
    """What it has below the home directory besides `places`."""
    keys: Mapping[str, str] = field(default_factory=dict[str, str])
    """Its keys whose names mean something else here, or nothing of their own."""
    text_key: str | None = None
    """The key that holds the instructions where there is no text below the front matter."""
    model_variant: re.Pattern[str] | None = None
    """What stands behind a model's name for how much it thinks: the group `effort`."""
    takes_first_model: bool = False
    """Whether `model` may be a list of which the first that is there is meant."""
    tools: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _NONE)
    server: re.Pattern[str] | None = None
    own_agents: frozenset[str] = frozenset()
    """Its built-in agents: an entry that only changes one of them describes no role."""


class Ignored(NamedTuple):
    """Why a key of another program is not acted on, and what to do instead."""

    why: str
    remedy: str = "It may stay for the program that reads it."
    severity: Severity = "note"


_EDITING: Final = ("edit_file", "write_file")
_FINDING: Final = ("grep", "list_dir")
_COPILOT_TOOLS: Final = {
    "read": ("read_file",),
    "read/readfile": ("read_file",),
    "readfile": ("read_file",),
    "search": _FINDING,
    "search/codebase": _FINDING,
    "codebase": _FINDING,
    "search/textsearch": ("grep",),
    "textsearch": ("grep",),
    "search/filesearch": ("list_dir",),
    "filesearch": ("list_dir",),
    "search/listdirectory": ("list_dir",),
    "listdirectory": ("list_dir",),
    "edit": _EDITING,
    "edit/editfiles": _EDITING,
    "editfiles": _EDITING,
    "edit/createfile": ("write_file",),
    "createfile": ("write_file",),
    "execute": ("shell",),
    "runcommands": ("shell",),
    "runcommands/runinterminal": ("shell",),
    "runinterminal": ("shell",),
    "execute/runinterminal": ("shell",),
    "web": ("web_fetch",),
    "web/fetch": ("web_fetch",),
    "agent": ("spawn_agent",),
    "custom-agent": ("spawn_agent",),
    "runsubagent": ("spawn_agent",),
    "agent/runsubagent": ("spawn_agent",),
}
_COPILOT_SERVER: Final = re.compile(
    r"(?!(?:read|search|edit|execute|web|agent|vscode|runCommands|todo|new)/)(?P<server>[^/]+)/(?P<tool>.+)",
    re.IGNORECASE,
)
_LEVELS: Final = "off|none|minimal|low|medium|high|xhigh|max"
_PI_VARIANT: Final = re.compile(rf":(?P<effort>{_LEVELS})$", re.IGNORECASE)
_OPENCODE_VARIANT: Final = re.compile(r"#(?P<effort>[\w.-]+)$")
_OPENCODE_AGENTS: Final = frozenset({"build", "plan", "general", "explore", "title", "summary", "compaction"})
_OPENCODE_FILES: Final = ("opencode.json", "opencode.jsonc")


def _config(folder: str) -> Place:
    return Place(folder, "json", files=_OPENCODE_FILES)


OWN: Final = Dialect("agents", (Place(".agents/agents"),))
CODEX: Final = Dialect(
    "codex",
    (Place(".codex/agents", "toml", (".toml",)),),
    keys={"skills": "skills_config", "web_search": "provider_tools", "tools": "provider_tools"},
    text_key="developer_instructions",
)
OPENCODE: Final = Dialect(
    "opencode",
    (
        Place(".opencode/agents", is_deep=True),
        Place(".opencode/agent", is_deep=True),
        _config(".opencode"),
        _config(""),
    ),
    (Place(".config/opencode/agents"), Place(".config/opencode/agent"), _config(".config/opencode")),
    keys={"permissions": "permission", "system": "prompt"},
    text_key="prompt",
    tools={"edit": _EDITING},
    server=re.compile(r"(?P<server>.+?)_(?P<tool>\*)"),
    model_variant=_OPENCODE_VARIANT,
    own_agents=_OPENCODE_AGENTS,
)
DIALECTS: Final = (
    OWN,
    Dialect("claude", (Place(".claude/agents", is_deep=True),), tools={"taskoutput": ("read_agent_output",)}),
    OPENCODE,
    CODEX,
    Dialect(
        "gemini",
        (Place(".gemini/agents"),),
        tools={"mcp_*": ("mcp__*",)},
        server=re.compile(r"mcp_(?P<server>[^_]+)_(?P<tool>.+)"),
    ),
    Dialect(
        "copilot",
        (
            Place(".github/agents", suffixes=(".agent.md", ".md")),
            Place(".github/chatmodes", suffixes=(".chatmode.md",)),
        ),
        (Place(".copilot/agents", suffixes=(".agent.md", ".md")),),
        keys={"agents": "spawns", "mode": "kind_of_chat"},
        takes_first_model=True,
        tools=_COPILOT_TOOLS,
        server=_COPILOT_SERVER,
    ),
    Dialect(
        "pi",
        (Place(".pi/agents"),),
        (Place(".pi/agent/agents"),),
        keys={"thinking": "effort"},
        model_variant=_PI_VARIANT,
    ),
    Dialect(
        "omp",
        (Place(".omp/agents"),),
        (Place(".omp/agent/agents"),),
        keys={"thinking_level": "effort", "thinking": "effort", "autoload_skills": "skills"},
        model_variant=_PI_VARIANT,
        takes_first_model=True,
    ),
    Dialect(
        "deepagents",
        (Place(".deepagents/agents", inner="AGENTS.md"), Place(".deepagents/agents")),
        (Place(".deepagents/agent/agents", inner="AGENTS.md"),),
    ),
)
"""In the order in which they are searched: of two definitions with one name the earlier one holds."""

_NO_SAMPLING: Final = Ignored("Sampling is the provider's default here.")
_NOTHING: Final = Ignored("It describes the file and changes nothing.")
_CALLER: Final = Ignored("Whether a parent waits is said at each spawn.")
_SERVERS: Final = Ignored(
    "Servers are not taken from a role's file.",
    "Set them up under [mcp.NAME] in the settings, and name their tools in 'tools'.",
    "warning",
)
IGNORED: Final[Mapping[str, Ignored]] = {
    "hooks": Ignored("Hooks are not taken from a role's file.", "Set them up for the whole project.", "warning"),
    "mcp_servers": _SERVERS,
    "mcp": _SERVERS,
    "memory": Ignored("A role keeps no memory between its sessions.", severity="warning"),
    "isolation": Ignored("A child works in its parent's folder or in the 'cwd' of its spawn.", severity="warning"),
    "background": _CALLER,
    "blocking": _CALLER,
    "initial_prompt": Ignored("A child's first message is what its parent asks.", severity="warning"),
    "temperature": _NO_SAMPLING,
    "top_p": _NO_SAMPLING,
    "top_k": _NO_SAMPLING,
    "mode": Ignored("Here a person and an agent may both start each role."),
    "kind_of_chat": Ignored("Here a person and an agent may both start each role."),
    "user_invocable": Ignored("Here a person may start each role."),
    "user_invokable": Ignored("Here a person may start each role."),
    "target": Ignored("A role is the same in every front end."),
    "argument_hint": Ignored("No front end shows it."),
    "handoffs": Ignored("A role hands its result to its parent only.", severity="warning"),
    "skills_config": Ignored("Only names of skills are taken.", "Name them under [skills] of the project.", "warning"),
    "provider_tools": Ignored("Tools that run at the provider are not used.", severity="warning"),
    "nickname_candidates": Ignored("A child's short name is chosen at its spawn."),
    "display_name": Ignored("A child's short name is chosen at its spawn."),
    "approval_policy": Ignored("The session's approval mode holds.", severity="warning"),
    "model_reasoning_summary": Ignored("Summaries of thinking are the provider's default."),
    "model_verbosity": Ignored("It is the provider's default."),
    "output": Ignored("It is no JSON schema.", "Write a JSON schema under 'output_schema'.", "warning"),
    "metadata": _NOTHING,
    "version": _NOTHING,
    "author": _NOTHING,
    "license": _NOTHING,
    "tags": _NOTHING,
    "category": _NOTHING,
    "icon": _NOTHING,
    "emoji": _NOTHING,
}
"""Keys of other programs that are known and not acted on, under this project's spelling."""
