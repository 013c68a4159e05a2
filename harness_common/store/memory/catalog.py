"""Definitions and records beside runs: agents, skills, policies, keys, tools, artifacts, audit."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from harness_common.store import json_codec
from harness_common.store.connection import Row
from harness_common.store.memory.approvals import starter
from harness_common.store.memory.starting import newest
from harness_common.store.memory.tables import Params, Table, Tables


def _put_version(t: Tables, table: Table, key: Row, values: Row, *, same: tuple[str, ...]) -> Row:
    """Add a version unless the newest one says the same; tell whether it was made."""
    found = max(table.where(**key), key=lambda r: r["version"], default=None)
    if found is not None and all(found[name] == values[name] for name in same):
        return found | {"made": False}
    version = found["version"] + 1 if found is not None else 1
    return table.insert(key | values | {"version": version}) | {"made": True}


def _versioned(p: Params, body: str) -> Row:
    values = {n: p[n] for n in ("digest", "created_by")}
    return values | {body: json_codec.loads(p[body])}


def agent_put(t: Tables, p: Params) -> list[Row]:
    """Add a version of an agent."""
    key = {n: p[n] for n in ("tenant_id", "name")}
    return [_put_version(t, t.agents, key, _versioned(p, "spec"), same=("digest",))]


def agent_read(t: Tables, p: Params) -> list[Row]:
    """Read one pinned version of an agent."""
    return list(t.agents.where(tenant_id=p["tenant_id"], id=p["agent_id"]))


def agent_version(t: Tables, p: Params) -> list[Row]:
    """Read one version of an agent by its name."""
    row = t.agents.get(p["tenant_id"], p["name"], p["version"])
    return [] if row is None else [row]


def agents_newest(t: Tables, p: Params) -> list[Row]:
    """Read the newest versions of some agents, with what they say they are for."""
    found = (newest(t.agents, p["tenant_id"], name) for name in sorted(set(p["names"])))
    return [
        {n: r[n] for n in ("name", "version")} | {"description": r["spec"].get("description")}
        for r in found
        if r is not None
    ]


def skill_put(t: Tables, p: Params) -> list[Row]:
    """Add a version of a skill."""
    key = {n: p[n] for n in ("tenant_id", "name")}
    return [_put_version(t, t.skills, key, _versioned(p, "spec"), same=("digest",))]


def skills_find(t: Tables, p: Params) -> list[Row]:
    """Find versions of skills in the order asked; null where there is none."""
    out = []
    for w in json_codec.loads(p["wanted"]):
        found = newest(t.skills, p["tenant_id"], w["name"], w.get("version")) or {}
        asked = {"n": w["n"], "name": w["name"], "wanted": w.get("version")}
        out.append(asked | {n: found.get(n) for n in ("version", "spec")})
    return sorted(out, key=lambda row: row["n"])


def policy_put(t: Tables, p: Params) -> list[Row]:
    """Add a version of a policy."""
    key = {n: p[n] for n in ("tenant_id", "agent_name")}
    values = _versioned(p, "rules") | {"source": p["source"]}
    return [_put_version(t, t.policies, key, values, same=("digest", "source"))]


def policy_read(t: Tables, p: Params) -> list[Row]:
    """Read one version of a tenant's policy or of an agent's."""
    row = t.policies.get(p["tenant_id"], p["agent_name"], p["version"])
    return [] if row is None else [{"rules": row["rules"]}]


def policy_facts(t: Tables, p: Params) -> list[Row]:
    """Read what policy needs to know of a run beside its calls."""
    tenant_id = p["tenant_id"]
    if t.run_of(p) is None:
        return []
    principal = starter(t, p)
    key = principal.removeprefix("key_")
    known = t.api_keys.get(tenant_id, UUID(hex=key)) if principal != key else None
    marks: dict[str, None] = {}
    before = t.runs.get(tenant_id, p["prev_run_id"])
    while before is not None:
        marks |= dict.fromkeys(before["memo"].get("marks") or ())
        before = t.runs.get(tenant_id, before["prev_run_id"])
    return [
        {
            "tenant_version": _newest_policy(t, tenant_id, ""),
            "agent_version": _newest_policy(t, tenant_id, p["agent_name"])
            if p["agent_name"]
            else 0,
            "principal": principal,
            "role": known and known["role"],
            "marks": list(marks),
            "left_usd": None,
        }
    ]


def _newest_policy(t: Tables, tenant_id: UUID, agent_name: str) -> int:
    found = t.policies.where(tenant_id=tenant_id, agent_name=agent_name)
    return max((r["version"] for r in found), default=0)


def key_insert(t: Tables, p: Params) -> list[Row]:
    """Add an API key."""
    names = (
        "tenant_id", "name", "public_id", "secret_hash", "role", "scopes", "expires_at",
        "rotated_from",
    )  # fmt: skip
    values = {n: p[n] for n in names}
    if values["expires_at"] is None and p["lives_s"] is not None:
        values["expires_at"] = t.clock() + timedelta(seconds=p["lives_s"])
    return [t.api_keys.insert(values) | {"now": t.clock()}]


def keys_writing(t: Tables, p: Params) -> list[Row]:
    """Find whose bodies are encrypted: nobody's; nothing of this store is ever on a disk."""
    del t, p
    return []


