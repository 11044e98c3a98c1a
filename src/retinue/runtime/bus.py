"""Durable events and live deltas to readers; it stores nothing and slows nobody down.

Each reader has a bounded buffer. One that falls behind loses its buffer, not its events: it reads them from the store.
"""

import asyncio
from collections import deque
from typing import Final, Protocol

from retinue.core.events import Event
from retinue.core.ids import SessionId
from retinue.ports import Live

BUFFER_MAX_ITEMS: Final = 4096
CATCH_UP_EVENTS: Final = 512


class Tail(Protocol):
    """The part of the store that a late reader needs."""

    async def tail(self, after: int, root_id: SessionId | None = None, limit: int = 1000) -> list[Event]:
        """Return stored events behind a position."""
        ...


class Subscription:
    """One reader: iterate it for the events of a tree in order, each once, and live deltas where wanted."""

    def __init__(self, bus: "Bus", root_id: SessionId | None, *, deltas: bool, after: int) -> None:
        """Made by `Bus.subscribe`."""
        self.root_id: Final = root_id
        self.deltas: Final = deltas
        self._bus = bus
        self._items: deque[Event | Live] = deque()
        self._last = after
        self._newest = after
        self._behind = False
        self._closed = False
        self._alarm = asyncio.Event()

    def push(self, item: Event | Live) -> None:
        """Take an item from the bus; never waits."""
        if isinstance(item, Event):
            self._newest = item.position
        if self._behind or len(self._items) >= BUFFER_MAX_ITEMS:
            if not self._behind:
                self._behind = True
                self._items.clear()
        else:
            self._items.append(item)
        self._alarm.set()

    def close(self) -> None:
        """End the iteration once what is buffered was read; idempotent."""
        self._closed = True
        self._bus.drop(self)
        self._alarm.set()

    def __aiter__(self) -> "Subscription":
        """Return itself."""
        return self

    async def __anext__(self) -> Event | Live:
        """Return the next item; stop when closed."""
        while True:
            if self._items:
                item = self._items.popleft()
                if isinstance(item, Event):
                    if item.position <= self._last:
                        continue
                    self._last = item.position
                return item
            if self._behind:
                await self._catch_up()
                continue
            if self._closed:
                raise StopAsyncIteration
            self._alarm.clear()
            await self._alarm.wait()

    async def _catch_up(self) -> None:
        events = await self._bus.tail.tail(self._last, self.root_id, CATCH_UP_EVENTS)
        self._items.extendleft(reversed(events))
        if not events or events[-1].position >= self._newest:
            self._behind = False


class Bus:
    """Hands each durable event to everybody who reads its tree."""

    def __init__(self, tail: Tail) -> None:
        """Begin without readers; late ones catch up from `tail`."""
        self.tail: Final = tail
        self._readers: dict[Subscription, None] = {}

    def subscribe(self, root_id: SessionId | None = None, *, deltas: bool = False, after: int = 0) -> Subscription:
        """Return a reader of one tree, or of everything, that knows all events up to position `after` already."""
        reader = Subscription(self, root_id, deltas=deltas, after=after)
        self._readers[reader] = None
        return reader

    def drop(self, reader: Subscription) -> None:
        """Forget a reader."""
        self._readers.pop(reader, None)

    def publish(self, events: tuple[Event, ...]) -> None:
        """Hand out durable events."""
        for event in events:
            for reader in self._readers:
                if reader.root_id in (None, event.root_id):
                    reader.push(event)

    def wants_deltas(self, root_id: SessionId) -> bool:
        """Return whether anybody reads this tree live."""
        return any(reader.deltas and reader.root_id in (None, root_id) for reader in self._readers)

    def live(self, root_id: SessionId, item: Live) -> None:
        """Hand out a delta or a reset; nobody gets it later."""
        for reader in self._readers:
            if reader.deltas and reader.root_id in (None, root_id):
                reader.push(item)
