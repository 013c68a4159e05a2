"""What the providers of the OpenAI family do with an agent's `model_options`."""

from __future__ import annotations

from typing import Final

from harness_common.core.errors import Permanent
from harness_common.core.message import Json
from harness_worker.models.json_out import json_bytes

SAMPLING: Final = frozenset(
    {
        "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
        "repetition_penalty", "logit_bias", "logprobs", "top_logprobs",
    }
)  # fmt: skip
"""Options that a model without sampling parameters answers with 400, even at their default."""


def write_body(name: str, body: dict[str, Json]) -> bytes:
    """Write a request's body; raises `Permanent` when an option is no JSON."""
    try:
        return json_bytes(body)
    except (TypeError, ValueError) as error:
        raise Permanent(
            f"{name}: the request cannot be written as JSON: {error}", code="MODEL_BAD_REQUEST"
        ) from None
