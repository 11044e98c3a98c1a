"""Turns signals into calls: SIGINT once and twice, SIGTERM and SIGHUP; it stops nothing itself."""

import asyncio
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from retinue.core.errors import RetinueError

_TERMS: Final = (signal.SIGTERM, signal.SIGHUP)


class Stops:
    """What the person and the system asked for. Until somebody takes over, everything means: do not begin.

    Attributes:
        asked: whether anything asked to stop.
    """

    def __init__(self) -> None:
        """Begin with nothing asked."""
        self.asked = False
        self.told: Final = asyncio.Event()
        """Set with the first signal, for whoever waits where no turn is open yet."""
        self._interrupts = 0
        self.on_interrupt: Callable[[], None] = lambda: None
        self.on_hurry: Callable[[], None] = lambda: None
        self.on_shutdown: Callable[[], None] = lambda: None

    def require_none(self) -> None:
        """Raise `stopping` where anything asked to stop before the turn had begun."""
        if self.asked:
            raise RetinueError("stopping", "It was told to stop before the turn began.", "No turn was opened.")

    def begin_anew(self) -> None:
        """Forget the interrupts so far: the next one is a first one again."""
        self._interrupts = 0

    @contextmanager
    def listening(self) -> Generator[None]:
        """Take the signals of this process while inside; a SIGHUP that nohup had ignored stays ignored."""
        loop = asyncio.get_running_loop()
        before = signal.getsignal(signal.SIGINT)
        taken = [number for number in _TERMS if signal.getsignal(number) is not signal.SIG_IGN]
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        for number in taken:
            loop.add_signal_handler(number, self._shut_down)
        try:
            yield
        finally:
            for number in (signal.SIGINT, *taken):
                loop.remove_signal_handler(number)
            # The loop gives Python's own handler back, whose KeyboardInterrupt would be a traceback by now.
            signal.signal(signal.SIGINT, before)

    def _interrupt(self) -> None:
        self.asked = True
        self.told.set()
        self._interrupts += 1
        (self.on_interrupt if self._interrupts == 1 else self.on_hurry)()

    def _shut_down(self) -> None:
        self.asked = True
        self.told.set()
        self.on_shutdown()
