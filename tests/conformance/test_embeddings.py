"""Every embedding model keeps the contract: the local one, and one over HTTP against a server that
nobody here wrote (`llmock`). And what a bad answer of a server is called.
"""

from __future__ import annotations

import math
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from harness_common.core.errors import Invalid, Permanent, Transient
from harness_common.embeddings.openai import OpenAIEmbedder
from harness_common.embeddings.registry import PROVIDERS, embedder_of
from harness_common.settings import EmbeddingSettings, Settings

pytestmark = pytest.mark.anyio
TEXTS = ("an invoice in euros", "a bakery in Lisbon", "绿茶")


@pytest.fixture(scope="module")
def llmock():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = str(Path(sys.executable).parent / "llmock")
    server = subprocess.Popen(
        [program, "serve", "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(300):
            try:
                httpx.get(f"http://127.0.0.1:{port}/v1/models", trust_env=False, timeout=2)
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.terminate()
        server.wait(10)


def settings(**given):
    return Settings(embeddings=EmbeddingSettings(**given))


@pytest.mark.parametrize("provider", sorted(set(PROVIDERS) - {"none"}))
async def test_one_vector_a_text_always_the_same(provider, llmock):
    async with httpx.AsyncClient(trust_env=False) as client:
        model = embedder_of(settings(provider=provider, base_url=llmock), client)
        assert model is not None
        vectors = await model.embed(TEXTS)
        assert len(vectors) == len(TEXTS)
        assert len({len(v) for v in vectors}) == 1
        assert all(math.isfinite(x) for v in vectors for x in v)
        alone = (await model.embed(TEXTS[1:2]))[0]
        assert alone == pytest.approx(vectors[1])
        assert await model.embed([]) == []
        assert "/" in model.name
        await model.aclose()


async def test_none_is_none_and_an_unknown_name_is_refused():
    async with httpx.AsyncClient() as client:
        assert embedder_of(settings(provider="none"), client) is None
        with pytest.raises(Invalid, match="known are auto, local, none, openai"):
            embedder_of(settings(provider="cohere"), client)
        with pytest.raises(Permanent, match="HARNESS_EMBEDDINGS__API_KEY"):
            embedder_of(settings(provider="openai"), client)


def answering(status, body):
    seen = []

    def handle(request):
        seen.append(request)
        return httpx.Response(status, json=body)

    return httpx.AsyncClient(transport=httpx.MockTransport(handle)), seen


@pytest.mark.parametrize(
    ("status", "body", "error", "code"),
    [
        (429, {}, Transient, "EMBEDDINGS_HTTP_429"),
        (503, {}, Transient, "EMBEDDINGS_HTTP_503"),
        (401, {}, Permanent, "EMBEDDINGS_HTTP_401"),
        (200, {"data": []}, Permanent, "EMBEDDINGS_BAD_ANSWER"),
        (200, {"data": [{"index": 0, "embedding": "x"}]}, Permanent, "EMBEDDINGS_BAD_ANSWER"),
        (200, ["no"], Permanent, "EMBEDDINGS_BAD_ANSWER"),
    ],
)
async def test_what_goes_wrong_has_a_name(status, body, error, code):
    client, _ = answering(status, body)
    with pytest.raises(error) as found:
        await OpenAIEmbedder(client, "m", base_url="http://s/v1").embed(["x"])
    assert found.value.error_code == code


async def test_the_models_key_goes_to_their_server_only():
    body = {"data": [{"index": 0, "embedding": [1.0]}]}
    for own, sent in ((None, "Bearer sk-models"), ("http://elsewhere/v1", None)):
        client, seen = answering(200, body)
        config = Settings(
            openai_base_url="http://models/v1",
            openai_api_key=SecretStr("sk-models"),
            embeddings=EmbeddingSettings(provider="openai", base_url=own, dimensions=8),
        )
        model = embedder_of(config, client)
        assert model is not None
        await model.embed(["x"])
        assert seen[0].headers.get("Authorization") == sent
        assert b'"dimensions":8' in seen[0].content.replace(b" ", b"")
