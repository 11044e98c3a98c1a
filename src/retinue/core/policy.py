"""The policy: every switch, its five named columns, and which values code honours; it never reads a file.

The table is CONTRACT section 3. `standard` is our own; `courier`, `resident`, `guarded` and `roster` reproduce the
four systems that Retinue brings together.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, cast

from retinue.core.errors import RetinueError
from retinue.core.events import Value

Kind = Literal["number", "bool", "choice", "modes", "profiles", "wait"]
NAMES: Final = ("standard", "courier", "resident", "guarded", "roster")
ALL_MODES: Final = ("none", "selected", "last_n_turns", "summary", "fork")
PROFILES: Final = ("build", "plan", "ask")
NUMBER_MAX: Final = 10**12
"""The largest number a switch takes; more is a typing error."""


class Key(Value):
    """One switch: its kind, its choices, the five columns, and what honours it.

    `honoured` lists the values beside `standard`'s that code acts on: null means all of them.
    `settable` is false where only code and the choice of a policy may set it.
    """

    name: str
    kind: Kind
    columns: tuple[Any, ...]
    about: str
    choices: tuple[str, ...] = ()
    honoured: tuple[Any, ...] | None = None
    settable: bool = True
    least: int = 0


def _key(name: str, kind: Kind, columns: tuple[Any, ...], about: str, **more: Any) -> Key:
    standard = columns[0]
    return Key(name=name, kind=kind, columns=tuple(standard if c == "-" else c for c in columns), about=about, **more)


_NOT_YET: Final = ()
_BUILD: Final = ("build",)

TABLE: Final = (
    _key("caps.running.process", "number", (8, None, None, 5, 4), "children working at once in the process", least=1),
    _key("caps.running.root", "number", (4, None, None, None, 4), "children working at once below one root", least=1),
    _key(
        "caps.running.parent", "number", (None, 4, None, None, None), "children working at once of one parent", least=1
    ),
    _key("caps.created.turn", "number", (16, None, None, 16, None), "children created in one turn; over it refused"),
    _key(
        "caps.created.root_run",
        "number",
        (64, None, None, None, 64),
        "children created below one prompt of a root; settable only in code",
        settable=False,
    ),
    _key(
        "caps.on_full",
        "choice",
        ("queue", "reject", "queue", "queue", "queue"),
        "at a full cap",
        choices=("queue", "reject"),
    ),
    _key("caps.max_depth", "number", (1, 3, 3, 1, 1), "deepest child; 0 = no children"),
    _key(
        "result.delivery",
        "choice",
        ("push", "push", "push", "pull", "pull"),
        "whether results arrive by themselves",
        choices=("push", "pull"),
    ),
    _key(
        "result.turn_end",
        "choice",
        ("hold_open", "detach", "detach", "hold_open", "detach"),
        "a turn that completes while children are open",
        choices=("hold_open", "detach", "cancel"),
    ),
    _key(
        "result.idle_parent",
        "choice",
        ("start_turn", "store", "start_turn", "store", "store"),
        "a letter that finds an idle session",
        choices=("start_turn", "store"),
    ),
    _key("result.auto_turns_max", "number", (8, 8, 8, 8, 8), "letter-started turns a root run"),
    _key(
        "result.empty_output",
        "choice",
        ("note", "note", "note", "note", "fail"),
        "a run that completed without text",
        choices=("note", "fail"),
    ),
    _key("result.notice_max_tokens", "number", (900, 900, None, None, None), "tokens of a letter's payload"),
    _key(
        "result.output_max_chars", "number", (24000, None, None, 24000, None), "characters of an output wherever shown"
    ),
    _key(
        "life.continuation",
        "choice",
        ("durable", "durable", "durable", "in_turn", "none"),
        "whether an ended child can be continued",
        choices=("none", "in_turn", "durable"),
    ),
    _key("life.continuable_default", "bool", (True, False, True, True, False), "background children are continuable"),
    _key(
        "life.rounds_max", "number", (8, None, None, 8, "-"), "instructions of one child, the first included", least=1
    ),
    _key(
        "life.queued_messages_max",
        "number",
        (4, None, None, 4, "-"),
        "messages waiting for one child",
    ),
    _key(
        "life.message_scope",
        "choice",
        ("family", "tree", "family", "family", "family"),
        "who may write to whom",
        choices=("family", "tree"),
    ),
    _key(
        "life.report",
        "bool",
        (True, True, True, False, False),
        "children may report before they end",
    ),
    _key(
        "life.cancel_with_parent",
        "choice",
        ("always", "never", "never", "always", "opt_in"),
        "children of a turn that did not complete",
        choices=("always", "opt_in", "never"),
    ),
    _key(
        "life.on_restart",
        "choice",
        ("interrupted", "interrupted", "interrupted", "cancelled", "interrupted"),
        "what an unfinished run reads after a crash",
        choices=("interrupted", "cancelled"),
    ),
    _key(
        "life.one_shot_sessions",
        "choice",
        ("keep", "keep", "delete", "keep", "keep"),
        "a one-shot child's session after its dispose",
        choices=("keep", "delete"),
    ),
    _key("life.run_timeout_s", "number", (900, None, None, 600, 900), "seconds of work a run may take", least=1),
    _key("life.max_steps", "number", (20, 250, None, None, 20), "steps a run may take", least=1),
    _key(
        "life.compaction",
        "choice",
        ("auto",) * 5,
        "histories that outgrow the model",
        choices=("auto", "off"),
    ),
    _key(
        "rights.child_approval",
        "choice",
        ("route_to_parent", "bypass", "reject", "route_to_parent", "route_to_parent"),
        "a child's questions to the person",
        choices=("route_to_parent", "reject", "bypass"),
        honoured=_NOT_YET,
    ),
    _key(
        "rights.default_access",
        "choice",
        ("read", "inherit", "inherit", "read", "inherit"),
        "a child's access where none is asked for",
        choices=("read", "inherit"),
        honoured=_NOT_YET,
    ),
    _key(
        "rights.claims",
        "choice",
        ("exclusive", "off", "off", "exclusive", "off"),
        "whether files are held by one run",
        choices=("exclusive", "off"),
        honoured=_NOT_YET,
    ),
    _key(
        "rights.caller_model",
        "bool",
        (True, True, False, False, False),
        "a parent's model may choose a model",
    ),
    _key(
        "rights.inline_roles",
        "bool",
        (True, True, True, False, False),
        "a parent's model may write a role",
    ),
    _key(
        "rights.context_modes",
        "modes",
        (ALL_MODES, ("none",), ("none", "fork"), ("none",), ALL_MODES[:-1]),
        "what of the parent's history a child may get",
        choices=ALL_MODES,
    ),
    _key(
        "rights.delegating_profiles",
        "profiles",
        (_BUILD, ("build", "plan"), _BUILD, _BUILD, _BUILD),
        "profiles that get the agent tools",
        choices=PROFILES,
    ),
    _key(
        "rights.approval_timeout_s", "number", (600,) * 5, "seconds a question stays open", least=1, honoured=_NOT_YET
    ),
    _key(
        "wait.s",
        "wait",
        ((1, 30, 3600), (10, 30, 3600), (1, 30, 3600), (1, 30, 30), (1, 30, 3600)),
        "[least, default, most] seconds of a wait",
    ),
    _key("budget.tree_tokens_max", "number", (None,) * 5, "tokens of one root run and all it caused"),
    _key("budget.include_root", "bool", (True, "-", "-", "-", False), "count the root's own requests"),
    _key(
        "budget.output_tokens_max",
        "number",
        (4096, "-", "-", "-", 4096),
        "output tokens a request may ask for",
    ),
    _key(
        "budget.on_exceed",
        "choice",
        ("cancel", "-", "-", "-", "cancel"),
        "what happens at the limit",
        choices=("cancel", "refuse_new", "warn"),
    ),
    _key("step.parallel_tools_max", "number", (10, 10, 10, 10, 5), "tools of one message that run at once", least=1),
    _key(
        "hooks.on_failure",
        "choice",
        ("deny", "deny", "deny", "deny", "allow"),
        "what a failed decision hook means",
        choices=("deny", "allow"),
    ),
)
KEYS: Final = {key.name: key for key in TABLE}
DEFAULTS: Final = {name: {key.name: key.columns[column] for key in TABLE} for column, name in enumerate(NAMES)}


class Policy(Value):
    """One named set of values with what was set on top; ask with `policy["caps.max_depth"]`."""

    name: str = "standard"
    changes: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        """Return a switch's value; `None` is no limit; an unknown key raises `KeyError`."""
        if key in self.changes:
            return self.changes[key]
        return DEFAULTS[self.name][key]

    def number(self, key: str) -> int | None:
        """Return a numeric switch."""
        value: int | None = self[key]
        return value

    def values(self) -> dict[str, Any]:
        """Return every switch, null for no limit (SHAPES, `policies --json`)."""
        return {name: _plain(self[name]) for name in KEYS}

    def to_dict(self) -> dict[str, Any]:
        """Return the form that `session.opened` stores."""
        return {"name": self.name, "set": {name: _plain(value) for name, value in self.changes.items()}}


