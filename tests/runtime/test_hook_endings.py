"""While a hook is asked or told the world may end around it: its task ends, nothing is left, endings are honest."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from retinue.core.events import HookFailed, MessageUser, RunQueued, RunSettled, Warned
from retinue.core.ids import SessionId
from retinue.models.scripted import ScriptedModel
from retinue.ports import Deny, HookEvent, StoreError
from retinue.runtime.hooking import hook
from retinue.runtime.hooks import UNTOLD_MAX
from retinue.runtime.supervisor import QUIET_S
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.checkers import all_events, check_all
from retinue.testing.fakes import echo_tool
from retinue.testing.simloop import SimCrash
from retinue.testing.world import World, run_world
from tests.scenarios.hookstage import TELLING, Heard, deaf, failures, forever, hooks_of, log_of, root_ends, with_hooks
from tests.scenarios.stage import (
    AGAIN,
    Stage,
    Theatre,
    call,
    child,
    each_seed,
    parent,
    play,
    refusal,
    script,
    spawn,
)
from tests.sim.lives import kernel_in, open_root

SPAWN = "agent.subagent.spawn.before"
CHILD_POINTS = ("agent.turn.before", "agent.tool.before", SPAWN, "agent.turn.stop")
LINES = (
    parent("", spawn("kid", mode="await")),
    parent("done"),
    AGAIN,
    child("kid", "", call("echo", n=1), spawn("grandkid", mode="await")),
    child("kid", "found"),
    child("grandkid", "deep"),
)
Deed = Callable[[Stage, SessionId], Awaitable[object]]


class Asked:
    """A hook that hangs in a child, and knows whether it was asked and whether it was ended."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.ended = False

    async def hang(self, event: HookEvent) -> None:
        if event.depth != 1:
            return
        self.asked.set()
        try:
            await forever(event)
        finally:
            self.ended = True


async def cancel(stage: Stage, _: SessionId) -> None:
    await stage.kernel.scheduler.cancel(stage.run("kid").run_id)


async def interrupt(stage: Stage, _: SessionId) -> None:
    await stage.kernel.scheduler.interrupt(stage.run("kid").run_id, None)


async def interrupt_root(stage: Stage, root: SessionId) -> None:
    await stage.kernel.interrupt(root)


async def switch_off(stage: Stage, _: SessionId) -> None:
    await stage.kernel.set_switch(False)


async def shut_down(stage: Stage, _: SessionId) -> None:
    await stage.kernel.close()


async def delete(stage: Stage, root: SessionId) -> None:
    await stage.kernel.delete(root)


async def time_out(stage: Stage, _: SessionId) -> None:
    await stage.world.clock.sleep(20)


DEEDS: dict[str, tuple[Deed, tuple[str, str] | None]] = {
    "cancel": (cancel, ("cancelled", "cancelled")),
    "interrupt": (interrupt, ("interrupted", "interrupted")),
    "interrupt of the parent": (interrupt_root, ("cancelled", "parent_cancelled")),
    "switch-off": (switch_off, ("cancelled", "switched_off")),
    "shutdown": (shut_down, ("interrupted", "shutdown")),
    "time-out": (time_out, ("failed", "timeout")),
    "deletion": (delete, None),
}


@each_seed
@pytest.mark.parametrize("point", CHILD_POINTS)
@pytest.mark.parametrize("name", DEEDS)
def test_what_ends_a_run_ends_the_hook_that_it_waits_for(name: str, point: str, seed: int) -> None:
    deed, wanted = DEEDS[name]
    asked: list[Asked] = []

    async def scene(stage: Stage) -> None:
        root = await stage.root({"caps.max_depth": 2, "life.run_timeout_s": 10})
        await stage.kernel.prompt(root, "go")
        await asked[0].asked.wait()
        await deed(stage, root)
        assert asked[0].ended
        if name in ("cancel", "interrupt", "time-out", "switch-off"):
            await stage.kernel.tree_rests(root)

    def make(_: World) -> list[Any]:
        asked.append(Asked())
        return [hook(point, name="guard")(asked[0].hang)]

    life = play(script(*LINES), scene, tools=lambda _: [echo_tool()], parts=hooks_of(make), seed=seed)
    if wanted is None:
        assert life.events == []
        return
    settled = life.settled("kid")
    assert (settled.status, settled.reason) == wanted
    assert failures(life) == []
    assert life.told(Warned) == []


