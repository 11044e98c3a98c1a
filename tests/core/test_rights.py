"""Rights and depth on every path: spawn, nesting, follow-up, fork, letters, policy, a log read again; never wider."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from retinue.core.decide.runs import decide_spawn
from retinue.core.errors import RetinueError
from retinue.core.events import Rights, RunQueued, RunStarted, SessionOpened, Snapshot
from retinue.core.ids import Digest, SessionId
from retinue.core.session import Session
from retinue.core.state import State, depth_cap
from retinue.ports import Tool, ToolSchema
from retinue.runtime.delegate import Delegation, Sources, SpawnRequest, Way
from retinue.runtime.hooks import Hooks
from retinue.runtime.rights import child_rights, means, root_rights
from retinue.runtime.texts import Texts
from retinue.runtime.toolset import Toolset, delegates
from retinue.testing.fakes import BareSurroundings
from tests.core import driver
from tests.core.driver import Log, refused
from tests.sim.lives import TEXTS

TOOLS = ("read_file", "grep", "web_fetch", "look")
ROOT = SessionId("s_root")
AGENT_TOOLS = ("spawn_agent", "wait_agent")
UNCAPPED: dict[str, Any] = {
    "caps.running.process": None,
    "caps.running.root": None,
    "caps.created.turn": None,
    "caps.created.root_run": None,
    "life.rounds_max": None,
    "life.queued_messages_max": None,
    "result.auto_turns_max": None,
}
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


class NoHooks(Hooks):
    """Nobody is asked."""

    def __init__(self) -> None:
        nobody = cast("Any", None)
        super().__init__(nobody, nobody, nobody, nobody, ())


class Counting:
    """Ids in order."""

    def __init__(self) -> None:
        self.made = 0

    def new(self, prefix: str) -> str:
        self.made += 1
        return f"{prefix}_{self.made}"


Power = tuple[set[str], float, bool]
"""Tools beside delegation, the depth that descendants may reach, whether it may delegate."""


def require_within(mine: Power, bound: Power) -> None:
    assert mine[0] <= bound[0]
    assert mine[1] <= bound[1]
    assert mine[2] <= bound[2]


class Desk:
    """Delegation over a plain log."""

    def __init__(self) -> None:
        self.log = driver.opened({**UNCAPPED, "caps.max_depth": None})
        self.toolset = Toolset()
        for name in TOOLS:
            self.toolset.add(cast("Tool", Named(name, "read")))
        for name in AGENT_TOOLS:
            self.toolset.add(cast("Tool", Named(name, "agents")))
        self.roles = Roles()
        outside = (cast("Any", Inline()), Counting())
        sources = Sources(
            definitions=cast("Any", self.roles),
            models=cast("Any", None),
            tools=self.toolset,
            record=cast("Any", None),
            stored=Texts(cast("Any", None), cast("Any", Inline()), BareSurroundings()),
            texts=TEXTS,
        )
        self.delegation = Delegation(cast("Any", self.log), sources, NoHooks(), outside)

    def spawn(
        self, parent: SessionId, request: SpawnRequest, role: Snapshot | None, provider: str = "spawn"
    ) -> SessionId:
        self.roles.role = role
        ask = self.delegation.prepare(parent, request, Way(delivery="letter", provider=provider))
        command = asyncio.run(ask)
        self.log.do(decide_spawn, command)
        return command.session_id

    def may(self, session: Session) -> Power:
        """What a session may do now."""
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
    parent = ROOT
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
        _require_narrowed((child_tools, child_depth, child_may_delegate), request, role)
        parent = child_id


def _require_narrowed(power: Power, request: SpawnRequest, role: Snapshot | None) -> None:
    child_tools, depth, may_delegate = power
    assert request.max_depth is None or depth <= request.max_depth
    if request.tools is not None:
        assert child_tools <= set(request.tools)
        assert not may_delegate or "spawn_agent" in request.tools
    if role is not None:
        assert role.tools is None or child_tools <= set(role.tools)
        assert not child_tools & set(role.disallowed_tools)
        assert not may_delegate or (role.spawns and "spawn_agent" not in role.disallowed_tools)


CONNECTORS = ("mcp__db__query", "mcp__db__drop", "mcp__web__get")
WRITTEN = st.lists(st.sampled_from([*TOOLS, *CONNECTORS, "mcp__db", "mcp__db__*", "mcp__*"]), max_size=3)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("grep", {"grep"}),
        ("mcp__db__query", {"mcp__db__query"}),
        ("mcp__db", {"mcp__db__query", "mcp__db__drop"}),
        ("mcp__db__*", {"mcp__db__query", "mcp__db__drop"}),
        ("mcp__db__d*", {"mcp__db__drop"}),
        ("mcp__*", set(CONNECTORS)),
        ("mcp__d", set[str]()),
        ("mcp__", set[str]()),
        ("*", set[str]()),
        ("gr*", set[str]()),
        ("", set[str]()),
    ],
)
def test_a_written_name_means_itself_or_all_tools_of_a_server_and_never_more(written: str, meant: set[str]) -> None:
    assert {name for name in (*TOOLS, *CONNECTORS) if means(written, name)} == meant


EVERYTHING = (*TOOLS, "report_to_parent", *CONNECTORS)


def _toolset() -> Toolset:
    toolset = Toolset()
    groups = {"read": TOOLS, "agents": AGENT_TOOLS, "report": ("report_to_parent",), "connector": CONNECTORS}
    for group, names in groups.items():
        for name in names:
            toolset.add(cast("Tool", Named(name, group)))
    return toolset


@given(st.lists(st.tuples(st.none() | WRITTEN, st.none() | WRITTEN, WRITTEN), min_size=1, max_size=4))
def test_a_connectors_tool_is_given_by_name_only_and_never_comes_back_further_down(
    chain: list[tuple[list[str] | None, list[str] | None, list[str]]],
) -> None:
    toolset = _toolset()
    mine, of_root = root_rights(toolset, None, None, None), True
    for asked, written, without in chain:
        role = Snapshot(ref="user:x", name="x", digest=Digest("d"), disallowed_tools=tuple(without))
        if written is not None:
            role = msgspec.structs.replace(role, tools=tuple(written))
        try:
            rights = child_rights(mine, toolset, role, asked, of_root=of_root)
        except RetinueError as error:
            if error.code != "unknown_tool":
                raise
            return
        held, before = _held(rights, toolset), _held(mine, toolset, of_root=of_root)
        assert held <= before
        for name in held:
            assert not any(means(one, name) for one in without)
            assert all(names is None or any(means(one, name) for one in names) for names in (asked, written))
        for name in held & set(CONNECTORS):
            assert any(means(one, name) for one in [*(asked or []), *(written or [])])
        mine, of_root = rights, False


def _held(rights: Rights, toolset: Toolset, *, of_root: bool = False) -> set[str]:
    if rights.tools is not None:
        return set(rights.tools)
    return set(toolset.of_group("read", "report", "custom", *(["connector"] if of_root else [])))


@pytest.mark.parametrize(
    ("role", "asked", "tools", "may_delegate"),
    [
        ({}, None, None, False),
        ({"spawns": ("*",)}, None, None, True),
        ({"spawns": ("x",), "disallowed_tools": ("spawn_agent",)}, None, EVERYTHING, False),
        ({}, EVERYTHING, EVERYTHING, False),
        ({"disallowed_tools": ("mcp__db",)}, None, (*TOOLS, "report_to_parent", "mcp__web__get"), False),
        ({"tools": ("grep", "mcp__db__query")}, ["grep", "look"], ("grep",), False),
        ({"tools": ()}, None, (), False),
    ],
)
def test_a_root_has_every_tool_but_for_what_its_role_or_its_opener_leaves_out(
    role: dict[str, Any], asked: Sequence[str] | None, tools: tuple[str, ...] | None, may_delegate: bool
) -> None:
    definition = Snapshot(ref="user:x", name="x", digest=Digest("d"), **role)
    rights = root_rights(_toolset(), definition, asked, 2)
    assert (rights.tools, rights.may_delegate, rights.max_depth, rights.access) == (tools, may_delegate, 2, "read")
    assert root_rights(_toolset(), None, None, None).may_delegate
    assert refused(lambda: root_rights(_toolset(), None, ["grep", "Bash"], None)).code == "unknown_tool"


def test_the_rights_of_a_child_are_those_of_its_spawn_and_stay_in_its_header() -> None:
    desk = Desk()
    child = desk.spawn(ROOT, SpawnRequest(prompt="do", tools=["grep"]), None)
    rights = desk.log.state.sessions[child].header.rights
    assert (rights.tools, rights.may_delegate) == (("grep",), False)
    started = desk.log.facts(RunStarted)[-1]
    assert (started.access, started.paths) == (rights.access, rights.paths)


@pytest.mark.parametrize("narrowed", [{"tools": list(TOOLS)}, {"agent": "x"}], ids=["call", "role"])
def test_a_list_of_every_tool_of_today_leaves_out_the_one_that_a_later_start_adds(narrowed: dict[str, Any]) -> None:
    desk = Desk()
    role = Snapshot(ref="user:x", name="x", digest=Digest("d"), tools=TOOLS) if "agent" in narrowed else None
    child, plain = (
        desk.spawn(ROOT, SpawnRequest(prompt="do", **asked), role if asked else None) for asked in (narrowed, {})
    )
    desk.toolset.add(cast("Tool", Named("later", "custom")))
    sessions = desk.log.state.sessions
    assert ["later" in desk.may(sessions[name])[0] for name in (ROOT, child, plain)] == [True, False, True]


def test_an_unknown_tool_in_a_filter_is_refused_and_leaves_no_orphan() -> None:
    desk = Desk()
    before = len(desk.log.events)
    with pytest.raises(RetinueError) as caught:
        desk.spawn(ROOT, SpawnRequest(prompt="do", tools=["no_such"]), None)
    assert caught.value.code == "unknown_tool"
    assert len(desk.log.events) == before


@given(depth_cap=st.integers(0, 4))
def test_no_chain_of_children_passes_the_depth_that_was_frozen(depth_cap: int) -> None:
    log: Log = driver.opened({"caps.max_depth": None})
    parent = "s_root"
    for depth in range(1, depth_cap + 1):
        driver.spawn(log, depth, parent, rights=driver.Rights(max_depth=depth_cap))
        parent = f"s_{depth}"
    error = refused(lambda: driver.spawn(log, "deep", parent, rights=driver.Rights(max_depth=depth_cap)))
    assert error.code == "depth_exceeded"
    assert str(depth_cap + 1) in error.detail
    assert f"cap is {depth_cap}" in error.detail


def test_a_cap_of_zero_refuses_the_first_child_with_both_numbers() -> None:
    desk = Desk()
    for call in (
        lambda: desk.spawn(ROOT, SpawnRequest(prompt="do", max_depth=0), None),
        lambda: driver.spawn(driver.opened({"caps.max_depth": 0}), 1),
    ):
        error = refused(call)
        assert (error.code, error.detail) == (
            "depth_exceeded",
            "A child of this session would have depth 1; the cap is 0.",
        )


def test_two_children_of_one_turn_both_have_depth_one() -> None:
    desk = Desk()
    kids = [desk.spawn(ROOT, SpawnRequest(prompt="do", max_depth=1), None) for _ in range(2)]
    assert [desk.log.state.sessions[kid].header.depth for kid in kids] == [1, 1]


def test_S17_a_policy_may_lower_the_depth_of_a_child_and_never_lifts_it_above_what_was_frozen() -> None:
    desk = Desk()
    driver.set_policy(desk.log, {"caps.max_depth": 2})
    kid = desk.spawn(ROOT, SpawnRequest(prompt="do"), None)
    below = desk.spawn(kid, SpawnRequest(prompt="do"), None)
    driver.set_policy(desk.log, {"caps.max_depth": 9})
    assert refused(lambda: desk.spawn(below, SpawnRequest(prompt="do", max_depth=9), None)).code == "depth_exceeded"
    driver.set_policy(desk.log, {"caps.max_depth": 1})
    assert refused(lambda: desk.spawn(kid, SpawnRequest(prompt="do"), None)).code == "depth_exceeded"
    assert desk.spawn(ROOT, SpawnRequest(prompt="do"), None)


class Paths(RuleBasedStateMachine):
    """Children come, work, end, are written to, forked, roused, read again from the log, under a changing policy."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk()
        self.log = self.desk.log
        self.made = 0
        self.born: dict[SessionId, tuple[SessionOpened, Power]] = {}
        self.note()

    def note(self) -> None:
        for session_id, session in self.log.state.sessions.items():
            self.born.setdefault(session_id, (session.header, self.desk.may(session)))

    def _name(self) -> str:
        self.made += 1
        return f"n{self.made}"

    def _sessions(self, *, working: bool = False, child: bool = False) -> list[SessionId]:
        state = self.log.state
        found = [name for name in self.born if not (child and name == ROOT)]
        return [name for name in found if not working or (name in state.sessions and state.sessions[name].turn)]

    @precondition(lambda self: self._sessions(working=True))
    @rule(data=st.data(), request=REQUEST, role=ROLE, provider=st.sampled_from(["spawn", "fork"]))
    def spawn(self, data: st.DataObject, request: SpawnRequest, role: Snapshot | None, provider: str) -> None:
        parent = data.draw(st.sampled_from(self._sessions(working=True)))
        mine = self.desk.may(self.log.state.sessions[parent])
        try:
            child = self.desk.spawn(parent, request, role, provider)
        except RetinueError as error:
            if error.code not in {"depth_exceeded", "denied"}:
                raise
            return
        require_within(self.desk.may(self.log.state.sessions[child]), mine)
        _require_narrowed(self.desk.may(self.log.state.sessions[child]), request, role)
        self.note()

    @precondition(lambda self: self._sessions(working=True))
    @rule(data=st.data(), depth=st.none() | st.integers(0, 9))
    def spawn_as_a_caller_that_checks_nothing(self, data: st.DataObject, depth: int | None) -> None:
        """What the decision alone says of the right to delegate and of depth, whatever the caller puts into it."""
        parent = data.draw(st.sampled_from(self._sessions(working=True)))
        session = self.log.state.sessions[parent]
        caps = [cap for cap in (depth_cap(session, self.log.state.policy(ROOT)), depth) if cap is not None]
        rights = msgspec.structs.replace(session.header.rights, max_depth=min(caps, default=None))
        below = session.header.depth + 1
        if session.header.parent_id is not None and not rights.may_delegate:
            assert refused(lambda: driver.spawn(self.log, self._name(), parent, rights=rights)).code == "denied"
            return
        if caps and below > min(caps):
            assert refused(lambda: driver.spawn(self.log, self._name(), parent, rights=rights)).code == "depth_exceeded"
            return
        assert driver.spawn(self.log, self._name(), parent, rights=rights).value.depth == below
        self.note()

    @precondition(lambda self: self._sessions(working=True, child=True))
    @rule(data=st.data(), ending=st.sampled_from([driver.DONE, driver.FAILED, driver.INTERRUPTED]))
    def end(self, data: st.DataObject, ending: driver.Ending) -> None:
        child = data.draw(st.sampled_from(self._sessions(working=True, child=True)))
        turn = self.log.state.sessions[child].turn
        assert turn is not None
        driver.step(self.log, child, "so")
        driver.settle(self.log, str(turn.opened.run_id)[2:], ending)

    @precondition(lambda self: self._sessions(child=True))
    @rule(data=st.data())
    def follow_up(self, data: st.DataObject) -> None:
        child = data.draw(st.sampled_from(self._sessions(child=True)))
        run = driver.send(self.log, self._name(), child, self.born[child][0].parent_id).value
        assert run.depth == self.born[child][0].depth

    @precondition(lambda self: self._sessions(working=True, child=True))
    @rule(data=st.data())
    def report_and_rouse(self, data: st.DataObject) -> None:
        child = data.draw(st.sampled_from(self._sessions(working=True, child=True)))
        driver.report(self.log, self._name(), child)
        driver.rouse(self.log, self._name(), str(self.born[child][0].parent_id))

    @rule()
    def the_root_ends_its_turn_and_begins_another(self) -> None:
        if self.log.state.sessions[ROOT].turn is not None:
            driver.step(self.log, ROOT, "so")
            driver.close(self.log, ending=driver.FAILED)
        driver.recall(self.log, ROOT)
        driver.open_turn(self.log, ROOT)

    @rule(depth=st.none() | st.integers(0, 6))
    def change_the_policy(self, depth: int | None) -> None:
        driver.set_policy(self.log, {"caps.max_depth": depth})

    @rule()
    def everything_is_read_again(self) -> None:
        """A restart: the head is what the log says."""
        state = State()
        state.load(self.log.events)
        self.log.state = state

    @invariant()
    def no_session_may_more_than_at_its_birth_and_none_more_than_its_parent(self) -> None:
        sessions = self.log.state.sessions
        for session_id, session in sessions.items():
            header, power = self.born[session_id]
            assert session.header == header
            if header.parent_id is not None:
                require_within(self.desk.may(session), power)
                require_within(self.desk.may(session), self.desk.may(sessions[header.parent_id]))
                assert header.depth == self.born[header.parent_id][0].depth + 1

    @invariant()
    def every_run_of_a_child_has_the_rights_and_the_depth_of_its_first(self) -> None:
        first: dict[SessionId, RunQueued] = {}
        for fact in self.log.facts(RunQueued):
            one = first.setdefault(fact.child_id, fact)
            assert (fact.spec.rights, fact.depth, fact.access, fact.paths) == (
                one.spec.rights,
                one.depth,
                one.access,
                one.paths,
            )


TestPaths = Paths.TestCase
TestPaths.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
