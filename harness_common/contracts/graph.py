"""The definition of a graph, as a tenant writes it: nodes by name, edges, shared state.

`compiled` takes it apart into the flat graph that `core` follows. What cannot be told from the form
alone (nodes that nothing leads to, pointers that lead nowhere) is found by `core.graph_check`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, model_validator

from harness_common.contracts.names import ModelName
from harness_common.contracts.output import check_output_schema
from harness_common.core.errors import Invalid
from harness_common.core.graph_values import COMPARISONS
from harness_common.core.message import Json

NodeName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,47}$")]
Role = Literal["admin", "operator", "approver", "viewer"]
Template = JsonValue
"""JSON whose texts may have holes `${/json/pointer}`."""
MAX_NODES = 500
_MAX_DEPTH = 8


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ChannelSpec(_Part):
    """One named value of the shared state."""

    reduce: Literal["replace", "append", "add", "merge", "union"] = "replace"
    """How what a node gives becomes part of it."""
    start: JsonValue = None


class AgainSpec(_Part):
    """How often a failed call is made again, each time after a longer wait."""

    times: Annotated[int, Field(ge=0, le=100)] = 0
    backoff_s: Annotated[float, Field(gt=0, le=86_400)] = 1.0
    factor: Annotated[float, Field(ge=1, le=10)] = 2.0


def _check_condition(found: JsonValue, depth: int = 0) -> None:
    """Refuse what is no condition; raises `ValueError`."""
    if not isinstance(found, dict) or not found or depth > _MAX_DEPTH:
        raise ValueError("a condition is an object such as {at: /state/n, lt: 3}")
    for name in ("all", "any"):
        if name in found:
            parts = found[name]
            if len(found) > 1 or not isinstance(parts, list) or not parts:
                raise ValueError(f"`{name}` stands alone and has a list of conditions")
            for part in parts:
                _check_condition(part, depth + 1)
            return
    if "not" in found:
        if len(found) > 1:
            raise ValueError("`not` stands alone and has one condition")
        _check_condition(found["not"], depth + 1)
        return
    _check_comparison(found)


def _check_comparison(found: dict[str, JsonValue]) -> None:
    at, asked = found.get("at"), found.keys() - {"at"}
    if not isinstance(at, str) or not at.startswith("/"):
        raise ValueError("`at` is a JSON pointer such as /state/n")
    known = {*COMPARISONS, "exists"}
    if not asked or asked - known:
        wrong = f"{', '.join(sorted(asked - known))} is none of" if asked else "one is missing of"
        raise ValueError(f"comparisons: {wrong} {', '.join(sorted(known))}")
    for name in ("exists", "empty"):
        if name in found and not isinstance(found[name], bool):
            raise ValueError(f"`{name}` is true or false")
    if "in" in found and not isinstance(found["in"], list | str):
        raise ValueError("`in` is a list")


class _Conditional(_Part):
    when: dict[str, JsonValue] | None = None
    """A condition: `{at: /pointer, is: value}`, or `all`, `any` or `not` of conditions."""
    max: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Set for an edge that leads back: how often it is taken in a run at most."""
    at_cap: Literal["fail", "go_on"] = "fail"
    """What happens when it would be taken once more."""

    @model_validator(mode="after")
    def _is_condition(self) -> Self:
        if self.when is not None:
            _check_condition(self.when)
        return self


class EdgeSpec(_Conditional):
    """That one node follows another."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    source: Annotated[NodeName, Field(alias="from")]
    target: Annotated[NodeName, Field(alias="to")]


class CaseSpec(_Conditional):
    """One way out of a branch: the first whose condition holds is taken."""

    to: NodeName


class _NodeSpec(_Part):
    description: Annotated[str, Field(max_length=2000)] = ""
    set: dict[NodeName, Template] = Field(default_factory=dict)
    """What is given to the state when the node is over; `${/output}` is what it gave."""


class _CallSpec(_NodeSpec):
    on_error: Literal["fail", "go_on"] = "fail"
    """`fail` ends the run; with `go_on` the failure is a result like any other."""
    retry: AgainSpec = AgainSpec()


def _no_call_of_ours(name: str) -> str:
    if name.startswith("graph__"):
        raise ValueError("names that begin with graph__ are kept for model and approval nodes")
    return name


def _output_form(schema: dict[str, Json]) -> dict[str, Json]:
    try:
        check_output_schema(schema)
    except Invalid as error:
        raise ValueError(error.message) from error
    return schema


class _WithTool(_Part):
    tool: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$"), AfterValidator(_no_call_of_ours)]
    args: dict[str, Template] = Field(default_factory=dict)
    parse: Literal["auto", "text", "json"] = "auto"
    """How the result is read: as JSON where it is JSON, as text, or as JSON or not at all."""


class _WithModel(_Part):
    prompt: Annotated[str, Field(min_length=1, max_length=100_000)]
    system: Annotated[str, Field(max_length=100_000)] | None = None
    """None takes the agent's."""
    model: Annotated[str, Field(pattern=r"^[^/]+/.+$", max_length=200)] | None = None
    """None takes the agent's."""
    fallback_models: Annotated[tuple[ModelName, ...], Field(max_length=8)] | None = None
    """Asked in this order when `model` cannot serve. None takes the agent's if the node names no
    model either.
    """
    max_output_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """What only this provider understands, over the agent's `model_options`."""
    output_schema: Annotated[dict[str, JsonValue], AfterValidator(_output_form)] | None = None
    """JSON Schema of the answer, an object: repaired, checked and asked for again by the agent's
    `contract`. The node's value is that object.
    """
    parse: Literal["auto", "text", "json"] | None = None
    """None is `json` with an `output_schema` and `text` without."""


