"""The ledger of a root run against a plain twin: reservations, reports, missing reports, waiting and the limit."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from retinue.core.budget import OUTPUT_MIN_TOKENS, OVER, WAIT, Answer, Grant, Ledger
from retinue.core.ids import SessionId
from tests.core.budget_twin import Twin

SESSIONS = tuple(f"s_{number}" for number in range(6))
LIMIT = st.integers(1, 3000)
OUTPUT = st.none() | st.integers(1, 800)


def told(answer: Answer) -> tuple[str, int | None]:
    return ("grant", answer.output_tokens_max) if isinstance(answer, Grant) else (answer, None)


class Tokens(RuleBasedStateMachine):
    """Several sessions ask, send, report, report nothing, and the limit is set, raised, lowered and lifted."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.twin = Twin()
        self.limit: int | None = None
        self.excess = 0
        """What reports took beyond their reservations since the last grant or change of the limit."""
        self.bound: int | None = None
        self.busy: list[str] = []

    @initialize(limit=LIMIT)
    def begin(self, limit: int) -> None:
        self.limit = limit

    @precondition(lambda self: len(self.busy) < len(SESSIONS))
    @rule(
        data=st.data(),
        tokens=st.integers(0, 600),
        wanted=OUTPUT,
        least=st.sampled_from([OUTPUT_MIN_TOKENS, OUTPUT_MIN_TOKENS, 1]),
    )
    def ask(self, data: st.DataObject, tokens: int, wanted: int | None, least: int) -> None:
        session = data.draw(st.sampled_from([name for name in SESSIONS if name not in self.busy]))
        answer = self.ledger.ask(self.limit, input_tokens=tokens, output_max=wanted, output_min=least)
        assert told(answer) == self.twin.ask(self.limit, tokens, wanted, least)
        if answer == WAIT:
            assert self.ledger.open, "it would wait for nobody"
        if isinstance(answer, Grant):
            self._send(session, answer, tokens)

    def _send(self, session: str, grant: Grant, tokens: int) -> None:
        self.busy.append(session)
        if self.limit is None:
            assert grant == Grant(reserved=0, output_tokens_max=None)
            self.twin.send(session, None)
            return
        assert grant.output_tokens_max is not None
        assert grant.reserved == tokens + grant.output_tokens_max
        self.ledger.reserve(SessionId(session), grant.reserved)
        self.twin.send(session, grant.reserved)
        assert self.ledger.spent + self.ledger.reserved <= self.limit, "right after a grant all of it fits"
        self.bound, self.excess = self.limit, 0

    @precondition(lambda self: self.busy)
    @rule(data=st.data(), report=st.none() | st.integers(0, 1500))
    def end(self, data: st.DataObject, report: int | None) -> None:
        session = data.draw(st.sampled_from(self.busy))
        self.busy.remove(session)
        self.ledger.settle(SessionId(session), report)
        row = self.twin.end(session, report)
        if report is not None:
            self.excess += max(0, report - (row["reserved"] or 0))

    @rule(limit=st.none() | LIMIT)
    def change_the_limit(self, limit: int | None) -> None:
        self.limit = limit

    @rule()
    def exceed(self) -> None:
        self.ledger.mark_exceeded()
        assert self.ledger.exceeded

    @invariant()
    def it_says_what_the_twin_says(self) -> None:
        assert self.ledger.spent == self.twin.spent()
        assert self.ledger.unreported == self.twin.unreported()
        assert dict(self.ledger.open) == self.twin.reservations()
        assert self.ledger.reserved == sum(self.twin.reservations().values())
        assert self.ledger.is_over(self.limit) == (self.limit is not None and self.twin.spent() >= self.limit)

    @invariant()
    def only_reports_larger_than_their_reservations_lead_past_the_limit(self) -> None:
        if self.bound is not None:
            assert self.ledger.spent + self.ledger.reserved <= self.bound + self.excess


TestTokens = Tokens.TestCase
TestTokens.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def granted(ledger: Ledger, session: str, limit: int, tokens: int, output: int | None) -> Grant:
    answer = ledger.ask(limit, input_tokens=tokens, output_max=output)
    assert isinstance(answer, Grant)
    ledger.reserve(SessionId(session), answer.reserved)
    return answer


