"""Turns "delegate this" into one spawn decision: role, model, rights, limits, all frozen; it starts nothing itself.

A child's rights are parent ∩ definition ∩ request; nothing here can widen them (CONTRACT section 2, rule 7).
"""

import os.path
from typing import Any, Final, Literal

import msgspec

from retinue.core.decide.runs import Spawn, require_depth
from retinue.core.errors import RetinueError
from retinue.core.events import Delivery, Rights, RunSpec, SessionOpened, Snapshot
from retinue.core.ids import CallId, Digest, RunId, Seq, SessionId
from retinue.core.messages import RequestMessage
from retinue.core.policy import Policy
from retinue.core.session import Session
from retinue.core.state import depth_cap
from retinue.core.text import is_storable
from retinue.ports import Definitions, Executor, Ids, Models
from retinue.runtime.hooks import Hooks
from retinue.runtime.journal import Journal
from retinue.runtime.outputs import require_schema
from retinue.runtime.packing import ContextRequest, read_context, require_mode, task_text
from retinue.runtime.prompt import PromptTexts, fork_notes
from retinue.runtime.providers import Capability, Provider, Providers
from retinue.runtime.record import Record
from retinue.runtime.rights import child_rights, is_told_roles, loads_skills
from retinue.runtime.texts import Texts
from retinue.runtime.toolset import Toolset

NAME_MAX_CHARS: Final = 64
PROMPT_MAX_CHARS: Final = 200_000
INHERIT: Final = "inherit"
WORKER: Final = "builtin:worker"
"""The role of a child that none is named for, under the policy `roster` (CONTRACT section 4)."""


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


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """What children are made from."""

    definitions: Definitions
    models: Models
    tools: Toolset
    record: Record
    stored: Texts
    texts: PromptTexts


class Delegation:
    """Prepares children."""

    def __init__(self, journal: Journal, sources: Sources, hooks: Hooks, outside: tuple[Executor, Ids]) -> None:
        """Wire it."""
        self.providers: Final = Providers()
        self._journal = journal
        self._sources = sources
        self._hooks = hooks
        self._executor, self._ids = outside

    async def prepare(self, parent_id: SessionId, request: SpawnRequest, way: Way) -> Spawn:
        """Return the decision that spawns this child; refuse what is wrong or not built yet, leaving nothing behind.

        Hooks are asked last, with everything settled, and before the child is admitted (`denied_hook`).
        """
        parent = self._journal.state.sessions[parent_id]
        policy = self._journal.state.policy(parent.header.root_id)
        _require_supported(request)
        _require_allowed(request, way, policy)
        _require_depth(parent, policy, request.max_depth)
        spawn = await self._spawn(parent, request, way, policy)
        await self._ask(parent, spawn)
        return spawn

    async def _spawn(self, parent: Session, request: SpawnRequest, way: Way, policy: Policy) -> Spawn:
        header = parent.header
        context = read_context(request.context)
        require_mode(context.mode, policy)
        definition = await self._definition(request.agent, header.cwd, policy)
        _require_spawnable(header.definition, definition)
        provider = self._provider(request, definition, context, way)
        if provider.seeded:
            require_mode("fork", policy)
        schema = _first(request.output_schema, definition and definition.output_schema)
        if schema is not None:
            await self._executor.run(require_schema, schema)
        cwd = header.cwd
        if request.cwd is not None:
            cwd = await self._executor.run(_inside, header.cwd, request.cwd)
        begin = self._fork(parent, request, provider, is_same=definition is None and cwd == header.cwd)
        rights = self._rights(parent, policy, request, definition)
        digest, blobs = await self._environment(parent, policy, (cwd, rights), definition)
        limits = _limits(request, definition, policy)
        spec = RunSpec(
            prompt=await task_text(request.prompt, context, self._sources.record, parent.session_id),
            delivery=way.delivery,
            system_prompt=_persona(request, definition, header),
            max_steps=limits[0],
            timeout_s=limits[1],
            effort=_first(definition and definition.effort, header.effort),
            cancel_with_parent=_flag(request.cancel_with_parent, way),
            rights=rights,
            definition=definition,
            profile=header.profile,
            approval=header.approval,
            environment_digest=digest,
            output_schema=schema,
            seed=begin.seed,
            seed_seq=begin.seed_seq,
            system_digest=begin.system_digest,
            opening=begin.opening,
        )
        return Spawn(
            run_id=RunId(self._ids.new("r")),
            session_id=way.session_id or SessionId(self._ids.new("s")),
            parent_id=parent.session_id,
            root_run_id=RunId(self._ids.new("r")),
            call_id=way.call_id,
            name=_name(request, definition),
            model=self._model(request, definition, header),
            cwd=cwd,
            continuable=_continuable(request, definition, way, policy),
            spec=spec,
            stamp=self._journal.stamp(),
            provider=provider.name,
            blobs=blobs,
        )

    async def _ask(self, parent: Session, spawn: Spawn) -> None:
        point = "agent.subagent.spawn.before"
        if not self._hooks.wants(point):
            return
        spec = spawn.spec
        data = {
            "session_id": spawn.session_id,
            "call_id": spawn.call_id,
            "name": spawn.name,
            "agent": None if spec.definition is None else spec.definition.ref,
            "model": spawn.model,
            "provider": spawn.provider,
            "cwd": spawn.cwd,
            "prompt": spec.prompt,
            "system_prompt": spec.system_prompt,
            "tools": spec.rights.tools,
            "continuable": spawn.continuable,
        }
        reason = await self._hooks.denied(point, parent, data)
        if reason is not None:
            raise RetinueError("denied_hook", f"A hook denied the child: {reason}", "No child was created.")

    def _provider(
        self, request: SpawnRequest, definition: Snapshot | None, context: ContextRequest, way: Way
    ) -> Provider:
        """Return the provider that is meant: the one named, or `fork` where the context mode says so."""
        role = definition or Snapshot(ref="", name="", digest=Digest(""))
        asked: dict[Capability, object] = {
            "output_schema": _first(request.output_schema, role.output_schema),
            "depth": request.max_depth,
            "tool_filter": _first(request.tools, role.tools, role.disallowed_tools or None),
            "persona": _first(request.system_prompt, role.instructions or None),
        }
        wanted: frozenset[Capability] = frozenset(what for what, value in asked.items() if value is not None)
        return self.providers.find("fork" if context.mode == "fork" else way.provider, wanted)

    def _fork(self, parent: Session, request: SpawnRequest, provider: Provider, *, is_same: bool) -> "_Beginning":
        """Return the history that a seeded child begins with, and its parent's system text where that holds for it.

        With both the same to the letter, a provider that caches prefixes has read a fork's beginning already.
        """
        if not provider.seeded:
            return _Beginning()
        seed, seq = tuple(parent.completed), Seq(parent.completed_seq)
        plain = is_same and request.system_prompt is None and parent.header.output_schema is None
        if not plain or parent.prompt_digest is None:
            return _Beginning(seed=seed, seed_seq=seq)
        notes = fork_notes(self._sources.texts, request.output_schema)
        return _Beginning(seed=seed, seed_seq=seq, system_digest=parent.prompt_digest, opening=notes)

    async def _definition(self, ref: str | None, cwd: str, policy: Policy) -> Snapshot | None:
        wanted = WORKER if ref is None and policy.name == "roster" else ref
        return None if wanted is None else await self._executor.run(self._sources.definitions.find, wanted, cwd)

    def _model(self, request: SpawnRequest, definition: Snapshot | None, header: SessionOpened) -> str:
        """Explicit argument, then definition, then parent; an unknown name is refused before the run."""
        wanted = request.model or (definition.model if definition is not None else None)
        if wanted is None or wanted == INHERIT:
            return header.model
        try:
            self._sources.models.find(wanted)
        except RetinueError as error:
            if request.model is not None or definition is None:
                raise
            raise RetinueError(error.code, f"The role {definition.name!r}: {error.detail}", error.hint) from error
        return wanted

    def _rights(self, parent: Session, policy: Policy, request: SpawnRequest, definition: Snapshot | None) -> Rights:
        """Return a child's rights, from what its parent may now."""
        mine = parent.header.rights
        of_root = parent.header.parent_id is None
        rights = child_rights(mine, self._sources.tools, definition, request.tools, of_root=of_root)
        caps = [cap for cap in (depth_cap(parent, policy), request.max_depth) if cap is not None]
        return msgspec.structs.replace(rights, max_depth=min(caps) if caps else None)

    async def _environment(
        self, parent: Session, policy: Policy, place: tuple[str, Rights], definition: Snapshot | None
    ) -> tuple[Digest | None, tuple[tuple[Digest, bytes], ...]]:
        """Return the digest of a child's environment block, with the block where it is not its parent's."""
        header, (cwd, rights) = parent.header, place
        told = self._told(rights, header.profile, header.depth + 1, policy)
        role = definition or header.definition
        preload = () if role is None else role.skills
        mine = () if header.definition is None else header.definition.skills
        if (cwd, told, preload) == (header.cwd, self._told(header.rights, header.profile, header.depth, policy), mine):
            return header.environment_digest, ()
        made = await self._sources.stored.environment(cwd, roles=told[0], skills=told[1], preload=preload)
        return made.digest, ((made.digest, made.body),)

    def _told(self, rights: Rights, profile: str, depth: int, policy: Policy) -> tuple[bool, bool]:
        return is_told_roles(rights, profile, depth, policy), loads_skills(rights, self._sources.tools)


