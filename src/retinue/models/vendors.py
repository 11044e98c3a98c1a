"""Makes the clients of the other providers, one set for each event loop; it asks them nothing.

Their libraries are imported by name and only here, off the loop: importing one takes the better part of a second.
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, cast

from retinue.core.events import Value
from retinue.models.kinds import AWS_BEARER, AWS_KEY, AWS_REGIONS
from retinue.models.listening import listening_client
from retinue.models.unanswered import TimeLimits

KEYLESS: Final = "none"
"""What is sent where a connection names no key: the libraries insist on one, a server of one's own does not."""


class Wiring(Value):
    """What a provider is reached with. `environment` holds the variables of Bedrock alone."""

    kind: str
    base_url: str
    key: str | None
    concurrency: int
    times: TimeLimits
    environment: Mapping[str, str]


class Vendor(Protocol):
    """One provider, as one event loop reaches it."""

    def model(self, name: str) -> Any:
        """Return the pydantic-ai model of a name."""
        ...

    async def aclose(self) -> None:
        """Close its connections."""
        ...


class _Vendor:
    def __init__(self, wiring: Wiring) -> None:
        library, make = _MAKERS[wiring.kind]
        self._http = None if library is None else listening_client(library, wiring.times)
        self._provider, self._model = make(wiring, self._http)

    def model(self, name: str) -> Any:
        return self._model(name, provider=self._provider)

    async def aclose(self) -> None:
        if self._http is not None:
            await self._http.aclose()


def reach(wiring: Wiring) -> Vendor:
    """Return the provider; blocks while its library is loaded; raise what that raises."""
    return _Vendor(wiring)


def _of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def _anthropic(wiring: Wiring, http: Any) -> tuple[Any, Any]:
    client = _of("anthropic", "AsyncAnthropic")(
        api_key=wiring.key or KEYLESS,
        base_url=wiring.base_url.rstrip("/").removesuffix("/v1"),  # the library adds it
        http_client=http,
        max_retries=0,
    )
    provider = _of("pydantic_ai.providers.anthropic", "AnthropicProvider")(anthropic_client=client)
    return provider, _of("pydantic_ai.models.anthropic", "AnthropicModel")


def _google(wiring: Wiring, http: Any) -> tuple[Any, Any]:
    provider = _of("pydantic_ai.providers.google", "GoogleProvider")(
        api_key=wiring.key or KEYLESS,
        base_url=wiring.base_url.rstrip("/"),
        http_client=http,
        retry_options=_of("google.genai.types", "HttpRetryOptions")(attempts=1),
    )
    return provider, _of("pydantic_ai.models.google", "GoogleModel")


def _plain(module: str, name: str) -> Callable[[Wiring, Any], tuple[Any, Any]]:
    def make(wiring: Wiring, http: Any) -> tuple[Any, Any]:
        given: dict[str, Any] = {"api_key": wiring.key or KEYLESS, "http_client": http}
        if wiring.base_url:
            given["base_url"] = wiring.base_url.rstrip("/")
        provider = _of(f"pydantic_ai.providers.{module}", f"{name}Provider")(**given)
        return provider, _of(f"pydantic_ai.models.{module}", f"{name}Model")

    return make


def _bedrock(wiring: Wiring, _http: Any) -> tuple[Any, Any]:
    read, times = wiring.environment.get, wiring.times
    region = next((region for name in AWS_REGIONS if (region := read(name))), None)
    config: dict[str, Any] = {
        "connect_timeout": times.connect_timeout_s,
        "read_timeout": max(times.first_chunk_timeout_s, times.idle_timeout_s),
        "retries": {"total_max_attempts": 1, "mode": "standard"},
        "max_pool_connections": wiring.concurrency,
    }
    bearer = wiring.key or read(AWS_BEARER)
    keys: dict[str, Any] = {"profile_name": read("AWS_PROFILE") or None, "region_name": region}
    if bearer:
        config["signature_version"] = "bearer"
        keys["botocore_session"] = _bearer_session(bearer)
    elif read(AWS_KEY):
        keys["aws_access_key_id"] = read(AWS_KEY)
        keys["aws_secret_access_key"] = read("AWS_SECRET_ACCESS_KEY")
        keys["aws_session_token"] = read("AWS_SESSION_TOKEN") or None
    client = _of("boto3", "Session")(**keys).client(
        "bedrock-runtime",
        config=_of("botocore.config", "Config")(**config),
        endpoint_url=wiring.base_url or None,
    )
    provider = _of("pydantic_ai.providers.bedrock", "BedrockProvider")(bedrock_client=client)
    return provider, _of("pydantic_ai.models.bedrock", "BedrockConverseModel")


def _bearer_session(token: str) -> Any:
    """Return a session whose one credential is a bearer token, whatever else the machine holds."""
    session = _of("botocore.session", "Session")()
    frozen = _of("botocore.tokens", "FrozenAuthToken")(token)

    def get_auth_token(**_: Any) -> Any:
        return frozen

    session.get_auth_token = get_auth_token
    session.get_credentials = lambda: None
    return session


_MAKERS: Final = cast(
    "Mapping[str, tuple[str | None, Callable[[Wiring, Any], tuple[Any, Any]]]]",
    {
        "anthropic": ("httpx2", _anthropic),
        "google": ("httpx2", _google),
        "bedrock": (None, _bedrock),
        "groq": ("httpx", _plain("groq", "Groq")),
        "mistral": ("httpx2", _plain("mistral", "Mistral")),
        "cohere": ("httpx", _plain("cohere", "Cohere")),
    },
)
"""Kind → the HTTP library its client is built on, null where it brings its own, and what makes it."""
