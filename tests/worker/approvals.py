"""A worker, a scheduler and people around one run whose calls need approval."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from harness_common.commands import Approver, Decide, decide_approval
from harness_common.contracts.tool import EffectClass, Tool, ToolSpec
from harness_common.core.policy import Decision, Verdict
from harness_common.core.run import Status
from harness_common.core.step import StepResult
from harness_common.settings import ToolSettings
from harness_common.store.audit import Actor
from harness_common.store.connection import Row
from harness_common.store.db import Database
from harness_common.store.policies import TENANT, put_policy
from harness_common.store.writes import Applied
from harness_worker.runtime import Runtime
from harness_worker.scheduler.admit import AdmitLoop
from harness_worker.scheduler.looper import Shared
from harness_worker.scheduler.service import tick
from harness_worker.scheduler.wake import WakeLoop
from harness_worker.steps import tools as tools_step
from harness_worker.tools.call import ToolScope
from harness_worker.tools.gate import Gate
from tests.store.play import Play, say, sql
from tests.worker.runtime import claim_tools_step, make_runtime, make_shared

SCHEMA = {
    "type": "object",
    "properties": {"i": {"type": "integer", "maximum": 100}},
    "required": ["i"],
}


@dataclass
class Made:
    """What tools did: outside the database."""

    calls: list[tuple[str, Any]] = field(default_factory=list)

    def tool(
        self,
        name: str = "pay",
        effect: EffectClass = EffectClass.WRITE,
        *,
        version: str = "1",
        risk: Any = "high",
        meta: dict[str, Any] | None = None,
    ) -> Tool:
        """Make a tool that notes each call of it."""

        async def fn(ctx: Any, i: int) -> str:
            self.calls.append((name, i))
            return f"{name} {i}"

        spec = ToolSpec(name, "A tool of a test.", SCHEMA, effect, version=version, risk=risk)
        return Tool(spec, fn, meta or {})


RISKY = (
    "rules: [{name: risky, match: {risk_at_least: high}, then: ask, "
    "reason: the risk of pay is high}]"
)


class AskGate(Gate):
    """Policy of a test: what `rule` says of the arguments."""

    def __init__(self, scope: ToolScope, rule: Any) -> None:
        super().__init__(scope)
        self._rule = rule

    async def decide(self, call: Any, tool: Tool) -> Decision:
        decision = self._rule(call.arguments)
        assert isinstance(decision, Decision)
        return decision


def ask(**more: Any) -> Decision:
    """Build a decision to ask."""
    return Decision(Verdict.ASK, **more)


@dataclass
class Desk:
    """One run, and everybody around it."""

    play: Play
    runtime: Runtime
    shared: Shared
    run_id: UUID

    @staticmethod
    async def open(play: Play, db: Database, tools: list[Tool], calls: list[str]) -> Desk:
        """Start a run whose model asked for these tools; calls of high risk need approval."""
        runtime = await make_runtime(db, tools=tools)
        runtime.settings = runtime.settings.model_copy(
            update={"tool": ToolSettings(approval_expires_s=3600)}
        )
        await put_policy(db, play.tenant_id, TENANT, RISKY, Actor("test"))
        run_id = await play.start(created_by="key_ann")
        await play.step(run_id, say(tools=calls))
        return Desk(play, runtime, await make_shared(db), run_id)

    async def work(self) -> Applied:
        """Run and commit one tools step, as a worker does."""
        ctx = await claim_tools_step(self.runtime, self.play, self.run_id)
        return await self.play.settle(ctx.run, await tools_step.run(ctx))

    async def attempt(self) -> tuple[Any, StepResult]:
        """Run a tools step and do not commit it."""
        ctx = await claim_tools_step(self.runtime, self.play, self.run_id)
        return ctx, await tools_step.run(ctx)

    async def rows(self, status: str | None = None) -> list[Row]:
        """Return the run's approvals, oldest first."""
        found = await sql(
            self.play.db, "SELECT * FROM approvals WHERE run_id = :r ORDER BY idx, id",
            r=self.run_id,
        )  # fmt: skip
        return [row for row in found if status is None or row["status"] == status]

    async def decide(
        self, row: Row, verdict: Any = "approved", *, by: str = "key_bob", role: str = "approver",
        **more: Any,
    ) -> Row:  # fmt: skip
        """Decide as somebody."""
        said = Decide(verdict, more.pop("digest", row["digest"]), **more)
        approver = Approver(Actor(by), role)
        return (
            await decide_approval(
                self.play.db, self.play.tenant_id, row["id"], said, approver=approver
            )
        )[0]

    async def status(self) -> Status:
        return (await self.play.read(self.run_id)).state.status

    async def admit(self) -> None:
        """Let the scheduler admit the run."""
        for _ in range(20):
            await tick(self.shared, [WakeLoop(self.shared), AdmitLoop(self.shared)])
            if await self.status() is Status.RUNNING:
                return
        raise AssertionError(f"the run is {await self.status()}")

    async def expire(self, row: Row) -> None:
        """Let the time of one approval pass."""
        await sql(
            self.play.db,
            "UPDATE approvals SET expires_at = clock_timestamp() - interval '1 second' "
            "WHERE id = :i",
            i=row["id"],
        )
        state = (await self.play.read(self.run_id)).state
        past = "2020-01-01T00:00:00+00:00"
        calls = [
            {**c, "until": past} if c["index"] == row["idx"] else c for c in state.waiting["calls"]
        ]
        await sql(
            self.play.db,
            "UPDATE runs SET wake_at = clock_timestamp(), not_before = cast(:p AS timestamptz), "
            "waiting = jsonb_set(waiting, '{calls}', cast(:c AS jsonb)) WHERE id = :r",
            r=self.run_id, p=past, c=_json(calls),
        )  # fmt: skip

    async def told(self) -> list[tuple[str, str | None, str]]:
        """Return what the model was told of each call: status, error and text."""
        calls = await self.play.calls(self.run_id)
        return [(c["status"], c["error_type"], c["result"]) for c in calls]


def _json(value: Any) -> str:
    from harness_common.store import json_codec

    return json_codec.dumps_text(value)
