"""What a single request changes of its agent: instructions, tools that the client carries out,
and how the model samples.

Kept in `runs.overrides` under `request`, so that a run, its forks and its retries see the same. A
tool of the client is offered to the model beside the agent's own; a call of it makes the run wait
for the client's answer. Written by the Responses face, read by the worker.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from harness_common.contracts.tool_schema import check_name, check_tenant_schema
from harness_common.core.errors import Invalid
from harness_common.core.message import Json

REQUEST: Final = "request"
"""The key in a run's overrides."""
MAX_TOOLS: Final = 64


class ClientTool(BaseModel):
    """A function that the client carries out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})

    def check(self) -> None:
        """Raise `Invalid` for a name or a schema that a provider would choke on, or that could hang
        a shared worker.
        """
        check_name(self.name)
        check_tenant_schema(self.name, self.parameters)


class RequestOptions(BaseModel):
    """The options of one request."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    instructions: str = ""
    """Said to the model after the agent's own system text."""
    tools: Annotated[tuple[ClientTool, ...], Field(max_length=MAX_TOOLS)] = ()
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    """Narrows the agent's own cap on one answer."""
    background: bool = False
    earlier: int = 0
    """How many messages the client brought along before the input."""

    @property
    def names(self) -> frozenset[str]:
        """Name the client's tools."""
        return frozenset(tool.name for tool in self.tools)

    def check(self, agents_own: Collection[str]) -> None:
        """Raise `Invalid` when the client's tools do not go with those of the agent."""
        for tool in self.tools:
            tool.check()
        if len(self.names) < len(self.tools):
            raise Invalid("two tools have the same name; give each its own", field="tools")
        if twice := sorted(self.names & set(agents_own)):
            raise Invalid(
                f"the agent has a tool {twice[0]!r} of its own; give the client's another name",
                field="tools",
                value=twice[0],
            )


def options_of(overrides: Mapping[str, Json]) -> RequestOptions | None:
    """Read the options of a run's request; None when it had none."""
    found = overrides.get(REQUEST)
    return RequestOptions.model_validate(found) if found else None
