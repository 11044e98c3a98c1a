"""What went wrong elsewhere, part two: counters, sizes, slots (B71 to B133)."""

import pytest

from retinue.core.events import RunSettled, ToolFinished
from retinue.core.text import estimate_tokens
from retinue.ports import Finish, ModelRequest, ToolText, UserText
from retinue.testing.fakes import echo_tool
from tests.scenarios.stage import (
    AGAIN,
    FunctionModel,
    Stage,
    Theatre,
    body_of,
    call,
    calls,
    child,
    code_of,
    each_seed,
    letters_in,
    names_of,
    parent,
    payload_of,
    peak,
    play,
    play_turn,
    says,
    script,
    spawn,
)
from tests.scenarios.test_bugs import stream_file

HOLD_TOKENS_MAX = 900 + 200
OUTPUT_MAX_CHARS = 24_000
RESULT_MAX_CHARS = 48_000


@each_seed
def test_B71_each_child_has_its_own_steps_however_many_its_parent_has_used(seed: int) -> None:
    life = play_turn(
        *(parent("", call("echo", n=n)) for n in range(10)),
        parent("", spawn("middle", max_steps=5)),
        parent("done"),
        AGAIN,
        *(child("middle", "", call("echo", n=n)) for n in range(3)),
        child("middle", "", *(spawn(f"leaf{n}", max_steps=6, mode="await") for n in range(3))),
        child("middle", "all three"),
        *(child(None, "", call("echo", n=n)) for n in range(5)),
        child(None, "leaf done"),
        policy={"caps.max_depth": 2, "life.max_steps": 20},
        tools=lambda _: [echo_tool()],
        seed=seed,
    )
    for number in range(3):
        leaf = life.settled(f"leaf{number}")
        assert (leaf.status, leaf.steps, leaf.output) == ("completed", 6, "leaf done")
    middle = life.settled("middle")
    assert (middle.status, middle.steps) == ("completed", 5)


def test_B71_a_child_that_needs_one_step_more_than_it_asked_for_is_out_of_steps() -> None:
    lines = (
        parent("", spawn("kid", max_steps=3)),
        parent("done"),
        AGAIN,
        *(child("kid", "", call("echo", n=n)) for n in range(4)),
    )
    life = play_turn(*lines, tools=lambda _: [echo_tool()])
    assert (life.settled("kid").reason, life.settled("kid").steps) == ("step_limit", 3)


BROKEN: tuple[dict[str, object], ...] = (
    spawn("x1", agent="no-such-role"),
    spawn("x2", tools=["no_such_tool"]),
    spawn("x3", max_steps=0),
    call("spawn_agent", prompt=" ", name="x4"),
    spawn("x5", cwd="../outside"),
)


@each_seed
def test_B73_children_that_could_not_be_made_are_charged_to_no_limit(seed: int) -> None:
    """Each call is accepted or refused for itself, so the valid one of a mixed batch runs and counts."""
    good = [spawn(f"kid{n}") for n in range(4)]
    life = play_turn(
        parent("", *BROKEN),
        parent("", good[0], BROKEN[0]),
        parent("", *good[1:]),
        parent("", spawn("one_too_many")),
        parent("done"),
        AGAIN,
        child(None, "found", delay_ms=5_000),
        policy={"caps.created.root_run": 4, "caps.created.turn": 4, "caps.running.root": 4, "caps.on_full": "reject"},
        seed=seed,
    )
    assert [code_of(answer) for answer in life.answers(1)] == [
        "unknown_agent",
        "unknown_tool",
        "invalid",
        "invalid",
        "outside_workspace",
    ]
    assert [answer.error for answer in life.answers(2)] == [False, True]
    assert [answer.error for answer in life.answers(3)] == [False] * 3
    assert code_of(life.answers(4)[0]) == "cap_created"
    assert sorted(names_of(life, RunSettled)) == ["kid0", "kid1", "kid2", "kid3"]
    assert peak(life.events) == 4  # no slot was reserved for what never ran


def _long(name: str) -> str:
    return f"{name} 漢字 " * 4_000


SEVEN = [f"kid{n}" for n in range(7)]


def _size(request: ModelRequest) -> int:
    return sum(estimate_tokens(message.text) for message in request.messages)


@each_seed
def test_B97_seven_huge_results_in_one_step_are_cut_marked_and_readable_in_slices(seed: int) -> None:
    async def answer(request: ModelRequest) -> Finish:
        if request.name != "main":
            return says(_long(request.name))
        if request.number == 1:
            return calls(*(spawn(name) for name in SEVEN))
        if len(letters_in(request)) < len(SEVEN):
            return says("waiting")
        return _read_on(request)

    policy = {"caps.running.root": 7}
    life = play(lambda _: FunctionModel(answer), lambda stage: stage.go(policy), seed=seed)
    absorbing = next(request for request in life.asked() if len(letters_in(request)) == len(SEVEN))
    for letter in letters_in(absorbing):
        assert estimate_tokens(letter) <= HOLD_TOKENS_MAX
        assert "…[truncated]" in payload_of(letter)
        assert "The whole text: read_agent_output" in payload_of(letter)
    assert _size(absorbing) <= 7 * HOLD_TOKENS_MAX + 1_000
    for name in SEVEN:
        settled = life.settled(name)
        assert settled.output == _long(name)[:OUTPUT_MAX_CHARS]
        assert (settled.output_cut, settled.output_id is not None) == (True, True)
    read = [body_of(m) for m in life.asked()[-1].messages if isinstance(m, ToolText) and m.name == "read_agent_output"]
    assert "".join(piece["text"] for piece in read) == _long("kid0")
    assert {piece["total_chars"] for piece in read} == {len(_long("kid0"))}


