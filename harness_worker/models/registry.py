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

from harness_common.contracts.model import Model
from harness_common.core.errors import Invalid, Permanent
from harness_common.settings import Settings
from harness_worker.models.openai_chat import OPENAI_URL, OpenAIChat
from harness_worker.models.prices import PriceTable, load_prices
from harness_worker.models.scripted import Scripted


@dataclass(frozen=True, slots=True)
class Parts:
    """What a factory may build a model from."""

    settings: Settings
    client: httpx.AsyncClient
    prices: PriceTable


Factory = Callable[[str, Parts], Model]
"""Builds a model from the part of its name behind the slash."""


def _scripted(name: str, parts: Parts) -> Model:
    return Scripted(name)


def _openai(name: str, parts: Parts) -> Model:
    settings = parts.settings
    secret = settings.openai_api_key
    key = secret.get_secret_value().strip() if secret else ""
    base_url = (settings.openai_base_url or "").strip()
    if not base_url and not key:
        raise _not_configured(
            f"openai/{name} needs a key: set HARNESS_OPENAI_API_KEY, "
            "or HARNESS_OPENAI_BASE_URL for a server of your own"
        )
    if not key.isascii():
        raise _not_configured("HARNESS_OPENAI_API_KEY has characters that no key has; set it again")
    base_url = base_url or OPENAI_URL
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in {"http", "https"} or not url.host:
        raise _not_configured(
            "HARNESS_OPENAI_BASE_URL must look like https://host/v1 (or http://host:8000/v1)"
        )
    return OpenAIChat(parts.client, name, prices=parts.prices, base_url=base_url, api_key=key)


def _not_configured(message: str) -> Permanent:
    return Permanent(message, code="MODEL_NOT_CONFIGURED")


PROVIDERS: Final[dict[str, Factory]] = {
    "openai": _openai,
    "scripted": _scripted,
}


class ModelRegistry:
    """The models of one process, each built at first use and kept.

    `client` stays with whoever built it. `more` are the providers of plugins. Raises
    `Invalid` at once when the price file is wrong.
    """

    def __init__(
        self,
        settings: Settings,
        client: httpx.AsyncClient,
        more: Mapping[str, Factory] | None = None,
    ) -> None:
        self.prices = load_prices(settings.model.prices)
        self._parts = Parts(settings, client, self.prices)
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
                "like scripted/demo or openai/gpt-5-mini",
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
