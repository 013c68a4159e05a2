"""Which environment variables the processes know: what a deployment sets has to be one of them."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import BaseModel

from harness_common.settings import _NOT_SETTINGS, Settings


def known_variables() -> set[str]:
    """List every variable of the settings."""
    found = set(_NOT_SETTINGS)
    for name, field in Settings.model_fields.items():
        group = field.annotation
        if isinstance(group, type) and issubclass(group, BaseModel):
            found |= {f"HARNESS_{name}__{inner}".upper() for inner in group.model_fields}
        else:
            found.add(f"HARNESS_{name}".upper())
    return found


def unknown_variables(names: Iterable[str]) -> list[str]:
    """List those that begin as ours do and are none."""
    return sorted(n for n in names if n.startswith("HARNESS_") and n not in known_variables())
