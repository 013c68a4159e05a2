"""Memories on the wire."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from harness_api.schemas.base import Input, Output, Time
from harness_common.contracts.memory import MAX_CHARS, MAX_QUERY_CHARS, Kind, Namespace
from harness_common.core.errors import Invalid
from harness_common.core.message import Json

UserId = Annotated[
    str | None,
    Field(max_length=200, description="Whose; an empty text for runs of no user."),
]
Query = Annotated[str, Field(min_length=1, max_length=MAX_QUERY_CHARS)]


class _Owned(Input):
    namespace: Annotated[Namespace, Field(description="An agent's name, or one that agents share.")]
    user_id: UserId = None


class MemorySave(_Owned):
    """A fact to keep by hand."""

    text: Annotated[str, Field(min_length=1, max_length=4 * MAX_CHARS)]
    kind: Kind = "fact"
    shared: Annotated[
        bool, Field(description="For all users of the namespace; then without user_id.")
    ] = False
    expires_days: Annotated[int, Field(ge=1, le=36_500)] | None = None

    def owner(self) -> str | None:
        """Return whose it is to be; raises `Invalid` for two owners."""
        if self.shared and self.user_id is not None:
            raise Invalid(
                "a fact is either shared or a user's: leave user_id out, or shared",
                field="user_id",
                value=self.user_id,
            )
        return None if self.shared else self.user_id or ""


class MemorySearch(_Owned):
    """What to look for; facts that all users share are looked through too."""

    query: Query
    limit: Annotated[int, Field(ge=1, le=50)] = 10


class MemoryForget(Input):
    """Which facts to delete: all that is given must hold, and something must be."""

    namespace: Namespace | None = None
    user_id: UserId = None
    shared: bool | None = None
    query: Annotated[
        str | None,
        Field(min_length=1, max_length=MAX_QUERY_CHARS, description="Words that all are in it."),
    ] = None
    dry_run: Annotated[bool, Field(description="Count only; delete nothing.")] = False

    def check_some(self) -> None:
        """Raise `Invalid` when nothing says which facts are meant."""
        if self.model_fields_set <= {"dry_run"}:
            raise Invalid(
                "say which memories to forget: namespace, user_id, shared or query",
                field="namespace",
                value=None,
            )


class MemoryView(Output):
    """A fact that is remembered."""

    id: str
    namespace: str
    user_id: str | None
    """Null when all users share it; empty for runs of no user."""
    shared: bool
    text: str
    kind: str
    trust: str
    provenance: Json
    created_at: Time
    expires_at: Time | None


class FoundView(Output):
    """A fact that a search found, and how."""

    id: str
    text: str
    kind: str
    trust: str
    shared: bool
    created_at: Time
    expires_at: Time | None
    score: float
    by: list[str]
    provenance: Json


class MemorySearchView(Output):
    """What a search found, the best first."""

    data: list[FoundView]
    meaning: bool
    """Whether meaning was compared, not words alone."""


class ForgottenView(Output):
    """How many facts were deleted (with `dry_run`: would be)."""

    count: int
    more: bool
    """True when there are more than one request deletes: ask again."""
    dry_run: bool