def test_of_twenty_children_at_once_on_a_limit_that_fits_seven_seven_send_and_thirteen_wait() -> None:
    ledger, limit = Ledger(), 7 * 1000 + 100
    answers: list[Answer] = []
    for number in range(20):
        answers.append(ledger.ask(limit, input_tokens=600, output_max=400))
        if isinstance(answers[-1], Grant):
            ledger.reserve(SessionId(f"s_{number}"), answers[-1].reserved)
    assert [isinstance(answer, Grant) for answer in answers] == [True] * 7 + [False] * 13
    assert set(answers[7:]) == {WAIT}
    for number in range(7):
        ledger.settle(SessionId(f"s_{number}"), 1000)
    assert (ledger.spent, ledger.reserved) == (7000, 0)
    assert ledger.ask(limit, input_tokens=600, output_max=400) == OVER
    assert not ledger.is_over(limit), "nothing fits any more, though the limit is not reached"


def test_who_waits_gets_what_smaller_reports_leave() -> None:
    ledger = Ledger()
    granted(ledger, "s_1", 1000, 400, 500)
    assert ledger.ask(1000, input_tokens=100, output_max=300) == WAIT
    ledger.settle(SessionId("s_1"), 500)
    assert granted(ledger, "s_2", 1000, 100, 300).output_tokens_max == 300


def test_S138_a_report_larger_than_its_reservation_takes_the_tree_past_its_limit() -> None:
    ledger = Ledger()
    granted(ledger, "s_1", 1000, 300, 200)
    granted(ledger, "s_2", 1000, 300, 200)
    ledger.settle(SessionId("s_1"), 1100)
    assert ledger.spent == 1100
    assert ledger.is_over(1000)
    assert ledger.ask(1000, input_tokens=1, output_max=1) == OVER, "at once, also while another one is open"
    assert ledger.ask(2000, input_tokens=1, output_max=1) != OVER


def test_the_output_limit_is_lowered_only_when_nobody_else_is_open_and_not_below_256() -> None:
    ledger = Ledger()
    granted(ledger, "s_1", 1000, 100, 100)
    assert ledger.ask(1000, input_tokens=300, output_max=4096) == WAIT
    ledger.settle(SessionId("s_1"), 200)
    assert ledger.ask(1000, input_tokens=300, output_max=4096) == Grant(reserved=800, output_tokens_max=500)
    assert ledger.ask(1000, input_tokens=544, output_max=4096) == Grant(reserved=800, output_tokens_max=256)
    assert ledger.ask(1000, input_tokens=545, output_max=4096) == OVER
    assert ledger.ask(1000, input_tokens=700, output_max=100) == Grant(reserved=800, output_tokens_max=100)
    assert ledger.ask(1000, input_tokens=701, output_max=100) == OVER, "a small limit is not lowered"


def test_without_a_limit_on_output_a_request_takes_all_that_is_left_and_goes_alone() -> None:
    ledger = Ledger()
    assert granted(ledger, "s_1", 1000, 300, None) == Grant(reserved=1000, output_tokens_max=700)
    assert ledger.ask(1000, input_tokens=1, output_max=None) == WAIT
    ledger.settle(SessionId("s_1"), 600)
    assert ledger.ask(1000, input_tokens=144, output_max=None) == Grant(reserved=400, output_tokens_max=256)
    assert ledger.ask(1000, input_tokens=145, output_max=None) == OVER


def test_a_missing_report_leaves_the_reservation_charged_and_is_counted() -> None:
    ledger = Ledger()
    granted(ledger, "s_1", 1000, 500, 500)
    ledger.settle(SessionId("s_1"), None)
    assert (ledger.spent, ledger.unreported, ledger.reserved, ledger.open) == (1000, 1, 0, {})
    assert ledger.is_over(1000)


def test_a_request_sent_before_there_was_a_limit_adds_only_its_report() -> None:
    ledger = Ledger()
    assert ledger.ask(None, input_tokens=10**9, output_max=4096) == Grant(reserved=0, output_tokens_max=None)
    ledger.settle(SessionId("s_1"), 700)
    ledger.settle(SessionId("s_2"), None)
    assert (ledger.spent, ledger.unreported) == (700, 1)
    assert not ledger.is_over(None)


def test_a_session_reserves_once_and_a_second_reservation_replaces_the_first() -> None:
    ledger = Ledger()
    ledger.reserve(SessionId("s_1"), 400)
    ledger.reserve(SessionId("s_1"), 300)
    assert (ledger.reserved, ledger.open) == (300, {"s_1": 300})


def test_an_exceeded_budget_stays_declared_and_the_arithmetic_does_not_hear_of_it() -> None:
    ledger = Ledger()
    ledger.mark_exceeded()
    ledger.mark_exceeded()
    assert ledger.exceeded
    assert not ledger.is_over(1)
