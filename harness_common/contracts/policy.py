"""The rules of a policy as people write them, in YAML, and what `core.policy` makes of them.

Bad rules are refused with the JSON pointer of each mistake. Called by the API when a policy is set
or tried, and by workers when they read one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Final, Literal

import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError
from referencing import Registry

from harness_common.contracts.tool import EffectClass
from harness_common.contracts.tool_schema import Re2Validator, is_linear
from harness_common.core.errors import Invalid
from harness_common.core.message import Json
from harness_common.core.policy import ArgumentTest, Match, Policy, Rule, Verdict

MAX_SOURCE_BYTES: Final = 256 * 1024
_MAX_RULES: Final = 500
_MAX_PROBLEMS: Final = 8

RoleName = Literal["viewer", "operator", "approver", "admin"]
Glob = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\s\[\]]+$")]


def _as_list(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _sound_schema(schema: Json) -> Json:
    """Refuse a schema of arguments that could not be used, and patterns that could take for ever:
    they run over what a model wrote, in a process that others share.
    """
    if not isinstance(schema, dict):
        raise PydanticCustomError("schema", "must be a JSON Schema object")
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as problem:
        raise _at(problem.absolute_path, f"is no valid JSON Schema: {problem.message[:200]}") from (
            problem
        )
    _check_node(schema, ())
    return schema


def _check_node(node: Json, path: tuple[str | int, ...]) -> None:
    if isinstance(node, list):
        for i, part in enumerate(node):
            _check_node(part, (*path, i))
    if not isinstance(node, dict):
        return
    for key in {"$ref", "$dynamicRef"} & node.keys():
        raise _at((*path, key), f"{key} is not allowed here: write the schema out")
    for where, pattern in _patterns(node):
        if why := _slow(pattern):
            raise _at((*path, *where), why)
    for key, part in node.items():
        _check_node(part, (*path, key))


def _patterns(node: dict[str, Json]) -> Iterable[tuple[tuple[str, ...], str]]:
    if isinstance(node.get("pattern"), str):
        yield ("pattern",), node["pattern"]
    by_pattern = node.get("patternProperties")
    if isinstance(by_pattern, dict):
        yield from ((("patternProperties", pattern), pattern) for pattern in by_pattern)


_REPEAT: Final = re.compile(r"[*+]|\{\d*,\d*\}")
_GROUP: Final = re.compile(r"\((?:[^()\\]|\\.)*\)(?:[*+]|\{\d*,?\d*\})")


def _slow(pattern: str) -> str | None:
    """Tell why a pattern may take exponential time: a repeated group that repeats or chooses within
    itself.
    """
    try:
        re.compile(pattern)
    except re.error as problem:
        return f"is no regular expression: {problem}"
    plain = re.sub(r"\\.|\[\^?\]?(?:[^\]\\]|\\.)*\]", "x", pattern)
    while group := _GROUP.search(plain):
        inside = group.group()[1 : group.group().rindex(")")]
        if "|" in inside or _REPEAT.search(inside):
            return "repeats a group that itself repeats or chooses, which can take for ever"
        plain = plain[: group.start()] + "x+" + plain[group.end() :]
    if re.search(r"\((?:[^()]*\([^()]*\))+[^()]*\)(?:[*+]|\{)", plain):
        return "repeats a group with groups in it, which can take for ever"
    return None


def _at(path: Iterable[str | int], message: str) -> PydanticCustomError:
    return PydanticCustomError("at", "{message}", {"message": message, "path": tuple(path)})


Globs = Annotated[tuple[Glob, ...], BeforeValidator(_as_list), Field(min_length=1, max_length=200)]
Roles = Annotated[tuple[RoleName, ...], BeforeValidator(_as_list), Field(min_length=1)]
Effects = Annotated[tuple[EffectClass, ...], BeforeValidator(_as_list), Field(min_length=1)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class MatchSpec(_Model):
    """What a rule is about: all that is written must hold; in a list one is enough."""

    tools: Globs | None = None
    effect: Effects | None = None
    tags: Globs | None = None
    risk_at_least: Literal["low", "medium", "high"] | None = None
    outbound: StrictBool | None = None
    agent: Globs | None = None
    roles: Roles | None = None
    tainted: StrictBool | None = None
    arguments: Annotated[dict[str, Any], AfterValidator(_sound_schema)] | None = None


class RuleSpec(_Model):
    """One rule; the first that matches decides."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]
    match: MatchSpec = MatchSpec()
    then: Literal["allow", "ask", "deny"]
    reason: Annotated[str, Field(max_length=500)] = ""
    approvers: Roles | None = None
    four_eyes: StrictBool = False
    expires_s: Annotated[float, Field(ge=1, le=31 * 86_400)] | None = None

    @field_validator("approvers", "four_eyes", "expires_s")
    @classmethod
    def _only_to_ask(cls, value: object, info: ValidationInfo) -> object:
        if value and info.data.get("then") not in {"ask", None}:
            raise PydanticCustomError("then", "is for a rule whose `then` is ask")
        return value


