"""What a worker takes of its plugins: their tools among its own, their model providers.

What of them a setting names (embeddings, blobs) is found there; guardrails are asked for by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from harness_common.core.errors import Invalid
from harness_common.plugins import LEFT_OUT, Loaded
from harness_worker.models.registry import PROVIDERS
from harness_worker.tools.registry import ToolRegistry

log = structlog.get_logger()


def adopt(found: Sequence[Loaded], registry: ToolRegistry) -> tuple[Loaded, ...]:
    """Add the tools of each plugin to the worker's registry; return the plugins, those with a fault
    as broken: with a name that is built in, or a tool that no provider would accept.
    """
    plugins = tuple(_adopted(one, registry) for one in found)
    for one in plugins:
        about = {"plugin": one.name, "package": one.package}
        if one.plugin is not None:
            log.info("plugin.loaded", **about, **one.plugin.parts())
        elif one.problem != LEFT_OUT:
            log.error("plugin.broken", **about, problem=one.problem)
    return plugins


def _adopted(one: Loaded, registry: ToolRegistry) -> Loaded:
    if one.plugin is None:
        return one
    shadows = [name for name in one.plugin.providers if name in PROVIDERS]
    if shadows:
        return one.broken(f"the model provider {shadows[0]!r} is built in; give it another name")
    added: list[str] = []
    try:
        for tool in one.plugin.tools:
            registry.add(tool)
            added.append(tool.spec.name)
    except Invalid as error:
        for name in added:
            registry.remove(name)
        return one.broken(error.message)
    return one


def merged(plugins: Sequence[Loaded], kind: str) -> Mapping[str, Callable[..., Any]]:
    """Return what all plugins bring of a kind (a field of `Plugin`), by name."""
    return {
        name: factory
        for one in plugins
        if one.plugin is not None
        for name, factory in getattr(one.plugin, kind).items()
    }


def told(plugins: Sequence[Loaded]) -> list[dict[str, Any]]:
    """Describe plugins for the row of a worker; those that were left out are not told."""
    return [one.told() for one in plugins if one.problem != LEFT_OUT]
