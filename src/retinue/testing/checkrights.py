"""Checkers of depth and rights: nobody is deeper or may more than the parent; they read events and nothing else."""

from collections.abc import Mapping
from typing import Any

from retinue.core.events import Event, RunQueued, SessionOpened
from retinue.core.ids import SessionId
from retinue.core.policy import Policy
from retinue.testing.logview import LogView, Story, at


def check_depth(log: LogView) -> list[str]:
    """A root has depth 0, a child one more than its parent; who is accepted is within the caps of that moment."""
    problems: list[str] = []
    for event in log.events:
        fact = event.fact
        if isinstance(fact, SessionOpened):
            problems += [at(event, text) for text in _header(log, event.session_id, fact)]
        if isinstance(fact, RunQueued) and fact.spec.cause == "prompt":
            problems += [at(event, text) for text in _deepest(log, event, fact)]
    return problems


def _header(log: LogView, session_id: SessionId, header: SessionOpened) -> list[str]:
    if header.parent_id is None:
        same = header.root_id == session_id and header.depth == 0
        return [] if same else [f"a root has root {header.root_id} and depth {header.depth}"]
    parent = log.headers.get(header.parent_id)
    if parent is None:
        return [f"its parent {header.parent_id} does not exist"]
    if header.depth != parent.depth + 1 or header.root_id != parent.root_id:
        return [f"depth {header.depth} and root {header.root_id} do not follow from its parent's"]
    return []


def _deepest(log: LogView, event: Event, fact: RunQueued) -> list[str]:
    parent = log.headers.get(fact.parent_id)
    caps = [log.policy(fact.root_id, event.position).number("caps.max_depth")]
    if parent is not None and parent.parent_id is not None:
        caps.append(parent.rights.max_depth)  # a root's is that of its policy, which may be changed while it lives
    deepest = min((cap for cap in caps if cap is not None), default=None)
    if deepest is not None and fact.depth > deepest:
        return [f"depth {fact.depth} is over the cap {deepest}"]
    return []


def check_rights(log: LogView) -> list[str]:
    """A child has its parent's profile, at most its parent's tools, depth and leave to delegate; its header says so."""
    problems: list[str] = []
    for session_id, header in log.headers.items():
        parent = log.headers.get(header.parent_id) if header.parent_id is not None else None
        if parent is None:
            continue
        texts = _wider(parent, header)
        first = next(iter(log.kids.get(session_id, [])), None)
        if first is not None and first.queued is not None:
            texts += _depth_right(log, parent, first, first.queued) + _as_asked(header, first.queued)
            texts += _filtered(header, log.asked(first.queued, first.queued_at))
        problems += [f"session {session_id}: {text}" for text in texts]
    return problems


def _wider(parent: SessionOpened, header: SessionOpened) -> list[str]:
    mine, theirs = header.rights, parent.rights
    problems: list[str] = []
    if header.profile != parent.profile:
        problems.append(f"its profile is {header.profile}, its parent's {parent.profile}")
    if theirs.tools is not None and (mine.tools is None or not set(mine.tools) <= set(theirs.tools)):
        problems.append(f"its tools are {mine.tools}, its parent's {theirs.tools}")
    if mine.may_delegate and not theirs.may_delegate:
        problems.append("it may delegate, its parent may not")
    return problems


def _filtered(header: SessionOpened, asked: Mapping[str, Any] | None) -> list[str]:
    wanted: list[str] | None = None if asked is None else asked.get("tools")
    mine = header.rights.tools
    if wanted is None or (mine is not None and all(any(_means(one, name) for one in wanted) for name in mine)):
        return []
    return [f"its tools are {mine}, and {wanted} were asked for"]


def _means(written: str, name: str) -> bool:
    return written == name or (written.startswith("mcp__") and name.startswith(written.removesuffix("*")))


def _depth_right(log: LogView, parent: SessionOpened, first: Story, queued: RunQueued) -> list[str]:
    mine = queued.spec.rights.max_depth
    if parent.parent_id is not None:
        caps = [parent.rights.max_depth]
    else:
        # What the parent's turn began with counts, not what it has become since.
        turn = log.turn_at(queued.parent_id, first.queued_at)
        since = first.queued_at if turn is None else turn.position
        caps = [_cap(policy) for policy in log.policies(queued.root_id, since, first.queued_at)]
    most = None if None in caps else max(cap for cap in caps if cap is not None)
    if most is not None and (mine is None or mine > most):
        return [f"its children may be {mine} deep, its parent's {most}"]
    return []


def _cap(policy: Policy) -> int | None:
    return policy.number("caps.max_depth")


def _as_asked(header: SessionOpened, queued: RunQueued) -> list[str]:
    spec = queued.spec
    pairs = {
        "rights": (header.rights, spec.rights),
        "profile": (header.profile, spec.profile),
        "approval": (header.approval, spec.approval),
        "system_prompt": (header.system_prompt, spec.system_prompt),
        "definition": (header.definition, spec.definition),
        "output_schema": (header.output_schema, spec.output_schema),
        "system text": (header.system_digest, spec.system_digest),
        "provider": (header.provider, queued.provider),
        "model": (header.model, queued.model),
        "cwd": (header.cwd, queued.cwd),
    }
    return [f"its {name} is not that of its first run's spec" for name, (one, other) in pairs.items() if one != other]
