"""Scenarios S64 to S73: letters to the parent, their order, their crash windows, their size."""

import math
import random
from typing import Any

import pytest

from retinue.core.events import LetterAbsorbed, LetterQueued, MessageUser, RunQueued, RunSettled, StepOpened, TurnOpened
from retinue.core.ids import SessionId
from retinue.core.text import CUT_MARK, fit_tokens
from retinue.ports import Page, ToolText, UserText
from retinue.testing.fakes import slow_tool
from retinue.testing.faults import StorePlan
from tests.scenarios.stage import (
    AGAIN,
    Life,
    Stage,
    Theatre,
    body_of,
    call,
    child,
    each_seed,
    homes,
    letters_in,
    parent,
    payload_of,
    place,
    places,
    play,
    play_turn,
    script,
    spawn,
    tags,
    under_each,
)

NOTICE_MAX_BYTES = 900 * 3
OVERHEAD_MAX_TOKENS = 200
_PAGE = Page()


def _senders(life: Life[Any], letters: list[str]) -> list[str]:
    """Return the names of the runs that letters come from."""
    name_of = {fact.child_id: fact.name for fact in life.told(RunQueued)}
    return [name_of[SessionId(letter.splitlines()[2].removeprefix("Sender: "))] for letter in letters]


@under_each("standard", "courier")
@each_seed
def test_S64_letters_are_first_in_first_out_drained_once_and_separated_by_recipient(seed: int, under: str) -> None:
    """Our mailbox is the fold of queued minus absorbed letters; to dispose of a recipient is to stop its turn."""
    stages: list[Stage] = []

    async def scene(stage: Stage) -> list[SessionId]:
        stages.append(stage)
        stopped, other, empty = [await stage.root(under=under) for _ in range(3)]
        works = [await stage.kernel.prompt(root, "go") for root in (stopped, other)]
        await stage.until(lambda events: len(places(events, LetterQueued)) == 6)
        await stage.kernel.interrupt(stopped)
        await works[1].done.wait()
        stage.kernel.mailboxes.wake(SessionId("s_9999"))
        await stage.turn(empty, "nobody wrote to me")
        await stage.turn(stopped, "and now?")
        return [stopped, other, empty]

    lines = (
        parent("", spawn("late"), spawn("early"), spawn("middle"), call("slow")),
        parent("done"),
        AGAIN,
        child("late", "3", delay_ms=6_000),
        child("early", "1", delay_ms=2_000),
        child("middle", "2", delay_ms=4_000),
    )
    # A script tells roots apart by nothing, so the third one spawns too; what counts is its first request.
    life = play(script(*lines), scene, tools=lambda world: [slow_tool(world.clock, 9.0)], seed=seed)
    assert life.value is not None
    for root in life.value:
        mine = [event for event in life.events if event.session_id == root]
        queued = [event.fact.letter_id for event in mine if isinstance(event.fact, LetterQueued)]
        absorbed = [event.fact.letter_id for event in mine if isinstance(event.fact, LetterAbsorbed)]
        assert absorbed == queued
        last = [request for request in life.requests if request.session_id == root][-1]
        assert _senders(life, letters_in(last)) == ["early", "middle", "late"]
        assert {letter.splitlines()[1] for letter in letters_in(last)} == {f"Task name: {root}"}
    first_of_empty = next(request for request in life.requests if request.session_id == life.value[2])
    assert letters_in(first_of_empty) == []


@under_each("standard", "courier")
@each_seed
def test_S66_steering_text_is_placed_before_child_results_of_the_same_step(seed: int, under: str) -> None:
    async def scene(stage: Stage) -> None:
        root = await stage.root(under=under)
        work = await stage.kernel.prompt(root, "go")
        await stage.until(lambda events: bool(places(events, LetterQueued)))
        await stage.kernel.steer(root, "first look at the tests")
        await work.done.wait()

    life = play(
        script(parent("", spawn("kid"), call("slow")), parent("done"), AGAIN, child("kid", "found", delay_ms=1_000)),
        scene,
        tools=lambda world: [slow_tool(world.clock, 5.0)],
        seed=seed,
    )
    (steered,) = places(life.events, MessageUser, source="steer")
    assert place(life.events, LetterQueued) < steered  # the letter came first, the person goes first
    behind = life.asked()[1].messages[2:]
    assert [type(message) for message in behind] == [ToolText, ToolText, UserText, UserText]
    assert behind[2].text == "first look at the tests"
    assert payload_of(behind[3].text).endswith("found")


