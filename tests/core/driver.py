"""Applies decisions to a head exactly as the journal does, without a store: the one world of the core's tests."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from retinue.core.decide.base import Decision, Effect, Ending, Stamp
from retinue.core.decide.runs import Settle, Spawn, decide_settle, decide_spawn
from retinue.core.decide.turns import (
    CloseTurn,
    OpenSession,
    OpenStep,
    OpenTurn,
    decide_close_turn,
    decide_open_session,
    decide_open_step,
    decide_open_turn,
)
from retinue.core.events import (
    AnyFact,
    Draft,
    Event,
    MessageAssistant,
    Rights,
    RunSpec,
    SessionOpened,
    StepClosed,
    ToolCall,
    Usage,
)
from retinue.core.ids import CallId, Digest, Position, RunId, Seq, SessionId, StepNo, TurnNo
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
        self._accept(decision.drafts)
        self.effects.extend(decision.effects)
        for output in decision.outputs:
            self.outputs[output.output_id] = output.text
        return decision

    def append(self, session_id: str, *facts: AnyFact) -> None:
        self._accept([Draft(session_id=SessionId(session_id), fact=fact) for fact in facts])

    def facts(self, kind: type) -> list[Any]:
        return [event.fact for event in self.events if isinstance(event.fact, kind)]

    def _accept(self, drafts: Sequence[Draft]) -> None:
        for draft in drafts:
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
        runs, sessions = self.state.end_batch()
        self.run_rows.update({run.run_id: run for run in runs})
        self.session_rows.update({row.session_id: row for row in sessions})


def header(root_id: str, changes: dict[str, Any] | None = None) -> SessionOpened:
    """A root's header under `standard` with some switches set."""
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
        policy={"name": "standard", "set": changes or {}},
        rights=Rights(max_depth=None),
        environment_digest=None,
    )


def opened(changes: dict[str, Any] | None = None, *, turn: bool = True) -> Log:
    """A log with the root `s_root`, with its first turn open unless told otherwise."""
    log = Log()
    open_root(log, "s_root", changes)
    if turn:
        open_turn(log, "s_root")
    return log


def open_root(log: Log, session_id: str, changes: dict[str, Any] | None = None) -> None:
    log.do(decide_open_session, OpenSession(session_id=SessionId(session_id), header=header(session_id, changes)))


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


def open_step(log: Log, session_id: str) -> None:
    digest = Digest("d")
    command = OpenStep(session_id=SessionId(session_id), model="m", prompt_digest=digest, tools_digest=digest)
    log.do(decide_open_step, command)


def say(log: Log, session_id: str, text: str, calls: Sequence[str] = (), usage: Usage | None = ONE_REQUEST) -> None:
    """Answer the open step and close it, as the turn that owns the session does."""
    turn = log.state.sessions[SessionId(session_id)].turn
    assert turn is not None
    number, step = turn.opened.turn, StepNo(turn.steps)
    made = tuple(ToolCall(call_id=CallId(call), name="look", arguments={"id": call}) for call in calls)
    answer = MessageAssistant(
        turn=number, step=step, text=text, reasoning="", tool_calls=made, finish="stop", complete=True
    )
    closed = StepClosed(turn=TurnNo(number), step=step, usage=usage, run_id=turn.opened.run_id)
    log.append(session_id, answer, closed)


def step(log: Log, session_id: str, text: str, calls: Sequence[str] = (), usage: Usage | None = ONE_REQUEST) -> None:
    """One whole request."""
    open_step(log, session_id)
    say(log, session_id, text, calls, usage)


def recall(log: Log, session_id: str) -> None:
    """Have a session in memory again, from its log, as the shell does before it asks."""
    if SessionId(session_id) in log.state.sessions:
        return
    log.state.load([event for event in log.events if event.session_id == session_id])