class PolicySpec(_Model):
    """The rules of a tenant, or of one agent of it."""

    rules: Annotated[tuple[RuleSpec, ...], Field(max_length=_MAX_RULES)] = ()
    taint: Literal["ask", "hide", "deny"] | None = None
    untrusted: Globs | None = None
    max_timeout_s: Annotated[float, Field(gt=0, le=86_400)] | None = None
    roles: dict[RoleName, Annotated[tuple[Glob, ...], BeforeValidator(_as_list)]] | None = None

    @field_validator("rules")
    @classmethod
    def _names_differ(cls, rules: tuple[RuleSpec, ...]) -> tuple[RuleSpec, ...]:
        seen: dict[str, int] = {}
        for i, rule in enumerate(rules):
            if rule.name in seen:
                raise _at((i, "name"), f"{rule.name!r} is the name of rule {seen[rule.name]} too")
            seen[rule.name] = i
        return rules

    def digest(self) -> str:
        """Return the SHA-256 of what the rules say, by which an unchanged policy is recognised."""
        return hashlib.sha256(self.model_dump_json(exclude_none=True).encode()).hexdigest()

    def compiled(self, version: int) -> Policy:
        """Return the rules as `core.policy` takes them."""
        return Policy(
            version=version,
            rules=tuple(_rule(r) for r in self.rules),
            taint=self.taint,
            timeout_max_s=self.max_timeout_s,
            roles=None if self.roles is None else {str(k): v for k, v in self.roles.items()},
            untrusted=self.untrusted or (),
        )


def _rule(spec: RuleSpec) -> Rule:
    m = spec.match
    return Rule(
        name=spec.name,
        then=Verdict(spec.then),
        match=Match(
            tools=m.tools,
            effects=None if m.effect is None else tuple(map(str, m.effect)),
            tags=m.tags,
            risk_at_least=m.risk_at_least,
            outbound=m.outbound,
            agents=m.agent,
            roles=m.roles,
            tainted=m.tainted,
            arguments=None if m.arguments is None else _argument_test(m.arguments),
        ),
        reason=spec.reason,
        approver_roles=spec.approvers,
        four_eyes=spec.four_eyes,
        expires_s=spec.expires_s,
    )


def _argument_test(schema: Mapping[str, Any]) -> ArgumentTest:
    # An empty registry: nothing is ever fetched.
    validator = Re2Validator(dict(schema), registry=Registry())

    def test(arguments: Json) -> str | None:
        error = best_match(validator.iter_errors(arguments))
        if error is None:
            return None
        return f"{_pointer(error.absolute_path) or '/'} does not satisfy `{error.validator}`"

    return test


def parse_policy(source: str, *, for_agent: bool = False) -> PolicySpec:
    """Read the YAML (or JSON) of a policy.

    Raises `Invalid` (`POLICY_INVALID`) whose detail has `errors`, a list of `{field, message}`
    where `field` is the JSON pointer.
    """
    if len(source.encode()) > MAX_SOURCE_BYTES:
        raise _refusal([("", f"is longer than {MAX_SOURCE_BYTES} bytes")])
    try:
        data = yaml.load(source, Loader=_loader())  # noqa: S506 - a SafeLoader that allows less
    except yaml.YAMLError as problem:
        raise _refusal([("", _yaml_problem(problem))]) from problem
    except RecursionError as problem:
        raise _refusal([("", "is nested too deep")]) from problem
    spec = read_policy({} if data is None else data, for_agent=for_agent)
    if problems := list(_not_linear(spec)):
        raise _refusal(problems)
    return spec


