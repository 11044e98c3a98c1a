"""Many processes want one data directory at once: one owns it at a time, the others leave with exit 5."""

import signal
from contextlib import ExitStack
from pathlib import Path

from tests.e2e.kit import Running, one_sentence, script
from tests.faults.kit import require_sound

PROCESSES = 20
HOUR_MS = 3_600_000


def _start_all(folder: Path, stack: ExitStack, model: str) -> list[Running]:
    flags = ("run", "--model", model, "go", "--json")
    return [stack.enter_context(Running(folder, *flags)) for _ in range(PROCESSES)]


def test_of_twenty_runs_started_at_once_one_owns_the_directory_and_nineteen_are_refused(tmp_path: Path) -> None:
    model = script(tmp_path, {"text": "late", "delay_ms": HOUR_MS})
    with ExitStack() as stack:
        left = _start_all(tmp_path, stack, model)
        while len(left) > 1:
            done = [racer for racer in left if racer.process.poll() is not None]
            left = [racer for racer in left if racer not in done]
            for racer in done:
                _require_refused(racer)
        (owner,) = left
        owner.event("step.opened")
        owner.process.send_signal(signal.SIGTERM)
        assert owner.end().code == 3
    events = require_sound(tmp_path / ".retinue")
    assert [event.position for event in events] == [line["position"] for line in owner.seen]


def _require_refused(racer: Running) -> None:
    ran = racer.end()
    assert (ran.code, "owned by" in one_sentence(ran)) == (5, True)
    assert racer.seen[-1]["code"] == "store_owned"


def test_of_twenty_quick_runs_each_has_the_directory_to_itself_or_is_refused(tmp_path: Path) -> None:
    model = script(tmp_path, {"text": "quick"})
    with ExitStack() as stack:
        racers = _start_all(tmp_path, stack, model)
        ended = [(racer, racer.end()) for racer in racers]
    codes = [ran.code for _, ran in ended]
    assert set(codes) <= {0, 5}
    assert 0 in codes
    events = require_sound(tmp_path / ".retinue")
    told = sorted(line["position"] for racer, ran in ended if ran.code == 0 for line in racer.seen)
    assert told == [event.position for event in events], "every event was told by the one process that owned it then"
    # One owner at a time: the events of one process follow one another without a gap.
    for racer, ran in ended:
        if ran.code == 0:
            mine = [line["position"] for line in racer.seen]
            assert mine == list(range(mine[0], mine[0] + len(mine)))
