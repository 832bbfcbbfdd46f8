"""The Milvus client gives its loggers handlers of their own at import; its lines are to come out as ours do."""

from __future__ import annotations

import logging

__all__ = ["adopt_client_loggers"]

_CLIENT = "pymilvus"


def adopt_client_loggers() -> None:
    """Have the client's loggers pass their lines on to the process's own handlers, warnings and worse only."""
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and (name == _CLIENT or name.startswith(f"{_CLIENT}.")):
            logger.handlers.clear()
            logger.propagate = True
            logger.setLevel(logging.NOTSET)
    logging.getLogger(_CLIENT).setLevel(max(logging.WARNING, logging.root.level))
