"""Tests of the card at the end of a run: figures, examples, contributions, next commands."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from sfnode.cli.ending import Learnt, _work, card, changed, commands
from sfnode.cli.main import cli
from sfnode.cli.options import profile_folder
from sfnode.defaults import DATA_DIR
from sfnode.manifest.sections import OrganisedSection
from sfnode.manifest.task import Task
from sfnode.schema.measurements import ClassScore, Evaluation
from sfnode.schema.organising import EpochEvaluation
from sfnode.schema.views import SampleMoment, SampleRow, Samples
from sfnode.store.run_keys import RunKeys
from tests.publish.test_words import check
from tests.schema.helpers import organised, status
from tests.swarm.helpers import MANIFEST, NONE


def found(value: float, around: float = 0.02, **others: Any) -> Evaluation:
    return Evaluation(
        metric="accuracy", value=value, low=value - around, high=value + around, loss=0.5, count=800
    ).model_copy(update=others)  # fmt: skip


def figures(now: Evaluation | None, *before: Evaluation | None) -> list[str]:
    lines = card("A title", changed(now, *before), NONE, [], []).splitlines()
    return [line.strip() for line in lines if line and line != "A title"]


def test_what_it_could_before_and_can_now_is_in_per_cent() -> None:
    assert figures(found(0.875), found(0.53)) == [
        "before  53.0 % right",
        "now     87.5 % right on 800 test rows, better by 34.5 points",
    ]
    assert figures(None) == []
    assert figures(found(0.6)) == ["The model has 60.0 % right on 800 test rows."]


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        (0.53, 0.54, "which may be chance"),
        (0.54, 0.53, "which may be chance"),
        (0.53, 0.5304, "no change"),
        (0.0, 0.0, "no change"),
        (0.6, 0.5, "worse by 10.0 points"),
    ],
)
def test_what_may_be_chance_what_is_no_change_and_what_is_worse_are_told_apart(
    before: float, now: float, said: str
) -> None:
    assert figures(found(now), found(before))[1].endswith(f" test rows, {said}")


def test_what_the_organiser_has_measured_is_on_other_rows_than_what_a_node_has() -> None:
    told = EpochEvaluation(**found(0.6).model_dump(), epoch=3, base=False)
    assert figures(told) == ["The model has 60.0 % right on 800 rows kept aside."]


def test_it_is_compared_with_what_was_measured_in_the_same_way() -> None:
    calibrated = found(0.64, calibrated=True)
    assert figures(found(0.9, calibrated=True), calibrated, found(0.5))[0] == "before  64.0 % right"
    assert figures(found(0.9), calibrated, found(0.5))[0] == "before  50.0 % right"


def test_of_what_is_no_share_it_says_by_how_much_it_is_better() -> None:
    now, before = (found(value, 0.1, metric="perplexity") for value in (9.0, 12.0))
    assert figures(now, before) == [
        "before  perplexity 12",
        "now     perplexity 9 on 800 test rows, better by 25.0 %",
        "(how well it expects the right words: 1 is surely, and lower is better)",
    ]


def test_classes_that_differ_are_told_also_beside_what_an_organiser_has_published() -> None:
    by = (ClassScore(name="often", right=380, count=380), ClassScore(name="rare", right=1, count=8))
    now = found(0.98, by_class=by)
    told = "by class: rare 12.5 % of 8 rows, often 100.0 % of 380 rows"
    assert figures(now, found(0.5))[-1] == told
    published = changed(found(0.98), found(0.5))._replace(classes=now)
    assert told in card("A title", published, NONE, [], [])


def test_own_work_is_one_number_which_is_what_counts_once_that_is_settled() -> None:
    node = status(contributed=944, known=2000, uptime=90.0, **organised(counted=1536))
    assert _work(node, None) == ["Your work: 944 updates, 47 % of all, in 1 min 30 s."]
    assert _work(node, 768) == ["Your work: 768 updates that count, 50 % of all, in 1 min 30 s."]
    assert _work(node, 0) == ["None of your 944 updates counts."]
    assert _work(status(), 0) == []


def test_examples_are_three_those_first_that_have_become_right() -> None:
    rows = [
        SampleRow(text=f"text {n}", right="good", base=base, base_score=float(base == "good"))
        for n, base in enumerate(("good", "bad", "bad", "good"))
    ]
    answers = ["good", "bad", "good", "bad"]
    moment = SampleMoment(epoch=1, known=9, answers=answers, scores=[float(one == "good") for one in answers])
    said = card("A title", Learnt(None, None), Samples(rows=rows, moments=[moment]), [], [])
    shown = [line.strip() for line in said.splitlines() if "text" in line or "now" in line]
    assert shown[:2] == ["“text 2”", "before: bad  now: good  right: good"]
    assert [line for line in shown if line.startswith("“")] == ["“text 2”", "“text 0”", "“text 1”"]


def test_a_folder_is_named_as_shortly_as_it_can_be(tmp_path: Path, home: Path) -> None:
    for folder, said in (
        (DATA_DIR, ""),
        (profile_folder("films"), "--profile films"),
        (tmp_path / "a folder", f"--data-dir '{tmp_path}/a folder'"),
    ):
        assert commands(MANIFEST, folder)[-1].partition("verify")[2].strip() == said


TASKS = (
    MANIFEST.task,
    Task(kind="chat"),
    Task(kind="classification", template="{a} {b}", verbalizer={"0": "no", "1": "yes"}),
    Task(kind="choice", template="{a}", completion="{candidate}", candidates_field="many"),
)


def parse(line: str) -> None:
    """Parse the command of a line; fails if a word is not accepted."""
    words = shlex.split(line.partition("sfnode ")[2])
    context = click.Context(cli, **cli.context_settings)  # by which commands know of -h, from then on
    command = cli.get_command(context, words[0])
    while isinstance(command, click.Group):
        words = words[1:]
        command = command.get_command(context, words[0])
    assert command
    command.make_context(words[0], words[1:], parent=context)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.kind)
def test_every_command_that_comes_next_is_one(task: Task, tmp_path: Path) -> None:
    said = OrganisedSection(**RunKeys.generate().options(), quota=9)
    run = MANIFEST.model_copy(update={"task": task, "organised": said, "admission": "organised"})
    lines = commands(run, tmp_path, "ab" * 32, 4000)
    assert len(lines) == 6
    assert [line[16:].split(" --")[0] for line in lines[4:]] == [
        "sfnode invite",
        "sfnode organise budget 4000",
    ]
    for line in lines:
        parse(line)


def test_a_card_is_plain_whatever_it_tells() -> None:
    metrics = (found(0.9996), found(0.9, metric="f1"), found(3.0, metric="perplexity"))
    for now in metrics:
        check(card("The run films is complete.", Learnt(now, now), NONE, ["Your work: 3 updates."], []))
