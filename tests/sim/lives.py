"""One life of the runtime in a simulated world; it holds no test."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from retinue.core.errors import RetinueError
from retinue.core.events import Snapshot
from retinue.core.ids import Digest, SessionId
from retinue.core.policy import named, with_changes
from retinue.ports import Model, Store, Tool
from retinue.runtime.kernel import Kernel, NewSession, Parts
from retinue.runtime.prompt import PromptTexts
from retinue.testing.fakes import BareSurroundings, OneModel
from retinue.testing.world import World
from retinue.tools.agents import agent_tools

TEXTS = PromptTexts(
    main_role="main",
    child_role="child",
    delegation="delegate well",
    child_notes="you are a child",
    compaction="write notes",
    output_schema="end with JSON",
    delegation_pull="fetch results",
    turn_ends="it ends when you stop",
)
CWD = "/workspace"


WORKER = Snapshot(ref="builtin:worker", name="worker", digest=Digest("w" * 64), instructions="work", spawns=("*",))
"""It delegates, other than the built-in one: worlds under `roster` would end at its children."""


class OnlyTheWorker:
    """The `Definitions` port with the one role that children have who are given none, under the policy `roster`."""

    def find(self, ref: str, cwd: str) -> Snapshot:
        """Return the worker, refuse every other one."""
        if ref == WORKER.ref:
            return WORKER
        raise RetinueError("unknown_agent", f"There is no agent {ref!r} in {cwd}.", "There are none.")


def kernel_in(
    world: World,
    store: Store,
    model: Model,
    tools: Sequence[Tool] = (),
    make: Callable[[Parts, int], Kernel] = Kernel,
    **more: Any,
) -> Kernel:
    """Return a kernel over a store, not yet started."""
    parts = Parts(
        store=store,
        executor=world.executor,
        clock=world.clock,
        ids=world.ids,
        models=OneModel(model),
        definitions=OnlyTheWorker(),
        surroundings=BareSurroundings(),
        texts=TEXTS,
        data_dir="/data",
        tools=lambda kernel: (*tools, *agent_tools(kernel)),
    )
    return make(msgspec.structs.replace(parts, **more), store.position())


async def open_root(
    kernel: Kernel, policy: dict[str, Any] | None = None, name: str = "standard", **more: Any
) -> SessionId:
    """Open a root session under a named policy with some switches on top."""
    chosen = with_changes(named(name), policy or {}, in_code=True)
    return await kernel.create_session(NewSession(cwd=CWD, model="any:model", policy=chosen, **more))
