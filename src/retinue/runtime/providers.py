"""How a child begins: providers behind one seam, each with what it supports; it starts nothing.

A request for what a provider does not support is refused, never ignored (CONTRACT section 5).
"""

from typing import Final, Literal

import msgspec

from retinue.core.errors import RetinueError

Capability = Literal["output_schema", "depth", "tool_filter", "persona"]
ALL: Final[frozenset[Capability]] = frozenset({"output_schema", "depth", "tool_filter", "persona"})


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """A way to begin a child.

    `seeded` children begin with their parent's completed turns; the open turn is left out.
    """

    name: str
    seeded: bool = False
    supports: frozenset[Capability] = ALL


class Providers:
    """All providers of a runtime, by name."""

    def __init__(self) -> None:
        """Begin with `spawn` (an empty history) and `fork` (the parent's completed turns)."""
        self._known: Final[dict[str, Provider]] = {}
        self.add(Provider(name="spawn"))
        self.add(Provider(name="fork", seeded=True))

    def add(self, provider: Provider) -> None:
        """Add a provider; a name that is taken is refused (`invalid`)."""
        if provider.name in self._known:
            raise RetinueError("invalid", f"There are two providers named {provider.name!r}.", "Rename one of them.")
        self._known[provider.name] = provider

    def find(self, name: str, wanted: frozenset[Capability]) -> Provider:
        """Return a provider that supports what is wanted; raise `unsupported` otherwise."""
        provider = self._known.get(name)
        if provider is None:
            raise RetinueError(
                "unsupported", f"There is no provider {name!r}.", f"Use one of {', '.join(self._known)}."
            )
        missing = sorted(wanted - provider.supports)
        if missing:
            raise RetinueError(
                "unsupported", f"The provider {name!r} does not support {', '.join(missing)}.", "Leave it out."
            )
        return provider
