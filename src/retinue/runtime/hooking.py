"""`@hook`: a Python function as a hook; it is called by the runtime only and keeps nothing."""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, ParamSpec, TypeVar, cast, get_args

from retinue.core.errors import RetinueError
from retinue.core.text import is_storable
from retinue.ports import Hook, HookEvent, HookPoint

P = ParamSpec("P")
R = TypeVar("R")

TIMEOUT_S: Final = 30.0
TIMEOUT_MAX_S: Final = 600.0
NAME_MAX_CHARS: Final = 100
POINTS: Final[tuple[str, ...]] = get_args(HookPoint)
_POINTS_HINT: Final = f"There are: {', '.join(POINTS)}."
_HINT: Final = "Make one of a function with @retinue.hook(POINT)."


@dataclass(frozen=True, slots=True)
class FunctionHook(Generic[P, R]):
    """A function as a hook. Calling the object calls the function, as if it were not decorated."""

    function: Callable[P, R]
    name: str
    points: frozenset[str]
    timeout_s: float

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function itself."""
        return self.function(*args, **kwargs)

    async def call(self, event: HookEvent, offload: Callable[..., Any]) -> Any:
        """Answer: an async function runs on the loop, any other off it. What it raises goes through."""
        function = cast("Callable[[HookEvent], Any]", self.function)
        if inspect.iscoroutinefunction(function):
            return await function(event)
        answer = await offload(function, event)
        return await answer if inspect.isawaitable(answer) else answer


def hook(
    *points: str, name: str | None = None, timeout_s: float = TIMEOUT_S
) -> Callable[[Callable[P, R]], FunctionHook[P, R]]:
    """Make a hook of a function of one `HookEvent`: `@hook("agent.tool.before")`.

    Where a hook is asked (`agent.turn.before`, `agent.turn.stop`, `agent.tool.before`,
    `agent.subagent.spawn.before`) null allows and `Deny(reason=…)` denies; anything else, and whatever is raised, is a
    failed hook, which means what `hooks.on_failure` says. At all other points it only observes, and its answer is not
    looked at. A function that is not async runs off the event loop.

    Args:
        points: where it is called; one at least.
        name: what records call it, by default the function's name; at most 100 characters.
        timeout_s: seconds that one answer may take, at most 600.

    Raises:
        RetinueError: `invalid` for an unknown point, a time or a name that is none, and for what cannot be called with
            one event.
    """
    _require_points(points)
    _require_time(timeout_s)

    def make(function: Callable[P, R]) -> FunctionHook[P, R]:
        _require_function(function)
        called = str(getattr(function, "__name__", type(function).__name__)) if name is None else name
        _require_name(called)
        return FunctionHook(function, called, frozenset(points), timeout_s)

    return make


def require_hooks(hooks: Iterable[Hook]) -> tuple[Hook, ...]:
    """Return the hooks; refuse what is none (`invalid`): a guard that could never be asked must not seem to stand."""
    if not isinstance(hooks, list | tuple):
        raise RetinueError("invalid", f"hooks cannot be {_shown(hooks)}.", "Give a list of hooks.")
    made = tuple(hooks)
    for one in made:
        if isinstance(one, type) or not isinstance(getattr(one, "points", None), frozenset):
            raise RetinueError("invalid", f"{_shown(one)} is no hook.", _HINT)
        if not inspect.iscoroutinefunction(getattr(one, "call", None)):
            raise RetinueError("invalid", f"The hook {_shown(one)} has no async method call.", _HINT)
        _require_points(one.points)
        _require_name(getattr(one, "name", None))
        _require_time(getattr(one, "timeout_s", None))
    return made


def _require_points(points: Iterable[object]) -> None:
    given = tuple(points)
    for point in given:
        if point not in POINTS:
            raise RetinueError("invalid", f"There is no hook point {_shown(point)}.", _POINTS_HINT)
    if not given:
        raise RetinueError("invalid", "A hook needs a point.", _POINTS_HINT)


def _require_time(timeout_s: object) -> None:
    if not isinstance(timeout_s, int | float) or not 0 < timeout_s <= TIMEOUT_MAX_S:
        detail = f"timeout_s cannot be {_shown(timeout_s)}."
        raise RetinueError("invalid", detail, f"Give at most {TIMEOUT_MAX_S:g} seconds.")


def _require_name(name: object) -> None:
    if not isinstance(name, str) or not name.strip() or len(name) > NAME_MAX_CHARS or not is_storable(name):
        hint = f"Give 1 to {NAME_MAX_CHARS} characters."
        raise RetinueError("invalid", f"A hook cannot be called {_shown(name)}.", hint)


def _require_function(function: object) -> None:
    """Refuse what would fail each time it is asked, and what would never run: a generator only begins."""
    if not callable(function):
        raise RetinueError("invalid", f"{_shown(function)} cannot be called.", "Decorate a function of one event.")
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise RetinueError("invalid", f"{_shown(function)} is a generator.", "Return the answer, do not yield it.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some built-in ones have none to look at
    try:
        signature.bind(None)
    except TypeError as error:
        detail = f"{_shown(function)} cannot be called with one event: {error}."
        raise RetinueError("invalid", detail, "Let it take exactly one positional parameter.") from error


def _shown(value: object) -> str:
    return ascii(value)[:NAME_MAX_CHARS]
