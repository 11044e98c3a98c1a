"""`run` and `demo`: one turn of a root session from its prompt to its exit code; it decides nothing about the turn."""

import asyncio
import os
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from retinue.app import Runtime, ThreadExecutor, run_async
from retinue.cli import printing
from retinue.cli.options import DemoOptions, RunOptions
from retinue.cli.owning import owning
from retinue.cli.possible import require_new_session, require_prompt, require_root
from retinue.cli.reading import newest_root
from retinue.cli.showing import Show, show_for, unstored
from retinue.cli.stops import Stops
from retinue.cli.streams import UnwrittenError
from retinue.core.errors import RetinueError
from retinue.core.events import Event
from retinue.runtime.bus import Subscription
from retinue.runtime.handles import Session, Turn, TurnResult
from retinue.settings import Settings, read_settings

DEMO_PROMPT: Final = (
    "Report on this folder: what lies in it, part by part, with evidence from the files. "
    "Let explorers look at the parts, and put what they found into one report."
)
PROMPT_MAX_BYTES: Final = 8_000_000
COMMAND_MAX_CHARS: Final = 200
SHUTDOWN_MAX_S: Final = 4.5
"""Seconds after SIGTERM at which the process ends, whatever is still open (SHAPES: within 5 s)."""
COMMIT_MAX_S: Final = 2.0
"""Seconds that a second SIGINT waits for the commit in hand."""
LEFTOVER_MAX_S: Final = 0.4
"""Seconds that bodies which were given up have once all else is over."""
OUTPUT_MAX_S: Final = 1.0
"""Seconds that a reader has to take the rest of the output once the process was told to end."""

_OUTPUT: Final = (BrokenPipeError, UnwrittenError)
"""What showing may raise without the turn being the worse for it."""
_FAILED: Final = 1
_INTERRUPTED: Final = 3
_BUDGET: Final = 4
_STORE: Final = 5


class Job(msgspec.Struct, kw_only=True):
    """What one command wants: where, which session, which words, how to show it."""

    settings: Settings
    prompt: str
    session: dict[str, Any]
    session_id: str | None = None
    tools: tuple[str, ...] = ()
    json: bool = False
    deltas: bool = False


def run(prompt: str | None, options: RunOptions) -> int:
    """Run a prompt and return the exit code of its turn."""
    _require_sane(options)
    workspace = _workspace(options.cwd or ".")
    settings = read_settings(options.data_dir, start=workspace, model=options.model)
    session_id = newest_root(settings, workspace) if options.continue_ else options.session
    session = _session_arguments(options, workspace)
    if session_id is None:
        require_new_session(settings, session)
    else:
        require_root(settings, session_id)
    job = Job(
        settings=settings,
        prompt=_prompt(prompt),
        session=session,
        session_id=session_id,
        tools=options.tools,
        json=options.json,
        deltas=options.deltas,
    )
    return run_async(_do(job))


def demo(folder: str, options: DemoOptions) -> int:
    """Report on a folder with the offline model and return the exit code of its turn."""
    _require_json_for_deltas(json=options.json, deltas=options.deltas)
    workspace = _workspace(folder)
    job = Job(
        settings=read_settings(options.data_dir, start=workspace, model="offline"),
        prompt=DEMO_PROMPT,
        session={"cwd": workspace, "model": "offline"},
        json=options.json,
        deltas=options.deltas,
    )
    return run_async(_do(job))


def _require_sane(options: RunOptions) -> None:
    _require_json_for_deltas(json=options.json, deltas=options.deltas)
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


def _require_json_for_deltas(*, json: bool, deltas: bool) -> None:
    if deltas and not json:
        raise RetinueError("invalid", "--deltas adds lines to the JSON stream, and there is none.", "Add --json.")


def _workspace(folder: str) -> str:
    """Return the folder's real path; refuse what is no folder before anything is made."""
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise RetinueError("invalid", f"{folder!r} is not a folder.", "Name a folder that exists.")
    real = os.path.realpath(path)
    _require_utf8(real, "The folder's name")
    return real


