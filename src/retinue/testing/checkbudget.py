"""The checker of the token budget: reservations, reports, and the end of what there is; it reads events only."""

from retinue.core.events import (
    BudgetExceeded,
    ContextCompacted,
    Event,
    NotesAsked,
    RunQueued,
    StepClosed,
    StepOpened,
    TurnClosed,
    TurnOpened,
)
from retinue.core.ids import RunId, SessionId
from retinue.core.policy import Policy
from retinue.testing.logview import LogView, at


class _Account:
    """The tokens of one root run, as its events tell them."""

    def __init__(self) -> None:
        self.spent = 0
        self.excess = 0
        """By how much reports were larger than what had been reserved for them."""
        self.open: dict[SessionId, int] = {}
        self.exceeded = False

    @property
    def reserved(self) -> int:
        return sum(self.open.values())

    def report(self, session_id: SessionId, tokens: int | None) -> None:
        reservation = self.open.pop(session_id, 0)
        self.spent += reservation if tokens is None else tokens
        self.excess += max(0, (tokens or 0) - reservation)


def check_budget(log: LogView) -> list[str]:
    """A limit is passed only by what reports exceed their reservations, and told once; then nothing new is accepted."""
    books = _Books(log)
    problems: list[str] = []
    for event in log.events:
        problems += [at(event, text) for text in books.feed(event)]
    return problems


class _Books:
    """The accounts of all root runs, and whose turn each session's requests belong to."""

    def __init__(self, log: LogView) -> None:
        self._log = log
        self._accounts: dict[RunId, _Account] = {}
        self._turns: dict[SessionId, TurnOpened] = {}
        deleted = [story.queued for child_id in log.deleted for story in log.kids.get(child_id, [])]
        self._partly = {queued.root_run_id for queued in deleted if queued is not None}
        """Root runs whose requests are partly in nobody's log: that of a child was deleted."""

    def feed(self, event: Event) -> list[str]:
        fact = event.fact
        policy = self._log.policy(event.root_id, event.position)
        match fact:
            case TurnOpened():
                self._turns[event.session_id] = fact
            case StepOpened() | NotesAsked():
                return self._asked(event, fact, policy)
            case StepClosed() | ContextCompacted():
                return self._reported(event, fact, policy)
            case TurnClosed():
                self._closed(event)
            case BudgetExceeded():
                return self._exceeded(event, fact, policy)
            case RunQueued() if self._account(fact.root_run_id).exceeded and policy["budget.on_exceed"] != "warn":
                return [f"root run {fact.root_run_id} has used up its budget"]
            case _:
                pass
        return []

    def _account(self, root_run_id: RunId) -> _Account:
        return self._accounts.setdefault(root_run_id, _Account())

    def _counted(self, event: Event, policy: Policy) -> _Account | None:
        turn = self._turns.get(event.session_id)
        if turn is None or (event.session_id == event.root_id and not policy["budget.include_root"]):
            return None
        return self._account(turn.root_run_id)

    def _asked(self, event: Event, fact: StepOpened | NotesAsked, policy: Policy) -> list[str]:
        account, limit = self._counted(event, policy), policy.number("budget.tree_tokens_max")
        if account is None or limit is None:
            return []
        if account.exceeded and policy["budget.on_exceed"] == "cancel":
            return ["its root run has used up its budget"]
        if fact.reserved is None:
            return [] if account.exceeded else ["it reserves nothing, and its root run has a budget"]
        account.open[event.session_id] = fact.reserved
        wanted = account.spent + account.reserved
        if wanted > limit and not account.exceeded:
            return [f"{account.spent} tokens are spent and {account.reserved} reserved, the limit is {limit}"]
        return []

    def _reported(self, event: Event, fact: StepClosed | ContextCompacted, policy: Policy) -> list[str]:
        account, limit = self._counted(event, policy), policy.number("budget.tree_tokens_max")
        if account is None:
            return []
        usage = fact.usage
        account.report(event.session_id, None if usage is None else usage.total or usage.input + usage.output)
        if limit is not None and account.spent > limit + account.excess and not account.exceeded:
            return [f"{account.spent} tokens are spent, the limit is {limit}, reports explain {account.excess} more"]
        return []

    def _closed(self, event: Event) -> None:
        turn = self._turns.pop(event.session_id, None)
        account = self._accounts.get(turn.root_run_id) if turn is not None else None
        if account is not None and event.session_id in account.open:
            account.report(event.session_id, None)

    def _exceeded(self, event: Event, fact: BudgetExceeded, policy: Policy) -> list[str]:
        account, limit = self._account(fact.root_run_id), policy.number("budget.tree_tokens_max")
        problems: list[str] = []
        if account.exceeded:
            problems.append(f"root run {fact.root_run_id} exceeds its budget twice")
        account.exceeded = True
        if event.session_id != event.root_id:
            problems.append("it stands in the log of a child")
        if fact.limit != limit:
            problems.append(f"it names the limit {fact.limit}, the policy {limit}")
        whole = fact.root_run_id not in self._partly
        if whole and (fact.spent, fact.reserved) != (account.spent, account.reserved):
            problems.append(f"it says {fact.spent} + {fact.reserved}, the log {account.spent} + {account.reserved}")
        return problems
