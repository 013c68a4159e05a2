"""Guardrails that come as functions of plugins (`contracts.plugin`): only what the operator has
installed can be named; a tenant cannot bring code by this way.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Final

from harness_common.contracts.guardrails import RailFunction, RailVerdict
from harness_common.core.errors import Permanent, Transient
from harness_common.core.guardrail import Where
from harness_worker.plugins import merged
from harness_worker.steps.context import StepContext

_TIMEOUT_S: Final = 10.0


class RailBroken(Permanent):
    """A guardrail function raised: nothing passes a rail that does not work."""

    code = "GUARDRAIL_BROKEN"


async def ask_plugin(ctx: StepContext, name: str, text: str, where: Where) -> RailVerdict:
    """Ask a function by its name.

    Raises `Transient` when this worker does not have it (another may) or it takes too long,
    `Permanent` when it breaks.
    """
    function = _of_plugins(ctx, name)
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            if inspect.iscoroutinefunction(function):
                verdict = await function(text, where)
            else:
                verdict = await ctx.runtime.threads.run(lambda: function(text, where))
    except TimeoutError as error:
        raise Transient(
            f"the guardrail {name!r} gave no verdict within {_TIMEOUT_S:g} s",
            code="GUARDRAIL_TIMEOUT",
        ) from error
    except Exception as error:
        raise RailBroken(
            f"the guardrail {name!r} raised {type(error).__name__}: {error}"
        ) from error
    if not isinstance(verdict, RailVerdict):
        kind = type(verdict).__name__
        raise RailBroken(f"the guardrail {name!r} returned a {kind}, not a RailVerdict")
    return verdict


def _of_plugins(ctx: StepContext, name: str) -> RailFunction:
    function: RailFunction | None = merged(ctx.runtime.plugins, "guardrails").get(name)
    if function is not None:
        return function
    raise Transient(
        f"this worker has no guardrail {name!r}; install a plugin that brings it on all workers of "
        "the agent's queue (see `harness plugins`)",
        code="GUARDRAIL_NOT_HERE",
        guardrail=name,
    )
