"""`run` and `demo`: one prompt of a root session to its exit code; it decides nothing about the turn."""

import asyncio
import shlex
import sys
from typing import Final

import msgspec

from retinue.app import Runtime, ThreadExecutor, run_async
from retinue.cli import printing
from retinue.cli.leading import INTERRUPTED, Leading, leave_nothing_behind
from retinue.cli.opening import Wanted, open_session, require_utf8, wanted, workspace
from retinue.cli.options import DemoOptions, RunOptions
from retinue.cli.owning import owning
from retinue.cli.possible import require_prompt
from retinue.cli.showing import Show, show_for, unstored
from retinue.cli.stops import Stops
from retinue.core.errors import RetinueError
from retinue.runtime.bus import Subscription
from retinue.runtime.handles import Turn, TurnResult
from retinue.settings import Settings, read_settings

DEMO_PROMPT: Final = (
    "Report on this folder: what lies in it, part by part, with evidence from the files. "
    "Let explorers look at the parts, and put what they found into one report."
)
PROMPT_MAX_BYTES: Final = 8_000_000

_FAILED: Final = 1
_BUDGET: Final = 4
_STORE: Final = 5


class Job(msgspec.Struct, kw_only=True):
    """What one command wants: which session, which words, and whether it stays until the tree rests."""

    wanted: Wanted
    prompt: str
    no_wait: bool = False


def run(prompt: str | None, options: RunOptions) -> int:
    """Run a prompt and return the exit code of its turn."""
    _require_json_for_deltas(json=options.json, deltas=options.deltas)
    asked = wanted(options, deltas=options.deltas)
    return run_async(_do(Job(wanted=asked, prompt=_prompt(prompt), no_wait=options.no_wait)))


def demo(folder: str, options: DemoOptions) -> int:
    """Report on a folder with the offline model and return the exit code of its turn."""
    _require_json_for_deltas(json=options.json, deltas=options.deltas)
    place = workspace(folder)
    asked = Wanted(
        settings=read_settings(options.data_dir, start=place, model="offline"),
        arguments={"cwd": place, "model": "offline"},
        json=options.json,
        deltas=options.deltas,
    )
    return run_async(_do(Job(wanted=asked, prompt=DEMO_PROMPT)))


def _require_json_for_deltas(*, json: bool, deltas: bool) -> None:
    if deltas and not json:
        raise RetinueError("invalid", "--deltas adds lines to the JSON stream, and there is none.", "Add --json.")


def _prompt(argument: str | None) -> str:
    """Return the prompt: the argument, or what stdin holds."""
    text = _from_stdin() if argument is None else argument
    require_utf8(text, "The prompt")
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


async def _do(job: Job) -> int:
    stops = Stops()
    writer = ThreadExecutor()
    asked = job.wanted
    try:
        with stops.listening():
            async with owning(asked.runtime, asked.settings.data_dir, stops) as runtime:
                session, feed = await open_session(runtime, asked)
                row = await runtime.session_row(session.session_id)
                stops.require_none()  # from here to `lead`, which takes the signals over, nothing waits
                show = show_for(row.header, session.session_id, writer, as_json=asked.json)
                prompted = _Prompted(runtime, feed, show, session.prompt(job.prompt))
                result = await prompted.lead(
                    stops, prompted.result(no_wait=job.no_wait), prompted.show, one_turn=job.no_wait
                )
                prompted.say_unwritten(asked.settings)
        code = _code(result)
        leave_nothing_behind(code)
        return code
    finally:
        writer.close()


class _Prompted(Leading):
    """A prompt under way: its own turn, and the tree until it rests."""

    def __init__(self, runtime: Runtime, feed: Subscription, show: Show, turn: Turn) -> None:
        super().__init__(runtime, turn.session_id, feed, show)
        self._turn = turn
        self._own: asyncio.Future[TurnResult] = turn.result
        self._shown_by = show

    async def result(self, *, no_wait: bool) -> TurnResult:
        """Return how the prompt's own turn ended, once the tree rests or at once."""
        try:
            result = await asyncio.shield(self._own)
            if result.stored and not no_wait:
                await self.rests()
        except RetinueError as error:
            if error.code == "store_failed":
                return unstored(error.detail)
            raise
        return result

    async def show(self, result: TurnResult) -> None:
        """Show how it ended."""
        await self._shown_by.result(result, self.answer)

    async def stop_tree(self) -> None:
        """Stop the prompt's own turn, also one that is only being opened; after it whatever still works."""
        if self._own.done() or not await self._turn.interrupt():
            await super().stop_tree()

    def say_unwritten(self, settings: Settings) -> None:
        """Say where the answer is when stdout did not take it."""
        if self.unwritten is None:
            return
        words = ["retinue", "runs", "output", self.root_id]
        if settings.sources["data_dir"] == "--data-dir":
            words += ["--data-dir", str(settings.data_dir)]
        result = self._own.result() if self._own.done() and self._own.exception() is None else None
        stored = result is not None and result.stored
        printing.unwritten(self.unwritten, f"The answer is stored; {shlex.join(words)} prints it." if stored else "")


def _code(result: TurnResult) -> int:
    if not result.stored:
        return _STORE
    if result.status == "completed":
        return 0
    if result.reason == "budget":
        return _BUDGET
    return _FAILED if result.status == "failed" else INTERRUPTED
