"""From a messy table to a trained model, by what the screen says and nothing else."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli import tickets
from tests.processes.terminal import Terminal

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

ASK = "q: leave: "
"""End of the question below the screen."""


def test_a_messy_table_becomes_a_run_and_that_a_model_by_the_commands_on_the_screen(tmp_path: Path) -> None:
    tickets.write(tmp_path / "tickets.csv")
    with Terminal(tmp_path, "init", "tickets.csv", "--model", "builtin:tiny") as terminal:
        asked = terminal.until(ASK)
        assert "category, with 4 classes: Delivery 81, Billing 80, Login 71," in asked
        assert "line 166: not UTF-8" in " ".join(asked.split())
        terminal.type("training.update_budget=4000")
        terminal.until("Besides")
        terminal.type("")
        said = terminal.ended()
    (alone,) = re.findall(r"^  sfnode (swarm .+?)    ", said, flags=re.MULTILINE)
    with Terminal(tmp_path, *shlex.split(alone), "--nodes", "2") as terminal:
        trained = terminal.ended()
    assert "OK: all digests are equal" in trained
    assert re.search(r"^accuracy .* -> .* on 59 held-out rows", trained, flags=re.MULTILINE)
