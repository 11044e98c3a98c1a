"""A hand-made legal log: a root with an awaited and a background child, one of which awaits a grandchild."""

from collections.abc import Callable
from typing import Any

import msgspec

from retinue.core.events import (
    AnyFact,
    Event,
    LetterAbsorbed,
    LetterQueued,
    MessageAssistant,
    MessageUser,
    Rights,
    RunQueued,
    RunResumed,
    RunSettled,
    RunSpec,
    RunStarted,
    RunWaiting,
    SessionOpened,
    StepClosed,
    StepOpened,
    ToolCall,
    ToolFinished,
    ToolStarted,
    TurnClosed,
    TurnOpened,
    Usage,
    WaitingFor,
)
from retinue.core.ids import Position, Seq, SessionId

Edit = Callable[[Event], Event | None]
ROOT_RUN = "r_0"
WALL = "2030-01-01T00:00:00.000Z"
STEP = Usage(input=10, output=2, total=12, requests=1)
LETTER = "Message Type: FINAL_ANSWER\nTask name: s_1\nSender: s_2\nPayload:\nchild text"
FAMILY = {"s_1": None, "s_2": "s_1", "s_3": "s_1", "s_4": "s_2"}
"""Each session's parent."""
RUNS = {"r_1": ("s_2", "s_1"), "r_2": ("s_3", "s_1"), "r_3": ("s_4", "s_2")}
"""Each run's child and parent."""
DELIVERY = {"r_1": "letter", "r_2": "await", "r_3": "await"}
RIGHTS = Rights(max_depth=2)
POLICY = {"caps.running.root": 1, "caps.max_depth": 2, "caps.created.turn": 2, "caps.created.root_run": 3}


def times(count: int) -> Usage:
    """The usage of so many steps."""
    total = Usage()
    for _ in range(count):
        total = total.plus(STEP)
    return total


class Tale:
    """Tells facts in the order of the calls; ids are plain text."""

    family: dict[str, str | None] = FAMILY
    runs: dict[str, tuple[str, str]] = RUNS
    policy: dict[str, Any] = POLICY

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, session: str, *facts: AnyFact) -> None:
        for fact in facts:
            seq = 1 + sum(event.session_id == session for event in self.events)
            self.events.append(
                Event(
                    session_id=SessionId(session),
                    root_id=SessionId("s_1"),
                    seq=Seq(seq),
                    position=Position(len(self.events) + 1),
                    time=WALL,
                    fact=fact,
                )
            )

    def depth(self, session: str) -> int:
        parent = self.family[session]
        return 0 if parent is None else 1 + self.depth(parent)

    def open_session(self, session: str, provider: str = "spawn") -> None:
        fact = make(
            SessionOpened,
            parent_id=self.family[session],
            root_id="s_1",
            depth=self.depth(session),
            name=session,
            agent=None,
            agent_digest=None,
            provider=provider,
            model="m",
            profile="build",
            approval="manual",
            cwd="/w",
            policy={"name": "standard", "set": self.policy},
            rights=RIGHTS,
            environment_digest=None,
        )
        self.add(session, fact)

    def open_turn(self, session: str, run: str | None = None) -> None:
        self.add(
            session,
            make(TurnOpened, turn=1, root_run_id=ROOT_RUN, cause="prompt", run_id=run),
            make(MessageUser, turn=1, text=f"task of {session}", source="user"),
        )

    def step(self, session: str, step: int, text: str, *calls: str, run: str | None = None) -> None:
        made = tuple(make(ToolCall, call_id=call, name="spawn_agent", arguments={}) for call in calls)
        self.add(
            session,
            make(StepOpened, turn=1, step=step, model="m", prompt_digest="d", tools_digest="d"),
            make(
                MessageAssistant,
                turn=1,
                step=step,
                text=text,
                reasoning="",
                tool_calls=made,
                finish="tool_calls" if calls else "stop",
                complete=True,
            ),
            make(StepClosed, turn=1, step=step, usage=STEP, run_id=run),
        )

    def run_keys(self, run: str, **changes: Any) -> dict[str, Any]:
        child, parent = self.runs[run]
        return {
            "run_id": run,
            "child_id": child,
            "parent_id": parent,
            "root_id": "s_1",
            "root_run_id": ROOT_RUN,
            "call_id": f"c_{run[2:]}",
            "name": child,
            "agent": None,
            "model": "m",
            "depth": self.depth(child),
            "provider": "spawn",
            "status": "queued",
            "reason": None,
            "detail": None,
            "waiting_for": None,
            "queue_position": None,
            "steps": 0,
            "usage": Usage(),
            "created_at": WALL,
            "started_at": None,
            "ended_at": None,
            "queued_s": None,
            "elapsed_s": None,
            "access": "read",
            "paths": (),
            "cwd": "/w",
            "continuable": True,
            "output": None,
            "output_cut": False,
            "output_id": None,
            "partial": None,
            "files": (),
            "result_state": "none",
            "clock_s": 1.0,
            **changes,
        }

    def queue(self, run: str) -> None:
        parent = RUNS[run][1]
        self.add(parent, make(ToolStarted, call_id=f"c_{run[2:]}", name="spawn_agent", arguments={}))
        spec = make(RunSpec, prompt=f"task of {RUNS[run][0]}", delivery=DELIVERY[run], rights=RIGHTS)
        self.add(parent, RunQueued(**self.run_keys(run), spec=spec))

    def start(self, run: str) -> None:
        child, parent = self.runs[run]
        self.open_session(child)
        self.open_turn(child, run)
        self.add(parent, RunStarted(**self.run_keys(run, status="running", started_at=WALL, queued_s=0.0)))

    def close(self, session: str, text: str, own: int, tree: int, run: str | None = None) -> None:
        fact = make(
            TurnClosed,
            turn=1,
            root_run_id=ROOT_RUN,
            status="completed",
            reason="done",
            detail="",
            text=text,
            partial=None,
            usage=times(own),
            usage_tree=times(tree),
            run_id=run,
        )
        self.add(session, fact)

    def settle(self, run: str, text: str, own: int, tree: int) -> None:
        child, parent = self.runs[run]
        self.close(child, text, own, tree, run)
        keys = self.run_keys(
            run,
            status="completed",
            reason="done",
            detail="",
            steps=own,
            usage=times(own),
            started_at=WALL,
            ended_at=WALL,
            queued_s=0.0,
            elapsed_s=0.0,
            output=text,
            result_state="stored",
        )
        self.add(parent, RunSettled(**keys, usage_tree=times(tree)))

    def answer(self, run: str, *, collected: bool) -> None:
        fact = make(
            ToolFinished,
            call_id=f"c_{run[2:]}",
            outcome="ok",
            code=None,
            text="{}",
            run_id=run if collected else None,
        )
        self.add(RUNS[run][1], fact)

    def wait(self, run: str, kind: str) -> None:
        child, parent = self.runs[run]
        why = make(WaitingFor, kind=kind, what="")
        self.add(parent, make(RunWaiting, run_id=run, child_id=child, waiting_for=why, clock_s=1.0))

    def resume(self, run: str) -> None:
        child, parent = self.runs[run]
        self.add(parent, make(RunResumed, run_id=run, child_id=child, clock_s=1.0))

    def letter(self) -> None:
        fact = make(
            LetterQueued,
            letter_id="l_1",
            kind="result",
            sender_id="s_2",
            receiver_id="s_1",
            run_id="r_1",
            text=LETTER,
            cut=False,
            output_id=None,
        )
        self.add("s_1", fact)

    def absorb(self) -> None:
        self.add(
            "s_1",
            make(LetterAbsorbed, letter_id="l_1", turn=1, step=2, run_id="r_1"),
            make(MessageUser, turn=1, text=LETTER, source="agent", sender_id="s_2", letter_id="l_1"),
        )


