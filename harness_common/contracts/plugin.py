"""What a plugin brings: an installed Python package that says so by an entry point.

    [project.entry-points."harness.plugins"]
    acme = "acme_harness:plugin"

    plugin = Plugin(tools=(lookup,), providers={"acme": make_model})

A plugin is code of the operator: it runs in workers, with all that they may do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from harness_common.contracts.blob import Blobs
from harness_common.contracts.embeddings import Embedder
from harness_common.contracts.model import Model
from harness_common.contracts.skill import SkillSpec
from harness_common.contracts.tool import Tool

GROUP: Final = "harness.plugins"


@dataclass(frozen=True, slots=True)
class Plugin:
    """The parts that a package brings, each by the name that settings and agents use for it."""

    tools: tuple[Tool, ...] = ()
    """Made by `harness_worker.sdk.tool`."""
    providers: Mapping[str, Callable[..., Model]] = field(default_factory=dict)
    """`acme` serves the models `acme/…`: called with the part of a model's name behind the slash,
    and `harness_worker.models.registry.Parts`.
    """
    embeddings: Mapping[str, Callable[..., Embedder | None]] = field(default_factory=dict)
    """For `HARNESS_EMBEDDINGS__PROVIDER`: called with the settings and an HTTP client."""
    blobs: Mapping[str, Callable[..., Blobs]] = field(default_factory=dict)
    """For `HARNESS_BLOBS=acme:where`: called with what is behind the colon, and the settings."""
    guardrails: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """Checks of inputs and outputs, by the name that agents use."""
    skills: Mapping[str, SkillSpec] = field(default_factory=dict)
    """Offered to `harness skills apply --plugin`: a tenant has a skill once it is applied."""

    def parts(self) -> dict[str, list[str]]:
        """List the names of what it brings, by kind."""
        found = {
            "tools": [tool.spec.name for tool in self.tools],
            "providers": list(self.providers),
            "embeddings": list(self.embeddings),
            "blobs": list(self.blobs),
            "guardrails": list(self.guardrails),
            "skills": list(self.skills),
        }
        return {kind: names for kind, names in found.items() if names}