class _WithAgent(_Part):
    agent: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]
    input: Template = "${/input}"
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_cost_usd: Annotated[float, Field(gt=0)] | None = None
    parse: Literal["auto", "text", "json"] = "text"


class ToolNode(_WithTool, _CallSpec):
    """Calls a tool."""

    kind: Literal["tool"]


class ModelNode(_WithModel, _CallSpec):
    """Asks a model once."""

    kind: Literal["model"]


class AgentNode(_WithAgent, _CallSpec):
    """Lets another agent (or graph) work in a run of its own."""

    kind: Literal["agent"]


class DoTool(_WithTool):
    """Calls a tool for each item."""


class DoModel(_WithModel):
    """Asks a model for each item."""


class DoAgent(_WithAgent):
    """Starts a run for each item."""


class MapNode(_CallSpec):
    """Makes one call for every item of a list, so many at a time; gives the list of results."""

    kind: Literal["map"]
    over: Template
    """The list, such as `${/nodes/list_prs/output}`; `${/item}` and `${/index}` are the call's."""
    do: DoTool | DoModel | DoAgent
    parallel: Annotated[int, Field(ge=1, le=100)] = 8
    max_items: Annotated[int, Field(ge=1, le=10_000)] = 1_000


class BranchNode(_NodeSpec):
    """Goes on with the first case whose condition holds, else with the default."""

    kind: Literal["branch"]
    cases: Annotated[tuple[CaseSpec, ...], Field(min_length=1, max_length=100)]
    default: NodeName | None = None


class WaitNode(_CallSpec):
    """Waits for a time, without a worker."""

    kind: Literal["wait"]
    seconds: Template = None
    until: Template = None

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.seconds is None) == (self.until is None):
            raise ValueError("a wait has either `seconds` or `until`")
        return self


class ApprovalNode(_CallSpec):
    """Asks a person. Denied or too late is a failure of the node."""

    kind: Literal["approval"]
    ask: Annotated[str, Field(min_length=1, max_length=4000)]
    show: Template = None
    """What the person is shown beside the question."""
    roles: tuple[Role, ...] = ("approver", "admin")
    four_eyes: bool = False
    expires_s: Annotated[float, Field(gt=0, le=31 * 86_400)] | None = None


class SubgraphNode(_NodeSpec):
    """A graph within the graph, with an input and a state of its own."""

    kind: Literal["subgraph"]
    graph: GraphSpec
    input: Template = "${/input}"


NodeSpec = Annotated[
    ToolNode
    | ModelNode
    | AgentNode
    | MapNode
    | BranchNode
    | WaitNode
    | ApprovalNode
    | SubgraphNode,
    Field(discriminator="kind"),
]


class GraphSpec(_Part):
    """A graph: what is done, in which order, and what is kept."""

    nodes: Annotated[dict[NodeName, NodeSpec], Field(min_length=1, max_length=MAX_NODES)]
    edges: Annotated[tuple[EdgeSpec, ...], Field(max_length=5_000)] = ()
    """Each `{from, to}` with `when` and `max`, or a text such as `a -> b -> c`."""
    state: dict[NodeName, ChannelSpec] = Field(default_factory=dict)
    output: Template = None
    """What the run gives; None is what its last nodes gave."""

    @property
    def depth(self) -> int:
        """Return how deep subgraphs are nested; 1 without any."""
        inner = [n.graph.depth for n in self.nodes.values() if isinstance(n, SubgraphNode)]
        return 1 + max(inner, default=0)

    @model_validator(mode="after")
    def _is_shallow(self) -> Self:
        if self.depth > _MAX_DEPTH:
            raise ValueError(f"subgraphs nest at most {_MAX_DEPTH} deep")
        return self

    @model_validator(mode="before")
    @classmethod
    def _chains(cls, data: object) -> object:
        """Take apart edges that are written as texts."""
        if not isinstance(data, dict) or not isinstance(data.get("edges"), list | tuple):
            return data
        edges: list[Json] = []
        for one in data["edges"]:
            if not isinstance(one, str):
                edges.append(one)
                continue
            names = [name.strip() for name in one.split("->")]
            if len(names) < 2:
                raise ValueError(f"the edge {one[:100]!r} is not written like `a -> b`")
            edges += [{"from": a, "to": b} for a, b in pairwise(names)]
        return {**data, "edges": edges}


SubgraphNode.model_rebuild()
GraphSpec.model_rebuild()
