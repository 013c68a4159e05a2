"""Errors on the wire: RFC 9457."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class FieldProblem(BaseModel):
    """One finding about one field."""

    field: str
    message: str


class Problem(BaseModel):
    """Why a request was refused and what to do. Further members depend on `code`."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    code: str
    detail: str
    request_id: str
    field: str | None = None
    value: Any = None
    limit: Any = None
    errors: list[FieldProblem] | None = None
