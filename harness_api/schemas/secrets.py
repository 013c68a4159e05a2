"""Secrets, encryption and data keys on the wire. No answer has a field for a value."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from harness_api.schemas.base import Input, Output, Time


class SecretPut(Input):
    """The value of a secret: 6 bytes to 64 KiB of UTF-8. It is never shown again."""

    value: Annotated[str, Field(max_length=65_536, repr=False)]


class SecretView(Output):
    """What may be known of a secret."""

    name: str
    version: int
    created_at: Time
    set_at: Time
    set_by: str
    last_used_at: Time | None


class DataKeyView(Output):
    """The newest data key of the tenant: which key-encryption key wraps it."""

    version: int
    kek: str
    created_at: Time
    rewrapped_at: Time | None


class EncryptionView(Output):
    """Whether bodies that are written now are encrypted."""

    on: bool
    since: Time | None
    data_key: DataKeyView | None


class EncryptionPut(Input):
    """Turn the encryption of bodies on or off; what is stored already stays as it is."""

    on: bool
    new_key: bool = False
    """Write with a fresh data key from now on."""


class WrappingView(Output):
    """How many data keys of all tenants each key-encryption key wraps."""

    current: str | None
    known: list[str]
    data_keys: dict[str, int]
    left: int
    """Data keys that are to be wrapped by the current one."""
    out_of_reach: int
    """Data keys whose key-encryption key this process was not given."""


class RewrapInput(Input):
    """How many data keys to rewrap in this request."""

    limit: Annotated[int, Field(ge=1, le=1000)] = 100


class RewrapView(WrappingView):
    """What one request of a rewrap did, and what is left."""

    rewrapped: int
