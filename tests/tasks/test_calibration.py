"""A prior is what a model thinks of the answers before it has read a row, and calibrating takes it away."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from sfnode.errors import Code
from sfnode.manifest.task import Task
from sfnode.tasks.calibration import prior
from sfnode.tasks.dataset import load_rows
from sfnode.tasks.encoding import Encoded, Scored, encode, evaluate
from sfnode.tasks.presets import preset
from sfnode.tasks.prompts import Row
from tests.engine.helpers import ROWS, SHARED, TASK
from tests.refusals import refused
from tests.tasks.test_encoding import CHOICE, CHOICES, MINI, SST2, TEXT, _loaded, forward, scored, tokenizer


def test_it_is_the_mean_score_of_each_answer() -> None:
    encoded = encode(TASK, tokenizer(), ROWS)
    scores = encoded.scores(forward("opt")(encoded).log_probs).double().mean(0)  # (K,)
    for batch_size in (1, 2, len(ROWS)):
        found = prior(TASK, tokenizer(), ROWS, forward("opt"), batch_size)
        torch.testing.assert_close(torch.from_numpy(found), scores, rtol=1e-5, atol=1e-5)


def test_labels_are_not_looked_at_and_need_not_be_there() -> None:
    found = prior(TASK, tokenizer(), ROWS, forward("opt"), 2)
    turned = [row | {"label": "1" if row["label"] == "0" else "0"} for row in ROWS]
    unlabelled = [{"sentence": row["sentence"]} for row in ROWS]
    for rows in (turned, unlabelled):
        assert prior(TASK, tokenizer(), rows, forward("opt"), 2).tolist() == found.tolist()


def test_it_is_subtracted_from_the_scores_before_softmax_and_choice() -> None:
    encoded = encode(TASK, tokenizer(), ROWS)
    taken = prior(TASK, tokenizer(), ROWS, forward("llama"), 2)
    scores = encoded.scores(forward("llama")(encoded).log_probs) - torch.from_numpy(taken)  # (B, K)
    labels = torch.tensor([int(row["label"]) for row in ROWS])
    measured = evaluate(TASK, tokenizer(), ROWS, forward("llama"), 2, taken)
    assert measured.loss == pytest.approx(torch.nn.functional.cross_entropy(scores, labels).item(), rel=1e-5)
    assert measured.value == (scores.argmax(1) == labels).double().mean()


def test_a_leaning_of_the_model_is_nothing_to_the_calibrated_one() -> None:
    """Whatever is added to the log-probability of one answer, in every row, goes away again."""

    def leaning(encoded: Encoded) -> Scored:
        found = scored_by_opt(encoded)
        return found._replace(log_probs=found.log_probs + 3.0 * (encoded.slots % 2))

    scored_by_opt = forward("opt")
    calibrated = [
        evaluate(TASK, tokenizer(), ROWS, model, 2, prior(TASK, tokenizer(), ROWS, model, 2))
        for model in (scored_by_opt, leaning)
    ]
    assert calibrated[0].value == calibrated[1].value
    assert calibrated[0].loss == pytest.approx(calibrated[1].loss, rel=1e-4)
    assert evaluate(TASK, tokenizer(), ROWS, leaning, 2).loss > 1.0


@pytest.mark.parametrize(("task", "rows"), [(TEXT, ROWS), (CHOICE, CHOICES), (TASK, [])])
def test_without_fixed_answers_or_rows_there_is_none(task: Task, rows: list[Row]) -> None:
    with refused(Code.BAD_OPTION, "no prior over the answers"):
        prior(task, tokenizer(), rows, forward("opt"), 2)


@pytest.mark.skipif(not SST2.is_file(), reason="needs ../shared")
def test_the_reference_model_gains_by_calibration_alone_what_training_seems_to_teach_it() -> None:
    """By the first token of each answer, on part of the rows; docs/benchmarks.md has the figures of all."""
    task = preset("sst2").task
    opt, tokens = _loaded(MINI), AutoTokenizer.from_pretrained(MINI)

    def first_token(encoded: Encoded) -> Scored:
        found = scored(opt, encoded)
        slots, firsts = np.unique(encoded.slots.numpy(), return_index=True)
        weights = torch.zeros_like(found.log_probs)
        weights[firsts] = encoded.tokens.flatten()[slots]  # a score is the mean over an answer's tokens
        return found._replace(log_probs=found.log_probs * weights)

    rows = load_rows(str(SST2), task, limit=200)
    unlabelled = load_rows(str(SHARED / "data/sst2/train.tsv"), task, limit=200)
    before = evaluate(task, tokens, rows, first_token, 32)
    after = evaluate(task, tokens, rows, first_token, 32, prior(task, tokens, unlabelled, first_token, 32))
    assert after.value > before.value + 0.1
    assert after.loss < before.loss - 0.1
