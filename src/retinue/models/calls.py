"""Puts the fragments of a reply's tool calls together; it never checks that their arguments make sense."""

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from retinue.models.text import mended
from retinue.ports import FinishCall

CALLS_MAX: Final = 4096
"""Calls that one reply may make; more is a runaway stream."""


class _Call:
    """One call as far as it has arrived."""

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.provider_id = ""
        self.name: str = ""
        self.parts: list[str] = []

    @property
    def arguments(self) -> str:
        return "".join(self.parts)

    def is_whole(self) -> bool:
        """Whether the arguments are a complete JSON object, so that nothing can continue them."""
        try:
            return isinstance(msgspec.json.decode(mended(self.arguments)), dict)
        except (msgspec.DecodeError, RecursionError):
            return False

    def add(self, provider_id: str, name: str, arguments: str) -> None:
        """Take a fragment; ids and names are often repeated whole, so they are set and not joined."""
        if name != self.name and name and not self.parts and not provider_id and self.name:
            self.name += name  # the one shape in which a name itself comes in pieces
        self.provider_id = self.provider_id or provider_id
        self.name = self.name or name
        if arguments:
            self.parts.append(arguments)


class CallJoin:
    """Joins fragments by index, else by id, else by their order."""

    def __init__(self) -> None:
        """Start without a call."""
        self._calls: list[_Call] = []

    def __len__(self) -> int:
        """Return how many calls have begun."""
        return len(self._calls)

    def add(self, fragment: Mapping[str, Any]) -> int:
        """Take one entry of `delta.tool_calls`; return how many characters of arguments it brought."""
        inner = fragment.get("function")
        function = cast("Mapping[str, Any]", inner) if isinstance(inner, dict) else fragment
        index = fragment.get("index")
        index = index if isinstance(index, int) else None
        provider_id, name = _text(fragment.get("id")), _text(function.get("name"))
        arguments = _argument_text(function.get("arguments"))
        if not (provider_id or name or arguments):
            return 0
        known = self._known(index, provider_id, name)
        call = self._begin(index) if known is None else self._continued(known, provider_id, name, arguments)
        if call is not None:
            call.add(provider_id, name, arguments)
        return len(arguments)

    def finished(self) -> tuple[FinishCall, ...]:
        """Return the calls, in index order where all have an index, else in the order they began."""
        calls = self._calls
        indices = [call.index for call in calls if call.index is not None]
        if len(indices) == len(calls):
            calls = sorted(calls, key=lambda call: call.index or 0)
        return tuple(
            FinishCall(name=mended(c.name), arguments=mended(c.arguments), provider_id=mended(c.provider_id))
            for c in calls
        )

    def _begin(self, index: int | None) -> _Call:
        call = _Call(index)
        self._calls.append(call)
        return call

    def _known(self, index: int | None, provider_id: str, name: str) -> _Call | None:
        latest = list(reversed(self._calls))
        if index is not None:
            return next((call for call in latest if call.index == index), None)
        if provider_id:
            return next((call for call in latest if call.provider_id == provider_id), None)
        if latest and (not name or name == latest[0].name):
            return latest[0]
        return None

    def _continued(self, call: _Call, provider_id: str, name: str, arguments: str) -> _Call | None:
        """Return the call a fragment belongs to: the known one, a new one in its place, or none for a repeat.

        Some providers give every parallel call the same index or the same id. A second id with a name, or a
        second object after a complete one, is a new call; the same call sent once more is dropped. Others make up a
        new id for every fragment: an unfinished object under the same name goes on.
        """
        if name and provider_id and call.provider_id and provider_id != call.provider_id:
            goes_on = name == call.name and call.parts and not call.is_whole() and not arguments.startswith("{")
            return call if goes_on else self._begin(call.index)
        if not (name and arguments.lstrip().startswith("{") and call.is_whole()):
            return call
        same = provider_id and provider_id == call.provider_id and arguments == call.arguments
        return None if same else self._begin(call.index)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _argument_text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return msgspec.json.encode(value).decode()
