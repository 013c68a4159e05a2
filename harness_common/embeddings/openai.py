"""Embeddings of a server that speaks OpenAI's API: `POST {base}/embeddings`.

https://platform.openai.com/docs/api-reference/embeddings; vLLM, llama.cpp, Ollama and LiteLLM
answer the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import httpx

from harness_common.core.errors import Permanent, Transient

_BATCH: Final = 64
_FLOOR: Final = 0.25


class OpenAIEmbedder:
    """One model of one server. The client stays with whoever made it."""

    floor = _FLOOR

    def __init__(
        self,
        client: httpx.AsyncClient,
        model: str,
        *,
        base_url: str,
        api_key: str = "",
        dimensions: int | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        self.name = f"openai/{model}" + (f"@{dimensions}" if dimensions else "")
        self._client, self._model, self._dimensions = client, model, dimensions
        self._url = f"{base_url.rstrip('/')}/embeddings"
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_s = timeout_s

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector a text; raises `Transient` and `Permanent`."""
        out: list[list[float]] = []
        for i in range(0, len(texts), _BATCH):
            out += await self._batch(list(texts[i : i + _BATCH]))
        return out

    async def aclose(self) -> None:
        """Nothing of its own is open."""

    async def _batch(self, texts: list[str]) -> list[list[float]]:
        body: dict[str, Any] = {"model": self._model, "input": texts, "encoding_format": "float"}
        if self._dimensions:
            body["dimensions"] = self._dimensions
        try:
            answer = await self._client.post(
                self._url, json=body, headers=self._headers, timeout=self._timeout_s
            )
        except httpx.HTTPError as error:
            raise Transient(
                f"the embedding server did not answer: {type(error).__name__}",
                code="EMBEDDINGS_UNREACHABLE",
            ) from error
        if answer.status_code != 200:
            kind = Transient if answer.status_code in {408, 429} or answer.is_server_error else None
            raise (kind or Permanent)(
                f"the embedding server answered {answer.status_code}",
                code=f"EMBEDDINGS_HTTP_{answer.status_code}",
            )
        return _vectors(answer, len(texts))


def _vectors(answer: httpx.Response, count: int) -> list[list[float]]:
    try:
        data = sorted(answer.json()["data"], key=lambda one: one["index"])
        found = [[float(x) for x in one["embedding"]] for one in data]
    except (ValueError, KeyError, TypeError) as error:
        raise Permanent(
            "the embedding server's answer is not what was asked for", code="EMBEDDINGS_BAD_ANSWER"
        ) from error
    if len(found) != count or len({len(v) for v in found}) != 1 or not found[0]:
        raise Permanent(
            f"the embedding server gave {len(found)} vectors for {count} texts",
            code="EMBEDDINGS_BAD_ANSWER",
        )
    return found
