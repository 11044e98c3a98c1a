"""Planned faults happen where they are planned, and nowhere else."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from retinue.core.ids import Digest, OutputId, RunId, SessionId
from retinue.core.policy import NAMES, named, with_changes
from retinue.core.state import State
from retinue.ports import (
    AssistantText,
    Batch,
    Delta,
    Finish,
    FinishCall,
    ModelRequest,
    Page,
    RunFilter,
    SeqConflict,
    StoreError,
    ToolSchema,
    UserText,
)
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.faults import (
    ACTS,
    ENDLESS,
    FAULTS,
    SLOW_STOP_S,
    Fault,
    FaultyModel,
    FaultyStore,
    SeededFaults,
    StorePlan,
    random_plan,
)
from retinue.testing.simloop import SimCrash, SimDeadlock
from retinue.testing.world import World, run_world
from tests.testing.tale import told

BATCHES: list[Batch] = []
_state = State()
for _event in told():
    _state.apply(_event)
    _runs, _sessions = _state.end_batch()
    BATCHES.append(Batch(events=(_event,), runs=_runs, sessions=_sessions))


def test_a_crash_before_a_commit_loses_it_and_a_crash_after_keeps_it() -> None:
    for plan, kept in ((StorePlan(crash_before=3), 2), (StorePlan(crash_after=3), 3)):
        inner = SQLiteStore(":memory:")
        store = FaultyStore(inner, plan)
        store.commit(BATCHES[:1])
        store.commit(BATCHES[1:2])
        with pytest.raises(SimCrash):
            store.commit(BATCHES[2:3])
        assert (inner.position(), store.commits, store.stored) == (kept, 3, kept)


def test_after_a_crash_the_old_life_is_refused_and_the_next_one_goes_on() -> None:
    inner = SQLiteStore(":memory:")
    first = FaultyStore(inner, StorePlan(crash_after=1))
    with pytest.raises(SimCrash):
        first.commit(BATCHES[:4])
    calls: list[Any] = [
        lambda: first.commit(BATCHES[4:5]),
        lambda: first.read(told()[0].session_id),
        lambda: first.tail(0),
        first.position,
        first.switch,
        lambda: first.last_seq(told()[0].session_id),
        lambda: first.session(told()[0].session_id),
        lambda: first.sessions(Page()),
        lambda: first.run(RunId("r_1")),
        lambda: first.runs(RunFilter(), Page()),
        lambda: first.blob(Digest("d")),
        lambda: first.output(OutputId("o_1")),
    ]
    for call in calls:
        with pytest.raises(SimCrash):
            call()
    first.close()
    second = FaultyStore(inner)
    second.commit(BATCHES[4:5])
    assert second.tail(0) == told()[:5]


def test_a_healthy_wrapper_answers_as_the_inner_store() -> None:
    inner = SQLiteStore(":memory:")
    store = FaultyStore(inner)
    store.commit(BATCHES)
    session_id = told()[0].session_id
    assert store.read(session_id, 2, 1) == inner.read(session_id, 2, 1)
    assert store.tail(3, session_id, 2) == inner.tail(3, session_id, 2)
    assert (store.position(), store.last_seq(session_id)) == (inner.position(), inner.last_seq(session_id))
    assert store.session(session_id) == inner.session(session_id)
    assert store.sessions(Page(), roots_only=False) == inner.sessions(Page(), roots_only=False)
    assert store.switch() is True
    store.commit([Batch(events=(), switch=False)])
    assert (store.switch(), inner.switch()) == (False, False)
    runs, _ = store.runs(RunFilter(), Page())
    assert [store.run(run.run_id) for run in runs] == runs
    assert (store.blob(Digest("d")), store.output(OutputId("o_1"))) == (None, None)


@pytest.mark.parametrize(
    ("plan", "error"), [(StorePlan(fail_at=2), StoreError), (StorePlan(conflict_at=2), SeqConflict)]
)
def test_a_failed_commit_stores_nothing_and_later_ones_are_counted(plan: StorePlan, error: type[Exception]) -> None:
    inner = SQLiteStore(":memory:")
    store = FaultyStore(inner, plan)
    store.commit(BATCHES[:1])
    with pytest.raises(error):
        store.commit(BATCHES[1:2])
    assert (inner.position(), store.after_failure) == (1, 0)
    store.commit(BATCHES[1:2])
    assert store.after_failure == 1


def test_slow_commits_take_virtual_time() -> None:
    async def main(world: World) -> list[bool]:
        store = FaultyStore(SQLiteStore(":memory:"), StorePlan(slow_every=2, slow_s=9.0), world.executor.slow)
        took: list[float] = []
        for number in range(4):
            began = world.clock.monotonic()
            await world.executor.run(store.commit, BATCHES[number : number + 1])
            took.append(world.clock.monotonic() - began)
        return [seconds >= 9.0 for seconds in took]

    assert run_world(main, 1).value == [False, True, False, True]


class Talker:
    """A model that says one sentence in two pieces and calls a tool."""

    def __init__(self) -> None:
        self.closed = 0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Finish]:
        try:
            yield Delta(kind="reasoning", text="hm")
            yield Delta(kind="text", text="one ")
            yield Delta(kind="text", text="two")
            call = FinishCall(name="echo", arguments="{}")
            yield Finish(reason="tool_calls", text="one two", tool_calls=(call,), usage=None)
        finally:
            self.closed += 1

    async def aclose(self) -> None:
        self.closed += 1


def request(number: int = 1, *, root: bool = False, session: str = "s_1") -> ModelRequest:
    return ModelRequest(
        session_id=SessionId(session),
        root=root,
        name="n",
        model="m",
        system="",
        messages=(UserText(text="hello"), AssistantText(text="yes")),
        tools=(ToolSchema(name="echo", description="", parameters={}),),
        number=number,
    )


def stream_of(fault: Fault | None, cancels: int = 0) -> tuple[list[Delta | Finish], Talker, float, bool]:
    """What a faulty model says, and how long it takes to stop after so many cancels."""

    async def main(world: World) -> tuple[list[Delta | Finish], Talker, float, bool]:
        talker, pieces = Talker(), []
        model = FaultyModel(talker, lambda _: fault, world.clock)

        async def read() -> None:
            pieces.extend([piece async for piece in model.stream(request())] if not cancels else [])
            async for piece in model.stream(request()) if cancels else _nothing():
                pieces.append(piece)  # noqa: PERF401 -- what came before a cancel counts

        task = asyncio.ensure_future(read())
        began = world.clock.monotonic()
        for _ in range(cancels):
            await world.clock.sleep(1)
            task.cancel()
        await asyncio.wait([task])
        assert [made[2] for made in model.made] == ([] if fault is None else [fault])
        return pieces, talker, world.clock.monotonic() - began, task.cancelled()

    value = run_world(main, 1).value
    assert value is not None
    return value


async def _nothing() -> AsyncGenerator[Delta | Finish]:
    for piece in ():
        yield piece


ENDINGS: dict[Fault, tuple[str, str]] = {
    "error_before": ("error", ""),
    "error_after": ("error", "one "),
    "rate_limit": ("error", ""),
    "unknown_tool": ("tool_calls", ""),
    "bad_arguments": ("tool_calls", ""),
    "finish_without_call": ("tool_calls", ""),
    "no_usage": ("tool_calls", "one two"),
    "refusal": ("refusal", ""),
    "empty": ("stop", ""),
    "token_limit": ("length", "an answer that was cut at its"),
    "reset": ("incomplete", "one two"),
}


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in ENDLESS])
def test_each_fault_ends_in_exactly_one_finish_that_says_what_was_streamed(fault: Fault) -> None:
    pieces, talker, _, _ = stream_of(fault)
    finish = pieces[-1]
    assert isinstance(finish, Finish)
    assert not any(isinstance(piece, Finish) for piece in pieces[:-1])
    assert (finish.reason, finish.text) == ENDINGS[fault]
    streamed = "".join(piece.text for piece in pieces if isinstance(piece, Delta) and piece.kind == "text")
    assert streamed == finish.text
    assert (finish.error is not None) is (finish.reason in ("error", "refusal", "incomplete"))
    assert talker.closed == (fault in ("error_after", "no_usage", "reset"))


def test_no_fault_changes_nothing() -> None:
    pieces, talker, _, _ = stream_of(None)
    assert [type(piece) for piece in pieces] == [Delta, Delta, Delta, Finish]
    assert talker.closed == 1


def test_a_hanging_model_ends_at_the_first_cancel_and_not_before() -> None:
    pieces, _, took, was_cancelled = stream_of("hang", cancels=1)
    assert (len(pieces), took, was_cancelled) == (1, 1.0, True)
    with pytest.raises(SimDeadlock):
        stream_of("hang")


def test_a_slow_stop_swallows_one_cancel_and_obeys_the_second() -> None:
    pieces, _, took, was_cancelled = stream_of("slow_stop", cancels=1)
    assert (type(pieces[-1]), took, was_cancelled) == (Finish, 1.0 + SLOW_STOP_S, False)
    _, _, took, was_cancelled = stream_of("slow_stop", cancels=2)
    assert (took, was_cancelled) == (2.0, True)


def test_seeded_faults_depend_on_session_and_number_alone() -> None:
    faults = SeededFaults(seed=1, rate=0.5)
    asked = [request(number, session=session) for number in range(1, 50) for session in ("s_1", "s_2")]
    chosen = [faults(one) for one in asked]
    assert chosen == [SeededFaults(seed=1, rate=0.5)(one) for one in reversed(asked)][::-1]
    assert 25 < sum(fault is not None for fault in chosen) < 75
    assert {fault for fault in chosen if fault} > {"reset", "refusal"}
    assert [SeededFaults(seed=1, rate=0.0)(one) for one in asked] == [None] * len(asked)


def test_a_root_hangs_only_where_somebody_interrupts_it() -> None:
    asked = [request(number, root=True) for number in range(1, 300)]
    assert not {SeededFaults(seed=1, rate=1.0)(one) for one in asked} & set(ENDLESS)
    assert {SeededFaults(seed=1, rate=1.0, endless_root=True)(one) for one in asked} >= set(ENDLESS)


def test_random_plans_are_repeatable_varied_and_of_switches_that_can_be_set() -> None:
    plans = [random_plan(random.Random(seed)) for seed in range(200)]
    assert plans == [random_plan(random.Random(seed)) for seed in range(200)]
    for plan in plans:
        with_changes(named(plan.policy_name), plan.policy, in_code=True)
    assert {plan.policy_name for plan in plans} == set(NAMES)
    assert {act for plan in plans for _, act in plan.acts} == {*ACTS, "switch_on", "delete"}
    assert any(not plan.acts for plan in plans)
    stores = [plan.store for plan in plans]
    assert sum(store == StorePlan(slow_every=store.slow_every) for store in stores) > 60
    for field in ("crash_before", "crash_after", "fail_at", "conflict_at"):
        assert any(getattr(store, field) for store in stores)
    assert any(plan.interrupt_at_s is not None for plan in plans)
    assert any(plan.steer_at_s is None for plan in plans)


def test_bad_arguments_are_no_json_object() -> None:
    pieces, _, _, _ = stream_of("bad_arguments")
    finish = pieces[-1]
    assert isinstance(finish, Finish)
    with pytest.raises(json.JSONDecodeError):
        json.loads(finish.tool_calls[0].arguments)
