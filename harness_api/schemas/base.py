"""What all schemas share. Inputs refuse what they do not know; outputs are separate classes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Generic, TypeVar

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

T = TypeVar("T")


class Input(BaseModel):
    """A request body: strict types, unknown fields refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Output(BaseModel):
    """A part of an answer."""

    model_config = ConfigDict(extra="forbid")


def _utc(value: datetime) -> str:
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


Time = Annotated[datetime, PlainSerializer(_utc, return_type=str, when_used="json")]
"""A time in an answer: RFC 3339, UTC."""


def _parse_time(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("expected an RFC 3339 time such as 2026-01-31T12:00:00Z") from None


def _plausible(value: object) -> object:
    if isinstance(value, datetime) and not 1970 <= value.year <= 2200:
        raise ValueError("the year must lie between 1970 and 2200")
    return value


InputTime = Annotated[
    AwareDatetime,
    BeforeValidator(_plausible),
    BeforeValidator(_parse_time),
    Field(json_schema_extra={"format": "date-time"}),
]
"""A time in a request: RFC 3339 with an offset."""


class Page(Output, Generic[T]):
    """One page of a list; `next_cursor` leads to the next one, null on the last."""

    data: list[T]
    next_cursor: str | None = None
