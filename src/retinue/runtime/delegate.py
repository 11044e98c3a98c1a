"""Turns "delegate this" into one spawn decision: role, model, rights, limits, all frozen; it starts nothing itself.

A child's rights are parent ∩ definition ∩ request; nothing here can widen them (CONTRACT section 2, rule 7).
"""

import os.path
from typing import Any, Final, Literal

import msgspec

from retinue.core.decide.runs import Spawn, require_depth
from retinue.core.errors import RetinueError
from retinue.core.events import Delivery, Rights, RunSpec, SessionOpened, Snapshot
from retinue.core.ids import CallId, RunId, Seq, SessionId
from retinue.core.policy import Policy
from retinue.core.session import Session
from retinue.core.state import depth_cap
from retinue.core.text import is_storable
from retinue.ports import Definitions, Executor, Ids, Models
from retinue.runtime.journal import Journal
from retinue.runtime.outputs import require_schema
from retinue.runtime.prompt import blob, environment
from retinue.runtime.providers import Capability, Provider, Providers
from retinue.runtime.toolset import SPAWN, Toolset

NAME_MAX_CHARS: Final = 64
PROMPT_MAX_CHARS: Final = 200_000
INHERIT: Final = "inherit"


class SpawnRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a caller may ask of a child: the parameters of `spawn_agent`, by the same names."""

    prompt: str
    agent: str | None = None
    name: str | None = None
    context: str | dict[str, Any] | None = None
    access: Literal["read", "write"] | None = None
    paths: list[str] | None = None
    cwd: str | None = None
    tools: list[str] | None = None
    model: str | None = None
    system_prompt: str | None = None
    mode: Literal["background", "await"] = "background"
    continuable: bool | None = None
    max_steps: int | None = None
    timeout_s: float | None = None
    max_depth: int | None = None
    cancel_with_parent: bool | None = None
    output_schema: dict[str, Any] | None = None


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """How a child is asked for: through which provider and call, and how its result goes home.

    `session_id` is an id that was reserved for it; null draws a fresh one.
    """

    delivery: Delivery
    provider: str = "spawn"
    call_id: CallId | None = None
    session_id: SessionId | None = None


class Delegation:
    """Prepares children."""

    def __init__(
        self, journal: Journal, definitions: Definitions, models: Models, tools: Toolset, outside: tuple[Executor, Ids]
    ) -> None:
        """Wire it."""
        self.providers: Final = Providers()
        self._journal = journal
        self._definitions = definitions
        self._models = models
        self._tools = tools
        self._executor, self._ids = outside

    async def prepare(self, parent_id: SessionId, request: SpawnRequest, way: Way) -> Spawn:
        """Return the decision that spawns this child; refuse what is wrong or not built yet, leaving nothing behind."""
        parent = self._journal.state.sessions[parent_id]
        header = parent.header
        policy = self._journal.state.policy(header.root_id)
        _require_supported(request)
        if request.output_schema is not None:
            await self._executor.run(require_schema, request.output_schema)
        provider = self._provider(request, way, policy)
        _require_depth(parent, policy, request.max_depth)
        seed = tuple(parent.completed) if provider.seeded else ()
        seed_seq = Seq(parent.completed_seq) if provider.seeded else None
        definition = await self._definition(request.agent, header.cwd)
        _require_spawnable(header.definition, definition)
        cwd = header.cwd
        if request.cwd is not None:
            cwd = await self._executor.run(_inside, header.cwd, request.cwd)
        model = self._model(request, definition, header)
        world = blob(environment(cwd, header.depth + 1).encode())
        spec = RunSpec(
            prompt=_task(request),
            delivery=way.delivery,
            system_prompt=_persona(request, definition, header),
            max_steps=_limit(request.max_steps, definition and definition.max_steps, policy.number("life.max_steps")),
            timeout_s=_limit(
                request.timeout_s, definition and definition.timeout_s, policy.number("life.run_timeout_s")
            ),
            effort=_first(definition and definition.effort, header.effort),
            cancel_with_parent=_flag(request.cancel_with_parent, way),
            rights=self._rights(_cap_now(header.rights, parent, policy), request, definition),
            definition=definition,
            profile=header.profile,
            approval=header.approval,
            environment_digest=world.digest,
            output_schema=request.output_schema,
            seed=seed,
            seed_seq=seed_seq,
        )
        return Spawn(
            run_id=RunId(self._ids.new("r")),
            session_id=way.session_id or SessionId(self._ids.new("s")),
            parent_id=parent_id,
            root_run_id=RunId(self._ids.new("r")),
            call_id=way.call_id,
            name=_name(request, definition),
            model=model,
            cwd=cwd,
            continuable=_continuable(request, definition, way, policy),
            spec=spec,
            stamp=self._journal.stamp(),
            provider=provider.name,
            blobs=((world.digest, world.body),),
        )

    def _provider(self, request: SpawnRequest, way: Way, policy: Policy) -> Provider:
        """Return the provider that is meant: the one named, or `fork` where the context mode says so."""
        mode = request.context.get("mode", "none") if isinstance(request.context, dict) else "none"
        asked: dict[Capability, object] = {
            "output_schema": request.output_schema,
            "depth": request.max_depth,
            "tool_filter": request.tools,
            "persona": request.system_prompt,
        }
        wanted: frozenset[Capability] = frozenset(what for what, value in asked.items() if value is not None)
        provider = self.providers.find("fork" if mode == "fork" else way.provider, wanted)
        if provider.seeded and "fork" not in policy["rights.context_modes"]:
            allowed = ", ".join(policy["rights.context_modes"])
            raise RetinueError("denied", "The context mode fork is not allowed here.", f"Allowed are: {allowed}.")
        return provider

    async def _definition(self, ref: str | None, cwd: str) -> Snapshot | None:
        return None if ref is None else await self._executor.run(self._definitions.find, ref, cwd)

    def _model(self, request: SpawnRequest, definition: Snapshot | None, header: SessionOpened) -> str:
        """Explicit argument, then definition, then parent; an unknown name is refused before the run."""
        wanted = request.model or (definition.model if definition is not None else None)
        if wanted is None or wanted == INHERIT:
            return header.model
        self._models.find(wanted)
        return wanted

    def _rights(self, mine: Rights, request: SpawnRequest, definition: Snapshot | None) -> Rights:
        known = [name for name, tool in self._tools.tools.items() if tool.group != "agents"]
        allowed = known if mine.tools is None else list(mine.tools)
        delegating = mine.may_delegate
        if definition is not None:
            delegating = delegating and bool(definition.spawns) and SPAWN not in definition.disallowed_tools
            if definition.tools is not None:
                allowed = [name for name in allowed if name in definition.tools]
            allowed = [name for name in allowed if name not in definition.disallowed_tools]
        if request.tools is not None:
            self._require_known(request.tools)
            delegating = delegating and SPAWN in request.tools
            allowed = [name for name in allowed if name in request.tools]
        untouched = mine.tools is None and allowed == known
        caps = [cap for cap in (mine.max_depth, request.max_depth) if cap is not None]
        return Rights(
            tools=None if untouched else tuple(allowed),
            access="read",
            max_depth=min(caps) if caps else None,
            may_delegate=delegating,
        )

    def _require_known(self, names: list[str]) -> None:
        unknown = [name for name in names if name not in self._tools.tools]
        if unknown:
            raise RetinueError(
                "unknown_tool",
                f"There is no tool {unknown[0]!r} to give to a child.",
                f"The tools are: {', '.join(self._tools.tools)}.",
            )


def _require_supported(request: SpawnRequest) -> None:
    mode = request.context.get("mode", "none") if isinstance(request.context, dict) else "none"
    asked = {
        "context": mode not in ("none", "fork") and f"the context mode {mode!r}",
        "access": request.access == "write" and "access=write",
        "paths": bool(request.paths) and "paths",
    }
    for what in asked.values():
        if what:
            raise RetinueError(
                "unsupported",
                f"This version does not act on {what} yet.",
                "Leave it out; put what the child needs into its prompt, and let it answer with text.",
            )
    if not request.prompt.strip():
        raise RetinueError("invalid", "A child needs a prompt.", "Say the goal, the scope and when it is done.")
    asked = msgspec.structs.astuple(request)
    require_storable("What is asked of a child", *(value for value in asked if isinstance(value, str)))
    if len(request.prompt) > PROMPT_MAX_CHARS:
        raise RetinueError(
            "invalid", f"The prompt has more than {PROMPT_MAX_CHARS} characters.", "Name files instead of quoting them."
        )
    _require_positive(request)


def require_storable(what: str, *texts: str) -> None:
    """Refuse text that no record can hold, before it takes a whole commit down (`invalid`)."""
    if not all(is_storable(text) for text in texts):
        raise RetinueError("invalid", f"{what} holds half a character (a lone surrogate).", "Send whole characters.")


def _require_spawnable(mine: Snapshot | None, wanted: Snapshot | None) -> None:
    """A role delegates only to the roles that its definition's `spawns` names; `*` is any, also none."""
    if mine is None or "*" in mine.spawns:
        return
    names = {wanted.name, wanted.ref} if wanted is not None else set[str]()
    if not names & set(mine.spawns):
        asked = "a child without a role" if wanted is None else f"the role {wanted.name!r}"
        raise RetinueError(
            "denied", f"The role {mine.name!r} may not delegate to {asked}.", f"It may use: {', '.join(mine.spawns)}."
        )


