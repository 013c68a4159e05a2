"""Find the embedding model that the settings name. The list of providers is here, explicit.

To add one: write its file and add a line to `PROVIDERS`, or bring it in a plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import httpx

from harness_common.contracts.embeddings import Embedder
from harness_common.core.errors import Invalid, Permanent
from harness_common.embeddings import local
from harness_common.embeddings.openai import OpenAIEmbedder
from harness_common.plugins import discover, part
from harness_common.settings import EmbeddingSettings, Settings

OPENAI_URL: Final = "https://api.openai.com/v1"
_OPENAI_MODEL: Final = "text-embedding-3-small"

Factory = Callable[[Settings, httpx.AsyncClient], Embedder | None]
"""Builds the model; None means that there is none to be had, and words have to do."""


def _auto(settings: Settings, client: httpx.AsyncClient) -> Embedder | None:
    """Use what is on this machine; nothing is sent anywhere that was not named."""
    del settings, client
    return local.LocalEmbedder() if local.is_installed() else None


def _local(settings: Settings, client: httpx.AsyncClient) -> Embedder | None:
    del settings, client
    return local.LocalEmbedder()


def _openai(settings: Settings, client: httpx.AsyncClient) -> Embedder | None:
    own = settings.embeddings
    base_url = own.base_url or settings.openai_base_url or OPENAI_URL
    return OpenAIEmbedder(
        client,
        own.model or _OPENAI_MODEL,
        base_url=base_url,
        api_key=_key(own, settings, base_url),
        dimensions=own.dimensions,
        timeout_s=own.timeout_s,
    )


def _key(own: EmbeddingSettings, settings: Settings, base_url: str) -> str:
    """Return the key; that of the models goes to no server but theirs."""
    if own.api_key is not None:
        return own.api_key.get_secret_value().strip()
    theirs = settings.openai_base_url or OPENAI_URL
    if settings.openai_api_key is not None and base_url == theirs:
        return settings.openai_api_key.get_secret_value().strip()
    if base_url == OPENAI_URL:
        raise Permanent(
            "embeddings by openai need a key: set HARNESS_EMBEDDINGS__API_KEY, or "
            "HARNESS_EMBEDDINGS__BASE_URL for a server of your own",
            code="EMBEDDINGS_NOT_CONFIGURED",
        )
    return ""


def _none(settings: Settings, client: httpx.AsyncClient) -> Embedder | None:
    del settings, client
    return None


PROVIDERS: Final[Mapping[str, Factory]] = MappingProxyType(
    {"auto": _auto, "local": _local, "openai": _openai, "none": _none}
)


def embedder_of(settings: Settings, client: httpx.AsyncClient) -> Embedder | None:
    """Return the model that `embeddings.provider` names, of `PROVIDERS` or of a plugin.

    Raises `Invalid` for a name that nobody has, `Permanent` when a setting is missing.
    """
    name = settings.embeddings.provider
    factory = PROVIDERS.get(name) or part(settings.plugins, "embeddings", name)
    if factory is None:
        more = (
            n for one in discover(settings.plugins) if one.plugin for n in one.plugin.embeddings
        )
        known = ", ".join(sorted({*PROVIDERS, *more}))
        raise Invalid(
            f"there is no embedding provider {name[:64]!r}; known are {known}. Set "
            "HARNESS_EMBEDDINGS__PROVIDER to one of them, or install the plugin that has it",
            code="EMBEDDINGS_UNKNOWN",
            field="embeddings.provider",
            value=name[:64],
        )
    embedder: Embedder | None = factory(settings, client)
    return embedder
