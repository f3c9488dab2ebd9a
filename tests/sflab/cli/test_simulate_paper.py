"""`sfnode lab simulate paper` and `report` as a user has them, with the built-in model and task."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from sflab.experiments import results
from sflab.studies import report
from sfnode.models import loader
from tests.cli.helpers import Run

ALONE = ("--workers", "1", "--device", os.environ.get("SFNODE_DEVICE", "cpu"))


def contents(folder: Path) -> dict[str, object]:
    """Return the measurements of a folder's cells, except times."""
    found = {}
    for name, result in results.read_all(folder).items():
        end = {key: value for key, value in (result.end or {}).items() if key != "seconds"}
        found[name] = (end, result.points[:-1])
    return found


def test_the_smoke_study_gives_a_report_and_goes_on_where_it_was(
    sfnode: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "describe", cache(loader.describe))  # it is the same model forty times
    command = ("lab", "simulate", "paper", "--smoke", "--seeds", 1, "--out", tmp_path / "paper", *ALONE)
    assert sfnode(*command).done().out == f"report: {tmp_path / 'paper' / report.REPORT}\n"
    text = (tmp_path / "paper" / report.REPORT).read_text()
    assert "What is missing" not in text
    assert "not measured" not in text
    first = contents(tmp_path / "paper")

    chosen = sorted((tmp_path / "paper").glob("*.jsonl"))[:2]
    for file in chosen:  # as if it had been killed before these were finished
        file.unlink()
    again = sfnode(*command).done()
    assert contents(tmp_path / "paper") == first
    assert again.err.count(" left: ") == len(chosen)


def test_a_dry_run_lists_cells_and_writes_nothing(sfnode: Run, tmp_path: Path) -> None:
    ended = sfnode("lab", "simulate", "paper", "--dry-run", "--workers", 2, "--out", tmp_path / "paper")
    *cells, last = ended.done().out.splitlines()
    assert last.startswith(f"{len(cells)} cells, ")
    assert "with 2 workers" in last
    assert sum(int(line.split()[0].replace(",", "")) for line in cells) == int(
        last.split()[2].replace(",", "")
    )
    assert not (tmp_path / "paper").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--smoke", "--long"), "SF010: --smoke and --long are two sizes"),
        (("--task", "sst2", "--task", "rte", "--train", "a.tsv"), "SF010: 1 --train for 2 tasks"),
        (("--task", "poetry"), "SF010: there is no preset 'poetry'"),
    ],
)
def test_what_cannot_be_is_said_before_anything_runs(
    arguments: tuple[str, ...], complaint: str, sfnode: Run, tmp_path: Path
) -> None:
    sfnode("lab", "simulate", "paper", *arguments, "--out", tmp_path / "paper").failed(complaint)
    assert not (tmp_path / "paper").exists()


def test_a_report_of_a_folder_without_a_study_is_refused(sfnode: Run, tmp_path: Path) -> None:
    sfnode("lab", "simulate", "report", tmp_path).failed("SF075")


@pytest.mark.parametrize("rate", ["nan", "inf"])
def test_a_rate_that_is_no_number_is_refused(rate: str, sfnode: Run, tmp_path: Path) -> None:
    ended = sfnode("lab", "simulate", "paper", "--smoke", "--dry-run", "--learning-rate", rate)
    ended.failed("SF010: --learning-rate")
