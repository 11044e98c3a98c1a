"""The protocols that the shell needs from the world; it holds no implementation and no state."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Final, Literal, ParamSpec, Protocol, TypeVar

import msgspec

from retinue.core.decide.base import Deletion
from retinue.core.events import Event, StoredOutput, Usage, Value
from retinue.core.ids import CallId, Digest, OutputId, Position, RunId, SessionId, StepNo, TurnNo
from retinue.core.messages import AssistantText, Kept, RequestCall, RequestMessage, ToolText, UserText
from retinue.core.run import Run
from retinue.core.session import SessionRow

P = ParamSpec("P")
T = TypeVar("T")

__all__ = ["AssistantText", "Deletion", "Kept", "RequestCall", "RequestMessage", "ToolText", "UserText"]
"""Re-exported: a model adapter needs only this module."""

FinishReason = Literal["stop", "tool_calls", "length", "refusal", "error", "incomplete"]


class ToolSchema(Value):
    """A tool as it is offered to a model. `parameters` is a JSON schema of an object."""

    name: str
    description: str
    parameters: dict[str, Any]


class ModelRequest(Value):
    """One request, derived from the log alone. `number` counts this session's requests from 1, retries included."""

    session_id: SessionId
    root: bool
    """Whether the asking session is the root of its tree."""
    name: str
    model: str
    """The model's name as the connection knows it (`NAME` of `openai:NAME`)."""
    system: str
    messages: tuple[RequestMessage, ...]
    tools: tuple[ToolSchema, ...]
    number: int
    effort: str | None = None
    output_tokens_max: int | None = None


class Delta(Value):
    """A piece of the answer as it streams; never stored."""

    kind: Literal["text", "reasoning"]
    text: str


class Reset(Value):
    """The request is tried again: the deltas before this one are void. `attempt` is that of the deltas to come."""

    attempt: int


class Spent(Value):
    """What a request has cost so far, its earlier tries included; it is for a request that is cut off.

    `retries` counts the tries before the present one; `usage` sums what was reported, null where nothing was.
    """

    retries: int = 0
    usage: Usage | None = None


class FinishCall(Value):
    """A call the model made, whole. `arguments` is the raw text; the loop checks that it is a JSON object."""

    name: str
    arguments: str
    provider_id: str = ""


class Finish(Value):
    """How a request ended; exactly one ends every stream.

    `usage` is null when the provider reported none. `error` is one sentence and set for `error`, `refusal`
    and `incomplete`; `status` the HTTP status where there was one; `retry_after_s` what the provider asked for.
    `cause` is `timeout` when a time-out of ours ended it, `lasting` when asking once more cannot help.
    """

    reason: FinishReason
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[FinishCall, ...] = ()
    usage: Usage | None = None
    error: str | None = None
    status: int | None = None
    retry_after_s: float | None = None
    retries: int = 0
    cause: Literal["timeout", "lasting"] | None = None
    kept: Kept | None = None
    """What the provider wants back with this answer in later requests."""


Piece = Delta | Reset | Spent | Finish
"""What a model's stream is made of."""


