"""A process that commits at full speed and says each durable position; tests kill it."""

import os
import sys
from pathlib import Path

from retinue.ports import Batch
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.samples import ROOT, Numbering, run, session_row

EVENTS_PER_BATCH = 2
BATCHES_PER_COMMIT = 3


def batch_of(numbers: Numbering) -> Batch:
    """Return a batch of two events whose run row says the position it was written with."""
    events = (numbers.says("x" * 200), numbers.says("y" * 3000))
    return Batch(
        events=events, runs=(run(numbers.position), run(0, detail=str(numbers.position))), sessions=(session_row(),)
    )


def main(path: str) -> None:
    store = SQLiteStore(path)
    numbers = Numbering(store.position())
    numbers.resume(ROOT, store.last_seq(ROOT))
    while True:
        store.commit([batch_of(numbers) for _ in range(BATCHES_PER_COMMIT)])
        os.write(1, b"%d\n" % numbers.position)


if __name__ == "__main__":
    main(str(Path(sys.argv[1])))
