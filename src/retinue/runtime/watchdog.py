"""Notices that the event loop stood still and puts it on record; it can neither prevent nor end it."""

from typing import Final

from retinue.core.decide.turns import Note, decide_note
from retinue.core.events import Warned
from retinue.ports import Clock
from retinue.runtime.journal import Journal
from retinue.runtime.supervisor import Supervisor

LOOK_EVERY_S: Final = 1.0
STALL_S: Final = 2.0
"""Seconds of standing still that are worth a warning: waits and time-outs were that late."""


async def watch(clock: Clock, journal: Journal, supervisor: Supervisor) -> None:
    """Warn every open root turn when the loop was blocked, with the tools that ran; ends only when cancelled."""
    while journal.error is None:
        before_s = clock.monotonic()
        await clock.sleep(LOOK_EVERY_S)
        late_s = clock.monotonic() - before_s - LOOK_EVERY_S
        if late_s >= STALL_S and journal.error is None:
            _warn(journal, supervisor, late_s)


def _warn(journal: Journal, supervisor: Supervisor, late_s: float) -> None:
    works = list(supervisor.works.values())
    tools = [f"{work.tool} of {work.session_id}" for work in works if work.tool]
    during = f" Tools that ran: {', '.join(tools[:5])}." if tools else ""
    text = f"The event loop stood still for {late_s:.1f} s: something blocked it.{during}"
    for work in works:
        if work.run_id is None:
            journal.submit(decide_note, Note(session_id=work.session_id, fact=Warned(code="loop_stalled", text=text)))
