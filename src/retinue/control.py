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
from typing import Any, Final, cast

import msgspec

from retinue.core.errors import RetinueError, not_found
from retinue.core.ids import RunId, SessionId
from retinue.core.policy import Policy
from retinue.runtime.kernel import Kernel
from retinue.tools.agents import wait_row

LINE_MAX_BYTES: Final = 1_048_576
"""Bytes of one request or answer."""
PATH_MAX_BYTES: Final = 100
"""Bytes of a socket's path that every system takes (Linux 108, macOS 104)."""
WAIT_MAX_S: Final = 3600.0
CONNECT_TIMEOUT_S: Final = 5.0
ANSWER_MAX_S: Final = 1.5
"""Seconds that an owner which ends gives what it was asked to do: deleting its own session ends it, for one."""
UNHURRIED: Final = frozenset({"runs.wait"})
"""Methods that an owner which ends does not finish."""

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


async def message_run(kernel: Kernel, ask: Mapping[str, Any]) -> dict[str, Any]:
    """Say something to a child in its parent's name; the body is the Run that takes it (SHAPES, HTTP bodies)."""
    name, text = str(ask.get("id", "")), str(ask.get("text", ""))
    sent = await kernel.letters.send(name, text, sender=None)
    run = sent.run
    if run is None:
        # A turn that is open takes it at its next boundary, or it lies there: no run of its own.
        run = await kernel.scheduler.run(await kernel.scheduler.resolve(name, None))
    return run.to_dict()


async def interrupt_run(kernel: Kernel, ask: Mapping[str, Any]) -> dict[str, Any]:
    """Stop what a child does now; the body is that of `interrupt_agent`, after its run has ended."""
    run, note = await kernel.scheduler.interrupt(str(ask.get("id", "")), None)
    return {"run_id": run.run_id, "status": run.status, "reason": run.reason, "note": note}


async def delete_session(kernel: Kernel, ask: Mapping[str, Any]) -> dict[str, Any]:
    """Delete a session and everything below it; the body names what is gone, children first."""
    return {"deleted": list(await kernel.delete(SessionId(str(ask.get("id", "")))))}


async def get_switch(kernel: Kernel, _ask: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether delegation is on."""
    return {"on": kernel.switch_on}


async def set_switch(kernel: Kernel, ask: Mapping[str, Any]) -> dict[str, Any]:
    """Set the master switch; it returns once what `off` stops has ended."""
    on = ask.get("on")
    if not isinstance(on, bool):
        raise RetinueError("invalid", "The switch takes true or false as 'on'.", "")
    await kernel.set_switch(on)
    return {"on": kernel.switch_on}


async def get_policy(kernel: Kernel, ask: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policy that holds for a session's tree: its name, what is set on top, every value."""
    root_id = await root_of(kernel, str(ask.get("session", "")))
    await kernel.load(root_id)
    return _policy_body(kernel.journal.state.policy(root_id))


async def set_policy(kernel: Kernel, ask: Mapping[str, Any]) -> dict[str, Any]:
    """Set switches of a tree's policy while it lives; the body is that of `policy.get`."""
    try:
        changes = msgspec.convert(ask.get("set"), dict[str, Any])
    except msgspec.ValidationError as error:
        hint = "As in {'caps.running.root': 2}."
        raise RetinueError("invalid", f"What to set is no object: {error}.", hint) from error
    return _policy_body(await kernel.change_policy(await root_of(kernel, str(ask.get("session", ""))), changes))


async def root_of(kernel: Kernel, session_id: str) -> SessionId:
    """Return the root of the tree that a session is in; `not_found` for an unknown one."""
    await kernel.journal.flushed()
    row = await kernel.record.session(SessionId(session_id))
    if row is None:
        raise not_found("session", session_id)
    return row.header.root_id


def _policy_body(policy: Policy) -> dict[str, Any]:
    return {**policy.to_dict(), "values": policy.values()}


METHODS: Final[dict[str, Method]] = {
    "runs.cancel": cancel_run,
    "runs.interrupt": interrupt_run,
    "runs.message": message_run,
    "runs.wait": wait_runs,
    "runs.output": run_output,
    "sessions.delete": delete_session,
    "switch.get": get_switch,
    "switch.set": set_switch,
    "policy.get": get_policy,
    "policy.set": set_policy,
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
        # Each conversation, and the method that it is answering.
        self._open: dict[asyncio.Task[Any], str | None] = {}
        self._stopping = False

    async def start(self) -> None:
        """Listen; a socket file that a dead owner left is replaced."""
        with suppress(FileNotFoundError):
            self.path.unlink()
        self._server = await asyncio.start_unix_server(self._serve, str(self.path), limit=LINE_MAX_BYTES)
        self.path.chmod(0o600)

    async def stop(self) -> None:
        """Stop listening, finish what was asked for where that takes no time, remove the socket."""
        if self._server is None:
            return
        self._stopping = True
        self._server.close()
        busy = [task for task, method in self._open.items() if method is not None and method not in UNHURRIED]
        if busy:
            await asyncio.wait(busy, timeout=ANSWER_MAX_S)
        for task in list(self._open):
            task.cancel()
        if self._open:
            await asyncio.wait(list(self._open))
        with suppress(OSError):  # in a folder that may not be written to any more it stays, and means nothing
            self.path.unlink()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        self._open[task] = None
        try:
            while not self._stopping and (line := await reader.readline()):
                writer.write(await self._answer(line, task) + b"\n")
                await writer.drain()
                self._open[task] = None
        except (ConnectionError, ValueError, asyncio.CancelledError):
            # The client left, sent an endless line, or we are stopping: nothing of the runtime depends on it.
            pass
        finally:
            writer.close()
            self._open.pop(task, None)

    async def _answer(self, line: bytes, task: "asyncio.Task[Any]") -> bytes:
        try:
            ask = msgspec.json.decode(line, type=dict[str, Any])
            self._open[task] = str(ask.get("method"))
            body = {"result": await self._call(ask)}
        except RetinueError as refusal:
            body = {"error": refusal.to_dict()}
        except Exception as error:  # noqa: BLE001 - a broken request must not take the owner down
            refusal = RetinueError("invalid", f"The request failed: {type(error).__name__}: {error}.", "")
            body = {"error": refusal.to_dict()}
        return msgspec.json.encode(body)

    async def _call(self, ask: Mapping[str, Any]) -> dict[str, Any]:
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
