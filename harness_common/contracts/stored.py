"""Reading a definition that some process accepted: perhaps one of a newer version than ours.

While a new version is rolled out, its API may accept fields that an older worker does not know.
Such a run is not failed: `NewerVersion` makes the worker give it back, for one that does know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError

from harness_common.core.errors import NewerVersion

_UNKNOWN_HERE: Final = frozenset(
    {"extra_forbidden", "literal_error", "enum", "union_tag_invalid", "union_tag_not_found"}
)
M = TypeVar("M", bound=BaseModel)


def read_stored(model: type[M], value: Mapping[str, Any], what: str) -> M:
    """Read a stored definition.

    Raises `NewerVersion` when all that is wrong with it are names that this version does not know,
    and pydantic's `ValidationError` otherwise.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        if not all(fault["type"] in _UNKNOWN_HERE for fault in faults):
            raise
        where = ", ".join(".".join(map(str, fault["loc"])) for fault in faults)[:200]
        raise NewerVersion(
            f"{what} has {where}, which this version of Harness does not know"
        ) from error
