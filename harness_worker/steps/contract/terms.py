"""What holds for the answer of one model step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness_common.contracts.contract import ContractSpec
from harness_common.contracts.guardrails import PluginRail
from harness_common.contracts.model import Capabilities
from harness_common.contracts.tool import EffectClass, ToolSpec
from harness_common.core.doubt import CONTRACT
from harness_common.core.message import Json
from harness_common.redaction import redactor
from harness_worker.models.redact import blot
from harness_worker.steps.context import StepContext
from harness_worker.steps.guardrails import blotted


@dataclass(frozen=True, slots=True)
class Terms:
    """The contract of one step."""

    spec: ContractSpec
    tools: Mapping[str, ToolSpec]
    """Those that the model is shown."""
    step: int
    output_schema: Json = None
    hidden: frozenset[str] = frozenset()
    """Tools of the agent that the model is not shown now: their names mean no other tool."""
    by_actions: bool = False
    """Whether the model asks for tools by the action schema."""
    answering: bool = False
    """Whether the model said that its answer comes next."""
    is_last: bool = False
    """Whether the run may take no answer after this one."""
    memo: Mapping[str, Json] | None = None
    clean: Callable[[str], str] = str
    """Blots secrets, and what guardrails refuse, out of what is put on record."""
    guarded: bool = False
    """Whether answers are looked at by a plugin: what was said is not quoted then, since nobody
    else knows what of it may be.
    """

    @property
    def reasks(self) -> int:
        """Return how often the model was asked again in a row."""
        return int((self.memo or {}).get("reasks", 0))

    @property
    def writes(self) -> frozenset[str]:
        """Return the tools that change something."""
        return frozenset(n for n, t in self.tools.items() if t.effect is not EffectClass.READ)


def terms_of(ctx: StepContext, can: Capabilities, tools: Sequence[ToolSpec]) -> Terms:
    """Read what holds in this step."""
    spec, memo = ctx.spec.contract, ctx.run.state.memo.get(CONTRACT)
    tenant_id, rails = ctx.run.tenant_id, ctx.spec.guardrails.output
    asks_by_text = spec.actions == "always" or not can.tools
    answering = bool(memo and memo.get("answering"))
    return Terms(
        spec=spec,
        tools={t.name: t for t in tools},
        step=ctx.number,
        output_schema=ctx.spec.output_schema,
        hidden=frozenset(ctx.spec.tools) - {t.name for t in tools},
        by_actions=asks_by_text and bool(tools) and not answering,
        answering=answering,
        is_last=ctx.is_last_answer,
        memo=memo,
        clean=lambda text: blotted(rails, blot(redactor.clean(tenant_id, text))),
        guarded=any(isinstance(rail, PluginRail) for rail in rails),
    )
