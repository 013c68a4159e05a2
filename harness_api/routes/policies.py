"""Policies of tool calls: set a version, read versions, try rules, explain a decision."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Response

from harness_api.aside import aside
from harness_api.auth import Caller, requires
from harness_api.deps import Use
from harness_api.paging import Limit, NumberCursor, page
from harness_api.routes.effects import Key
from harness_api.routing import new_router
from harness_api.schemas.base import Page
from harness_api.schemas.policies import (
    CallPolicyView,
    DecisionView,
    PolicyPut,
    PolicyTest,
    PolicyView,
    RuleLook,
)
from harness_common.contracts.agent import Name
from harness_common.contracts.policy import parse_policy
from harness_common.core.ids import encode
from harness_common.core.policy import Decision, Facts, Policies, Policy, decide
from harness_common.core.taint import OUTBOUND, PRIVATE, UNTRUSTED
from harness_common.store.connection import Row
from harness_common.store.effects import read_call
from harness_common.store.policies import TENANT, put_policy
from harness_common.store.policy_reads import (
    decided,
    list_policies,
    newest_policies,
    read_policy_row,
)

router = new_router("/v1", "policies")

CanRead = Annotated[Caller, requires("policies:read")]
CanWrite = Annotated[Caller, requires("policies:write")]
OfAgent = Annotated[
    Name | None, Query(description="The policy of this agent; the tenant's when left out.")
]


def policy_view(row: Row) -> PolicyView:
    """Show one version."""
    return PolicyView(
        agent=row["agent_name"] or None,
        version=row["version"],
        source=row["source"],
        rules=row["rules"],
        digest=row["digest"],
        created_at=row["created_at"],
        created_by=row["created_by"],
    )


@router.post(
    "/policies",
    status_code=201,
    operation_id="putPolicy",
    response_model=PolicyView,
    responses={
        200: {"model": PolicyView, "description": "Unchanged: the newest version is the same."}
    },
)
async def post_policy(
    body: PolicyPut, response: Response, services: Use, caller: CanWrite
) -> PolicyView:
    """Add a version of the tenant's policy, or of an agent's. It holds from the next step of every
    run on. Mistakes are named by JSON pointer.
    """
    row, made = await put_policy(
        services.db, caller.tenant_id, body.agent or TENANT, body.source, caller.actor
    )
    response.status_code = 201 if made else 200
    return policy_view(row)


@router.get("/policies", operation_id="getPolicy", response_model=PolicyView)
async def get_policy(services: Use, caller: CanRead, agent: OfAgent = None) -> PolicyView:
    """Read the newest version; version 0 when none was ever set."""
    return policy_view(await read_policy_row(services.db, caller.tenant_id, agent or TENANT))


@router.get(
    "/policies/versions", operation_id="listPolicyVersions", response_model=Page[PolicyView]
)
async def get_versions(
    services: Use,
    caller: CanRead,
    agent: OfAgent = None,
    limit: Limit = 50,
    cursor: NumberCursor = None,
) -> Page[PolicyView]:
    """List the versions of a policy, newest first."""
    rows = await list_policies(
        services.db,
        caller.tenant_id,
        agent or TENANT,
        before=int(cursor) if cursor else None,
        limit=limit + 1,
    )
    data, next_cursor = page(rows, limit, policy_view, "version")
    return Page(data=data, next_cursor=next_cursor)


@router.get(
    "/policies/versions/{version}", operation_id="getPolicyVersion", response_model=PolicyView
)
async def get_version(
    version: Annotated[int, Path(ge=1, lt=2**31)],
    services: Use,
    caller: CanRead,
    agent: OfAgent = None,
) -> PolicyView:
    """Read one version of a policy."""
    return policy_view(
        await read_policy_row(services.db, caller.tenant_id, agent or TENANT, version)
    )


@router.post("/policies/test", operation_id="testPolicy", response_model=DecisionView)
async def post_test(body: PolicyTest, services: Use, caller: CanRead) -> DecisionView:
    """Say what policy would decide about a made-up call; nothing is run or recorded."""
    newest = await newest_policies(services.db, caller.tenant_id, body.agent or TENANT)
    return await aside(lambda: _decided(body, newest))


def _decided(body: PolicyTest, newest: Policies) -> DecisionView:
    policies = Policies(
        tenant=_tried(body.source, newest.tenant, for_agent=False),
        agent=_tried(body.agent_source, newest.agent, for_agent=True),
    )
    return DecisionView.model_validate(_shown(decide(_facts(body), policies)))


def _tried(source: str | None, newest: Policy, *, for_agent: bool) -> Policy:
    if source is None:
        return newest
    return parse_policy(source, for_agent=for_agent).compiled(newest.version + 1)


def _facts(body: PolicyTest) -> Facts:
    tool = body.tool
    held = {UNTRUSTED: body.tainted, PRIVATE: body.read_private, OUTBOUND: body.used_outbound}
    return Facts(
        tool=tool.name,
        effect=tool.effect,
        risk=tool.risk,
        outbound=tool.outbound,
        reads_private=tool.reads_private,
        untrusted_output=tool.untrusted_output,
        tags=tuple(tool.permission_tags),
        timeout_s=tool.timeout_s,
        cost_estimate_usd=tool.cost_estimate_usd,
        budget_left_usd=body.budget_left_usd,
        role=body.role,
        agent=body.agent or "",
        marks=tuple(sorted(mark for mark, yes in held.items() if yes)),
        arguments=body.arguments,
    )


def _shown(decision: Decision) -> dict[str, object]:
    kept = decision.to_json()
    return {
        **{name: kept[name] for name in ("verdict", "rule", "reasons", "version", "facts")},
        "facts_digest": kept["facts_digest"],
        "risk": decision.risk,
        "approvers": list(decision.approver_roles),
        "four_eyes": decision.four_eyes,
        "expires_s": decision.expires_s,
        "looks": [RuleLook(**look._asdict()) for look in decision.looks],
    }


@router.get(
    "/runs/{run_id}/calls/{call}/policy",
    operation_id="explainCall",
    response_model=CallPolicyView,
)
async def get_call_policy(key: Key, services: Use, caller: CanRead) -> CallPolicyView:
    """Explain the decision about a call: the layers in order, which rule decided, why the earlier
    ones did not, and the facts it rests on.
    """
    row = await read_call(services.db, caller.tenant_id, key)
    stored, again = await decided(services.db, caller.tenant_id, row)
    shown = _shown(again) | {name: stored[name] for name in ("verdict", "rule", "reasons")}
    return CallPolicyView.model_validate(
        {
            **shown,
            "version": stored["version"],
            "facts": stored["facts"],
            "facts_digest": stored["facts_digest"],
            "run_id": encode("run", key.run_id),
            "call": key.call,
            "tool": row["name"],
            "arguments": row["arguments"],
            "status": row["status"],
            "error_type": row["error_type"],
            "same": again.to_json()["facts_digest"] == stored["facts_digest"]
            and (str(again.verdict), again.rule) == (stored["verdict"], stored["rule"]),
        }
    )
