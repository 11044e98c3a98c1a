"""The bus: a reader that falls behind loses its buffer and no event; deltas go only to those who want them."""

import asyncio

from retinue.core.events import Event
from retinue.core.ids import SessionId, StepNo, TurnNo
from retinue.ports import LiveDelta
from retinue.runtime.bus import BUFFER_MAX_ITEMS, Bus
from retinue.testing import samples
from retinue.testing.samples import Numbering, every_fact

ROOT = samples.ROOT


class Kept:
    """A tail that holds everything that was published."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    async def tail(self, after: int, root_id: SessionId | None = None, limit: int = 1000) -> list[Event]:
        found = [e for e in self.events if e.position > after and root_id in (None, e.root_id)]
        return found[:limit]


def some_events(count: int) -> list[Event]:
    numbering = Numbering()
    fact = every_fact()[-1]
    return [numbering.event(fact) for _ in range(count)]


def delta(text: str) -> LiveDelta:
    return LiveDelta(session_id=ROOT, turn=TurnNo(1), step=StepNo(1), attempt=1, kind="text", call_id=None, text=text)


def test_a_reader_that_falls_behind_gets_every_event_once_from_the_store() -> None:
    async def main() -> list[int]:
        kept = Kept()
        bus = Bus(kept)
        reader = bus.subscribe(ROOT)
        for event in some_events(BUFFER_MAX_ITEMS + 700):
            kept.events.append(event)
            bus.publish((event,))
        reader.close()
        return [item.position async for item in reader if isinstance(item, Event)]

    assert asyncio.run(main()) == list(range(1, BUFFER_MAX_ITEMS + 701))


def test_a_reader_waits_for_what_comes_and_ends_when_it_is_closed() -> None:
    async def main() -> list[int]:
        kept = Kept()
        bus = Bus(kept)
        reader = bus.subscribe()
        seen: list[int] = []

        async def read() -> None:
            async for item in reader:
                assert isinstance(item, Event)
                seen.append(item.position)

        reading = asyncio.ensure_future(read())
        for event in some_events(3):
            bus.publish((event,))
            await asyncio.sleep(0)
        reader.close()
        await reading
        return seen

    assert asyncio.run(main()) == [1, 2, 3]


def test_another_trees_events_and_unwanted_deltas_do_not_arrive() -> None:
    async def main() -> list[object]:
        bus = Bus(Kept())
        other, plain, live = bus.subscribe(SessionId("s_other")), bus.subscribe(ROOT), bus.subscribe(ROOT, deltas=True)
        assert bus.wants_deltas(ROOT)
        assert not bus.wants_deltas(SessionId("s_other"))
        bus.publish(tuple(some_events(1)))
        bus.live(ROOT, delta("hi"))
        for reader in (other, plain, live):
            reader.close()
        return [[type(item).__name__ async for item in reader] for reader in (other, plain, live)]

    assert asyncio.run(main()) == [[], ["Event"], ["Event", "LiveDelta"]]


def test_what_a_reader_knows_already_is_not_repeated() -> None:
    async def main() -> list[int]:
        bus = Bus(Kept())
        reader = bus.subscribe(ROOT, after=2)
        bus.publish(tuple(some_events(4)))
        reader.close()
        return [item.position async for item in reader if isinstance(item, Event)]

    assert asyncio.run(main()) == [3, 4]