class FullDisk(SQLiteStore):
    """A store whose disk is full once a switch is on."""

    full = False

    def commit(self, batches: Any) -> None:
        if self.full:
            raise StoreError("The disk is full (a planned fault).")
        super().commit(batches)


@each_seed
@pytest.mark.parametrize("point", CHILD_POINTS)
def test_a_failed_store_ends_the_hook_and_every_wait(point: str, seed: int) -> None:
    store = FullDisk(":memory:")

    async def main(world: World) -> None:
        asked = Asked()
        hooks = [hook(point, name="guard")(asked.hang), hook(*TELLING, name="slow")(forever)]
        model = ScriptedModel(LINES, sleep=world.clock.sleep)
        kernel = kernel_in(world, store, model, tools=[echo_tool()], hooks=hooks)
        await kernel.start()
        root = await open_root(kernel, {"caps.max_depth": 2})
        work = await kernel.prompt(root, "go")
        await asked.asked.wait()
        store.full = True
        assert (await refusal(kernel.steer(root, "this cannot be stored"))).code == "store_failed"
        await work.done.wait()
        assert work.error is not None
        await kernel.close()
        assert asked.ended

    run_world(main, seed)
    events = all_events(store)
    assert check_all(events, at_rest=False) == []
    facts = [event.fact for event in events]
    assert not [fact for fact in facts if isinstance(fact, HookFailed)]
    assert not [fact for fact in facts if isinstance(fact, RunSettled) and fact.name == "kid"]


# -- who is asked for a program


def kid_hook(says: Any, **more: Any) -> Any:
    return with_hooks(Heard().hook(SPAWN, says=says, **more))


def test_a_start_that_is_cancelled_while_a_hook_is_asked_leaves_nothing() -> None:
    asked = asyncio.Event()

    async def hang(event: HookEvent) -> None:
        asked.set()
        await forever(event)

    async def scene(stage: Stage) -> None:
        starting = asyncio.ensure_future(stage.start(await stage.root()))
        await asked.wait()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    life = play(script(*LINES), scene, parts=kid_hook(hang))
    assert (life.told(RunQueued), failures(life), life.told(Warned)) == ([], [], [])


@pytest.mark.parametrize("is_deaf", [False, True])
def test_a_start_that_waits_for_a_hook_is_refused_when_the_runtime_closes(*, is_deaf: bool) -> None:
    asked = asyncio.Event()

    async def scene(stage: Stage) -> str:
        starting = asyncio.ensure_future(stage.start(await stage.root()))
        await asked.wait()
        await stage.kernel.close()
        if not is_deaf:
            assert starting.done()
        error = await refusal(starting)
        return error.code

    def make(world: World) -> list[Any]:
        async def body(event: HookEvent) -> None:
            asked.set()
            await (deaf(world.clock, 8)(event) if is_deaf else forever(event))

        return [hook(SPAWN, timeout_s=4)(body)]

    life = play(script(*LINES), scene, parts=hooks_of(make))
    assert life.value == "stopping"
    assert life.told(RunQueued) == []


@each_seed
@pytest.mark.parametrize("meaning", ["deny", "allow"])
def test_a_hook_that_fails_late_is_recorded_although_its_idle_session_has_left_memory(meaning: str, seed: int) -> None:
    async def late(_: HookEvent) -> None:
        await asyncio.sleep(5)
        raise ValueError("too late")

    async def scene(stage: Stage) -> SessionId:
        root = await stage.root({"hooks.on_failure": meaning})
        await stage.turn(root)
        starting = asyncio.ensure_future(stage.start(root))
        await stage.world.clock.sleep(1)
        await stage.root()
        assert root not in stage.kernel.journal.state.sessions
        if meaning == "deny":
            error = await refusal(starting)
            assert (error.code, "The hook guard failed (error)" in error.detail) == ("denied_hook", True)
        else:
            await (await starting).result
        return root

    life = play(script(parent("done"), child(None, "found")), scene, parts=kid_hook(late), seed=seed)
    assert life.value is not None
    (failed,) = [event.fact for event in log_of(life, life.value) if isinstance(event.fact, HookFailed)]
    assert failed.detail.startswith("ValueError: too late. ")
    assert len(life.told(RunQueued)) == (meaning == "allow")


