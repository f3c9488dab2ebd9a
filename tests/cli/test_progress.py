"""Tests of progress: a bar at a terminal, plain lines elsewhere, all on standard error."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from rich.progress import Progress

from sfnode.cli import progress
from sfnode.cli.progress import LINES, Narration, left_text, waiting
from sfnode.logging import begins, log
from tests.wording import has

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


def test_where_nobody_looks_on_a_line_says_now_and_then_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINES", 0.02)
    said = ""
    with waiting("measuring", 300) as advance:
        assert capsys.readouterr().err == "measuring: about 5 min left\n"  # before anything is done
        advance(300, 600)
        while "300 of 600" not in said:
            said += capsys.readouterr().err
    assert re.fullmatch(r"(measuring: about 5 min left\n)*(measuring: 300 of 600, about 1 s left\n)+", said)


@pytest.mark.parametrize(
    ("done", "elapsed", "expected", "says"),
    [
        (0.0, 0.0, 0.0, ""),
        (0.0, 0.0, 60.0, "about 60 s left"),
        (0.01, 15.0, 60.0, "about 45 s left"),
        (0.01, 90.0, 60.0, ""),
        (1.0, 90.0, 60.0, ""),
        (0.5, 90.0, 60.0, "about 90 s left"),
        (0.1, 90.0, 0.0, "about 14 min left"),
    ],
)
def test_what_is_left_follows_from_what_is_done_once_that_tells(
    done: float, elapsed: float, expected: float, says: str
) -> None:
    assert left_text(done, elapsed, expected) == says


def on_a_terminal(script: str) -> tuple[bytes, str]:
    """Return the standard output of a program, and its standard error at a terminal."""
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
    has(text, "replaying the log", "100/100", "INFO    a line meanwhile\r\n")
    assert text.count("\n") <= 4, "the bar is drawn in place"


def test_where_nobody_knows_how_much_there_is_no_bar_is_drawn() -> None:
    """By default rich draws a full bar."""
    _, text = on_a_terminal(SCRIPT.replace("advance(done, 100)", "advance(done, 0)"))
    assert "replaying the log" in text
    assert "\N{BOX DRAWINGS HEAVY HORIZONTAL}" not in text


STARTING_NODE = """
import asyncio
from sfnode.cli import progress
from sfnode.logging import begins, set_up_logging
from sfnode.schema.status import DoingStatus, FetchStatus, LinkStatus
from tests.schema.helpers import status

set_up_logging("info")
progress.FOLLOW_INTERVAL = 0.15  # longer than the line takes to be drawn anew
link = LinkStatus(
    peer="", outbound=True, role="trainer", known=12_000, agrees=False, bytes_sent=0, bytes_received=0
)
life = (
    {"state": "starting", "fetch": FetchStatus(done=2_000_000, total=8_000_000, peers=2)},
    {"state": "starting"},
    {"state": "catching-up", "known": 4_000, "links": [link]},
    {"state": "training", "doing": DoingStatus(what="reading its rows", seconds=1, done=1_024, total=4_096)},
    {"state": "training"},
    {"state": "training", "own_updates": 1},
)
seen = [status(**moment) for moment in life for _ in range(2)]

async def main():
    with progress.Narration(terminal=True) as narration:
        begins("starting the network")
        progress.follow(lambda: seen.pop(0), narration)
        await asyncio.gather(*progress._followers)

asyncio.run(main())
"""


def test_a_terminal_shows_each_thing_that_a_starting_node_does_and_how_long_it_took() -> None:
    _, text = on_a_terminal(STARTING_NODE)
    has(text, "base model from peers 2.0 MB of 8.0 MB", "catching up 4,000 of 12,000 updates")
    assert "reading its rows 1,024 of 4,096" in text
    done = re.findall(r"INFO    (.*): \d+\.\d s\r\n", text)
    assert done == [
        "starting the network",
        "base model from peers",
        "loading the model",
        "catching up",
        "reading its rows",
        "computing the first update",
    ]
    assert re.search(r"INFO    training, \d+\.\d s after the start", text)


# -- without a terminal ------------------------------------------------------------------------------


@pytest.fixture
def now() -> list[float]:
    """Return the current time in a list, so that a test can change it."""
    return [100.0]


@pytest.fixture
def narration(now: list[float], caplog: pytest.LogCaptureFixture) -> Iterator[Narration]:
    """Yield a narration without its thread; the test calls `beat`."""
    caplog.set_level("INFO", "sfnode")
    made = Narration(terminal=False, clock=lambda: now[0])
    caplog.handler.addFilter(made.heard)
    yield made
    caplog.handler.removeFilter(made.heard)


def test_silence_is_broken_every_ten_seconds_and_no_sooner(
    narration: Narration, now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    begins("asking %s for the run", "/ip4/203.0.113.7/tcp/1/p2p/QmA")
    for _ in range(12):
        now[0] += LINES / 4
        narration.beat()
    narration.begin("catching up")
    narration.advance("4,000 of 12,000 updates")
    now[0] += LINES
    narration.beat()
    asked = "asking /ip4/203.0.113.7/tcp/1/p2p/QmA for the run"
    assert caplog.messages == [
        *(asked, *(f"{asked}: {LINES * n:.0f} s" for n in range(1, 4))),
        *("catching up", f"catching up: 4,000 of 12,000 updates, {LINES:.0f} s"),
    ]


def test_other_lines_of_the_log_break_the_silence_too_and_after_the_end_there_is_none(
    narration: Narration, now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    begins("loading the model")
    now[0] += LINES / 2
    log.info("model loaded")
    now[0] += LINES / 2
    narration.beat()
    narration.end("training")
    now[0] += LINES
    narration.beat()
    last = f"training, {LINES:.1f} s after the start"
    assert caplog.messages == ["loading the model", "model loaded", last]


def test_a_narration_that_has_ended_keeps_nothing_from_the_next_one(
    now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "sfnode")
    with Narration(terminal=True, clock=lambda: now[0]):
        begins("loading the model")
    begins("loading another model")
    assert caplog.messages[-1] == "loading another model"  # after a line of the narration itself


def test_programs_that_read_the_log_get_what_begins_and_nothing_in_between(
    now: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "sfnode")
    narration = Narration(terminal=True, plain=False, clock=lambda: now[0])
    caplog.handler.addFilter(narration.heard)
    begins("loading the model")
    now[0] += LINES
    narration.beat()
    narration.rest()
    caplog.handler.removeFilter(narration.heard)
    assert caplog.messages == ["loading the model"]


def test_a_bar_of_which_the_end_is_unknown_says_no_number() -> None:
    """By default rich shows `0/?`."""
    unknown = Progress()
    task = unknown.add_task("loading", total=None)
    assert progress._far(unknown.tasks[0]) == ""
    unknown.update(task, completed=3, total=9)
    assert progress._far(unknown.tasks[0]) == "3/9"
