"""The span of a request. It is made when the request is over: then it is known whether it began a
run, whose trace it belongs to. Called by the middleware around every request.
"""

from __future__ import annotations

from contextvars import Token
from typing import Final

import structlog
from starlette.types import Scope

from harness_common.core.errors import Invalid
from harness_common.core.ids import decode
from harness_common.telemetry.causes import CAUSE, Cause, tell
from harness_common.telemetry.traces import harmless, place_in, traces

QUIET: Final = frozenset({"/healthz", "/readyz", "/metrics"})
Begun = tuple[Cause, Token[Cause | None]]


def begin(scope: Scope) -> Begun | None:
    """Note that a request begins; None while traces are off, and for what only probes ask."""
    if not traces.on or scope["path"] in QUIET:
        return None
    given = next((v for k, v in scope["headers"] if k == b"traceparent"), b"")
    cause = Cause(traces.clock(), place_in(given.decode("latin-1")))
    return cause, CAUSE.set(cause)


@harmless
def end(begun: Begun, scope: Scope, method: str, route: str, status: int) -> None:
    """Send the span of a request, and name its trace in what is logged of it."""
    cause, token = begun
    CAUSE.reset(token)
    span = tell(
        cause,
        f"{method} {route}",
        "server",
        {
            "http.request.method": method,
            "http.route": route,
            "http.response.status_code": status,
            "url.scheme": scope.get("scheme"),
            "harness.request_id": scope["state"]["request_id"],
            "harness.run_id": _run_of(scope),
            "error.type": str(status) if status >= 500 else None,
        },
        made=0 < status < 400,
    )
    if span is not None:
        structlog.contextvars.bind_contextvars(trace_id=f"{span.place.trace_id:032x}")


def _run_of(scope: Scope) -> str | None:
    """Return the run that a path names, if it is one: what else stands there is anybody's text."""
    run_id = scope.get("path_params", {}).get("run_id")
    if not isinstance(run_id, str):
        return f"run_{run_id.hex}" if run_id is not None and hasattr(run_id, "hex") else None
    try:
        decode("run", run_id)
    except Invalid:
        return None
    return run_id
