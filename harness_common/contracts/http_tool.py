"""A tenant's own tool, as data: what it is, and the HTTP request that a call of it becomes.

The API checks and keeps a definition; the worker makes a tool of it (`tools/http_tools.py`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from harness_common.contracts.agent import ToolName
from harness_common.contracts.tool import EffectClass, Reach, ToolSpec
from harness_common.contracts.tool_schema import check_tenant_schema, invalid
from harness_common.core import template
from harness_common.core.errors import Invalid

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
Effect = Literal["read", "idempotent", "write"]
Pointer = Annotated[str, Field(pattern=r"^(/[^\x00-\x1f]{0,500})?$")]
EFFECT_OF: Final[dict[str, EffectClass]] = {
    "GET": EffectClass.READ,
    "HEAD": EffectClass.READ,
    "PUT": EffectClass.IDEMPOTENT,
    "DELETE": EffectClass.IDEMPOTENT,
    "POST": EffectClass.WRITE,
    "PATCH": EffectClass.WRITE,
}
"""RFC 9110, 9.2: what a method promises, unless the definition knows better."""

_CREDENTIALS: Final = frozenset(
    {"authorization", "cookie", "x-api-key", "api-key", "x-auth-token", "x-access-token"}
)
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_KEPT_HEADERS: Final = frozenset(
    {
        *("host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer"),
        *("expect", "proxy-authorization", "proxy-connection", "accept-encoding", "keep-alive"),
    }
)


class HttpRequest(BaseModel):
    """The request. Texts may hold `{argument}` and `secret://name`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: Method = "GET"
    url: Annotated[str, Field(min_length=8, max_length=2_000)]
    """With http:// or https:// and a literal host; placeholders in the path are percent-encoded."""
    query: Annotated[dict[str, str], Field(max_length=100)] = Field(default_factory=dict)
    """A value that is one whole `{argument}` repeats for each item of a list; one whose argument is
    not given is left out. The same holds for headers."""
    headers: Annotated[dict[str, str], Field(max_length=50)] = Field(default_factory=dict)
    body: JsonValue = None
    """Any JSON; a text in it that is one whole `{argument}` becomes the argument's value. The text
    `{*}` alone is an object of all arguments that are used nowhere else."""
    body_type: Literal["json", "form"] = "json"
    result: Pointer = ""
    """JSON pointer to the part of a JSON answer that the model gets; the empty one is all of it."""
    next_cursor: Pointer | None = None
    """JSON pointer to what asks for the next page; given to the model beside the result."""
    idempotency_header: Annotated[str, Field(max_length=100)] | None = "Idempotency-Key"
    """Carries the call's key with every request that is no read."""
    max_response_bytes: Annotated[int, Field(ge=1, le=8 * 1024 * 1024)] = 1024 * 1024


def _no_arguments() -> dict[str, JsonValue]:
    return {"type": "object", "properties": {}}


