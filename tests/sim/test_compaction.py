"""Compaction: a logged fact that keeps a history within its model and never splits a call from its result."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.events import ContextCompacted, Event, RunSettled, TurnClosed, Usage
from retinue.core.ids import CallId
from retinue.core.messages import AssistantText, RequestCall, RequestMessage, ToolText, UserText
from retinue.models.wire import body_of
from retinue.ports import Finish, FinishCall, ModelRequest, Piece, ToolResult
from retinue.runtime.compaction import HEADING, messages_to_keep, size_bytes
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.checkers import all_events, check_all, check_projections
from retinue.testing.fakes import FakeTool, OneModel
from retinue.testing.strict import pair_faults
from retinue.testing.world import World, run_world
from tests.sim.lives import kernel_in, open_root

ROOM_TOKENS = 4_000
ROUNDS = 12


class Reader:
    """A model that calls `page` again and again, and makes notes when it is asked to."""

    def __init__(self, *, notes: bool = True) -> None:
        self.requests: list[ModelRequest] = []
        self.notes = notes

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Piece, None]:
        self.requests.append(request)
        yield self.answer(request)

    def answer(self, request: ModelRequest) -> Finish:
        usage = Usage(input=sum(map(size_bytes, request.messages)) // 3, output=20)
        last = request.messages[-1]
        if isinstance(last, UserText) and last.text == "write notes":
            if not self.notes:
                return Finish(reason="error", error="no notes today", status=400)
            return Finish(reason="stop", text="I read some pages for the person.", usage=usage)
        if request.root and request.name == "main" and not any(tool.name == "page" for tool in request.tools):
            return Finish(reason="stop", text="no tools", usage=usage)
        asked = sum(1 for seen in self.requests if seen.session_id == request.session_id and seen.tools)
        if asked <= ROUNDS:
            calls = tuple(FinishCall(name="page", arguments=f'{{"number": {asked * 10 + k}}}') for k in range(2))
            return Finish(reason="tool_calls", tool_calls=calls, usage=usage)
        return Finish(reason="stop", text="I have read everything.", usage=usage)

    async def aclose(self) -> None:
        self.requests = []


class Delegating(Reader):
    """The same inside a child: the parent asks one child to read."""

    def answer(self, request: ModelRequest) -> Finish:
        if not request.root:
            return super().answer(request)
        if len([seen for seen in self.requests if seen.root]) == 1:
            return Finish(
                reason="tool_calls", tool_calls=(FinishCall(name="spawn_agent", arguments='{"prompt": "read it"}'),)
            )
        return Finish(reason="stop", text="noted")


async def page(_: object, arguments: object) -> Any:
    return ToolResult(text=f"{arguments} " + "lorem ipsum " * 60)


def play(model: Reader, policy: dict[str, Any] | None = None) -> list[Event]:
    store = SQLiteStore(":memory:")

    async def main(world: World) -> None:
        models = OneModel(model, ROOM_TOKENS)
        kernel = kernel_in(world, store, model, tools=[FakeTool("page", page)], models=models)
        await kernel.start()
        work = await kernel.prompt(await open_root(kernel, policy), "read all pages")
        await work.done.wait()
        seen = list(model.requests)
        await kernel.close()
        model.requests = seen

    run_world(main, 1)
    events = all_events(store)
    assert check_all(events) == []
    assert check_projections(store) == []
    return events


def compactions(events: list[Event]) -> list[ContextCompacted]:
    return [event.fact for event in events if isinstance(event.fact, ContextCompacted)]


@pytest.mark.parametrize("kind", [Reader, Delegating])
def test_B39_a_history_that_grows_is_compacted_and_every_request_keeps_its_pairs(kind: type[Reader]) -> None:
    model = kind()
    events = play(model)
    assert compactions(events)
    closed = [event.fact for event in events if isinstance(event.fact, TurnClosed)]
    assert all(fact.status == "completed" for fact in closed)
    for request in model.requests:
        assert list(pair_faults(json.loads(body_of(request, send_reasoning=False))["messages"])) == []
        assert sum(map(size_bytes, request.messages)) / 3 < ROOM_TOKENS
    after = [request for request in model.requests if HEADING in request.messages[0].text]
    assert "I read some pages" in after[0].messages[0].text


def test_what_the_notes_cost_is_counted_for_the_run() -> None:
    events = play(Delegating())
    settled = next(event.fact for event in events if isinstance(event.fact, RunSettled))
    assert settled.usage.requests == settled.steps + len(compactions(events))


def test_without_notes_the_oldest_part_is_dropped_and_says_so() -> None:
    events = play(Reader(notes=False))
    assert all(fact.text.count("was dropped") == 1 for fact in compactions(events))
    assert "read all pages" in compactions(events)[0].text


def test_switched_off_nothing_is_compacted() -> None:
    assert compactions(play(Reader(), {"life.compaction": "off"})) == []


@st.composite
def histories(draw: st.DrawFn) -> list[RequestMessage]:
    """Any legal history: user texts, and answers with their results behind them."""
    messages: list[RequestMessage] = [UserText(text="begin")]
    for number in range(draw(st.integers(0, 12))):
        calls = draw(st.integers(0, 3))
        ids = [CallId(f"c_{number}_{call}") for call in range(calls)]
        made = tuple(RequestCall(call_id=call_id, name="t", arguments={}) for call_id in ids)
        messages.append(AssistantText(text=draw(st.text(max_size=30)), tool_calls=made))
        messages += [ToolText(call_id=call_id, name="t", text=draw(st.text(max_size=60))) for call_id in ids]
        if not calls or draw(st.booleans()):
            messages.append(UserText(text=draw(st.text(max_size=30))))
    return messages


@given(histories(), st.integers(0, 400))
def test_what_is_kept_begins_between_pairs_and_fits_or_is_the_last_answer(
    messages: list[RequestMessage], bytes_max: int
) -> None:
    kept = messages_to_keep(messages, bytes_max)
    assert 1 <= kept <= len(messages)
    tail = messages[len(messages) - kept :]
    assert not isinstance(tail[0], ToolText)
    fits = sum(map(size_bytes, tail)) <= bytes_max
    last_answer = max((i for i, m in enumerate(messages) if isinstance(m, AssistantText)), default=len(messages) - 1)
    assert fits or len(messages) - kept == last_answer
