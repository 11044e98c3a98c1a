"""Checkers of single logs: order, balanced turns and steps, answered calls, sums; they read events and nothing else."""

from retinue.core.events import (
    ContextCompacted,
    Event,
    LetterAbsorbed,
    MessageAssistant,
    MessageUser,
    RunSettled,
    SessionOpened,
    StepClosed,
    StepOpened,
    ToolFinished,
    ToolStarted,
    TurnClosed,
    TurnOpened,
    Usage,
)
from retinue.core.ids import CallId, SessionId
from retinue.core.run import usage_of_request
from retinue.testing.logview import LogView, Span, at


def check_sequence(log: LogView) -> list[str]:
    """Positions rise over the store; each log counts from 1 without gaps, begins with its header, has just one."""
    problems = [
        at(later, f"its position does not come after {earlier.position}")
        for earlier, later in zip(log.events, log.events[1:], strict=False)
        if later.position <= earlier.position
    ]
    for session_id, events in log.by_session.items():
        problems += _sequence_of(session_id, events)
    return problems


def _sequence_of(session_id: SessionId, events: list[Event]) -> list[str]:
    problems = [at(event, f"its seq should be {n}") for n, event in enumerate(events, 1) if event.seq != n]
    headers = [event for event in events if isinstance(event.fact, SessionOpened)]
    if not isinstance(events[0].fact, SessionOpened):
        problems.append(at(events[0], "the log does not begin with session.opened"))
    problems += [at(event, "the session is opened again") for event in headers[1:]]
    for event in events:
        header = headers[0].fact if headers else None
        if isinstance(header, SessionOpened) and event.root_id != header.root_id:
            problems.append(at(event, f"it is filed under root {event.root_id}, its session {session_id} is not"))
    return problems


def check_turns(log: LogView) -> list[str]:
    """Turns and steps open and close in order, nested rightly; nothing of a turn comes after its end."""
    problems: list[str] = []
    for events in log.by_session.values():
        walk = _Walk()
        for event in events:
            walk.feed(event)
        problems += walk.problems
        if log.at_rest and walk.open_turn is not None:
            problems.append(at(events[-1], f"turn {walk.open_turn} is never closed"))
    return problems


class _Walk:
    """Follows the turns of one session."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.open_turn: int | None = None
        self._turns = 0
        self._steps = 0
        self._open_step: int | None = None
        self._answered = False

    def feed(self, event: Event) -> None:
        fact = event.fact
        match fact:
            case TurnOpened():
                self._turn_opened(event, fact)
            case StepOpened():
                self._step_opened(event, fact)
            case MessageAssistant():
                self._require(event, not self._answered, "the step is answered twice")
                self._answered = True
                self._in_step(event, fact)
            case StepClosed():
                self._in_step(event, fact)
                self._open_step = None
            case TurnClosed():
                self._in_turn(event, fact.turn)
                self._require(event, self._open_step is None, f"step {self._open_step} is still open")
                self.open_turn = self._open_step = None
            case MessageUser() | LetterAbsorbed():
                self._in_turn(event, fact.turn)
            case ToolStarted() | ToolFinished():
                self._require(event, self.open_turn is not None, "no turn is open")
            case _:
                pass

    def _turn_opened(self, event: Event, fact: TurnOpened) -> None:
        self._require(event, self.open_turn is None, f"turn {self.open_turn} is still open")
        self._require(event, fact.turn == self._turns + 1, f"turn {fact.turn} comes after turn {self._turns}")
        self._turns = self.open_turn = fact.turn
        self._steps = 0

    def _step_opened(self, event: Event, fact: StepOpened) -> None:
        self._in_turn(event, fact.turn)
        self._require(event, self._open_step is None, f"step {self._open_step} is still open")
        self._require(event, fact.step == self._steps + 1, f"step {fact.step} comes after step {self._steps}")
        self._steps = self._open_step = fact.step
        self._answered = False

    def _in_step(self, event: Event, fact: MessageAssistant | StepClosed) -> None:
        self._in_turn(event, fact.turn)
        self._require(event, fact.step == self._open_step, f"step {fact.step} is not open")

    def _in_turn(self, event: Event, turn: int) -> None:
        self._require(event, turn == self.open_turn, f"turn {turn} is not open")

    def _require(self, event: Event, kept: bool, text: str) -> None:  # noqa: FBT001 -- the condition itself
        if not kept:
            self.problems.append(at(event, text))


def check_calls(log: LogView) -> list[str]:
    """Each call of an assistant message is answered exactly once, before the next step and before the turn's end."""
    problems: list[str] = []
    for events in log.by_session.values():
        problems += _calls_of(events)
    return problems


def _calls_of(events: list[Event]) -> list[str]:
    problems: list[str] = []
    open_calls: dict[CallId, bool] = {}
    made: set[CallId] = set()
    for event in events:
        fact = event.fact
        if isinstance(fact, StepOpened | TurnClosed) and open_calls:
            problems.append(at(event, f"these calls have no answer: {', '.join(open_calls)}"))
            open_calls = {}
        if isinstance(fact, MessageAssistant):
            names = [call.call_id for call in fact.tool_calls]
            problems += [at(event, f"the call {name} was made before") for name in names if name in made]
            open_calls.update(dict.fromkeys(names, False))
            made.update(names)
        if isinstance(fact, ToolStarted):
            if open_calls.get(fact.call_id) is not False:
                problems.append(at(event, f"the call {fact.call_id} is not open, or runs already"))
            open_calls[fact.call_id] = True
        if isinstance(fact, ToolFinished) and open_calls.pop(fact.call_id, None) is None:
            problems.append(at(event, f"the call {fact.call_id} is not open: it is answered twice, or was never made"))
    return problems


def check_usage(log: LogView) -> list[str]:
    """A turn's usage is the sum of its steps; its tree's adds the trees of the runs that settled in it."""
    problems: list[str] = []
    for span in log.spans:
        if span.closed is not None:
            problems += _sums_of(span, span.closed)
    for story in log.stories.values():
        if story.settled is not None and story.started is None and story.settled.usage != Usage():
            problems.append(f"run {story.run_id} never started, but used {story.settled.usage}")
    return problems


def _sums_of(span: Span, closed: TurnClosed) -> list[str]:
    own, tree = Usage(), Usage()
    problems: list[str] = []
    for event in span.events:
        fact = event.fact
        if isinstance(fact, StepClosed | ContextCompacted):
            own = own.plus(usage_of_request(fact))
            if fact.run_id != span.opened.run_id:
                problems.append(at(event, f"the step names run {fact.run_id}, its turn is {span.opened.run_id}"))
        if isinstance(fact, RunSettled) and fact.root_run_id == span.opened.root_run_id:
            tree = tree.plus(fact.usage_tree)
    if closed.usage != own:
        problems.append(at(span.events[-1], f"usage is {closed.usage}, its steps say {own}"))
    if closed.usage_tree != own.plus(tree):
        problems.append(at(span.events[-1], f"usage_tree is {closed.usage_tree}, the sums say {own.plus(tree)}"))
    return problems