def _require_utf8(text: str, what: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RetinueError("invalid", f"{what} is not UTF-8.", "Give it as UTF-8.") from error


def _prompt(argument: str | None) -> str:
    """Return the prompt: the argument, or what stdin holds."""
    text = _from_stdin() if argument is None else argument
    _require_utf8(text, "The prompt")
    if not text.strip():
        raise RetinueError("invalid", "The prompt is empty.", "Say what to do, as an argument or on stdin.")
    require_prompt(text)
    return text


def _from_stdin() -> str:
    if sys.stdin is None or sys.stdin.isatty():
        raise RetinueError("invalid", "There is no prompt.", "Give it as an argument or on stdin.")
    data = sys.stdin.buffer.read(PROMPT_MAX_BYTES + 1)
    if len(data) > PROMPT_MAX_BYTES:
        raise RetinueError("too_large", f"The prompt has more than {PROMPT_MAX_BYTES} bytes.", "Put it into a file.")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RetinueError("invalid", "The prompt on stdin is not UTF-8.", "Give it as UTF-8.") from error


def _session_arguments(options: RunOptions, workspace: str) -> dict[str, Any]:
    """Return what `create_session` takes; of a session that is continued only the workspace, to be compared."""
    if options.session is not None or options.continue_:
        return {"cwd": workspace} if options.cwd is not None else {}
    asked: dict[str, Any] = {
        "model": options.model,
        "agent": options.agent,
        "policy": options.policy,
        "profile": options.profile,
        "approval": options.approval,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    return {"cwd": workspace, "set": _switches(options.set), **given}


def _switches(pairs: Sequence[str]) -> dict[str, str]:
    switches: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise RetinueError("invalid", f"--set {pair!r} is no key=value.", "As in --set caps.running.root=2.")
        switches[key.strip()] = value.strip()
    return switches


def _command() -> str:
    """Return the command line as other processes are told it: recognisable, not whole."""
    words = ["retinue", *sys.argv[1:]]
    text = " ".join(shlex.quote(word) for word in words).encode("utf-8", "replace").decode()
    return text if len(text) <= COMMAND_MAX_CHARS else text[: COMMAND_MAX_CHARS - 1] + "…"


async def _do(job: Job) -> int:
    stops = Stops()
    writer = ThreadExecutor()
    try:
        with stops.listening():
            made = partial(Runtime, job.settings, job.tools, command=_command())
            async with owning(made, job.settings.data_dir, stops.require_none) as runtime:
                session, feed = await _open(runtime, job)
                row = await runtime.session_row(session.session_id)
                stops.require_none()  # from here to `lead`, which takes the signals over, nothing waits
                show = show_for(row.header, session.session_id, writer, as_json=job.json)
                turn = _Turn(runtime, session.prompt(job.prompt), feed, show)
                code = await turn.lead(stops)
                turn.say_unwritten(job.settings)
        # A body that ignores its cancellation would keep the loop from ending; everything is on record by now.
        asyncio.get_running_loop().call_later(LEFTOVER_MAX_S, os._exit, code)
        return code
    finally:
        writer.close()


async def _open(runtime: Runtime, job: Job) -> tuple[Session, Subscription]:
    """Return the session and a reader that misses none of its events from here on."""
    kernel = runtime.kernel
    after = await kernel.record.position()
    if job.session_id is None:
        feed = kernel.bus.subscribe(None, deltas=job.deltas, after=after)
        return await runtime.create_session(**job.session), feed
    row = await runtime.session_row(job.session_id)
    if row.header.parent_id is not None:
        raise RetinueError("invalid", f"{job.session_id} is a child; its parent prompts it.", "Prompt its root.")
    if job.session.get("cwd", row.header.cwd) != row.header.cwd:
        detail = f"--cwd differs from the session's workspace {row.header.cwd}."
        raise RetinueError("invalid", detail, "Leave it out, or open a new session.")
    kernel.parts.models.find(row.header.model)
    feed = kernel.bus.subscribe(row.session_id, deltas=job.deltas, after=after)
    return await runtime.session(job.session_id), feed


class _Turn:
    """A turn under way, what shows it, and what the signals mean for it."""

    def __init__(self, runtime: Runtime, turn: Turn, feed: Subscription, show: Show) -> None:
        self._kernel = runtime.kernel
        self._turn = turn
        self._feed = feed
        self._show = show
        self._result: asyncio.Future[TurnResult] = turn.result
        self._enough: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._unwritten: UnwrittenError | None = None

    async def lead(self, stops: Stops) -> int:
        """Wait for the turn and for its readers, and return the exit code."""
        stops.on_interrupt, stops.on_hurry, stops.on_shutdown = self._interrupt, self._hurry, self._shut_down
        shown = self._begin(self._show_all())
        shown.add_done_callback(self._shown)
        await asyncio.wait((self._result, self._enough), return_when=asyncio.FIRST_COMPLETED)
        self._feed.close()
        if not self._result.done():
            await self._leave_now()
        await asyncio.wait((shown, self._enough), return_when=asyncio.FIRST_COMPLETED)
        self._show.stop()
        if shown.done() and (error := shown.exception()) is not None and not isinstance(error, _OUTPUT):
            raise error
        return _code(await self._ending())

    def say_unwritten(self, settings: Settings) -> None:
        """Say where the answer is when stdout did not take it."""
        if self._unwritten is None:
            return
        words = ["retinue", "runs", "output", self._turn.session_id]
        if settings.sources["data_dir"] == "--data-dir":
            words += ["--data-dir", str(settings.data_dir)]
        result = self._result.result() if self._result.done() and self._result.exception() is None else None
        stored = result is not None and result.stored
        printing.unwritten(self._unwritten, f"The answer is stored; {shlex.join(words)} prints it." if stored else "")

    async def _show_all(self) -> None:
        await self._show.begin()
        async for item in self._feed:
            if not isinstance(item, Event) or item.root_id == self._turn.session_id:
                await self._show.item(item)
        await self._show.result(await self._ending())

    async def _ending(self) -> TurnResult:
        try:
            return await asyncio.shield(self._result)
        except RetinueError as error:
            if error.code == "store_failed":
                return unstored(error.detail)
            raise

    def _begin(self, work: Any) -> "asyncio.Task[Any]":
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _shown(self, shown: "asyncio.Task[None]") -> None:
        error = None if shown.cancelled() else shown.exception()
        if isinstance(error, UnwrittenError):
            # The turn goes on: the record takes what the output does not.
            self._unwritten = error
            self._feed.close()
        elif not self._result.done():
            # Nobody reads any more: that ends the process like a SIGTERM, only nobody is in a hurry.
            self._begin(self._kernel.supervisor.shutdown())

    def _interrupt(self) -> None:
        if self._result.done():
            self._stop_waiting()
        else:
            self._begin(self._turn.interrupt())

    def _hurry(self) -> None:
        self._begin(self._after_the_commit())

    async def _after_the_commit(self) -> None:
        flushed = self._begin(self._kernel.journal.flushed())
        await asyncio.wait((flushed,), timeout=COMMIT_MAX_S)
        self._stop_waiting()

    def _shut_down(self) -> None:
        loop = asyncio.get_running_loop()
        if self._result.done():
            loop.call_later(OUTPUT_MAX_S, self._stop_waiting)
            return
        self._begin(self._kernel.supervisor.shutdown())
        loop.call_later(SHUTDOWN_MAX_S, self._stop_waiting)

    def _stop_waiting(self) -> None:
        if not self._enough.done():
            self._enough.set_result(None)

    async def _leave_now(self) -> None:
        """End the process with the turn open: every commit is whole, and the next start closes what is left."""
        giving_back = asyncio.get_running_loop().run_in_executor(None, self._show.stop)
        await asyncio.wait((giving_back,), timeout=0.2)
        os._exit(_INTERRUPTED)


def _code(result: TurnResult) -> int:
    if not result.stored:
        return _STORE
    if result.status == "completed":
        return 0
    if result.reason == "budget":
        return _BUDGET
    return _FAILED if result.status == "failed" else _INTERRUPTED