def audit_insert(t: Tables, p: Params) -> list[Row]:
    """Add one row to the audit trail."""
    t.audit.insert({**p, "detail": json_codec.loads(p["detail"])})
    return []


def tools_announce(t: Tables, p: Params) -> list[Row]:
    """Say which tools a worker process has."""
    if t.workers.get(p["worker"]) is None:
        return []
    for digest, name, spec in zip(p["digests"], p["names"], p["specs"], strict=True):
        if t.tool_specs.get(digest) is None:
            t.tool_specs.insert({"digest": digest, "name": name, "spec": json_codec.loads(spec)})
    row = t.worker_tools.get(p["worker"])
    if row is None:
        t.worker_tools.insert({"incarnation": p["worker"], "digests": p["digests"]})
    else:
        t.worker_tools.update(row, {"digests": p["digests"]})
    return []


def nothing(t: Tables, p: Params) -> list[Row]:
    """Find none of what only the API's routes can make: a tenant's own HTTP tools, MCP servers and
    rules about hosts.
    """
    del t, p
    return []


def context_part_put(t: Tables, p: Params) -> list[Row]:
    """Keep a part of prompts under its digest."""
    if t.context_parts.get(p["tenant_id"], p["digest"]) is None:
        t.context_parts.insert({**p, "body": json_codec.loads(p["body"])})
    return []


def context_parts_read(t: Tables, p: Params) -> list[Row]:
    """Read parts of prompts by their digests."""
    found = (t.context_parts.get(p["tenant_id"], digest) for digest in p["digests"])
    return [row for row in found if row is not None]


def artifact_insert(t: Tables, p: Params) -> list[Row]:
    """Record an artifact."""
    return [{"id": t.artifacts.insert(p)["id"]}]


def artifact_read(t: Tables, p: Params) -> list[Row]:
    """Read an artifact's record."""
    row = t.artifacts.get(p["tenant_id"], p["id"])
    return [] if row is None else [row]


def repairs_keep(t: Tables, p: Params) -> list[Row]:
    """Count the repairs that the answer of a step took."""
    row = t.repairs.get(p["tenant_id"], p["run_id"], p["step"])
    kinds = json_codec.loads(p["kinds"]) if isinstance(p["kinds"], str) else p["kinds"]
    if row is None:
        t.repairs.insert({**p, "kinds": kinds})
    else:
        t.repairs.update(row, {"kinds": kinds, "model": p["model"], "at": t.clock()})
    return [{"step": p["step"]}]


STATEMENTS: Final[dict[str, Any]] = {
    "agent_put": agent_put,
    "agent_read": agent_read,
    "agent_version": agent_version,
    "agents_newest": agents_newest,
    "skill_put": skill_put,
    "skills_find": skills_find,
    "policy_put": policy_put,
    "policy_read": policy_read,
    "policy_facts": policy_facts,
    "key_insert": key_insert,
    "keys_writing": keys_writing,
    "audit_insert": audit_insert,
    "tools_announce": tools_announce,
    "tools_current": nothing,
    "tools_load": nothing,
    "egress_read": nothing,
    "mcp_find": nothing,
    "mcp_servers_named": nothing,
    "mcp_accepted": nothing,
    "context_part_put": context_part_put,
    "context_parts_read": context_parts_read,
    "blob_note": nothing,
    "artifact_insert": artifact_insert,
    "artifact_read": artifact_read,
    "repairs_keep": repairs_keep,
}
