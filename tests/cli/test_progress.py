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
from sfnode.logging import log, set_up_logging
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


def on_a_terminal(script: str) -> tuple[bytes, str]:
    """What a program writes to standard output, and what a terminal is shown."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=slave,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
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
    assert process.returncode == 0, shown
    return out, shown.decode()


def test_on_a_terminal_it_is_a_bar_that_goes_and_log_lines_stay_whole() -> None:
    out, text = on_a_terminal(SCRIPT)
    assert out == b"result\n"
    assert "replaying the log" in text
    assert "100/100" in text
    assert "INFO    a line meanwhile\r\n" in text
    assert text.count("\n") <= 4, "the bar is drawn in place"


STARTING_NODE = """
import asyncio
from sfnode.cli import progress
from sfnode.schema.status import FetchStatus, LinkStatus
from tests.schema.helpers import status

progress.FOLLOW_INTERVAL = 0.15  # longer than the bar takes to be drawn anew
link = LinkStatus(
    peer="", outbound=True, role="trainer", known=90, agrees=False, bytes_sent=0, bytes_received=0
)
life = (
    {"state": "starting"},
    {"state": "starting", "fetch": FetchStatus(done=0, total=0, peers=0)},
    {"state": "starting", "fetch": FetchStatus(done=2_000_000, total=8_000_000, peers=2)},
    {"state": "starting"},
    {"state": "asking", "links": [link]},
    {"state": "catching-up", "known": 40, "links": [link]},
    {"state": "training"},
)
seen = [status(**moment) for moment in life for _ in range(3)]

async def main():
    progress.follow(lambda: seen.pop(0))
    await asyncio.gather(*progress._followers)

asyncio.run(main())
"""


def test_a_terminal_shows_how_the_base_model_comes_from_peers_and_then_how_a_node_catches_up() -> None:
    _, text = on_a_terminal(STARTING_NODE)
    assert "base model from peers" in text
    assert "2.0/8.0 MB" in text
    assert "40/90" in text
    assert text.index("base model from peers") < text.index("catching up")
    assert "base model" not in text[text.index("catching up") :]
