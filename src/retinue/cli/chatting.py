"""`chat`: several turns of one root session, from what is typed to the end of it; it decides nothing about a turn."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from retinue.app import Runtime, ThreadExecutor, run_async
from retinue.cli import printing
from retinue.cli.leading import INTERRUPTED, Leading, leave_nothing_behind
from retinue.cli.opening import Wanted, open_session, wanted
from retinue.cli.options import SessionOptions
from retinue.cli.owning import owning
from retinue.cli.plain import line as one_line
from retinue.cli.plain import tokens
from retinue.cli.possible import require_prompt
from retinue.cli.showing import JsonLines, Lines, unfinished, unstored
from retinue.cli.stops import Stops
from retinue.cli.typed import TypedLines
from retinue.cli.watch import Tree
from retinue.core.errors import RetinueError
from retinue.core.events import Event, MessageAssistant, TurnClosed, TurnOpened
from retinue.core.ids import SessionId
from retinue.core.run import Run
from retinue.ports import Executor, Live
from retinue.runtime.bus import Subscription
from retinue.runtime.handles import Session
from retinue.tools.agents import activation

STDIN: Final = 0
MARK: Final = "> "
TRIES_MAX: Final = 5
"""How often a line is offered to a turn that opens and closes while it is."""
HELP: Final = """A line is said to the main session: it opens a turn, or goes into the one that is open.
  /agents      the children: id, name, status, steps, tokens
  /stop ID     end a child's run and everything below it
  /interrupt   stop the open turn
  /help        this
  /quit        end the chat and whatever still works; the end of the input waits for it
To say a line that begins with / begin it with a space. Ctrl-C is /interrupt, twice ends the chat."""
_HEADS: Final = ("ID", "RUN", "NAME", "STATUS", "ACTIVATION", "STEPS", "TOKENS")
_ANOTHER_TURN: Final = frozenset({"turn_open", "already_ended"})
_OVER: Final = frozenset({"store_failed", "stopping"})
"""Refusals after which no line can be said any more."""
_STORE: Final = 5


def chat(options: SessionOptions) -> int:
    """Talk with a session until the input ends, and return the exit code of the command."""
    return run_async(_do(wanted(options)))


async def _do(asked: Wanted) -> int:
    stops = Stops()
    writer = ThreadExecutor()
    try:
        with stops.listening():
            async with owning(asked.runtime, asked.settings.data_dir, stops) as runtime:
                session, feed = await open_session(runtime, asked)
                row = await runtime.session_row(session.session_id)
                stops.require_none()  # from here to `lead`, which takes the signals over, nothing waits
                tree = Tree(row.header, session.session_id)
                show = JsonTalk(session.session_id, writer) if asked.json else Talk(tree, writer)
                talked = _Chat(runtime, session, feed, show, stops)
                code = await talked.lead(stops, talked.talk(TypedLines(STDIN)), talked.end)
                if talked.unwritten is not None:
                    printing.unwritten(talked.unwritten, f"The answers are stored in {session.session_id}.")
                    code = code or 1
        leave_nothing_behind(code)
        return code
    finally:
        writer.close()


def _is_terminal() -> bool:
    return os.isatty(STDIN)


class _Beside:
    """What is said beside the conversation, on stderr."""

    executor: Executor

    async def say(self, words: str) -> None:
        """Print a line."""
        await self.executor.run(printing.note, words)

    async def refused(self, error: RetinueError) -> None:
        """Print why something was not done, and what to do."""
        await self.executor.run(partial(printing.problem, error, as_json=False))


class Talk(_Beside, Lines):
    """What a person reads: the main session's texts on stdout, everything else as lines on stderr."""

    def __init__(self, tree: Tree, executor: Executor) -> None:
        """Print nothing yet."""
        super().__init__(tree, executor)
        self._root = tree.root.session_id
        self._marked = _is_terminal()
        self._said: str | None = None
        """What was printed last of the open turn."""

    async def begin(self) -> None:
        """Name the session and what helps."""
        await super().begin()
        await self.say("/help lists the commands.")
        await self.mark()

    async def item(self, item: Event | Live) -> None:
        """Print what the main session says when it stops, also while its turn is held open; of children a line each."""
        if not isinstance(item, Event) or item.session_id != self._root:
            await super().item(item)
        elif isinstance(item.fact, TurnOpened):
            self.tree.fold(item)
            if item.fact.cause != "prompt":
                await self.say(f"{one_line(self.tree.root.name, 40)} goes on: something was sent to it.")
        elif isinstance(item.fact, TurnClosed):
            self.tree.fold(item)
            if item.fact.status != "completed" or item.fact.text != self._said:
                await self.executor.run(_ended, item.fact)
            self._said = None
            await self.mark()
        elif isinstance(item.fact, MessageAssistant) and _is_an_answer(item.fact):
            self.tree.fold(item)
            self._said = item.fact.text
            await self.executor.run(printing.text, item.fact.text)
        else:
            await super().item(item)

    async def answer(self, words: str) -> None:
        """Print what a command was asked for."""
        await self.executor.run(printing.text, words)

    async def mark(self) -> None:
        """Show that a line can be typed."""
        if self._marked:
            await self.executor.run(printing.mark, MARK)


