"""The virtual loop: order, time, dead ends, and the things it refuses."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from retinue.testing.simloop import FORBIDDEN, SimDeadlock, SimForbiddenError, SimLivelock, SimLoop
from retinue.testing.world import World, WorldOptions, run_world


def trace_of(seed: int, *, shuffle: bool = True) -> list[str]:
    seen: list[str] = []

    async def worker(name: str) -> None:
        for step in range(3):
            seen.append(f"{name}{step}")
            await asyncio.sleep(0)

    async def main(world: World) -> None:
        async with asyncio.TaskGroup() as group:
            for name in "abcd":
                group.create_task(worker(name))

    run_world(main, seed, WorldOptions(shuffle=shuffle))
    return seen


def test_without_shuffling_the_order_is_that_of_asyncio() -> None:
    assert trace_of(1, shuffle=False) == [f"{name}{step}" for step in range(3) for name in "abcd"]


def test_seeds_change_the_order_and_one_seed_never_does() -> None:
    orders = {tuple(trace_of(seed)) for seed in range(20)}
    assert len(orders) > 10
    assert trace_of(7) == trace_of(7)


def test_time_moves_only_when_nothing_is_ready_and_never_really_passes() -> None:
    async def main(world: World) -> tuple[float, float]:
        began = world.clock.monotonic()
        spinner = asyncio.ensure_future(spin())
        await asyncio.sleep(1)
        busy = world.clock.monotonic() - began
        await spinner
        await world.clock.sleep(86_400)
        return busy, world.clock.monotonic() - began

    async def spin() -> None:
        for _ in range(500):
            await asyncio.sleep(0)

    result = run_world(main, 3)
    assert result.value == (1.0, 86_401.0)


def test_a_wait_that_nobody_can_end_is_a_deadlock_that_names_the_task_and_its_place() -> None:
    async def inner() -> None:
        await asyncio.Event().wait()

    async def main(_: World) -> None:
        await asyncio.ensure_future(inner())

    with pytest.raises(SimDeadlock) as caught:
        run_world(main, 5)
    said = str(caught.value)
    assert "main waits at" in said
    assert "inner" in said
    assert "Event.wait" in said
    assert any("seed 5" in note for note in caught.value.__notes__)


def test_passes_without_time_moving_are_a_livelock() -> None:
    async def main(_: World) -> None:
        while True:  # noqa: ASYNC110 -- the livelock under test
            await asyncio.sleep(0)

    with pytest.raises(SimLivelock, match="without time moving"):
        run_world(main, 1, WorldOptions(still_passes_max=50))


def test_a_world_that_never_ends_meets_the_pass_limit() -> None:
    async def main(_: World) -> None:
        while True:  # noqa: ASYNC110 -- the endless world under test
            await asyncio.sleep(1)

    with pytest.raises(SimLivelock, match="did not end in 200 passes"):
        run_world(main, 1, WorldOptions(passes_max=200))


@pytest.mark.parametrize("name", FORBIDDEN)
def test_the_loop_refuses_to_leave_its_thread(name: str) -> None:
    loop = SimLoop(0)
    try:
        with pytest.raises(SimForbiddenError, match=name):
            getattr(loop, name)(None)
    finally:
        loop.close()


def test_to_thread_is_refused_inside_a_world() -> None:
    async def main(_: World) -> None:
        await asyncio.to_thread(len, "x")

    with pytest.raises(SimForbiddenError, match="run_in_executor"):
        run_world(main, 1)


def test_a_foreign_thread_is_refused_at_the_door() -> None:
    loop = SimLoop(0)
    refused: list[Exception] = []

    def knock() -> None:
        try:
            loop.call_soon_threadsafe(print)
        except SimForbiddenError as error:
            refused.append(error)

    thread = threading.Thread(target=knock)
    thread.start()
    thread.join()
    loop.close()
    assert len(refused) == 1


def test_a_timer_that_never_comes_is_refused() -> None:
    async def main(world: World) -> None:
        await world.clock.sleep(float("inf"))

    with pytest.raises(SimForbiddenError, match="never comes"):
        run_world(main, 1)


async def times_out(_: World) -> str:
    try:
        async with asyncio.timeout(5):
            await asyncio.Event().wait()
    except TimeoutError:
        return "timeout"
    return "none"


async def waits_for(_: World) -> str:
    try:
        await asyncio.wait_for(asyncio.Event().wait(), 5)
    except TimeoutError:
        return "timeout"
    return "none"


async def groups(_: World) -> str:
    async def fail() -> None:
        raise ValueError("no")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.Event().wait())
            group.create_task(fail())
    except* ValueError:
        ended = "failed"
    else:
        ended = "none"
    return ended


async def waits(_: World) -> str:
    tasks = [asyncio.ensure_future(asyncio.sleep(n, n)) for n in (3, 1, 2)]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.wait(pending)
    return ",".join(str(task.result()) for task in done)


async def queues(_: World) -> str:
    queue: asyncio.Queue[int] = asyncio.Queue(2)

    async def produce() -> None:
        for number in range(5):
            await queue.put(number)

    producer = asyncio.ensure_future(produce())
    got = [await queue.get() for _ in range(5)]
    await producer
    return str(got)


async def locks(_: World) -> str:
    lock, inside, most = asyncio.Lock(), 0, 0

    async def enter() -> None:
        nonlocal inside, most
        async with lock:
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.1)
            inside -= 1

    await asyncio.gather(*(enter() for _ in range(4)))
    return str(most)


@pytest.mark.parametrize(
    ("main", "wanted"),
    [
        (times_out, "timeout"),
        (waits_for, "timeout"),
        (groups, "failed"),
        (waits, "1"),
        (queues, "[0, 1, 2, 3, 4]"),
        (locks, "1"),
    ],
)
def test_what_asyncio_offers_works_in_any_order(main: Callable[[World], Awaitable[str]], wanted: str) -> None:
    assert {run_world(main, seed).value for seed in range(25)} == {wanted}


def test_the_hook_can_cancel_at_every_pass() -> None:
    async def body() -> None:
        for _ in range(4):
            await asyncio.sleep(0)

    def cancelled_at(number: int) -> str:
        async def main(world: World) -> str:
            task = asyncio.ensure_future(body())

            def cancel(made: int) -> None:
                if made == number:
                    task.cancel()

            world.loop.on_pass = cancel
            await asyncio.wait([task])
            return "cancelled" if task.cancelled() else "done"

        return str(run_world(main, 1).value)

    ends = [cancelled_at(number) for number in range(1, 12)]
    assert "cancelled" in ends
    assert ends[-1] == "done"


def test_exceptions_that_nobody_retrieves_are_problems() -> None:
    async def fail() -> None:
        raise ValueError("lost")

    async def main(_: World) -> None:
        task = asyncio.ensure_future(fail())
        await asyncio.wait([task])
        del task

    result = run_world(main, 1, WorldOptions(strict=False))
    assert any("never retrieved" in problem and "lost" in problem for problem in result.problems)
