"""What all schemas share. Inputs refuse what they do not know; outputs are separate classes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Final, Generic, TypeVar

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    model_validator,
)

T = TypeVar("T")
_FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST: Final = datetime(2200, 1, 1, tzinfo=UTC)


class WholeNumbers(BaseModel):
    """Takes 3.0 for 3, as JSON Schema does, while all other types stay strict."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _whole(cls, data: object) -> object:
        if not isinstance(data, dict):
            return data
        return {
            k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in data.items()
        }


class Input(WholeNumbers):
    """A request body: strict types, unknown fields refused."""


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


def _plausible(value: datetime) -> datetime:
    """Bring a time within what every calculation can hold; nothing lies outside."""
    return min(max(value, _FIRST), _LAST)


InputTime = Annotated[
    AwareDatetime,
    BeforeValidator(_parse_time),
    AfterValidator(_plausible),
    Field(json_schema_extra={"format": "date-time"}),
]
"""A time in a request: RFC 3339 with an offset."""


class Page(Output, Generic[T]):
    """One page of a list; `next_cursor` leads to the next one, null on the last."""

    data: list[T]
    next_cursor: str | None = None
