"""Runs through every order of spawn, message, interrupt, cancel, yield, letter, policy and switch, against a twin."""

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from retinue.core.decide.base import AGAIN, Decision, Ending, ResumeRun, StartRun, StartTurn, StopRun
from retinue.core.decide.runs import WantSlot, YieldSlot, decide_want_slot, decide_yield
from retinue.core.decide.stops import PARENT_CANCELLED
from retinue.core.decide.turns import Steer, decide_steer
from retinue.core.events import Delivery, RunQueued, RunSettled, RunStarted, ToolFinished, TurnClosed
from retinue.core.ids import CallId, RunId, SessionId
from retinue.core.run import working_s
from retinue.core.schedule import Plan
from tests.core import driver
from tests.core.driver import CANCELLED, DONE, FAILED, INTERRUPTED, Log
from tests.core.lifecycle_twin import OPEN, Family

ROOTS = ("s_a", "s_b")
DEPTH_MAX = 3
CAP = st.none() | st.integers(1, 3)
RUNNING = ("working", "yielded", "wants")
DELIVERY = st.sampled_from(["letter", "letter", "await"])
MOSTLY = st.sampled_from([True, True, True, False])
ENDINGS = st.sampled_from([DONE, DONE, FAILED, CANCELLED, INTERRUPTED, PARENT_CANCELLED])
WAITING_KIND = {"queued": "slot", "parked": "parked", "working": None, "yielded": "children", "wants": "slot"}
UNLIMITED = {
    "caps.created.turn": None,
    "caps.created.root_run": None,
    "caps.max_depth": None,
    "life.rounds_max": None,
    "life.queued_messages_max": None,
    "result.auto_turns_max": None,
}


