"""Tests of `sfnode eval`: figures with intervals of the base model and of the trained model, and the seal
that they belong to."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sfnode.preparing.manifest import build
from sfnode.schema.results import EvalResult
from sfnode.store.data_folder import Layout
from sfnode.store.log import UpdateLog
from sfnode.tasks import calibration
from sfnode.tasks.metrics import share
from sfprotocol.decisions import FACTOR_ONE, Admit, Close, Move, Seal
from sfprotocol.events import KeepControl
from sfprotocol.seeds import update_seeds
from tests.cli.helpers import Run
from tests.control.organised_node import OrganisedNode
from tests.protocol.feeds import origin_of
from tests.store.folders import joined
from tests.store.helpers import Author


@pytest.fixture
def few_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibrate by few rows."""
    monkeypatch.setattr(calibration, "CALIBRATION_ROWS", 8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Make the folder of a node without updates, for the built-in run with the plain loss."""
    return joined(tmp_path / "node", build({"loss": "plain"}))


@pytest.mark.usefixtures("few_measurements")
def test_as_data_it_has_the_ends_of_the_interval(folder: Path, sfnode: Run) -> None:
    ended = sfnode("eval", "--data-dir", folder, "--test-limit", 40, "--json").done()
    result = EvalResult.model_validate(json.loads(ended.out))  # progress goes to standard error
    assert result.before == result.after  # there are no updates
    assert result.calibrated
    assert result.calibrated.count == 40
    assert (result.after.metric, result.after.count) == ("accuracy", 40)
    assert (result.loss, result.prior) == ("plain", None)
    expected = share(round(result.after.value * 40), 40)
    assert (result.after.value, result.after.low, result.after.high) == expected


@pytest.mark.usefixtures("few_measurements")
def test_of_a_centred_run_it_has_the_trained_model_less_its_prior_and_before_as_the_card_of_a_run(
    sfnode: Run, tmp_path: Path
) -> None:
    asked = ("eval", "--data-dir", joined(tmp_path / "centred", build({})), "--test-limit", 40)
    result = EvalResult.model_validate(json.loads(sfnode(*asked, "--json").out))
    assert [one.calibrated for one in (result.before, result.after)] == [False, True]
    assert result.after == result.calibrated  # there are no updates
    assert result.loss == "centred"
    assert result.prior is not None
    assert (result.prior.keys(), max(result.prior.values())) == ({"bad", "good"}, 0.0)

    lines = sfnode(*asked).out.splitlines()
    told = {line.split()[0]: line.split()[1] for line in lines[1:4]}
    assert list(told) == ["before", "uncalibrated", "after"]
    assert told["before"] == told["after"]  # there are no updates


@pytest.mark.usefixtures("few_measurements")
def test_for_people_it_has_the_interval_in_brackets(folder: Path, sfnode: Run) -> None:
    said = sfnode("eval", "--data-dir", folder, "--test-limit", 40).out.splitlines()
    assert said[0].startswith("accuracy (95 % interval) on 40 test rows, 0 updates")
    number = r"\d{1,3}\.\d"
    found = said.index("change        the weights have moved by 0 %")
    beside = ("the commonest label of 2,048 training rows: accuracy ", "TF-IDF with logistic regression ")
    assert all(line.startswith(beside) for line in said[found + 1 :])
    assert len(said[found + 1 :]) == len(beside), "with TF-IDF, or how to get it"
    del said[found:]
    assert said.pop().strip().startswith("by class: "), "the base model leans towards one answer"
    for line, when in zip(said[1:], ("before", "calibrated", "after"), strict=True):
        assert re.fullmatch(rf"{when} +{number} % \({number}-{number} %\), loss \d\.\d{{4}}", line)


@pytest.fixture
def rewarded(tmp_path: Path) -> Path:
    """Make the folder of a node without updates, for a reward run."""
    verifier = {"kind": "format", "contains": ["good"]}
    task = {"kind": "reward", "template": "{text} it was", "verifier": verifier, "answer_tokens": 3}
    data = {"train": "builtin:reviews:train", "test": "builtin:reviews:test"}
    return joined(tmp_path / "rewarded", build(task | data))


def test_of_a_reward_run_it_has_rewards_and_how_many_answers_are_right(rewarded: Path, sfnode: Run) -> None:
    asked = ("eval", "--data-dir", rewarded, "--test-limit", 8)
    said = sfnode(*asked).out.splitlines()
    assert said[0].startswith("right answers (pass@1) (95 % interval) on 8 test rows, 0 updates")
    one = r"\d{1,3}\.\d % \(\d{1,3}\.\d-\d{1,3}\.\d %\)"
    for line, when in zip(said[1:3], ("before", "after"), strict=True):
        assert re.fullmatch(rf"{when} +{one}, mean reward [01]\.\d{{4}}", line)
    result = EvalResult.model_validate(json.loads(sfnode(*asked, "--json").out))
    assert result.before == result.after
    assert result.calibrated is None


def test_where_no_training_rows_can_be_read_there_is_no_calibrated_figure(
    sfnode: Run, tmp_path: Path
) -> None:
    run = build({"loss": "plain"})
    elsewhere = run.model_copy(update={"data": run.data.model_copy(update={"train": "/nowhere/train.tsv"})})
    ended = sfnode("eval", "--data-dir", joined(tmp_path / "elsewhere", elsewhere), "--test-limit", 8)
    assert (ended.status, "SF035" in ended.err) == (0, True)
    assert [line.split()[0] for line in ended.out.splitlines()[1:]] == ["before", "after", "by", "change"]


def test_log_prints_every_update_that_counts_as_a_line_of_json(folder: Path, sfnode: Run) -> None:
    run_id = build({"loss": "plain"}).run_id
    author = Author(run_id=run_id)
    with UpdateLog.open(Layout(folder).log, run_id) as log:
        log.append([author.write([3, -4]), author.write([5], epoch=1)])
    ended = sfnode("log", "--updates", "--data-dir", folder)
    assert (ended.status, ended.err) == (0, "")
    feed = {"origin": author.feed.origin.hex(), "incarnation": 0}
    updates = enumerate(((0, 3), (0, -4), (1, 5)))
    assert [json.loads(line) for line in ended.out.splitlines()] == [
        {
            **feed,
            "step": step,
            "epoch": epoch,
            "seed": str(update_seeds(author.key, step, 1)[0]),
            "scalar": scalar,
            "weight": 1,
        }
        for step, (epoch, scalar) in updates
    ]


# -- organised runs ------------------------------------------------------------------------------------


@pytest.fixture
def behind(tmp_path: Path) -> Path:
    """Make the folder of a node that has the decisions of an organised run but no updates."""
    node = OrganisedNode()
    node.decide(Admit(origin_of("a"), 40, 0))
    node.decide(Close(0, bytes(8), (Move(0, 5, bytes(8)),)), Seal(0, (), (), bytes(32), FACTOR_ONE, ()))
    layout = Layout(tmp_path / "behind")
    layout.path.mkdir()
    layout.manifest.write_text(node.manifest.to_toml())
    with UpdateLog.open(layout.log, node.manifest.run_id) as log:
        log.append([], control=[KeepControl(0, tuple(node.organised.control.feed.entries))])
    return layout.path


@pytest.mark.usefixtures("few_measurements")
@pytest.mark.parametrize(
    "command", [("eval", "--test-limit", 8), ("export", "--out", "out")], ids=lambda words: words[0]
)
def test_nothing_is_said_of_a_seal_of_which_updates_are_lacking(
    command: tuple[str, ...], behind: Path, sfnode: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sfnode(*command, "--data-dir", behind).refused("SF074: the log lacks 5 updates of its 1 rounds")
    assert not Path("out").exists()
    asked = sfnode(*command, "--data-dir", behind, "--as-of-now")
    assert (asked.status, "SF074" in asked.err) == (0, False)
    assert "0 updates" in asked.out


def test_verify_says_which_seal_it_speaks_of(behind: Path, sfnode: Run) -> None:
    ended = sfnode("verify", "--data-dir", behind, "--json")
    seals = json.loads(ended.out)["seals"]
    assert (seals["sealed"], seals["epoch"], seals["updates"], seals["lacking"]) == (1, None, 0, 5)
    assert (ended.status, "SF074: " in ended.err) == (0, True)


def test_beside_a_head_stands_a_linear_probe_of_training_rows_that_have_gone_through_the_model(
    sfnode: Run, tmp_path: Path
) -> None:
    alone = {"kind": "sequence-classification", "template": "{text}", "verbalizer": {"0": "bad", "1": "good"}}
    train, test = ("builtin:reviews:train", "builtin:reviews:test")
    folder = joined(tmp_path / "head", build(alone | {"train": train, "test": test}))
    said = sfnode("eval", "--data-dir", folder, "--test-limit", 60).out.splitlines()
    probe = re.fullmatch(r"a linear probe on 512 training rows: accuracy (\d+\.\d) % .*", said[-2])
    assert probe, "of those that the calibration has taken"
    assert float(probe[1]) > 60
    assert said[-1].startswith("THE PROBE IS BETTER by "), "the head is zero"