def make(kind: Any, /, **fields: Any) -> Any:
    """A fact with its ids as plain text."""
    return kind(**fields)


def told() -> list[Event]:
    """The whole tale: one slot, passed from the child to the grandchild, the other child, and back."""
    tale = Tale()
    tale.open_session("s_1")
    tale.open_turn("s_1")
    tale.step("s_1", 1, "", "c_1", "c_2")
    tale.queue("r_1")
    tale.start("r_1")
    tale.answer("r_1", collected=False)
    tale.queue("r_2")
    tale.step("s_2", 1, "", "c_3", run="r_1")
    tale.queue("r_3")
    tale.wait("r_1", "children")
    tale.start("r_3")
    tale.step("s_4", 1, "grandchild text", run="r_3")
    tale.settle("r_3", "grandchild text", 1, 1)
    tale.start("r_2")
    tale.answer("r_3", collected=True)
    tale.wait("r_1", "slot")
    tale.step("s_3", 1, "other text", run="r_2")
    tale.settle("r_2", "other text", 1, 1)
    tale.resume("r_1")
    tale.answer("r_2", collected=True)
    tale.step("s_2", 2, "child text", run="r_1")
    tale.settle("r_1", "child text", 2, 3)
    tale.letter()
    tale.absorb()
    tale.step("s_1", 2, "root text")
    tale.close("s_1", "root text", 2, 6)
    return tale.events


def renumbered(events: list[Event]) -> list[Event]:
    """The events with positions and seqs that follow their order again."""
    last: dict[str, int] = {}
    fresh: list[Event] = []
    for position, event in enumerate(events, 1):
        last[event.session_id] = last.get(event.session_id, 0) + 1
        seq = Seq(last[event.session_id])
        fresh.append(msgspec.structs.replace(event, position=Position(position), seq=seq))
    return fresh


def index(events: list[Event], kind: type, nth: int = 0, **fields: Any) -> int:
    """Where the nth fact of a kind stands whose fields are these."""
    found = [
        place
        for place, event in enumerate(events)
        if isinstance(event.fact, kind) and all(getattr(event.fact, key) == value for key, value in fields.items())
    ]
    return found[nth]


def changed(events: list[Event], place: int, **fields: Any) -> list[Event]:
    """The events with one fact changed."""
    event = events[place]
    fresh = msgspec.structs.replace(event, fact=msgspec.structs.replace(event.fact, **fields))
    return [*events[:place], fresh, *events[place + 1 :]]


def moved(events: list[Event], place: int, to: int) -> list[Event]:
    """The events with one of them elsewhere."""
    rest = [*events[:place], *events[place + 1 :]]
    return renumbered([*rest[:to], events[place], *rest[to:]])


def without(events: list[Event], *places: int) -> list[Event]:
    """The events without some of them."""
    return renumbered([event for place, event in enumerate(events) if place not in places])


def doubled(events: list[Event], place: int) -> list[Event]:
    """The events with one of them twice in a row."""
    return renumbered([*events[: place + 1], events[place], *events[place + 1 :]])
