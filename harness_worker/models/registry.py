"""Find a model by its name `provider/model`. The list of providers is here, explicit, and nowhere
else.

The runtime builds one `ModelRegistry` per process over the shared client. To add a provider: write
its file and add a line to `PROVIDERS`; the conformance suite then runs over it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import httpx
from pydantic import SecretStr

from harness_common.contracts.model import Model
from harness_common.core.errors import Invalid, Permanent
from harness_common.settings import Settings
from harness_worker.models.anthropic import ANTHROPIC_URL, Anthropic, capabilities_of
from harness_worker.models.capabilities import CapabilityTable, load_capabilities
from harness_worker.models.exchange import OPENAI_URL
from harness_worker.models.openai_chat import OpenAIChat
from harness_worker.models.openai_responses import OpenAIResponses
from harness_worker.models.prices import PriceTable, load_prices
from harness_worker.models.scripted import Scripted


@dataclass(frozen=True, slots=True)
class Parts:
    """What a factory may build a model from."""

    settings: Settings
    client: httpx.AsyncClient
    prices: PriceTable
    capabilities: CapabilityTable


Factory = Callable[[str, Parts], Model]
"""Builds a model from the part of its name behind the slash."""


def _scripted(name: str, parts: Parts) -> Model:
    return Scripted(name)


def _openai(name: str, parts: Parts) -> Model:
    base_url, key = _openai_server("openai", name, parts.settings)
    return OpenAIChat(
        parts.client, name, prices=parts.prices, base_url=base_url, api_key=key,
        capabilities=parts.capabilities.of(f"openai/{name}"),
    )  # fmt: skip


def _openai_responses(name: str, parts: Parts) -> Model:
    base_url, key = _openai_server("openai-responses", name, parts.settings)
    return OpenAIResponses(
        parts.client, name, prices=parts.prices, base_url=base_url, api_key=key,
        capabilities=parts.capabilities.of(f"openai-responses/{name}"),
    )  # fmt: skip


def _openai_server(provider: str, name: str, settings: Settings) -> tuple[str, str]:
    """Return address and key of the server that both OpenAI protocols are spoken with."""
    base_url, key = _endpoint(
        f"{provider}/{name}", "OPENAI", settings.openai_base_url, settings.openai_api_key
    )
    return base_url or OPENAI_URL, key


def _anthropic(name: str, parts: Parts) -> Model:
    settings = parts.settings
    base_url, key = _endpoint(
        f"anthropic/{name}", "ANTHROPIC", settings.anthropic_base_url, settings.anthropic_api_key
    )
    version = settings.anthropic_version
    return Anthropic(
        parts.client, name, prices=parts.prices, version=version,
        base_url=base_url or ANTHROPIC_URL, api_key=key,
        capabilities=parts.capabilities.of(f"anthropic/{name}", capabilities_of(name, version)),
    )  # fmt: skip


def _endpoint(
    model: str, owner: str, base_url: str | None, secret: SecretStr | None
) -> tuple[str, str]:
    """Check the settings of a provider; return its address ("" for the official one) and key."""
    variable = f"HARNESS_{owner}"
    key = secret.get_secret_value().strip() if secret else ""
    base_url = (base_url or "").strip()
    if not base_url and not key:
        raise _not_configured(
            f"{model} needs a key: set {variable}_API_KEY, "
            f"or {variable}_BASE_URL for a server of your own"
        )
    if not key.isascii():
        raise _not_configured(f"{variable}_API_KEY has characters that no key has; set it again")
    try:
        url = httpx.URL(base_url or "https://official")
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in {"http", "https"} or not url.host:
        raise _not_configured(
            f"{variable}_BASE_URL must look like https://host/v1 (or http://host:8000/v1)"
        )
    return base_url, key


def _not_configured(message: str) -> Permanent:
    return Permanent(message, code="MODEL_NOT_CONFIGURED")


PROVIDERS: Final[dict[str, Factory]] = {
    "anthropic": _anthropic,
    "openai": _openai,
    "openai-responses": _openai_responses,
    "scripted": _scripted,
}


class ModelRegistry:
    """The models of one process, each built at first use and kept.

    `client` stays with whoever built it. `more` are the providers of plugins. Raises `Invalid` at
    once when the file of prices or of capabilities is wrong.
    """

    def __init__(
        self,
        settings: Settings,
        client: httpx.AsyncClient,
        more: Mapping[str, Factory] | None = None,
    ) -> None:
        self.prices = load_prices(settings.model.prices)
        self.capabilities = load_capabilities(settings.model.capabilities)
        self._parts = Parts(settings, client, self.prices, self.capabilities)
        self._providers = {**(more or {}), **PROVIDERS}
        self._models: dict[str, Model] = {}

    def get(self, name: str) -> Model:
        """Return the model `provider/model`; what follows the first slash is the provider's own
        name for it.

        Raises `Invalid` for a name of another form or an unknown provider, `Permanent`
        MODEL_NOT_CONFIGURED when a setting is missing.
        """
        if (model := self._models.get(name)) is not None:
            return model
        provider, slash, own = name.partition("/")
        if not slash or not provider or not own:
            raise Invalid(
                f"{name[:100]!r} is not a model name; write provider/model, "
                "like scripted/demo, openai/gpt-5-mini or anthropic/claude-sonnet-5-5",
                field="model",
                value=name[:100],
            )
        factory = self._providers.get(provider)
        if factory is None:
            known = sorted(self._providers)
            raise Invalid(
                f"There is no model provider {provider[:50]!r}; known are {', '.join(known)}",
                field="model",
                value=name[:100],
                known=known,
            )
        return self._models.setdefault(name, factory(own, self._parts))

    async def aclose(self) -> None:
        """Close the models and forget them; the shared client stays open."""
        models, self._models = list(self._models.values()), {}
        for model in models:
            await model.aclose()
