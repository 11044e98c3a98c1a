"""Runs through every order of spawn, settle, cancel, yield, return, step and turn end, against a plain twin."""

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from retinue.core.decide.base import AGAIN, Decision, Ending, ResumeRun, StartRun, StopRun
from retinue.core.decide.runs import (
    CancelChildren,
    CancelRun,
    WantSlot,
    YieldSlot,
    decide_cancel_children,
    decide_cancel_run,
    decide_want_slot,
    decide_yield,
)
from retinue.core.decide.turns import Steer, decide_steer
from retinue.core.events import Delivery, RunQueued, RunSettled, ToolFinished, TurnClosed
from retinue.core.ids import CallId, RunId, SessionId
from retinue.core.run import working_s
from tests.core import driver
from tests.core.driver import CANCELLED, DONE, FAILED, Log
from tests.core.lifecycle_twin import Family

ROOTS = ("s_a", "s_b")
DEPTH_MAX = 3
CAP = st.none() | st.integers(1, 3)
ENDINGS = st.sampled_from([DONE, DONE, FAILED, CANCELLED])
WAITING_KIND = {"queued": "slot", "working": None, "yielded": "children", "wants": "slot"}


class Lifecycle(RuleBasedStateMachine):
    """Two roots, children down to depth three."""

    def __init__(self) -> None:
        super().__init__()
        self.log = Log()
        self.twin = Family()
        self.made = 0

    @initialize(process=CAP, root=CAP, parent=CAP)
    def begin(self, process: int | None, root: int | None, parent: int | None) -> None:
        caps = {"process": process, "root": root, "parent": parent}
        for session in ROOTS:
            self.twin.line.caps[session] = caps
            changes: dict[str, Any] = {f"caps.running.{kind}": cap for kind, cap in caps.items()}
            changes |= {"caps.created.turn": None, "caps.created.root_run": None}
            driver.open_root(self.log, session, changes)
            self.twin.open_session(session, session, 0)
            self._open(session)

    def _open(self, session: str) -> None:
        driver.open_turn(self.log, session)
        self.twin.open_turn(session, f"r_{session[2:]}_turn{self.twin.sessions[session]['turns'] + 1}")
        self.twin.absorb(session)

    def _admitted(self, decision: Decision, expected: list[str]) -> None:
        given = [effect.run_id for effect in decision.effects if isinstance(effect, StartRun | ResumeRun)]
        assert given == expected

    @rule(seconds=st.integers(1, 9))
    def time_passes(self, seconds: int) -> None:
        self.twin.now += seconds
        self.log.clock_s += seconds

    def _busy(self) -> list[str]:
        """Sessions whose model may act: roots in a turn, and children that work."""
        return [
            session
            for session, row in self.twin.sessions.items()
            if row["turn"] and (row["run"] is None or self.twin.runs[row["run"]]["state"] == "working")
        ]

    @precondition(lambda self: self._busy())
    @rule(data=st.data(), delivery=st.sampled_from(["letter", "letter", "await"]))
    def spawn(self, data: st.DataObject, delivery: Delivery) -> None:
        deep_enough = [s for s in self._busy() if self.twin.sessions[s]["depth"] < DEPTH_MAX]
        parent = data.draw(st.sampled_from(deep_enough or [self._busy()[0]]))
        self.made += 1
        run = f"r_{self.made}"
        expected = self.twin.spawn(run, f"s_{self.made}", parent, delivery)
        decision = driver.spawn(self.log, self.made, parent, delivery=delivery)
        self._admitted(decision, expected)
        works = run in expected
        assert (decision.value.status, decision.value.queue_position) == (
            ("running", None) if works else ("queued", self.twin.runs[run]["place"])
        )
        assert self.log.facts(RunQueued)[-1].run_id == run

    def _runs(self, *states: str) -> list[str]:
        return [run for run, row in self.twin.runs.items() if not states or row["state"] in states]

    @precondition(lambda self: self._runs("working", "yielded", "wants"))
    @rule(data=st.data(), ending=ENDINGS)
    def body_ends(self, data: st.DataObject, ending: Ending) -> None:
        run = data.draw(st.sampled_from(self._runs("working", "yielded", "wants")))
        session = self.twin.runs[run]["session"]
        said = self.twin.sessions[session]["text"]
        owes = ending.status == "completed" and self.twin.owes(session)
        decision = driver.settle(self.log, run[2:], ending)
        if owes:
            assert decision.value is AGAIN
            assert (decision.drafts, decision.effects) == ((), ())
            return
        self._admitted(decision, self.twin.settle(run))
        self._check_settlement(run, ending, said)

    def _check_settlement(self, run: str, ending: Ending, said: str) -> None:
        fact: RunSettled = next(fact for fact in self.log.facts(RunSettled) if fact.run_id == run)
        row = self.twin.runs[run]
        completed = ending.status == "completed"
        reason = "done_empty" if completed and not said else ending.reason
        assert (fact.status, fact.reason) == (ending.status, reason)
        assert (fact.output, fact.partial) == ((said, None) if completed else (None, said or None))
        assert (fact.queued_s, fact.elapsed_s) == (row["queued_s"], row["elapsed"])
        assert fact.usage_tree.requests == row["tree"]
        assert fact.waiting_for is None
        assert fact.queue_position is None

    @precondition(lambda self: self._runs("ended", "queued"))
    @rule(data=st.data(), ending=ENDINGS)
    def an_ending_comes_where_none_can(self, data: st.DataObject, ending: Ending) -> None:
        run = data.draw(st.sampled_from(self._runs("ended", "queued")))
        decision = driver.settle(self.log, run[2:], ending)
        assert (decision.drafts, decision.effects) == ((), ())

    @precondition(lambda self: self._runs())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self._runs()))
        before = self.twin.runs[run]["state"]
        command = CancelRun(run_id=RunId(run), ending=CANCELLED, stamp=self.log.stamp())
        decision = self.log.do(decide_cancel_run, command)
        if before == "ended":
            assert (decision.drafts, decision.effects) == ((), ())
        elif before == "queued":
            self._admitted(decision, self.twin.settle(run))
            self._check_settlement(run, CANCELLED, "")
        else:
            assert decision.effects == (StopRun(run_id=RunId(run), ending=CANCELLED),)
            assert decision.drafts == ()

    @precondition(lambda self: self.twin.sessions)
    @rule(data=st.data())
    def cancel_children(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(sorted(self.twin.sessions)))
        kids = self.twin.kids(session)
        queued = [run for run in kids if self.twin.runs[run]["state"] == "queued"]
        command = CancelChildren(session_id=SessionId(session), ending=CANCELLED, stamp=self.log.stamp())
        decision = self.log.do(decide_cancel_children, command)
        for run in queued:
            assert self.twin.settle(run) == []
            self._check_settlement(run, CANCELLED, "")
        stopped = {effect.run_id for effect in decision.effects if isinstance(effect, StopRun)}
        assert stopped == set(kids) - set(queued)

    @precondition(lambda self: self._runs())
    @rule(data=st.data())
    def give_up_the_slot(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self._runs()))
        works = self.twin.runs[run]["state"] == "working"
        expected = self.twin.give_up_slot(run) if works else []
        decision = self.log.do(decide_yield, YieldSlot(run_id=RunId(run), stamp=self.log.stamp()))
        self._admitted(decision, expected)
        assert bool(decision.drafts) == works

    @precondition(lambda self: self._runs())
    @rule(data=st.data())
    def want_the_slot_back(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self._runs()))
        yielded = self.twin.runs[run]["state"] == "yielded"
        expected = self.twin.want_slot(run) if yielded else []
        decision = self.log.do(decide_want_slot, WantSlot(run_id=RunId(run), stamp=self.log.stamp()))
        self._admitted(decision, expected)
        assert bool(decision.drafts) == yielded

    @precondition(lambda self: self._busy())
    @rule(data=st.data(), text=st.sampled_from(["", "one", "two"]))
    def take_a_step(self, data: st.DataObject, text: str) -> None:
        session = data.draw(st.sampled_from(self._busy()))
        driver.step(self.log, session, text)
        self.twin.step(session, text)

    @precondition(lambda self: self._busy())
    @rule(data=st.data())
    def steer(self, data: st.DataObject) -> None:
        session = data.draw(st.sampled_from(self._busy()))
        self.log.do(decide_steer, Steer(session_id=SessionId(session), text="look here first"))
        self.twin.sessions[session]["steered"] += 1

    def _awaited(self) -> list[str]:
        return [
            run
            for run in self._runs("ended")
            if self.twin.runs[run]["delivery"] == "await"
            and not self.twin.runs[run]["home"]
            and self.twin.runs[run]["parent"] in self._busy()
            and run not in self.twin.sessions[self.twin.runs[run]["parent"]]["mail"]
        ]

    @precondition(lambda self: self._awaited())
    @rule(data=st.data())
    def the_awaiting_call_gets_its_result(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self._awaited()))
        answer = ToolFinished(call_id=CallId("c_x"), outcome="ok", code=None, text="{}", run_id=RunId(run))
        self.log.append(self.twin.runs[run]["parent"], answer)
        self.twin.runs[run]["home"] = True
        assert self.log.run_rows[run].result_state == "collected"

    @rule(session=st.sampled_from(ROOTS), ending=ENDINGS)
    def a_root_turn_ends_or_begins(self, session: str, ending: Ending) -> None:
        row = self.twin.sessions[session]
        if row["turn"] is None:
            driver.recall(self.log, session)
            self._open(session)
            return
        owes = ending.status == "completed" and self.twin.owes(session)
        total = row["requests"] + row["below"]
        decision = driver.close(self.log, session, ending)
        if owes:
            assert decision.value is AGAIN
            return
        self.twin.leave_turn(session)
        fact: TurnClosed = self.log.facts(TurnClosed)[-1]
        assert (fact.status, fact.usage_tree.requests) == (ending.status, total)

    @invariant()
    def every_run_is_as_the_twin_says(self) -> None:
        assert set(self.log.state.runs) == self.twin.remembered()
        for run, row in self.twin.runs.items():
            if row["state"] == "ended":
                continue
            held = self.log.state.runs[RunId(run)]
            assert held.status == ("queued" if row["state"] == "queued" else "running")
            assert (held.waiting_for.kind if held.waiting_for else None) == WAITING_KIND[row["state"]]
            assert working_s(held, self.log.clock_s) == (0 if row["state"] == "queued" else self.twin.elapsed(run))

    @invariant()
    def no_run_settles_twice_and_no_slot_is_lost(self) -> None:
        settled = Counter(fact.run_id for fact in self.log.facts(RunSettled))
        assert set(settled) == set(self._runs("ended"))
        assert all(count == 1 for count in settled.values())
        book = self.log.state.book
        assert set(book.working) == set(self._runs("working")) == set(self.twin.line.working)
        assert set(book.waiting) == set(self._runs("queued", "wants"))

    @invariant()
    def only_what_is_open_stays_in_memory(self) -> None:
        assert set(self.log.state.sessions) == {s for s in self.twin.sessions if self.twin.in_memory(s)}

    def teardown(self) -> None:
        """End everything from the deepest up: nothing may be left."""
        if not self.twin.sessions:
            return
        for run in sorted(self._runs("queued"), key=len):
            self.log.do(decide_cancel_run, CancelRun(run_id=RunId(run), ending=CANCELLED, stamp=self.log.stamp()))
        for run in sorted(self._runs("working", "yielded", "wants"), key=lambda r: -self.twin.runs[r]["depth"]):
            driver.settle(self.log, run[2:], CANCELLED)
        for session in ROOTS:
            if self.twin.sessions[session]["turn"] is not None:
                driver.close(self.log, session, CANCELLED)
        state = self.log.state
        assert (state.sessions, state.runs, state.policies, state.created, state.tree_sizes) == ({}, {}, {}, {}, {})
        book = state.book
        assert (book.total, dict(book.by_root), dict(book.by_parent), book.lines, book.ring) == (0, {}, {}, {}, {})


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
