"""Applies decisions to a head exactly as the journal does, without a store: the one world of the core's tests."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from retinue.core.decide.base import Decision, Effect, Ending, Stamp
from retinue.core.decide.letters import (
    HandOver,
    Report,
    Rouse,
    Send,
    decide_hand_over,
    decide_report,
    decide_rouse,
    decide_send,
)
from retinue.core.decide.runs import Settle, Spawn, decide_settle, decide_spawn
from retinue.core.decide.steps import OpenStep, RecordStep, decide_open_step, decide_record_step
from retinue.core.decide.stops import (
    CancelChildren,
    CancelRun,
    EndRun,
    decide_cancel_children,
    decide_cancel_run,
    decide_end_run,
)
from retinue.core.decide.trees import (
    ChangePolicy,
    Delete,
    SetSwitch,
    decide_change_policy,
    decide_delete,
    decide_set_switch,
)
from retinue.core.decide.turns import (
    CloseTurn,
    OpenSession,
    OpenTurn,
    decide_close_turn,
    decide_open_session,
    decide_open_turn,
)
from retinue.core.errors import RetinueError
from retinue.core.events import (
    AnyFact,
    Draft,
    Event,
    MessageAssistant,
    MessageUser,
    Rights,
    RunSpec,
    SessionOpened,
    StepClosed,
    ToolCall,
    ToolFinished,
    Usage,
)
from retinue.core.ids import CallId, Digest, LetterId, Position, RunId, Seq, SessionId, StepNo, TurnNo
from retinue.core.run import Run
from retinue.core.session import SessionRow
from retinue.core.state import State

Command = TypeVar("Command")
ONE_REQUEST = Usage(input=5, output=2, total=7, requests=1)


class Log:
    """Decides, numbers, folds; keeps every event, effect and row."""

    def __init__(self) -> None:
        self.state = State()
        self.events: list[Event] = []
        self.effects: list[Effect] = []
        self.run_rows: dict[str, Run] = {}
        self.session_rows: dict[str, SessionRow] = {}
        self.outputs: dict[str, str] = {}
        self.clock_s = 100.0

    def stamp(self) -> Stamp:
        return Stamp(wall=self.wall(), clock_s=self.clock_s)

    def wall(self) -> str:
        return f"2025-01-01T00:00:00.{len(self.events) % 1000:03d}Z"

    def do(self, decide: Callable[[State, Command], Decision], command: Command) -> Decision:
        decision = decide(self.state, command)
        self._accept(decision)
        self.effects.extend(decision.effects)
        for output in decision.outputs:
            self.outputs[output.output_id] = output.text
        return decision

    def append(self, session_id: str, *facts: AnyFact) -> None:
        drafts = tuple(Draft(session_id=SessionId(session_id), fact=fact) for fact in facts)
        self._accept(Decision(drafts=drafts))

    def facts(self, kind: type) -> list[Any]:
        return [event.fact for event in self.events if isinstance(event.fact, kind)]

    def _accept(self, decision: Decision) -> None:
        for draft in decision.drafts:
            session = self.state.sessions.get(draft.session_id)
            root_id = getattr(draft.fact, "root_id", draft.session_id) if session is None else session.header.root_id
            event = Event(
                session_id=draft.session_id,
                root_id=SessionId(root_id),
                seq=Seq(1 if session is None else session.seq + 1),
                position=Position(len(self.events) + 1),
                time=self.wall(),
                fact=draft.fact,
            )
            self.state.apply(event)
            self.events.append(event)
        if decision.switch is not None:
            self.state.switch_on = decision.switch
        if decision.deleted is not None:
            self.state.forget_tree(decision.deleted.session_ids)
        runs, sessions = self.state.end_batch()
        self.run_rows.update({run.run_id: run for run in runs})
        self.session_rows.update({row.session_id: row for row in sessions})


def refused(call: Callable[[], Any]) -> RetinueError:
    with pytest.raises(RetinueError) as caught:
        call()
    return caught.value


def refused_unchanged(log: Log, call: Callable[[], Any]) -> tuple[str, str]:
    before = len(log.events)
    error = refused(call)
    assert len(log.events) == before, "a refusal leaves nothing"
    return error.code, error.detail


def header(root_id: str, changes: dict[str, Any] | None = None, policy: str = "standard") -> SessionOpened:
    """A root's header under a named policy with some switches set."""
    return SessionOpened(
        parent_id=None,
        root_id=SessionId(root_id),
        depth=0,
        name="root",
        agent=None,
        agent_digest=None,
        provider="spawn",
        model="m",
        profile="build",
        approval="manual",
        cwd="/w",
        policy={"name": policy, "set": changes or {}},
        rights=Rights(max_depth=None),
        environment_digest=None,
    )


