"""What there is to choose from and what holds here: policies, models, settings; it never prints a key."""

from typing import Any

import msgspec

from retinue.cli import printing
from retinue.cli.options import Where
from retinue.core.policy import NAMES, TABLE, Key, Policy, show
from retinue.models.registry import ConnectionRow, ModelRegistry
from retinue.settings import Settings, read_settings, without_login

_POLICY_CELL_CHARS = 44


def policies(*, as_json: bool) -> int:
    """Show the table of switches."""
    if as_json:
        items = [{"name": name, "values": Policy(name=name).values()} for name in NAMES]
        printing.document({"items": items, "next": None})
        return 0
    rows = [(key.name, *(show(value) for value in key.columns), _acted_on(key)) for key in TABLE]
    printing.table(("SWITCH", *NAMES, "ACTED ON"), rows, _POLICY_CELL_CHARS)
    printing.text(
        "\n--policy chooses one, --set changes its switches one by one. Setting a value that is not acted on yet is "
        "refused. 'none' is no limit."
    )
    return 0


def _acted_on(key: Key) -> str:
    if not key.settable:
        return "all; set only in code"
    if key.honoured is None:
        return "all"
    extra = [show(value) for value in key.honoured]
    return ", ".join([f"only {show(key.columns[0])}", *extra]) if len(show(key.columns[0])) < 20 else "only standard's"


def models(options: Where) -> int:
    """Show the connections."""
    settings = read_settings(options.data_dir)
    registry = ModelRegistry(settings.connections, environment=settings.environ)
    rows = [*registry.rows(), *registry.kinds()]
    if options.json:
        printing.document({"items": [*(_shown(row) for row in rows), *_built_in()], "next": None})
        return 0
    cells = [(f"{row.name}:NAME", row.kind, _key(row), _address(row) or "", _names(row)) for row in rows]
    own = [(row["name"], row["kind"], "none needed", "", "") for row in _built_in()]
    printing.table(("MODEL", "KIND", "KEY", "ADDRESS", "NAMES"), [*cells, *own])
    printing.text(f"\nWithout --model: {settings.model or 'none'} ({settings.sources['model']}).")
    return 0


def _shown(row: ConnectionRow) -> dict[str, Any]:
    return {**msgspec.to_builtins(row), "base_url": _address(row)}


def _address(row: ConnectionRow) -> str | None:
    """Return a connection's address; of a kind that is not built in only the one that was given."""
    return None if row.base_url is None else without_login(row.base_url)


def _built_in() -> list[dict[str, Any]]:
    empty: dict[str, Any] = {"base_url": None, "models": [], "api_key_env": None, "key_set": False}
    return [{"name": "scripted:FILE", "kind": "scripted", **empty}, {"name": "offline", "kind": "offline", **empty}]


def _names(row: ConnectionRow) -> str:
    names = ", ".join(row.models) or "any"
    return names if row.needs is None else f"{names}, after: {row.needs}"


def _key(row: ConnectionRow) -> str:
    if row.api_key_env is None:
        return "none named"
    return f"{row.api_key_env} {'is set' if row.key_set else 'is not set'}"


def config_show(options: Where) -> int:
    """Show the settings and their sources."""
    settings = read_settings(options.data_dir)
    if options.json:
        printing.document(settings.to_dict())
        return 0
    printing.table(("SETTING", "VALUE", "FROM"), _settings_rows(settings), 120)
    return 0


def _settings_rows(settings: Settings) -> list[tuple[str, str, str]]:
    body = settings.to_dict()
    sources: dict[str, str] = body["sources"]
    rows = [
        ("data_dir", body["data_dir"], sources["data_dir"]),
        ("model", body["model"] or "none", sources["model"]),
    ]
    rows += [(f"policy.{key}", show(value), sources.get(f"policy.{key}", "")) for key, value in body["policy"].items()]
    for name, table in body["connections"].items():
        value = msgspec.json.encode(table).decode()
        rows.append((f"connections.{name}", value, sources.get(f"connections.{name}", "")))
    return rows
