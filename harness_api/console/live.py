"""What a run's page is told while it is open: that something has changed, and tokens as they come.

The page fetches what changed; so nothing is lost when a message is, and what comes late is current.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final
from uuid import UUID

import orjson
from starlette.responses import StreamingResponse

from harness_api.auth import Caller
from harness_api.deps import Services
from harness_api.sse import news
from harness_common.core import events as ev
from harness_common.core.errors import Transient
from harness_common.core.run import TERMINAL, Status
from harness_common.store.run_reads import read_progress

_LIVE: Final = {ev.LIVE_DELTA: "delta", ev.LIVE_STEP_STARTED: "begun", ev.TOOL_PROGRESS: "progress"}


def live_stream(services: Services, caller: Caller, run_id: UUID) -> StreamingResponse:
    """Answer with the stream of a run. The caller has seen that the run exists."""
    body = follow(services, caller.tenant_id, run_id, caller.public_id)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(body, media_type="text/event-stream", headers=headers)


def _frame(name: str, data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(data))


async def follow(
    services: Services, tenant_id: UUID, run_id: UUID, public_id: str
) -> AsyncGenerator[bytes, None]:
    """Yield frames: `changed` with the status and the last event, what is live, and `end`; as long
    as the key `public_id` lives.
    """
    async with services.hub.watch(tenant_id, run_id) as reader:
        yield b"retry: 2000\n\n"
        reader.notice()
        while (heard := await news(services, reader, public_id)) is not None:
            if not heard:
                yield b": ping\n\n"
            for item in reader.deltas():
                if frame := _live(item):
                    yield frame
            if not reader.take_notice():
                continue
            try:
                rows = await read_progress(services.db, tenant_id, [run_id])
            except Transient:
                continue  # the next notice, or the hub's poll, tells it again
            if not rows:
                return
            status, seq = rows[0]["status"], rows[0]["last_seq"]
            yield _frame("changed", {"status": status, "seq": seq})
            if Status(status) in TERMINAL:
                yield _frame("end", {"status": status})
                return


def _live(item: dict[str, Any]) -> bytes | None:
    name = _LIVE.get(str(item.get("type")))
    return _frame(name, {k: v for k, v in item.items() if k != "type"}) if name else None
