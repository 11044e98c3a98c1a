"""The composition root: settings → a wired runtime; it decides nothing and reads no config file itself."""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from importlib import resources
from pathlib import Path
from secrets import token_bytes
from types import TracebackType
from typing import Any, Final, Literal, ParamSpec, TypeVar, cast

import msgspec

from retinue.control import ControlServer
from retinue.core.errors import RetinueError
from retinue.core.ids import RunId, SessionId
from retinue.core.policy import Policy, named, with_changes
from retinue.core.run import Run
from retinue.core.session import SessionRow
from retinue.definitions.catalog import Catalog
from retinue.definitions.skills import SkillShelf
from retinue.definitions.surroundings import Surroundings
from retinue.models.registry import ModelRegistry
from retinue.ports import Hook, Model, StoreError, Tool
from retinue.runtime.handles import Session, Subagents, TurnResult
from retinue.runtime.hooking import require_hooks
from retinue.runtime.kernel import Kernel, NewSession, Parts
from retinue.runtime.prompt import PromptTexts
from retinue.settings import Settings, read_settings
from retinue.stores.filesystem import network_file_system, warning
from retinue.stores.owner import OwnerLock, prepare_data_dir
from retinue.stores.sqlite import SQLiteStore
from retinue.tools.agents import agent_tools
from retinue.tools.connectors import Connectors, servers_of
from retinue.tools.custom import load_tools, tool
from retinue.tools.skills import skill_tools
from retinue.tools.workspace import workspace_tools

P = ParamSpec("P")
T = TypeVar("T")

_LOG: Final = logging.getLogger("retinue")
DATABASE: Final = "retinue.sqlite3"
COMMAND_MAX_CHARS: Final = 200
"""Characters of the command that the lock file names the owner by."""
THREADS_MAX: Final = 8
"""Threads for blocking calls: one commit at a time, file reads, sync tools."""
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_ID_CHARS: Final = 14
"""70 bits of chance: no two ids of one store are ever the same."""
NO_MODEL: Final = (
    "No model is named. Use --model, or set RETINUE_MODEL; 'openai:NAME' needs OPENAI_API_KEY (or OPENAI_BASE_URL "
    "for a server of your own), and --model offline needs no key at all."
)


