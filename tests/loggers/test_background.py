"""The wrapper of all loggers: whoever measures neither waits nor fails, whatever becomes of the records."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest

from sfnode.loggers import LONGEST_NAME, MAX_WAITING, BackgroundLogger, LoggedRecord


def record(step: int) -> LoggedRecord:
    return LoggedRecord("step", step, {"loss": 1.0})


class Memory:
    """A logger that remembers; fails when told to, and waits while its gate is closed."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.steps: list[int] = []
        self.closed = 0
        self.fails = 0
        """How many calls are still to fail."""
        self.gate = threading.Event()
        self.gate.set()
        self.waits = threading.Event()

    def begin(self, name: str, settings: Mapping[str, object]) -> None:
        self._fail()
        self.begun.append(name)

    def record(self, record: LoggedRecord) -> None:
        self.waits.set()
        self.gate.wait(15)
        self._fail()
        self.steps.append(record.step)

    def close(self) -> None:
        self.closed += 1

    def _fail(self) -> None:
        if self.fails:
            self.fails -= 1
            raise OSError("no room")


def test_everything_that_was_recorded_is_written_in_order_before_the_end() -> None:
    one, two = Memory(), Memory()
    logger = BackgroundLogger({"one": one, "two": two})
    logger.begin("run", {})
    for step in range(100):
        logger.record(record(step))
    logger.close()
    for memory in (one, two):
        assert (memory.begun, memory.steps, memory.closed) == (["run"], list(range(100)), 1)


def test_a_failing_logger_costs_lines_in_the_log_and_neither_the_others_nor_whoever_measures(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad, good = Memory(), Memory()
    bad.fails = 1 + 9
    logger = BackgroundLogger({"bad": bad, "good": good})
    logger.begin("run", {})
    for step in range(20):
        logger.record(record(step))
    logger.close()
    assert good.steps == list(range(20))
    assert (bad.begun, bad.steps) == (["run"], list(range(9, 20)))  # it goes on once it can
    lines = [line for line in caplog.messages if line.startswith("bad fails")]
    assert lines == [f"bad fails, {count} times so far: no room" for count in (1, 2, 4, 8)]


def test_a_slow_logger_holds_up_nobody_and_drops_what_it_has_no_room_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slow = Memory()
    slow.gate.clear()
    logger = BackgroundLogger({"slow": slow})
    logger.begin("run", {})
    logger.record(record(0))
    assert slow.waits.wait(15)
    for step in range(1, MAX_WAITING + 6):
        logger.record(record(step))
    assert logger.dropped == 5
    assert [line for line in caplog.messages if "dropped" in line] == [
        f"loggers are too slow: {count} records were dropped so far" for count in (1, 2, 4)
    ]
    slow.gate.set()
    logger.close()
    assert slow.steps == list(range(MAX_WAITING + 1))
    assert slow.closed == 1


def test_closing_waits_no_longer_than_its_patience(caplog: pytest.LogCaptureFixture) -> None:
    stuck = Memory()
    stuck.gate.clear()
    logger = BackgroundLogger({"stuck": stuck}, patience=0.0)
    logger.begin("run", {})
    logger.record(record(0))
    assert stuck.waits.wait(15)
    logger.close()
    assert "gave up waiting for stuck" in caplog.text
    stuck.gate.set()
    logger._thread.join(15)
    assert stuck.closed == 1


def test_what_was_never_begun_is_closed_all_the_same() -> None:
    memory = Memory()
    logger = BackgroundLogger({"memory": memory})
    logger.close()
    logger.close()
    assert memory.closed == 1


def test_without_loggers_nothing_waits() -> None:
    logger = BackgroundLogger({})
    logger.begin("run", {})
    for step in range(2 * MAX_WAITING):
        logger.record(record(step))
    logger.close()
    assert logger.dropped == 0


def test_a_run_s_name_is_a_stranger_s_text() -> None:
    memory = Memory()
    logger = BackgroundLogger({"memory": memory})
    logger.begin("\x1b[2J" + "x" * 1000, {})
    logger.close()
    assert memory.begun == ["\\u001b[2J" + "x" * (LONGEST_NAME - 9)]
