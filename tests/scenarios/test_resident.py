"""Scenarios of DSH under `resident`: depth, outcomes, starting and disposing."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from retinue.core.errors import RetinueError
from retinue.core.events import (
    LetterQueued,
    RunQueued,
    RunSettled,
    RunStarted,
    SessionDeleted,
    SessionOpened,
)
from retinue.core.ids import SessionId
from retinue.core.policy import named, with_changes
from retinue.core.run import Run
from retinue.ports import Delta, Finish, ModelRequest, Piece, ToolContext, ToolResult
from retinue.runtime.handles import Child
from retinue.testing.fakes import FakeTool
from tests.scenarios.stage import (
    AGAIN,
    FunctionModel,
    Life,
    Stage,
    Theatre,
    body_of,
    call,
    calls,
    child,
    code_of,
    each_seed,
    parent,
    payload_of,
    places,
    play,
    says,
    script,
    spawn,
)

UNDER = "resident"
DIAGNOSTIC_MAX_BYTES = 4096


async def _settled(stage: Stage, count: int) -> None:
    await stage.until(lambda events: len(places(events, RunSettled)) >= count)


def _depths(life: Life[Any], name: str) -> list[int]:
    """Return the depth of each run with a name, as it was accepted."""
    return [fact.depth for fact in life.told(RunQueued) if fact.name == name]


NESTING = (
    parent("ok"),
    AGAIN,
    child("kid", "first"),
    child("kid", "", spawn("deep", max_depth=5)),
    child("kid", "second"),
    AGAIN,
    child("deep", "", spawn("deeper")),
    child("deep", "found"),
    AGAIN,
    child("deeper", "found"),
)


@each_seed
def test_S16_the_depth_of_a_resumed_child_comes_from_its_stored_header_not_from_fresh_options(seed: int) -> None:
    theatre = Theatre(seed=seed)

    async def begin(stage: Stage) -> SessionId:
        kid = await stage.subagents.start_continuable(
            "spawn", parent=await stage.root(under=UNDER), prompt="x", name="kid"
        )
        await _settled(stage, 1)
        return kid.session_id

    kid_id = theatre.live(script(*NESTING), begin).value
    assert kid_id is not None

    async def resume(stage: Stage) -> None:
        root = stage.run("kid").parent_id
        await stage.kernel.change_policy(root, {"caps.max_depth": 2})
        await stage.subagents.followup(root, kid_id, "and now delegate")
        await stage.kernel.tree_rests(root)

    life = theatre.live(script(*NESTING), resume)
    assert set(_depths(life, "kid")) == {1}
    assert _depths(life, "deep") == [2]
    (refusal,) = life.answers(1, "deep")
    assert code_of(refusal) == "depth_exceeded"
    assert "depth 3; the cap is 2" in refusal.text
    headers = {event.session_id: event.fact for event in life.events if isinstance(event.fact, SessionOpened)}
    assert headers[kid_id].depth == 1


@each_seed
def test_S17_limits_set_at_run_time_may_narrow_but_never_undo_the_depth_that_is_stored(seed: int) -> None:
    """No door of ours takes a depth, only caps; so a depth can be counted from the stored one alone, on every path."""
    theatre = Theatre(seed=seed)

    async def begin(stage: Stage) -> SessionId:
        root = await stage.root(under=UNDER)
        kid = await stage.subagents.start_continuable("spawn", parent=root, prompt="x", name="kid", max_depth=2)
        await _settled(stage, 1)
        return kid.session_id

    kid_id = theatre.live(script(*NESTING), begin).value
    assert kid_id is not None

    async def resume(stage: Stage) -> None:
        root = stage.run("kid").parent_id
        await stage.kernel.change_policy(root, {"caps.max_depth": 9})
        await stage.subagents.followup(root, kid_id, "and now delegate")
        await stage.kernel.tree_rests(root)

    life = theatre.live(script(*NESTING), resume)
    (refusal,) = life.answers(1, "deep")
    assert "depth 3; the cap is 2" in refusal.text  # neither the policy nor the call's own 5 widens what was frozen
    assert len(_depths(life, "kid")) > 2  # a letter of its child has started a run of it, too
    assert set(_depths(life, "kid")) == {1}
    assert set(_depths(life, "deep")) == {2}


@pytest.mark.parametrize("bad", [-1, 1.5, -0.0, float("nan"), float("-inf"), True])
def test_S18_an_invalid_cap_is_refused_before_the_provider_is_asked(bad: object) -> None:
    """A provider that does not exist is what would be found out next."""

    async def scene(stage: Stage) -> list[str]:
        root = await stage.root(under=UNDER)
        before = stage.events()
        codes: list[str] = []
        for start in (stage.subagents.start, stage.subagents.start_continuable):
            with pytest.raises(RetinueError) as refused:
                await start("nobody", parent=root, prompt="x", max_depth=bad)
            codes.append(refused.value.code)
        with pytest.raises(RetinueError) as unset:
            await stage.kernel.change_policy(root, {"caps.max_depth": bad})
        assert stage.events() == before
        return [*codes, unset.value.code]

    life = play(script(parent("never said")), scene)
    assert life.value == ["invalid"] * 3
    with pytest.raises(RetinueError) as refused:
        with_changes(named(UNDER), {"caps.max_depth": bad}, in_code=True)
    assert refused.value.code == "invalid"


@pytest.mark.parametrize("bad", [-1, 1.5, -0.0])
def test_S18_an_invalid_cap_in_a_models_call_is_refused_and_starts_nothing(bad: float) -> None:
    lines = (parent("", spawn("kid", max_depth=bad)), parent("ok"))
    life = play(script(*lines), lambda stage: stage.go(under=UNDER))
    assert [code_of(answer) for answer in life.answers()] == ["invalid"]
    assert life.told(RunQueued) == []


@each_seed
def test_S20_sibling_foreground_delegations_overlap_and_their_results_come_back_in_call_order(seed: int) -> None:
    names = ["slow", "middle", "quick"]
    delays = {"slow": 9_000, "middle": 6_000, "quick": 3_000}
    life = play(
        script(
            parent("", *(spawn(name, mode="await") for name in names)),
            parent("ok"),
            *(child(name, f"from {name}", delay_ms=delays[name]) for name in names),
        ),
        lambda stage: stage.go(under=UNDER),
        seed=seed,
    )
    assert max(places(life.events, RunStarted)) < min(places(life.events, RunSettled))
    assert [fact.name for fact in life.told(RunSettled)] == ["quick", "middle", "slow"]
    bodies = [body_of(answer) for answer in life.answers()]
    assert [(body["name"], body["output"]) for body in bodies] == [(name, f"from {name}") for name in names]
    assert life.told(LetterQueued) == []  # awaited, so returned: once


def _ending_model(finish: Finish) -> Any:
    async def answer(request: ModelRequest) -> Finish:
        return says("ok") if request.name == "main" else finish

    return lambda _: FunctionModel(answer)


async def _one_letter(stage: Stage) -> None:
    """Start a continuable child whose result comes as a letter, and see its parent's turn through."""
    root = await stage.root(under=UNDER)
    await stage.subagents.start_continuable("spawn", parent=root, prompt="x", name="kid")
    await stage.kernel.tree_rests(root)


