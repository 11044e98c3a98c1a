"""The page about hooks names every point, and for each the keys that its hooks really get."""

import re
from pathlib import Path

from retinue.core.events import RunSettled, RunStarted, SessionOpened, TurnClosed
from retinue.ports import DECIDING
from retinue.runtime.hooking import POINTS
from retinue.testing.fakes import echo_tool
from tests.scenarios.hookstage import Heard, with_hooks
from tests.scenarios.stage import call, child, parent, play_turn, spawn

PAGE = Path(__file__).resolve().parents[2] / "docs" / "hooks.md"
ROW = re.compile(r"^\| `(?P<point>agent[\w.]+)` \| (?P<kind>\S+) \| [^|]+ \| (?P<keys>.+) \|$", re.MULTILINE)
FACTS = {
    "session.opened": SessionOpened,
    "turn.closed": TurnClosed,
    "run.started": RunStarted,
    "run.settled": RunSettled,
}


def promised() -> dict[str, tuple[str, set[str]]]:
    found: dict[str, tuple[str, set[str]]] = {}
    for row in ROW.finditer(PAGE.read_text(encoding="utf-8")):
        names = re.findall(r"`([\w.]+)`", re.sub(r"\([^)]*\)", "", row["keys"]))
        fact = FACTS.get(names[0])
        keys = set(names) if fact is None else {*fact.__struct_fields__} - {"clock_s"}
        found[row["point"]] = (row["kind"], keys)
    return found


def test_each_point_is_named_with_the_keys_that_its_hooks_get() -> None:
    heard = Heard()
    play_turn(
        parent("", call("echo", n=1), spawn("kid", mode="await")),
        parent("done"),
        child("kid", "found"),
        tools=lambda _: [echo_tool()],
        parts=with_hooks(heard.hook(*POINTS)),
    )
    got = {point: {frozenset(event.data) for event in heard.at(point)} for point in POINTS}
    kinds = {point: "**asked**" if point in DECIDING else "told" for point in POINTS}
    assert promised() == {point: (kinds[point], set(keys)) for point in POINTS for (keys,) in [got[point]]}
