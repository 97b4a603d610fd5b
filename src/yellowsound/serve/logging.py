"""Logs of the server: structlog, readable on a terminal and JSON lines elsewhere."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog


def configure_logging(level: str = "info", as_json: bool | None = None) -> None:
    """Set up structlog for this process. ``as_json`` None: JSON unless stderr is a terminal."""
    if as_json is None:
        as_json = not sys.stderr.isatty()
    last: Any = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info if as_json else _unchanged,
            last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )


def logger(**bound: Any) -> Any:
    """A logger with ``bound`` values (job_id, worker, stage) on each line."""
    return structlog.get_logger().bind(**bound)


def _unchanged(_logger: Any, _name: str, event: Any) -> Any:
    return event
