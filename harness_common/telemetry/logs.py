"""Diagnostics: structlog to standard output, pretty or JSON. Events are `noun.verb_past`; values
are keys.

Prompts, tool output and secrets are never logged; sizes and ids are.
"""

from __future__ import annotations

import logging
import sys

import structlog

from harness_common.redaction import clean_line, clean_streams
from harness_common.settings import LogSettings


def configure_logging(config: LogSettings) -> None:
    """Set up logging of this process; secrets that it knows are blotted out of every line."""
    clean_streams()
    level = logging.getLevelNamesMapping()[config.level.upper()]
    colors = sys.stdout.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if config.format == "json"
        else structlog.dev.ConsoleRenderer(colors=colors, timestamp_key="at")
    )
    structlog.configure(
        processors=[*shared, renderer, clean_line],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(),
        cache_logger_on_first_use=True,
    )
    for name in ("httpx", "httpcore"):  # they write whole addresses, which may hold secrets
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.basicConfig(stream=sys.stdout, level=max(level, logging.WARNING), format="%(message)s")
