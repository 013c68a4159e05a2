"""What a model costs: the built-in table, and the operator's own prices over it.

Used by the providers to fill `ChatResult.cost_usd`, and by whoever wants to estimate a cost before
a call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness_common.contracts.model import Usage
from harness_common.core.errors import Invalid

_DATED: Final = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|\d{8})$")
_SCRIPTED: Final = "scripted/"


Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Rates(BaseModel):
    """What a million tokens cost, in USD."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: Usd
    output: Usd
    cached_input: Usd | None = None
    """Input that was read from the provider's cache; None: it costs as much as any."""
    cache_write: Usd | None = None
    """Input that was written to the cache; None: the same."""
    cache_write_1h: Usd | None = None
    """Input that was written to be kept for an hour; None: as `cache_write`."""

    def cost_usd(self, usage: Usage) -> float:
        """Return what a call with these tokens costs."""
        cached = min(usage.cached_input_tokens, usage.input_tokens)
        written = min(usage.cache_write_tokens, usage.input_tokens - cached)
        long = min(usage.cache_write_1h_tokens, written)
        write = self.input if self.cache_write is None else self.cache_write
        total = (
            (usage.input_tokens - cached - written) * self.input
            + cached * (self.input if self.cached_input is None else self.cached_input)
            + (written - long) * write
            + long * (write if self.cache_write_1h is None else self.cache_write_1h)
            + usage.output_tokens * self.output
        )
        return total / 1_000_000


class LongRates(Rates):
    """What a call costs whose whole input is longer than `above_tokens`, its output too."""

    above_tokens: Annotated[int, Field(ge=1)]


class Price(Rates):
    """The prices of one model, and where they were read and when."""

    long: LongRates | None = None
    source: str
    as_of: str

    def cost_usd(self, usage: Usage) -> float:
        """Return what a call with these tokens costs."""
        if self.long is not None and usage.input_tokens > self.long.above_tokens:
            return self.long.cost_usd(usage)
        return super().cost_usd(usage)


class _File(BaseModel):
    models: dict[str, Price]


class PriceTable:
    """Prices by `provider/model`."""

    __slots__ = ("_prices",)

    def __init__(self, prices: Mapping[str, Price]) -> None:
        self._prices = dict(prices)

    def price(self, name: str) -> Price | None:
        """Return the price of `provider/model`, also of a dated version of it; None when it is not
        known.
        """
        return self._prices.get(name) or self._prices.get(_DATED.sub("", name))

    def cost_usd(self, name: str, usage: Usage) -> float | None:
        """Return what a call cost; 0 for the scripted model, None when the price is not known."""
        if name.startswith(_SCRIPTED):
            return 0.0
        price = self.price(name)
        return None if price is None else price.cost_usd(usage)


def load_prices(own: Path | None = None) -> PriceTable:
    """Read the built-in table, with the entries of the file `own` added or put in place of ours.

    Raises `Invalid` when that file cannot be read or has another form than `prices.json`.
    """
    built_in = files("harness_worker.models").joinpath("prices.json").read_bytes()
    prices = _File.model_validate(orjson.loads(built_in)).models
    if own is None:
        return PriceTable(prices)
    try:
        mine = _File.model_validate(orjson.loads(own.read_bytes())).models
    except (OSError, ValidationError, orjson.JSONDecodeError) as error:
        raise Invalid(
            f"HARNESS_MODEL__PRICES names {own}, which is not a price file: {error}",
            field="model.prices",
            value=str(own),
        ) from None
    return PriceTable({**prices, **mine})
