"""Tests of logs: one JSON object per line, and no global effect of an import."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from datetime import datetime, timedelta
from typing import Any

import pytest

from sfnode.errors import Code, UserError
from sfnode.logging import JsonFormatter

SCRIPT = """
import logging, warnings
from sfnode.errors import Code, UserError
from sfnode.logging import log, log_error, set_up_logging
set_up_logging("info", "json")
log.info("%d updates\\nand a line", 3, extra={"known": 3, "loss": float("nan")})
log.debug("not asked for")
logging.getLogger("library").info("nor this")
logging.getLogger("library").warning("but this")
warnings.warn("and what Python warns of")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("dividing")
log_error(UserError(Code.DISK_FULL, "no room", "make some"))
"""


GARBAGE = """
import asyncio
from aiohttp import web
from sfnode.logging import set_up_logging

async def broken(request):
    raise LookupError("our own fault")

async def say(port, words):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(words)
    answer = await reader.readline()
    writer.close()
    return answer

async def main():
    application = web.Application()
    application.router.add_get("/", broken)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    for words in (b"GET / HTTP/1.1\\r\\nHost: a\\r\\nHost\\xff: b\\r\\n\\r\\n", b"GET  nonsense\\r\\n\\r\\n"):
        assert b" 400 " in await say(port, words)
    assert b" 500 " in await say(port, b"GET / HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n")
    await runner.cleanup()

set_up_logging("info")
asyncio.run(main())
"""


def test_garbage_sent_to_a_port_is_not_logged_and_our_own_fault_is() -> None:
    ended = subprocess.run([sys.executable, "-c", GARBAGE], capture_output=True, text=True, check=True)
    assert ended.stderr.count("Traceback") == 1
    assert "our own fault" in ended.stderr


@pytest.fixture(scope="module")
def lines() -> list[dict[str, Any]]:
    """Return the lines that a process logs as JSON."""
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in ended.stderr.splitlines()]


def test_every_line_has_time_level_logger_and_message(lines: list[dict[str, Any]]) -> None:
    assert [line["level"] for line in lines] == ["info", "warning", "warning", "error", "error"]
    assert [line["logger"] for line in lines] == ["sfnode", "library", "py.warnings", "sfnode", "sfnode"]
    assert lines[0]["message"] == "3 updates\nand a line"
    for line in lines:
        assert datetime.fromisoformat(line["time"]).utcoffset() == timedelta(0)


def test_fields_are_separate_and_numbers_are_valid_json(lines: list[dict[str, Any]]) -> None:
    assert lines[0]["fields"] == {"known": 3, "loss": "nan"}
    assert "fields" not in lines[1]


def test_an_exception_is_text_in_its_line(lines: list[dict[str, Any]]) -> None:
    assert lines[3]["message"] == "dividing"
    assert lines[3]["exception"].startswith("Traceback")
    assert lines[3]["exception"].endswith("ZeroDivisionError: division by zero")


def test_the_error_that_ends_a_node_has_its_number_and_its_fix(lines: list[dict[str, Any]]) -> None:
    assert lines[4]["message"] == "no room"
    assert lines[4]["fields"] == {"code": "SF041", "fix": "make some"}


def test_a_field_of_another_type_is_text() -> None:
    record = logging.makeLogRecord({"msg": "odd", "error": UserError(Code.DEVICE, "none", "any")})
    assert json.loads(JsonFormatter().format(record))["fields"]["error"].startswith("SF024: none")


QUIET = """
import logging, warnings
before = warnings.showwarning
import sfnode.daemon, sfnode.control.client, sfnode.store.verification
root, own = logging.getLogger(), logging.getLogger("sfnode")
assert (root.handlers, root.level) == ([], logging.WARNING), root.handlers
assert (own.handlers, own.level, own.propagate) == ([], logging.NOTSET, True), own.handlers
assert warnings.showwarning is before
"""


def test_importing_the_library_leaves_the_logging_of_the_host_program_alone() -> None:
    subprocess.run([sys.executable, "-c", QUIET], check=True, timeout=60)
