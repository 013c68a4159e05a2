"""Turning telemetry on: what the `main` of each process calls after it has read its settings."""

from __future__ import annotations

from collections.abc import Callable

from harness_common.settings import TelemetrySettings
from harness_common.telemetry.export import Outcome, count_nothing


def start_traces(
    config: TelemetrySettings,
    service: str,
    instance: str,
    count: Callable[[Outcome, int], None] = count_nothing,
) -> None:
    """Begin to send spans if a collector is set; `count` hears what became of them.

    Ends the process when the libraries are not installed: traces that somebody asked for must not
    be missing in silence.
    """
    if config.otlp_endpoint is None:
        return
    try:
        from harness_common.telemetry import otlp  # noqa: PLC0415 - only where traces are on
    except ImportError as error:
        raise SystemExit(
            f"HARNESS_TELEMETRY__OTLP_ENDPOINT is set, and {error.name} is not installed. "
            "Install harness[otel], or unset it."
        ) from error
    otlp.begin(config, service, instance, count)
