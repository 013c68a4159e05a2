"""Effects whose outcome nobody knows, and what a person says of them."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from typing import Final

from harness_api.client.http import Call, given
from harness_api.client.paths import id_path
from harness_api.client.surface import M, Resource, flow, operation
from harness_api.client.types import Effect
from harness_common.core.errors import Invalid

_CALL: Final = re.compile(r"[0-9]{1,9}[.][0-9]{1,9}")


def call_path(run_id: str, call: str, rest: str = "") -> str:
    """Return the path of a call, and of what is below it."""
    if not _CALL.fullmatch(call):
        raise Invalid(
            f"{call!r} is no call; expected step.index, for example 2.0", field="call", value=call
        )
    return id_path("/v1/runs/{}/calls/", "run", run_id) + call + rest


class Effects(Resource[M]):
    """`client.effects`."""

    @flow
    async def list(
        self, *, run_id: str | None = None, limit: int | None = None
    ) -> AsyncGenerator[Effect, None]:
        """Yield the calls of which nobody knows whether they took effect, the newest run's
        first.
        """
        async for effect in self._http.pages("/v1/effects", Effect, limit, run_id=run_id):
            yield effect

    @operation
    async def get(self, run_id: str, call: str) -> Effect:
        """Read one call (`step.index`) of a run."""
        return await self._http.fetch(Call("GET", call_path(run_id, call)), Effect)

    @operation
    async def resolve(
        self, run_id: str, call: str, outcome: str, reason: str, result: str | None = None
    ) -> Effect:
        """Say what became of an unknown effect: `succeeded`, `failed` or `run_again`, and how that
        is known. Refused (409) when somebody was first.
        """
        body = given(outcome=outcome, reason=reason, result=result)
        return await self._http.fetch(
            Call("POST", call_path(run_id, call, "/resolve"), body=body), Effect
        )
