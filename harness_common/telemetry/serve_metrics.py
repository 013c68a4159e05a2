"""Lets Prometheus read the metrics of a process without a web server: a thread with a small one."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from prometheus_client import start_http_server
from prometheus_client.registry import Collector, CollectorRegistry

log = structlog.get_logger()


def serve(
    registry: Collector | CollectorRegistry, host: str, port: int | None
) -> Callable[[], None]:
    """Listen at `/metrics`; returns what stops it. A port that is taken is told and no reason to
    end: what the process does matters more than what is seen of it.
    """
    if port is None:
        return lambda: None
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        log.error("metrics.not_served", host=host, port=port, error=str(error))
        return lambda: None
    log.info("metrics.served", host=host, port=port)

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join(1.0)

    return stop
