"""A fault of the runtime itself settles what it hits and leaves nobody hanging."""

from retinue.core.decide.base import Decision, Ending
from retinue.core.events import RunSettled, TurnClosed
from retinue.models.scripted import ScriptedModel
from retinue.runtime.kernel import Kernel, Parts
from retinue.runtime.supervisor import Supervisor
from retinue.runtime.work import Work
from retinue.stores.sqlite import SQLiteStore
from retinue.testing.checkers import all_events, check_all
from retinue.testing.world import World, run_world
from tests.sim.lives import kernel_in, open_root

SCRIPT = [
    {"agent": "parent", "tool_calls": [{"name": "spawn_agent", "arguments": {"prompt": "one", "mode": "await"}}]},
    {"agent": "child", "text": "the child's answer"},
    {"agent": "parent", "text": "went on"},
]


class Stumbling(Supervisor):
    """A supervisor with a fault: closing a child's run fails once."""

    stumbled = False

    async def _close(self, work: Work, ending: Ending) -> Decision:
        if work.run_id is not None and not self.stumbled:
            self.stumbled = True
            raise ZeroDivisionError("a fault of ours")
        return await super()._close(work, ending)


class StumblingKernel(Kernel):
    """A kernel with that supervisor."""

    def __init__(self, parts: Parts, position: int) -> None:
        super().__init__(parts, position)
        self.supervisor.__class__ = Stumbling


def test_B13_a_fault_inside_the_runtime_settles_its_run_and_its_parent_goes_on() -> None:
    store = SQLiteStore(":memory:")

    async def main(world: World) -> str | None:
        model = ScriptedModel(SCRIPT, sleep=world.clock.sleep)
        kernel = kernel_in(world, store, model, make=StumblingKernel)
        await kernel.start()
        work = await kernel.prompt(await open_root(kernel), "go")
        await work.done.wait()
        await kernel.close()
        return work.finished_text

    assert run_world(main, 1).value == "went on"
    events = all_events(store)
    assert check_all(events) == []
    settled = next(event.fact for event in events if isinstance(event.fact, RunSettled))
    assert (settled.status, settled.reason) == ("failed", "internal")
    assert "a fault of ours" in (settled.detail or "")
    assert settled.partial == "the child's answer"
    closed = [event.fact for event in events if isinstance(event.fact, TurnClosed) and event.fact.run_id is None]
    assert closed[0].status == "completed"
