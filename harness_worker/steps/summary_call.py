"""The calls of a compaction to the model that summarises, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from harness_common.contracts.model import ChatRequest, Model
from harness_common.core.budget import FREE, Spent, require_left, with_spent
from harness_common.core.errors import HarnessError
from harness_common.core.message import user
from harness_common.core.step import Compacted
from harness_common.core.values import replace
from harness_worker.context.summarise import Said
from harness_worker.steps.context import StepContext
from harness_worker.steps.sampling import sample

_OF_STEPS: Final = frozenset(
    ("script", "thinking", "tool_choice", "parallel_tool_calls",
     "response_format", "json_schema", "structured_outputs", "text")
)  # fmt: skip
"""Options that make sense for the agent's own answers alone. Without tools, or with less room than
Anthropic's reasoning is to take, they are answered with 400; a form is not that of a summary.
"""


@dataclass(slots=True)
class SummaryCalls:
    """Asks for summaries within one step."""

    ctx: StepContext
    summary_tokens: int
    answered: str | None = None
    """The model that answered, as its provider names it; None as long as nobody was asked."""
    spent: Spent = FREE
    priced: bool = True

    @property
    def name(self) -> str:
        """The model that is asked: a cheaper one if the agent declares it."""
        return self.ctx.spec.context.summary_model or self.ctx.spec.model

    @property
    def is_own(self) -> bool:
        """Tell whether it is the agent's own model."""
        return self.name == self.ctx.spec.model

    def model(self) -> Model:
        """Return the model; raises what the registry raises."""
        return self.ctx.runtime.models.get(self.name)

    def most_tokens(self) -> int:
        """Return how long an answer may be: a model that thinks first needs room for that as well,
        as much as the agent gives it for any answer. Raises what the registry raises.
        """
        thinks = self.model().capabilities.reasoning
        return self.summary_tokens + (self.ctx.spec.max_output_tokens if thinks else 0)

    async def ask(self, system: str, question: str) -> Said:
        """Ask for one summary; raises what `Model.chat` raises, and `Permanent` when the run has no
        budget left for it.
        """
        spec, state = self.ctx.spec, self.ctx.run.state
        require_left(state.limits, state.spent + self.spent)
        options = {k: v for k, v in spec.model_options.items() if k not in _OF_STEPS}
        request = ChatRequest(
            model=self.name.partition("/")[2],
            messages=(user(question),),
            system=system,
            max_tokens=self.most_tokens(),
            first_token_timeout_s=spec.first_token_timeout_s,
            total_timeout_s=spec.model_timeout_s,
            options=options if self.is_own else {},
            step=self.ctx.number,
        )
        answer = await sample(self.ctx, self.model(), request)
        self.answered = answer.model
        used = answer.usage
        self.spent += Spent(used.input_tokens, used.output_tokens, answer.cost_usd or 0.0)
        self.priced = self.priced and answer.cost_usd is not None
        return Said(answer.message.text(), answer.finish == "length")

    def charge(self, error: HarnessError) -> None:
        """Put on an error that ends the attempt what the calls before it cost."""
        error.detail = with_spent(error.detail, self.spent)

    def charged(self, result: Compacted) -> Compacted:
        """Return the result with what the calls cost."""
        return replace(
            result,
            model=self.answered,
            input_tokens=self.spent.input_tokens,
            output_tokens=self.spent.output_tokens,
            cost_usd=self.spent.cost_usd,
            priced=self.priced,
        )
