"""Wires the shell's parts and routes what the journal releases; every decision and every act lies in the parts."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, assert_never

import msgspec

from retinue.core.decide.base import Effect, Ending, ResumeRun, StartRun, StartTurn, StopRun, StopTurn, Wake
from retinue.core.decide.turns import (
    OpenSession,
    OpenTurn,
    Steer,
    decide_open_session,
    decide_open_turn,
    decide_steer,
)
from retinue.core.errors import RetinueError, not_found
from retinue.core.events import Event, Rights, RunSettled, SessionOpened, Snapshot
from retinue.core.ids import Digest, RunId, SessionId
from retinue.core.policy import Policy
from retinue.ports import Clock, Definitions, Executor, Hook, Ids, Models, Store, Surroundings, Tool
from retinue.runtime.bus import Bus
from retinue.runtime.compaction import Compactor
from retinue.runtime.delegate import Delegation, Sources, require_storable
from retinue.runtime.hooks import Hooks
from retinue.runtime.journal import Journal
from retinue.runtime.letters import Letters
from retinue.runtime.mailbox import Mailboxes
from retinue.runtime.observers import Observers
from retinue.runtime.outputs import require_schema
from retinue.runtime.prompt import PromptTexts
from retinue.runtime.record import Record
from retinue.runtime.recovery import load_session, recover
from retinue.runtime.rights import is_told_roles, loads_skills, root_rights
from retinue.runtime.scheduler import INTERRUPTED, Scheduler
from retinue.runtime.step import StepRunner
from retinue.runtime.supervisor import GRACE_S, QUIET_S, Supervisor
from retinue.runtime.texts import Texts
from retinue.runtime.toolcalls import Outside, ToolCalls
from retinue.runtime.toolset import Toolset
from retinue.runtime.trees import Trees
from retinue.runtime.turn import TurnLoop
from retinue.runtime.watchdog import watch
from retinue.runtime.work import Work

TOOL_TIMEOUT_S: Final = 600.0
"""Seconds that one tool call may take; the agent tools' waits are bounded by themselves."""
PROMPT_MAX_CHARS: Final = 2_000_000


class Parts(msgspec.Struct, kw_only=True):
    """Everything the runtime gets from outside."""

    store: Store
    executor: Executor
    clock: Clock
    ids: Ids
    models: Models
    definitions: Definitions
    surroundings: Surroundings
    texts: PromptTexts
    data_dir: str
    tools: "Callable[[Kernel], Sequence[Tool]]"
    hooks: Sequence[Hook] = ()
    grace_s: float = GRACE_S
    tool_timeout_s: float | None = TOOL_TIMEOUT_S


class NewSession(msgspec.Struct, kw_only=True):
    """What a root session is opened with."""

    cwd: str
    model: str
    policy: Policy
    name: str = "main"
    profile: str = "build"
    approval: str = "manual"
    tools: tuple[str, ...] | None = None
    definition: Snapshot | None = None


