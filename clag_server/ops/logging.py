"""Structured logs on standard error: for people on a terminal, JSON elsewhere.

Library loggers (gRPC, the migrations, the Milvus client) come out the same way. Fields that may hold what users
remember are dropped above debug level, whoever logs them. Tracebacks show code, never the values of variables.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

__all__ = ["configure_logging"]

_PRIVATE_FIELDS = frozenset(
    {"text", "texts", "query", "prompt", "answer", "context_text", "token", "authorization"}
)
"""Names of log fields that are never shown above debug."""

_NOISY = ("pymilvus", "alembic", "asyncio", "sqlalchemy", "milvus_lite", "grpc", "httpx2", "httpcore2")
"""Libraries whose informational lines are of no use to an operator."""


def configure_logging(*, level: str, json: bool | None, stream: TextIO | None = None) -> None:
    """Set logging up for the process.

    Args:
        level: "debug", "info", "warning" or "error".
        json: True or False; None looks whether `stream` is a terminal.
        stream: Standard error by default.
    """
    out = stream or sys.stderr
    numeric = logging.getLevelNamesMapping()[level.upper()]
    as_json = not out.isatty() if json is None else json
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _drop_private_fields,
    ]
    renderer: list[Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if as_json
        # The renderer's own choice, where rich is installed, prints the local variables of every frame.
        else [structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)]
    )
    handler = logging.StreamHandler(out)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(numeric)
    for name in _NOISY:
        logger = logging.getLogger(name)
        logger.setLevel(max(numeric, logging.WARNING))
        # A library may have given itself handlers when it was imported.
        logger.handlers.clear()
        logger.propagate = True
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def _drop_private_fields(_logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    if method != "debug":
        for name in _PRIVATE_FIELDS & event.keys():
            event[name] = "(hidden above debug level)"
    return event
