"""Faults of the store and of the model, chosen by a plan; it never invents one by chance that no seed repeats."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, Final, Literal

import msgspec

from retinue.core.events import Event, StoredOutput, Value
from retinue.core.ids import Digest, OutputId, Position, RunId, SessionId
from retinue.core.policy import ALL_MODES, NAMES
from retinue.core.run import Run
from retinue.core.session import SessionRow
from retinue.ports import (
    Batch,
    Clock,
    Delta,
    Finish,
    FinishCall,
    Model,
    ModelRequest,
    Page,
    Piece,
    RunFilter,
    SeqConflict,
    Store,
    StoreError,
)
from retinue.testing.hookfaults import HookPlan, random_hooks
from retinue.testing.simloop import SimCrash

Fault = Literal[
    "error_before",
    "error_after",
    "rate_limit",
    "hang",
    "slow_stop",
    "unknown_tool",
    "bad_arguments",
    "finish_without_call",
    "no_usage",
    "refusal",
    "empty",
    "token_limit",
    "reset",
]
ENDLESS: Final[tuple[Fault, ...]] = ("hang", "slow_stop")
"""Faults that only a cancel or a time-out ends; a root turn has no time-out."""
FAULTS: Final[tuple[Fault, ...]] = (
    "error_before",
    "error_after",
    "rate_limit",
    "unknown_tool",
    "bad_arguments",
    "finish_without_call",
    "no_usage",
    "refusal",
    "empty",
    "token_limit",
    "reset",
    *ENDLESS,
)
SLOW_STOP_S: Final = 3.0
"""Virtual seconds that a model with `slow_stop` takes after the cancel it swallowed."""


class StorePlan(Value):
    """What goes wrong at which commit; commits count from 1, null is never."""

    crash_before: int | None = None
    crash_after: int | None = None
    fail_at: int | None = None
    conflict_at: int | None = None
    slow_every: int | None = None
    slow_s: float = 5.0
    """Virtual seconds that a slow commit takes longer."""


class FaultyStore:
    """A store with planned faults around one that survives them.

    Attributes:
        commits: commits that were asked for.
        stored: commits that the inner store holds.
        after_failure: commits that were asked for after a failed one; the runtime must make none.
        crashed: whether a planned crash came; from then on every call raises `SimCrash`.
    """

    def __init__(
        self, inner: Store, plan: StorePlan | None = None, slow: Callable[[float], None] | None = None
    ) -> None:
        """Wrap a store for one life of a world; `slow` is the executor's `slow`."""
        self.inner: Final = inner
        self.plan: Final = StorePlan() if plan is None else plan
        self.commits = 0
        self.stored = 0
        self.after_failure = 0
        self.crashed = False
        self._failed = False
        self._slow = slow

    def commit(self, batches: Sequence[Batch]) -> None:
        """Store the batches, or do what the plan says of this commit."""
        store = self._alive()
        self.commits += 1
        self.after_failure += self._failed
        self._crash_at(self.plan.crash_before)
        self._fail_at(self.plan.fail_at, StoreError("The disk is full (a planned fault)."))
        self._fail_at(self.plan.conflict_at, SeqConflict("The log went on without this writer (a planned fault)."))
        store.commit(batches)
        self.stored += 1
        every = self.plan.slow_every
        if self._slow is not None and every is not None and self.commits % every == 0:
            self._slow(self.plan.slow_s)
        self._crash_at(self.plan.crash_after)

    def read(self, session_id: SessionId, after: int = 0, limit: int | None = None) -> list[Event]:
        """Ask the inner store."""
        return self._alive().read(session_id, after, limit)

    def tail(self, after: int, root_id: SessionId | None = None, limit: int = 1000) -> list[Event]:
        """Ask the inner store."""
        return self._alive().tail(after, root_id, limit)

    def position(self) -> Position:
        """Ask the inner store."""
        return self._alive().position()

    def switch(self) -> bool:
        """Ask the inner store."""
        return self._alive().switch()

    def last_seq(self, session_id: SessionId) -> int:
        """Ask the inner store."""
        return self._alive().last_seq(session_id)

    def session(self, session_id: SessionId) -> SessionRow | None:
        """Ask the inner store."""
        return self._alive().session(session_id)

    def sessions(
        self, page: Page, *, roots_only: bool = True, open_only: bool = False
    ) -> tuple[list[SessionRow], str | None]:
        """Ask the inner store."""
        return self._alive().sessions(page, roots_only=roots_only, open_only=open_only)

    def run(self, run_id: RunId) -> Run | None:
        """Ask the inner store."""
        return self._alive().run(run_id)

    def runs(self, where: RunFilter, page: Page) -> tuple[list[Run], str | None]:
        """Ask the inner store."""
        return self._alive().runs(where, page)

    def blob(self, digest: Digest) -> bytes | None:
        """Ask the inner store."""
        return self._alive().blob(digest)

    def output(self, output_id: OutputId) -> StoredOutput | None:
        """Ask the inner store."""
        return self._alive().output(output_id)

    def close(self) -> None:
        """End this life; the inner store stays open for the next."""

    def _alive(self) -> Store:
        if self.crashed:
            raise SimCrash
        return self.inner

    def _crash_at(self, number: int | None) -> None:
        if number == self.commits:
            self.crashed = True
            raise SimCrash

    def _fail_at(self, number: int | None, error: StoreError) -> None:
        if number == self.commits:
            self._failed = True
            raise error


