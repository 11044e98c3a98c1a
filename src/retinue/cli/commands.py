"""The command line: names, arguments and help of every command; each hands over to the part that does it."""

import importlib
import importlib.metadata
from collections.abc import Callable
from typing import Annotated, Any, Final, Literal

from cyclopts import App, Parameter

from retinue.cli.options import AsJson, DemoOptions, Paging, RunOptions, SessionOptions, Where

_PARTS: Final = {
    "run": "retinue.cli.running",
    "demo": "retinue.cli.running",
    "chat": "retinue.cli.chatting",
    "sessions_list": "retinue.cli.lists",
    "sessions_show": "retinue.cli.lists",
    "runs_list": "retinue.cli.lists",
    "runs_show": "retinue.cli.lists",
    "tree": "retinue.cli.lists",
    "runs_output": "retinue.cli.changes",
    "runs_wait": "retinue.cli.changes",
    "runs_cancel": "retinue.cli.changes",
    "runs_interrupt": "retinue.cli.changes",
    "runs_message": "retinue.cli.messages",
    "sessions_delete": "retinue.cli.changes",
    "switch": "retinue.cli.changes",
    "trust": "retinue.cli.trust",
    "agents_list": "retinue.cli.agents",
    "agents_show": "retinue.cli.agents",
    "agents_check": "retinue.cli.agents",
    "policies": "retinue.cli.about",
    "models": "retinue.cli.about",
    "config_show": "retinue.cli.about",
    "doctor": "retinue.cli.doctor",
}
"""Command → module, imported when the command runs: none needs the libraries of the others."""


def _part(name: str) -> Callable[..., int]:
    return getattr(importlib.import_module(_PARTS[name]), name)


def _version() -> str:
    return f"retinue {importlib.metadata.version('retinue')}"


app: Any = App(
    name="retinue",
    version=_version,
    help="A sub-agent runtime: an agent delegates to others, with limits, honest endings and a durable record.",
)
sessions: Any = App(name="sessions", help="The sessions on record.")
runs: Any = App(name="runs", help="The runs of child sessions.")
agents: Any = App(name="agents", help="The roles in files, and what is understood of them.")
config: Any = App(name="config", help="The settings.")

Folder = Annotated[str | None, Parameter(help="The workspace; else the working directory.")]
RunId = Annotated[str, Parameter(name="ID", help="A run (r_…), or a session (s_…) for its latest run.")]


@app.command
def run(
    prompt: Annotated[str | None, Parameter(help="What to do; without it, or with -, stdin is read.")] = None,
    /,
    *,
    options: RunOptions | None = None,
) -> int:
    """Run a prompt in a new session, or in the one that --session or --continue names.

    Prints the final text; on a terminal the live tree while it works. It stays until no child of the session works any
    more and no letter waits that would start a turn. Exit, by the prompt's own turn: 0 completed, 1 failed, 2 usage,
    3 cancelled or interrupted, 4 over budget, 5 store; 130 where SIGINT came before a turn could take it or when it was
    over. SIGINT (Ctrl-C) stops the turn and its children, or the children that go on after it; a second one leaves
    after the commit in hand; SIGTERM and SIGHUP end everything in order within 5 seconds.
    """
    return _part("run")(prompt, options or RunOptions())


@app.command
def chat(*, options: SessionOptions | None = None) -> int:
    """Talk with a session over several turns, a new one or the one that --session or --continue names.

    A line opens a turn, or goes into the one that is open. Lines that do not come from a terminal wait until nothing of
    the tree works any more; the end of the input ends the chat then. /help lists the commands in it. SIGINT (Ctrl-C)
    stops the open turn, twice it ends the chat.
    """
    return _part("chat")(options or SessionOptions())


@app.command
def demo(
    folder: Annotated[str, Parameter(name="DIR", help="The folder to report on.")],
    /,
    *,
    options: DemoOptions | None = None,
) -> int:
    """Let the offline model report on a folder: it needs no key and really delegates."""
    return _part("demo")(folder, options or DemoOptions())


@sessions.command(name="list")
def sessions_list(*, options: Paging | None = None) -> int:
    """List the root sessions, newest first."""
    return _part("sessions_list")(options or Paging())


@sessions.command(name="show")
def sessions_show(
    session_id: Annotated[str, Parameter(name="ID", help="A session (s_…), root or child.")],
    /,
    *,
    options: Where | None = None,
) -> int:
    """Show one session: header, turns, usage, and the runs below it."""
    return _part("sessions_show")(session_id, options or Where())


@sessions.command(name="delete")
def sessions_delete(
    session_id: Annotated[str, Parameter(name="ID", help="A session (s_…), root or child.")],
    /,
    *,
    yes: Annotated[bool, Parameter(negative="", help="Do not ask at a terminal.")] = False,
    options: Where | None = None,
) -> int:
    """Delete a session and everything below it for good, what works there stopped before."""
    return _part("sessions_delete")(session_id, options or Where(), yes=yes)


@runs.command(name="list")
def runs_list(
    *,
    session: Annotated[str | None, Parameter(help="Only the runs below this session.")] = None,
    open: Annotated[bool, Parameter(negative="", help="Only those queued or running.")] = False,
    options: Paging | None = None,
) -> int:
    """List runs in the order they were created."""
    return _part("runs_list")(session, options or Paging(), open_only=open)


@runs.command(name="show")
def runs_show(run_id: RunId, /, *, options: Where | None = None) -> int:
    """Show one run."""
    return _part("runs_show")(run_id, options or Where())


