"""The report has all sections, names what is missing, and is always the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sflab.experiments.cell import Problem
from sflab.studies import paper, report, study
from sflab.studies.findings import StudyFindings, interval
from sflab.studies.study import Study
from sflab.studies.workers import CellJob, Here
from sfnode.errors import Code, UserError
from tests.sflab.studies import synthetic

SECTIONS = [
    "Score by method and topology",
    "More clients at the same number of rounds",
    "Delayed flooding: links that an update travels in a round",
    "Rank of the subspace, and local steps between two subspaces",
    "Clients with different data: Dirichlet concentration of their classes",
    "Learning rates that were tried",
    "The paper's claims",
]


def planned(seeds: int = 2) -> Study:
    problems = [Problem(model="models/opt-mini-sst", task=task) for task in ("sst2", "agnews")]
    return paper.study("smoke", problems, seeds, 6e-6, "sfnode lab simulate paper --smoke")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished study with its report."""
    folder = tmp_path_factory.mktemp("finished")
    study.run(planned(), folder, Here(CellJob(synthetic.run, folder)))
    report.write(folder)
    return folder


def test_every_section_is_there(finished: Path) -> None:
    text = (finished / report.REPORT).read_text()
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == SECTIONS
    assert "`sfnode lab simulate paper --smoke`: 124 of 124 cells are finished" in text


def test_scores_stand_beside_the_untrained_model_calibrated_too(finished: Path) -> None:
    text = (finished / report.REPORT).read_text()
    scores = [one for one in text.split("\n\n") if one.startswith("| ") and "| score |" in one]
    assert len(scores) == 2 * 5
    assert all("| untrained |  | 0.514 |" in one for one in scores)
    assert all("| untrained, calibrated |  | 0.709 |" in one for one in scores)


def test_the_same_results_give_the_same_bytes(finished: Path) -> None:
    before = (finished / report.REPORT).read_bytes()
    assert report.write(finished).read_bytes() == before


def test_a_partial_folder_gives_a_report_that_says_what_is_missing(finished: Path, tmp_path: Path) -> None:
    plan = planned()
    for cell in study.trials(plan, {}, {})[:20]:
        synthetic.run(cell, tmp_path)
    plan.save(tmp_path)
    report.write(tmp_path)
    text = (tmp_path / report.REPORT).read_text()
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == [*SECTIONS, "What is missing"]
    assert re.search(r"This report is partial: \d+ cells are missing", text)
    assert re.search(
        r"^- tuning: .*, rate .*, seed 0, cell [0-9a-f]{16}: not run yet$", text, flags=re.MULTILINE
    )
    assert re.search(r"^- and \d+ more$", text, flags=re.MULTILINE)
    assert "not measured. its cells" in text


def test_a_folder_without_any_results_gives_a_report(tmp_path: Path) -> None:
    planned().save(tmp_path)
    report.write(tmp_path)
    assert "0 of " in (tmp_path / report.REPORT).read_text()


def test_a_cell_that_failed_is_named_with_its_reason(tmp_path: Path) -> None:
    plan = planned(seeds=1)
    plan.save(tmp_path)
    (tmp_path / f"{plan.tunings[0][0].name}.failed").write_text(
        "Traceback\n  ...\nRuntimeError: no memory was left\n"
    )
    report.write(tmp_path)
    assert "RuntimeError: no memory was left" in (tmp_path / report.REPORT).read_text()


def test_claims_are_judged_by_the_results(finished: Path) -> None:
    found = {one.words: one for one in report.claims(StudyFindings.load(finished))}
    assert found["sst2: SeedFlood scores at least as high as dzsgd (ring)"].met
    many = found["sst2: 8 clients do not score below 4 at the same number of rounds"]
    assert many.met
    assert re.search(r"difference [+]0\.\d+ \(.* to .*\); the 95 % interval over 2 seeds", many.found)
    sent = [one for words, one in found.items() if words.startswith("sst2: an edge")]
    assert [(one.met, one.found) for one in sent] == [
        (True, "400 KB, 5.00 bytes an update with signatures")
    ] * 2


def test_a_claim_that_does_not_hold_is_not_met_and_one_without_cells_is_not_measured(tmp_path: Path) -> None:
    def better(cell: object, folder: Path, device: str, threads: int) -> None:
        assert isinstance(cell, synthetic.Cell)
        synthetic.run(cell, folder)
        file = folder / f"{cell.name}.jsonl"
        if cell.method == "dzsgd":
            file.write_text(re.sub(r'"score": [0-9.]+', '"score": 0.99', file.read_text()))

    plan = planned()
    kept = tuple(entry for entry in plan.entries if entry.part == "methods" and entry.cell.method != "dsgd")
    study.run(plan.model_copy(update={"entries": kept}), tmp_path, Here(CellJob(better, tmp_path)))
    met = {one.words: one.met for one in report.claims(StudyFindings.load(tmp_path))}
    assert met["sst2: SeedFlood scores at least as high as dzsgd (ring)"] is False
    assert met["sst2: SeedFlood stays within 6 % of DSGD (paper: -6 to -4 %)"] is None


def test_the_interval_is_students_t() -> None:
    """Reference: 1, 2, 3 have the standard deviation 1, and t(2) is 4.303 at 97.5 %."""
    found = interval([1.0, 2.0, 3.0])
    assert found is not None
    assert (found.mean, found.seeds) == (2.0, 3)
    assert found.half == pytest.approx(4.303 / 3**0.5, abs=1e-3)
    assert interval([float("nan")]) is None


def test_a_place_that_cannot_be_written_to_is_an_error_that_says_so(tmp_path: Path) -> None:
    planned().save(tmp_path)
    (tmp_path / report.REPORT).mkdir()
    with pytest.raises(UserError) as refused:
        report.write(tmp_path)
    assert refused.value.code is Code.DATA_DIR_UNUSABLE


def test_files_that_are_no_results_are_passed_over(tmp_path: Path) -> None:
    plan = planned()
    plan.save(tmp_path)
    for number, (cell, text) in enumerate(
        zip(study.trials(plan, {}, {}), (b"\xff\n", b"3\n", b"[1]\n", b'{"cell": 3}\n'), strict=False)
    ):
        (tmp_path / f"{cell.name}.jsonl").write_bytes(text)
        (tmp_path / f"{number}.failed").write_bytes(b"\xff")
    report.write(tmp_path)
    assert "0 of " in (tmp_path / report.REPORT).read_text()