FINDING = "the finding"
TOLD = (
    parent("", spawn("kid"), call("slow")),
    parent("ok"),
    AGAIN,
    child("kid", "first thoughts", call("slow")),
    child("kid", FINDING),
)


def _tools(world: Any) -> list[Any]:
    return [slow_tool(world.clock, 3.0)]


def _goes_on(theatre: Theatre) -> Life[None]:
    """Play a next life in which a person writes to every root that there is."""

    async def scene(stage: Stage) -> None:
        for row in stage.store.sessions(_PAGE)[0]:
            await stage.turn(row.session_id, "continue")

    return theatre.live(script(*TOLD), scene, tools=_tools)


def _crashed_everywhere(seed: int, fault: str, under: str) -> list[tuple[Theatre, Life[Any]]]:
    """Crash the same life before (or after) each of its commits; return the theatres and their first lives."""

    async def scene(stage: Stage) -> None:
        await stage.to_rest(under=under)

    commits = Theatre(seed=seed).live(script(*TOLD), scene, tools=_tools).commits
    played: list[tuple[Theatre, Life[Any]]] = []
    for number in range(1, commits + 1):
        theatre = Theatre(seed=seed)
        plan = StorePlan(**{fault: number})
        life = theatre.live(script(*TOLD), scene, tools=_tools, plan=plan)
        assert life.crashed
        played.append((theatre, life))
    return played


PUSHING = ("standard", "courier", "resident")
CUTTING = ("standard", "courier")
"""Policies that bound a notice."""
SEEDS_OF_CRASHES = pytest.mark.parametrize("seed", range(5))


@under_each(*PUSHING)
@SEEDS_OF_CRASHES
def test_S68_after_a_crash_between_writing_and_offering_the_result_is_in_the_parents_context(
    seed: int, under: str
) -> None:
    cases = 0
    for theatre, crashed in _crashed_everywhere(seed, "crash_after", under):
        written = bool(crashed.told(LetterQueued)) and not crashed.told(LetterAbsorbed)
        if not written:
            continue
        cases += 1
        life = _goes_on(theatre)
        (letter,) = letters_in(life.asked()[0])
        assert payload_of(letter).endswith(FINDING)
        assert homes(life.events, life.settled("kid").run_id) == 1
    assert cases


@under_each(*PUSHING)
@SEEDS_OF_CRASHES
def test_S69_after_a_crash_before_the_writing_the_result_is_recovered_or_reported_lost_never_absent(
    seed: int, under: str
) -> None:
    texts: set[str | None] = set()
    for theatre, crashed in _crashed_everywhere(seed, "crash_before", under):
        accepted = bool(crashed.told(RunQueued)) and not crashed.told(RunSettled)
        if not accepted:
            continue
        life = _goes_on(theatre)
        settled = life.settled("kid")
        assert (settled.status, settled.reason, settled.output) == ("interrupted", "restart", None)
        (letter,) = letters_in(life.asked()[0])
        assert "did not finish (interrupted/restart)" in payload_of(letter)
        if settled.partial is not None:
            assert f"Text so far:\n{settled.partial}" in payload_of(letter)
        texts.add(settled.partial)
        assert homes(life.events, settled.run_id) == 1
    assert texts >= {None, "first thoughts"}  # lost and said so; recovered from the child's own log


@under_each(*PUSHING)
@SEEDS_OF_CRASHES
def test_S70_a_result_already_in_the_context_is_not_injected_again(seed: int, under: str) -> None:
    rebuilt = 0
    for theatre, crashed in _crashed_everywhere(seed, "crash_after", under):
        if not crashed.told(LetterQueued):
            continue
        second = _goes_on(theatre)
        third = _goes_on(theatre)
        for life in (second, third):
            assert [len(letters_in(request)) for request in life.asked()] == [1] * len(life.asked())
        assert len(third.told(LetterAbsorbed)) == 1
        if not crashed.told(LetterAbsorbed):
            rebuilt += 1
            _absorbed_as_the_turn_opens(second)
    assert rebuilt


def _absorbed_as_the_turn_opens(life: Life[Any]) -> None:
    """The letter that a rebuilt context shows is absorbed in the commit that opens the turn: step 1 needs no drain."""
    opened = places(life.events, TurnOpened, turn=2)[0]
    of_turn = tags(event for event in life.events if event.position >= opened)[:5]
    assert of_turn == ["turn.opened", "message.user", "letter.absorbed", "message.user", "step.opened"]
    assert place(life.events, LetterAbsorbed) < places(life.events, StepOpened, turn=2)[0]


