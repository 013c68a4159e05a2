"""A tenant and what it has, as the client returns it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import Field

from harness_api.client.types.view import View


class Agent(View):
    """One version of an agent."""

    id: str
    name: str
    version: int
    spec: dict[str, Any]
    digest: str
    created_at: datetime
    created_by: str = ""
    warnings: tuple[str, ...] = ()
    """Said when it is put: what to look at before a run is started."""


class AgentChange(View):
    """A field that differs between two versions of an agent."""

    path: str
    change: str
    before: Any = None
    after: Any = None
    lines: tuple[str, ...] | None = None
    """Of a text of several lines: those that changed, with some around them."""


class AgentDiff(View):
    """What changed from one version of an agent to another."""

    name: str
    from_version: int
    to_version: int
    changes: tuple[AgentChange, ...] = ()


class ApiKey(View):
    """A key without its secret."""

    id: str
    name: str
    public_id: str = ""
    role: str
    scopes: tuple[str, ...] = ()
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    rotated_from: str | None = None


class NewApiKey(ApiKey):
    """A key just made. `secret` is shown this once."""

    secret: str = Field(repr=False)


class Tenant(View):
    """The tenant of the key, and what it has going."""

    id: str
    name: str
    limits: dict[str, Any] = Field(default_factory=dict)
    running: int = 0
    queued: int = 0
    slot_seconds: float = 0.0


class Secret(View):
    """What may be known of a secret."""

    name: str
    version: int
    created_at: datetime
    set_at: datetime
    set_by: str
    last_used_at: datetime | None = None


class DataKey(View):
    """The newest data key of a tenant."""

    version: int
    kek: str
    created_at: datetime
    rewrapped_at: datetime | None = None


class Encryption(View):
    """Whether bodies that are written now are encrypted."""

    on: bool
    since: datetime | None = None
    data_key: DataKey | None = None


class DataKeys(View):
    """How many data keys each key-encryption key wraps; `rewrapped` by this request."""

    current: str | None
    known: tuple[str, ...] = ()
    data_keys: dict[str, int] = Field(default_factory=dict)
    left: int = 0
    out_of_reach: int = 0
    rewrapped: int = 0


class AuditEntry(View):
    """One change that somebody asked for."""

    id: str
    at: datetime
    actor: str
    action: str
    target: str
    request_id: str | None = None
    detail: dict[str, Any] = Field(default_factory=dict)
