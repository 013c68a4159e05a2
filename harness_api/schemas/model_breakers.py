"""Circuit breakers of models on the wire."""

from __future__ import annotations

from harness_api.schemas.base import Input
from harness_api.schemas.tool_breakers import BreakerFacts
from harness_common.contracts.names import ModelName


class ModelReset(Input):
    """Which model is to be asked again."""

    model: ModelName
    """`provider/model`, as agents name it."""


class ModelBreakerView(BreakerFacts):
    """What is known of a model that failed lately."""

    model: str