def _require_positive(request: SpawnRequest) -> None:
    for name, value, least in (
        ("max_steps", request.max_steps, 1),
        ("timeout_s", request.timeout_s, 0.001),
        ("max_depth", request.max_depth, 0),
    ):
        # A negative zero counts as a number below zero here (scenario S18).
        if value is not None and (value != value or value < least or str(value).startswith("-")):
            raise RetinueError("invalid", f"{name} cannot be {value}.", f"Give at least {least}, or leave it out.")


def _require_depth(parent: Session, policy: Policy, asked: int | None) -> None:
    """The same refusal the decision makes, before anything is read for the child."""
    for cap in (depth_cap(parent, policy), asked):
        require_depth(parent.header.depth + 1, cap)


def _cap_now(rights: Rights, parent: Session, policy: Policy) -> Rights:
    """Return the parent's rights with the depth its policy allows now: a child's are frozen from them."""
    return msgspec.structs.replace(rights, max_depth=depth_cap(parent, policy))


def _persona(request: SpawnRequest, definition: Snapshot | None, header: SessionOpened) -> str | None:
    """Return the role that is written for a child alone, else, without a definition of its own, its parent's."""
    if request.system_prompt is not None or definition is not None:
        return request.system_prompt
    return _first(header.system_prompt, header.definition and header.definition.instructions)


