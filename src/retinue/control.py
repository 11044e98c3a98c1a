"""The owner's control socket and its client: one table of methods, one JSON object a line; it decides nothing itself.

Commands in other processes send every change here. The socket lies in the data directory (mode 0700) or, where that
path is too long for the system, in a private temporary folder; the lock file says where.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from retinue.core.errors import RetinueError
from retinue.core.ids import RunId
from retinue.runtime.kernel import Kernel
from retinue.tools.agents import wait_row

LINE_MAX_BYTES: Final = 1_048_576
"""Bytes of one request or answer."""
PATH_MAX_BYTES: Final = 100
"""Bytes of a socket's path that every system takes (Linux 108, macOS 104)."""
WAIT_MAX_S: Final = 3600.0
CONNECT_TIMEOUT_S: Final = 5.0

Method = Callable[[Kernel, Mapping[str, Any]], Awaitable[dict[str, Any]]]


class WaitAsk(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of `runs.wait` (SHAPES, HTTP bodies)."""

    ids: list[str]
    mode: str = "all"
    timeout_s: float = 30.0


async def cancel_run(kernel: Kernel, ask: Mapping[str, Any]) -> dict[str, Any]:
    """End a run; the body is its Run after it has ended, unchanged where it had, and a `note` then."""
    run_id = await kernel.scheduler.resolve(str(ask.get("id", "")), None)
    run, note = await kernel.scheduler.cancel(run_id)
    return {**run.to_dict(), "note": note}


async def wait_runs(kernel: Kernel, ask: Mapping[str, Any]) -> dict[str, Any]:
    """Wait for runs; expiry is no error. The body is that of `wait_agent`."""
    try:
        asked = msgspec.convert(dict(ask), WaitAsk)
    except msgspec.ValidationError as error:
        raise RetinueError("invalid", f"The wait is wrong: {error}.", "Give ids, mode and timeout_s.") from error
    if asked.mode not in ("all", "any"):
        raise RetinueError("invalid", f"There is no wait mode {asked.mode!r}.", "Use all or any.")
    run_ids = [await kernel.scheduler.resolve(name, None) for name in asked.ids]
    seconds = min(max(asked.timeout_s, 0.0), WAIT_MAX_S)
    waited = await kernel.scheduler.wait(run_ids, "any" if asked.mode == "any" else "all", seconds)
    return {"items": [wait_row(run) for run in waited.runs], "timed_out": waited.timed_out}


async def run_output(kernel: Kernel, ask: Mapping[str, Any]) -> dict[str, Any]:
    """Return a slice of a run's current or final output; while it runs that is the text as it streams."""
    run_id: RunId = await kernel.scheduler.resolve(str(ask.get("id", "")), None)
    piece = await kernel.scheduler.output(run_id, int(ask.get("offset", 0)), int(ask.get("limit", 24_000)))
    body: dict[str, Any] = msgspec.to_builtins(piece)
    return body


METHODS: Final[dict[str, Method]] = {
    "runs.cancel": cancel_run,
    "runs.wait": wait_runs,
    "runs.output": run_output,
}


class ControlServer:
    """Listens while its process owns the data directory."""

    def __init__(self, kernel: Kernel, data_dir: Path) -> None:
        """Choose where to listen; `start` must follow."""
        self._kernel = kernel
        self._folder: Path | None = None
        path = data_dir / "control.sock"
        if len(os.fsencode(path)) > PATH_MAX_BYTES:
            self._folder = Path(tempfile.mkdtemp(prefix="retinue-"))
            path = self._folder / "control.sock"
        self.path: Final = path
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[Any], None] = {}

    async def start(self) -> None:
        """Listen; a socket file that a dead owner left is replaced."""
        with suppress(FileNotFoundError):
            self.path.unlink()
        self._server = await asyncio.start_unix_server(self._serve, str(self.path), limit=LINE_MAX_BYTES)
        self.path.chmod(0o600)

    async def stop(self) -> None:
        """Stop listening, end the conversations under way, remove the socket."""
        if self._server is None:
            return
        self._server.close()
        for task in list(self._open):
            task.cancel()
        if self._open:
            await asyncio.wait(list(self._open))
        with suppress(OSError):  # in a folder that may not be written to any more it stays, and means nothing
            self.path.unlink()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._open[task] = None
        try:
            while line := await reader.readline():
                writer.write(await self._answer(line) + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError, asyncio.CancelledError):
            # The client left, sent an endless line, or we are stopping: nothing of the runtime depends on it.
            pass
        finally:
            writer.close()
            if task is not None:
                self._open.pop(task, None)

    async def _answer(self, line: bytes) -> bytes:
        try:
            body = {"result": await self._call(line)}
        except RetinueError as refusal:
            body = {"error": refusal.to_dict()}
        except Exception as error:  # noqa: BLE001 - a broken request must not take the owner down
            refusal = RetinueError("invalid", f"The request failed: {type(error).__name__}: {error}.", "")
            body = {"error": refusal.to_dict()}
        return msgspec.json.encode(body)

    async def _call(self, line: bytes) -> dict[str, Any]:
        ask = msgspec.json.decode(line, type=dict[str, Any])
        method = METHODS.get(str(ask.get("method")))
        if method is None:
            detail = f"There is no method {ask.get('method')!r}."
            raise RetinueError("invalid", detail, f"There are: {', '.join(METHODS)}.")
        return await method(self._kernel, msgspec.convert(ask.get("params"), dict[str, Any]))


async def call_owner(socket: str, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the owner and return its answer; raise its refusal, or `store_owned` when it does not answer."""
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(socket, limit=LINE_MAX_BYTES)
    except (OSError, TimeoutError) as error:
        raise RetinueError(
            "store_owned",
            f"The owner of the data directory does not answer on {socket}: {error}.",
            "Wait until it has ended, or stop it, then try again.",
        ) from error
    try:
        writer.write(msgspec.json.encode({"method": method, "params": dict(params)}) + b"\n")
        await writer.drain()
        line = await reader.readline()
    finally:
        writer.close()
    if not line:
        raise RetinueError("stopping", "The owner of the data directory ended before it answered.", "Try again.")
    answer: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
    if "error" in answer:
        refusal: dict[str, Any] = answer["error"]
        raise RetinueError(refusal["code"], refusal["detail"], refusal["hint"])
    result: dict[str, Any] = answer["result"]
    return result