class ToolDefinition(BaseModel):
    """One version of a tenant's tool. See `ToolSpec` for the fields that both have."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: ToolName
    kind: Literal["http"] = "http"
    description: Annotated[str, Field(min_length=1, max_length=8_000)]
    input_schema: dict[str, JsonValue] = Field(default_factory=_no_arguments)
    http: HttpRequest
    effect: Effect | None = None
    """None takes that of the method: GET and HEAD read, PUT and DELETE idempotent, else write."""
    permission_tags: Annotated[list[str], Field(max_length=50)] = Field(
        default_factory=lambda: ["network"]
    )
    timeout_s: Annotated[float, Field(ge=0.1, le=300)] = 10.0
    cost_estimate_usd: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    risk: Literal["low", "medium", "high"] = "low"
    untrusted_output: bool = True
    outbound: bool = True
    reads_private: bool = False
    repeatable: bool = False
    max_attempts: Annotated[int, Field(ge=1, le=10)] | None = None
    cache_s: Annotated[float, Field(gt=0, le=86_400)] | None = None
    fallback: ToolName | None = None
    output_schema: dict[str, JsonValue] | None = None

    @property
    def effect_class(self) -> EffectClass:
        """Return the effect that counts."""
        return EffectClass(self.effect) if self.effect else EFFECT_OF[self.http.method]

    def digest(self) -> str:
        """Return the SHA-256 of the definition, by which an unchanged one is recognised."""
        plain = self.model_dump(mode="json")
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()

    def spec(self, version: int) -> ToolSpec:
        """Return what the model, policy and the ledger see of it."""
        return ToolSpec(
            name=self.name,
            description=self.description,
            input_schema=dict(self.input_schema),
            effect=self.effect_class,
            version=str(version),
            permission_tags=frozenset(self.permission_tags),
            timeout_s=self.timeout_s,
            reach=Reach.EXTERNAL,
            cost_estimate_usd=self.cost_estimate_usd,
            untrusted_output=self.untrusted_output,
            risk=self.risk,
            outbound=self.outbound,
            reads_private=self.reads_private,
            repeatable=self.repeatable,
            max_attempts=self.max_attempts,
            cache_s=self.cache_s,
            fallback=self.fallback,
            output_schema=dict(self.output_schema) if self.output_schema is not None else None,
        )


def texts(request: HttpRequest) -> Iterator[tuple[str, str]]:
    """Give every text of a request that may hold placeholders, with its JSON pointer."""
    yield "/http/url", request.url
    for name, value in request.query.items():
        yield f"/http/query/{name}", value
    for name, value in request.headers.items():
        yield f"/http/headers/{name}", value
    yield from body_texts(request.body, "/http/body")


def body_texts(body: JsonValue, at: str) -> Iterator[tuple[str, str]]:
    """Give the texts of a body template."""
    if isinstance(body, str):
        yield at, body
    elif isinstance(body, list):
        for index, part in enumerate(body):
            yield from body_texts(part, f"{at}/{index}")
    elif isinstance(body, dict):
        for name, part in body.items():
            yield from body_texts(part, f"{at}/{name}")


def check_definition(tool: ToolDefinition) -> None:
    """Refuse a definition that could not work; raises `Invalid` (`TOOL_INVALID`) with a JSON
    pointer.
    """
    if not tool.description.strip():
        raise invalid(tool.name, "has no description; say what it does and when to use it")
    try:
        check_tenant_schema(tool.name, tool.input_schema)
    except Invalid as problem:
        if "pointer" in problem.detail:
            raise invalid(
                tool.name,
                problem.message.removeprefix(f"Tool {tool.name!r} ").rstrip("."),
                f"/input_schema{problem.detail['pointer']}",
            ) from problem
        raise
    if tool.output_schema is not None:
        check_tenant_schema(tool.name, {"type": "object", "properties": {"": tool.output_schema}})
    _check_url(tool)
    _check_headers(tool)
    _check_body(tool)
    _check_placeholders(tool)


def _check_url(tool: ToolDefinition) -> None:
    at = "/http/url"
    before_path = re.match(r"https?://[^/?#]+", tool.http.url)
    if before_path is None or re.search(r"[{}@\s\\]", before_path[0]):
        cause = "has a URL that does not begin with http:// or https:// and a host of its own"
        raise invalid(tool.name, f"{cause}: host and port may hold no placeholder and no user", at)
    if re.search(r"[\x00-\x20\x7f\\#]", tool.http.url):
        raise invalid(tool.name, "has a URL with a space, a control character, \\ or #", at)
    try:
        port = urlsplit(before_path[0]).port
    except ValueError as problem:
        raise invalid(tool.name, f"has a bad URL: {problem}", at) from problem
    del port


def _check_headers(tool: ToolDefinition) -> None:
    extra = [tool.http.idempotency_header] if tool.http.idempotency_header else []
    for name in [*tool.http.headers, *extra]:
        at = f"/http/headers/{name}"
        if _TOKEN.fullmatch(name) is None:
            raise invalid(tool.name, f"has the header {name[:80]!r}, which is no header name", at)
        if name.lower() in _KEPT_HEADERS:
            raise invalid(tool.name, f"sets the header {name!r}, which is ours to set", at)
    for name, value in tool.http.headers.items():
        at = f"/http/headers/{name}"
        if re.search(r"[\x00-\x08\x0a-\x1f\x7f]", value) or not value.isascii():
            raise invalid(tool.name, f"has a header {name!r} that is not printable ASCII", at)
        if name.lower() in _CREDENTIALS and "secret://" not in value and "{" not in value:
            cause = f"has a credential in the header {name!r}, which everybody could read"
            raise invalid(tool.name, f"{cause}: keep it as a secret and write secret://NAME", at)


def _check_body(tool: ToolDefinition) -> None:
    request = tool.http
    if request.body is None:
        return
    if request.method in {"GET", "HEAD"}:
        raise invalid(tool.name, f"has a body, which {request.method} does not take", "/http/body")
    if request.body_type == "form" and not isinstance(request.body, dict) and request.body != "{*}":
        raise invalid(tool.name, "has a form body that is no object", "/http/body")


def _check_placeholders(tool: ToolDefinition) -> None:
    known = tool.input_schema.get("properties")
    names = set(known) if isinstance(known, dict) else set()
    required = tool.input_schema.get("required")
    for at, text in texts(tool.http):
        try:
            found = template.parse(text)
        except Invalid as problem:
            raise invalid(tool.name, f"has at {at} a bad text: {problem.message}", at) from problem
        for name in found.arguments:
            if name == "*" and at.startswith("/http/body") and found.whole == "*":
                continue
            if name not in names:
                cause = f"uses {{{name}}} at {at}, which its input schema does not declare"
                raise invalid(tool.name, cause, at)
            path = at == "/http/url"
            if path and not (isinstance(required, list) and name in required):
                cause = f"uses {{{name}}} in its URL, so the input schema must require it"
                raise invalid(tool.name, cause, at)


def as_definition(value: Any) -> ToolDefinition:  # noqa: ANN401 - JSON as it was stored
    """Read a stored definition."""
    return ToolDefinition.model_validate(value)
