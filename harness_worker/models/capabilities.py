"""What models accept: the built-in table, and the operator's own entries over it.

Used by the providers, which build a request from it and never from a guess, and by whoever has to
know how long a model's window is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from harness_common.contracts.model import Capabilities, ToolChoiceKind
from harness_common.core.errors import Invalid

_SAME_MODELS: Final = {"openai-responses": "openai"}
"""A provider whose models are those of another, whose entries count where it has none."""


class Entry(BaseModel):
    """What is said of one model, or of all whose names begin so; the rest stays as it is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    context_window_tokens: Annotated[int, Field(ge=256)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: bool | None = None
    tools: bool | None = None
    tool_choice: ToolChoiceKind | None = None
    streaming: bool | None = None
    json_mode: bool | None = None
    reasoning: bool | None = None
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] | None = None


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    models: dict[str, Entry]
    note: str = ""


class CapabilityTable:
    """Layers of entries by `provider/model`; a later one changes what an earlier one says."""

    __slots__ = ("_layers",)

    def __init__(self, layers: Sequence[Mapping[str, Entry]]) -> None:
        self._layers = tuple(layers)

    def of(self, name: str, default: Capabilities | None = None) -> Capabilities:
        """Return what `provider/model` accepts; `default` holds for what no entry says."""
        found = default or Capabilities()
        provider, _, model = name.partition("/")
        same = _SAME_MODELS.get(provider)
        for layer in self._layers:
            for known_as in ([f"{same}/{model}"] if same else []) + [name]:
                if said := _said(layer, known_as):
                    found = replace(found, **said)
        return found


def _said(entries: Mapping[str, Entry], name: str) -> dict[str, Any]:
    entry = entries.get(name)
    if entry is None:
        fitting = [k for k in entries if k.endswith("*") and name.startswith(k[:-1])]
        entry = entries[max(fitting, key=len)] if fitting else None
    return entry.model_dump(exclude_none=True) if entry else {}


@cache
def built_in() -> CapabilityTable:
    """Return the built-in table."""
    return CapabilityTable([_built_in_entries()])


def load_capabilities(own: Path | None = None) -> CapabilityTable:
    """Return the built-in table with the entries of the file `own` over it.

    Raises `Invalid` when that file cannot be read or has another form than `capabilities.json`.
    """
    if own is None:
        return built_in()
    try:
        mine = _File.model_validate(orjson.loads(own.read_bytes())).models
    except (OSError, ValidationError, orjson.JSONDecodeError) as error:
        raise Invalid(
            f"HARNESS_MODEL__CAPABILITIES names {own}, which is not a file of capabilities: "
            f"{error}",
            field="model.capabilities",
            value=str(own),
        ) from None
    return CapabilityTable([_built_in_entries(), mine])


def _built_in_entries() -> dict[str, Entry]:
    raw = files("harness_worker.models").joinpath("capabilities.json").read_bytes()
    return _File.model_validate(orjson.loads(raw)).models
