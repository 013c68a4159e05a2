"""One of everything for a tenant, with texts that would like to be more than text."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID, uuid4

import httpx

from harness_common.contracts.tool import EffectClass
from harness_common.core.approval import digest
from harness_common.core.ids import decode, encode
from harness_common.core.step import ToolsUnknown
from harness_common.core.tool_call import CallStatus
from harness_common.store import json_codec
from harness_common.store.db import Database
from harness_worker.tools.call import PendingCall
from harness_worker.tools.ledger import Ledger
from tests.fakes.tenant import Tenant
from tests.store.approval_play import asks, waiting
from tests.store.play import Play, make_worker, ran, say, sql
from tests.worker.runtime import make_runtime, make_tool

NASTY = "<script>alert(1)</script><img src=x onerror=alert(2)> \x1b[31mred \u202egnp.exe"
SHOWN = "&lt;script&gt;alert(1)&lt;/script&gt;"


@dataclass
class World:
    """What was made."""

    tenant: Tenant
    play: Play
    api: httpx.AsyncClient
    worker: UUID = field(default_factory=uuid4)
    session: str = ""
    run: str = ""
    held: str = ""
    approval: Any = None
    effect: Any = None
    hook: Any = None
    memory: Any = None

    async def call(self, method: str, path: str, **json: Any) -> Any:
        answer = await self.api.request(
            method, f"/v1{path}", json=json or None, headers=self.tenant.headers("admin")
        )
        assert answer.is_success, f"{path}: {answer.text}"
        return answer.json() if answer.content else None

    def ids(self) -> list[str]:
        return [
            self.session, self.run, self.held, self.approval["id"], self.effect["run_id"],
            self.hook["id"], self.memory["id"],
        ]  # fmt: skip

    def pages(self) -> dict[str, list[str]]:
        """Return every page with something on it, and what has to be there."""
        worker = encode("worker", self.worker)
        key = encode("api_key", self.tenant.rows["admin"]["id"])
        effect = f"{self.effect['run_id']}/{self.effect['call']}"
        return {
            "/console/sessions": [self.session, SHOWN],
            f"/console/sessions/{self.session}": [self.run, SHOWN, "seen", "look"],
            "/console/approvals": [self.approval["id"], "pay", "Review"],
            "/console/approvals?show=all": [self.approval["id"], "pending"],
            f"/console/approvals/{self.approval['id']}": [SHOWN, "Approve as shown", "high risk"],
            "/console/effects": [effect, "pay"],
            f"/console/effects/{effect}": [SHOWN, "the process is gone", "Run it again"],
            "/console/agents": ["mine", SHOWN],
            "/console/agents/mine": [SHOWN, "v1", "Compare"],
            "/console/agents/mine?version=1": ["To version 2"],
            "/console/agents/mine/diff": ["system", SHOWN],
            "/console/tools": ["fetch_it", SHOWN, "flaky", "open"],
            "/console/tools/fetch_it": [SHOWN, "Disable"],
            "/console/skills": ["careful", SHOWN],
            "/console/skills/careful": [SHOWN, "v1"],
            "/console/memories": [SHOWN, "Forget"],
            "/console/schedules": ["nightly", "0 3 * * *", "Pause"],
            "/console/schedules/nightly": [SHOWN, "03:00:00 UTC", "started"],
            "/console/webhooks": [self.hook["id"], "run.failed"],
            f"/console/webhooks/{self.hook['id']}": ["webhook.test", "Send a test"],
            "/console/workers": [worker, "w7", "of 8", "1.2.3"],
            f"/console/workers/{worker}": [self.held, "running"],
            "/console/throttles": ["openai", "one in", SHOWN],
            "/console/tenants": ["first", "Runs at once"],
            "/console/keys": ["admin", "operator", "you", SHOWN],
            "/console/audit": ["agent.put", "mine@2", key[:8]],
            f"/console/audit?actor={key}&action=agent.put": ["mine@1"],
        }


async def _unknown(world: World, db: Database) -> None:
    run = await world.call("POST", "/runs", agent="a", input="pay")
    run_id = decode("run", run["id"])
    await world.play.step(run_id, say(tools=["pay"]))
    owned = await world.play.claim(run_id)
    tool = make_tool("pay", EffectClass.WRITE, lambda ctx, i: i)
    runtime = await make_runtime(db, tools=[tool])
    (row,) = await sql(
        db, "SELECT to_jsonb(c) AS call FROM tool_calls c WHERE run_id = :r", r=run_id
    )
    scope: Any = _Scope(runtime.db, owned)
    ledger, call, attempt = Ledger(scope), PendingCall.from_row(row["call"]), uuid4()
    await ledger.intend(call, tool, attempt)
    assert await ledger.give_up(call, attempt, CallStatus.UNKNOWN, f"the process is gone {NASTY}")
    await world.play.settle(owned, ToolsUnknown((), (0,)))
    (world.effect,) = (await world.call("GET", "/effects"))["data"]


class _Scope:
    """What the ledger needs of a step."""

    def __init__(self, db: Any, run: Any) -> None:
        self.db, self.run, self.step = db, run, run.state.step + 1

    def key(self, index: int) -> dict[str, Any]:
        return {
            "tenant_id": self.run.tenant_id, "run_id": self.run.id, "step": self.step, "idx": index,
        }  # fmt: skip


async def _work(world: World, db: Database) -> None:
    """Make a worker with a run in its hands, and a run that is over in a session."""
    run = await world.call("POST", "/runs", agent="a", input=f"what is {NASTY}", title=NASTY)
    world.run, world.session = run["id"], run["session_id"]
    for result in (say(f"I look {NASTY}", tools=["look"]), ran(f"seen {NASTY}"), say(NASTY)):
        await world.play.step(decode("run", run["id"]), result)
    held = await world.call("POST", "/runs", agent="a", input="x")
    world.held = held["id"]
    world.worker = await make_worker(db, concurrency=8)
    await sql(db, "UPDATE workers SET name = 'w7', version = '1.2.3', held = 1")
    await world.play.claim(decode("run", held["id"]), world.worker)


async def _asked(world: World) -> None:
    run = await world.call("POST", "/runs", agent="a", input="pay")
    arguments = {"i": 0, "note": NASTY, "amount": {"cents": 990}}
    preview = {"kind": "tool", "text": f"@@ -1 +1 @@\n-balance 10\n+balance {NASTY}"}
    came = {"step": 1, "message": 2, "tainted": True, "started_by": run["created_by"]}
    call = asks(
        0,
        approver_roles=["approver", "admin"],
        arguments=json_codec.dumps_text(arguments),
        digest=digest("pay", arguments),
        shown={
            "risk": "high", "preview": preview, "rule": "payments", "reasons": [NASTY],
            "provenance": came,
        },
    )  # fmt: skip
    await waiting(world.play, call, run_id=decode("run", run["id"]))
    (world.approval,) = (await world.call("GET", "/approvals?status=pending"))["data"]


async def _built(world: World) -> None:
    for text in ("kind\nand brief", f"kind\nand {NASTY}"):
        await world.call(
            "POST", "/agents", name="mine", spec={"system": text, "description": NASTY}
        )
    await world.call(
        "POST", "/tools", name="fetch_it", description=f"Fetch. {NASTY}",
        http={"url": "http://x.test/"},
    )  # fmt: skip
    skill = {"description": NASTY, "prompt": NASTY}
    await world.call("POST", "/skills", name="careful", spec=skill)
    world.memory = await world.call("POST", "/memories", namespace="mine", text=f"It is {NASTY}")
    when = {"cron": "0 3 * * *", "time_zone": "UTC"}
    run = {"agent": "mine", "input": NASTY}
    await world.call("POST", "/schedules", name="nightly", when=when, run=run)
    await world.call("POST", "/schedules/nightly/trigger")
    url = "https://ops.test/hook"
    world.hook = await world.call("POST", "/webhooks", url=url, types=["run.failed"])
    await world.call("POST", f"/webhooks/{world.hook['id']}/test")
    await world.call("POST", "/api-keys", name=NASTY, role="viewer")


async def _failing(world: World, db: Database) -> None:
    await sql(
        db,
        "INSERT INTO tool_breakers (tenant_id, tool, state, failures, reason, until, opened_at) "
        "VALUES (:t, 'flaky', 'open', 5, :r, clock_timestamp() + interval '1 minute', "
        "clock_timestamp())",
        t=world.tenant.id,
        r=NASTY.replace("\x1b", ""),
    )
    await sql(
        db,
        "INSERT INTO throttles (scope, until, next_at, interval_s, code, reason, hits) VALUES "
        "('openai:gpt:abc', clock_timestamp() + interval '1 minute', clock_timestamp(), 2, '429', "
        ":r, 1)",
        r=NASTY.replace("\x1b", ""),
    )


PARTS: Final = ("work", "unknown", "asked", "built", "failing")


async def make_world(
    tenant: Tenant,
    play: Play,
    api: httpx.AsyncClient,
    db: Database,
    parts: Collection[str] = PARTS,
) -> World:
    """Make it, or some parts of it."""
    world = World(tenant, play, api)
    if "work" in parts:
        await _work(world, db)
    if "unknown" in parts:
        await _unknown(world, db)
    if "asked" in parts:
        await _asked(world)
    if "built" in parts:
        await _built(world)
    if "failing" in parts:
        await _failing(world, db)
    return world