def named(name: str) -> Policy:
    """Return a policy by name; refuse unknown names (`invalid`).

    A named policy may carry values of `rights.` that no code acts on yet (CONTRACT section 3).
    """
    if name not in NAMES:
        raise RetinueError("invalid", f"There is no policy {name!r}.", f"Choose one of {', '.join(NAMES)}.")
    return Policy(name=name)


def stored(form: Mapping[str, Any]) -> Policy:
    """Return the policy that a log holds, exactly as it was."""
    return Policy(name=form["name"], changes={key: _hard(value) for key, value in form["set"].items()})


def with_stored(policy: Policy, changes: Mapping[str, Any]) -> Policy:
    """Return the policy with the changes that a log holds, exactly as they were."""
    return Policy(name=policy.name, changes={**policy.changes, **{key: _hard(value) for key, value in changes.items()}})


def with_changes(policy: Policy, changes: Mapping[str, Any], *, in_code: bool = False) -> Policy:
    """Return the policy with switches set; values may be text as a command line gives it.

    Raises `invalid` for an unknown key or a value of the wrong kind, `unsupported` for a value that differs from
    `standard`'s and that no code acts on yet.
    """
    merged = dict(policy.changes)
    for name, raw in changes.items():
        key = KEYS.get(name)
        if key is None:
            raise RetinueError("invalid", f"There is no switch {name!r}.", "See 'retinue policies' for all of them.")
        if not key.settable and not in_code:
            raise RetinueError(
                "invalid", f"{name} is a safety cap and can be set only in code.", "Choose another policy."
            )
        value = _parse(key, raw)
        _require_honoured(key, value)
        merged[name] = value
    return Policy(name=policy.name, changes=merged)


