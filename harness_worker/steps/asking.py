"""Asking a model: the agent's own, or the next of its chain that can serve.

Every call of a step to a model goes through `ask`. It repairs the history for whoever is asked,
keeps to the throttles, tells the breakers, and says what it had to do instead. Nobody is asked
twice here: a failure that does not lead to the next model is raised, and the scheduler waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from harness_common.contracts.model import Capabilities, ChatRequest, ChatResult, Model, OnDelta
from harness_common.core import events as ev
from harness_common.core.context_step import OVERFLOW
from harness_common.core.errors import HarnessError, Limited, Permanent, Transient
from harness_common.core.events import Event
from harness_common.core.fallback import (
    CANNOT_SERVE,
    PATIENCE_S,
    goes_on,
    is_fault,
    model_key,
    most_hopeful,
    options_for,
)
from harness_common.core.guidance import Guidance
from harness_common.core.history import repaired
from harness_common.core.message import Json
from harness_common.core.values import replace
from harness_common.redaction import redactor
from harness_worker.steps.context import StepContext
from harness_worker.steps.sampling import sample
from harness_worker.tools.breakers import GO, Leave, Shut, seconds_until


@dataclass(frozen=True, slots=True)
class Asked:
    """An answer, who gave it, and what there is to tell of it."""

    answer: ChatResult
    name: str
    """`provider/model` as the agent names it."""
    capabilities: Capabilities
    """Of the model that answered."""
    guidance: Guidance
    restarts: int = 0
    """How many models before had begun to show an answer."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    name: str
    model: Model
    leave: Leave = GO
    why_not: dict[str, Json] | None = None
    """Why others go first; None when nothing speaks against it."""


Form = Callable[[ChatRequest, Capabilities], ChatRequest]
"""Puts a request into the form that fits what a model can do."""


async def ask(
    ctx: StepContext,
    request: ChatRequest,
    *,
    show: bool = True,
    form: Form | None = None,
    chain: Sequence[str] | None = None,
    memo: Mapping[str, Json] | None = None,
) -> Asked:
    """Ask the models of a chain (the agent's, if it is None), in order, until one answers.

    `request` is put into its `form` for each of them; `show` streams the answer to whoever watches;
    `memo` is as `sample` takes it. Raises what `Model.chat` raises, and `Limited` without a call
    while the provider is throttled.
    """
    models = ctx.spec.models if chain is None else tuple(chain)
    asking = _Asking(ctx, request, show, form, models, memo)
    try:
        return await asking.run()
    except HarnessError as error:
        if asking.shown > 1:  # so that the record tells how much may have been shown
            error.detail = {**error.detail, "restarts": asking.shown - 1}
        raise


def first_model(ctx: StepContext) -> Model:
    """Return the first model of the agent's chain that is configured here: its window is the one
    to keep to. Raises what the registry raises of the agent's own model when there is none.
    """
    missing: Permanent | None = None
    for name in ctx.spec.models:
        try:
            return ctx.runtime.models.get(name)
        except Permanent as error:
            if error.error_code not in CANNOT_SERVE:
                raise
            missing = missing or error
    assert missing is not None
    raise missing