class JsonTalk(_Beside, JsonLines):
    """The events on stdout as JSON lines, everything else on stderr."""

    async def answer(self, words: str) -> None:
        """Print what a command was asked for."""
        await self.say(words)

    async def mark(self) -> None:
        """Do nothing: nobody types into JSON."""


def _is_an_answer(fact: MessageAssistant) -> bool:
    """Return whether the model stopped with a text: a person who steered waits for it, whatever else is at work."""
    return fact.complete and not fact.tool_calls and bool(fact.text.strip())


def _ended(fact: TurnClosed) -> None:
    if fact.status == "completed":
        printing.text(fact.text or "")
    else:
        unfinished(fact)


class _Chat(Leading):
    """A conversation under way."""

    def __init__(
        self, runtime: Runtime, session: Session, feed: Subscription, show: Talk | JsonTalk, stops: Stops
    ) -> None:
        super().__init__(runtime, session.session_id, feed, show)
        self._session = session
        self._talk = show
        self._stops = stops
        self._failure: str | None = None
        self._commands: dict[str, Callable[[Sequence[str]], Awaitable[bool]]] = {
            "/agents": self._agents,
            "/stop": self._stop,
            "/interrupt": self._interrupt,
            "/help": self._help,
            "/quit": self._quit,
        }

    async def talk(self, lines: TypedLines) -> int:
        """Take lines until they end and the tree rests, and return the exit code."""
        talking = self.begin(self._listen(lines))
        failing = self.begin(self._store_failure())
        await asyncio.wait((talking, failing, self.down), return_when=asyncio.FIRST_COMPLETED)
        error = talking.exception() if talking.done() else None
        if failing.done():
            self._failure = failing.result()
        elif isinstance(error, RetinueError) and error.code == "store_failed":
            self._failure = error.detail
        elif error is not None and not (isinstance(error, RetinueError) and error.code == "stopping"):
            raise error
        talking.cancel()
        failing.cancel()
        if self._failure is not None:
            return _STORE
        return INTERRUPTED if error is not None or self.down.done() else 0

    async def _store_failure(self) -> str:
        try:
            await self.kernel.mailboxes.until((self.root_id,), lambda: False)
        except RetinueError as error:
            return error.detail
        return ""

    async def end(self, _code: int) -> None:
        """Say that nothing more was stored, where that ended it."""
        if self._failure is not None:
            await self._talk.result(unstored(self._failure), None)

    async def stop_tree(self) -> None:
        """Stop the open turn; where there is none, nothing is stopped: children are stopped by their ids."""
        if not await self.kernel.interrupt(self.root_id):
            await self._talk.say("No turn is open. Ctrl-C once more, or /quit, ends the chat.")

    def hurry(self) -> None:
        """Twice Ctrl-C ends the chat, in order."""
        self.shut_down()

    async def _listen(self, lines: TypedLines) -> None:
        waits = not _is_terminal()
        while (line := await self._next(lines)) is not None:
            if line.startswith("/"):
                if not await self._obeyed(line):
                    return
            elif line.strip():
                if waits:
                    await self.rests()
                await self._refusable(self._say(line.strip()))
        await self.rests()

    async def _next(self, lines: TypedLines) -> str | None:
        """Return the next line, null at the end of the input; a broken one is said and passed over."""
        while True:
            try:
                return await anext(lines, None)
            except RetinueError as error:
                if error.code != "invalid":
                    raise
                await self._talk.refused(error)

    async def _refusable(self, work: Awaitable[bool]) -> bool:
        """Return what the work gives; a refusal is printed and the chat goes on."""
        try:
            return await work
        except RetinueError as error:
            if error.code in _OVER:
                raise
            await self._talk.refused(error)
            return True

    async def _say(self, text: str) -> bool:
        """Open a turn with the text, or put it into the open one; a turn may begin or end meanwhile."""
        require_prompt(text)
        for _ in range(TRIES_MAX):
            try:
                await self.kernel.prompt(self.root_id, text)
            except RetinueError as error:
                if error.code not in _ANOTHER_TURN:
                    raise
            else:
                self._stops.begin_anew()
                return True
            try:
                await self._session.steer(text)
            except RetinueError as error:
                if error.code not in _ANOTHER_TURN:
                    raise
            else:
                await self._talk.say("(said into the open turn)")
                return True
        raise RetinueError("turn_open", "Turns of this session open and close too fast for a word.", "Say it again.")

    async def _obeyed(self, line: str) -> bool:
        """Do what a command says and return whether the chat goes on."""
        name, *words = line.split()
        command = self._commands.get(name)
        if command is None:
            await self._talk.say(f"There is no command {one_line(name, 40)}; /help lists them.")
            return True
        goes_on = await self._refusable(command(words))
        if goes_on and self.root_id not in self.kernel.supervisor.works:
            await self._talk.mark()
        return goes_on

    async def _agents(self, _words: Sequence[str]) -> bool:
        latest: dict[SessionId, Run] = {}
        for run in await self.kernel.scheduler.children(self.root_id, descendants=True):
            latest[run.session_id] = run
        if not latest:
            await self._talk.answer("No agents yet.")
            return True
        state = self.kernel.journal.state
        rows = [_cells(run, activation(state, run)) for run in latest.values()]
        await self._talk.answer("\n".join(printing.aligned(_HEADS, rows)))
        return True

    async def _stop(self, words: Sequence[str]) -> bool:
        if len(words) != 1:
            raise RetinueError("invalid", "/stop takes one id.", "/agents lists them.")
        run_id = await self.kernel.scheduler.resolve(words[0], self.root_id)
        run, note = await self.kernel.scheduler.cancel(run_id)
        await self._talk.answer(f"{run_id}: {note or run.status}")
        return True

    async def _interrupt(self, _words: Sequence[str]) -> bool:
        if not await self.kernel.interrupt(self.root_id):
            await self._talk.say("No turn is open.")
        return True

    async def _help(self, _words: Sequence[str]) -> bool:
        await self._talk.answer(HELP)
        return True

    async def _quit(self, _words: Sequence[str]) -> bool:
        await self.kernel.supervisor.shutdown()  # now, while what it ends is still shown
        return False


def _cells(run: Run, stay: str) -> tuple[object, ...]:
    name = f"{'- ' * (run.depth - 1)}{run.name}"
    status = "parked" if run.is_parked else run.status
    return run.session_id, run.run_id, name, status, stay, run.steps, tokens(run.usage)
