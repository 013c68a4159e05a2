"""Serve the HTTP API: `python -m harness_api`, which `harness api` and `harness dev` start."""

from __future__ import annotations

import signal
import sys
from types import FrameType

import uvicorn
from fastapi import FastAPI

from harness_api.app import create_app, stop_streams
from harness_common.interpreter import tune
from harness_common.settings import settings
from harness_common.telemetry.logs import configure_logging

_GRACE_S = 10


class _Server(uvicorn.Server):
    """Ends open streams as soon as the process is told to stop, so that they do not use up the
    grace.
    """

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        loop = getattr(self._app.state, "loop", None)  # not yet there while it starts
        if loop is not None:
            loop.call_soon_threadsafe(stop_streams, self._app)


def _end(number: int, frame: FrameType | None) -> None:
    del number, frame
    sys.exit(0)


def main() -> int:
    """Run until SIGINT or SIGTERM."""
    config = settings()
    configure_logging(config.log)
    app = create_app(config)
    tune()
    server = _Server(
        uvicorn.Config(
            app,
            host=config.api.host,
            port=config.api.port,
            loop="uvloop",
            http="h11",  # named, so that what else is installed does not choose another
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE_S,
        ),
        app,
    )
    # uvicorn raises the signal that stopped it once more when all is done: an orderly end is a 0.
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, _end)
    server.run()
    return 0 if server.started else 1


if __name__ == "__main__":
    sys.exit(main())
