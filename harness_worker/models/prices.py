"""What a model costs: the built-in table, and the operator's own prices over it.

Used by the providers to fill `ChatResult.cost_usd`, and by whoever wants to estimate a cost before
a call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Final

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness_common.contracts.model import Usage
from harness_common.core.errors import Invalid

_DATED: Final = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|\d{8})$")
_SCRIPTED: Final = "scripted/"


class Price(BaseModel):
    """Prices of one model in USD per million tokens, and where they were read and when."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: float = Field(ge=0, allow_inf_nan=False)
    output: float = Field(ge=0, allow_inf_nan=False)
    cached_input: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """None: cached input costs as much as any."""
    source: str
    as_of: str


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
        if price is None:
            return None
        cached = min(usage.cached_input_tokens, usage.input_tokens)
        cached_price = price.input if price.cached_input is None else price.cached_input
        total = (
            (usage.input_tokens - cached) * price.input
            + cached * cached_price
            + usage.output_tokens * price.output
        )
        return total / 1_000_000


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
