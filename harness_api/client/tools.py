"""Tools: which of them fail now."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Final

from harness_api.client.http import Call
from harness_api.client.surface import M, Resource, flow, operation
from harness_api.client.types import Breaker
from harness_common.core.errors import Invalid

_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")


class Tools(Resource[M]):
    """`client.tools`."""

    @flow
    async def breakers(self) -> AsyncGenerator[Breaker, None]:
        """Yield the tools that failed lately, those that are not called now first."""
        async for breaker in self._http.pages("/v1/tools/breakers", Breaker):
            yield breaker

    @operation
    async def reset_breaker(self, name: str) -> Breaker:
        """Forget the faults of a tool, so that it is called again at once."""
        if not _NAME.fullmatch(name):
            raise Invalid(f"{name[:64]!r} is no name of a tool", field="tool", value=name[:64])
        return await self._http.fetch(Call("POST", f"/v1/tools/breakers/{name}/reset"), Breaker)