def _shown_of(letter: LetterQueued) -> str:
    """Return what of the output a letter shows: between the opening sentence and the mark."""
    return payload_of(letter.text).split("\n\n", 1)[1].split(CUT_MARK)[0]


TEXTS = {
    "exact": "x" * NOTICE_MAX_BYTES,
    "one_over": "x" * (NOTICE_MAX_BYTES + 1),
    "long": "line of thought\n" * 2_000,
    "wide": "漢" * 2_000,
    "mixed": "aé漢🧭" * 1_000,
}


@under_each(*CUTTING)
@pytest.mark.parametrize("name", TEXTS)
def test_S72_a_payload_over_900_tokens_is_cut_to_the_longest_fitting_prefix_with_a_marker(
    name: str, under: str
) -> None:
    whole = TEXTS[name]
    reads = [parent("", call("read_agent_output", id="{{run:1}}", offset=24_000 * n)) for n in range(2)]
    lines = (parent("", spawn("kid", continuable=True)), parent("", call("wait_agent")), *reads, parent("done"), AGAIN)
    life = play_turn(*lines, child("kid", whole), under=under)
    letter = life.letter("kid")
    shown = _shown_of(letter)
    if name == "exact":
        assert (shown, letter.cut) == (whole, False)
        assert CUT_MARK not in letter.text
        return
    assert letter.cut
    assert whole.startswith(shown)
    assert len(shown.encode()) <= NOTICE_MAX_BYTES < len(whole[: len(shown) + 1].encode())
    assert f"{shown}{CUT_MARK}" in letter.text
    extra_bytes = len(letter.text.encode()) - len(shown.encode())
    assert extra_bytes <= OVERHEAD_MAX_TOKENS * 3
    run_id = life.settled("kid").run_id
    assert f'read_agent_output with id "{run_id}"' in letter.text
    answers = [body_of(life.answers(number)[0]) for number in (3, 4)]
    assert "".join(answer["text"] for answer in answers) == whole
    assert answers[-1]["next_offset"] is None


@pytest.mark.parametrize(
    ("under", "policy"), [("standard", {"result.notice_max_tokens": None}), ("resident", {"caps.max_depth": 1})]
)
def test_S72_without_the_switch_nothing_is_cut(under: str, policy: dict[str, Any]) -> None:
    whole = "x" * 20_000
    life = play_turn(parent("", spawn("kid")), parent("done"), AGAIN, child("kid", whole), policy=policy, under=under)
    assert payload_of(life.letter("kid").text).endswith(f"\n\n{whole}")
    assert not life.letter("kid").cut


class CountingText(str):
    """A text that counts how often its size in bytes is asked for, its prefixes included."""

    __slots__ = ("counter",)
    counter: list[int]

    def __getitem__(self, key: Any) -> "CountingText":
        part = CountingText(super().__getitem__(key))
        part.counter = self.counter
        return part

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        self.counter[0] += 1
        return super().encode(encoding, errors)


@pytest.mark.parametrize("seed", range(50))
def test_S73_the_cut_never_splits_a_character_and_costs_a_logarithm_of_estimates(seed: int) -> None:
    chance = random.Random(seed)
    tokens_max = chance.choice((1, 2, 10, 900, 5_000))
    text = CountingText("".join(chance.choices("aé漢🧭", k=chance.choice((1, 5, 3_000, 100_000)))))
    text.counter = [0]
    shown, cut = fit_tokens(text, tokens_max)
    assert text.counter[0] <= math.log2(tokens_max * 3 + 1) + 3
    kept = shown.removesuffix(CUT_MARK) if cut else shown
    assert text.startswith(kept)
    assert len(kept.encode()) <= tokens_max * 3
    assert cut is (len(kept) < len(text))
    if cut:
        assert len(str(text)[: len(kept) + 1].encode()) > tokens_max * 3


@under_each(*CUTTING)
def test_S73_a_letter_cut_inside_a_wide_character_stays_whole_text(under: str) -> None:
    for wide in ("é", "漢", "🧭"):
        whole = "a" + wide * 3_000  # no multiple of any character's size fits exactly
        life = play_turn(
            parent("", spawn("kid", continuable=True)), parent("done"), AGAIN, child("kid", whole), under=under
        )
        shown = _shown_of(life.letter("kid"))
        assert set(shown[1:]) == {wide}
        assert NOTICE_MAX_BYTES - len(wide.encode()) < len(shown.encode()) <= NOTICE_MAX_BYTES
