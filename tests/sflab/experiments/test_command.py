"""`sfnode lab simulate training` as a user has it."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from sflab.cli.simulate_training import training
from sflab.experiments.cell import Cell, CellNetwork, Problem
from sfnode.cli.main import main

FEW = [
    *("--clients", "3", "--rows", "30", "--validation-rows", "10", "--test-rows", "20"),
    *("--steps", "3", "--rank", "4"),
]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["lab", "simulate", "training", *arguments])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_every_field_of_a_cell_has_an_option_with_its_words() -> None:
    words = {option.name: option.help for option in training.params if isinstance(option, click.Option)}
    fields = Problem.model_fields | CellNetwork.model_fields | Cell.model_fields
    for name in fields.keys() - {"problem", "network", "options"}:
        assert words[name] == (fields[name].description or "nothing").replace("\n", " ")


def test_it_prints_the_end_beside_the_untrained_model(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log, results = str(tmp_path / "log"), str(tmp_path / "results")
    status, said, _ = run(
        capsys, *FEW, "--out", results, "--write-log", log, "--option", "segment_updates=32"
    )
    assert status == 0
    assert "calibrated" in said
    status, said, _ = run(capsys, *FEW, "--out", results, "--option", "segment_updates=32", "--json")
    answer = json.loads(said)
    assert answer["cell"]["options"] == {"segment_updates": 32.0}
    assert answer["values"]["example_forwards"] == 2 * 3 * 3 * 4
    assert Path(answer["results"]).exists()
    with pytest.raises(SystemExit) as ended:
        main(["verify", "--data-dir", log])
    assert not ended.value.code


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
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    status, said, complaint = run(capsys, *FEW, *arguments, "--out", str(tmp_path))
    assert status != 0
    assert hint in complaint
    assert "Traceback" not in said + complaint