def opened(changes: dict[str, Any] | None = None, *, turn: bool = True, policy: str = "standard") -> Log:
    """A log with the root `s_root`, with its first turn open unless told otherwise."""
    log = Log()
    open_root(log, "s_root", changes, policy)
    if turn:
        open_turn(log, "s_root")
    return log


def open_root(log: Log, session_id: str, changes: dict[str, Any] | None = None, policy: str = "standard") -> None:
    command = OpenSession(session_id=SessionId(session_id), header=header(session_id, changes, policy))
    log.do(decide_open_session, command)


def open_turn(log: Log, session_id: str, text: str = "go") -> None:
    turns = log.state.sessions[SessionId(session_id)].turns
    root_run = RunId(f"r_{session_id[2:]}_turn{turns + 1}")
    log.do(decide_open_turn, OpenTurn(session_id=SessionId(session_id), root_run_id=root_run, text=text))


def spawn(log: Log, number: object, parent: str = "s_root", **spec: Any) -> Decision:
    """Spawn `r_<number>` with the child session `s_<number>`; keywords go to the spec."""
    continuable = spec.pop("continuable", True)
    command = Spawn(
        run_id=RunId(f"r_{number}"),
        session_id=SessionId(f"s_{number}"),
        parent_id=SessionId(parent),
        root_run_id=RunId("r_nobody"),
        call_id=CallId(f"c_{number}"),
        name="kid",
        model="m",
        cwd="/w",
        continuable=continuable,
        spec=RunSpec(prompt=f"task {number}", **spec),
        stamp=log.stamp(),
    )
    return log.do(decide_spawn, command)


DONE = Ending(status="completed", reason="done", detail="Done.")
FAILED = Ending(status="failed", reason="internal", detail="It broke.")
CANCELLED = Ending(status="cancelled", reason="cancelled", detail="Stopped.")


def settle(log: Log, number: object, ending: Ending = DONE) -> Decision:
    return log.do(decide_settle, Settle(run_id=RunId(f"r_{number}"), ending=ending, stamp=log.stamp()))


def close(log: Log, session_id: str = "s_root", ending: Ending = DONE) -> Decision:
    command = CloseTurn(session_id=SessionId(session_id), ending=ending, stamp=log.stamp())
    return log.do(decide_close_turn, command)


def open_step(log: Log, session_id: str, fixed_tokens: int = 0) -> Decision:
    digest = Digest("d")
    command = OpenStep(
        session_id=SessionId(session_id),
        model="m",
        prompt_digest=digest,
        tools_digest=digest,
        fixed_tokens=fixed_tokens,
        stamp=log.stamp(),
    )
    return log.do(decide_open_step, command)


def say(log: Log, session_id: str, text: str, calls: Sequence[str] = (), usage: Usage | None = ONE_REQUEST) -> Decision:
    """Answer the open step and close it, as the turn that owns the session does."""
    turn = log.state.sessions[SessionId(session_id)].turn
    assert turn is not None
    number, step = turn.opened.turn, StepNo(turn.steps)
    made = tuple(ToolCall(call_id=CallId(call), name="look", arguments={"id": call}) for call in calls)
    answer = MessageAssistant(
        turn=number, step=step, text=text, reasoning="", tool_calls=made, finish="stop", complete=True
    )
    closed = StepClosed(turn=TurnNo(number), step=step, usage=usage, run_id=turn.opened.run_id)
    record = RecordStep(session_id=SessionId(session_id), facts=(answer, closed), stamp=log.stamp())
    return log.do(decide_record_step, record)


def step(log: Log, session_id: str, text: str, calls: Sequence[str] = (), usage: Usage | None = ONE_REQUEST) -> None:
    """One whole request."""
    open_step(log, session_id)
    say(log, session_id, text, calls, usage)


def recall(log: Log, session_id: str) -> None:
    """Have a session and its ancestors in memory again, from their logs, as the shell does before it asks."""
    headers = {event.session_id: event.fact for event in log.events if isinstance(event.fact, SessionOpened)}
    missing: set[str] = set()
    wanted: SessionId | None = SessionId(session_id)
    while wanted is not None and wanted not in log.state.sessions:
        missing.add(wanted)
        wanted = headers[wanted].parent_id
    log.state.load([event for event in log.events if event.session_id in missing])


