"""A session's history under every legal interleaving: what a request says, in which order, and that the log says it."""

from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from retinue.core.decide.turns import Steer, decide_steer
from retinue.core.events import (
    Event,
    LetterAbsorbed,
    LetterKind,
    LetterQueued,
    MessageAssistant,
    MessageUser,
    Outcome,
    StepClosed,
    StepOpened,
    ToolFinished,
    ToolStarted,
    Usage,
)
from retinue.core.ids import CallId, LetterId, SessionId
from retinue.core.messages import AssistantText, RequestMessage, ToolText, UserText
from retinue.core.session import Session
from retinue.core.state import State
from tests.core import driver
from tests.core.driver import DONE, FAILED

ROOT = SessionId("s_root")
WORDS = st.sampled_from(["", "so", "漢"])


class History(RuleBasedStateMachine):
    """One root session: prompts, steering, letters, steps, calls answered in any order, turns that end anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.log = driver.opened(turn=False)
        self.made = 0
        self.requests: list[tuple[int, tuple[RequestMessage, ...]]] = []
        # The twin: what has been said, who waits to be heard, which calls are open.
        self.said: list[str] = []
        self.people: list[str] = []
        self.letters: list[str] = []
        self.mail: list[str] = []
        self.calls: list[str] = []
        self.answers: dict[str, str] = {}
        self.in_turn = False
        self.in_step = False

    def _name(self, kind: str) -> str:
        self.made += 1
        return f"{kind}{self.made}"

    def _boundary(self) -> None:
        self.said += [self.answers.get(call, "") for call in self.calls]
        self.said += self.people + self.letters
        self.people, self.letters, self.calls, self.answers = [], [], [], {}

    @initialize()
    def begin(self) -> None:
        self.a_person_prompts()

    @precondition(lambda self: not self.in_turn)
    @rule()
    def a_person_prompts(self) -> None:
        text = self._name("prompt")
        driver.recall(self.log, ROOT)
        driver.open_turn(self.log, ROOT, text)
        self.in_turn = True
        self.people.append(text)
        self.letters += self.mail
        self.mail = []

    @precondition(lambda self: self.in_turn)
    @rule()
    def a_person_steers(self) -> None:
        text = self._name("steer")
        self.log.do(decide_steer, Steer(session_id=ROOT, text=text))
        self.people.append(text)

    @precondition(lambda self: self.in_turn)
    @rule(kind=st.sampled_from(["result", "report", "message"]))
    def a_letter_comes(self, kind: LetterKind) -> None:
        name = self._name("letter")
        letter = LetterQueued(
            letter_id=LetterId(f"l_{name}"),
            kind=kind,
            sender_id=SessionId("s_kid"),
            receiver_id=ROOT,
            run_id=None,
            text=name,
            cut=False,
            output_id=None,
        )
        self.log.append(ROOT, letter)
        self.mail.append(name)

    @precondition(lambda self: self.in_turn and not self.in_step and set(self.calls) == set(self.answers))
    @rule()
    def a_step_opens(self) -> None:
        driver.open_step(self.log, ROOT)
        self.letters += self.mail
        self.mail = []
        self._boundary()
        self.in_step = True
        self.requests.append((len(self.log.events), self.log.state.sessions[ROOT].request()))

    @precondition(lambda self: self.in_step)
    @rule(text=WORDS, calls=st.integers(0, 3), reported=st.booleans())
    def the_model_answers(self, text: str, calls: int, reported: bool) -> None:
        names = [self._name("call") for _ in range(calls)]
        driver.say(self.log, ROOT, text, names, driver.ONE_REQUEST if reported else None)
        if text or names:
            self.said.append(" ".join(["assistant:" + text, *names]))
        self.calls = names
        self.in_step = False

    @precondition(lambda self: set(self.calls) > set(self.answers))
    @rule(data=st.data(), outcome=st.sampled_from(["ok", "error", "refused"]))
    def a_call_is_answered(self, data: st.DataObject, outcome: Outcome) -> None:
        call = CallId(data.draw(st.sampled_from([c for c in self.calls if c not in self.answers])))
        started = ToolStarted(call_id=call, name="look", arguments={})
        answer = ToolFinished(call_id=call, outcome=outcome, code=None, text=f"answer to {call}")
        self.log.append(ROOT, started, answer)
        self.answers[call] = f"answer to {call}{'' if outcome == 'ok' else ' (error)'}"

    @precondition(lambda self: self.in_turn)
    @rule(streamed=WORDS)
    def the_turn_fails(self, streamed: str) -> None:
        ending = driver.Ending(status="failed", reason="internal", detail="It broke.", streamed=streamed)
        driver.close(self.log, ROOT, ending)
        if self.in_step and streamed:
            self.said.append("assistant:" + streamed)
        for call in self.calls:
            self.answers.setdefault(call, "unknown (error)")
        self._boundary()
        self.in_turn = self.in_step = False

    @invariant()
    def the_history_is_what_was_said_in_order(self) -> None:
        session = self.log.state.sessions.get(ROOT)
        if session is None:
            return
        assert [_shown(message) for message in session.request()] == self.said
        assert set(session.open_calls) == set(self.calls) - set(self.answers)

    @invariant()
    def between_a_call_and_its_answer_stands_nothing(self) -> None:
        for _, request in self.requests[-1:]:
            _require_pairs(request)

    @invariant()
    def no_letter_is_absorbed_twice(self) -> None:
        absorbed = [fact.letter_id for fact in self.log.facts(LetterAbsorbed)]
        assert len(absorbed) == len(set(absorbed))
        shown = [fact.letter_id for fact in self.log.facts(MessageUser) if fact.letter_id]
        assert shown == absorbed

    def teardown(self) -> None:
        """Each request is what the log up to it says."""
        for length, request in self.requests:
            assert refold(self.log.events[:length]).request() == request


def _shown(message: RequestMessage) -> str:
    match message:
        case UserText():
            return message.text
        case AssistantText():
            return " ".join(["assistant:" + message.text, *(call.call_id for call in message.tool_calls)])
        case ToolText():
            text = "unknown" if message.text.startswith("The outcome of this call is unknown") else message.text
            return text + (" (error)" if message.error else "")


def _require_pairs(request: tuple[RequestMessage, ...]) -> None:
    owed: list[str] = []
    for message in request:
        if owed:
            assert isinstance(message, ToolText)
            assert message.call_id == owed.pop(0)
            continue
        assert not isinstance(message, ToolText), "an answer without its call"
        owed = [call.call_id for call in message.tool_calls] if isinstance(message, AssistantText) else []
    assert not owed


def refold(events: list[Event]) -> Session:
    state = State()
    for event in events:
        state.apply(event)
    return state.sessions[ROOT]


TestHistory = History.TestCase
TestHistory.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


def test_people_come_before_letters_at_a_boundary_each_in_log_order() -> None:
    log = driver.opened()
    for text, letter in (("l1", "l_1"), ("p1", None), ("l2", "l_2"), ("p2", None)):
        source: Any = "agent" if letter else "steer"
        letter_id = LetterId(letter) if letter else None
        log.append(ROOT, MessageUser(turn=driver.TurnNo(1), text=text, source=source, letter_id=letter_id))
    driver.open_step(log, ROOT)
    assert [message.text for message in log.state.sessions[ROOT].request()] == ["go", "p1", "p2", "l1", "l2"]


def test_answers_stand_in_call_order_however_they_came() -> None:
    log = driver.opened()
    driver.step(log, ROOT, "looking", ["c_1", "c_2"])
    for call in ("c_2", "c_1"):
        log.append(ROOT, ToolFinished(call_id=CallId(call), outcome="ok", code=None, text=f"of {call}"))
    driver.open_step(log, ROOT)
    request = log.state.sessions[ROOT].request()
    assert [message.text for message in request[-2:]] == ["of c_1", "of c_2"]
    assert [message.name for message in request if isinstance(message, ToolText)] == ["look", "look"]


def test_a_retried_request_counts_each_try_and_reports_what_was_reported() -> None:
    log = driver.opened()
    driver.open_step(log, ROOT)
    number = driver.TurnNo(1)
    log.append(ROOT, StepClosed(turn=number, step=driver.StepNo(1), usage=Usage(input=3, total=3), retries=2))
    session = log.state.sessions[ROOT]
    assert session.usage == Usage(input=3, total=3, requests=3, unreported=2)
    assert session.requests == 3
    driver.open_step(log, ROOT)
    log.append(ROOT, StepClosed(turn=number, step=driver.StepNo(2), usage=None, retries=1))
    assert session.usage == Usage(input=3, total=3, requests=5, unreported=4)


def test_a_row_shows_the_session_as_it_stands() -> None:
    log = driver.opened()
    row = log.session_rows[ROOT].to_dict()
    assert (row["session_id"], row["status"], row["turns"], row["last_turn"]) == (ROOT, "running", 1, None)
    assert "type" not in row
    driver.step(log, ROOT, "the answer")
    driver.close(log)
    row = log.session_rows[ROOT].to_dict()
    assert (row["status"], row["last_turn"]) == ("idle", {"status": "completed", "reason": "done"})
    assert row["usage"]["requests"] == 1


def test_facts_outside_a_turn_change_no_turn() -> None:
    """A cut or repaired log may hold them; the fold has to survive what it cannot place."""
    log = driver.opened(turn=False)
    number, step = driver.TurnNo(1), driver.StepNo(1)
    digest = driver.Digest("d")
    log.append(
        ROOT,
        StepOpened(turn=number, step=step, model="m", prompt_digest=digest, tools_digest=digest),
        MessageAssistant(turn=number, step=step, text="x", reasoning="", tool_calls=(), finish="stop", complete=True),
        StepClosed(turn=number, step=step, usage=None),
    )
    session = log.state.sessions[ROOT]
    assert (session.turn, session.usage.requests, len(session.request())) == (None, 1, 1)


def test_the_fold_invents_no_answer_for_a_call_that_a_torn_log_leaves_open() -> None:
    log = driver.opened()
    driver.step(log, ROOT, "looking", ["c_1", "c_2"])
    log.append(ROOT, ToolFinished(call_id=CallId("c_2"), outcome="ok", code=None, text="fine"))
    driver.open_step(log, ROOT)
    answers = [message for message in log.state.sessions[ROOT].request() if isinstance(message, ToolText)]
    assert [answer.call_id for answer in answers] == ["c_2"]


@pytest.mark.parametrize("ending", [DONE, FAILED])
def test_what_a_finished_turn_had_not_shown_yet_stays_in_the_history(ending: driver.Ending) -> None:
    log = driver.opened()
    driver.step(log, ROOT, "early")
    log.do(decide_steer, Steer(session_id=ROOT, text="wait"))
    driver.close(log, ROOT, msgspec.structs.replace(ending, final=True))
    driver.recall(log, ROOT)
    driver.open_turn(log, ROOT, "again")
    driver.open_step(log, ROOT)
    assert [message.text for message in log.state.sessions[ROOT].request()] == ["go", "early", "wait", "again"]
