"""`sfnode lab simulate training` as a user has it."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from sflab.cli.simulate_training import training
from sflab.experiments.cell import Cell, CellNetwork, Problem
from tests.cli.helpers import Run

TRAINING = ("lab", "simulate", "training")
FEW = [
    *("--clients", "3", "--rows", "30", "--validation-rows", "10", "--test-rows", "20"),
    *("--steps", "3", "--rank", "4"),
]


def test_every_field_of_a_cell_has_an_option_with_its_words() -> None:
    words = {option.name: option.help for option in training.params if isinstance(option, click.Option)}
    fields = Problem.model_fields | CellNetwork.model_fields | Cell.model_fields
    for name in fields.keys() - {"problem", "network", "options"}:
        assert words[name] == (fields[name].description or "nothing").replace("\n", " ")


def test_it_prints_the_end_beside_the_untrained_model(sfnode: Run, tmp_path: Path) -> None:
    log, given = tmp_path / "log", (*FEW, "--out", tmp_path / "results", "--option", "segment_updates=32")
    assert "calibrated" in sfnode(*TRAINING, *given, "--write-log", log).done().out
    answer = json.loads(sfnode(*TRAINING, *given, "--json").out)
    assert answer["cell"]["options"] == {"segment_updates": 32.0}
    assert answer["values"]["example_forwards"] == 2 * 3 * 3 * 4
    assert Path(answer["results"]).exists()
    sfnode("verify", "--data-dir", log).done()


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--method", "sorcery"], "SF010"),
        (["--rank", "3"], "SF010: training.rank"),
        (["--loss", "1.5"], "SF010: --loss"),
        (["--clients", "900"], "SF010"),
        (["--option", "organised"], "NAME=NUMBER"),
        (["--option", "speed=3"], "SF010"),
        (["--device", "abacus"], "SF024"),
        (["--topology", "changing"], "SF010: SeedFlood's clients are nodes"),
        (["--method", "dsgd", "--write-log", "log"], "leave out --write-log"),
        (["--speeds", "inf"], "SF010: --speeds"),
        (["--dirichlet", "inf"], "SF010: --dirichlet"),
        (["--option", "scalar_delta=nan"], "SF010: --option scalar_delta"),
        (["--rows", "9" * 20], "SF010: data.train_limit"),
        (["--test-rows", "9" * 20], "SF010: data.test_limit"),
    ],
)
def test_what_cannot_be_is_refused_with_a_number(
    arguments: list[str], hint: str, sfnode: Run, tmp_path: Path
) -> None:
    ended = sfnode(*TRAINING, *FEW, *arguments, "--out", tmp_path)
    assert ended.status != 0
    assert hint in ended.err
    assert "Traceback" not in ended.out + ended.err
