"""The runner and its ports: what is left is found, a crash is final, one seed is one world."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from retinue.testing.simloop import SimCrash, SimLeak
from retinue.testing.world import CountingIds, World, WorldOptions, run_world


def test_a_task_that_is_left_is_named() -> None:
    async def linger() -> None:
        await asyncio.sleep(10)

    async def main(world: World) -> None:
        world.loop.create_task(linger(), name="lingerer")

    with pytest.raises(SimLeak) as caught:
        run_world(main, 1)
    assert "the task lingerer is left" in str(caught.value)
    assert "a timer" in str(caught.value)


def test_a_timer_alone_is_found_and_a_cancelled_one_is_none() -> None:
    async def main(world: World) -> None:
        world.loop.call_later(5, print)
        world.loop.call_later(6, print).cancel()

    result = run_world(main, 1, WorldOptions(strict=False))
    assert result.problems == ("a timer for second 1005.000 is left",)


def test_a_callback_that_calls_itself_for_ever_is_found() -> None:
    async def main(world: World) -> None:
        def again() -> None:
            world.loop.call_soon(again)

        again()

    with pytest.raises(SimLeak, match="a callback is left"):
        run_world(main, 1)


def test_callbacks_that_only_have_to_end_are_no_leak() -> None:
    async def tail(depth: int) -> None:
        if depth:
            await asyncio.ensure_future(tail(depth - 1))

    async def main(_: World) -> "asyncio.Task[None]":
        return asyncio.ensure_future(tail(10))

    for seed in range(20):
        assert run_world(main, seed).problems == ()


def test_an_async_generator_left_open_is_found() -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    async def main(_: World) -> AsyncIterator[int]:
        stream = numbers()
        await anext(stream)
        return stream

    with pytest.raises(SimLeak, match=r"async generator .*numbers is left open"):
        run_world(main, 1)


def test_a_thread_that_was_started_is_found() -> None:
    stop = threading.Event()

    async def main(_: World) -> None:
        threading.Thread(target=stop.wait, name="stray", daemon=True).start()

    try:
        with pytest.raises(SimLeak, match="the thread stray was started"):
            run_world(main, 1)
    finally:
        stop.set()


def test_the_failure_of_the_main_coroutine_comes_out_with_the_seed() -> None:
    async def main(_: World) -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken") as caught:
        run_world(main, 42)
    assert caught.value.__notes__ == ["seed 42, pass 2, virtual second 1000.000"]


class Disk:
    """Stands for a store: what is written here survives."""

    def __init__(self) -> None:
        self.lines: list[str] = []


async def write_late(world: World, disk: Disk) -> None:
    await world.executor.run(disk.lines.append, "written after the crash")


async def cleaner(world: World, disk: Disk) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        await write_late(world, disk)


async def stubborn(world: World, disk: Disk) -> None:
    while True:
        try:
            await world.clock.sleep(0.5)
        except BaseException:  # noqa: BLE001 -- code as bad as this must not outlive a crash
            await write_late(world, disk)


async def kill_in_task(_: World, disk: Disk) -> None:
    disk.lines.append("last words")
    raise SimCrash


async def kill_in_executor(world: World, disk: Disk) -> None:
    def kill() -> None:
        disk.lines.append("last words")
        raise SimCrash

    await world.executor.run(kill)


async def swallow_the_kill(world: World, disk: Disk) -> None:
    try:
        await kill_in_executor(world, disk)
    except BaseException:  # noqa: BLE001 -- code as bad as this must not outlive a crash
        await write_late(world, disk)


async def kill_in_callback(world: World, disk: Disk) -> None:
    def kill() -> None:
        disk.lines.append("last words")
        raise SimCrash

    world.loop.call_later(1, kill)
    await asyncio.Event().wait()


KILLERS = [kill_in_task, kill_in_executor, swallow_the_kill, kill_in_callback]


def crash_with(killer: Callable[[World, Disk], Awaitable[None]], disk: Disk) -> bool:
    async def main(world: World) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(cleaner(world, disk))
            group.create_task(stubborn(world, disk))
            await world.clock.sleep(2)
            await killer(world, disk)

    result = run_world(main, 9)
    assert result.value is None
    return result.crashed


@pytest.mark.parametrize("killer", KILLERS)
def test_a_crash_ends_everything_at_once_wherever_it_happens(
    killer: Callable[[World, Disk], Awaitable[None]],
) -> None:
    disk = Disk()
    assert crash_with(killer, disk)
    assert disk.lines == ["last words"]


def test_a_crash_says_nothing_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    for killer in KILLERS:
        crash_with(killer, Disk())
    assert capsys.readouterr().err == ""


def test_a_cancelled_call_of_the_executor_has_happened_all_the_same() -> None:
    done: list[int] = []

    async def main(world: World) -> None:
        task = asyncio.ensure_future(world.executor.run(done.append, 1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    run_world(main, 1, WorldOptions(shuffle=False))
    assert done == [1]


def test_the_executor_returns_raises_and_is_slow_in_virtual_time() -> None:
    async def main(world: World) -> tuple[int, str, bool]:
        value = await world.executor.run(int, "12", base=8)
        with pytest.raises(ValueError, match="invalid literal") as caught:
            await world.executor.run(int, "x")
        began = world.clock.monotonic()
        await world.executor.run(world.executor.slow, 30.0)
        slow = world.clock.monotonic() - began
        await world.executor.run(int)
        return value, str(caught.value), 30 <= slow <= 30.02 and world.clock.monotonic() - began <= 30.04

    assert run_world(main, 1).value == (10, "invalid literal for int() with base 10: 'x'", True)


def test_the_wall_clock_follows_virtual_time_and_jumps_alone() -> None:
    async def main(world: World) -> tuple[str, str, float]:
        before = world.clock.wall()
        await world.clock.sleep(1.5)
        world.clock.jump(-3600)
        return before, world.clock.wall(), world.clock.monotonic()

    assert run_world(main, 1).value == ("2030-01-01T00:16:40.000Z", "2029-12-31T23:16:41.500Z", 1001.5)


def test_ids_count_for_each_prefix_and_go_on_in_the_next_life() -> None:
    ids = CountingIds()

    async def main(world: World) -> list[str]:
        return [world.ids.new("s"), world.ids.new("s"), world.ids.new("r")]

    assert run_world(main, 1, WorldOptions(ids=ids)).value == ["s_0001", "s_0002", "r_0001"]
    assert run_world(main, 1, WorldOptions(ids=ids)).value == ["s_0003", "s_0004", "r_0002"]


PROGRAM = """
import asyncio
from retinue.testing.world import World, run_world

async def worker(world, name, log):
    for step in range(5):
        await world.executor.run(log.append, f"{world.clock.wall()} {name} {step} {world.ids.new('s')}")
        await world.clock.sleep(world.rng.random())

async def main(world):
    log = []
    async with asyncio.TaskGroup() as group:
        for name in ("a", "b", "c"):
            group.create_task(worker(world, name, log))
    return log

result = run_world(main, 11)
print(*result.value, result.passes, result.now_s, sep="\\n")
"""


def test_one_seed_is_one_world_in_every_process() -> None:
    source = str(Path(__file__).parents[2] / "src")
    runs = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": source},
            capture_output=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "4711")
    }
    assert len(runs) == 1
    assert len(runs.pop().splitlines()) == 17


def test_the_collector_is_off_in_a_world_and_on_again_after_it() -> None:
    async def main(_: World) -> bool:
        return gc.isenabled()

    assert run_world(main, 1).value is False
    assert gc.isenabled()
