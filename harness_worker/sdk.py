"""What a user imports to write a tool: the `tool` decorator and the values that tools take and
return.

The decorator only builds a `Tool` value. Nothing is registered by importing a module: the registry
collects the values of the modules it is told to load, and the built-in tools are written with the
same decorator.

    from harness_worker.sdk import ToolContext, tool

    @tool(effect="read", reach="external")
    async def weather(ctx: ToolContext, city: str, days: int = 3) -> dict[str, object]:
        '''Look up the weather forecast of a city. Use it for questions about the next days. ...'''
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError

from harness_common.contracts.sandbox import Limits, SandboxTier
from harness_common.contracts.tool import (
    AskUser,
    EffectClass,
    NeedInput,
    NewArtifact,
    Reach,
    Risk,
    StartChild,
    Tool,
    ToolContext,
    ToolFunction,
    ToolOutput,
    ToolReturn,
    ToolSpec,
    WaitUntil,
)
from harness_common.core.errors import (
    Denied,
    Invalid,
    Limited,
    Permanent,
    Transient,
    UnknownOutcome,
)
from harness_common.core.message import Json
from harness_worker.graph_builder import Graph, NodeRef, at, case

__all__ = [
    "AskUser",
    "Denied",
    "EffectClass",
    "Graph",
    "Invalid",
    "Limited",
    "Limits",
    "NeedInput",
    "NewArtifact",
    "NodeRef",
    "Permanent",
    "Reach",
    "SandboxTier",
    "StartChild",
    "Tool",
    "ToolContext",
    "ToolOutput",
    "ToolReturn",
    "ToolSpec",
    "Transient",
    "UnknownOutcome",
    "WaitUntil",
    "at",
    "case",
    "tool",
]

Effect = EffectClass | Literal["read", "idempotent", "write"]

_PREFIX = "arg_"
"""Put before field names of the argument model, so that an argument may be called `schema` or
`copy`."""

_NAMED_KINDS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def tool(  # noqa: PLR0913 - one keyword for each field of ToolSpec
    *,
    effect: Effect,
    name: str | None = None,
    description: str | None = None,
    input_schema: Json | None = None,
    version: str = "1",
    permission_tags: Iterable[str] = (),
    timeout_s: float | None = None,
    reach: Reach | Literal["internal", "external"] = Reach.INTERNAL,
    cost_estimate_usd: float = 0.0,
    sandbox: SandboxTier | Literal["none", "B", "A"] = SandboxTier.NONE,
    queue: str | None = None,
    untrusted_output: bool = False,
    risk: Risk = "low",
    outbound: bool = False,
    reads_private: bool = False,
    repeatable: bool = False,
    max_attempts: int | None = None,
    cache_s: float | None = None,
    fallback: str | None = None,
    output_schema: Json | None = None,
    limits: Limits | None = None,
    hosts: Iterable[str] = (),
    secrets: Iterable[str] = (),
    meta: Mapping[str, Any] | None = None,
) -> Callable[[ToolFunction], Tool]:
    """Turn a function, async or sync, into a `Tool` value.

    The first parameter may be `ctx` (a `ToolContext`) or be left out. The name defaults to the
    function's, the description to its docstring, and the input schema is derived from the
    signature; describe an argument with `Annotated[int, Field(ge=1, description="...")]`. Arguments
    arrive as the annotated types (a `date` as a `date`). With an `input_schema` of your own they
    arrive as plain JSON values.

    Raises `Invalid` (`TOOL_INVALID`) when the function cannot be described.
    """

    def build(fn: ToolFunction) -> Tool:
        tool_name: str = name or getattr(fn, "__name__", None) or type(fn).__name__
        text = inspect.cleandoc(description or getattr(fn, "__doc__", None) or "")
        if not text:
            raise _invalid(tool_name, "has no description; write a docstring or pass `description`")
        takes_ctx, parameters = _parameters(fn, tool_name)
        model = None if input_schema is not None else _argument_model(fn, tool_name, parameters)
        spec = ToolSpec(
            name=tool_name,
            description=text,
            input_schema=_schema_of(model, tool_name) if model else input_schema,
            effect=EffectClass(effect),
            version=version,
            permission_tags=frozenset(permission_tags),
            timeout_s=timeout_s,
            reach=Reach(reach),
            cost_estimate_usd=cost_estimate_usd,
            sandbox=SandboxTier(sandbox),
            queue=queue,
            untrusted_output=untrusted_output,
            risk=risk,
            outbound=outbound,
            reads_private=reads_private,
            repeatable=repeatable,
            max_attempts=max_attempts,
            cache_s=cache_s,
            fallback=fallback,
            output_schema=output_schema,
            limits=limits or Limits(),
            hosts=tuple(hosts),
            secrets=tuple(secrets),
        )
        return Tool(spec, _adapt(fn, tool_name, model, takes_ctx=takes_ctx), meta or {})

    return build


def _invalid(name: str, cause: str) -> Invalid:
    return Invalid(f"Tool {name!r} {cause}.", code="TOOL_INVALID", tool=name)


def _parameters(fn: ToolFunction, name: str) -> tuple[bool, list[inspect.Parameter]]:
    """Tell whether `fn` takes a context, and list the parameters that the model fills."""
    parameters = list(inspect.signature(fn).parameters.values())
    takes_ctx = bool(parameters) and _is_context(parameters[0])
    rest = parameters[1:] if takes_ctx else parameters
    for parameter in rest:
        if parameter.kind not in _NAMED_KINDS:
            raise _invalid(
                name, f"has the parameter `{parameter}`; every parameter must have a name"
            )
    return takes_ctx, rest


def _is_context(parameter: inspect.Parameter) -> bool:
    note = parameter.annotation
    return (
        parameter.name == "ctx"
        or note is ToolContext
        or (isinstance(note, str) and note.rpartition(".")[2] == "ToolContext")
    )


def _argument_model(
    fn: ToolFunction, name: str, parameters: list[inspect.Parameter]
) -> type[BaseModel]:
    notes = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}
    missing = [p.name for p in parameters if p.name not in notes]
    if missing:
        raise _invalid(name, f"has parameters without a type: {', '.join(missing)}")
    inner = inspect.unwrap(fn)
    try:
        # The annotation of `ctx` is left out: it may exist for type checkers alone.
        hints = typing.get_type_hints(
            SimpleNamespace(__annotations__=notes),
            globalns=getattr(inner, "__globals__", {}),
            include_extras=True,
        )
        fields: dict[str, Any] = {
            f"{_PREFIX}{p.name}": (
                hints[p.name],
                Field(... if p.default is p.empty else p.default, alias=p.name),
            )
            for p in parameters
        }
        return create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
    except (NameError, TypeError, PydanticUserError) as problem:
        raise _invalid(name, f"has a signature that cannot be described: {problem}") from problem


def _schema_of(model: type[BaseModel], name: str) -> Json:
    try:
        schema = _without_titles(model.model_json_schema(by_alias=True))
    except PydanticUserError as problem:
        raise _invalid(name, f"has arguments that JSON cannot carry: {problem}") from problem
    return {"type": "object", "properties": {}, "additionalProperties": False} | schema


def _without_titles(schema: Json) -> Json:
    """Drop the titles that pydantic makes from names: they cost tokens and say nothing."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out: dict[str, Json] = {}
    for key, value in schema.items():
        if key in ("properties", "$defs") and isinstance(value, dict):
            out[key] = {name: _without_titles(part) for name, part in value.items()}
        elif key in ("default", "const", "enum", "examples"):
            out[key] = value
        elif key != "title":
            out[key] = _without_titles(value)
    return out


