"""Progress: a bar for somebody who looks on, a plain line for a file, and nothing on standard output."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from sfnode.cli.progress import waiting

SCRIPT = """
import sys
from sfnode.cli.progress import waiting
from sfnode.observe import log, set_up_logging
set_up_logging("info")
with waiting("replaying the log") as advance:
    for done in range(0, 101, 10):
        advance(done, 100)
    log.info("a line meanwhile")
print("result")
"""


def test_in_a_pipe_it_is_one_plain_line_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with waiting("replaying the log") as advance:
        advance(50, 100)
    said = capsys.readouterr()
    assert said == ("", "replaying the log\n")


def test_on_a_terminal_it_is_a_bar_that_goes_and_log_lines_stay_whole() -> None:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=slave,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
    )  # fmt: skip
    os.close(slave)
    shown = b""
    try:
        while chunk := os.read(master, 4096):
            shown += chunk
    except OSError:
        pass  # how a pseudo-terminal ends
    out, _ = process.communicate(timeout=60)
    os.close(master)
    assert out == b"result\n"
    text = shown.decode()
    assert "replaying the log" in text
    assert "100/100" in text
    assert "INFO    a line meanwhile\r\n" in text
    assert text.count("\n") <= 4, "the bar is drawn in place"
