"""(n) Lists and pages at 100,000 runs and 2,000,000 events: how long the server takes for each.

The database is seeded by SQL (`benchmarks.seed`); the API is the real process, asked by one client
over a kept connection. A request is timed where it is answered, with what HTTP adds on this
machine; each is made many times with other values, warm.
"""

from __future__ import annotations

import itertools
import random
import secrets
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import httpx
import psycopg

from benchmarks.options import Options
from benchmarks.report import Measure, Outcome, percentile
from benchmarks.seed import seed
from benchmarks.stack import BenchFailed, Stack
from harness_common.core.ids import encode
from harness_common.store import keys

TITLE: Final = "lists and pages at 100,000 runs"
MOST_MS: Final = 200.0
_PEPPER: Final = b"bench"
_SEED: Final = 3

Asks = Iterator[str]


def run(stack: Stack, options: Options) -> Outcome:
    """Seed, and ask for everything."""
    count, times = (2_000, 5) if options.quick else (100_000, 40)
    with stack.lab("lists", {"HARNESS_API__KEY_PEPPER": _PEPPER.decode()}) as lab:
        made = seed(lab.database_url, count, say=lab.say)
        headers = {"Authorization": f"Bearer {admin_key(lab.database_url, made.tenants[0])}"}
        url = lab.start_api()
        with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
            took = {
                name: measure(client, asks, times)
                for name, asks in questions(lab.database_url, made.tenants[0]).items()
            }
        problems = [f"{name}: {status}" for name, (_, status) in took.items() if status]
        measures = [
            Measure(f"{name}, p95", percentile(ms, 95), "ms", MOST_MS, "most",
                    note=f"p50 {percentile(ms, 50):.0f}")
            for name, (ms, _) in took.items()
        ]  # fmt: skip
        details = {"runs": made.runs, "events": made.events, "seeded_s": round(made.took_s, 1)}
        return Outcome(measures, details, problems)


def measure(client: httpx.Client, asks: Asks, times: int) -> tuple[list[float], str]:
    """Ask `times` times after two that do not count; return how long each took, and the first
    answer that was no success.
    """
    ms: list[float] = []
    for number, path in enumerate(itertools.islice(asks, times + 2)):
        begun = time.perf_counter()
        answer = client.get(path)
        if number >= 2:
            ms.append((time.perf_counter() - begun) * 1000)
        if not answer.is_success:
            return [0.0], f"{path} gave {answer.status_code}: {answer.text[:200]}"
    return ms, ""


def admin_key(database_url: str, tenant_id: UUID) -> str:
    """Make an admin key of a tenant, which runs the platform from now on."""
    public_id, secret = secrets.token_hex(8), secrets.token_hex(16)
    with psycopg.connect(database_url, autocommit=True) as conn:
        conn.execute("UPDATE tenants SET operator = true WHERE tenant_id = %s", (tenant_id,))
        conn.execute(
            "INSERT INTO api_keys (tenant_id, name, public_id, secret_hash, role) "
            "VALUES (%s, 'bench', %s, %s, 'admin')",
            (tenant_id, public_id, keys.hash_secret(_PEPPER, public_id, secret)),
        )
    return f"hk_{public_id}_{secret}"


def questions(database_url: str, tenant_id: UUID) -> dict[str, Asks]:
    """Name what is asked, each with endless paths."""
    chance = random.Random(_SEED)
    query = "SELECT id, session_id FROM runs WHERE tenant_id = %s AND step > 0 LIMIT 5000"
    with psycopg.connect(database_url) as conn:
        found = conn.execute(query, (tenant_id,)).fetchall()
    if not found:
        raise BenchFailed("nothing was seeded")
    ids = [row[0] for row in found]
    sessions = [row[1] for row in found]
    now = datetime.now(UTC)

    def of(template: str, make: Callable[[], dict[str, Any]] = dict) -> Asks:
        while True:
            yield template.format(**make())

    def run_page(tail: str) -> Asks:
        return of(f"/v1/runs/{{run}}{tail}", lambda: {"run": encode("run", chance.choice(ids))})

    def day() -> dict[str, Any]:
        at = now - timedelta(days=chance.randrange(3, 100))
        ends = at + timedelta(days=1)
        return {"a": at.strftime("%Y-%m-%dT%H:%M:%SZ"), "b": ends.strftime("%Y-%m-%dT%H:%M:%SZ")}

    def status(*names: str) -> Asks:
        return of("/v1/runs?" + "&".join(f"status={name}" for name in names))

    return {
        "runs, first page": of("/v1/runs"),
        "runs, a page deep inside": of(
            "/v1/runs?cursor={c}&limit=200", lambda: {"c": chance.choice(ids).hex}
        ),
        "runs, status failed": status("failed"),
        "runs, status waiting_approval": status("waiting_approval"),
        "runs, status running (none)": status("running"),
        "runs, status cancelling (none)": status("cancelling"),
        "runs, four statuses": status("queued", "running", "waiting_input", "paused"),
        "runs, agent": of("/v1/runs?agent=refund"),
        "runs, agent that has none": of("/v1/runs?agent=nobody"),
        "runs, session": of(
            "/v1/runs?session_id={s}", lambda: {"s": encode("session", chance.choice(sessions))}
        ),
        "runs, tag of many": of("/v1/runs?tag=env:prod"),
        "runs, tag of one": of(
            "/v1/runs?tag=ticket:T-{n}", lambda: {"n": chance.randrange(60_000)}
        ),
        "runs, two tags": of("/v1/runs?tag=team:team7&tag=env:test"),
        "runs, tag that none has": of("/v1/runs?tag=nothing:here"),
        "runs, one day": of("/v1/runs?created_after={a}&created_before={b}", day),
        "runs, error code": of("/v1/runs?error_code=TOOL_FAILED"),
        "runs, error code that none has": of("/v1/runs?error_code=NEVER_SEEN"),
        "runs, stop reason": of("/v1/runs?stop_reason=max_iterations_exceeded"),
        "runs, stop reason that none has": of("/v1/runs?stop_reason=poisoned"),
        "runs, children of one": of(
            "/v1/runs?parent={r}", lambda: {"r": encode("run", chance.choice(ids))}
        ),
        "runs, retried": of("/v1/runs?retried=true"),
        "runs, failed and not retried": of("/v1/runs?status=failed&retried=false"),
        "sessions, first page": of("/v1/sessions"),
        "sessions of a user": of(
            "/v1/sessions?user_id=user{n}", lambda: {"n": chance.randrange(997)}
        ),
        "run": run_page(""),
        "run, events": run_page("/events?limit=1000"),
        "run, steps": run_page("/steps"),
        "run, tree": run_page("/tree"),
        "run, checkpoints": run_page("/checkpoints"),
        "run, messages": run_page("/messages"),
        "run, tool calls": run_page("/tool-calls"),
        "run, lineage": run_page("/lineage"),
        "run, export": run_page("/export"),
        "tenant": of("/v1/tenant"),
        "platform": of("/v1/platform/limits"),
        "approvals": of("/v1/approvals"),
        "effects": of("/v1/effects"),
        "audit": of("/v1/audit"),
        "storage": of("/v1/storage"),
    }