class Kernel:
    """One runtime over one store."""

    def __init__(self, parts: Parts, position: int) -> None:
        """Wire the parts; `position` is the last one stored. `start` must follow."""
        self.parts: Final = parts
        self.record: Final = Record(parts.store, parts.executor)
        self.journal: Final = Journal(self.record, parts.clock, position)
        self.bus: Final = Bus(self.record)
        self.mailboxes: Final = Mailboxes()
        self.tools: Final = Toolset()
        self.supervisor: Final = Supervisor(self.journal, self.mailboxes, self._run_turn, parts.grace_s)
        self.scheduler: Final = Scheduler(self.journal, self.record, self.supervisor, self.mailboxes)
        self.letters: Final = Letters(self.journal, self.scheduler, self.supervisor, parts.ids, self.load)
        self.trees: Final = Trees(self.journal, self.record, self.supervisor, (self.scheduler, self.mailboxes))
        self.hooks: Final = Hooks(self.journal, self.record, self.supervisor, parts.executor, parts.hooks)
        self.observers: Final = Observers(self.hooks)
        self.texts: Final = Texts(self.record, parts.executor, parts.surroundings)
        sources = Sources(
            definitions=parts.definitions,
            models=parts.models,
            tools=self.tools,
            record=self.record,
            stored=self.texts,
            texts=parts.texts,
        )
        self.delegation: Final = Delegation(self.journal, sources, self.hooks, (parts.executor, parts.ids))
        shared = (self.bus, parts.ids, self.mailboxes, self.texts)
        steps = StepRunner(self.journal, parts.models, self.tools, parts.texts, shared)
        outside = Outside(parts.executor, parts.data_dir, parts.tool_timeout_s, self.hooks)
        calls = ToolCalls(self.journal, self.scheduler, self.supervisor, self.tools, outside)
        compactor = Compactor(self.journal, parts.models, parts.texts)
        bodies = (steps, calls, parts.executor, self.hooks)
        self._turns = TurnLoop(self.journal, self.scheduler, self.mailboxes, compactor, bodies)
        self._writer: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self.recovered = 0
        self.closing: Final[list[Callable[[], Awaitable[None]]]] = []
        """What is closed once no turn is open any more, and before the runtime's own tasks are waited for."""
        for tool in parts.tools(self):
            self.tools.add(tool)
        self.journal.listen(self)

    async def _run_turn(self, work: Work) -> Ending:
        return await self._turns.run(work)

    async def start(self) -> None:
        """Begin to write, and close what a crash left open."""
        self._writer = self.supervisor.begin(self.journal.run_writer())
        self.recovered = await recover(self.journal, self.record)
        self._watcher = self.supervisor.begin(watch(self.parts.clock, self.journal, self.supervisor))

    async def close(self) -> None:
        """Stop all turns top-down, commit their endings, and stop writing."""
        if self._watcher is not None:
            self._watcher.cancel()
        await self.supervisor.shutdown()
        await self.hooks.told(QUIET_S)
        for close in self.closing:
            await close()
        await self.supervisor.quiet(self._writer)
        self.journal.stop_writer()
        if self._writer is not None:
            await asyncio.wait((self._writer,))
        await self.parts.models.aclose()

    def released(self, events: tuple[Event, ...], effects: tuple[Effect, ...]) -> None:
        """Publish durable events, then act."""
        self.bus.publish(events)
        for event in events:
            self.observers.tell(event)
            if isinstance(event.fact, RunSettled):
                self.mailboxes.wake(event.fact.root_id)
                self._put_away(event.fact)
        for effect in effects:
            match effect:
                case StartRun(run_id=run_id):
                    self.supervisor.start_run(run_id)
                case StopRun(run_id=run_id, ending=ending):
                    self.supervisor.stop_run(run_id, ending)
                case StopTurn(session_id=session_id, ending=ending):
                    self.supervisor.stop(session_id, ending)
                case StartTurn(session_id=session_id):
                    self.supervisor.start_turn(session_id)
                case ResumeRun(run_id=run_id):
                    self._wake_run(run_id)
                case Wake(session_id=key):
                    self.mailboxes.wake(key)
                    self.letters.rouse(SessionId(key))
                case _:
                    assert_never(effect)

    def _put_away(self, fact: RunSettled) -> None:
        """Dispose of a one-shot child that a model spawned; whoever holds a handle disposes of it itself."""
        tree = self.journal.state.trees.get(fact.root_id)
        run = self.journal.state.runs.get(fact.run_id)
        if fact.continuable or tree is None or tree.policy["life.one_shot_sessions"] != "delete":
            return
        if run is not None and run.spec.delivery != "handle":
            self.supervisor.begin(self.release(fact.child_id))

    def _wake_run(self, run_id: RunId) -> None:
        run = self.journal.state.runs.get(run_id)
        if run is not None:
            self.mailboxes.wake(run.session_id)

    def failed(self, error: RetinueError) -> None:
        """The store failed: end every wait and every body."""
        self.mailboxes.fail(error)
        self.supervisor.fail(error)

    async def create_session(self, new: NewSession) -> SessionId:
        """Open a root session and return its id once it is durable."""
        require_storable("The session's name, model or folder", new.name, new.model, new.cwd)
        if not new.cwd.startswith("/"):
            raise RetinueError("invalid", f"The working directory {new.cwd!r} is not absolute.", "Give a full path.")
        self.parts.models.find(new.model)
        session_id = SessionId(self.parts.ids.new("s"))
        if new.definition is not None and new.definition.output_schema is not None:
            await self.parts.executor.run(require_schema, new.definition.output_schema)
        rights = root_rights(self.tools, new.definition, new.tools, new.policy.number("caps.max_depth"))
        roles = is_told_roles(rights, new.profile, 0, new.policy)
        preload = () if new.definition is None else new.definition.skills
        skills = loads_skills(rights, self.tools)
        world = await self.texts.environment(new.cwd, roles=roles, skills=skills, preload=preload)
        header = _root_header(session_id, new, rights, world.digest)
        command = OpenSession(session_id=session_id, header=header, blobs=((world.digest, world.body),))
        await self.journal.submit(decide_open_session, command)
        return session_id

    async def load(self, session_id: SessionId) -> None:
        """Have a session in memory; `not_found` where there is none."""
        if not await load_session(self.journal, self.record, session_id):
            raise not_found("session", session_id)

    async def prompt(self, session_id: SessionId, text: str) -> Work:
        """Open a turn with a person's text, start working on it, and return the work once the turn is durable."""
        _require_text(text)
        if self.supervisor.closing:
            raise RetinueError("stopping", "The runtime is shutting down.", "Start it again.")
        await self.load(session_id)
        self.trees.require_alive(session_id)
        if self.journal.state.sessions[session_id].header.parent_id is not None:
            raise RetinueError("invalid", f"{session_id} is a child; its parent prompts it.", "Prompt its root.")
        command = OpenTurn(session_id=session_id, root_run_id=RunId(self.parts.ids.new("r")), text=text)
        await self.journal.submit(decide_open_turn, command)
        return self.supervisor.start_turn(session_id)

    async def steer(self, session_id: SessionId, text: str) -> None:
        """Admit a person's text into the open turn; returns once it is durable."""
        _require_text(text)
        if session_id not in self.journal.state.sessions and await self.record.session(session_id) is not None:
            raise RetinueError("already_ended", f"The session {session_id} has no open turn.", "Send it a prompt.")
        await self.journal.submit(decide_steer, Steer(session_id=session_id, text=text))

    async def interrupt(self, session_id: SessionId, ending: Ending = INTERRUPTED) -> bool:
        """Stop a session's open turn, wait until it is closed, and return whether there was one."""
        work = self.supervisor.works.get(session_id)
        if work is None:
            return False
        self.supervisor.stop(session_id, ending)
        await work.done.wait()
        return True

    @property
    def switch_on(self) -> bool:
        """Whether the master switch is on."""
        return self.journal.state.switch_on

    async def set_switch(self, on: bool) -> None:  # noqa: FBT001 - the switch itself
        """Set the master switch; off returns once every child has ended."""
        await self.trees.set_switch(on)

    async def delete(self, session_id: SessionId) -> tuple[SessionId, ...]:
        """Delete a session and its whole tree below, children first, each stopped before; return their ids."""
        await self.load(session_id)
        return await self.trees.delete(session_id)

    async def release(self, session_id: SessionId) -> None:
        """Let a one-shot child go, as `life.one_shot_sessions` says."""
        if not self.supervisor.closing and self.journal.error is None:
            await self.trees.forget_one_shot(session_id)

    async def change_policy(self, root_id: SessionId, changes: Mapping[str, Any], *, in_code: bool = False) -> Policy:
        """Set switches of a session's policy while it lives, and return the policy; `invalid` for what cannot be."""
        await self.load(root_id)
        return await self.trees.change_policy(root_id, changes, in_code=in_code)

    async def tree_rests(self, root_id: SessionId) -> None:
        """Return once nothing of a tree works, waits for a slot, or is about to start; parked runs aside."""
        await self.mailboxes.until((root_id,), lambda: self.journal.state.tree_rests(root_id))
        await self.journal.flushed()

    def settings_of(self, session_id: SessionId) -> dict[str, Any]:
        """Return the policy values of a session that is in memory."""
        root_id = self.journal.state.sessions[session_id].header.root_id
        return self.journal.state.policy(root_id).values()


def _root_header(session_id: SessionId, new: NewSession, rights: Rights, environment_digest: Digest) -> SessionOpened:
    definition = new.definition
    return SessionOpened(
        parent_id=None,
        root_id=session_id,
        depth=0,
        name=new.name,
        agent=None if definition is None else definition.ref,
        agent_digest=None if definition is None else definition.digest,
        provider="spawn",
        model=new.model,
        profile=new.profile,
        approval=new.approval,
        cwd=new.cwd,
        policy=new.policy.to_dict(),
        rights=rights,
        environment_digest=environment_digest,
        effort=None if definition is None else definition.effort,
        definition=definition,
        output_schema=None if definition is None else definition.output_schema,
    )


def _require_text(text: str) -> None:
    if not text.strip():
        raise RetinueError("invalid", "The text is empty.", "Say what to do.")
    if len(text) > PROMPT_MAX_CHARS:
        raise RetinueError("too_large", f"The text has more than {PROMPT_MAX_CHARS} characters.", "Put it into a file.")
    require_storable("The text", text)