class _Beginning(msgspec.Struct, frozen=True, kw_only=True):
    """What a child's session begins with besides its header."""

    seed: tuple[RequestMessage, ...] = ()
    seed_seq: Seq | None = None
    system_digest: Digest | None = None
    opening: str | None = None


def _require_allowed(request: SpawnRequest, way: Way, policy: Policy) -> None:
    """Refuse what a parent's model may not choose here (`denied`); a program that starts children may."""
    if way.call_id is None:
        return
    for what, value, key in (
        ("model", request.model if request.model != INHERIT else None, "rights.caller_model"),
        ("system_prompt", request.system_prompt, "rights.inline_roles"),
    ):
        if value is not None and not policy[key]:
            raise RetinueError("denied", f"A child's {what} cannot be chosen here ({key}).", f"Leave {what} out.")


def _require_supported(request: SpawnRequest) -> None:
    asked = {
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


def _limits(request: SpawnRequest, definition: Snapshot | None, policy: Policy) -> tuple[Any, Any]:
    """Return the steps and the seconds of each run."""
    steps = _limit(request.max_steps, definition and definition.max_steps, policy.number("life.max_steps"))
    seconds = _limit(request.timeout_s, definition and definition.timeout_s, policy.number("life.run_timeout_s"))
    return steps, seconds


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
    if "\0" in wanted:
        raise RetinueError("invalid", "A folder's name cannot hold a null character.", "Name a folder.")
    base, path = os.path.realpath(parent), os.path.realpath(os.path.join(parent, wanted))
    if path != base and not path.startswith(base.rstrip("/") + "/"):
        raise RetinueError("outside_workspace", f"{wanted!r} is outside the workspace.", "Name a folder inside it.")
    if not os.path.isdir(path):
        raise RetinueError("invalid", f"{wanted!r} is not a folder.", "Name a folder inside the workspace.")
    return path
