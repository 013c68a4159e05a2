"""The metrics of a scheduler: what its loops do, and, while it leads, what the database says of all
runs.

The database is asked when Prometheus asks, at most every few seconds, by one statement whose counts
are bounded: a scheduler that nobody scrapes asks nothing, and one that stands by shows none of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from harness_common.store.connection import DatabaseUnavailable, Row
from harness_common.store.db import Database
from harness_common.telemetry.export import OUTCOMES
from harness_common.telemetry.labels import Bounded

COUNTED_TO: Final = 10_000
"""Where counts over all runs stop: this much is an alarm in any case."""
_EVERY_S: Final = 5.0
_PATIENCE_S: Final = 3.0
_WAITS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3_600)
_TICKS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_RECOVERIES: Final = (
    ("no heartbeat", "no_heartbeat"),
    ("its connection", "disconnected"),
    ("killed by signal", "killed"),
    ("ended with", "exited"),
)

REGISTRY: Final = CollectorRegistry()

log = structlog.get_logger()

actions: Final = Bounded(64)
actions_done = Counter(
    "harness_scheduler_actions", "What the loops did", ["action"], registry=REGISTRY
)
tick_seconds = Histogram(
    "harness_scheduler_tick_seconds",
    "One look and all loops",
    buckets=_TICKS,
    registry=REGISTRY,
)
admission_wait_seconds = Histogram(
    "harness_admission_wait_seconds",
    "How long runs that the scheduler admitted had been queued",
    buckets=_WAITS,
    registry=REGISTRY,
)
recoveries = Counter(
    "harness_recoveries", "Runs given back after their process was lost", ["reason"],
    registry=REGISTRY,
)  # fmt: skip
# Begun at 0: in a series that begins with what happened Prometheus sees no increase.
for _reason in (*(reason for _, reason in _RECOVERIES), "unknown_worker", "other"):
    recoveries.labels(_reason)
leader = Gauge("harness_leader", "1 while this scheduler leads", registry=REGISTRY)
doorbells_lost = Gauge(
    "harness_scheduler_doorbells_lost",
    "Doorbells that the broker did not take since start",
    registry=REGISTRY,
)
spans = Counter(
    "harness_spans", "Spans of traces, by what became of them", ["outcome"], registry=REGISTRY
)
for _outcome in OUTCOMES:
    spans.labels(_outcome)


def recovery_reason(died_why: str | None) -> str:
    """Name why a run was given back in one word of few."""
    if died_why is None:
        return "unknown_worker"
    for beginning, reason in _RECOVERIES:
        if died_why.startswith(beginning):
            return reason
    return "other"


class PlatformMetrics(Collector):
    """What the database says of all runs, as long as this scheduler leads."""

    def __init__(self, db: Database, loop: asyncio.AbstractEventLoop, lease_s: float) -> None:
        self._db, self._loop, self._lease_s = db, loop, lease_s
        self._leads = self._away = False
        self._read_at = -_EVERY_S
        self._row: Row | None = None

    def lead(self, leads: bool | None) -> None:
        """Say whether this scheduler leads now; None: it does not know, Postgres does not answer.
        That it shows whoever led before: without Postgres nobody leads.
        """
        self._leads, self._away = bool(leads), leads is None
        leader.set(self._leads)

    def describe(self) -> Iterable[Metric]:
        """Describe nothing: registering must not ask the database."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Ask for what is not known well enough; called in a thread of the listener."""
        if self._away:
            return [_answers(False)]
        if not self._leads:
            return []
        asked = asyncio.run_coroutine_threadsafe(self.read(), self._loop)
        try:
            row = asked.result(_PATIENCE_S + 1.0)
        except TimeoutError:
            row = None
        return families(row) if row is not None else [_answers(False)]

    async def read(self) -> Row | None:
        """Return what the database says, at most some seconds old; None when it does not answer."""
        if time.monotonic() - self._read_at < _EVERY_S:
            return self._row
        self._read_at = time.monotonic()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                params = {"most": COUNTED_TO, "lease_s": self._lease_s}
                self._row = await self._db.fetch_one("gauges", params)
        except (DatabaseUnavailable, TimeoutError) as error:
            log.warning("metrics.not_read", error=str(error))
            self._row = None
        return self._row


def _answers(yes: bool) -> GaugeMetricFamily:
    what = "0 on any scheduler that Postgres does not answer; 1 on the leader if it could be read"
    return GaugeMetricFamily("harness_database_answers", what, value=float(yes))


_STATES: Final = (
    "queued", "running", "delayed", "waiting_approval", "waiting_input", "waiting_tool",
    "waiting_children",
)  # fmt: skip
"""Paused runs wait for no time, and are in no index that could be counted cheaply."""
_SINGLE: Final[Mapping[str, tuple[str, str]]] = {
    "oldest_queued_s": ("queued_oldest_seconds", "How long the oldest of the queued runs waits"),
    "overdue_s": (
        "overdue_seconds",
        "How late the scheduler is with what is due: more than a minute means stuck runs",
    ),
    "approvals": ("approvals_pending", "Approvals that wait for a person"),
    "oldest_approval_s": ("approvals_oldest_seconds", "How long the oldest of them waits"),
    "unknown_effects": ("unknown_effects", "Calls whose effect nobody knows, for a person"),
    "throttles": ("throttled_scopes", "Providers, models and credentials that are paused or paced"),
    "webhooks_disabled": ("webhooks_disabled", "Webhooks switched off after failures"),
    "deliveries_pending": ("webhook_deliveries_pending", "Deliveries that are still to be made"),
    "workers": ("workers_alive", "Worker processes that live"),
    "places": ("worker_places", "Runs that live workers can hold"),
    "held": ("worker_runs_held", "Runs that they hold"),
}


def families(row: Row) -> list[Metric]:
    """Make gauges of one answer of `gauges.sql`."""
    out: list[Metric] = [_answers(True)]
    runs = dict.fromkeys(_STATES, 0) | row["runs"]
    out.append(_labelled("runs", "Runs that are not over, by state", "state", runs))
    why = {k: row["queued"].get(k, 0) for k in ("admission", "session", "key")}
    out.append(_labelled("runs_queued", "Queued runs, by what holds them", "reason", why))
    breakers = {k: (row["breakers"] or {}).get(k, 0) for k in ("tool", "model")}
    out.append(_labelled("breakers_open", "Open breakers", "of", breakers))
    for column, (name, what) in _SINGLE.items():
        out.append(GaugeMetricFamily(f"harness_{name}", what, value=float(row[column] or 0.0)))
    return out


def _labelled(name: str, what: str, label: str, values: Mapping[str, Any]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"harness_{name}", what, labels=[label])
    for value, count in values.items():
        family.add_metric([value], float(count))
    return family