def _read_on(request: ModelRequest) -> Finish:
    """Read the first child's output slice by slice, as the answers say."""
    read = [body_of(m) for m in request.messages if isinstance(m, ToolText) and m.name == "read_agent_output"]
    if read and read[-1]["next_offset"] is None:
        return says("read it all")
    spawned = [body_of(m) for m in request.messages if isinstance(m, ToolText) and m.name == "spawn_agent"]
    run_id = next(run["run_id"] for run in spawned if run["name"] == "kid0")
    return calls(call("read_agent_output", id=run_id, offset=read[-1]["next_offset"] if read else 0))


@each_seed
def test_B97_seven_huge_awaited_results_are_bounded_each(seed: int) -> None:
    async def answer(request: ModelRequest) -> Finish:
        if request.name != "main":
            return says(_long(request.name))
        return says("ok") if request.number > 1 else calls(*(spawn(name, mode="await") for name in SEVEN))

    life = play(lambda _: FunctionModel(answer), lambda stage: stage.go(), seed=seed)
    for name, shown in zip(SEVEN, life.answers(), strict=True):
        assert len(shown.text) < RESULT_MAX_CHARS
        run = body_of(shown)
        assert run["output"] == _long(name)[:OUTPUT_MAX_CHARS]
        assert (run["output_cut"], run["output_id"] is not None) == (True, True)


def test_B97_a_huge_tool_result_says_how_much_is_missing_and_where_the_rest_is() -> None:
    whole = "🧭" * (RESULT_MAX_CHARS + 7)
    life = play_turn(parent("", call("echo", text=whole)), parent("done"), tools=lambda _: [echo_tool()])
    (finished,) = life.told(ToolFinished)
    assert finished.cut
    assert f"{RESULT_MAX_CHARS} of " in finished.text.splitlines()[-1]
    assert str(finished.output_id) in finished.text
    assert len(finished.text) < RESULT_MAX_CHARS + 200


@each_seed
def test_B100_the_answer_beside_a_tool_call_counts_when_the_last_message_is_empty(seed: int) -> None:
    model = stream_file("B100", parent("", spawn("kid")), parent("done", n=2), parent("done", n=3))
    life = play(model, lambda stage: stage.go(), tools=lambda _: [echo_tool("write_file")], seed=seed)
    settled = life.settled("kid")
    assert (settled.status, settled.reason, settled.output) == ("completed", "done", "The answer is 7.")
    assert payload_of(life.letter("kid").text).endswith("The answer is 7.")


@pytest.mark.parametrize(
    ("on_empty", "ends"), [("note", ("completed", "done_empty")), ("fail", ("failed", "empty_output"))]
)
def test_B100_without_any_text_there_is_a_marker_never_an_empty_letter(on_empty: str, ends: tuple[str, str]) -> None:
    policy = {"result.empty_output": on_empty}
    life = play_turn(parent("", spawn("kid")), parent("done"), AGAIN, child("kid", ""), policy=policy)
    settled = life.settled("kid")
    assert (settled.status, settled.reason) == ends
    letter = payload_of(life.letter("kid").text)
    wanted = "(subagent completed without output)" if on_empty == "note" else "did not finish (failed/empty_output)"
    assert wanted in letter


def _round(number: int) -> list[dict[str, object]]:
    runs = [f"{{{{run:{2 * number + place}}}}}" for place in (1, 2)]
    return [
        parent("", spawn(f"a{number}"), spawn(f"b{number}")),
        parent("", call("wait_agent", ids=runs)),
        parent("", *(call("read_agent_output", id=run) for run in runs)),
    ]


@each_seed
def test_B133_ended_children_count_against_no_limit_not_even_after_a_restart(seed: int) -> None:
    theatre = Theatre(seed=seed)
    policy = {"caps.running.root": 2, "caps.running.process": 2, "caps.on_full": "reject"}
    rounds = [line for number in range(5) for line in _round(number)]
    lines = (*rounds, parent("done"), AGAIN, child(None, "found", delay_ms=300))
    first = theatre.live(script(*lines), lambda stage: stage.go(policy))
    assert peak(first.events) == 2
    assert len(first.told(RunSettled)) == 10
    (root,) = {event.root_id for event in first.events}

    async def later(request: ModelRequest) -> Finish:
        asked = request.name == "main" and request.messages[-1] == UserText(text="once more")
        return calls(spawn("c0"), spawn("c1")) if asked else says("found")

    async def again(stage: Stage) -> None:
        assert stage.kernel.journal.state.book.total == 0
        await stage.turn(root, "once more")

    life = theatre.live(lambda _: FunctionModel(later), again)
    assert [answer.error for answer in life.answers(1)] == [False, False]
    assert [fact.status for fact in life.told(RunSettled)] == ["completed"] * 12