def send(log: Log, number: object, target: str, sender: str | None = "s_root", text: str = "go on") -> Decision:
    """Send a message; the run that may come of it is `r_<number>`, the letter `l_<number>`."""
    rows = [run for run in log.run_rows.values() if run.session_id == target]
    begun = any(event.session_id == target for event in log.events)
    recall(log, target if begun or not rows else rows[-1].parent_id)
    command = Send(
        target_id=SessionId(target),
        sender_id=None if sender is None else SessionId(sender),
        text=text,
        last=rows[-1] if rows else None,
        run_id=RunId(f"r_{number}"),
        root_run_id=RunId(f"r_new{number}"),
        letter_id=LetterId(f"l_{number}"),
        stamp=log.stamp(),
    )
    return log.do(decide_send, command)


def report(log: Log, number: object, child: str, text: str = "so far", *, waking: bool = True) -> Decision:
    command = Report(child_id=SessionId(child), text=text, waking=waking, letter_id=LetterId(f"l_{number}"))
    return log.do(decide_report, command)


def rouse(log: Log, number: object, session_id: str = "s_root") -> Decision:
    """Open the turn that letters start; that of a child is `r_<number>`."""
    rows = [run for run in log.run_rows.values() if run.session_id == session_id]
    command = Rouse(
        session_id=SessionId(session_id),
        last=rows[-1] if rows else None,
        run_id=RunId(f"r_{number}"),
        stamp=log.stamp(),
    )
    return log.do(decide_rouse, command)


def hand_over(log: Log, session_id: str = "s_root") -> Decision:
    return log.do(decide_hand_over, HandOver(session_id=SessionId(session_id)))


INTERRUPTED = Ending(status="interrupted", reason="interrupted", detail="The turn was stopped.")


def cancel(log: Log, number: object, ending: Ending = CANCELLED) -> Decision:
    return log.do(decide_cancel_run, CancelRun(run_id=RunId(f"r_{number}"), ending=ending, stamp=log.stamp()))


def end_run(log: Log, number: object, ending: Ending = INTERRUPTED) -> Decision:
    return log.do(decide_end_run, EndRun(run_id=RunId(f"r_{number}"), ending=ending, stamp=log.stamp()))


def cancel_children(log: Log, session_id: str = "s_root", ending: Ending = CANCELLED) -> Decision:
    command = CancelChildren(session_id=SessionId(session_id), ending=ending, stamp=log.stamp())
    return log.do(decide_cancel_children, command)


def set_policy(log: Log, changes: dict[str, Any], root_id: str = "s_root") -> Decision:
    return log.do(decide_change_policy, ChangePolicy(root_id=SessionId(root_id), changes=changes, stamp=log.stamp()))


def set_switch(log: Log, on: bool) -> Decision:
    return log.do(decide_set_switch, SetSwitch(on=on, stamp=log.stamp()))


def delete(log: Log, *session_ids: str, parent: str | None = None) -> Decision:
    parent_id = None if parent is None else SessionId(parent)
    command = Delete(session_ids=tuple(SessionId(one) for one in session_ids), parent_id=parent_id)
    return log.do(decide_delete, command)


def finish(log: Log, number: object, text: str = "the answer", session_id: str | None = None) -> Decision:
    """One step, then done: without a step a child has not read its task yet."""
    step(log, session_id or f"s_{number}", text)
    return settle(log, number)


def fork(log: Log, number: object, parent: str = "s_root", **spec: Any) -> Decision:
    """Spawn a child that begins with its parent's completed turns, as the shell asks for it."""
    session = log.state.sessions[SessionId(parent)]
    seed = {"seed": tuple(session.completed), "seed_seq": Seq(session.completed_seq)}
    return spawn(log, number, parent, **seed, **spec)


def answered(call_id: str, *carries: RunId) -> ToolFinished:
    """The answer to a call, which carries these runs' results home."""
    return ToolFinished(call_id=CallId(call_id), outcome="ok", code=None, text="{}", collected=carries)


def with_child(changes: dict[str, Any] | None = None, **spec: Any) -> Log:
    """A root in a turn, and its child `s_1` at work."""
    log = opened(changes)
    spawn(log, 1, **spec)
    return log


def with_ended_child(changes: dict[str, Any] | None = None, **spec: Any) -> Log:
    log = with_child(changes, **spec)
    finish(log, 1)
    return log


def said_to(log: Log, session_id: str) -> list[MessageUser]:
    """Everything that entered a session's context."""
    return [e.fact for e in log.events if e.session_id == session_id and isinstance(e.fact, MessageUser)]
