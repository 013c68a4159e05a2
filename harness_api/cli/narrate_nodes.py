"""What `--follow` says of the nodes of a graph run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from harness_api.cli.output import short
from harness_common.core import events as ev

Payload = Mapping[str, Any]


def _what(payload: Payload) -> str:
    visit = f" (visit {payload['visit']})" if payload.get("visit") else ""
    item = f" item {payload['item']}" if "item" in payload else ""
    return f"node   {short(str(payload.get('node')))}{visit}{item}"


def _why(payload: Payload) -> str:
    error = payload.get("error") or {}
    return short(f"{error.get('code')}: {error.get('message')}", 80)


def _started(payload: Payload, _: str) -> str:
    items = f"  {payload['items']} items" if "items" in payload else ""
    return f"{_what(payload)}  begins{items}"


def _completed(payload: Payload, _: str) -> str:
    failed = f", {payload['failed']} items failed" if payload.get("failed") else ""
    return f"{_what(payload)}  completed{failed}"


def _failed(payload: Payload, _: str) -> str:
    goes_on = ", the run goes on" if payload.get("goes_on") else ""
    return f"{_what(payload)}  failed ({_why(payload)}){goes_on}"


TELL_NODES: Mapping[str, Callable[[Payload, str], str]] = {
    ev.NODE_STARTED: _started,
    ev.NODE_PROGRESS: lambda payload, _: (
        f"{_what(payload)}  {payload.get('done')} of {payload.get('of')} items"
    ),
    ev.NODE_RETRIED: lambda payload, _: (
        f"{_what(payload)}  failed ({_why(payload)}), is tried again"
    ),
    ev.NODE_COMPLETED: _completed,
    ev.NODE_FAILED: _failed,
    ev.NODE_SKIPPED: lambda payload, _: f"{_what(payload)}  skipped",
}
