"""Which failures of a model send a call on to the next model of an agent's chain. Pure.

The rule: the next model is asked when this one cannot serve now, never when it was the request that
was refused. A bad request, an overlong one or a refusal gets the same answer elsewhere, or worse,
another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from harness_common.core.errors import HarnessError, Limited, Permanent, Transient
from harness_common.core.message import Json

PATIENCE_S: Final = 10.0
"""A rate limit that ends so soon is waited for; the next model is another one, after all."""
TRIES: Final = 2
"""So often a step asks a model that fails for a transient reason before it asks the next."""
CANNOT_SERVE: Final = frozenset(
    {
        *("MODEL_NOT_CONFIGURED", "MODEL_AUTH", "MODEL_NOT_FOUND"),
        *("INSUFFICIENT_QUOTA", "MODEL_NO_RETRY"),
    }
)
"""Permanent failures that say nothing against the request."""
_OVERLOADED: Final = frozenset({503, 529})
_OF_EVERY_PROVIDER: Final = frozenset({"attempt", "script"})
"""Model options that a model of another provider than the agent's own is given too."""
MODEL_PREFIX: Final = "model:"
"""What begins the names of models among those of tools, which have no colon."""


def model_key(name: str) -> str:
    """Return the name by which the breaker of the model `provider/model` is kept.

    It is the tenant's own, like those of its tools: nobody's timeouts close a model to others.
    """
    return MODEL_PREFIX + name


def options_for(name: str, whose: str, options: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return those of the options of the model `whose` that the model `name` may be given."""
    if name.partition("/")[0] == whose.partition("/")[0]:
        return options
    return {k: v for k, v in options.items() if k in _OF_EVERY_PROVIDER}


def is_fault(error: HarnessError) -> bool:
    """Tell whether a call failed because the model cannot serve: that counts against its breaker.

    A rate limit is no fault: it is ours to keep. Neither is a missing setting: nobody was asked.
    """
    match error:
        case Limited():
            return error.detail.get("status") in _OVERLOADED
        case Transient():
            return True
        case _:
            return error.error_code in CANNOT_SERVE - {"MODEL_NOT_CONFIGURED"}


def goes_on(error: HarnessError, failures: int, max_attempts: int) -> bool:
    """Tell whether the next model is asked after this failure.

    `failures` counts the failed attempts at this step before this one.
    """
    match error:
        case Limited():
            wait_s = error.retry_after_s
            return is_fault(error) or (wait_s is not None and wait_s > PATIENCE_S)
        case Transient():
            return failures + 1 >= min(TRIES, max_attempts)
        case Permanent():
            return error.error_code in CANNOT_SERVE
        case _:
            return False


def most_hopeful(errors: Sequence[HarnessError], failures: int, max_attempts: int) -> HarnessError:
    """Choose what to raise when no model of the chain answered: what leaves the run most hope.

    Trying again soon, as long as attempts are left; else the limit that ends first; else what the
    first model said.
    """
    transient = [e for e in errors if isinstance(e, Transient)]
    limits = [e for e in errors if isinstance(e, Limited)]
    if transient and (failures + 1 < max_attempts or not limits):
        return transient[0]
    if limits:
        return min(limits, key=lambda e: e.retry_after_s or 0.0)
    return errors[0]