class SeededFaults(Value):
    """Chooses a fault for a share of all requests, by session and number alone, so that a restart changes none."""

    seed: int
    rate: float = 0.1
    """Share of requests that go wrong, 0 to 1."""
    kinds: tuple[Fault, ...] = FAULTS
    endless_root: bool = False
    """Whether a root's request may hang too; somebody has to interrupt it then."""

    def __call__(self, request: ModelRequest) -> Fault | None:
        """Return the fault of a request, or null."""
        rng = random.Random(f"{self.seed}/{request.session_id}/{request.number}/fault")
        kinds: list[Fault] = [
            kind for kind in self.kinds if self.endless_root or not request.root or kind not in ENDLESS
        ]
        return rng.choice(kinds) if kinds and rng.random() < self.rate else None


class FaultyModel:
    """A model that goes wrong where it is told to.

    Attributes:
        made: the faults so far, as `(session_id, number, fault)`.
    """

    def __init__(self, inner: Model, choose: Callable[[ModelRequest], Fault | None], clock: Clock) -> None:
        """Wrap a model; `choose` names the fault of each request."""
        self.made: list[tuple[SessionId, int, Fault]] = []
        self._inner = inner
        self._choose = choose
        self._clock = clock

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        """Yield what the inner model says, or the fault."""
        fault = self._choose(request)
        if fault is not None:
            self.made.append((request.session_id, request.number, fault))
        async with aclosing(self._source(fault, request)) as pieces:
            async for piece in pieces:
                yield piece

    async def aclose(self) -> None:
        """Close the inner model."""
        await self._inner.aclose()

    def _source(self, fault: Fault | None, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        if fault is None:
            return self._inner.stream(request)
        if fault in INSTEAD:
            return _only(INSTEAD[fault])
        sources: dict[Fault, Callable[[ModelRequest], AsyncGenerator[Piece, None]]] = {
            "error_after": self._error_after,
            "hang": self._hang,
            "slow_stop": self._slow_stop,
            "no_usage": self._no_usage,
            "reset": self._reset,
        }
        return sources[fault](request)

    async def _error_after(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        text = "half a"
        async with aclosing(self._inner.stream(request)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Delta) and piece.kind == "text":
                    text = piece.text
                    break
        yield Delta(kind="text", text=text)
        yield Finish(reason="error", text=text, error="The provider failed in mid-answer.", status=500)

    async def _hang(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        yield Delta(kind="text", text=f"thinking about {request.number}")
        await _forever()

    async def _slow_stop(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        text = f"still at {request.number}"
        yield Delta(kind="text", text=text)
        try:
            await _forever()
        except asyncio.CancelledError:
            await self._clock.sleep(SLOW_STOP_S)
        yield Finish(reason="incomplete", text=text, error="The stream stopped without a finish.")

    async def _no_usage(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        async with aclosing(self._inner.stream(request)) as pieces:
            async for piece in pieces:
                yield msgspec.structs.replace(piece, usage=None) if isinstance(piece, Finish) else piece

    async def _reset(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        texts: list[str] = []
        async with aclosing(self._inner.stream(request)) as pieces:
            async for piece in pieces:
                if isinstance(piece, Finish):
                    break
                if isinstance(piece, Delta) and piece.kind == "text":
                    texts.append(piece.text)
                yield piece
        yield Finish(reason="incomplete", text="".join(texts), error="The connection was reset.")


INSTEAD: Final[dict[Fault, Finish]] = {
    "error_before": Finish(reason="error", error="The provider is broken.", status=500),
    "rate_limit": Finish(reason="error", error="Too many requests.", status=429, retry_after_s=1.0),
    "unknown_tool": Finish(reason="tool_calls", tool_calls=(FinishCall(name="no_such_tool", arguments="{}"),)),
    "bad_arguments": Finish(reason="tool_calls", tool_calls=(FinishCall(name="list_agents", arguments='{"scope":'),)),
    "finish_without_call": Finish(reason="tool_calls"),
    "refusal": Finish(reason="refusal", error="The model declined."),
    "empty": Finish(reason="stop"),
    "token_limit": Finish(reason="length", text="an answer that was cut at its"),
}
"""Faults that are one finish instead of the model's answer; none reports usage."""


async def _only(finish: Finish) -> AsyncGenerator[Piece, None]:
    if finish.text:
        yield Delta(kind="text", text=finish.text)
    yield finish


async def _forever() -> None:
    await asyncio.get_running_loop().create_future()


Act = Literal[
    "message_child",
    "interrupt_child",
    "crowd_child",
    "delete_child",
    "lower_caps",
    "raise_caps",
    "switch_off",
    "switch_on",
    "delete",
]
"""What people do: `crowd_child` writes to a child twice and interrupts it, the switch is the whole store's."""
ACTS: Final[tuple[Act, ...]] = (
    "message_child",
    "message_child",
    "interrupt_child",
    "crowd_child",
    "crowd_child",
    "delete_child",
    "lower_caps",
    "raise_caps",
    "switch_off",
)
"""What people do at random moments; one act is drawn as often as it stands here."""
ACTS_MAX_S: Final = 20.0
"""Virtual seconds after the prompt within which people act; what ends much comes later."""


class WorldPlan(Value):
    """What one world is like: its faults, its people and its policy."""

    store: StorePlan = StorePlan()
    faults: SeededFaults = SeededFaults(seed=0, rate=0.0)
    policy_name: str = "standard"
    policy: dict[str, Any] = {}
    """Switches to set on top of that policy."""
    steer_at_s: float | None = None
    """Virtual second after the prompt at which a person says something more."""
    interrupt_at_s: float | None = None
    jump_at_s: float | None = None
    jump_by_s: float = 0.0
    """How far the wall clock jumps at `jump_at_s`."""
    acts: tuple[tuple[float, Act], ...] = ()
    """What people do besides, and at which virtual second after the prompt."""
    hooks: HookPlan = HookPlan()


def random_plan(rng: random.Random, commits_max: int = 40) -> WorldPlan:
    """Return a plan: half of the worlds have a healthy store, a third a healthy model, half the standard policy."""
    return WorldPlan(
        store=_random_store(rng, commits_max),
        faults=SeededFaults(seed=rng.getrandbits(32), rate=rng.choice((0.0, 0.08, 0.3))),
        policy_name=rng.choice(("standard",) * len(NAMES) + NAMES),
        policy=_random_policy(rng),
        steer_at_s=_sometimes(rng, 5.0),
        interrupt_at_s=_sometimes(rng, 20.0),
        jump_at_s=_sometimes(rng, 5.0),
        jump_by_s=rng.choice((-86_400.0, -1.0, 3600.0)),
        acts=_random_acts(rng),
        hooks=random_hooks(rng),
    )


def _random_store(rng: random.Random, commits_max: int) -> StorePlan:
    number = rng.randint(1, commits_max)
    kind = rng.choice(("crash_before", "crash_after", "fail_at", "conflict_at", None, None, None, None))
    slow = rng.choice((None, None, 3))
    return StorePlan(**({} if kind is None else {kind: number}), slow_every=slow)


BOUNDS: Final[dict[str, tuple[Any, ...]]] = {
    "caps.max_depth": (1, 2, 3),
    "caps.created.turn": (2, 6),
    "life.max_steps": (4, 20),
    "life.run_timeout_s": (15, 900),
}
"""Switches that keep a world small, set in each: under some policies nothing else would end a model that hangs."""
SWITCHES: Final[dict[str, tuple[Any, ...]]] = {
    "caps.running.root": (1, 2, 4),
    "caps.running.process": (1, 2, 8),
    "caps.running.parent": (None, 1, 2),
    "caps.on_full": ("queue", "queue", "reject"),
    "step.parallel_tools_max": (1, 10),
    "result.delivery": ("push", "push", "pull"),
    "result.turn_end": ("hold_open", "detach", "cancel"),
    "result.idle_parent": ("start_turn", "store"),
    "result.auto_turns_max": (0, 1, 2, 3),
    "result.empty_output": ("note", "fail"),
    "life.continuation": ("durable", "durable", "in_turn", "none"),
    "life.continuable_default": (True, False),
    "life.rounds_max": (2, 3, 8),
    "life.queued_messages_max": (1, 2, 4),
    "life.message_scope": ("family", "tree"),
    "life.report": (True, True, False),
    "life.cancel_with_parent": ("always", "opt_in", "never"),
    "life.one_shot_sessions": ("keep", "delete"),
    "life.on_restart": ("interrupted", "cancelled"),
    "rights.context_modes": (ALL_MODES, ALL_MODES, ("none", "fork"), ("none",)),
    "rights.inline_roles": (True, False),
    "budget.tree_tokens_max": (None, None, 3_000, 12_000, 40_000),
    "budget.output_tokens_max": (300, 4_096),
    "budget.include_root": (True, False),
    "budget.on_exceed": ("cancel", "refuse_new", "warn"),
    "hooks.on_failure": ("deny", "allow"),
}
"""Switches that a world sets or leaves as its policy has them."""
APART: Final[dict[str, Any]] = {
    "result.delivery": "push",
    "result.turn_end": "detach",
    "result.idle_parent": "start_turn",
    "life.cancel_with_parent": "never",
}
"""Parents that end before their children: only so do letters find an idle session often."""


def _random_policy(rng: random.Random) -> dict[str, Any]:
    bounds = {name: rng.choice(values) for name, values in BOUNDS.items()}
    chosen = {name: rng.choice(values) for name, values in SWITCHES.items() if rng.random() < 0.5}
    return bounds | chosen | (APART if rng.random() < 0.2 else {})


def _random_acts(rng: random.Random) -> tuple[tuple[float, Act], ...]:
    acts: list[tuple[float, Act]] = [
        (rng.random() ** 2 * ACTS_MAX_S, rng.choice(ACTS)) for _ in range(rng.choice((0, 0, 1, 3, 6)))
    ]
    offs_s = [at_s for at_s, act in acts if act == "switch_off"]
    acts.extend((at_s + rng.random() * ACTS_MAX_S, "switch_on") for at_s in offs_s)
    if rng.random() < 0.1:
        acts.append(((1 + rng.random()) * ACTS_MAX_S, "delete"))
    return tuple(sorted(acts))


def _sometimes(rng: random.Random, most_s: float) -> float | None:
    drawn = rng.random()
    return drawn * most_s if rng.random() < 0.3 else None
