"""Logging: one logger for all of sfnode, and two formats. Only the command line sets up logging. Importing
sfnode does not.

Text is for people. JSON is for programs: one object per line, whatever a message or an exception contains.
Neither format contains invisible characters that peers have written.
"""

from __future__ import annotations

import json
import logging
import math
import sys
from datetime import UTC, datetime
from typing import Any, TextIO

from sfnode.errors import UserError
from sfnode.printable import LONGEST, paragraph, printable

log = logging.getLogger("sfnode")
"""The logger of the whole package. Without `set_up_logging`, its records go where the host program sends its
own."""

FORMATS = ("text", "json")
"""Values of `--set log.format`."""

BEGINS = "begins"
"""Attribute with which the function `begins` marks its log records."""

_ORDINARY = (
    frozenset(vars(logging.makeLogRecord({})))
    | {BEGINS}
    | {"message", "asctime", "taskName", "color_message"}
)
"""Attributes of every log record. Any other attribute was passed as `extra`, and is written as a field."""


class _Stderr(logging.StreamHandler[TextIO]):
    """A handler that writes to the current `sys.stderr`. While a progress bar has replaced `sys.stderr`,
    lines are printed above the bar."""

    def emit(self, record: logging.LogRecord) -> None:
        if self.stream is not sys.stderr:
            self.setStream(sys.stderr)
        super().emit(record)


class TextFormatter(logging.Formatter):
    """Formats a record for people. Further lines of a record are indented, so that none of them looks like a
    separate record."""

    def format(self, record: logging.LogRecord) -> str:
        return paragraph(super().format(record))


class JsonFormatter(logging.Formatter):
    """Formats a record as one line: time (RFC 3339, UTC), level, logger, message, fields, exception."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:LONGEST],
        }
        if fields := {name: value for name, value in vars(record).items() if name not in _ORDINARY}:
            line["fields"] = {name: _plain(value) for name, value in fields.items()}
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        return printable(json.dumps(line, default=str, ensure_ascii=False))


def _plain(value: Any) -> Any:
    """Return a value that JSON can express: NaN and infinities become text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def begins(what: str, *arguments: object) -> None:
    """Log the beginning of work that may take seconds. Displays show the message as the node's current
    work."""
    log.info(what, *arguments, extra={BEGINS: True})


def set_up_logging(level: str, form: str = "text") -> None:
    """Send sfnode's log and the warnings of other libraries to standard error. Changes Python's global
    logging, so only the command line calls it."""
    handler = _Stderr()
    text = TextFormatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    logging.getLogger().handlers = [handler]
    logging.getLogger().setLevel(logging.WARNING)
    logging.captureWarnings(form == "json")  # Python's warnings would not be JSON lines otherwise
    log.setLevel(level.upper())
    logging.getLogger("aiohttp.server").addFilter(_is_own_fault)


def _is_own_fault(record: logging.LogRecord) -> bool:
    """Return False for log records of requests that are not HTTP, so that these records are dropped. Such
    requests are answered with 400, and are no fault of ours."""
    error = record.exc_info[1] if record.exc_info else None
    return type(error).__module__ != "aiohttp.http_exceptions"


def log_error(error: UserError) -> None:
    """Log the error that ends a node, for programs that read its log."""
    log.error("%s", error.what, extra={"code": f"SF{error.code:03d}", "fix": error.fix})
