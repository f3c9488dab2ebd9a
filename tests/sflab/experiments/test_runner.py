"""Results of a cell as JSON lines, and restarts after a kill at any time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sflab.baselines import registry
from sflab.experiments import problem, runner
from sflab.experiments.cell import Cell, Place
from sflab.experiments.runner import finished, run_cell
from sfnode.engine import loading
from sfnode.errors import Code
from sfnode.loggers import LoggedRecord
from tests.refusals import refused
from tests.sflab.experiments.conftest import LOAD
from tests.sflab.experiments.helpers import small


class KilledError(Exception):
    """Stands for a kill -9, after which nothing is cleaned up."""


def results(cell: Cell, folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{cell.name}.jsonl").read_text().splitlines()]


def untimed(cell: Cell, folder: Path) -> list[dict[str, Any]]:
    """Return all results except the seconds."""
    found = results(cell, folder)
    assert found[-1]["values"].pop("seconds") > 0
    return found


def test_a_cell_leaves_its_fields_its_records_and_its_end(tmp_path: Path) -> None:
    cell = small(evaluate_every=4)
    values = run_cell(cell, tmp_path)
    first, *records, end = results(cell, tmp_path)
    assert Cell.model_validate(first["cell"]) == cell
    assert [(one["kind"], one["step"]) for one in records if one["kind"] != "step"] == [
        ("evaluation", 4),
        ("evaluation", 8),
    ]
    assert [one["step"] for one in records if one["kind"] == "step"] == list(range(1, 9))
    assert (end["kind"], end["values"]) == ("end", values)
    assert {
        "accuracy",
        "score",
        "base_score",
        "calibrated_loss",
        "validation_loss",
        "seconds",
    } <= values.keys()
    assert values["example_forwards"] == 2 * 8 * 4 * cell.batch_size
    assert finished(cell, tmp_path) == values
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".jsonl"]


def test_a_centred_cell_is_measured_calibrated_beside_the_same_untrained_model(tmp_path: Path) -> None:
    plain = run_cell(small(steps=1), tmp_path)
    centred = run_cell(small(steps=1, learning_rate=1e-12, problem={"objective": "centred"}), tmp_path)
    names = ("base_score", "base_loss", "calibrated_score", "calibrated_loss")
    assert [centred[name] for name in names] == [plain[name] for name in names]
    assert centred["loss"] == pytest.approx(centred["calibrated_loss"], abs=1e-4)
    assert abs(centred["loss"] - centred["base_loss"]) > 0.01
    assert len(list(tmp_path.glob("base-*.json"))) == 1


def test_a_finished_cell_is_not_run_again(tmp_path: Path) -> None:
    cell = small(steps=2)

    def never(*_: Any) -> Any:
        raise AssertionError

    values = run_cell(cell, tmp_path)
    assert run_cell(cell, tmp_path, make=never) == values


@pytest.mark.parametrize("method", ["seedflood", "chocosgd"])
def test_a_run_that_was_killed_goes_on_with_the_same_numbers(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(runner, "SAVE_REST", 0)
    if method != "seedflood":  # which leaves the model to others as it was
        monkeypatch.setattr(problem, "load", LOAD)
        monkeypatch.setattr(problem, "load_model", loading.load_model)
    cell = small(method=method, evaluate_every=3, network={"loss": 0.2, "hops": 1})
    run_cell(cell, tmp_path / "whole")
    for kill in (1, 5):

        def killed(done: int, _total: int, kill: int = kill) -> None:
            if done == kill:
                raise KilledError

        with pytest.raises(KilledError):
            run_cell(cell, tmp_path / "parts", advance=killed)
        with (tmp_path / "parts" / f"{cell.name}.jsonl").open("a") as file:
            file.write('{"kind": "step", "st')  # half a line that was on its way
    assert finished(cell, tmp_path / "parts") is None
    run_cell(cell, tmp_path / "parts")
    assert untimed(cell, tmp_path / "parts") == untimed(cell, tmp_path / "whole")


def test_loggers_hear_what_is_written(tmp_path: Path) -> None:
    heard: list[Any] = []

    class Heard:
        def begin(self, name: str, settings: Any) -> None:
            heard.append(name)

        def record(self, record: LoggedRecord) -> None:
            heard.append((record.kind, record.step))

        def close(self) -> None:
            heard.append("closed")

    cell = small(steps=2)
    run_cell(cell, tmp_path, loggers=[Heard()])
    assert heard == [cell.name, ("step", 1), ("step", 2), ("evaluation", 2), "closed"]


def test_files_that_are_of_something_else_are_refused(tmp_path: Path) -> None:
    cell = small(steps=2)
    (tmp_path / f"{cell.name}.jsonl").write_text('{"cell": {"seed": 7}}\n')
    with refused(Code.RESULTS_UNUSABLE):
        run_cell(cell, tmp_path)
    (tmp_path / f"{cell.name}.jsonl").unlink()
    (tmp_path / f"{cell.name}.state").write_bytes(b"nonsense")
    with refused(Code.RESULTS_UNUSABLE):
        run_cell(cell, tmp_path)


def test_methods_and_options_that_there_are_not_are_refused() -> None:
    for cell in (
        small(method="sorcery"),
        small(method="chocosgd", options={"keeps": 0.1}),
        small(options={"segment_update": 3.0}),
    ):
        with refused(Code.BAD_OPTION):
            runner.make(cell, Place())


@pytest.mark.parametrize(
    "line",
    ["[1]", '{"kind": "end"}', '{"kind": "end", "step": 2, "values": {"score": "high"}}', "\xff", "{}"],
)
def test_lines_that_no_run_wrote_are_written_anew(line: str, tmp_path: Path) -> None:
    cell = small(steps=2)
    values = run_cell(cell, tmp_path)
    file = tmp_path / f"{cell.name}.jsonl"
    first, *_, last = file.read_bytes().splitlines(keepends=True)
    for torn in (b"", last):  # in the middle, too: the end then is not that of these lines
        file.write_bytes(first + line.encode("latin-1") + b"\n" + torn)
        assert run_cell(cell, tmp_path) == values | {"seconds": pytest.approx(0, abs=60)}
        assert len(results(cell, tmp_path)) == 5


@pytest.mark.parametrize("text", ["[1, 2]", "{}", '{"base_score": "high", "base_loss": 1}', "\xff"])
def test_scores_of_the_untrained_model_that_are_none_are_refused(text: str, tmp_path: Path) -> None:
    cell = small(steps=2)
    run_cell(cell, tmp_path)
    (tmp_path / f"{cell.name}.jsonl").unlink()
    (base,) = tmp_path.glob("base-*.json")
    base.write_bytes(text.encode("latin-1"))
    with refused(Code.RESULTS_UNUSABLE):
        run_cell(cell, tmp_path)


def test_every_option_has_a_range() -> None:
    of_baselines = {option for one in registry.METHODS.values() for option in one.options}
    assert of_baselines < runner.RANGES.keys()
    for name, one in registry.METHODS.items():
        runner.check(small(method=name, options=dict(one.options)))


@pytest.mark.parametrize(
    ("method", "option", "value"),
    [
        ("seedflood", "scalar_bits", 0.0),
        ("seedflood", "segment_updates", -1.0),
        ("seedflood", "subspace_epochs", 0.0),
        ("seedflood", "organised", 0.5),
        ("chocosgd", "keep", 1e18),
    ],
)
def test_values_that_options_cannot_have_are_refused(method: str, option: str, value: float) -> None:
    with refused(Code.BAD_OPTION):
        runner.check(small(method=method, options={option: value}))
