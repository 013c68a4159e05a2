"""Tool calls that wait for a person's approval."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from harness_api.client.http import Call, given
from harness_api.client.paths import id_path
from harness_api.client.surface import M, Resource, flow, operation
from harness_api.client.types import Approval


class Approvals(Resource[M]):
    """`client.approvals`."""

    @flow
    async def list(
        self,
        *,
        status: str | None = "pending",
        run_id: str | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[Approval, None]:
        """Yield approvals, newest first: the pending ones, or with `status=None` all."""
        async for found in self._http.pages(
            "/v1/approvals", Approval, limit, status=status, run_id=run_id
        ):
            yield found

    @operation
    async def get(self, approval_id: str) -> Approval:
        """Read one approval."""
        return await self._http.fetch(Call("GET", _path(approval_id)), Approval)

    @operation
    async def approve(
        self,
        approval_id: str,
        expected_digest: str,
        *,
        arguments: dict[str, Any] | None = None,
        reason: str | None = None,
    ) -> Approval:
        """Approve a call whose arguments have the digest that you were shown; with `arguments`,
        with those instead. Safe to repeat. Refused (409) when the arguments are others by now, when
        somebody decided otherwise, and when its time is over.
        """
        body = given(expected_digest=expected_digest, arguments=arguments, reason=reason)
        call = Call("POST", _path(approval_id, "/approve"), body=body, repeatable=True)
        return await self._http.fetch(call, Approval)

    @operation
    async def deny(
        self, approval_id: str, reason: str, *, expected_digest: str | None = None
    ) -> Approval:
        """Deny a call; the model is told the reason. Safe to repeat."""
        body = given(reason=reason, expected_digest=expected_digest)
        return await self._http.fetch(
            Call("POST", _path(approval_id, "/deny"), body=body, repeatable=True), Approval
        )


def _path(approval_id: str, rest: str = "") -> str:
    return id_path("/v1/approvals/{}", "approval", approval_id) + rest
