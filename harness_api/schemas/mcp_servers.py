"""MCP servers on the wire."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from harness_api.schemas.base import Input, Output, Time
from harness_common.core.message import Json

_SECRET: Final = "secret://"  # noqa: S105 - the form of a reference
_CREDENTIALS: Final = frozenset(
    {"authorization", "proxy-authorization", "cookie", "x-api-key", "api-key", "x-auth-token"}
)

ServerName = Annotated[
    str,
    Field(
        pattern=r"^[a-z0-9](-?[a-z0-9]){0,31}$",
        max_length=32,
        description="a-z, 0-9 and single dashes: the first part of its tools' names.",
    ),
]
Effect = Literal["read", "idempotent", "write"]
Text = Annotated[str, Field(min_length=1, max_length=4_096, pattern=r"^[^\x00\r\n]+$")]
EnvName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]
HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")]


def _http_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("must begin with http:// or https:// and name a host")
    if parts.username or parts.password:
        raise ValueError("must not hold a password; send it as a header: secret://name")
    return url


class McpServerPut(Input):
    """A server to declare: exactly one of `command` and `url`.

    Values of `env` and `headers` may hold `secret://name`, which is resolved by the worker when it
    connects.
    """

    command: Annotated[list[Text], Field(min_length=1, max_length=64)] | None = None
    """A program and its arguments, started by the worker: the stdio transport."""
    env: Annotated[dict[EnvName, Text], Field(max_length=50)] = Field(default_factory=dict)
    url: Annotated[Text, AfterValidator(_http_url)] | None = None
    """Streamable HTTP."""
    headers: Annotated[dict[HeaderName, Text], Field(max_length=50)] = Field(default_factory=dict)
    effects: Annotated[dict[Text, Effect], Field(max_length=512)] = Field(default_factory=dict)
    """What repeating a call of a tool does, by the server's own name of it. A tool that is not
    named is a `write`, whatever the server says.
    """
    timeout_s: Annotated[float, Field(gt=0, le=3_600)] | None = None
    """How long one call may take. Default: 60."""

    @model_validator(mode="after")
    def _one(self) -> McpServerPut:
        if (self.command is None) == (self.url is None):
            raise ValueError("give exactly one of command and url")
        if self.url is None and self.headers:
            raise ValueError("headers go with url, not with command; use env")
        if self.command is None and self.env:
            raise ValueError("env goes with command, not with url; use headers")
        for name, value in self.headers.items():
            if name.lower() in _CREDENTIALS and _SECRET not in value:
                raise ValueError(
                    f"the header {name} carries a credential: keep that with `harness secrets set` "
                    f"and give {_SECRET}its-name here"
                )
        return self

    def target(self) -> dict[str, Json]:
        """Return where the server is, as the store keeps it."""
        if self.command is not None:
            return {"command": list(self.command), "env": dict(self.env)}
        return {"url": self.url, "headers": dict(self.headers)}


class McpServerCreate(McpServerPut):
    """A server to declare under a name."""

    name: ServerName


class McpAccept(Input):
    """What to accept of what the server lists now."""

    tool: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """One tool, by the server's name of it or by ours; none means all."""
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """`listed_digest` of what was looked at, of the tool or of the server: refused when it is
    another by now.
    """


class McpCheck(Output):
    """What the last look at a server found."""

    ok: bool
    at: Time
    ms: float
    protocol: str | None = None
    server: str | None = None
    tools: int | None = None
    code: str | None = None
    error: str | None = None
    stderr: str | None = None


class McpServerView(Output):
    """A server. Values of headers and environment are shown only where they are references."""

    id: str
    name: str
    transport: Literal["stdio", "http"]
    command: list[str] | None
    env: dict[str, str]
    url: str | None
    headers: dict[str, str]
    effects: dict[str, Effect]
    timeout_s: float | None
    listed_digest: str | None
    listed_at: Time | None
    check: McpCheck | None
    created_at: Time
    created_by: str
    updated_at: Time


class McpToolView(Output):
    """A tool of a server: what was accepted, what is listed now, and what differs between them."""

    name: str
    tool: str
    """The name by which agents call it."""
    state: Literal["ready", "new", "changed", "gone", "refused"]
    effect: Effect
    problem: str | None
    accepted: dict[str, Any] | None
    accepted_digest: str | None
    accepted_at: Time | None
    accepted_by: str | None
    listed: dict[str, Any] | None
    listed_digest: str | None
    diff: list[str]


class McpTools(Output):
    """All tools of a server."""

    data: list[McpToolView]


class McpAccepted(Output):
    """The names of the tools that are accepted now and were not before."""

    accepted: list[str]