def read_policy(data: Json, *, for_agent: bool = False) -> PolicySpec:
    """Check rules that are JSON values already; raises as `parse_policy` does."""
    if not isinstance(data, dict):
        raise _refusal([("", "must be a mapping with `rules`")])
    try:
        json.dumps(data, allow_nan=False)
    except (TypeError, ValueError) as problem:
        raise _refusal([("", f"holds a value that is not JSON: {problem}")]) from problem
    try:
        spec = PolicySpec.model_validate(data)
    except ValidationError as problem:
        raise _refusal(list(_problems(problem))) from problem
    if for_agent:
        alien = [n for n in ("roles", "max_timeout_s") if getattr(spec, n) is not None]
        if alien:
            raise _refusal([(f"/{n}", "is for the tenant's policy, not an agent's") for n in alien])
    return spec


def _not_linear(spec: PolicySpec) -> Iterable[tuple[str, str]]:
    """Find the patterns that RE2 does not take, and those of names, which no RE2 runs. Policies
    that were stored before may have them.
    """
    for i, rule in enumerate(spec.rules):
        todo: list[tuple[tuple[str | int, ...], Json]] = [
            (("rules", i, "match", "arguments"), rule.match.arguments)
        ]
        while todo:
            path, node = todo.pop()
            if isinstance(node, dict):
                todo += [((*path, key), part) for key, part in node.items()]
                yield from _pattern_problems(path, node)
            elif isinstance(node, list):
                todo += [((*path, n), part) for n, part in enumerate(node)]


def _pattern_problems(
    path: tuple[str | int, ...], node: dict[str, Json]
) -> Iterable[tuple[str, str]]:
    if isinstance(node.get("patternProperties"), dict):
        why = "is not allowed here: write the names out, or use propertyNames"
        yield _pointer((*path, "patternProperties")), why
    if isinstance(node.get("pattern"), str) and not is_linear(node["pattern"]):
        why = "is no regular expression of RE2: look-around and back-references do not exist there"
        yield _pointer((*path, "pattern")), why


def _problems(error: ValidationError) -> Iterable[tuple[str, str]]:
    for one in error.errors(include_url=False, include_input=False):
        path: list[str | int] = [part for part in one["loc"] if part != "[key]"]
        if one["type"] == "at":
            path += one["ctx"]["path"]
        yield _pointer(path), str(one["msg"])


def _pointer(path: Iterable[str | int]) -> str:
    """Write a path as a JSON pointer (RFC 6901)."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)


def _refusal(problems: list[tuple[str, str]]) -> Invalid:
    shown = problems[:_MAX_PROBLEMS]
    listed = "; ".join(f"{pointer or 'the document'}: {cause}" for pointer, cause in shown)
    more = f"; and {len(problems) - len(shown)} more" if len(problems) > len(shown) else ""
    return Invalid(
        f"The policy is refused: {listed}{more}. Correct it and set it again.",
        code="POLICY_INVALID",
        field=shown[0][0] or None,
        errors=[{"field": pointer, "message": f"{pointer} {cause}"} for pointer, cause in shown],
    )


def _yaml_problem(problem: yaml.YAMLError) -> str:
    mark = getattr(problem, "problem_mark", None)
    where = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return f"is no YAML{where}: {getattr(problem, 'problem', None) or problem}"


@cache
def _loader() -> type[yaml.SafeLoader]:
    """Make a loader without anchors (a small text could stand for a huge one), without keys that
    are written twice, and whose values are all JSON.
    """

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            if self.check_event(yaml.events.AliasEvent):
                mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
                raise yaml.constructor.ConstructorError(
                    None, None, "anchors and aliases are not allowed", mark
                )
            return super().compose_node(parent, index)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:  # noqa: ANN401
            seen: set[str] = set()
            for key, _ in node.value:
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} is written twice", key.start_mark
                    )
                seen.add(key.value)
            return super().construct_mapping(node, deep=deep)

    # As in YAML 1.2, `no` and `on` are words, and a date is text.
    odd = (":timestamp", ":bool")
    Loader.yaml_implicit_resolvers = {
        first: [(tag, regexp) for tag, regexp in resolvers if not tag.endswith(odd)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:bool",
        re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"),
        list("tTfF"),
    )
    return Loader
