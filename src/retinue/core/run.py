"""The Run object and its fold: the one place that turns run facts into a run; it never decides an ending."""

from typing import Any, Final

import msgspec

from retinue.core.events import (
    ContextCompacted,
    LetterAbsorbed,
    ResultState,
    RunFact,
    RunQueued,
    RunResumed,
    RunSettled,
    RunSpec,
    RunWaiting,
    Status,
    StepClosed,
    ToolFinished,
    Usage,
    Value,
    WaitingFor,
)
from retinue.core.ids import CallId, OutputId, RunId, SessionId

OPEN: Final = frozenset({"queued", "running"})
SLOTLESS: Final = frozenset({"children", "slot"})
"""Kinds of waiting in which a running run has given its slot up."""


class Run(Value):
    """One turn of a child session (SHAPES, Run), and what the runtime keeps beside it."""

    run_id: RunId
    session_id: SessionId
    parent_id: SessionId
    root_id: SessionId
    root_run_id: RunId
    call_id: CallId | None
    name: str
    agent: str | None
    model: str
    depth: int
    provider: str
    status: Status
    reason: str | None
    detail: str | None
    waiting_for: WaitingFor | None
    queue_position: int | None
    steps: int
    usage: Usage
    created_at: str
    started_at: str | None
    ended_at: str | None
    queued_s: float | None
    elapsed_s: float | None
    access: str
    paths: tuple[str, ...]
    cwd: str
    continuable: bool
    output: str | None
    output_cut: bool
    output_id: OutputId | None
    partial: str | None
    files: tuple[str, ...]
    result_state: ResultState
    # Kept beside the public keys; never shown.
    spec: RunSpec
    clock_s: float
    """Monotonic second at which the present stretch (queued, or working) began."""
    worked_s: float = 0.0
    """Seconds worked in earlier stretches; a run that only waits does not age."""
    usage_tree: Usage = Usage()
    stored: bool = True
    """False only in an answer after the store failed: this ending is not on record."""

    @property
    def is_open(self) -> bool:
        """Whether the run is queued or running."""
        return self.status in OPEN

    @property
    def is_yielded(self) -> bool:
        """Whether the run is running without a slot."""
        return self.status == "running" and self.waiting_for is not None and self.waiting_for.kind in SLOTLESS

    @property
    def is_parked(self) -> bool:
        """Whether the run is queued but set aside: it is not admitted and nothing waits for it."""
        return self.status == "queued" and self.waiting_for is not None and self.waiting_for.kind == "parked"

    def to_dict(self) -> dict[str, Any]:
        """Return the Run object of SHAPES, every key present."""
        shown = {key: value for key, value in msgspec.to_builtins(self).items() if key not in HIDDEN}
        return shown if self.stored else {**shown, "stored": False}


HIDDEN: Final = frozenset({"spec", "clock_s", "worked_s", "usage_tree", "stored"})
PUBLIC: Final = tuple(name for name in Run.__struct_fields__ if name not in HIDDEN)


def run_fact_keys(run: Run) -> dict[str, Any]:
    """Return the keys that a run fact shares with the run, the child's id under `child_id`."""
    keys = {name: getattr(run, name) for name in PUBLIC}
    keys["child_id"] = keys.pop("session_id")
    keys["clock_s"] = run.clock_s
    return keys


def run_of(fact: RunFact, *, spec: RunSpec, worked_s: float = 0.0, usage_tree: Usage | None = None) -> Run:
    """Return the run as the fact states it."""
    keys = {name: getattr(fact, "child_id" if name == "session_id" else name) for name in PUBLIC}
    tree = Usage() if usage_tree is None else usage_tree
    return Run(**keys, spec=spec, clock_s=fact.clock_s, worked_s=worked_s, usage_tree=tree)


def queued(fact: RunQueued) -> Run:
    """Fold the fact that creates a run."""
    return run_of(fact, spec=fact.spec)


def changed(run: Run, fact: RunFact) -> Run:
    """Fold a later lifecycle fact; steps and usage are as the fact says."""
    tree = fact.usage_tree if isinstance(fact, RunSettled) else run.usage_tree
    return run_of(fact, spec=run.spec, worked_s=run.worked_s, usage_tree=tree)


def waiting(run: Run, fact: RunWaiting) -> Run:
    """Fold a wait: giving the slot up ends a stretch of work, waiting in the queue or for tokens ends none."""
    if run.status == "queued" or fact.waiting_for.kind not in SLOTLESS:
        return msgspec.structs.replace(run, waiting_for=fact.waiting_for)
    worked = run.worked_s if run.is_yielded else run.worked_s + max(0.0, fact.clock_s - run.clock_s)
    return msgspec.structs.replace(run, waiting_for=fact.waiting_for, worked_s=worked, clock_s=fact.clock_s)


def resumed(run: Run, fact: RunResumed) -> Run:
    """Fold the end of a wait: after one without a slot a new stretch of work begins."""
    clock_s = fact.clock_s if run.is_yielded else run.clock_s
    return msgspec.structs.replace(run, waiting_for=None, clock_s=clock_s)


def stepped(run: Run, fact: StepClosed) -> Run:
    """Fold one finished model request."""
    return msgspec.structs.replace(run, steps=run.steps + 1, usage=run.usage.plus(usage_of_request(fact)))


def compacted(run: Run, fact: ContextCompacted) -> Run:
    """Fold the request for the notes of a compaction; it is no step."""
    return msgspec.structs.replace(run, usage=run.usage.plus(usage_of_request(fact)))


def usage_of_request(fact: StepClosed | ContextCompacted) -> Usage:
    """Return what a request adds to the sums: one without a report counts as unreported."""
    tries = fact.retries + 1
    if fact.usage is None:
        return Usage(requests=tries, unreported=tries)
    if fact.usage.requests:
        return fact.usage  # it counts its tries itself
    return msgspec.structs.replace(fact.usage, requests=tries, unreported=fact.retries)


def tokens_reported(fact: StepClosed | ContextCompacted) -> int | None:
    """Return the tokens that a request is known to have used, null where the provider reported none."""
    if fact.usage is None:
        return None
    return fact.usage.total or fact.usage.input + fact.usage.output


def went_home(run: Run, fact: LetterAbsorbed | ToolFinished) -> Run:
    """Fold the result's arrival: absorbed as a letter, or collected by the call that awaited it."""
    state: ResultState = "absorbed" if isinstance(fact, LetterAbsorbed) else "collected"
    return msgspec.structs.replace(run, result_state=state)


def unstored(run: Run, text: str, detail: str) -> Run:
    """Return a run as it is answered after the store failed: what it had said, marked as not on record."""
    return msgspec.structs.replace(
        run,
        status="failed",
        reason="store_failed",
        detail=detail,
        waiting_for=None,
        output=None,
        partial=run.output or run.partial or text or None,
        stored=False,
    )


def working_s(run: Run, clock_s: float) -> float:
    """Return the seconds a run has worked until `clock_s`, waits for its own descendants left out."""
    if run.status != "running" or run.is_yielded:
        return run.worked_s
    return run.worked_s + max(0.0, clock_s - run.clock_s)
