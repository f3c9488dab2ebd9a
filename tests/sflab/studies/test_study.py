"""A study runs trials first, then cells with the winner's rate, and never runs a finished cell again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sflab.experiments import results
from sflab.experiments.cell import Cell, CellNetwork
from sflab.studies import study
from sflab.studies.study import Study, StudyEntry, StudyProgress
from sflab.studies.workers import CellJob, Here
from sfnode.errors import Code
from tests.refusals import refused
from tests.sflab.studies import synthetic

RATES = (2e-6, 6e-6, 1.8e-5)

BASE = Cell(steps=8, batch_size=1)


def tuned(*seeds: int) -> Study:
    """A tuning of three rates, and entries with the winner's rate."""
    trials = tuple(BASE.model_copy(update={"learning_rate": rate}) for rate in RATES)
    entries = (
        StudyEntry(part="methods", cell=BASE.model_copy(update={"seed": seed}), tuning=0) for seed in seeds
    )
    return Study(title="tuned", command="test", tunings=(trials,), entries=tuple(entries))


def run(one: Study, folder: Path) -> list[StudyProgress]:
    seen: list[StudyProgress] = []
    study.run(one, folder, Here(CellJob(synthetic.run, folder)), seen.append)
    return seen


def runs(folder: Path) -> list[str]:
    return (folder / "runs").read_text().split()


def test_entries_run_with_the_rate_of_the_best_trial_and_what_was_a_trial_is_not_run_again(
    tmp_path: Path,
) -> None:
    run(tuned(0, 1, 2), tmp_path)
    found = results.read_all(tmp_path)
    assert len(found) == len(runs(tmp_path)) == 3 + 2
    assert {result.cell.learning_rate for result in found.values() if result.cell.seed} == {6e-6}


def test_an_entry_may_have_a_multiple_of_the_winners_rate(tmp_path: Path) -> None:
    one = tuned(1)
    run(one.model_copy(update={"entries": (one.entries[0].model_copy(update={"times": 0.25}),)}), tmp_path)
    rates = [found.cell.learning_rate for found in results.read_all(tmp_path).values() if found.cell.seed]
    assert rates == [0.25 * 6e-6]


def test_a_finished_cell_is_never_run_again(tmp_path: Path) -> None:
    run(tuned(0, 1), tmp_path)
    before = runs(tmp_path)
    assert run(tuned(0, 1), tmp_path) == []
    assert runs(tmp_path) == before
    run(tuned(0, 1, 2), tmp_path)
    assert len(runs(tmp_path)) == len(before) + 1


def test_a_cell_whose_file_was_torn_is_run_again(tmp_path: Path) -> None:
    run(tuned(0), tmp_path)
    file = results.path_of(tuned(0).tunings[0][1], tmp_path)
    whole = file.read_text()
    file.write_text(whole[:-20])
    run(tuned(0), tmp_path)
    assert file.read_text() == whole
    assert len(runs(tmp_path)) == 4


