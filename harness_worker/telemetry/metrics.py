"""The metrics of a worker process. Labels are bounded: kinds, outcomes, error codes and providers,
never a tenant, a run, a tool's name or a text.

With `PROMETHEUS_MULTIPROC_DIR` set (by the supervisor, which serves them) the values lie in files
that outlive a killed process.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from harness_common.telemetry.export import OUTCOMES
from harness_common.telemetry.labels import Bounded

_QUICK: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
_SLOW: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)

REGISTRY: Final = CollectorRegistry()

kinds: Final = Bounded(16)
codes: Final = Bounded(64)
"""Of errors: ours and those that plugins and tools name."""
providers: Final = Bounded(32)


@cache
def count(metric: Counter, *labels: str) -> Counter:
    """Return the counter with these labels; quicker than `labels`, which locks."""
    return metric.labels(*labels)


@cache
def timed(metric: Histogram, *labels: str) -> Histogram:
    """Return the histogram with these labels."""
    return metric.labels(*labels)


def _counter(name: str, what: str, *labels: str) -> Counter:
    return Counter(f"harness_{name}", what, labels, registry=REGISTRY)


def _histogram(
    name: str, what: str, *labels: str, buckets: tuple[float, ...] = _QUICK
) -> Histogram:
    return Histogram(f"harness_{name}", what, labels, buckets=buckets, registry=REGISTRY)


def _gauge(name: str, what: str) -> Gauge:
    return Gauge(f"harness_{name}", what, registry=REGISTRY, multiprocess_mode="livesum")


steps = _counter("steps", "Attempts at steps, by how they ended", "kind", "outcome")
step_seconds = _histogram("step_seconds", "How long steps took", "kind", buckets=_SLOW)
queue_wait_seconds = _histogram(
    "queue_wait_seconds", "From the first ring of a doorbell to the claim", buckets=_SLOW
)
claim_seconds = _histogram("claim_seconds", "Claiming a run, with what its step needs")
commit_seconds = _histogram("commit_seconds", "Committing a step, waits and repeats included")
retries = _counter("retries", "Attempts that are to be repeated, by error code", "code")
lost_races = _counter(
    "lost_races", "Doorbells that led to no work: lease held, nothing to do, lost ownership", "why"
)
leases_vanished = _counter(
    "leases_vanished", "Leases of held runs that Redis no longer had, and that were set again"
)
leases_taken_over = _counter("leases_taken_over", "Leases of held runs that another process had")
held = _gauge("held_runs", "Runs worked on now")
places = _gauge("places", "Runs that can be worked on at once")
doorbells_lost = _counter("doorbells_lost", "Doorbells that the broker did not take")

model_calls = _counter("model_calls", "Calls to models, by how they ended", "provider", "outcome")
model_call_seconds = _histogram(
    "model_call_seconds", "How long calls to models took", "provider", buckets=_SLOW
)
first_token_seconds = _histogram(
    "first_token_seconds", "Until the first token of an answer", "provider", buckets=_SLOW
)
tokens = _counter("tokens", "Tokens used", "provider", "direction")
cost_usd = _counter("cost_usd", "Money spent on models, as far as prices are known", "provider")
provider_refusals = _counter(
    "provider_refusals", "Calls that a provider put off (429, 529)", "provider"
)

tool_calls = _counter("tool_calls", "Tool calls, by how they ended", "effect", "status")
tool_call_seconds = _histogram(
    "tool_call_seconds", "How long tool calls took", "effect", buckets=_SLOW
)
tool_errors = _counter("tool_errors", "Tool calls that failed, by error code", "code")
breakers_opened = _counter("breakers_opened", "Breakers that a fault here has opened", "of")
sandbox_refusals = _counter(
    "sandbox_refusals", "Calls refused because the sandbox tier they need does not hold"
)
sandbox_degraded = _gauge(
    "sandbox_degraded_processes", "Worker processes whose best sandbox tier is below A"
)

spans = _counter("spans", "Spans of traces, by what became of them", "outcome")
for _outcome in OUTCOMES:
    spans.labels(_outcome)
