"""The report: every section in its place, what is missing named, the page alone in the world, always the
same."""

from __future__ import annotations

import html.parser
import re
from pathlib import Path

import pytest

from sflab.experiments.cell import Problem
from sflab.studies import comparisons, costs, paper, report, study
from sflab.studies.comparisons import Verdict
from sflab.studies.findings import Findings, interval
from sflab.studies.study import Study
from sflab.studies.workers import Here, Job
from sfnode.errors import Code, UserError
from tests.sflab.studies import synthetic

COSTS = costs.Costs(
    model="made-up",
    device="cpu",
    parameters=1000,
    threads=1,
    counts=(16, 128),
    add_seconds=(0.001, 0.002),
    merge_seconds=0.01,
    replay_seconds=(1.0, None),
    patience=30.0,
    forwards_seconds=0.01,
    step_seconds=0.011,
    mezo_step_seconds=None,
)

SECTIONS = [
    "What the model scores untrained",
    "Score by method and topology",
    "Score against bytes per edge",
    "Consensus error by round",
    "More clients at the same number of rounds",
    "Delayed flooding",
    "Rank and refresh of the subspace",
    "Clients with different data",
    "What updates and steps cost",
    "Learning rates that were tried",
    "Where this differs from the paper, and why",
    "What is missing",
]

FIGURES = ["ablation", "bytes", "clients", "consensus", "costs", "hops", "methods", "scores", "shards"]