def test_a_process_that_is_killed_while_a_hook_is_asked_leaves_a_log_that_a_restart_closes() -> None:
    def killed(_: HookEvent) -> None:
        raise SimCrash

    theatre = Theatre()
    assert theatre.live(script(*LINES), lambda stage: stage.go(), parts=kid_hook(killed)).crashed
    life = theatre.live(script(*LINES), lambda stage: stage.world.clock.sleep(1))
    assert [fact.reason for fact in root_ends(life)] == ["restart"]


@pytest.mark.parametrize("says", [None, "nonsense"])
def test_a_parent_that_is_deleted_while_a_hook_is_asked_gets_no_child(says: str | None) -> None:
    async def late(_: HookEvent) -> str | None:
        await asyncio.sleep(5)
        return says

    async def scene(stage: Stage) -> str:
        root = await stage.root({"hooks.on_failure": "allow"})
        starting = asyncio.ensure_future(stage.start(root))
        await stage.world.clock.sleep(1)
        await stage.kernel.delete(root)
        return (await refusal(starting)).code

    life = play(script(*LINES), scene, parts=kid_hook(late))
    assert (life.value, life.events) == ("denied_hook" if says else "not_found", [])


# -- who is only told


def test_what_an_observer_has_no_room_for_is_left_out_once_it_is_said_so() -> None:
    heard: list[int] = []
    gate = asyncio.Event()

    async def count(event: HookEvent) -> None:
        await gate.wait()
        heard.append(event.data["n"])

    async def scene(stage: Stage) -> None:
        root = await stage.root()
        for _ in range(2):
            for n in range(UNTOLD_MAX + 20):
                stage.kernel.hooks.observe("agent.tool.after", root, {"n": n})
                if not n:  # the first is being told
                    await stage.world.clock.sleep(1)
            gate.set()
            await stage.world.clock.sleep(1)
            gate.clear()

    hooks = with_hooks(hook("agent.tool.after", name="slow")(count), Heard().hook("agent.tool.after", says=None))
    life = play(script(*LINES), scene, parts=hooks)
    assert heard == [*range(UNTOLD_MAX + 1)] * 2
    full = [fact for fact in failures(life) if fact.hook == "slow"]
    assert [fact.code for fact in full] == ["overflow"] * 2
    assert full[0].detail.startswith(f"{UNTOLD_MAX} events wait for it already.")


@each_seed
def test_observers_hear_the_end_before_the_runtime_is_closed(seed: int) -> None:
    heard = Heard()

    async def scene(stage: Stage) -> None:
        root = await stage.root()
        await stage.kernel.prompt(root, "go")
        await stage.until(lambda events: any(isinstance(event.fact, MessageUser) for event in events))

    play(script(parent("slow", delay_ms=60_000)), scene, parts=with_hooks(heard.hook("agent.turn.closed")), seed=seed)
    assert [event.data["reason"] for event in heard.at("agent.turn.closed")] == ["shutdown"]


@pytest.mark.parametrize("is_deaf", [False, True])
def test_an_observer_that_hangs_holds_the_end_of_the_runtime_up_for_a_moment_only(*, is_deaf: bool) -> None:
    async def scene(stage: Stage) -> float:
        root = await stage.root()
        await stage.turn(root)
        began = stage.world.clock.monotonic()
        await stage.kernel.close()
        took_s = stage.world.clock.monotonic() - began
        stage.kernel.hooks.observe("agent.turn.closed", root, {})
        return took_s

    def make(world: World) -> list[Any]:
        return [hook(*TELLING, name="slow", timeout_s=600)(deaf(world.clock, 10) if is_deaf else forever)]

    life = play(script(parent("done")), scene, parts=hooks_of(make))
    assert life.value is not None
    assert life.value < (QUIET_S * 3 + 0.5 if is_deaf else QUIET_S + 0.5)
    assert root_ends(life)[0].status == "completed"