class Model(Protocol):
    """A model behind one connection."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        """Yield deltas, resets, costs, then exactly one `Finish`; raise nothing but `asyncio.CancelledError`."""
        ...

    async def aclose(self) -> None:
        """Close the connection; idempotent."""
        ...


class Models(Protocol):
    """Finds the model that a name like `openai:NAME` means."""

    def find(self, name: str) -> tuple[Model, str]:
        """Return the model and the name its connection knows; raise `unknown_model`."""
        ...

    def room_tokens(self, name: str) -> int:
        """Return how many tokens a request to this model may hold, its answer included."""
        ...

    async def aclose(self) -> None:
        """Close every connection that was opened."""
        ...


class ToolResult(Value):
    """What a tool call leaves. `run_id` and `collected` name the runs whose settlements this text carries home."""

    text: str
    outcome: Literal["ok", "error", "refused"] = "ok"
    code: str | None = None
    run_id: RunId | None = None
    collected: tuple[RunId, ...] = ()


class ToolContext(Protocol):
    """What a tool may know of the call it serves."""

    @property
    def session_id(self) -> SessionId:
        """The calling session."""
        ...

    @property
    def call_id(self) -> CallId:
        """The call."""
        ...

    @property
    def cwd(self) -> str:
        """The calling session's working directory, absolute: its workspace."""
        ...

    @property
    def data_dir(self) -> str:
        """The data directory, absolute; no tool reads or writes inside it."""
        ...

    async def offload(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call off the loop and return its result."""
        ...


class Tool(Protocol):
    """Something a model may call."""

    @property
    def schema(self) -> ToolSchema:
        """What the model is shown."""
        ...

    @property
    def exclusive(self) -> bool:
        """Whether it is a barrier: no other call of the same message runs beside it."""
        ...

    @property
    def group(self) -> Literal["read", "agents", "report", "custom", "connector"]:
        """Who gets it.

        `read` tools are in every profile; `agents` as `rights.delegating_profiles` says; `report` in every child
        where `life.report` says so; `custom` in `build`; `connector` (a tool of an MCP server) in `build` of a main
        session, and in children whose definition or request names it.
        """
        ...

    async def call(self, context: ToolContext, arguments: Mapping[str, Any]) -> ToolResult:
        """Answer one call; raise `RetinueError` to refuse it; any other exception becomes an error result."""
        ...


class Batch(Value):
    """One decision's facts with the rows and blobs that go with them; committed whole or not at all.

    `switch` sets the master switch, null leaves it. `deleted` is done last: it also takes what this batch stores.
    """

    events: tuple[Event, ...]
    runs: tuple[Run, ...] = ()
    sessions: tuple[SessionRow, ...] = ()
    blobs: tuple[tuple[Digest, bytes], ...] = ()
    outputs: tuple[StoredOutput, ...] = ()
    switch: bool | None = None
    deleted: Deletion | None = None


class Page(Value):
    """Which rows of a list to return: at most `limit`, after `cursor`."""

    limit: int = 100
    cursor: str | None = None


class RunFilter(Value):
    """Which runs to return; null fields do not narrow."""

    parent_id: SessionId | None = None
    session_id: SessionId | None = None
    root_id: SessionId | None = None
    open_only: bool = False


class StoreError(Exception):
    """The store could not do it; the message is one sentence for a person, with the path and the cause."""


class SeqConflict(StoreError):
    """A batch does not continue the stored log, or belongs to a deleted session; nothing of the commit was stored."""


class Store(Protocol):
    """The durable record. Every method blocks; the shell calls them through the executor."""

    def commit(self, batches: Sequence[Batch]) -> None:
        """Store the batches in order in one durable transaction; raise `StoreError` and store nothing."""
        ...

    def read(self, session_id: SessionId, after: int = 0, limit: int | None = None) -> list[Event]:
        """Return a session's events with `seq` > `after`, in order."""
        ...

    def tail(self, after: int, root_id: SessionId | None = None, limit: int = 1000) -> list[Event]:
        """Return events with `position` > `after`, in order, of one tree where `root_id` is given."""
        ...

    def position(self) -> Position:
        """Return the highest position ever stored, 0 for a new store; deleting events does not lower it."""
        ...

    def switch(self) -> bool:
        """Return whether the master switch is on; it is in a new store."""
        ...

    def last_seq(self, session_id: SessionId) -> int:
        """Return a session's last `seq`, 0 for an unknown one."""
        ...

    def session(self, session_id: SessionId) -> SessionRow | None:
        """Return one session's row."""
        ...

    def sessions(
        self, page: Page, *, roots_only: bool = True, open_only: bool = False
    ) -> tuple[list[SessionRow], str | None]:
        """Return rows, newest first, and the cursor of the next page; a damaged row is left out."""
        ...

    def run(self, run_id: RunId) -> Run | None:
        """Return one run; raise `StoreError` when its row is damaged."""
        ...

    def runs(self, where: RunFilter, page: Page) -> tuple[list[Run], str | None]:
        """Return runs in the order they were created, and the cursor of the next page.

        A damaged row is a run named `(damaged)` that failed with reason `internal`; `open_only` goes by what the row
        was before.
        """
        ...

    def blob(self, digest: Digest) -> bytes | None:
        """Return a stored blob."""
        ...

    def output(self, output_id: OutputId) -> StoredOutput | None:
        """Return a text that was stored whole."""
        ...

    def close(self) -> None:
        """Close the files; idempotent."""
        ...


class Clock(Protocol):
    """Time: wall time is only recorded, everything else is monotonic."""

    def wall(self) -> str:
        """Return the wall time as RFC 3339 UTC with milliseconds."""
        ...

    def monotonic(self) -> float:
        """Return monotonic seconds."""
        ...

    async def sleep(self, delay_s: float) -> None:
        """Wait."""
        ...


class Ids(Protocol):
    """Makes ids."""

    def new(self, prefix: str) -> str:
        """Return a fresh id `<prefix>_…`."""
        ...


class Executor(Protocol):
    """Runs blocking calls off the loop; in a simulation inline, with a virtual delay."""

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the call's result or raise what it raised."""
        ...


class Definitions(Protocol):
    """Finds roles by name."""

    def find(self, ref: str, cwd: str) -> Any:
        """Return the `Snapshot` that `ref` means in a project; raise `unknown_agent` or `broken_agent`. Blocks."""
        ...


class Surroundings(Protocol):
    """Says what a session is told of where it works."""

    def text(self, cwd: str, *, roles: bool, skills: bool, preload: Sequence[str] = ()) -> str:
        """Return the environment block of a session that works in `cwd`. Blocks.

        It holds the one statement of the folder, the project's `AGENTS.md` (or `CLAUDE.md`) files upwards, bounded;
        with `roles` the definitions it may delegate to, with `skills` those it may load, and the texts of the skills
        in `preload`. Raises `broken_agent` for a skill in `preload` that is not there or cannot be used.
        """
        ...


HookPoint = Literal[
    "agent.session.opened",
    "agent.turn.before",
    "agent.turn.stop",
    "agent.turn.closed",
    "agent.tool.before",
    "agent.tool.after",
    "agent.subagent.spawn.before",
    "agent.subagent.spawn.after",
    "agent.subagent.complete",
]
"""Where hooks are asked (`before`, `stop`) or told (all others)."""
DECIDING: Final[frozenset[str]] = frozenset(
    {"agent.turn.before", "agent.turn.stop", "agent.tool.before", "agent.subagent.spawn.before"}
)
"""The points where a hook is asked."""


class HookEvent(Value):
    """What a hook is asked about or told: the point, the session that it concerns, and the matter itself.

    `data` holds builtins: the call (`call_id`, `name`, `arguments`, later `outcome`, `text`), the run's keys, or the
    turn's; docs/hooks.md lists them for each point.
    """

    point: HookPoint
    session_id: SessionId
    root_id: SessionId
    depth: int
    agent: str | None
    cwd: str
    data: dict[str, Any]


class Deny(Value):
    """A hook's no, with the reason that whoever asked is told."""

    reason: str


class Hook(Protocol):
    """Something that is asked or told at certain points."""

    @property
    def name(self) -> str:
        """What records call it."""
        ...

    @property
    def points(self) -> frozenset[str]:
        """Where it is called."""
        ...

    @property
    def timeout_s(self) -> float:
        """How long one answer may take."""
        ...

    async def call(self, event: HookEvent, offload: Callable[..., Any]) -> Any:
        """Answer: null allows (or has been told), `Deny` denies; anything else, or raised, is a failure of the hook.

        `offload(call, *args)` runs a blocking call off the loop.
        """
        ...


class LiveDelta(Value):
    """A delta as the bus carries it to readers; never stored."""

    session_id: SessionId
    turn: TurnNo
    step: StepNo
    attempt: int
    kind: Literal["text", "reasoning", "tool_output"]
    call_id: CallId | None
    text: str

    def to_dict(self) -> dict[str, Any]:
        """Return the wire form (SHAPES, Events)."""
        return {"type": "delta", **msgspec.to_builtins(self)}


class LiveReset(Value):
    """Tells readers of deltas that those of earlier attempts at this step are void; never stored."""

    session_id: SessionId
    turn: TurnNo
    step: StepNo
    attempt: int

    def to_dict(self) -> dict[str, Any]:
        """Return the wire form (SHAPES, Events)."""
        return {"type": "attempt.reset", **msgspec.to_builtins(self)}


Live = LiveDelta | LiveReset
"""What readers get beside stored events."""
