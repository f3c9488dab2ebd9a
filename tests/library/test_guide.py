"""The examples of docs/library.md run unchanged."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.library.helpers import run_cells

GUIDE = Path(__file__).parents[2] / "docs" / "library.md"

EXAMPLES = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)

ALONE = [example for example in EXAMPLES if "LocalSwarm" not in example]
"""Examples that start no processes of nodes."""


def test_there_is_an_example_of_every_name() -> None:
    import sfnode

    for name in sfnode.__all__:
        assert any(re.search(rf"from sfnode import .*\b{name}\b", example) for example in EXAMPLES)


async def test_the_examples_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for example in ALONE:
        await run_cells([example], "example")  # each by itself: none needs what another has imported
    said = capsys.readouterr().out
    assert "96 updates of 1 feeds; by epoch: [" in said
    assert "/ip4/127.0.0.1/tcp/" in said
    assert set(os.listdir(tmp_path)) >= {"run.toml", "node", "model"}


@pytest.mark.processes
async def test_the_example_of_a_local_swarm_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (swarm,) = (example for example in EXAMPLES if example not in ALONE)
    await run_cells([EXAMPLES[0], swarm], "example")
    assert (tmp_path / "swarm" / "node-2" / "updates.sqlite").exists()