def _adapt(
    fn: ToolFunction, name: str, model: type[BaseModel] | None, *, takes_ctx: bool
) -> ToolFunction:
    """Wrap `fn` so that it is called as `fn(ctx, **arguments)`, and stays async or sync as it
    was.
    """

    def bind(ctx: ToolContext, arguments: dict[str, Json]) -> tuple[tuple[Any, ...], Any]:
        return (ctx,) if takes_ctx else (), _typed(name, model, arguments)

    if inspect.iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def run_async(ctx: ToolContext, /, **arguments: Json) -> ToolReturn:
            args, kwargs = bind(ctx, arguments)
            return await typing.cast("Awaitable[ToolReturn]", fn(*args, **kwargs))

        return run_async

    @functools.wraps(fn)
    def run(ctx: ToolContext, /, **arguments: Json) -> Awaitable[ToolReturn] | ToolReturn:
        args, kwargs = bind(ctx, arguments)
        return fn(*args, **kwargs)

    return run


def _typed(name: str, model: type[BaseModel] | None, arguments: dict[str, Json]) -> dict[str, Any]:
    """Turn JSON values into the annotated types, and fill in defaults."""
    if model is None:
        return arguments
    try:
        values = model.model_validate(arguments)
    except ValidationError as problem:
        causes = "; ".join(
            f"`{'.'.join(map(str, error['loc'])) or 'arguments'}`: {error['msg']}"
            for error in problem.errors(include_url=False, include_context=False)[:8]
        )
        raise Invalid(
            f"Tool {name!r} was not run, its arguments are wrong: {causes}. "
            "Correct them and call the tool again.",
            code="ARGUMENTS_INVALID",
            tool=name,
        ) from problem
    return {field.removeprefix(_PREFIX): getattr(values, field) for field in model.model_fields}