class RealClock:
    """The `Clock` port on the real clocks."""

    def wall(self) -> str:
        """Return the wall time as RFC 3339 UTC with milliseconds."""
        return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def monotonic(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()

    async def sleep(self, delay_s: float) -> None:
        """Wait."""
        await asyncio.sleep(delay_s)


class RandomIds:
    """The `Ids` port: random ids."""

    def new(self, prefix: str) -> str:
        """Return a fresh id `<prefix>_…`."""
        number = int.from_bytes(token_bytes(9))
        return f"{prefix}_{''.join(_ALPHABET[number >> 5 * place & 31] for place in range(_ID_CHARS))}"


class ThreadExecutor:
    """The `Executor` port on a small thread pool."""

    def __init__(self) -> None:
        """Make the pool; threads start when they are needed."""
        self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="retinue")

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the call's result or raise what it raised."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(call, *args, **kwargs))

    def close(self) -> None:
        """End the threads, without waiting for a call that never ends."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Runtime:
    """A runtime over one data directory; open it with `retinue.open` and use it as an async context manager.

    Attributes:
        subagents: starts children from Python.
        kernel: the parts, for doors that need more than this class shows.
        settings: what it was made from.
    """

    def __init__(
        self,
        settings: Settings,
        tools: Sequence[Tool | Callable[..., Any] | str] = (),
        models: Mapping[str, Model] | None = None,
        command: str | None = None,
        file_system: Callable[[Path], str | None] = network_file_system,
        hooks: Sequence[Hook] = (),
    ) -> None:
        """Keep what to open; nothing happens before `async with`. `file_system` says what network a folder lies on."""
        self.settings: Final = settings
        self._tools = tools
        self._models = models
        self._hooks = require_hooks(hooks)
        self._file_system = file_system
        self._command = (command or " ".join(sys.argv) or "python")[:COMMAND_MAX_CHARS]
        self._stack = AsyncExitStack()
        self._kernel: Kernel | None = None

    @property
    def kernel(self) -> Kernel:
        """The wired parts; only between entering and leaving."""
        if self._kernel is None:
            raise RetinueError("stopping", "The runtime is not open.", "Use it inside 'async with retinue.open(...)'.")
        return self._kernel

    @property
    def subagents(self) -> Subagents:
        """Starts children from Python."""
        return Subagents(self.kernel)

    async def __aenter__(self) -> "Runtime":
        """Take the lock, open the store, close what a crash left open.

        Raises `store_owned` when another process owns the directory, `store_failed` when it cannot be used.
        """
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _open(self) -> None:
        custom = [made for item in self._tools for made in _as_tools(item)]
        clock = RealClock()
        registry = ModelRegistry(
            self.settings.connections, environment=self.settings.environ, custom=self._models, clock=clock
        )
        folder = prepare_data_dir(self.settings.data_dir)
        network = self._file_system(folder)
        if network is not None:
            _LOG.warning("retinue: warning: %s", warning(folder, network))
        lock = OwnerLock(folder)
        lock.acquire(self._command)
        self._stack.callback(lock.release)
        executor = ThreadExecutor()
        self._stack.callback(executor.close)
        store = await executor.run(self.open_store, folder)
        self._stack.callback(store.close)
        shelf = SkillShelf(self.settings.home, str(folder))
        workspace = (*workspace_tools(), *skill_tools(shelf))
        known = [made.schema.name for made in (*workspace, *custom)]
        catalog = Catalog(
            self.settings.home, known_tools=known, model_aliases=self.settings.model_aliases, data_dir=folder
        )
        parts = Parts(
            store=store,
            executor=executor,
            clock=clock,
            ids=RandomIds(),
            models=registry,
            definitions=catalog,
            surroundings=Surroundings(catalog, shelf),
            texts=_texts(),
            data_dir=str(folder),
            tools=lambda kernel: (*workspace, *custom, *agent_tools(kernel)),
            hooks=self._hooks,
            tool_timeout_s=self.settings.tool_timeout_s,
        )
        kernel = Kernel(parts, await executor.run(store.position))
        self._stack.push_async_callback(kernel.close)
        await kernel.start()
        await self._connect(kernel)
        control = ControlServer(kernel, folder)
        await control.start()
        self._stack.push_async_callback(control.stop)
        lock.announce(str(control.path))
        self._kernel = kernel

    async def _connect(self, kernel: Kernel) -> None:
        """Open the MCP servers; one that cannot be opened is said, and has no tools."""
        settings, connectors = self.settings, Connectors()
        servers, problems = servers_of(settings.mcp, settings.environ, str(settings.project))
        kernel.closing.append(connectors.close)
        await connectors.connect(servers, kernel.supervisor.begin, kernel.parts.clock)
        for made in connectors.tools:
            try:
                kernel.tools.add(made)
            except RetinueError as error:
                problems.append(f"A tool of an MCP server is left out: {error.detail}")
        for problem in dict.fromkeys((*settings.notes, *problems, *connectors.problems)):
            _LOG.warning("retinue: warning: %s", problem)

    def open_store(self, folder: Path) -> SQLiteStore:
        """Open the store of a data directory; blocks. A subclass may use another one."""
        return _open_store(folder / DATABASE)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop all turns, commit their endings as `interrupted/shutdown`, give the directory back."""
        self._kernel = None
        await self._stack.aclose()

    async def create_session(  # noqa: PLR0913 - the fields of POST /api/sessions, one keyword each
        self,
        *,
        cwd: str | Path = ".",
        policy: str | Policy = "standard",
        model: str | None = None,
        agent: str | None = None,
        profile: str = "build",
        approval: str = "manual",
        tools: Sequence[str] | None = None,
        set: Mapping[str, Any] | None = None,
        name: str = "main",
    ) -> Session:
        """Open a root session.

        Raises `unknown_model` (also when none is named), `unknown_agent`, `unknown_tool`, `invalid`, `unsupported`.
        """
        folder = await self.kernel.parts.executor.run(_folder, cwd)
        definition = None
        if agent is not None:
            definition = await self.kernel.parts.executor.run(self.kernel.parts.definitions.find, agent, folder)
        chosen = model or (definition.model if definition is not None else None) or self.settings.model
        if chosen is None:
            raise RetinueError("unknown_model", NO_MODEL, "")
        new = NewSession(
            cwd=folder,
            model=_lasting(chosen),
            policy=self._policy(policy, set or {}),
            name=name,
            profile=_one_of("profile", profile, ("build", "plan", "ask")),
            approval=_one_of("approval mode", approval, ("manual", "auto_edit", "bypass")),
            tools=None if tools is None else tuple(tools),
            definition=definition,
        )
        return Session(self.kernel, await self.kernel.create_session(new))

    def _policy(self, policy: str | Policy, changes: Mapping[str, Any]) -> Policy:
        if isinstance(policy, Policy):
            return with_changes(policy, changes, in_code=True)
        return with_changes(with_changes(named(policy), self.settings.policy), changes)

    async def session(self, session_id: str) -> Session:
        """Return a root session that exists; `not_found` otherwise."""
        await self.kernel.load(SessionId(session_id))
        return Session(self.kernel, SessionId(session_id))

    async def session_row(self, session_id: str) -> SessionRow:
        """Return a session as the lists show it."""
        await self.kernel.journal.flushed()
        row = await self.kernel.record.session(SessionId(session_id))
        if row is None:
            raise RetinueError("not_found", f"There is no session {session_id!r} here.", "List the sessions.")
        return row

    async def run(self, run_id: str) -> Run:
        """Return a run; `not_found` otherwise."""
        return await self.kernel.scheduler.run(RunId(run_id))

    async def runs(self, session: Session | str, *, descendants: bool = False) -> list[Run]:
        """Return the runs below a session, in the order they were created."""
        return await self.kernel.scheduler.children(_id_of(session), descendants=descendants)

    async def wait(
        self, ids: Sequence[str], *, mode: Literal["all", "any"] = "all", timeout_s: float = 30.0
    ) -> list[Run]:
        """Wait until all (or any) of the runs are delivered, at most `timeout_s` seconds, and return them as they are.

        An id is `r_…`, or `s_…` for that session's latest run. Expiry stops nobody. Raises `not_found`.
        """
        scheduler = self.kernel.scheduler
        run_ids = [await scheduler.resolve(name, None) for name in ids]
        return (await scheduler.wait(run_ids, mode, timeout_s)).runs

    async def rests(self, session: Session | str) -> None:
        """Return once nothing of a session's tree works, waits for a slot, or is about to start; parked runs aside."""
        await self.kernel.tree_rests(_id_of(session))

    @property
    def switch_on(self) -> bool:
        """Whether the master switch is on; off, nothing is delegated."""
        return self.kernel.switch_on

    async def set_switch(self, on: bool) -> None:  # noqa: FBT001 - the switch itself
        """Set the master switch, for good; off returns once every child that was queued or worked has ended."""
        await self.kernel.set_switch(on)

    async def set_policy(self, session: Session | str, changes: Mapping[str, Any]) -> Policy:
        """Set switches of a root session's policy while it lives, and return the policy that holds then.

        Raises `not_found`, `invalid`, `unsupported`.
        """
        return await self.kernel.change_policy(_id_of(session), changes, in_code=True)

    async def delete(self, session: Session | str) -> tuple[SessionId, ...]:
        """Delete a session with everything below it, each stopped before, and return their ids, children first."""
        return await self.kernel.delete(_id_of(session))