def _flag(asked: bool | None, way: Way) -> bool:  # noqa: FBT001 - what was asked, or null
    """Return whether a child is flagged to end with its parent's turn: a model's is, unless it says otherwise."""
    return way.call_id is not None if asked is None else asked


def _continuable(request: SpawnRequest, definition: Snapshot | None, way: Way, policy: Policy) -> bool:
    """Return whether messages may continue the child; asking for what `life.continuation` rules out is refused."""
    asked = _first(request.continuable, definition and definition.continuable)
    if policy["life.continuation"] == "none":
        if request.continuable:
            raise RetinueError(
                "not_continuable", "Children cannot be continued here (life.continuation).", "Leave continuable out."
            )
        return False
    return way.delivery == "letter" and bool(policy["life.continuable_default"]) if asked is None else bool(asked)


def _task(request: SpawnRequest) -> str:
    background = request.context if isinstance(request.context, str) else None
    if not background:
        return request.prompt
    return f"{request.prompt}\n\n# Background from the parent (untrusted reference data)\n{background}"


def _name(request: SpawnRequest, definition: Snapshot | None) -> str:
    name = request.name or (definition.name if definition is not None else "agent")
    plain = "".join(char if char.isprintable() else " " for char in name).strip()
    return plain[:NAME_MAX_CHARS] or "agent"


def _limit(asked: float | None, role: float | None, policy: float | None) -> Any:
    """Return the narrower of what is asked and what the role (or else the policy) allows."""
    base = policy if role is None else role
    known = [value for value in (asked, base) if value is not None]
    return min(known) if known else None


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _inside(parent: str, wanted: str) -> str:
    """Return a folder at or below the parent's working directory, after links are resolved."""
    base, path = os.path.realpath(parent), os.path.realpath(os.path.join(parent, wanted))
    if path != base and not path.startswith(base.rstrip("/") + "/"):
        raise RetinueError("outside_workspace", f"{wanted!r} is outside the workspace.", "Name a folder inside it.")
    if not os.path.isdir(path):
        raise RetinueError("invalid", f"{wanted!r} is not a folder.", "Name a folder inside the workspace.")
    return path