@pytest.mark.parametrize(
    ("finish", "reason", "partial", "sentence"),
    [
        (Finish(reason="length", text="too lo"), "token_limit", "too lo", "ran out of room."),
        (Finish(reason="error", error="it broke"), "provider_error", None, "failed."),
        (Finish(reason="refusal", error="against the rules"), "refusal", None, "declined."),
    ],
)
def test_S26_token_ceiling_model_error_and_policy_rejection_each_have_their_own_reason(
    finish: Finish, reason: str, partial: str | None, sentence: str
) -> None:
    life = play(_ending_model(finish), _one_letter)
    settled = life.settled("kid")
    assert (settled.status, settled.reason, settled.output, settled.partial) == ("failed", reason, None, partial)
    payload = payload_of(life.letter("kid").text)
    assert payload.startswith(f"Background subagent {settled.child_id} {sentence}\n")
    assert f"did not finish (failed/{reason})" in payload
    assert ("Text so far" in payload) == (partial is not None)


THOUGHT, SEEN = "a secret thought", "what the tool saw"


class _Speaks:
    """A model whose children say these finishes in turn; the last one's text is streamed, then it hangs if told so."""

    def __init__(self, *finishes: Finish, streams: str = "") -> None:
        self._finishes = finishes
        self._streams = streams

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Piece]:
        if request.name == "main":
            yield says("ok")
        elif request.number <= len(self._finishes):
            yield self._finishes[request.number - 1]
        else:
            yield Delta(kind="reasoning", text=THOUGHT)
            yield Delta(kind="text", text=self._streams)
            await asyncio.get_running_loop().create_future()

    async def aclose(self) -> None:
        """Hold nothing."""


