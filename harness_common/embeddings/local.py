"""A small embedding model that runs in this process: no server, no download, no framework.

The vectors of words come with the package `wordllama` (an extra of ours; 16 MB, 256 numbers a
token, made from the token embeddings of large language models and trained for similarity, MIT). Of
the package only its two files are used: a text's vector is the mean of its tokens', which takes
about a millisecond. It knows that a bill and an invoice are related; it knows nothing of word
order, and little of languages that Llama 2 tokens spell out by bytes.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import math
import mmap
import operator
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from harness_common.core.errors import Permanent

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_PACKAGE: Final = "wordllama"
_WEIGHTS: Final = "weights/l2_supercat_256.safetensors"
_TOKENIZER: Final = "tokenizers/l2_supercat_tokenizer_config.json"
_MAX_TOKENS: Final = 1_024


def is_installed() -> bool:
    """Tell whether the model is on this machine, without loading it."""
    return _folder() is not None and importlib.util.find_spec("tokenizers") is not None


def _folder() -> Path | None:
    spec = importlib.util.find_spec(_PACKAGE)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if (Path(place) / _WEIGHTS).is_file() and (Path(place) / _TOKENIZER).is_file():
            return Path(place)
    return None


class LocalEmbedder:
    """The model of the package. Its file is mapped at first use and shared by all processes."""

    name = "local/wordllama-256"
    floor = 0.12

    def __init__(self) -> None:
        self._loaded: _Words | None = None
        self._lock = asyncio.Lock()

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector a text; raises `Permanent` when the package is not there."""
        async with self._lock:
            if self._loaded is None:
                self._loaded = await asyncio.to_thread(_load)
        return await asyncio.to_thread(self._loaded.embed, list(texts))

    async def aclose(self) -> None:
        """Nothing is held open that outlives the process."""


class _Words:
    """Vectors of tokens in a mapped file."""

    def __init__(self, data: mmap.mmap, start: int, size: int, tokenizer: Tokenizer) -> None:
        self._data, self._start, self._tokenizer = data, start, tokenizer
        self._row = struct.Struct(f"<{size}e")

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [self._one(text) for text in texts]

    def _one(self, text: str) -> list[float]:
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids[:_MAX_TOKENS]
        total = [0.0] * (self._row.size // 2)
        for token in ids:
            row = self._row.unpack_from(self._data, self._start + token * self._row.size)
            total = list(map(operator.add, total, row))
        length = math.sqrt(sum(x * x for x in total)) or 1.0
        return [x / length for x in total]


def _load() -> _Words:
    folder = _folder() if is_installed() else None
    if folder is None:
        raise Permanent(
            "the local embedding model is not installed: install harness[embedded], or set "
            "HARNESS_EMBEDDINGS__PROVIDER to openai or none",
            code="EMBEDDINGS_NOT_CONFIGURED",
        )
    from tokenizers import Tokenizer  # noqa: PLC0415 - an extra, loaded at first use

    with (folder / _WEIGHTS).open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    length = int.from_bytes(data[:8], "little")  # safetensors: the length of the header, then it
    (tensor,) = (v for k, v in json.loads(data[8 : 8 + length]).items() if k != "__metadata__")
    assert tensor["dtype"] == "F16"
    start = 8 + length + tensor["data_offsets"][0]
    return _Words(data, start, tensor["shape"][1], Tokenizer.from_file(str(folder / _TOKENIZER)))
