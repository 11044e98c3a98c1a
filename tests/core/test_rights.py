"""Rights along a chain of delegations: whatever a definition or a caller asks for, a child never gets more."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.core.decide.runs import decide_spawn
from retinue.core.errors import RetinueError
from retinue.core.events import RunStarted, Snapshot
from retinue.core.ids import Digest, SessionId
from retinue.core.session import Session
from retinue.ports import Tool, ToolSchema
from retinue.runtime.delegate import Delegation, SpawnRequest
from retinue.runtime.toolset import Toolset, delegates
from tests.core import driver
from tests.core.driver import Log

TOOLS = ("read_file", "grep", "web_fetch", "look")
AGENT_TOOLS = ("spawn_agent", "wait_agent")
NAMES = st.sampled_from([*TOOLS, *AGENT_TOOLS])


class Named:
    """A tool of which only name and group matter."""

    def __init__(self, name: str, group: str) -> None:
        self.schema = ToolSchema(name=name, description=name, parameters={})
        self.group = group


class Roles:
    """The role of the moment."""

    def __init__(self) -> None:
        self.role: Snapshot | None = None

    def find(self, ref: str, cwd: str) -> Snapshot | None:
        return self.role


class Inline:
    """An executor that calls at once."""

    async def run(self, call: Callable[..., Any], *args: Any) -> Any:
        return call(*args)


class Counting:
    """Ids in order."""

    def __init__(self) -> None:
        self.made = 0

    def new(self, prefix: str) -> str:
        self.made += 1
        return f"{prefix}_{self.made}"


class Desk:
    """Delegation over a plain log."""

    def __init__(self) -> None:
        self.log = driver.opened({"caps.max_depth": None, "caps.running.root": None})
        self.toolset = Toolset()
        for name in TOOLS:
            self.toolset.add(cast("Tool", Named(name, "workspace")))
        for name in AGENT_TOOLS:
            self.toolset.add(cast("Tool", Named(name, "agents")))
        self.roles = Roles()
        outside = (cast("Any", Inline()), Counting())
        journal, models = cast("Any", self.log), cast("Any", None)
        self.delegation = Delegation(journal, cast("Any", self.roles), models, self.toolset, outside)

    def spawn(self, parent: SessionId, request: SpawnRequest, role: Snapshot | None) -> SessionId:
        self.roles.role = role
        ask = self.delegation.prepare(parent, request, delivery="letter", call_id=None)
        command = asyncio.run(ask)
        self.log.do(decide_spawn, command)
        return command.session_id

    def may(self, session: Session) -> tuple[set[str], float, bool]:
        """The tools beside delegation, the depth its descendants may reach, and whether it may delegate."""
        policy = self.log.state.policy(session.header.root_id)
        cap = session.header.rights.max_depth
        names = set(self.toolset.names(session, policy)) - set(AGENT_TOOLS)
        return names, float("inf") if cap is None else cap, delegates(session, policy)


ROLE = st.none() | st.builds(
    Snapshot,
    ref=st.just("user:x"),
    name=st.just("x"),
    digest=st.just(Digest("d")),
    tools=st.none() | st.lists(NAMES, max_size=4).map(tuple),
    disallowed_tools=st.lists(NAMES, max_size=2).map(tuple),
    spawns=st.sampled_from([(), ("*",), ("x",)]),
    access=st.sampled_from([None, "read", "write"]),
)
REQUEST = st.builds(
    SpawnRequest,
    prompt=st.just("do"),
    agent=st.just("x"),
    tools=st.none() | st.lists(NAMES, max_size=4, unique=True),
    max_depth=st.none() | st.integers(0, 6),
)


@given(st.lists(st.tuples(REQUEST, ROLE), min_size=1, max_size=5))
def test_rights_never_widen_through_nesting(chain: list[tuple[SpawnRequest, Snapshot | None]]) -> None:
    desk = Desk()
    parent = SessionId("s_root")
    for request, role in chain:
        mine = desk.log.state.sessions[parent]
        tools, depth, may_delegate = desk.may(mine)
        try:
            child_id = desk.spawn(parent, request, role)
        except RetinueError as error:
            if error.code not in {"depth_exceeded", "denied"}:
                raise
            return
        child = desk.log.state.sessions[child_id]
        child_tools, child_depth, child_may_delegate = desk.may(child)
        assert child_tools <= tools
        assert child_depth <= depth
        assert child_may_delegate <= may_delegate
        assert child.header.depth == mine.header.depth + 1 <= child_depth
        assert child.header.rights.access == "read"
        _require_narrowed(child_tools, request, role)
        parent = child_id


def _require_narrowed(child_tools: set[str], request: SpawnRequest, role: Snapshot | None) -> None:
    if request.tools is not None:
        assert child_tools <= set(request.tools)
    if role is not None:
        assert role.tools is None or child_tools <= set(role.tools)
        assert not child_tools & set(role.disallowed_tools)


def test_the_rights_of_a_child_are_those_of_its_spawn_and_stay_in_its_header() -> None:
    desk = Desk()
    child = desk.spawn(SessionId("s_root"), SpawnRequest(prompt="do", tools=["grep"]), None)
    rights = desk.log.state.sessions[child].header.rights
    assert (rights.tools, rights.may_delegate) == (("grep",), False)
    started = desk.log.facts(RunStarted)[-1]
    assert (started.access, started.paths) == (rights.access, rights.paths)


def test_an_unknown_tool_in_a_filter_is_refused_and_leaves_no_orphan() -> None:
    desk = Desk()
    before = len(desk.log.events)
    with pytest.raises(RetinueError) as caught:
        desk.spawn(SessionId("s_root"), SpawnRequest(prompt="do", tools=["no_such"]), None)
    assert caught.value.code == "unknown_tool"
    assert len(desk.log.events) == before


@given(depth_cap=st.integers(0, 4))
def test_no_chain_of_children_passes_the_depth_that_was_frozen(depth_cap: int) -> None:
    log: Log = driver.opened()
    parent = "s_root"
    for depth in range(1, depth_cap + 1):
        driver.spawn(log, depth, parent, rights=driver.Rights(max_depth=depth_cap))
        parent = f"s_{depth}"
    with pytest.raises(RetinueError) as caught:
        driver.spawn(log, "deep", parent, rights=driver.Rights(max_depth=depth_cap))
    assert caught.value.code == "depth_exceeded"
    assert str(depth_cap + 1) in caught.value.detail
    assert f"cap is {depth_cap}" in caught.value.detail
