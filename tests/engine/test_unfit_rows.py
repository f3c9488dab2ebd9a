"""Rows that only training meets: a node that draws or measures one goes on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data
from sfnode.manifest.task import Task
from sfnode.tasks.public_files import typed
from sfprotocol.seeds import update_seeds
from tests.engine.helpers import manifest, trainer

TASK = Task(kind="completion", template="{q}", completion="{a}", max_tokens=16)
SEEDS = update_seeds(7, 0, 12).tolist()
GOOD = [{"q": f"a {word} film", "a": "bad"} for word in ("good", "slow", "dull")]
BAD = {"q": "a film", "a": " ".join(["film"] * 40)}


def written(path: Path, rows: list[Any]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def completions(file: Path) -> Manifest:
    made = manifest("opt").model_copy(update={"task": TASK})
    return made.model_copy(update={"data": Data(train=str(file), test=str(file), validation="")})


def test_training_goes_on_with_other_rows(tmp_path: Path) -> None:
    found = trainer(
        manifest("opt").model_copy(update={"task": TASK}), written(tmp_path / "own.jsonl", [BAD, *GOOD])
    )
    losses = [found.step([seed], 0).loss for seed in SEEDS]
    assert all(map(math.isfinite, losses))


def test_what_is_measured_are_the_rows_that_fit(tmp_path: Path) -> None:
    run = completions(written(tmp_path / "rows.jsonl", [*GOOD, BAD]))
    found = trainer(run, places=typed(run.data))
    assert found.evaluate().count == len(GOOD)
    assert found.evaluate_base().count == len(GOOD)


@pytest.mark.parametrize("kind", ["errors", "gradients"])
def test_bases_are_made_of_rows_that_fit(kind: str, tmp_path: Path) -> None:
    from sfnode.engine import making_bases

    run = completions(written(tmp_path / "rows.jsonl", [*GOOD, BAD]))
    assert making_bases.make(trainer(run, places=typed(run.data)), kind).pairs
