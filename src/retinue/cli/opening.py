"""From flags to a session with a reader of its events: what `run`, `demo` and `chat` begin with; it starts no turn."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from retinue.app import Runtime
from retinue.cli.options import SessionOptions
from retinue.cli.possible import require_new_session, require_root
from retinue.cli.reading import newest_root
from retinue.core.errors import RetinueError
from retinue.runtime.bus import Subscription
from retinue.runtime.handles import Session
from retinue.settings import Settings, read_settings

COMMAND_MAX_CHARS: Final = 200


class Wanted(msgspec.Struct, kw_only=True):
    """Where the record lies and which session is wanted: `session_id`, or a new one opened with `arguments`."""

    settings: Settings
    arguments: dict[str, Any]
    session_id: str | None = None
    tools: tuple[str, ...] = ()
    json: bool = False
    deltas: bool = False

    def runtime(self) -> Runtime:
        """Return a runtime that is not open yet."""
        return Runtime(self.settings, self.tools, command=command_line())


def wanted(options: SessionOptions, *, deltas: bool = False) -> Wanted:
    """Return what the flags ask for; refuse what cannot be before anything is made."""
    _require_one_session(options)
    folder = workspace(options.cwd or ".")
    settings = read_settings(options.data_dir, start=folder, model=options.model)
    session_id = newest_root(settings, folder) if options.continue_ else options.session
    arguments = _arguments(options, folder)
    if session_id is None:
        require_new_session(settings, arguments)
    else:
        require_root(settings, session_id)
    return Wanted(
        settings=settings,
        arguments=arguments,
        session_id=session_id,
        tools=options.tools,
        json=options.json,
        deltas=deltas,
    )


def _require_one_session(options: SessionOptions) -> None:
    if options.session is not None and options.continue_:
        raise RetinueError("invalid", "--session and --continue both name the session.", "Leave one of them out.")
    if options.session is None and not options.continue_:
        return
    flag = "--continue" if options.continue_ else "--session"
    fixed = {
        "--model": options.model,
        "--agent": options.agent,
        "--policy": options.policy,
        "--set": options.set,
        "--profile": options.profile,
        "--approval": options.approval,
    }
    given = [flag for flag, value in fixed.items() if value]
    if given:
        detail = f"{' and '.join(given)} cannot be given with {flag}: a session keeps what it was opened with."
        raise RetinueError("invalid", detail, "Leave it out, or open a new session.")


def workspace(folder: str) -> str:
    """Return the folder's real path; refuse what is no folder before anything is made."""
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise RetinueError("invalid", f"{folder!r} is not a folder.", "Name a folder that exists.")
    real = os.path.realpath(path)
    require_utf8(real, "The folder's name")
    return real


def require_utf8(text: str, what: str) -> None:
    """Raise `invalid` for a text of the command line that is no text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RetinueError("invalid", f"{what} is not UTF-8.", "Give it as UTF-8.") from error


def _arguments(options: SessionOptions, folder: str) -> dict[str, Any]:
    """Return what `create_session` takes; of a session that is continued only the workspace, to be compared."""
    if options.session is not None or options.continue_:
        return {"cwd": folder} if options.cwd is not None else {}
    asked: dict[str, Any] = {
        "model": options.model,
        "agent": options.agent,
        "policy": options.policy,
        "profile": options.profile,
        "approval": options.approval,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    return {"cwd": folder, "set": _switches(options.set), **given}


def _switches(pairs: Sequence[str]) -> Mapping[str, str]:
    switches: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise RetinueError("invalid", f"--set {pair!r} is no key=value.", "As in --set caps.running.root=2.")
        switches[key.strip()] = value.strip()
    return switches


def command_line() -> str:
    """Return the command line as other processes are told it: recognisable, not whole."""
    words = ["retinue", *sys.argv[1:]]
    text = " ".join(shlex.quote(word) for word in words).encode("utf-8", "replace").decode()
    return text if len(text) <= COMMAND_MAX_CHARS else text[: COMMAND_MAX_CHARS - 1] + "…"


async def open_session(runtime: Runtime, asked: Wanted) -> tuple[Session, Subscription]:
    """Return the session and a reader that misses none of its events from here on."""
    kernel = runtime.kernel
    after = await kernel.record.position()
    if asked.session_id is None:
        feed = kernel.bus.subscribe(None, deltas=asked.deltas, after=after)
        return await runtime.create_session(**asked.arguments), feed
    row = await runtime.session_row(asked.session_id)
    if row.header.parent_id is not None:
        raise RetinueError("invalid", f"{asked.session_id} is a child; its parent prompts it.", "Prompt its root.")
    if asked.arguments.get("cwd", row.header.cwd) != row.header.cwd:
        detail = f"--cwd differs from the session's workspace {row.header.cwd}."
        raise RetinueError("invalid", detail, "Leave it out, or open a new session.")
    kernel.parts.models.find(row.header.model)
    feed = kernel.bus.subscribe(row.session_id, deltas=asked.deltas, after=after)
    return await runtime.session(asked.session_id), feed
