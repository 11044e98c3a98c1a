"""Finds the model that a name means; it opens no connection and reads no environment of its own."""

import asyncio
import importlib
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, cast

import msgspec

from retinue.core.errors import RetinueError
from retinue.core.events import Value
from retinue.models.kinds import ALIASES, AWS_KEY, KINDS, missing, require_installed, require_region
from retinue.models.retry import RetryingModel
from retinue.models.scripted import ScriptedModel, load_script
from retinue.ports import Clock, Model, Models

OPENAI_URL: Final = "https://api.openai.com/v1"
ROOM_TOKENS: Final = 128_000
"""Tokens that a model holds where its connection does not say: what common models hold at least."""
_MODULES: Final = {
    "openai": "retinue.models.openai",
    "times": "retinue.models.unanswered",
    "offline": "retinue.models.offline",
    "extra": "retinue.models.extra",
}
"""Kind → module, imported when it is first needed: a name alone must load no HTTP library."""
_RESERVED: Final = frozenset({"scripted", "offline"})
_TIMES: Final = ("connect_timeout_s", "first_chunk_timeout_s", "idle_timeout_s", "request_timeout_s")
TIMEOUT_MAX_S: Final = 86_400.0


class Connection(Value, forbid_unknown_fields=True):
    """One `[connections.NAME]` table. An empty `models` allows every name; `headers` may hold `{session_id}`.

    Null limits are the adapter's own; time-outs are in seconds and more than 0.
    """

    kind: str = "openai"
    base_url: str | None = None
    api_key_env: str | None = None
    models: tuple[str, ...] = ()
    headers: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    concurrency: int | None = None
    context_tokens: Annotated[int, msgspec.Meta(gt=0)] | None = None
    connect_timeout_s: float | None = None
    first_chunk_timeout_s: float | None = None
    idle_timeout_s: float | None = None
    request_timeout_s: float | None = None
    stream: bool = True
    send_reasoning: bool = False


class ConnectionRow(Value):
    """A connection as a list shows it; never a key. `needs` is the command that installs what it lacks."""

    name: str
    kind: str
    base_url: str | None
    models: tuple[str, ...]
    api_key_env: str | None
    key_set: bool
    needs: str | None = None


