"""Logging of the daemon, and nothing else yet: one logger, one format, no handlers at import."""

from __future__ import annotations

import logging

log = logging.getLogger("sfnode")


def set_up_logging(level: str) -> None:
    """Send the node's own log to standard error; libraries speak only when something is wrong."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S"))
    logging.getLogger().handlers = [handler]
    logging.getLogger().setLevel(logging.WARNING)
    log.setLevel(level.upper())
