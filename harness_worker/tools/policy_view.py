"""What policy knows in one step of a run, frozen at its start.

Made by `steps.tools` before any call, and by `steps.model` where taint may hide tools.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from harness_common.contracts.tool import Tool, ToolSpec
from harness_common.core.message import Json, Message
from harness_common.core.policy import Facts, offers
from harness_common.core.run import RunState
from harness_common.core.taint import UNTRUSTED, marks_in
from harness_common.store.db import Database
from harness_common.store.policies import PolicyCache, RunFacts
from harness_common.store.rows import StoredRun

UNREVIEWED: Final = "unreviewed"
"""The key of `Tool.meta` of a tool whose description nobody of the tenant has looked at: the model
reads it, so it is untrusted content.
"""


@dataclass(frozen=True, slots=True)
class PolicyView:
    """What policy knows in one step, frozen at its start."""

    facts: RunFacts = field(default_factory=RunFacts)
    agent: str = ""
    marks: frozenset[str] = frozenset()
    """What the run holds: its own, and what it took over from its session."""
    left_usd: float | None = None
    timeout_max_s: float | None = None

    def about(
        self,
        spec: ToolSpec,
        arguments: Json,
        *,
        beside: Iterable[str] = (),
        spoken_for_usd: float = 0.0,
        recheck: bool = False,
    ) -> Facts:
        """Put together the facts of one call."""
        known, left_usd = self.facts, self.left_usd
        return Facts(
            tool=spec.name,
            effect=str(spec.effect),
            tool_version=spec.version,
            risk=spec.risk,
            outbound=spec.outbound,
            reads_private=spec.reads_private,
            untrusted_output=spec.untrusted_output or known.policies.is_untrusted(spec.name),
            tags=tuple(sorted(spec.permission_tags)),
            timeout_s=spec.limit_s,
            timeout_max_s=self.timeout_max_s,
            cost_estimate_usd=spec.cost_estimate_usd,
            budget_left_usd=None if left_usd is None else left_usd - spoken_for_usd,
            principal=known.principal,
            role=known.role,
            agent=self.agent,
            marks=tuple(sorted(self.marks)),
            beside=tuple(sorted(beside)),
            arguments=arguments,
            recheck=recheck,
        )

    def about_old(self, row: Mapping[str, Json], arguments: Json) -> Facts:
        """Put together the facts of a recorded call whose tool this worker does not have."""
        known, stored = self.facts, row.get("policy") or {}
        old = (
            Facts.from_json(stored["facts"], arguments)
            if stored.get("facts")
            else Facts(tool=row["name"], effect=row["effect"] or "read")
        )
        return replace(
            old,
            principal=known.principal,
            role=known.role,
            agent=self.agent,
            marks=tuple(sorted(self.marks)),
            arguments=arguments,
            recheck=True,
        )

    def offered(self, specs: Sequence[ToolSpec]) -> list[ToolSpec]:
        """Return the tools that the model is shown."""
        policies = self.facts.policies
        return [spec for spec in specs if offers(self.about(spec, None), policies)]


async def view_policy(
    db: Database,
    cache: PolicyCache,
    run: StoredRun,
    messages: Iterable[Message],
    tools: Iterable[Tool],
    timeout_max_s: float | None = None,
) -> PolicyView:
    """Read what policy needs to know for one step of a run."""
    facts = await cache.facts(db, run)
    marks = held_marks(run.state, messages, tools) | facts.earlier_marks
    own = run.state.limits.max_cost_usd
    budgets = [facts.left_usd, None if own is None else own - run.state.cost_usd]
    left_usd = min((usd for usd in budgets if usd is not None), default=None)
    return PolicyView(facts, run.acting.name, marks, left_usd, timeout_max_s)


def held_marks(
    state: RunState, messages: Iterable[Message], tools: Iterable[Tool]
) -> frozenset[str]:
    """Return what a run holds by its memo, the conversation and the tools that it is shown."""
    marks = marks_in(state.memo)
    if UNTRUSTED in marks:
        return marks
    tainted = any(m.trust == "untrusted" for m in messages) or any(
        tool.meta.get(UNREVIEWED) for tool in tools
    )
    return marks | {UNTRUSTED} if tainted else marks
