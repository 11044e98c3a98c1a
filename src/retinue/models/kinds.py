"""Knows the kinds of providers that come with an extra: their variables, addresses and packages; it loads none of them.

How each of them is spoken to lies in `vendors`; who reaches them, and when, in `extra`.
"""

import importlib.util
from collections.abc import Mapping
from typing import Final

from retinue.core.errors import RetinueError
from retinue.core.events import Value

EXTRA: Final = "pip install 'retinue[providers]'"


class Kind(Value):
    """One kind of provider.

    Attributes:
        packages: what must be installed for it, by the names they are imported under.
        install: the command that installs them.
        keys: variables that hold a key, the first that is set counts; any of them will do.
        url: the provider's own address, for Bedrock with `{region}` in it; null where it cannot be changed.
        url_env: the variable that names another address.
        headers: whether a connection's own headers can be sent.
    """

    packages: tuple[str, ...]
    keys: tuple[str, ...]
    install: str = EXTRA
    url: str | None = None
    url_env: str | None = None
    headers: bool = True


AWS_KEY: Final = "AWS_ACCESS_KEY_ID"
AWS_BEARER: Final = "AWS_BEARER_TOKEN_BEDROCK"
AWS_REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_AWS_ROLES: Final = (
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
"""What says that the keys lie in a file, or come from where the process runs."""


def _single(group: str) -> str:
    return f"pip install 'pydantic-ai-slim[{group}]'"


KINDS: Final[Mapping[str, Kind]] = {
    "anthropic": Kind(
        packages=("pydantic_ai", "anthropic"),
        keys=("ANTHROPIC_API_KEY",),
        url="https://api.anthropic.com",
        url_env="ANTHROPIC_BASE_URL",
    ),
    "google": Kind(
        packages=("pydantic_ai", "google.genai"),
        keys=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        url="https://generativelanguage.googleapis.com",
    ),
    "bedrock": Kind(
        packages=("pydantic_ai", "boto3"),
        keys=(AWS_BEARER, AWS_KEY, *_AWS_ROLES),
        url="https://bedrock-runtime.{region}.amazonaws.com",
        headers=False,
    ),
    "groq": Kind(
        packages=("pydantic_ai", "groq"),
        install=_single("groq"),
        keys=("GROQ_API_KEY",),
        url="https://api.groq.com",
    ),
    "mistral": Kind(
        packages=("pydantic_ai", "mistralai"),
        install=_single("mistral"),
        keys=("MISTRAL_API_KEY",),
        url="https://api.mistral.ai",
    ),
    "cohere": Kind(packages=("pydantic_ai", "cohere"), install=_single("cohere"), keys=("CO_API_KEY",)),
}
ALIASES: Final[Mapping[str, str]] = {"gemini": "google"}


def missing(kind: Kind) -> tuple[str, ...]:
    """Return the packages of a kind that are not installed; imports none of them."""
    return tuple(package for package in kind.packages if not _is_there(package))


def require_installed(name: str, kind: Kind) -> None:
    """Raise `unsupported` with the command to run where a package of the kind is not installed."""
    lacking = missing(kind)
    if lacking:
        names = " and ".join(name.replace("_", "-").replace(".", "-") for name in lacking)
        detail = f"Models of {name!r} need {names}, which {'is' if len(lacking) == 1 else 'are'} not installed."
        raise RetinueError("unsupported", detail, f"Run: {kind.install}")


def require_region(name: str, environment: Mapping[str, str]) -> None:
    """Raise `unknown_model` where nothing says in which region Bedrock is to be asked."""
    if not any(environment.get(variable) for variable in (*AWS_REGIONS, "AWS_PROFILE")):
        detail = f"The model {name!r} needs a region, but {AWS_REGIONS[0]} is not set."
        raise RetinueError("unknown_model", detail, f"Set {AWS_REGIONS[0]}, as us-east-1.")


def _is_there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # what a package of several parts lies in is missing or broken
        return False
