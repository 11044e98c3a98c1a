"""Refuses a `run` that cannot be before anything is made for it; the runtime decides again, this only asks sooner."""

from collections.abc import Mapping
from typing import Any

from retinue.app import NO_MODEL
from retinue.cli.reading import find_session, record_of
from retinue.core.errors import RetinueError
from retinue.core.policy import named, with_changes
from retinue.definitions.catalog import Catalog
from retinue.models.registry import ModelRegistry
from retinue.runtime.kernel import PROMPT_MAX_CHARS
from retinue.settings import Settings


def require_new_session(settings: Settings, session: Mapping[str, Any]) -> None:
    """Raise what opening a session with these arguments would raise: its policy, its agent, its model."""
    policy = with_changes(named(session.get("policy", "standard")), settings.policy)
    with_changes(policy, session.get("set", {}))
    agent = session.get("agent")
    catalog = Catalog(settings.home, model_aliases=settings.model_aliases, data_dir=settings.data_dir)
    definition = None if agent is None else catalog.find(agent, session["cwd"])
    model = session.get("model") or (definition.model if definition is not None else None) or settings.model
    if model is None:
        raise RetinueError("unknown_model", NO_MODEL)
    _require_model(settings, model)


def require_root(settings: Settings, session_id: str) -> None:
    """Raise `not_found` for a session that is not on record, `invalid` for a child, and what its model raises."""
    with record_of(settings) as store:
        header = find_session(store, session_id).header
    if header.parent_id is not None:
        raise RetinueError("invalid", f"{session_id} is a child; its parent prompts it.", "Prompt its root.")
    _require_model(settings, header.model)


def require_prompt(text: str) -> None:
    """Raise `too_large` for a prompt that no turn takes."""
    if len(text) > PROMPT_MAX_CHARS:
        detail = f"The prompt has {len(text)} characters; a turn takes {PROMPT_MAX_CHARS}."
        raise RetinueError("too_large", detail, "Put it into a file and name that.")


def _require_model(settings: Settings, model: str) -> None:
    ModelRegistry(settings.connections, environment=settings.environ).find(model)