def _id_of(session: Session | str) -> SessionId:
    return session.session_id if isinstance(session, Session) else SessionId(session)


def _as_tools(item: Tool | Callable[..., Any] | str) -> tuple[Tool, ...]:
    if isinstance(item, str):
        return load_tools(item)
    if hasattr(item, "schema"):
        return (cast("Tool", item),)
    return (tool(cast("Callable[..., Any]", item)),)


def _lasting(model: str) -> str:
    """Return the name as it still means the same when the session is continued from another folder."""
    kind, colon, path = model.partition(":")
    return f"{kind}:{os.path.abspath(path)}" if kind == "scripted" and colon else model


def _one_of(what: str, value: str, choices: Sequence[str]) -> str:
    if value not in choices:
        raise RetinueError("invalid", f"There is no {what} {value!r}.", f"Choose one of {', '.join(choices)}.")
    return value


def _folder(cwd: str | Path) -> str:
    path = Path(cwd).expanduser()
    if not path.is_dir():
        raise RetinueError("invalid", f"The working directory {str(cwd)!r} is not a folder.", "Name a folder.")
    return os.path.realpath(path)


def _open_store(path: Path) -> SQLiteStore:
    try:
        store = SQLiteStore(path)
    except StoreError as error:
        hint = "Nothing was changed. Name another --data-dir, or restore it."
        raise RetinueError("store_failed", str(error), hint) from error
    if store.read_only is not None:
        store.close()
        raise RetinueError("store_failed", store.read_only, "Use a newer version of retinue, or another --data-dir.")
    return store


