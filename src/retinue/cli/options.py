"""The flags of the commands with their help texts; it reads no file, no environment and no store."""

from dataclasses import dataclass
from typing import Annotated, Literal

from cyclopts import Parameter

DataDir = Annotated[
    str | None,
    Parameter(help="Where the record lies; else RETINUE_DATA_DIR, else the nearest .retinue/ from here upwards."),
]
AsJson = Annotated[bool, Parameter(negative="", help="Print one JSON document.")]
Limit = Annotated[int, Parameter(help="Rows of one page, 1 to 1000.")]
Cursor = Annotated[str | None, Parameter(help="Where the page begins: 'next' of the page before.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Where:
    """Which record, and how to print."""

    data_dir: DataDir = None
    json: AsJson = False


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Paging(Where):
    """A page of a list."""

    limit: Limit = 100
    cursor: Cursor = None


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SessionOptions(Where):
    """Which session a command opens or continues."""

    model: Annotated[
        str | None,
        Parameter(
            help="openai:NAME, CONNECTION:NAME, scripted:FILE or offline; else the role's, RETINUE_MODEL, config."
        ),
    ] = None
    agent: Annotated[str | None, Parameter(help="The role of the main session, as explorer or project:NAME.")] = None
    cwd: Annotated[str | None, Parameter(help="The workspace; else the working directory.")] = None
    policy: Annotated[str | None, Parameter(help="A named policy; 'retinue policies' lists them.")] = None
    set: Annotated[
        tuple[str, ...],
        Parameter(negative="", help="One switch of the policy as key=value; may be given several times."),
    ] = ()
    profile: Annotated[
        Literal["build", "plan", "ask"] | None,
        Parameter(help="Which tools a session may have at all; build by default."),
    ] = None
    approval: Annotated[
        Literal["manual", "auto_edit", "bypass"] | None,
        Parameter(help="What a person is asked before; manual by default. No tool of this version asks."),
    ] = None
    session: Annotated[str | None, Parameter(help="Continue this root session instead of opening a new one.")] = None
    continue_: Annotated[
        bool,
        Parameter(
            name="--continue",
            negative="",
            help="Continue the newest root session that was opened in the working directory, or in --cwd.",
        ),
    ] = False
    tools: Annotated[
        tuple[str, ...],
        Parameter(negative="", help="Tools of your own as module:object; may be given several times."),
    ] = ()
    json: Annotated[
        bool, Parameter(negative="", help="Print the stored events of the whole tree, one JSON object a line.")
    ] = False


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RunOptions(SessionOptions):
    """How `run` runs a prompt."""

    no_wait: Annotated[
        bool,
        Parameter(
            negative="",
            help="Return at the first end of the root's turn; runs that are open then end interrupted/shutdown. "
            "Where a turn is held open until its children have ended, none is.",
        ),
    ] = False
    deltas: Annotated[
        bool, Parameter(negative="", help="With --json: also the text as it streams, in lines that are not stored.")
    ] = False


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DemoOptions(Where):
    """How `demo` runs."""

    data_dir: Annotated[
        str | None,
        Parameter(help="Where the record lies; else RETINUE_DATA_DIR, else the nearest .retinue/ from DIR upwards."),
    ] = None
    deltas: Annotated[
        bool, Parameter(negative="", help="With --json: also the text as it streams, in lines that are not stored.")
    ] = False
    json: Annotated[
        bool, Parameter(negative="", help="Print the stored events of the whole tree, one JSON object a line.")
    ] = False