def _require_honoured(key: Key, value: Any) -> None:
    known = key.honoured is None or value in key.honoured
    if not known and value != key.columns[0]:
        raise RetinueError(
            "unsupported",
            f"{key.name}={show(value)} is part of the design, but this version does not act on it yet.",
            f"Leave it at {show(key.columns[0])}.",
        )


def _parse(key: Key, raw: Any) -> Any:
    if key.kind in ("number", "bool") and isinstance(raw, str):
        raw = {"none": None, "true": True, "false": False}.get(raw.strip().lower(), raw)
    checks = {
        "number": _number,
        "bool": _bool,
        "choice": _choice,
        "modes": _several,
        "profiles": _several,
        "wait": _wait,
    }
    return checks[key.kind](key, raw)


def _wrong(key: Key, raw: Any, wanted: str) -> RetinueError:
    return RetinueError("invalid", f"{key.name} cannot be {show(raw)}.", f"It takes {wanted}.")


def _number(key: Key, raw: Any) -> int | None:
    if raw is None:
        return None
    raw = _as_number(raw)
    if isinstance(raw, bool) or not isinstance(raw, int) or not key.least <= raw <= NUMBER_MAX:
        raise _wrong(key, raw, f"a whole number from {key.least}, or none")
    return raw


def _bool(key: Key, raw: Any) -> bool:
    if not isinstance(raw, bool):
        raise _wrong(key, raw, "true or false")
    return raw


def _choice(key: Key, raw: Any) -> str:
    if raw not in key.choices:
        raise _wrong(key, raw, f"one of {', '.join(key.choices)}")
    return str(raw)


def _several(key: Key, raw: Any) -> tuple[str, ...]:
    items: list[Any] = list(raw.split(",")) if isinstance(raw, str) else _items(raw)
    chosen = [str(item).strip() for item in items]
    if any(item not in key.choices for item in chosen):
        raise _wrong(key, raw, f"some of {', '.join(key.choices)}, separated by commas")
    return tuple(choice for choice in key.choices if choice in chosen)


def _wait(key: Key, raw: Any) -> tuple[int, int, int]:
    items: list[Any] = list(raw.strip("[] ").split(",")) if isinstance(raw, str) else _items(raw)
    numbers = [_as_number(item) for item in items]
    whole = [n for n in numbers if isinstance(n, int) and not isinstance(n, bool)]
    if len(whole) != 3 or len(numbers) != 3 or not 0 < whole[0] <= whole[1] <= whole[2] <= NUMBER_MAX:
        raise _wrong(key, raw, "three rising whole numbers: least,default,most")
    return whole[0], whole[1], whole[2]


def _as_number(raw: Any) -> Any:
    # Plain digits only, and no more than the largest number has: int() raises on "²" and on thousands of digits.
    text = raw.strip() if isinstance(raw, str) else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(NUMBER_MAX)) else raw


def _items(raw: Any) -> list[Any]:
    return list(cast("Sequence[Any]", raw)) if isinstance(raw, list | tuple) else [raw]


def show(value: Any) -> str:
    """Return a value as a person writes it: `none`, `true`, `a,b`."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in _items(value))
    return str(value)


def _plain(value: Any) -> Any:
    return _items(value) if isinstance(value, tuple) else value


def _hard(value: Any) -> Any:
    return tuple(_items(value)) if isinstance(value, list) else value
