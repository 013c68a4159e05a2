"""Models: which of them fail now."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from harness_api.client.http import Call
from harness_api.client.surface import M, Resource, flow, operation
from harness_api.client.types import ModelBreaker


class Models(Resource[M]):
    """`client.models`."""

    @flow
    async def breakers(self) -> AsyncGenerator[ModelBreaker, None]:
        """Yield the models that failed lately, those that are passed over now first."""
        async for breaker in self._http.pages("/v1/models/breakers", ModelBreaker):
            yield breaker

    @operation
    async def reset_breaker(self, model: str) -> ModelBreaker:
        """Forget the faults of a model (`provider/model`), so that it is asked again at once."""
        call = Call("POST", "/v1/models/breakers/reset", body={"model": model})
        return await self._http.fetch(call, ModelBreaker)
