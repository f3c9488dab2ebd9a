"""Fixture of a swarm of scripted nodes."""

from __future__ import annotations

from functools import partial

import pytest

from sfnode import swarm as local_swarm
from tests.swarm.helpers import Script, ScriptedProcess


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Have local swarms start nodes that follow this script, and poll them without a pause."""
    made = Script()
    monkeypatch.setattr(local_swarm, "NodeProcess", partial(ScriptedProcess, made))
    monkeypatch.setattr(local_swarm, "POLL_INTERVAL", 0.0)
    return made