def planned(seeds: int = 2) -> Study:
    problems = [Problem(model="models/opt-mini-sst", task=task) for task in ("sst2", "agnews")]
    return paper.study("smoke", paper.Choice(problems, seeds, rate=6e-6), "sfnode simulate paper --smoke")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished study with its report."""
    folder = tmp_path_factory.mktemp("finished")
    study.run(planned(), folder, Here(Job(synthetic.run, folder)))
    (folder / costs.FILE).write_text(COSTS.model_dump_json())
    report.write(folder)
    return folder


def test_every_section_and_every_figure_is_there(finished: Path) -> None:
    text = (finished / report.MARKDOWN).read_text()
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == SECTIONS
    names = sorted(re.findall(r"\(figures/(\w+)\.svg\)", text))
    assert names == sorted(set(FIGURES) - {"methods"})
    for name in names:
        assert (finished / report.FIGURES / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
        assert (finished / report.FIGURES / f"{name}.svg").read_text().startswith("<svg ")
    assert "Nothing: all cells of the study are finished." in text


def test_every_table_and_every_figure_names_its_command(finished: Path) -> None:
    text = (finished / report.MARKDOWN).read_text()
    tables = re.findall(r"^(?![|>#-])(.*)\n\n\| ", text, flags=re.MULTILINE)
    captions = re.findall(r"^!\[.*\n\n\*(.*)\*$", text, flags=re.MULTILINE)
    assert len(tables) >= 12
    assert all("Command: `sfnode simulate paper --smoke`." in one for one in tables + captions)
    assert all("Seeds: 0, 1." in one for one in captions if "Seconds" not in one)


def test_scores_stand_beside_the_untrained_model_calibrated_too(finished: Path) -> None:
    text = (finished / report.MARKDOWN).read_text()
    scores = [one for one in text.split("\n\n") if one.startswith("| method | ") and "score" in one]
    assert len(scores) == 2 * 5
    assert all("| untrained | " in one and "| untrained, calibrated | " in one for one in scores)
    assert (
        text.count("0.514 (loss 0.815) to 0.709 (0.601)") == 1 + 6
    )  # the controls, and each figure of a score


class Page(html.parser.HTMLParser):
    """Collects the tags of a page and what they refer to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.references: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        names = ("href", "xlink:href", "src", "srcset", "data", "action")
        self.references += [value or "" for name, value in attrs if name in names]
        if tag not in ("meta", "path", "use"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("path", "use"):
            assert self.open.pop() == tag


def test_the_page_has_all_in_itself_and_no_scripts(finished: Path) -> None:
    text = (finished / report.PAGE).read_text()
    page = Page()
    page.feed(text)
    assert page.open == []
    assert "script" not in page.tags
    assert not page.tags & {"img", "iframe", "object", "embed", "link"}
    assert all(reference.startswith("#") for reference in page.references)
    assert not re.search(r"@import|url\((?!#)", text)
    assert text.count("<svg ") == len(FIGURES) - 1


def test_the_same_results_give_the_same_bytes(finished: Path) -> None:
    def files() -> dict[str, bytes]:
        found = (*finished.glob("report.*"), *(finished / report.FIGURES).iterdir())
        return {file.name: file.read_bytes() for file in found}

    before = files()
    report.write(finished)
    assert files() == before


def test_a_partial_folder_gives_a_report_that_says_what_is_missing(finished: Path, tmp_path: Path) -> None:
    plan = planned()
    for cell in study.trials(plan, {}, {})[:20]:
        synthetic.run(cell, tmp_path)
    plan.save(tmp_path)
    report.write(tmp_path)
    text = (tmp_path / report.MARKDOWN).read_text()
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == SECTIONS
    assert "This report is partial: " in text
    assert re.search(r"^Cells by part: tuning 22, methods \d+, ", text, flags=re.MULTILINE)
    assert re.search(
        r"^- tuning: .*, rate .*, seed 0, cell [0-9a-f]{16}: not run yet$", text, flags=re.MULTILINE
    )
    assert re.search(r"^sst2\. Partial: \d+ of 28 cells are finished\.", text, flags=re.MULTILINE)
    assert "Not measured yet" in text


def test_a_folder_without_any_results_gives_a_report(tmp_path: Path) -> None:
    planned().save(tmp_path)
    report.write(tmp_path)
    assert "0 of " in (tmp_path / report.MARKDOWN).read_text()


def test_a_cell_that_failed_is_named_with_its_reason(tmp_path: Path) -> None:
    plan = planned(seeds=1)
    plan.save(tmp_path)
    (tmp_path / f"{plan.tunings[0][0].name}.failed").write_text(
        "Traceback\n  ...\nRuntimeError: no memory was left\n"
    )
    report.write(tmp_path)
    assert "RuntimeError: no memory was left" in (tmp_path / report.MARKDOWN).read_text()


def test_claims_are_judged_by_the_results(finished: Path) -> None:
    found = comparisons.comparisons(Findings.load(finished))
    verdicts = {one.claim: one.verdict for one in found}
    assert verdicts["sst2: SeedFlood scores at least as high as DZSGD (ring)"] == Verdict.MET
    assert verdicts["sst2: 8 clients do not score below 4 at the same number of rounds"] == Verdict.MET
    signed, full, *_ = [one for one in found if one.claim.startswith("sst2: an edge")]
    assert full.found == "400 KB, 5.00 bytes an update"
    assert (signed.verdict, full.verdict) == (Verdict.MET, Verdict.MET)
    assert "64 bytes of signature" in signed.why


def test_a_claim_that_does_not_hold_is_not_met_and_one_without_cells_is_not_measured(tmp_path: Path) -> None:
    def better(cell: object, folder: Path, device: str, threads: int) -> None:
        assert isinstance(cell, synthetic.Cell)
        synthetic.run(cell, folder)
        file = folder / f"{cell.name}.jsonl"
        if cell.method == "dzsgd":
            file.write_text(re.sub(r'"score": [0-9.]+', '"score": 0.99', file.read_text()))

    plan = planned()
    kept = tuple(entry for entry in plan.entries if entry.part == "methods" and entry.cell.method != "dsgd")
    study.run(plan.model_copy(update={"entries": kept}), tmp_path, Here(Job(better, tmp_path)))
    verdicts = {one.claim: one.verdict for one in comparisons.comparisons(Findings.load(tmp_path))}
    assert verdicts["sst2: SeedFlood scores at least as high as DZSGD (ring)"] == Verdict.NOT_MET
    assert verdicts["sst2: SeedFlood stays within 6 % of DSGD (paper: -6 to -4 %)"] == Verdict.UNKNOWN


def test_the_interval_is_students_t() -> None:
    """Reference: 1, 2, 3 have the standard deviation 1, and t(2) is 4.303 at 97.5 %."""
    found = interval([1.0, 2.0, 3.0])
    assert found is not None
    assert (found.mean, found.seeds) == (2.0, 3)
    assert found.half == pytest.approx(4.303 / 3**0.5, abs=1e-3)
    assert interval([float("nan")]) is None


@pytest.mark.parametrize("name", [report.FIGURES, report.PAGE, report.MARKDOWN])
def test_a_place_that_cannot_be_written_to_is_an_error_that_says_so(name: str, tmp_path: Path) -> None:
    planned().save(tmp_path)
    if name == report.FIGURES:
        (tmp_path / name).write_text("a file")
    else:
        (tmp_path / name).mkdir()
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
    assert "0 of " in (tmp_path / report.MARKDOWN).read_text()