def _texts() -> PromptTexts:
    folder = resources.files("retinue.tools").joinpath("prompts")
    names = PromptTexts.__struct_fields__
    return PromptTexts(**{name: folder.joinpath(f"{name}.md").read_text(encoding="utf-8").strip() for name in names})


def open(
    data_dir: str | Path | None = None,
    *,
    model: str | Model | None = None,
    tools: Sequence[Tool | Callable[..., Any] | str] = (),
    hooks: Sequence[Hook] = (),
    approver: Any = None,
    settings: Settings | None = None,
) -> Runtime:
    """Return a runtime to be entered with `async with`.

    Args:
        data_dir: where the record lies; by default as SHAPES says: `RETINUE_DATA_DIR`, else the nearest `.retinue/`.
        model: the model of sessions that name none: a name like `openai:NAME`, or a `Model` object.
        tools: further tools for the sessions: typed functions, `@retinue.tool` objects, or `module:object`.
        hooks: what is asked and told at certain points, made with `@retinue.hook`, in this order.
        approver: none yet; a later version acts on it.
        settings: settings made elsewhere, instead of reading environment and files.

    Raises `unsupported` for an approver, `invalid` for a broken settings file and for what is no hook.
    """
    if approver is not None:
        raise RetinueError("unsupported", "This version does not act on an approver yet.", "Leave it out.")
    custom = None if model is None or isinstance(model, str) else {"custom": model}
    name = "custom" if custom is not None else model
    chosen = settings or read_settings(data_dir, model=name if isinstance(name, str) else None)
    if settings is not None and isinstance(name, str):
        chosen = msgspec.structs.replace(settings, model=name)
    return Runtime(chosen, tools, custom, hooks=hooks)


def run(
    prompt: str, *, data_dir: str | Path | None = None, model: str | Model | None = None, **session: Any
) -> TurnResult:
    """Run one prompt in a new session and return how it ended; the sync edge, not for use inside a running loop.

    `session` takes what `Runtime.create_session` takes, and `tools_from` further tools as `open` takes them.
    """
    tools = session.pop("tools_from", ())

    async def once() -> TurnResult:
        async with open(data_dir, model=model, tools=tools) as runtime:
            root = await runtime.create_session(**session)
            return await root.prompt(prompt).result

    return run_async(once())


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a loop of its own."""
    return asyncio.run(main)
