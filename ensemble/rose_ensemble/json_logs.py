"""Logs of the model processes: one JSON object a line on the standard error, which they share with the server."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import datetime, timezone

LEVEL_VARIABLE = "ROSE_LOG_LEVEL"
LEVELS = ("debug", "info", "warning", "error")
DEFAULT_LEVEL = "warning"

_PACKAGES = ("rose_backend", "rose_ensemble")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Time (UTC), level, logger, event, then whatever the call gave as `extra`, then a traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; values that JSON does not know are written as they print."""
        line = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logs(**context: str) -> None:
    """Send this process's logs to the standard error, from the level that the environment variable names.

    Args:
        context: added to every line, e.g. the model's name.

    Raises:
        ValueError: `ROSE_LOG_LEVEL` is not one of `LEVELS`.
    """
    level = os.environ.get(LEVEL_VARIABLE, DEFAULT_LEVEL).lower()
    if level not in LEVELS:
        raise ValueError(f"{LEVEL_VARIABLE} is {level!r}, not one of {list(LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(lambda record: vars(record).update(context) or True)
    for package in _PACKAGES:
        logger = logging.getLogger(package)
        logger.handlers = [handler]
        logger.propagate = False
        logger.setLevel(level.upper())
