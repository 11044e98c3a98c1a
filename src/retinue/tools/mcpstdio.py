"""An MCP server as a process of its own: its pipes as message streams, bounded; it knows no protocol beyond one line.

A line is one message. Everything that answers nothing (notifications, text that is no JSON) is dropped and counted, so
that a server that floods its output is ended and not listened to for ever.
"""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import msgspec

LINE_MAX_BYTES: Final = 40 * 1024 * 1024
"""Bytes of one message: a result of 16 MiB fits, also one that says everything twice, as text and as structure."""
NOISE_MAX: Final = 100_000
"""Messages in a row that answer nothing."""
NOISE_MAX_BYTES: Final = 64 * 1024 * 1024
QUESTIONS_MAX: Final = 1_000
"""Questions of a server in one connection: each is refused, and a refusal must be read by it."""
YIELD_EVERY: Final = 64
STDERR_TAIL_BYTES: Final = 4096
END_GRACE_S: Final = 1.0
"""Seconds that a server has to end once its input is closed, and once more after it was told to."""


class Gone(Exception):  # noqa: N818 - the server is gone; it is no error of ours
    """The server's process ended or was ended; the message says why."""


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What to start: never through a shell."""

    command: str
    args: Sequence[str]
    env: Mapping[str, str]
    cwd: str


class _Message(msgspec.Struct):
    """What of a line is looked at before it is passed on."""

    id: int | str | None = None
    method: str | None = None


class _Flood:
    """Counts what a server sends that answers nothing."""

    def __init__(self) -> None:
        self.messages = self.bytes = self.questions = 0

    def add(self, line: bytes) -> str | None:
        """Count a line that answers nothing; return why that is too much."""
        self.messages += 1
        self.bytes += len(line)
        if self.messages > NOISE_MAX or self.bytes > NOISE_MAX_BYTES:
            return f"it sent {self.messages} messages, {self.bytes} bytes, that answer nothing"
        return None

    def ask(self) -> str | None:
        """Count a question; return why that is too much."""
        self.questions += 1
        return f"it asked {self.questions} questions" if self.questions > QUESTIONS_MAX else None

    def answer(self) -> None:
        """Forget what came before an answer."""
        self.messages = self.bytes = 0


class Process:
    """A started server."""

    def __init__(self, pause: Callable[[float], Awaitable[None]]) -> None:
        """`pause(0)` lets others run."""
        self.why_gone = ""
        self._pause = pause
        self._tail = b""
        self._asked: set[str] = set()

    @property
    def tail(self) -> str:
        """The last that it wrote to stderr."""
        return self._tail.decode(errors="replace").strip()

    @asynccontextmanager
    async def streams(self, command: Command, anyio: Any, parse: Callable[[bytes], Any]) -> AsyncGenerator[Any]:
        """Start it and yield the two streams of messages; on the way out its process group is ended. Raises `OSError`.

        `anyio` is the library's module; `parse` makes a message of a line.
        """
        process = await asyncio.create_subprocess_exec(
            command.command,
            *command.args,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(command.env),
            cwd=command.cwd,
            limit=LINE_MAX_BYTES,
            start_new_session=True,
        )
        try:
            to_us, ours = anyio.create_memory_object_stream(0)
            theirs, to_them = anyio.create_memory_object_stream(0)
            async with anyio.create_task_group() as group:
                group.start_soon(self._read, process, to_us, parse)
                group.start_soon(self._write, process, to_them, to_us)
                group.start_soon(self._listen, process)
                try:
                    yield ours, theirs
                finally:
                    group.cancel_scope.cancel()
        finally:
            await _end(process)

    async def _read(self, process: Any, to_us: Any, parse: Callable[[bytes], Any]) -> None:
        async with to_us:
            flood = _Flood()
            lines = 0
            while not self.why_gone:
                try:
                    line = await process.stdout.readline()
                except ValueError:
                    self.why_gone = f"it sent a message of more than {LINE_MAX_BYTES} bytes"
                    return
                if not line:
                    self.why_gone = "it ended"
                    return
                lines += 1
                if lines % YIELD_EVERY == 0:
                    await self._pause(0)
                wanted, too_much = self._look_at(line, flood)
                self.why_gone = too_much or ""
                message = parse(line) if wanted and not too_much else None
                if message is not None:
                    await to_us.send(message)

    def _look_at(self, line: bytes, flood: _Flood) -> tuple[bool, str | None]:
        """Return whether a line is to be passed on, and why the connection must end."""
        try:
            message = msgspec.json.decode(line, type=_Message)
        except (msgspec.DecodeError, RecursionError):
            # Text between messages is passed over; an answer that cannot be read would be waited for in vain.
            if line.lstrip().startswith(b"{") and b'"id"' in line:
                return False, "it sent an answer that cannot be read"
            return False, flood.add(line)
        if message.id is None:
            return False, flood.add(line)
        if message.method is not None:
            return True, flood.ask()
        if str(message.id) not in self._asked:
            return False, flood.add(line)
        self._asked.discard(str(message.id))
        flood.answer()
        return True, None

    async def _write(self, process: Any, to_them: Any, to_us: Any) -> None:
        try:
            async for item in to_them:
                if getattr(item.message, "method", None) is not None and hasattr(item.message, "id"):
                    self._asked.add(str(item.message.id))
                body = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(body.encode() + b"\n")
                await process.stdin.drain()
        except OSError:
            self.why_gone = self.why_gone or "it reads nothing any more"
            await to_us.aclose()

    async def _listen(self, process: Any) -> None:
        while data := await process.stderr.read(65_536):
            self._tail = (self._tail + data)[-STDERR_TAIL_BYTES:]


async def _end(process: Any) -> None:
    """End a process with its group: its input is closed, then it is told to end, then it is killed."""
    with suppress(OSError):
        process.stdin.close()
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                await asyncio.wait_for(process.wait(), END_GRACE_S)
                break
            except TimeoutError:
                _signal(process, number)
    finally:
        # The group outlives its first process where that left children behind.
        _signal(process, signal.SIGKILL)
        # asyncio closes the pipes only once nobody holds their other ends, which may be after the loop is gone.
        process._transport.close()  # noqa: SLF001 - there is no public way to close them
    with suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), END_GRACE_S)


def _signal(process: Any, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
