"""The process that serves the API."""

from __future__ import annotations

import signal

import uvicorn
from fastapi import FastAPI
from sse_starlette.sse import AppStatus

from harness_api.__main__ import _Server


def test_it_may_be_told_to_stop_before_it_has_started(monkeypatch):
    """The signal of a roll-out or of Ctrl-C may come while it still connects."""
    # It ends the streams of this process, which serves other tests after this one.
    monkeypatch.setattr(AppStatus, "should_exit", False)
    app = FastAPI()
    server = _Server(uvicorn.Config(app), app)
    server.handle_exit(signal.SIGTERM, None)
    assert server.should_exit