def test_of_a_session_that_was_deleted_meanwhile_nobody_is_told() -> None:
    heard = Heard()

    async def scene(stage: Stage) -> None:
        root = await stage.root()
        await stage.turn(root)
        await stage.kernel.delete(root)
        await stage.world.clock.sleep(10)

    async def slowly(_: HookEvent) -> None:
        await asyncio.sleep(5)

    hooks = with_hooks(heard.hook("agent.session.opened", "agent.turn.closed", says=slowly))
    life = play(script(parent("done")), scene, parts=hooks)
    assert heard.points() == ["agent.session.opened"]
    assert life.events == []


@pytest.mark.parametrize("is_idle", [False, True])
@pytest.mark.parametrize("gone", ["deleted", "full"])
def test_the_failure_of_an_observer_that_cannot_be_recorded_any_more_harms_nobody(gone: str, *, is_idle: bool) -> None:
    store = FullDisk(":memory:")
    failed: list[str] = []

    async def main(world: World) -> SessionId:
        async def late(event: HookEvent) -> None:
            await asyncio.sleep(5)
            failed.append(event.point)
            raise ValueError

        model = ScriptedModel([{"text": "done"}], sleep=world.clock.sleep)
        kernel = kernel_in(world, store, model, hooks=[hook("agent.session.opened", name="late")(late)])
        await kernel.start()
        root = await open_root(kernel)
        if is_idle:
            await (await kernel.prompt(root, "go")).done.wait()
        await open_root(kernel)
        if gone == "deleted":
            await kernel.delete(root)
        store.full = gone == "full"
        if store.full:
            assert (await refusal(kernel.change_policy(root, {"caps.max_depth": 2}))).code == "store_failed"
        await world.clock.sleep(20)
        await kernel.close()
        return root

    root = run_world(main, 1).value
    assert failed == ["agent.session.opened"] * 2
    told = [event.session_id for event in all_events(store) if isinstance(event.fact, HookFailed)]
    assert root not in told
    assert len(told) == (gone == "deleted")


class Unreadable(SQLiteStore):
    """A store in which no single row can be found."""

    broken = False

    def session(self, session_id: SessionId) -> Any:
        if self.broken:
            raise StoreError("The row is damaged (a planned fault).")
        return super().session(session_id)


def test_a_session_that_cannot_be_read_is_a_failure_on_record() -> None:
    heard = Heard()
    store = Unreadable(":memory:")

    async def slowly(_: HookEvent) -> None:
        await asyncio.sleep(5)

    async def scene(stage: Stage) -> None:
        root = await stage.root()
        await stage.turn(root)
        await stage.root()
        store.broken = True
        await stage.world.clock.sleep(20)

    hooks = with_hooks(heard.hook("agent.session.opened", "agent.turn.closed", says=slowly))
    life = Theatre(store=store).live(script(parent("done")), scene, parts=hooks)
    assert "The session could not be read: The row is damaged" in failures(life)[0].detail
    assert heard.points() == ["agent.session.opened", "agent.session.opened"]


# -- blocking functions


@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(2), KeyboardInterrupt(), StopIteration(), asyncio.CancelledError()], ids=repr
)
def test_a_blocking_function_may_raise_anything(error: BaseException) -> None:
    tool = echo_tool()

    def broken(_: HookEvent) -> None:
        raise error

    life = play(
        script(parent("", call("echo", n=1)), parent("done")),
        lambda stage: stage.go(),
        tools=lambda _: [tool],
        parts=with_hooks(hook("agent.tool.before", "agent.turn.closed", name="guard")(broken)),
    )
    assert tool.calls == []
    assert [fact.code for fact in failures(life)] == ["error", "error"]
    assert root_ends(life)[0].status == "completed"


def test_blocking_functions_answer_and_observe_off_the_loop() -> None:
    told: list[str] = []
    life = play(
        script(parent("", call("echo", n=1)), parent("done")),
        lambda stage: stage.go(),
        tools=lambda _: [echo_tool()],
        parts=with_hooks(
            hook("agent.tool.before")(lambda _: Deny(reason="no")),
            hook(*TELLING)(lambda event: told.append(event.point)),
        ),
    )
    assert told == ["agent.session.opened", "agent.turn.closed"]
    assert failures(life) == []