async def _looked(context: ToolContext, _: object) -> ToolResult:
    await context.offload(lambda: None)
    return ToolResult(text=SEEN)


LOOKS = [FakeTool("look", _looked)]
SPOKE = calls(call("look"), text="the answer")
SILENT_CALL = calls(call("look"))
EMPTY = Finish(reason="stop", reasoning=THOUGHT)


@pytest.mark.parametrize(
    ("finishes", "wanted"),
    [
        ((SPOKE, EMPTY), ("done", "the answer")),
        ((SPOKE, SILENT_CALL, EMPTY), ("done", "the answer")),
        ((SPOKE, says("  \n")), ("done", "the answer")),
        ((calls(call("look"), text="draft"), SPOKE, EMPTY), ("done", "the answer")),
        ((SILENT_CALL, EMPTY), ("done_empty", "")),
    ],
)
def test_S28_the_last_message_with_text_wins_and_neither_reasoning_nor_tool_results_leak(
    finishes: tuple[Finish, ...], wanted: tuple[str, str]
) -> None:
    life = play(lambda _: _Speaks(*finishes), _one_letter, tools=lambda _: LOOKS)
    settled = life.settled("kid")
    assert (settled.status, settled.reason, settled.output) == ("completed", *wanted)
    letter = life.letter("kid").text
    assert THOUGHT not in letter
    assert SEEN not in letter
    assert payload_of(letter).endswith(wanted[1] or "(subagent completed without output)")


@pytest.mark.parametrize("streams", ["half a sen", ""])
@each_seed
def test_S28_without_a_message_the_text_streamed_so_far_is_what_there_is(streams: str, seed: int) -> None:
    """A cancelled run is no success: its text stands in `partial` (CONTRACT section 2, rule 4)."""

    async def scene(stage: Stage) -> None:
        kid = await stage.start(await stage.root(under=UNDER))
        await stage.until(lambda _: any(request.number == 2 for request in stage.model.requests))
        await stage.world.clock.sleep(1.0)
        await stage.kernel.scheduler.cancel(kid.run_id)

    life = play(lambda _: _Speaks(SILENT_CALL, streams=streams), scene, tools=lambda _: LOOKS, seed=seed)
    settled = life.settled("kid")
    assert (settled.status, settled.output, settled.partial) == ("cancelled", None, streams or None)


@pytest.mark.parametrize(
    ("finish", "reason"),
    [(Finish(reason="stop"), "done_empty"), (Finish(reason="error", error="no"), "provider_error")],
)
@each_seed
def test_S29_a_forked_child_without_output_of_its_own_does_not_return_its_seeds_text(
    finish: Finish, reason: str, seed: int
) -> None:
    async def answer(request: ModelRequest) -> Finish:
        return says("the seed's answer") if request.name == "main" else finish

    async def scene(stage: Stage) -> Run:
        root = await stage.root(under=UNDER)
        await stage.turn(root)
        async with await stage.subagents.start("fork", parent=root, prompt="go on", name="kid") as kid:
            run = await kid.result
            read = await stage.kernel.scheduler.output(kid.run_id, 0, 100)
            assert read.text == ""
            return run

    life = play(lambda _: FunctionModel(answer), scene, seed=seed)
    assert life.value is not None
    assert (life.value.reason, life.value.output or "", life.value.partial) == (reason, "", None)
    (request,) = life.asked("kid")
    assert "the seed's answer" in [message.text for message in request.messages]  # it did have the seed


