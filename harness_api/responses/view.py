"""A response as it is shown: the run behind it, and what `emit` made of its record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from harness_api.responses.emit import Emitter, Event
from harness_api.responses.ids import Ref
from harness_api.responses.walk import Ended, Fact, Walk
from harness_common.contracts.request_options import RequestOptions, options_of
from harness_common.core.errors import NotFound
from harness_common.core.run import Status
from harness_common.store.connection import Row
from harness_common.store.db import Database
from harness_common.store.run_reads import view_run

_NO_OPTIONS: Final = RequestOptions()
_FINAL: Final = {
    "completed": "response.completed",
    "incomplete": "response.incomplete",
    "failed": "response.failed",
    "cancelled": "response.failed",
}
"""The last event by status; the clients know none for a cancelled response."""
ENDS: Final = frozenset(_FINAL.values())


@dataclass(slots=True)
class Response:
    """A response that is read, and shown so far."""

    db: Database
    tenant_id: UUID
    ref: Ref
    row: Row
    options: RequestOptions
    walk: Walk
    emitter: Emitter
    facts: list[Fact] = field(default_factory=list)

    @property
    def over(self) -> bool:
        """Tell whether nothing more comes."""
        return self.walk.over

    async def advance(self) -> list[Event]:
        """Read on; return the events of what is new."""
        facts = await self.walk.news()
        self.facts += facts
        events = [event for fact in facts for event in self.emitter.take(fact)]
        if facts and isinstance(facts[-1], Ended):
            self.row = await view_run(self.db, self.tenant_id, self.ref.run_id)
            events += self.emitter.output_text(self.row["output"])
        return events

    def json(self) -> dict[str, Any]:
        """Show the response as it is now."""
        row, options, emitter = self.row, self.options, self.emitter
        status = self.status()
        return {
            "id": str(self.ref),
            "object": "response",
            "created_at": row["created_at"].timestamp(),
            "completed_at": self.walk.at.timestamp()
            if status == "completed" and self.walk.at
            else None,
            "status": status,
            "background": options.background,
            "error": _error(row) if status == "failed" else None,
            "incomplete_details": {"reason": "max_output_tokens"}
            if status == "incomplete"
            else None,
            "instructions": options.instructions or None,
            "max_output_tokens": options.max_output_tokens,
            "metadata": row["tags"],
            "model": f"agent:{row['agent_name']}@{row['agent_version']}",
            "conversation": {"id": f"sess_{row['session_id'].hex}"},
            "output": list(emitter.output),
            "parallel_tool_calls": True,
            "previous_response_id": self._previous(),
            "store": True,
            "temperature": options.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [
                {
                    "type": "function",
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                    "strict": False,
                }
                for tool in options.tools
            ],
            "top_p": None,
            "truncation": "disabled",
            "usage": self._usage() if status in _FINAL else None,
        }

    def status(self) -> str:
        """Name the status as the clients know it."""
        if not self.over:
            fresh = self.row["status"] == Status.QUEUED and not self.emitter.output
            return "queued" if fresh else "in_progress"
        if not isinstance(self.facts[-1], Ended):
            return "completed"
        match self.facts[-1].status:
            case Status.SUCCEEDED:
                return "incomplete" if self.row["stop_reason"] == "length" else "completed"
            case Status.CANCELLED:
                return "cancelled"
        return "failed"

    def first(self) -> list[Event]:
        """Return the events that begin a stream."""
        shown = self.json() | {"status": "in_progress", "output": [], "usage": None}
        shown |= {"error": None, "completed_at": None, "incomplete_details": None}
        return [
            self.emitter.plain("response.created", response=shown),
            self.emitter.plain("response.in_progress", response=shown),
        ]

    def last(self) -> Event:
        """Return the event that ends a stream."""
        return self.emitter.plain(_FINAL[self.status()], response=self.json())

    def _previous(self) -> str | None:
        if self.ref.after:
            return str(Ref(self.ref.run_id))
        previous = self.row["prev_run_id"]
        return str(Ref(previous)) if previous else None

    def _usage(self) -> dict[str, Any]:
        used = self.emitter
        return {
            "input_tokens": used.input_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": used.output_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": used.input_tokens + used.output_tokens,
        }


async def open_response(db: Database, tenant_id: UUID, ref: Ref) -> Response:
    """Read what a response is about, before its record; raises `NotFound`."""
    row = await view_run(db, tenant_id, ref.run_id)
    if ref.after >= row["next_seq"]:
        raise NotFound(f"no response {ref}", field="response_id", value=str(ref))
    options = options_of(row["overrides"]) or _NO_OPTIONS
    return Response(
        db, tenant_id, ref, row, options, Walk(db, tenant_id, ref), Emitter(ref, options.names)
    )


async def read_response(db: Database, tenant_id: UUID, ref: Ref) -> Response:
    """Read a response as it is now; raises `NotFound`."""
    response = await open_response(db, tenant_id, ref)
    response.first()
    await response.advance()
    return response


def _error(row: Row) -> dict[str, str]:
    error = row["error"] or {}
    limited = error.get("category") == "limited"
    said = error.get("message") or row["stop_reason"] or "the run failed"
    return {
        "code": "rate_limit_exceeded" if limited else "server_error",
        "message": f"{error.get('code', 'FAILED')}: {said}",
    }
