"""Start Flower in the foreground: `harness flower`, `harness dev` and the deployment do."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from functools import cached_property
from typing import Final

import structlog
from celery import Celery
from flower.app import Flower
from flower.command import extract_settings, setup_logging
from flower.options import options
from flower.urls import settings as web_settings
from kombu.utils.url import maybe_sanitize_url
from tornado.ioloop import IOLoop, PeriodicCallback

from harness_common.broker.app import app as celery_app
from harness_common.flower.hearing import Hearing, Watch
from harness_common.flower.pages import restrict
from harness_common.redis_url import is_sentinel, parse_sentinel
from harness_common.settings import Settings, settings
from harness_common.telemetry.logs import configure_logging

log = structlog.get_logger()

USER: Final = "harness"
PREFIX: Final = "flower"
_COLUMNS: Final = "uuid,args,state,result,received,runtime,worker"
_LOOKS: Final = 4
"""How often the watch looks in the time after which silence is blindness."""
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


class App(Flower):
    """Flower with our broker's address: it would derive one from the name of our transport, which
    it does not know, and show no queues.
    """

    broker: str

    @cached_property
    def broker_uri_with_password(self) -> str:
        """The address of the broker."""
        return self.broker

    @cached_property
    def broker_uri(self) -> str:
        """The same for people."""
        if is_sentinel(self.broker):  # of which kombu takes no list of hosts
            return parse_sentinel(self.broker).for_people()
        return str(maybe_sanitize_url(self.broker))


def set_options(config: Settings) -> None:
    """Tell Flower what we want; of its environment variables and its file it reads nothing."""
    flower = config.flower
    options.address, options.port = flower.host, flower.port
    options.url_prefix = PREFIX
    options.read_only = True
    options.max_tasks = flower.max_tasks
    options.tasks_columns = _COLUMNS
    options.enable_events = False  # workers send them or not, as their settings say
    options.purge_offline_workers = 3600
    if flower.password is not None:
        password = flower.password.get_secret_value()
        options.basic_auth = [f"{USER}:{password}"]
        # The same at every start, and not the password itself.
        options.cookie_secret = hashlib.sha256(f"cookie:{password}".encode()).hexdigest()
    elif flower.host not in _LOOPBACK:
        raise SystemExit(
            f"Flower shows every tenant's runs, and HARNESS_FLOWER__HOST is {flower.host}. "
            "Set HARNESS_FLOWER__PASSWORD, for Flower and for the API, or listen on 127.0.0.1."
        )


def make(config: Settings, capp: Celery) -> App:
    """Build the app and its watch."""
    set_options(config)
    extract_settings()
    setup_logging()
    restrict()
    loop = IOLoop.current()
    hearing = Hearing(capp, io_loop=loop, max_tasks_in_memory=options.max_tasks)
    app = App(options=options, capp=capp, io_loop=loop, events=hearing, **web_settings)
    app.broker = config.broker_url or config.require_redis_url()
    blind_s = config.flower.blind_after_s
    PeriodicCallback(Watch(capp, hearing, blind_s).look, blind_s * 1000 / _LOOKS).start()
    return app


def main() -> None:
    """Run until SIGTERM or Ctrl-C, which end it at once: it keeps nothing, and with the broker away
    an orderly end took Flower minutes.
    """
    config = settings()
    configure_logging(config.log)
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: os._exit(0))
    app = make(config, celery_app)
    try:
        port = app.start_http_server()
    except OSError as error:
        sys.exit(f"Flower cannot listen on {options.address}:{options.port}: {error.strerror}.")
    log.info("flower.started", host=options.address, port=port, broker=app.broker_uri)
    app.start()


if __name__ == "__main__":
    main()