class Lifecycle(RuleBasedStateMachine):
    """Two roots, children down to depth three, messages to each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.log = Log()
        self.twin = Family(holds=True, rouses=True)
        self.made = 0

    @initialize(process=CAP, root=CAP, parent=CAP, holds=st.booleans(), rouses=st.booleans())
    def begin(self, process: int | None, root: int | None, parent: int | None, holds: bool, rouses: bool) -> None:
        caps = {"process": process, "root": root, "parent": parent}
        self.twin = Family(holds=holds, rouses=rouses)
        for session in ROOTS:
            self.twin.line.caps[session] = caps
            changes: dict[str, Any] = {f"caps.running.{kind}": cap for kind, cap in caps.items()}
            changes["result.turn_end"] = "hold_open" if holds else "detach"
            changes["result.idle_parent"] = "start_turn" if rouses else "store"
            driver.open_root(self.log, session, {**changes, **UNLIMITED})
            self.twin.open_session(session, session, 0)
            self._open(session)

    def _open(self, session: str) -> None:
        driver.open_turn(self.log, session)
        self.twin.commit()
        self.twin.open_turn(session, f"r_{session[2:]}_turn{self.twin.sessions[session]['turns'] + 1}")

    def _number(self) -> int:
        self.made += 1
        return self.made

    def _admitted(self, decision: Decision, expected: list[str]) -> None:
        given = [effect.run_id for effect in decision.effects if isinstance(effect, StartRun | ResumeRun)]
        assert given == expected

    def _settled_here(self, decision: Decision, expected: set[str], ending: dict[str, Ending]) -> None:
        """Queued runs that a decision ends, all in one commit; none of them, and nobody else, starts."""
        order = [draft.fact.run_id for draft in decision.drafts if isinstance(draft.fact, RunSettled)]
        assert set(order) == expected
        assert len(order) == len(expected)
        for run in order:
            assert self._settle(run, ending[run]) == []
            self._check_settlement(run, ending[run], "")

    def _settle(self, run: str, ending: Ending) -> list[str]:
        waking = ending.reason not in {"parent_cancelled", "switched_off"}
        self.twin.runs[run]["waking"] = waking
        return self.twin.settle(run, status=ending.status, reason=ending.reason, waking=waking)

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

    def _runs(self, *states: str) -> list[str]:
        return [run for run, row in self.twin.runs.items() if not states or row["state"] in states]

    # --------------------------------------------------------------------------------------------- new runs

    @precondition(lambda self: self._busy() and self.twin.switch_on)
    @rule(data=st.data(), deliveries=st.lists(DELIVERY, min_size=1, max_size=3), continuable=MOSTLY)
    def spawn(self, data: st.DataObject, deliveries: list[Delivery], continuable: bool) -> None:
        for delivery in deliveries:
            self._spawn(data, delivery, continuable)

    def _spawn(self, data: st.DataObject, delivery: Delivery, continuable: bool) -> None:
        deep_enough = [s for s in self._busy() if self.twin.sessions[s]["depth"] < DEPTH_MAX]
        parent = data.draw(st.sampled_from(deep_enough[::-1] or self._busy()))
        number = self._number()
        run = f"r_{number}"
        expected = self.twin.spawn(run, f"s_{number}", parent, delivery, continuable=continuable)
        decision = driver.spawn(self.log, number, parent, delivery=delivery, continuable=continuable)
        self._accepted(decision, run, expected)

    def _accepted(self, decision: Decision, run: str, expected: list[str]) -> None:
        self._admitted(decision, expected)
        place = ("running", None) if run in expected else ("queued", self.twin.runs[run]["place"])
        assert (decision.value.status, decision.value.queue_position) == place
        assert self.log.facts(RunQueued)[-1].run_id == run

    def _children(self) -> list[str]:
        return list({row["session"]: None for row in self.twin.runs.values()})

    @precondition(lambda self: self._children())
    @rule(data=st.data(), messages=st.integers(1, 3))
    def write_to_a_child(self, data: st.DataObject, messages: int) -> None:
        child = data.draw(st.sampled_from(self._children()))
        for _ in range(messages):
            self._write_to(child)

    def _write_to(self, child: str) -> None:
        first = next(row for row in self.twin.runs.values() if row["session"] == child)
        number = self._number()
        if not first["continuable"] or not self.twin.switch_on:
            code = driver.refused(lambda: driver.send(self.log, number, child, first["parent"])).code
            assert code == ("not_continuable" if self.twin.switch_on else "switched_off")
            self.log.append(first["root"])  # the next commit: what was read for it leaves memory
            return
        expected = self.twin.send(f"r_{number}", child, f"r_new{number}")
        decision = driver.send(self.log, number, child, first["parent"])
        self._accepted(decision, f"r_{number}", expected)

    @precondition(lambda self: any(self.twin.rouses(session) for session in self.twin.sessions))
    @rule(data=st.data())
    def letters_start_a_turn(self, data: st.DataObject) -> None:
        self._rouse(data.draw(st.sampled_from([s for s in self.twin.sessions if self.twin.rouses(s)])))

    def _rouse(self, session: str) -> None:
        number = self._number()
        expected = self.twin.rouse(f"r_{number}", session)
        decision = driver.rouse(self.log, number, session)
        if session in ROOTS:
            assert decision.effects == (StartTurn(session_id=SessionId(session)),)
        else:
            self._accepted(decision, f"r_{number}", expected)

    @precondition(lambda self: self._runs(*RUNNING))
    @rule(data=st.data(), waking=st.booleans())
    def report(self, data: st.DataObject, waking: bool) -> None:
        self._report(data.draw(st.sampled_from(self._runs(*RUNNING))), waking)

    def _report(self, run: str, waking: bool) -> None:
        row = self.twin.runs[run]
        driver.report(self.log, f"report{self._number()}", row["session"], waking=waking)
        self.twin.post(row["parent"], root_run=row["root_run"], of=None, waking=waking)

    def _below_the_idle(self) -> list[str]:
        return [run for run in self._runs(*RUNNING) if not self.twin.sessions[self.twin.runs[run]["parent"]]["turn"]]

    @precondition(lambda self: self._below_the_idle())
    @rule(data=st.data())
    def an_idle_parent_is_told(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self._below_the_idle()))
        self._report(run, waking=True)
        if self.twin.rouses(self.twin.runs[run]["parent"]):
            self._rouse(self.twin.runs[run]["parent"])

    # ---------------------------------------------------------------------------------------------- endings

    @precondition(lambda self: self._runs(*RUNNING))
    @rule(data=st.data(), ending=ENDINGS)
    def body_ends(self, data: st.DataObject, ending: Ending) -> None:
        self._body_ends(data.draw(st.sampled_from(self._runs(*RUNNING))), ending)

    def _body_ends(self, run: str, ending: Ending) -> None:
        session = self.twin.runs[run]["session"]
        said = self.twin.sessions[session]["text"]
        owes = ending.status == "completed" and self.twin.owes(session)
        decision = driver.settle(self.log, run[2:], ending)
        if owes:
            assert decision.value is AGAIN
            assert (decision.drafts, decision.effects) == ((), ())
            return
        self._admitted(decision, self._settle(run, ending))
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
        assert (fact.waiting_for, fact.queue_position) == (None, None)

    def _parents(self) -> list[str]:
        """Running runs whose sessions have open children."""
        return [run for run in self._runs(*RUNNING) if self.twin.kids(self.twin.runs[run]["session"])]

    @precondition(lambda self: self._parents())
    @rule(data=st.data(), ending=st.sampled_from([FAILED, CANCELLED]))
    def a_parent_ends_before_its_children(self, data: st.DataObject, ending: Ending) -> None:
        self._body_ends(data.draw(st.sampled_from(self._parents())), ending)

    def _writable(self) -> list[str]:
        return [run for run in self._runs(*RUNNING) if self.twin.runs[run]["continuable"] and self.twin.switch_on]

    @precondition(lambda self: self._writable())
    @rule(data=st.data(), before=st.integers(0, 2), after=st.integers(0, 2))
    def a_child_with_messages_is_interrupted(self, data: st.DataObject, before: int, after: int) -> None:
        run = data.draw(st.sampled_from(self._writable()))
        child = self.twin.runs[run]["session"]
        for _ in range(before):
            self._write_to(child)
        self._check_stop(driver.end_run(self.log, run[2:]), {run: INTERRUPTED})
        self._body_ends(run, INTERRUPTED)
        for _ in range(after):
            self._write_to(child)

    @precondition(lambda self: self._runs("ended", "queued", "parked"))
    @rule(data=st.data(), ending=ENDINGS)
    def an_ending_comes_where_none_can(self, data: st.DataObject, ending: Ending) -> None:
        run = data.draw(st.sampled_from(self._runs("ended", "queued", "parked")))
        decision = driver.settle(self.log, run[2:], ending)
        assert (decision.drafts, decision.effects) == ((), ())

    def _told(self, decision: Decision) -> dict[str, str]:
        return {effect.run_id: effect.ending.reason for effect in decision.effects if isinstance(effect, StopRun)}

    def _check_stop(self, decision: Decision, endings: dict[str, Ending]) -> None:
        """Running ones are told, the others settle here."""
        running = {run for run in endings if self.twin.runs[run]["state"] not in ("queued", "parked")}
        assert self._told(decision) == {run: endings[run].reason for run in running}
        self._settled_here(decision, set(endings) - running, endings)

    @precondition(lambda self: self._runs())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """It takes the runs behind it along, and what is below the child unless an earlier run of it goes on."""
        run = data.draw(st.sampled_from(self._runs(*OPEN) or self._runs()))
        endings: dict[str, Ending] = {}
        if run in self._runs("ended"):
            assert driver.cancel(self.log, run[2:]).drafts == ()
            return
        session = self.twin.runs[run]["session"]
        queue = self.twin.of_child(session)
        if queue[0] == run:
            endings = dict.fromkeys(self.twin.below(session), PARENT_CANCELLED)
        endings |= dict.fromkeys(queue[queue.index(run) :], CANCELLED)
        self._check_stop(driver.cancel(self.log, run[2:]), endings)

    @precondition(lambda self: self._runs())
    @rule(data=st.data())
    def interrupt(self, data: st.DataObject) -> None:
        """It stops this run only."""
        run = data.draw(st.sampled_from(self._runs(*OPEN) or self._runs()))
        decision = driver.end_run(self.log, run[2:])
        self._check_stop(decision, {} if run in self._runs("ended") else {run: INTERRUPTED})

    @precondition(lambda self: self.twin.sessions)
    @rule(data=st.data(), ending=st.sampled_from([CANCELLED, PARENT_CANCELLED]))
    def cancel_children(self, data: st.DataObject, ending: Ending) -> None:
        session = data.draw(st.sampled_from(sorted(self.twin.sessions)))
        endings = dict.fromkeys(self.twin.kids(session), ending)
        self._check_stop(driver.cancel_children(self.log, session, ending), endings)

    @precondition(lambda self: self.twin.switch_on and self._runs(*OPEN))
    @rule(at_once=MOSTLY)
    def switch_off(self, at_once: bool) -> None:
        ending = Ending(status="cancelled", reason="switched_off", detail="")
        endings = dict.fromkeys(self._runs(*OPEN), ending)
        decision = driver.set_switch(self.log, on=False)
        self.twin.switch_on = False
        self._check_stop(decision, endings)
        if at_once:
            self.switch_on()

    @precondition(lambda self: not self.twin.switch_on)
    @rule()
    def switch_on(self) -> None:
        self.twin.commit()
        decision = driver.set_switch(self.log, on=True)
        self.twin.switch_on = True
        assert not [effect for effect in decision.effects if isinstance(effect, StartRun | StartTurn | StopRun)]

    # ------------------------------------------------------------------------------------------------ slots

    @precondition(lambda self: self._runs())
    @rule(data=st.data())
    def give_up_the_slot(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self._runs("working") or self._runs()))
        works = self.twin.runs[run]["state"] == "working"
        expected = self.twin.give_up_slot(run) if works else []
        decision = self.log.do(decide_yield, YieldSlot(run_id=RunId(run), stamp=self.log.stamp()))
        self._admitted(decision, expected)
        assert bool(decision.drafts) == works

    @precondition(lambda self: self._runs())
    @rule(data=st.data())
    def want_the_slot_back(self, data: st.DataObject) -> None:
        run = data.draw(st.sampled_from(self._runs("yielded") or self._runs()))
        yielded = self.twin.runs[run]["state"] == "yielded"
        expected = self.twin.want_slot(run) if yielded else []
        decision = self.log.do(decide_want_slot, WantSlot(run_id=RunId(run), stamp=self.log.stamp()))
        self._admitted(decision, expected)
        assert bool(decision.drafts) == yielded

    @rule(root=st.sampled_from(ROOTS), kind=st.sampled_from(["process", "root", "parent"]), cap=CAP)
    def change_a_cap(self, root: str, kind: str, cap: int | None) -> None:
        driver.recall(self.log, root)
        expected = self.twin.set_caps(root, {**self.twin.line.caps[root], kind: cap})
        decision = driver.set_policy(self.log, {f"caps.running.{kind}": cap}, root)
        self._admitted(decision, expected)
        assert self._told(decision) == {}

    # ------------------------------------------------------------------------------------------------ turns

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
        self.twin.sessions[session]["unread"] += 1

    def _awaited(self) -> list[str]:
        return [
            run
            for run in self._runs("ended")
            if self.twin.runs[run]["delivery"] == "await"
            and not self.twin.runs[run]["home"]
            and self.twin.runs[run]["parent"] in self._busy()
            and run not in [letter["of"] for letter in self.twin.sessions[self.twin.runs[run]["parent"]]["mail"]]
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
        self.twin.leave_turn(session, completed=ending.status == "completed")
        fact: TurnClosed = self.log.facts(TurnClosed)[-1]
        assert (fact.status, fact.usage_tree.requests) == (ending.status, total)

    # ------------------------------------------------------------------------------------------- invariants

    @invariant()
    def every_run_is_as_the_twin_says(self) -> None:
        assert set(self.log.state.runs) == self.twin.remembered()
        for run, row in self.twin.runs.items():
            if row["state"] == "ended":
                continue
            held = self.log.state.runs[RunId(run)]
            assert held.status == ("queued" if row["state"] in ("queued", "parked") else "running")
            assert (held.waiting_for.kind if held.waiting_for else None) == WAITING_KIND[row["state"]]
            waits = row["state"] in ("queued", "parked")
            assert working_s(held, self.log.clock_s) == (0 if waits else self.twin.elapsed(run))

    @invariant()
    def no_run_settles_twice_and_no_slot_is_lost(self) -> None:
        settled = Counter(fact.run_id for fact in self.log.facts(RunSettled))
        assert set(settled) == set(self._runs("ended"))
        assert all(count == 1 for count in settled.values())
        book = self.log.state.book
        assert set(book.working) == set(self._runs("working")) == set(self.twin.line.working)
        assert set(book.waiting) == set(self._runs("queued", "wants"))
        assert set(book.parked) == set(self._runs("parked"))

    @invariant()
    def nobody_who_may_start_waits(self) -> None:
        assert Plan(self.log.state.book, self.log.state.caps).admit() == []

    @invariant()
    def a_child_runs_once_at_a_time_and_its_runs_begin_in_their_order(self) -> None:
        running = Counter(run.session_id for run in self.log.state.runs.values() if run.status == "running")
        assert all(count == 1 for count in running.values())
        accepted = [fact.run_id for fact in self.log.facts(RunQueued)]
        for child in self._children():
            begun = [accepted.index(fact.run_id) for fact in self.log.facts(RunStarted) if fact.child_id == child]
            assert begun == sorted(set(begun))

    @invariant()
    def every_run_of_a_child_has_the_depth_and_the_rights_of_its_first(self) -> None:
        first: dict[str, RunQueued] = {}
        for fact in self.log.facts(RunQueued):
            one = first.setdefault(fact.child_id, fact)
            assert (fact.depth, fact.spec.rights, fact.parent_id) == (one.depth, one.spec.rights, one.parent_id)

    @invariant()
    def only_what_is_open_stays_in_memory(self) -> None:
        assert set(self.log.state.sessions) == {s for s in self.twin.sessions if self.twin.in_memory(s)}

    def teardown(self) -> None:
        """End everything from the deepest up: nothing may be left."""
        if not self.twin.sessions:
            return
        for run in self._runs("queued", "parked"):
            driver.end_run(self.log, run[2:], CANCELLED)
        for run in sorted(self._runs(*RUNNING), key=lambda r: -self.twin.runs[r]["depth"]):
            driver.settle(self.log, run[2:], CANCELLED)
        for session in ROOTS:
            if self.twin.sessions[session]["turn"] is not None:
                driver.close(self.log, session, CANCELLED)
            if SessionId(session) in self.log.state.sessions:
                driver.set_policy(self.log, {"result.idle_parent": "store"}, session)
        state = self.log.state
        assert (state.sessions, state.runs, state.trees) == ({}, {}, {})
        book = state.book
        assert (book.total, dict(book.by_root), dict(book.by_parent), book.lines, book.ring) == (0, {}, {}, {}, {})
        assert (book.seats, book.parked, book.occupied, book.held) == ({}, {}, {}, {})


TestLifecycle = Lifecycle.TestCase
TestLifecycle.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
