"""Finds what an operator has registered: `module:attribute`, imported when it is first run."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from harness_common.core.errors import Permanent, Transient


class NotRegistered(Transient):
    """This worker has no such object: another may."""

    code = "NOT_REGISTERED"


def load(name: str, registered: Mapping[str, str], setting: str) -> Any:  # noqa: ANN401
    """Return the object under `name`. Raises `NotRegistered`, and `Permanent` when what is
    registered cannot be had.
    """
    target = registered.get(name)
    if target is None:
        raise NotRegistered(
            f"this worker has nothing registered as {name!r}; register it as module:attribute in "
            f"{setting}",
            value=name,
        )
    module, colon, attribute = target.partition(":")
    if not colon or not module or not attribute:
        raise Permanent(
            f"{setting} has {target!r} for {name!r}; write module:attribute", code="BAD_TARGET"
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise Permanent(
            f"{target!r} cannot be imported: {error}. Check {setting} and the worker's Python path",
            code="BAD_TARGET",
        ) from error
