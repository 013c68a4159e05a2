"""The filters of the list of runs, as its form sends them: what is left empty does not filter."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from harness_api.schemas.runs import RunQuery
from harness_common.core.errors import Invalid
from harness_common.core.ids import decode

LISTS: Final = frozenset({"status", "tag"})
SINCE: Final = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7)}
_FIELDS: Final = ("q", "agent", "since", "error_code", "session_id", "cursor", "tag")
PERSON: Final = ("waiting_approval", "waiting_input")


def given(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return what was filled in: lists of `status` and `tag`, else the last value of each name."""
    out: dict[str, Any] = {}
    for name, value in pairs:
        text = value.strip()
        if not text:
            continue
        if name in LISTS:
            out.setdefault(name, []).append(text)
        else:
            out[name] = text
    return out


def filled(filters: dict[str, Any]) -> dict[str, Any]:
    """Return filters with an empty text for what was not filled in, as templates want them."""
    return dict.fromkeys(_FIELDS, "") | filters


def query_of(filters: dict[str, Any], *, limit: int = 50) -> RunQuery:
    """Read filters as the API does, which raises for what cannot be; `since` is a time ago, `q` are
    words, and a tag is written name=value or name:value.
    """
    fields = {k: v for k, v in filters.items() if k in RunQuery.model_fields}
    if "q" in filters:
        fields["text"] = filters["q"]
    if since := filters.get("since"):
        if since not in SINCE:
            raise Invalid(f"since is one of {', '.join(SINCE)}", field="since", value=since)
        fields["created_after"] = datetime.now(UTC) - SINCE[since]
    fields["tag"] = [tag.replace("=", ":", 1) for tag in filters.get("tag", ())]
    fields["limit"] = min(limit, 200)
    return RunQuery.model_validate(fields)


def is_run_id(text: str) -> bool:
    """Tell whether words are the id of a run."""
    try:
        decode("run", text)
    except Invalid:
        return False
    return True