@pytest.mark.parametrize("letters", ["x", "é", "🪐"])
def test_S30_partial_text_and_diagnostic_are_kept_apart_the_diagnostic_first_and_bounded(letters: str) -> None:
    """The letter holds only the diagnostic's first 208 bytes: its remark stays under 200 tokens (CONTRACT 4)."""
    error = "a" + letters * 5_000
    finish = Finish(reason="error", text="half an answer", error=error)
    life = play(_ending_model(finish), _one_letter)
    settled = life.settled("kid")
    assert (settled.output, settled.partial) == (None, "half an answer")
    assert settled.detail is not None
    size = len(settled.detail.encode())
    assert DIAGNOSTIC_MAX_BYTES - 40 < size <= DIAGNOSTIC_MAX_BYTES
    assert "\ufffd" not in settled.detail
    assert settled.detail.startswith(error[:1_000])
    assert "half an answer" not in settled.detail
    payload = payload_of(life.letter("kid").text)
    assert 0 < payload.index(error[:20]) < payload.index("Text so far:\nhalf an answer")
    keys = list(settled_keys(life))
    assert keys.index("detail") < keys.index("partial")


def settled_keys(life: Life[Any]) -> dict[str, Any]:
    """Return the one settlement as readers get it."""
    (event,) = (event for event in life.events if isinstance(event.fact, RunSettled))
    return event.to_dict()


def _cancel_in_pass(number: int, seed: int) -> Life[Child | None]:
    """Cancel the caller of `start` in a pass of the loop; 0 is before its first step."""

    async def scene(stage: Stage) -> Child | None:
        root = await stage.root(under=UNDER)
        loop = stage.world.loop
        wanted = loop.passes + number
        starting = stage.kernel.supervisor.begin(stage.start(root))

        def look(passes: int) -> None:
            if passes == wanted:
                starting.cancel()

        loop.on_pass = look
        if number == 0:
            starting.cancel()
        try:
            kid = await starting
        except asyncio.CancelledError:
            kid = None
        loop.on_pass = None
        await stage.kernel.scheduler.ended(stage.kernel.scheduler.open_runs(root))
        return kid

    return play(script(child("kid", "found", delay_ms=100)), scene, seed=seed)


@pytest.mark.parametrize("seed", range(3))
def test_S32_a_start_aborted_before_or_in_the_same_tick_publishes_nothing_and_later_leaves_an_aborted_run(
    seed: int,
) -> None:
    seen = {"nothing": 0, "cancelled": 0, "started": 0}
    for number in range(200):
        life = _cancel_in_pass(number, seed)
        runs = life.told(RunQueued)
        assert number or not runs  # aborted already, and aborted in the same tick
        if not runs:
            seen["nothing"] += 1
            assert life.value is None
            assert (len(life.told(SessionOpened)), life.requests) == (1, [])
        elif life.value is None:
            seen["cancelled"] += 1
            settled = life.settled("kid")
            assert (settled.run_id, settled.status, settled.reason) == (runs[0].run_id, "cancelled", "cancelled")
        else:
            seen["started"] += 1
            assert life.settled("kid").status == "completed"
            break
    assert all(seen.values()), seen


@each_seed
def test_S33_dispose_is_idempotent_cancels_waits_for_quiet_and_takes_the_session_away(seed: int) -> None:
    """The registry is the record: a one-shot session goes with `dispose`, its Run stays with the parent."""
    quiet: list[float] = []

    async def scene(stage: Stage) -> None:
        async def linger(_: ToolContext, __: object) -> ToolResult:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                await stage.world.clock.sleep(2.0)
                quiet.append(stage.world.clock.monotonic())
            return ToolResult(text="never")

        body.append(linger)
        root = await stage.root(under=UNDER)
        kid = await stage.start(root)
        await stage.until(lambda _: bool(tool.calls))
        disposals = [stage.kernel.supervisor.begin(kid.dispose()) for _ in range(3)]
        await asyncio.wait(disposals)
        assert [done.exception() for done in disposals] == [None] * 3
        assert quiet
        await kid.dispose()
        run = await kid.result
        assert (run.status, run.reason) == ("cancelled", "cancelled")
        assert stage.store.session(kid.session_id) is None
        assert stage.store.read(kid.session_id) == []
        assert stage.run("kid").status == "cancelled"
        with pytest.raises(RetinueError, match="not_continuable"):
            await stage.subagents.followup(root, kid.session_id, "again")

    body: list[Any] = []

    async def late(context: ToolContext, arguments: Any) -> ToolResult:
        return await body[0](context, arguments)

    tool = FakeTool("linger", late)
    life = play(script(child("kid", "", call("linger"))), scene, tools=lambda _: [tool], seed=seed)
    assert len(quiet) == 1
    assert len(life.told(SessionDeleted)) == 1
    assert life.told(LetterQueued) == []
