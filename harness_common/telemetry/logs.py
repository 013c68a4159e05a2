"""Diagnostics: structlog to standard output, pretty or JSON. Events are `noun.verb_past`; values
are keys.

Prompts, tool output and secrets are never logged; sizes and ids are.
"""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import EventDict

from harness_common.redaction import clean_line, clean_streams
from harness_common.settings import LogSettings
from harness_common.telemetry.ids import add_ids


def configure_logging(config: LogSettings) -> None:
    """Set up logging of this process; secrets that it knows are blotted out of every line.

    What libraries log by the standard library comes in the same form, from warnings on.
    """
    clean_streams()
    level = logging.getLevelNamesMapping()[config.level.upper()]
    colors = sys.stdout.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        add_ids,
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
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[_name_logger, *shared],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                renderer,
                clean_line,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(level, logging.WARNING))


def _name_logger(logger: object, method: str, event: EventDict) -> EventDict:
    """Say which library speaks."""
    del logger, method
    record = event.get("_record")
    if isinstance(record, logging.LogRecord):
        event["logger"] = record.name
    return event