class _Asking:
    """One question on its way along the chain."""

    def __init__(
        self,
        ctx: StepContext,
        request: ChatRequest,
        show: bool,
        form: Form | None,
        chain: tuple[str, ...],
        memo: Mapping[str, Json] | None,
    ) -> None:
        self._ctx = ctx
        self._request = request
        self._form = form
        self._show = show
        self._chain = chain
        self._memo = ctx.run.state.memo if memo is None else memo
        self._tried: list[dict[str, Json]] = []
        self._errors: list[HarnessError] = []
        self._hopeful: set[str] = set()
        """Models that cannot serve now and may do so soon."""
        self._events: list[Event] = []
        self._failures = ctx.run.state.failures
        self._most = ctx.spec.retry.max_attempts
        self.shown = 0
        """How many models have shown text."""

    async def run(self) -> Asked:
        later: list[_Candidate] = []
        for name in self._chain:
            if (model := self._model(name)) is None:
                continue
            one = await self._look(name, model)
            if one.why_not is not None:
                self._tried.append({"model": name, **one.why_not})
                self._hopeful.add(name)
                later.append(one)
                continue
            asked = await self._try(one, is_last=name == self._chain[-1] and not later)
            if asked is not None:
                return asked
        for one in later:  # nobody else can serve: what speaks against these may be over
            asked = await self._try(one, is_last=one is later[-1])
            if asked is not None:
                return asked
        raise most_hopeful(self._errors, self._failures, self._most)

    def _model(self, name: str) -> Model | None:
        """Return a model; None when it is not configured here."""
        try:
            return self._ctx.runtime.models.get(name)
        except Permanent as error:
            if error.error_code not in CANNOT_SERVE:
                raise
            self._failed(name, error)
            return None

    async def _try(self, one: _Candidate, *, is_last: bool) -> Asked | None:
        """Ask one model; None when the next one is to be asked. Raises what ends the question."""
        before = self.shown
        try:
            answer = await self._one(one, is_last=is_last)
        except (Limited, Transient, Permanent) as error:
            self._failed(one.name, error)
            opened = await self._tell_breaker(one, error)
            on = goes_on(error, self._failures, self._most) or self._is_too_long_for(one, error)
            if not (opened or on):
                raise
            return None
        await self._worked(one)
        return Asked(
            answer,
            one.name,
            one.model.capabilities,
            Guidance(events=(*self._events, *self._degraded(one.name))),
            before,
        )

    async def _look(self, name: str, model: Model) -> _Candidate:
        """See whether a model may be asked now: its breaker, and the pause of its provider."""
        if len(self._chain) == 1:
            return _Candidate(name, model)
        runtime, run = self._ctx.runtime, self._ctx.run
        wait_s = runtime.throttles.wait_s(model.scope, self._memo)
        if wait_s > PATIENCE_S:
            why = {"code": "THROTTLED", "message": f"rate limited for {wait_s:.0f} s more"}
            return _Candidate(name, model, why_not=why)
        limit_s = self._request.total_timeout_s
        leave = await runtime.breakers.leave(run.tenant_id, model_key(name), limit_s)
        if isinstance(leave, Shut):
            again_s = seconds_until(leave, runtime.clock.now())
            told = f"{leave.failures} calls failed lately; tried again in {again_s:.0f} s"
            return _Candidate(name, model, why_not={"code": "BREAKER_OPEN", "message": told})
        return _Candidate(name, model, leave)

    async def _one(self, one: _Candidate, *, is_last: bool) -> ChatResult:
        """Ask one model, within the throttle of its provider."""
        streams = self._show and one.model.capabilities.streaming
        on_delta = self._listener() if streams else None
        return await sample(
            self._ctx,
            one.model,
            self._request_for(one),
            on_delta,
            memo=self._memo,
            wants_slot=lambda error: is_last or not goes_on(error, 0, 1),
        )

    def _listener(self) -> OnDelta:
        """Return where the text of one model goes."""
        live, run_id, number = self._ctx.runtime.live, self._ctx.run.id, self._ctx.number

        shown, again = 0, self.shown

        async def on_delta(text: str) -> None:
            nonlocal shown
            if text:
                self.shown = again + 1
            live.delta(run_id, number, text, shown, again)
            shown += len(text)

        return on_delta

    def _request_for(self, one: _Candidate) -> ChatRequest:
        """Return the request as this model of this provider can be asked it."""
        provider, _, own = one.name.partition("/")
        request = self._request
        options = options_for(one.name, self._chain[0], request.options)
        request = replace(request, model=own, options=options)
        if self._form is not None:
            request = self._form(request, one.model.capabilities)
        return replace(request, messages=repaired(request.messages, provider, own))

    # ── what became of it ────────────────────────────────────────────────────────────────────────

    def _is_too_long_for(self, one: _Candidate, error: HarnessError) -> bool:
        """Tell whether only a stand-in's window is too short, while one before it may serve again
        soon: as long as attempts are left, that one is waited for, rather than the conversation cut
        down for the stand-in.
        """
        before = self._chain[: self._chain.index(one.name)]
        waits = self._failures + 1 < self._most and not self._hopeful.isdisjoint(before)
        return waits and error.error_code == OVERFLOW

    def _failed(self, name: str, error: HarnessError) -> None:
        self._errors.append(error)
        if isinstance(error, Permanent):
            self._hopeful.discard(name)
        else:
            self._hopeful.add(name)
        said = redactor.clean(self._ctx.run.tenant_id, error.message)[:300]
        self._tried.append({"model": name, "code": error.error_code, "message": said})

    async def _tell_breaker(self, one: _Candidate, error: HarnessError) -> bool:
        """Count a fault; True if that opened the model's breaker."""
        runtime, run = self._ctx.runtime, self._ctx.run
        if error.error_code == "THROTTLED" or (len(self._chain) == 1 and _is_scripted(one)):
            return False
        if not is_fault(error):
            await self._worked(one)
            return False
        key, why = model_key(one.name), f"{error.error_code}: {error.message}"
        why = redactor.clean(run.tenant_id, why)
        shut = await runtime.breakers.failed(run.tenant_id, key, why, one.leave)
        if shut is None:
            return False
        told: dict[str, Json] = {
            "model": one.name,
            "failures": shut.failures,
            "until": shut.until.isoformat(),
            "reason": why[:300],
        }
        self._events.append(Event(ev.MODEL_BREAKER_OPENED, told, self._ctx.number))
        return True

    async def _worked(self, one: _Candidate) -> None:
        runtime, run = self._ctx.runtime, self._ctx.run
        if await runtime.breakers.worked(run.tenant_id, model_key(one.name), one.leave):
            told: dict[str, Json] = {"model": one.name}
            self._events.append(Event(ev.MODEL_BREAKER_CLOSED, told, self._ctx.number))

    def _degraded(self, name: str) -> tuple[Event, ...]:
        """Tell that another model than the agent's own answered, and why."""
        if name == self._chain[0]:
            return ()
        told: dict[str, Json] = {
            "model": self._chain[0],
            "served_by": name,
            "why": [dict(one) for one in self._tried],
        }
        return (Event(ev.MODEL_DEGRADED, told, self._ctx.number),)


def _is_scripted(one: _Candidate) -> bool:
    return one.model.capabilities.scripted
