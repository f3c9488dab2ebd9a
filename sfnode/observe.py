"""Logging of the daemon: one logger, one handler, two formats; none is set up at import.

Text is for people. JSON is one object a line for programs, whatever a message or an exception contains.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

from sfnode.errors import UserError

log = logging.getLogger("sfnode")

FORMATS = ("text", "json")

_ORDINARY = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
"""What every record has; anything else was given as `extra` and is a field."""


class _Stderr(logging.StreamHandler[TextIO]):
    """Standard error as it is at the moment: while a progress bar is shown, lines go above it."""

    def emit(self, record: logging.LogRecord) -> None:
        if self.stream is not sys.stderr:
            self.setStream(sys.stderr)
        super().emit(record)


class JsonFormatter(logging.Formatter):
    """A record as one line: time (RFC 3339, UTC), level, logger, message, fields, exception."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if fields := {name: value for name, value in vars(record).items() if name not in _ORDINARY}:
            line["fields"] = {name: _plain(value) for name, value in fields.items()}
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def set_up_logging(level: str, form: str = "text") -> None:
    """Send the node's own log to standard error; libraries speak only when something is wrong."""
    handler = _Stderr()
    handler.setFormatter(
        JsonFormatter()
        if form == "json"
        else logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
    )
    logging.getLogger().handlers = [handler]
    logging.getLogger().setLevel(logging.WARNING)
    logging.captureWarnings(form == "json")  # a warning of Python's would break the rule of a line an object
    log.setLevel(level.upper())
    logging.getLogger("aiohttp.server").addFilter(_is_ours)


def _is_ours(record: logging.LogRecord) -> bool:
    """Not what somebody sends to a port who speaks no HTTP: it is answered with 400, and no fault of ours."""
    error = record.exc_info[1] if record.exc_info else None
    return type(error).__module__ != "aiohttp.http_exceptions"


def log_error(error: UserError) -> None:
    """What ends a node, for programs that read its log."""
    log.error("%s", error.what, extra={"code": f"SF{error.code:03d}", "fix": error.fix})
