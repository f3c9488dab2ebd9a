"""The way from a messy table to answers of a model, with only the commands that the screen shows."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.cli import tickets
from tests.processes.terminal import Terminal

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

ASK = "q: leave: "
"""End of the question below the proposal of `sfnode init`."""


def test_three_commands_from_a_messy_table_to_an_answer_are_read_from_the_screen(tmp_path: Path) -> None:
    tickets.write(tmp_path / "tickets.csv")
    with Terminal(tmp_path, "init", "tickets.csv", "--model", "builtin:tiny") as terminal:
        asked = " ".join(terminal.until(ASK).split())
        assert "category, with 4 classes: Delivery 81, Billing 80, Login 71, Other 64." in asked
        assert "line 166: not UTF-8" in asked
        # a round of a head takes a second, and has only eight updates on a busy machine
        terminal.type("training.update_budget=300")
        terminal.until("Besides")
        terminal.type("")
        said = terminal.ended()
    (alone,) = re.findall(r"^  sfnode (swarm .+?)    ", said, flags=re.MULTILINE)
    with Terminal(tmp_path, *shlex.split(alone), "--nodes", "2") as terminal:
        trained = terminal.ended()
    assert "OK: the nodes have the same model" in trained
    assert re.search(r"^  now +[\d.]+ % right on 59 test rows", trained, flags=re.MULTILINE)
    (ask,) = re.findall(r"^  ask the model +sfnode (use .+)$", trained, flags=re.MULTILINE)
    with Terminal(tmp_path, *shlex.split(ask)) as terminal:
        assert re.search("|".join(tickets.CLASSES), terminal.ended())
    (kept,) = re.findall(r"folders are kept in (\S+)\.$", trained, flags=re.MULTILINE)
    shutil.rmtree(kept)