@runs.command(name="output")
def runs_output(
    run_id: Annotated[
        str, Parameter(name="ID", help="A run (r_…), or a session (s_…) for its latest run; a root's latest turn.")
    ],
    /,
    *,
    offset: Annotated[int, Parameter(help="Characters to leave out at the beginning.")] = 0,
    limit: Annotated[int, Parameter(help="Characters to print at most, 1 to 200000.")] = 24_000,
    options: Where | None = None,
) -> int:
    """Print a run's output, or what it has said so far; never its history."""
    return _part("runs_output")(run_id, (offset, limit), options or Where())


@runs.command(name="wait")
def runs_wait(
    ids: Annotated[tuple[str, ...], Parameter(name="ID", help="Runs (r_…), or sessions (s_…) for their latest run.")],
    /,
    *,
    mode: Annotated[Literal["all", "any"], Parameter(help="Whether to wait for all of them or for the first.")] = "all",
    timeout: Annotated[float, Parameter(help="Seconds to wait at most, up to 3600.")] = 30.0,
    options: Where | None = None,
) -> int:
    """Wait for runs to end; the time running out is no error and stops nobody."""
    return _part("runs_wait")(ids, mode, timeout, options or Where())


@runs.command(name="cancel")
def runs_cancel(run_id: RunId, /, *, options: Where | None = None) -> int:
    """End a run and everything below it, and print it once it has ended."""
    return _part("runs_cancel")(run_id, options or Where())


@runs.command(name="interrupt")
def runs_interrupt(run_id: RunId, /, *, options: Where | None = None) -> int:
    """Stop a child's current run only; messages that wait for it stay parked until the next one."""
    return _part("runs_interrupt")(run_id, options or Where())


@runs.command(name="message")
def runs_message(
    run_id: RunId,
    text: Annotated[str, Parameter(name="TEXT", help="What to say to the child, in its parent's name.")],
    /,
    *,
    options: Where | None = None,
) -> int:
    """Say something to a child: its next run begins, or waits behind the one at work.

    Where no process owns the record this one does, until nothing of the tree works any more.
    """
    return _part("runs_message")(run_id, text, options or Where())


@app.command
def switch(
    state: Annotated[
        Literal["on", "off"] | None, Parameter(name="STATE", help="on or off; without it the switch is shown.")
    ] = None,
    /,
    *,
    options: Where | None = None,
) -> int:
    """Show or set the master switch: off, no session delegates, and every child that works is cancelled."""
    return _part("switch")(state, options or Where())


@app.command
def tree(
    session_id: Annotated[str, Parameter(name="ID", help="A session (s_…), root or child.")],
    /,
    *,
    options: Where | None = None,
) -> int:
    """Show a session and all its descendants: status, and why they wait."""
    return _part("tree")(session_id, options or Where())


@app.command
def trust(
    paths: Annotated[
        tuple[str, ...], Parameter(name="PATH", help="Files; by default those of the project here that need it.")
    ] = (),
    /,
    *,
    show: Annotated[bool, Parameter(name="--list", negative="", help="List what is trusted.")] = False,
    revoke: Annotated[bool, Parameter(negative="", help="Trust these files no longer.")] = False,
    yes: Annotated[bool, Parameter(negative="", help="Do not ask at a terminal.")] = False,
    json: Annotated[bool, Parameter(negative="", help="Print one JSON document.")] = False,
) -> int:
    """Trust a project's files that start commands (.mcp.json), as they are now; a changed file asks again."""
    return _part("trust")(paths, show=show, revoke=revoke, yes=yes, as_json=json)


@agents.command(name="list")
def agents_list(
    *,
    all: Annotated[bool, Parameter(negative="", help="Also hidden, disabled, replaced and broken ones.")] = False,
    cwd: Folder = None,
    json: AsJson = False,
) -> int:
    """List the roles that hold here, in the order in which they are found."""
    return _part("agents_list")(cwd=cwd, everything=all, as_json=json)


@agents.command(name="show")
def agents_show(
    ref: Annotated[str, Parameter(name="REF", help="A role, as explorer or project:NAME.")],
    /,
    *,
    cwd: Folder = None,
    json: AsJson = False,
) -> int:
    """Print a role in Retinue's own format, whatever it was written in; where it comes from goes to stderr."""
    return _part("agents_show")(ref, cwd=cwd, as_json=json)


@agents.command(name="check")
def agents_check(
    path: Annotated[str | None, Parameter(name="PATH", help="A file or folder of roles; by default all.")] = None,
    /,
    *,
    keys: Annotated[bool, Parameter(negative="", help="Say of each key what it means here.")] = False,
    cwd: Folder = None,
    json: AsJson = False,
) -> int:
    """Report on each file of roles: its dialect, whether it is usable, what was not understood and what to do.

    Exit: 0 when nothing is an error, 1 otherwise.
    """
    return _part("agents_check")(path, cwd=cwd, keys=keys, as_json=json)


@app.command
def policies(*, json: Annotated[bool, Parameter(negative="", help="Print one JSON document.")] = False) -> int:
    """Show every switch of the five policies, and which values this version acts on."""
    return _part("policies")(as_json=json)


@app.command
def models(*, options: Where | None = None) -> int:
    """Show the connections and whether their keys are set; never a key."""
    return _part("models")(options or Where())


@config.command(name="show")
def config_show(*, options: Where | None = None) -> int:
    """Show the settings that hold here and where each comes from; never a key."""
    return _part("config_show")(options or Where())


@app.command
def doctor(*, options: Where | None = None) -> int:
    """Check what Retinue needs, and say what to do about what is missing."""
    return _part("doctor")(options or Where())


for _group in (sessions, runs, agents, config):
    app.command(_group)
