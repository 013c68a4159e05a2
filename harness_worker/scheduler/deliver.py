"""Webhooks: what the trigger on events queued is sent, signed, until it is taken or given up.

Requests go on beside the ticks. A delivery may come twice, never not at all; its id stays the same.
Some places are for webhooks that none is under way to: one that does not answer would hold up all.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, Final
from uuid import UUID

import httpx
import orjson
import structlog

from harness_common.core import webhook
from harness_common.core.ids import encode
from harness_common.store.connection import DatabaseUnavailable, Row
from harness_common.store.keys import read_pepper
from harness_worker.egress.client import Answer, Ask, Egress, TooManyRedirects
from harness_worker.egress.retry import retry_after_s
from harness_worker.egress.transport import Refused
from harness_worker.scheduler.looper import Look, Shared
from harness_worker.tools.http_tools import rules_of

log = structlog.get_logger()

AT_ONCE: Final = 20
KEPT: Final = 5
"""Of those, for webhooks that nothing is being sent to, one each."""
_SEARCH_S: Final = 1.0
"""Pause after such webhooks were looked for in vain: what waits for the others is passed over."""
TIMEOUT_S: Final = 20.0
_TELL_S: Final = 60.0
STOP_S: Final = 3.0
"""How long a process that stops waits for what it is sending."""
_GONE: Final = 410


class DeliverLoop:
    """Sends what is due."""

    name = "deliver"

    def __init__(self, shared: Shared, egress: Egress | None = None) -> None:
        self._shared = shared
        self._egress = egress or Egress(shared.settings, partial(rules_of, shared.db))
        self._pepper: bytes | None = None
        self._told_at = -math.inf
        self._busy: Counter[UUID] = Counter()
        self._search_at = 0.0
        self.sending: set[asyncio.Task[None]] = set()

    async def run_once(self, look: Look) -> int:
        """Begin what is due, as far as there is room."""
        room = AT_ONCE - len(self.sending)
        if look.deliver_in_s is None or look.deliver_in_s > 0 or room <= 0:
            return 0
        pepper = self._pepper = await self._know_pepper()
        if pepper is None:
            return 0
        begun = 0
        if room > KEPT:
            begun = taken = await self._take(pepper, room - KEPT, ())
            if not taken:
                await self._hold_strays()
            if taken < room - KEPT:
                return begun
        while len(self.sending) < AT_ONCE and time.monotonic() >= self._search_at:
            taken = await self._take(pepper, 1, list(self._busy))
            if not taken:
                self._search_at = time.monotonic() + _SEARCH_S
            begun += taken
        return begun

    async def _hold_strays(self) -> None:
        """Hold what is due to webhooks that are disabled: given up, it would not be sent after they
        are enabled.
        """
        for row in await self._shared.db.fetch("webhooks_stray", {"term": self._shared.term}):
            await self._shared.db.fetch("webhook_hold", row)

    async def _know_pepper(self) -> bytes | None:
        """Return the pepper that the API has. One made here would sign with secrets that nobody was
        told: without it all waits, and the log says so once a minute.
        """
        pepper = self._pepper or await asyncio.to_thread(read_pepper, self._shared.settings)
        if pepper is None and time.monotonic() - self._told_at >= _TELL_S:
            self._told_at = time.monotonic()
            log.error("webhook.pepper_missing", needs="HARNESS_API__KEY_PEPPER, as the API has it")
        return pepper

    async def finish(self, patience_s: float = STOP_S) -> None:
        """Wait for what is being sent, so that it is not sent again; whoever leads next sends what
        takes longer.
        """
        if self.sending:
            await asyncio.wait(self.sending, timeout=patience_s)

    async def _take(self, pepper: bytes, most: int, busy: Sequence[UUID]) -> int:
        """Begin up to `most` deliveries, of other webhooks than those of `busy`."""
        params = {"term": self._shared.term, "batch": most, "busy": list(busy)}
        rows = await self._shared.db.fetch("webhooks_take", params)
        for row in rows:
            self._busy[row["webhook_id"]] += 1
            task = asyncio.create_task(self._deliver(row, pepper))
            self.sending.add(task)
            task.add_done_callback(self.sending.discard)
        return len(rows)

    async def _deliver(self, row: Row, pepper: bytes) -> None:
        try:
            result = await self._send(row, pepper)
            await self._record(row, result)
        except DatabaseUnavailable as error:
            log.warning("webhook.not_recorded", error=str(error))  # due again in a minute
        except Exception:
            log.exception("webhook.failed", webhook=encode("webhook", row["webhook_id"]))
        finally:
            self._busy -= Counter([row["webhook_id"]])

    async def _send(self, row: Row, pepper: bytes) -> Answer | str:
        """Make one attempt; return the answer, or why there is none."""
        if "broken" in row:
            return f"not readable here: {row['broken'].error_code}"
        body = orjson.dumps(body_of(row))
        message_id, at_s = encode("delivery", row["id"]), int(row["now"].timestamp())
        newest = row["secret_n"]
        numbers = [newest, newest - 1] if row["rotating"] and newest > 1 else [newest]
        secrets = [webhook.secret_of(pepper, row["webhook_id"], n) for n in numbers]
        headers = {
            "content-type": "application/json",
            "webhook-id": message_id,
            "webhook-timestamp": str(at_s),
            "webhook-signature": webhook.signature(secrets, message_id, at_s, body),
        }
        ask = Ask("POST", row["url"], headers, body, timeout_s=TIMEOUT_S, max_bytes=4_096)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self._egress.send(row["tenant_id"], ask)
        except (Refused, TooManyRedirects) as problem:
            return f"refused: {problem}"
        except TimeoutError:
            return f"no answer within {TIMEOUT_S:g} s"
        except httpx.HTTPError as problem:
            return f"no answer ({type(problem).__name__})"
        except DatabaseUnavailable:
            raise
        except Exception as problem:
            # A failure like any other: an interceptor may raise whatever it likes.
            log.exception("webhook.failed", webhook=encode("webhook", row["webhook_id"]))
            return f"not sent ({type(problem).__name__})"

    async def _record(self, row: Row, result: Answer | str) -> None:
        answer = result if isinstance(result, Answer) else None
        status, again_s = "delivered", 0.0
        if answer is None or not 200 <= answer.status < 300:
            asked_s = retry_after_s(answer.headers) if answer is not None else None
            waits_s = webhook.again_in_s(row["attempt"], asked_s, random.random())
            status, again_s = ("failed", 0.0) if waits_s is None else ("pending", waits_s)
        gone = answer is not None and answer.status == _GONE
        found = await self._shared.db.fetch_one(
            "webhook_done",
            {
                "tenant_id": row["tenant_id"],
                "id": row["id"],
                "attempt": row["attempt"],
                "status": "failed" if gone else status,
                "again_s": again_s,
                "response_status": answer.status if answer else None,
                "error": _error(result),
                "gone": gone,
                "most": webhook.MOST_FAILURES,
            },
        )
        self._shared.count(f"webhooks_{status}")
        if found is not None and found["disabled"]:
            key = {"tenant_id": row["tenant_id"], "webhook_id": row["webhook_id"]}
            await self._shared.db.fetch("webhook_hold", key)
            log.warning("webhook.disabled", webhook=encode("webhook", row["webhook_id"]))


def _error(result: Answer | str) -> str | None:
    if isinstance(result, str):
        return result[:300]
    return None if 200 <= result.status < 300 else f"answered {result.status}"


def body_of(row: Row) -> dict[str, Any]:
    """Write what is told: ids and numbers, never what was asked or answered."""
    data: dict[str, Any] = {"webhook_id": encode("webhook", row["webhook_id"])}
    if row["run_id"] is not None:
        kept = {k: v for k, v in row["body"].items() if k != "error"}
        error = row["body"].get("error")
        code = error.get("code") if isinstance(error, dict) else None
        data |= {
            **kept,
            "run_id": encode("run", row["run_id"]),
            "seq": row["seq"],
            "error_code": code,
            "agent": row["agent_name"],
            "agent_version": row["agent_version"],
            "session_id": encode("session", row["session_id"]) if row["session_id"] else None,
            "tags": row["tags"],
        }
    return {"type": row["type"], "timestamp": row["created_at"].isoformat(), "data": data}
