"""B123: whatever a hook does is one of three things, allow, deny or failed, and what is said about it is the truth."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from retinue.core.events import HookFailed, RunQueued, RunSettled, ToolStarted, TurnClosed, Warned
from retinue.ports import Deny, Hook, HookEvent
from retinue.runtime.hooking import POINTS, hook
from retinue.runtime.hooks import CUT_MARK, REASON_MAX_CHARS
from retinue.testing.fakes import FakeTool, echo_tool
from retinue.testing.world import World
from tests.scenarios.hookstage import TELLING, deaf, forever, hooks_of, refused, root_ends, started_tools
from tests.scenarios.stage import AGAIN, Life, Stage, call, child, parent, play, script, spawn

LIMIT_S = 2.0
ASKING = ("agent.turn.before", "agent.tool.before", "agent.subagent.spawn.before")
Body = Callable[[HookEvent], Any]


@dataclass(frozen=True)
class OwnHook:
    """A hook that is made by hand: nothing looked at its body before it is asked."""

    body: Callable[..., Any]
    points: frozenset[str]
    name: str = "guard"
    timeout_s: float = LIMIT_S

    async def call(self, event: HookEvent, offload: Callable[..., Any]) -> Any:
        answer = self.body(event)
        return await answer if asyncio.iscoroutine(answer) else answer


class Blunt(BaseException):
    """Like a KeyboardInterrupt, it is no `Exception`."""


class MuteError(Exception):
    """It cannot even say what it is."""

    def __str__(self) -> str:
        raise ZeroDivisionError


class Answer:
    """An object that the runtime has never heard of."""


def says(answer: object) -> Body:
    return lambda _: answer


def raises(error: BaseException) -> Body:
    def body(_: HookEvent) -> None:
        raise error

    return body


async def yields(_: HookEvent) -> AsyncIterator[None]:
    yield None


async def cancels_itself(_: HookEvent) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await forever(_)


ALLOW = "allow"
BODIES: dict[str, tuple[Any, str | tuple[str, str]]] = {
    "null": (says(None), ALLOW),
    "Deny": (says(Deny(reason="not today")), "not today"),
    "Deny without a reason": (says(Deny(reason="")), "The hook guard gave no reason."),
    "Deny with a blank reason": (says(Deny(reason=" \n\t ")), "The hook guard gave no reason."),
    "Deny of many lines": (says(Deny(reason="one\ntwo\r\nthree")), "one\ntwo\r\nthree"),
    "Deny of half a character": (says(Deny(reason="bad \ud83d end")), "bad \ufffd end"),
    "Deny of a megabyte": (says(Deny(reason="🪐" * 262_144)), "🪐" * REASON_MAX_CHARS + CUT_MARK),
    "Deny of a number": (says(Deny(reason=7)), ("unreadable", "Deny")),  # pyright: ignore[reportArgumentType] - a hook may say anything
    "Deny itself": (says(Deny), ("unreadable", "StructMeta")),
    "true": (says(True), ("unreadable", "bool")),
    "false": (says(False), ("unreadable", "bool")),
    "text": (says("deny"), ("unreadable", "str")),
    "dict": (says({"decision": "block"}), ("unreadable", "dict")),
    "object": (says(Answer()), ("unreadable", "Answer")),
    "async generator": (yields, ("unreadable", "async_generator")),
    "error": (raises(ValueError("oh no")), ("error", "ValueError: oh no.")),
    "error of a megabyte": (raises(ValueError("🪐" * 262_144)), ("error", "ValueError: 🪐")),
    "error of half a character": (raises(ValueError("\udc80")), ("error", "ValueError: \ufffd.")),
    "error without words": (raises(MuteError()), ("error", "MuteError.")),
    "StopIteration": (raises(StopIteration()), ("error", "StopIteration")),
    "SystemExit": (raises(SystemExit(3)), ("error", "end the process with 3")),
    "no Exception": (raises(Blunt("out")), ("error", "Blunt: out.")),
    "GeneratorExit": (raises(GeneratorExit()), ("error", "GeneratorExit")),
    "group": (raises(BaseExceptionGroup("two", [Blunt(), ValueError()])), ("error", "BaseExceptionGroup: two")),
    "CancelledError": (raises(asyncio.CancelledError()), ("error", "It was cancelled.")),
    "cancels itself": (cancels_itself, ("error", "It was cancelled.")),
    "not callable": (None, ("error", "TypeError")),
    "two parameters": (lambda _, __: None, ("error", "TypeError")),
    "hangs": (forever, ("timeout", "It did not answer within 2 s.")),
}


@dataclass
class Played:
    """One turn with a call of a tool and a child, and what became of the tool."""

    life: Life[Any]
    tool: FakeTool = field(default_factory=echo_tool)


def played(hooks: Callable[[World], list[Hook]], meaning: str) -> Played:
    tool = echo_tool()

    async def scene(stage: Stage) -> None:
        await stage.to_rest({"hooks.on_failure": meaning})
        await stage.world.clock.sleep(60)

    lines = (parent("", call("echo", n=1), spawn("kid", mode="await")), parent("done"), AGAIN, child("kid", "found"))
    life = play(script(*lines), scene, tools=lambda _: [tool], parts=hooks_of(hooks))
    return Played(life, tool)


def one(body: Body, point: str) -> Callable[[World], list[Hook]]:
    return lambda _: [OwnHook(body, frozenset((point,)))]


def said_of(life: Life[Any], point: str) -> str:
    """Return what was said about what did not happen."""
    return (root_ends(life)[0].detail or "") if point == "agent.turn.before" else refused(life)[0].text


def happened(done: Played) -> dict[str, bool]:
    """Look at the world: which of the things that hooks are asked about took place."""
    life = done.life
    assert bool(done.tool.calls) == ("echo" in started_tools(life))
    kid = any(request.name == "kid" for request in life.requests)
    assert kid == bool(life.told(RunQueued))
    return {
        "agent.turn.before": any(request.name == "main" for request in life.requests),
        "agent.tool.before": bool(done.tool.calls),
        "agent.subagent.spawn.before": kid,
    }


@pytest.mark.parametrize("point", ASKING)
@pytest.mark.parametrize("meaning", ["deny", "allow"])
@pytest.mark.parametrize("name", BODIES)
def test_B123_what_was_denied_did_not_happen_and_what_is_said_is_the_truth(name: str, meaning: str, point: str) -> None:
    body, verdict = BODIES[name]
    done = played(one(body, point), meaning)
    failed = isinstance(verdict, tuple)
    allowed = verdict == ALLOW or (failed and meaning == "allow")
    assert happened(done)[point] is allowed
    facts = done.life.told(HookFailed)
    if not allowed:
        said = said_of(done.life, point)
        if failed:
            assert f"The hook guard failed ({verdict[0]}), which counts as a no here." in said
        else:
            assert verdict.encode("unicode_escape").decode()[:40] in said or verdict[:40] in said
    if not failed:
        assert facts == []
        return
    # A tool hook is asked about both calls.
    assert len(facts) == (2 if point == "agent.tool.before" else 1) + (point == "agent.turn.before" and allowed)
    for fact in facts:
        assert (fact.hook, fact.code) == ("guard", verdict[0])
        assert verdict[1] in fact.detail
        meant = "It counts as a no" if meaning == "deny" else "It was passed over"
        assert fact.detail.endswith(f" {meant} (hooks.on_failure).")
        assert len(fact.detail) < REASON_MAX_CHARS + 100


@pytest.mark.parametrize("name", [name for name, (_, verdict) in BODIES.items() if isinstance(verdict, tuple)])
def test_B123_a_stop_hook_that_fails_in_whatever_way_lets_the_turn_end(name: str) -> None:
    body, verdict = BODIES[name]
    done = played(one(body, "agent.turn.stop"), "deny")
    (end,) = root_ends(done.life)
    assert (end.status, end.text) == ("completed", "done")
    assert [(fact.code, fact.detail.endswith(" The turn may end.")) for fact in done.life.told(HookFailed)] == [
        (verdict[0], True)
    ] * 2
    assert len(done.life.requests) == 3


@pytest.mark.parametrize("meaning", ["deny", "allow"])
@pytest.mark.parametrize("name", BODIES)
def test_B123_whatever_an_observer_does_everything_takes_place(name: str, meaning: str) -> None:
    body, verdict = BODIES[name]
    done = played(lambda _: [OwnHook(body, frozenset(TELLING))], meaning)
    assert all(happened(done).values())
    assert {fact.status for fact in done.life.told(TurnClosed)} == {"completed"}
    assert [fact.status for fact in done.life.told(RunSettled)] == ["completed"]
    assert len(done.life.told(ToolStarted)) == 2
    facts = done.life.told(HookFailed)
    # 2 sessions, 2 turns, 2 calls, a child that began and ended; what an observer answers is not looked at.
    failed = isinstance(verdict, tuple) and verdict[0] != "unreadable"
    assert len(facts) == (8 if failed else 0)
    assert all(fact.detail.endswith("It only observes: nothing was stopped.") for fact in facts)


@pytest.mark.parametrize("point", [*ASKING, "agent.turn.stop", "agent.turn.closed"])
def test_B123_a_hook_that_ignores_its_cancel_is_left_behind_with_a_warning(point: str) -> None:
    def make(world: World) -> list[Hook]:
        return [OwnHook(deaf(world.clock, 40), frozenset((point,)))]

    life = played(make, "deny").life
    failed = life.told(HookFailed)
    assert {fact.code for fact in failed} == {"timeout"}
    assert all("It did not stop when told and was left behind." in fact.detail for fact in failed)
    warned = life.told(Warned)
    # That of an observer may come when its session is idle; its failure says the same.
    assert len(warned) == (0 if point == "agent.turn.closed" else len(failed))
    assert all(fact.code == "detached" and fact.text.startswith("The hook guard of s_") for fact in warned)
    assert all(fact.status != "running" for fact in life.told(RunSettled))


def test_with_two_hooks_a_failed_one_that_is_passed_over_leaves_the_word_to_the_next() -> None:
    def make(_: World) -> list[Hook]:
        points = frozenset(("agent.tool.before",))
        return [OwnHook(raises(ValueError()), points, "broken"), OwnHook(says(Deny(reason="no")), points, "strict")]

    done = played(make, "allow")
    assert (done.tool.calls, {fact.hook for fact in done.life.told(HookFailed)}) == ([], {"broken"})
    assert "A hook denied echo: no" in refused(done.life)[0].text


def test_arguments_that_cannot_be_shown_to_a_hook_are_not_waved_through() -> None:
    deep: Any = []
    for _ in range(400):
        deep = [deep]
    asked: list[HookEvent] = []
    tool = echo_tool()
    life = play(
        script(parent("", call("echo", n=deep)), parent("done")),
        lambda stage: stage.go(),
        tools=lambda _: [tool],
        parts=hooks_of(lambda _: [OwnHook(asked.append, frozenset(("agent.tool.before",)))]),
    )
    assert len(asked) == len(tool.calls)
    assert root_ends(life)[0].status == "completed"


# -- functions as hooks


def test_an_async_function_runs_on_the_loop_and_any_other_off_it() -> None:
    ran: list[str] = []

    async def offload(call: Callable[..., Any], *args: Any) -> Any:
        ran.append("off")
        return call(*args)

    @hook("agent.tool.before")
    async def on(event: HookEvent) -> Deny | None:
        return Deny(reason=event.point)

    @hook("agent.tool.before", name="other", timeout_s=1)
    def off(event: HookEvent) -> Deny | None:
        return Deny(reason=event.cwd)

    class Both:
        async def __call__(self, event: HookEvent) -> Deny | None:
            return Deny(reason=event.session_id)

    ids: dict[str, Any] = {"session_id": "s", "root_id": "s", "agent": None}
    event = HookEvent(point="agent.tool.before", depth=0, cwd="/", data={}, **ids)

    async def main() -> list[Any]:
        made = [on, off, hook("agent.turn.stop")(Both()), hook("agent.turn.stop")(lambda event: Both()(event))]
        return [await one.call(event, offload) for one in made]

    assert [answer.reason for answer in asyncio.run(main())] == ["agent.tool.before", "/", "s", "s"]
    assert ran == ["off"] * 3
    assert (on.name, off.name, on.points, off.timeout_s) == ("on", "other", frozenset(("agent.tool.before",)), 1)
    assert off(event) == Deny(reason="/")


def test_the_points_that_can_be_named_are_those_of_the_port() -> None:
    assert hook(*POINTS)(forever).points == frozenset(POINTS)
    assert len(POINTS) == 9
