"""The asynchronous face of the store passes everything on to the executor and adds nothing."""

import asyncio
import inspect
from typing import Any

from retinue.core.events import StoredOutput
from retinue.core.ids import Digest, OutputId, RunId
from retinue.ports import Batch, Page, RunFilter, Store
from retinue.stores.sqlite import SQLiteStore
from retinue.stores.threaded import AsyncStore
from retinue.testing.samples import ROOT, Numbering, run, session_row


class CountingExecutor:
    """Runs each call in a thread and keeps its name."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def run(self, call: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(call.__name__)
        return await asyncio.to_thread(call, *args, **kwargs)


def _public(kind: type) -> dict[str, list[tuple[str, Any]]]:
    functions = inspect.getmembers(kind, inspect.isfunction)
    return {
        name: [(p.name, p.default) for p in inspect.signature(function).parameters.values()]
        for name, function in functions
        if not name.startswith("_")
    }


def test_every_method_of_the_store_is_there_with_the_same_parameters() -> None:
    assert _public(AsyncStore) == _public(Store)


def test_every_call_goes_through_the_executor_with_its_arguments() -> None:
    numbers = Numbering()
    batch = Batch(
        events=(numbers.says("one"), numbers.says("two")),
        runs=(run(1), run(2, parent_id="s_x")),
        sessions=(session_row(),),
        blobs=((Digest("d"), b"blob"),),
        outputs=(StoredOutput(output_id=OutputId("o_1"), session_id=ROOT, text="whole"),),
        switch=False,
    )
    plain = SQLiteStore(":memory:")
    executor = CountingExecutor()
    store = AsyncStore(plain, executor)

    async def use() -> None:
        await store.commit([batch])
        assert await store.read(ROOT, 1, 5) == [batch.events[1]]
        assert await store.tail(1, ROOT, 5) == [batch.events[1]]
        assert await store.position() == 2
        assert await store.switch() is False
        assert await store.last_seq(ROOT) == 2
        assert await store.session(ROOT) == plain.session(ROOT)
        assert await store.sessions(Page(limit=1), roots_only=False, open_only=True) == ([], None)
        assert await store.run(RunId("r_1")) == plain.run(RunId("r_1"))
        assert await store.runs(RunFilter(parent_id=ROOT), Page()) == plain.runs(RunFilter(parent_id=ROOT), Page())
        assert await store.blob(Digest("d")) == b"blob"
        assert await store.output(OutputId("o_1")) == batch.outputs[0]
        await store.close()

    asyncio.run(use())
    wanted = "commit read tail position switch last_seq session sessions run runs blob output close"
    assert executor.calls == wanted.split()