def test_the_same_study_gives_the_same_files_wherever_it_was_interrupted(tmp_path: Path) -> None:
    calls = 0

    def interrupted(cell: Cell, folder: Path, device: str, threads: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        synthetic.run(cell, folder)

    one, other = tmp_path / "one", tmp_path / "other"
    run(tuned(0, 1, 2), one)
    with pytest.raises(KeyboardInterrupt):
        study.run(tuned(0, 1, 2), other, Here(CellJob(interrupted, other)))
    assert len(results.read_all(other)) == 3
    run(tuned(0, 1, 2), other)
    assert [file.read_text() for file in sorted(one.glob("*.jsonl"))] == [
        file.read_text() for file in sorted(other.glob("*.jsonl"))
    ]


def test_of_equal_trials_the_smaller_rate_wins_and_one_that_diverged_has_lost() -> None:
    trials = tuned().tunings[0]
    end = {"validation_loss": 0.5}
    found = {cell.name: results.CellResult(cell, (), end) for cell in trials}
    best = study.winner(trials, found, {})
    assert best is not None
    assert best.learning_rate == min(RATES)
    found[best.name] = results.CellResult(best, (), {"validation_loss": float("nan")})
    second = study.winner(trials, found, {})
    assert second is not None
    assert second.learning_rate == sorted(RATES)[1]


def far(beyond: int, *rates: float) -> Study:
    trials = tuple(BASE.model_copy(update={"learning_rate": rate}) for rate in rates)
    return tuned(0, 1).model_copy(update={"tunings": (trials,), "beyond": beyond})


@pytest.mark.parametrize("rates", [(6e-8, 6e-7), (6e-5, 6e-4)])
def test_rates_beyond_the_edge_are_tried_until_the_best_one_lies_within(
    tmp_path: Path, rates: tuple[float, float]
) -> None:
    run(far(4, *rates), tmp_path)
    found = results.read_all(tmp_path)
    assert {cell.learning_rate for cell in (one.cell for one in found.values()) if cell.seed == 1} == {6e-6}
    assert len(found) == 2 + 2 + 1  # 6e-6 and one beyond it show that it is the best
    before = runs(tmp_path)
    run(far(4, *rates), tmp_path)
    assert runs(tmp_path) == before


def test_rates_beyond_the_edge_count_as_work_that_is_left(tmp_path: Path) -> None:
    seen = run(far(4, 6e-8, 6e-7), tmp_path)
    assert len(seen) == 2 + 2 + 1
    assert [one.done < one.total for one in seen] == [True] * 4 + [False]


def test_no_more_rates_beyond_the_edge_are_tried_than_the_study_says(tmp_path: Path) -> None:
    run(far(1, 2e-7, 6e-7), tmp_path)
    rates = {one.cell.learning_rate for one in results.read_all(tmp_path).values()}
    assert rates == {2e-7, 6e-7, 1.8e-6}


def test_there_is_no_winner_before_all_trials_have_ended() -> None:
    trials = tuned().tunings[0]
    found = {cell.name: results.CellResult(cell, (), {"validation_loss": 0.5}) for cell in trials[:2]}
    assert study.winner(trials, found, {}) is None
    assert study.winner(trials, found, {trials[2].name: "died"}) is not None


def test_a_failure_is_noted_with_its_cell_and_the_rest_goes_on(tmp_path: Path) -> None:
    cells = [BASE.model_copy(update={"seed": seed}) for seed in (synthetic.FAULTY, 1)]
    one = Study(title="", command="", entries=tuple(StudyEntry(part="", cell=cell) for cell in cells))
    failed = study.run(one, tmp_path, Here(CellJob(synthetic.run, tmp_path)))
    assert list(failed) == [cells[0].name]
    assert "the weights were not finite" in failed[cells[0].name]
    assert list(results.read_all(tmp_path)) == [cells[1].name]


def test_a_failure_is_forgotten_when_its_cell_succeeds(tmp_path: Path) -> None:
    one = tuned(0)
    results.note_failure(one.tunings[0][0], tmp_path, "no memory was left")
    assert study.run(one, tmp_path, Here(CellJob(synthetic.run, tmp_path))) == {}


def test_failures_of_another_study_in_the_folder_are_not_those_of_this_one(tmp_path: Path) -> None:
    results.note_failure(BASE.model_copy(update={"seed": 77}), tmp_path, "no memory was left")
    assert study.run(tuned(0), tmp_path, Here(CellJob(synthetic.run, tmp_path))) == {}


def test_progress_counts_example_forwards_and_not_cells(tmp_path: Path) -> None:
    large = BASE.model_copy(update={"network": CellNetwork(clients=256)})
    entries = tuple(StudyEntry(part="", cell=cell) for cell in (BASE, large))
    seen = run(Study(title="", command="", entries=entries), tmp_path)
    assert [one.done for one in seen] == [study.work(BASE), study.work(BASE) + study.work(large)]
    assert seen[0].total == seen[1].done
    more = (*entries, StudyEntry(part="", cell=BASE.model_copy(update={"seed": 5})))
    later = run(Study(title="", command="", entries=more), tmp_path)
    assert [(one.done - one.fresh, one.fresh) for one in later] == [(seen[1].done, study.work(BASE))]


def test_a_study_is_described_in_its_folder(tmp_path: Path) -> None:
    run(tuned(0), tmp_path)
    assert Study.load(tmp_path) == tuned(0)
    assert json.loads((tmp_path / study.PLAN).read_text())["command"] == "test"


@pytest.mark.parametrize("text", [None, "{}", "no JSON"])
def test_a_folder_without_a_study_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / study.PLAN).write_text(text)
    with refused(Code.RESULTS_UNUSABLE):
        Study.load(tmp_path)


def test_an_entry_whose_tuning_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="tuning"):
        Study(title="", command="", entries=(study.StudyEntry(part="a", cell=BASE, tuning=0),))