class ModelRegistry(Models):
    """Knows every connection and makes each model once."""

    def __init__(
        self,
        connections: Mapping[str, Any] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        custom: Mapping[str, Model] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Take the settings; raise `invalid` for a connection that cannot be understood.

        Args:
            connections: `[connections]` tables by name, as mappings or `Connection`.
            environment: the variables that keys and base URLs are read from.
            custom: models made in Python, by the name they are found under; the registry does not close them.
            clock: what waits are measured with; without one a failed request is not tried again.
        """
        self._environment = dict(environment or {})
        self._clock = clock
        self._custom: dict[str, Model] = {}
        self._made: dict[str, Model] = {}
        self._connections = {name: _connection(name, table) for name, table in (connections or {}).items()}
        self._connections["openai"] = self._default_openai()
        for name, model in (custom or {}).items():
            self.register(name, model)

    def register(self, name: str, model: Model) -> None:
        """Let `name`, and `name:ANY`, mean this model; it goes before a connection of the same name."""
        self._custom[name] = model

    def find(self, name: str) -> tuple[Model, str]:
        """Return the model of a name and what its connection calls it.

        Raises `unknown_model` with a hint that lists what exists, `unsupported` for a provider that is not built in,
        `invalid` for a broken script. Reads the script's file, once per file.
        """
        prefix, _, rest = name.partition(":")
        if name in self._custom:
            return self._custom[name], name
        if prefix in self._custom and rest:
            return self._custom[prefix], rest
        if name == "offline":
            return self._once("offline", lambda: _loaded("offline", "OfflineModel")()), "offline"
        if prefix == "scripted" and rest:
            return self._once(name, lambda: self._retrying(self._scripted(rest))), rest
        if prefix in self._connections or ALIASES.get(prefix, prefix) in KINDS:
            return self._connected(name, prefix, rest)
        raise self._unknown(f"There is no model {name!r}.")

    def room_tokens(self, name: str) -> int:
        """Return what the connection says of its models, else `ROOM_TOKENS`."""
        connection = self._connections.get(name.partition(":")[0])
        said = None if connection is None else connection.context_tokens
        return ROOM_TOKENS if said is None else said

    def rows(self) -> list[ConnectionRow]:
        """Return every connection, by name."""
        return [self._row(name, connection) for name, connection in sorted(self._connections.items())]

    def kinds(self) -> list[ConnectionRow]:
        """Return the kinds that can be asked under their own names without a connection, those of an extra."""
        return [self._row(kind, Connection(kind=kind)) for kind in KINDS if kind not in self._connections]

    def _row(self, name: str, connection: Connection) -> ConnectionRow:
        connection = self._own_address(connection)
        known = KINDS.get(connection.kind)
        amazon = connection.kind == "bedrock" and connection.api_key_env is None
        return ConnectionRow(
            name=name,
            kind=connection.kind,
            base_url=connection.base_url,
            models=connection.models,
            api_key_env=AWS_KEY if amazon else connection.api_key_env,
            key_set=self._key(connection) is not None or self._has_keys(connection),
            needs=known.install if known is not None and missing(known) else None,
        )

    async def aclose(self) -> None:
        """Close every model that this registry made; idempotent."""
        made, self._made = list(self._made.values()), {}
        for model in made:
            await model.aclose()

    def _connected(self, name: str, prefix: str, rest: str) -> tuple[Model, str]:
        connection = self._connections.get(prefix) or Connection(kind=ALIASES.get(prefix, prefix))
        connection = self._own_address(connection)
        if not rest:
            raise self._unknown(f"{name!r} names a connection but no model: write {prefix}:MODEL.")
        if connection.models and rest not in connection.models:
            known = ", ".join(f"{prefix}:{model}" for model in connection.models)
            raise RetinueError(
                "unknown_model", f"The connection {prefix!r} has no model {rest!r}.", f"It has: {known}."
            )
        if connection.kind != "openai":
            return self._once(prefix, lambda: self._retrying(self._extra(name, connection))), rest
        if connection.base_url == OPENAI_URL and self._key(connection) is None:
            variable = connection.api_key_env or "an api_key_env"
            raise RetinueError(
                "unknown_model",
                f"The model {name!r} needs a key, but {variable} is not set.",
                f"Set {variable}, or a base URL of a server that needs no key, or use the model `offline`.",
            )
        return self._once(prefix, lambda: self._retrying(self._openai(connection))), rest

    def _scripted(self, path: str) -> Model:
        sleep = asyncio.sleep if self._clock is None else self._clock.sleep
        return ScriptedModel(load_script(path), sleep=sleep)

    def _retrying(self, model: Model) -> Model:
        return model if self._clock is None else RetryingModel(model, self._clock)

    def _openai(self, connection: Connection) -> Model:
        return _loaded("openai", "OpenAIModel")(
            connection.base_url,
            self._key(connection),
            key_env=connection.api_key_env,
            headers=connection.headers,
            options=_options(connection),
        )

    def _extra(self, name: str, connection: Connection) -> Model:
        """Return the model of a provider that comes with an extra; raise `unsupported` or `unknown_model`."""
        kind, key = connection.kind, self._key(connection)
        require_installed(kind, KINDS[kind])
        if kind == "bedrock":
            require_region(name, self._environment)
        if key is None and connection.base_url is None and not self._has_keys(connection):
            variable = connection.api_key_env or " or ".join(KINDS[kind].keys[:2])
            detail = f"The model {name!r} needs a key, but {variable} is not set."
            raise RetinueError("unknown_model", detail, f"Set {variable}.")
        access = _loaded("extra", "Access")(
            kind=kind,
            base_url=connection.base_url,
            api_key=key,
            key_env=connection.api_key_env,
            headers=connection.headers,
            environment=self._amazon() if kind == "bedrock" else {},
        )
        return _loaded("extra", "ExtraModel")(access, _options(connection))

    def _amazon(self) -> dict[str, str]:
        return {name: value for name, value in self._environment.items() if name.startswith("AWS_")}

    def _has_keys(self, connection: Connection) -> bool:
        """Return whether Amazon's own variables say who asks: they may name a file or a role in place of a key."""
        if connection.kind != "bedrock" or connection.api_key_env:
            return False
        return any(map(self._environment.get, KINDS["bedrock"].keys))

    def _own_address(self, connection: Connection) -> Connection:
        """Return a connection with its kind's own variables, where it names neither an address nor a key.

        So that a key goes to no address but the one it belongs to.
        """
        kind = connection.kind
        if kind not in KINDS or connection.base_url or connection.api_key_env:
            return connection
        known = KINDS[kind]
        variable = next((name for name in known.keys if self._environment.get(name)), known.keys[0])
        url = self._environment.get(known.url_env) if known.url_env else None
        key_env = None if kind == "bedrock" else variable
        return msgspec.structs.replace(connection, base_url=url or None, api_key_env=key_env)

    def _default_openai(self) -> Connection:
        """Return the connection `openai`: the environment goes before the settings, both before the default."""
        given = self._connections.get("openai", Connection())
        url = self._environment.get("OPENAI_BASE_URL") or given.base_url or OPENAI_URL
        return msgspec.structs.replace(given, base_url=url, api_key_env=given.api_key_env or "OPENAI_API_KEY")

    def _key(self, connection: Connection) -> str | None:
        variable = connection.api_key_env
        return (self._environment.get(variable) or "").strip() or None if variable else None

    def _once(self, name: str, make: Callable[[], Model]) -> Model:
        if name not in self._made:
            self._made[name] = make()
        return self._made[name]

    def _unknown(self, detail: str) -> RetinueError:
        kinds = (row.name for row in self.kinds() if row.needs is None)
        names = [*sorted(self._custom), *(f"{name}:MODEL" for name in sorted({*self._connections, *kinds}))]
        return RetinueError("unknown_model", detail, f"There are: {', '.join([*names, 'scripted:FILE', 'offline'])}.")


def _connection(name: str, table: Any) -> Connection:
    if isinstance(table, Connection):
        connection = table
    else:
        try:
            connection = msgspec.convert(_with_kind(name, table), Connection)
        except msgspec.ValidationError as error:
            raise RetinueError("invalid", f"The connection {name!r} is wrong: {error}.") from error
    if ":" in name or name in _RESERVED:
        raise RetinueError(
            "invalid", f"A connection cannot be called {name!r}.", "Choose another name without a colon."
        )
    connection = msgspec.structs.replace(connection, kind=ALIASES.get(connection.kind, connection.kind))
    _require_limits(name, connection)
    if connection.kind != "openai":
        _require_extra(name, connection)
    elif connection.base_url is None and name != "openai":
        return msgspec.structs.replace(connection, base_url=OPENAI_URL)
    return connection


def _with_kind(name: str, table: Any) -> Any:
    """Return a table with the kind that its name says, where it names neither a kind nor an address."""
    if ALIASES.get(name, name) not in KINDS or not isinstance(table, dict) or {"kind", "base_url"} & table.keys():
        return cast("Any", table)
    return {"kind": name, **cast("dict[str, Any]", table)}


def _require_extra(name: str, connection: Connection) -> None:
    kind = connection.kind
    if kind not in KINDS:
        detail = f"The connection {name!r} has the unknown kind {kind!r}."
        raise RetinueError("invalid", detail, f"Use one of: {', '.join(['openai', *KINDS])}.")
    refused = {
        "stream": not connection.stream,
        "send_reasoning": connection.send_reasoning,
        "headers": bool(connection.headers) and not KINDS[kind].headers,
        "base_url": connection.base_url is not None and KINDS[kind].url is None,
    }
    for key in (key for key, is_so in refused.items() if is_so):
        detail = f"The connection {name!r} sets {key}, which connections of kind {kind!r} do not know."
        raise RetinueError("invalid", detail, f"Leave {key} out.")


def _require_limits(name: str, connection: Connection) -> None:
    if connection.concurrency is not None and connection.concurrency < 1:
        raise RetinueError("invalid", f"The connection {name!r} has a concurrency below 1.", "Use 1 or more.")
    for key in _TIMES:
        limit = getattr(connection, key)
        if limit is not None and not 0 < limit <= TIMEOUT_MAX_S:
            detail = f"The connection {name!r} has a {key} that is not between 0 and {TIMEOUT_MAX_S:g} seconds."
            raise RetinueError("invalid", detail, "Leave it out, or give seconds.")


def _options(connection: Connection) -> Any:
    limits = {} if connection.concurrency is None else {"concurrency": connection.concurrency}
    times = {name: limit for name in _TIMES if (limit := getattr(connection, name)) is not None}
    return _loaded("openai", "HttpOptions")(
        times=_loaded("times", "TimeLimits")(**times),
        stream=connection.stream,
        send_reasoning=connection.send_reasoning,
        **limits,
    )


def _loaded(kind: str, name: str) -> Callable[..., Any]:
    return cast("Callable[..., Any]", getattr(importlib.import_module(_MODULES[kind]), name))
