"""What Prometheus sees of an API process. Labels are bounded: route templates, never paths or
tenants.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from harness_common.telemetry.export import OUTCOMES


class Metrics:
    """The metrics of one app, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "harness_api_requests",
            "Requests answered",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "harness_api_request_seconds",
            "Time to the first byte of the answer",
            ["method", "route"],
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 60),
            registry=self.registry,
        )
        self.runs_accepted = Counter(
            "harness_api_runs_accepted",
            "Runs accepted, by whether they were admitted at once",
            ["admitted"],
            registry=self.registry,
        )
        self.readers = Gauge(
            "harness_api_stream_readers",
            "Open event streams and long polls",
            registry=self.registry,
        )
        self.deltas_dropped = Counter(
            "harness_api_deltas_dropped",
            "Live deltas not shown to a slow reader",
            registry=self.registry,
        )
        self.shed = Counter(
            "harness_api_requests_shed",
            "Requests refused because as many as the process takes were under way",
            ["kind"],
            registry=self.registry,
        )
        self.doorbells_lost = Gauge(
            "harness_api_doorbells_lost",
            "Doorbells that the broker did not take since start; the scheduler rings again",
            registry=self.registry,
        )

        self.spans = Counter(
            "harness_spans",
            "Spans of traces, by what became of them",
            ["outcome"],
            registry=self.registry,
        )
        for outcome in OUTCOMES:
            self.spans.labels(outcome)

    def count_spans(self, outcome: str, n: int) -> None:
        """Count spans of this process."""
        self.spans.labels(outcome).inc(n)

    def text(self) -> bytes:
        """Write all of them in the Prometheus text format."""
        return generate_latest(self.registry)
