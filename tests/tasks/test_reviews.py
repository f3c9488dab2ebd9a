"""Tests of the embedded reviews: their text, and what their model knows. What a run teaches it is shown in
`tests/preparing/test_scalars`."""

from __future__ import annotations

import json
from hashlib import blake2b

import numpy as np
import pytest

from scripts import reviews
from sfnode.engine import forward
from sfnode.engine.trainer import Trainer
from sfnode.preparing.manifest import build
from sfnode.tasks.dataset import load_rows
from sfnode.tasks.encoding import evaluate

TRAIN, TEST = (reviews.rows(split) for split in ("train", "test"))


@pytest.fixture(scope="module")
def run() -> Trainer:
    return Trainer.load(build({}))


def sentences(text: str) -> list[str]:
    return text.removesuffix(" .").split(" . ")


def verdict(text: str) -> str:
    """Return the one sentence of a review that judges something."""
    (found,) = (said for said in sentences(text) if " was " in said or "body " in said)
    return found


def bag(rows: list[dict[str, str | int]], words: list[str]) -> np.ndarray:
    """Return the number of occurrences of each word in each review, and a constant, (rows, words + 1)."""
    counts = [[str(row["text"]).split().count(word) for word in words] + [1] for row in rows]
    return np.array(counts, float)


def test_the_rows_are_pinned_because_every_node_must_write_the_same() -> None:
    written = json.dumps([TRAIN, TEST]).encode()
    assert blake2b(written, digest_size=8).hexdigest() == "8b37933f9dc83d40"


def test_the_splits_are_balanced_and_no_review_occurs_twice() -> None:
    assert (len(TRAIN), len(TEST)) == (2048, 1000)
    for rows in (TRAIN, TEST):
        assert sum(int(row["label"]) for row in rows) == len(rows) // 2
    texts = [row["text"] for row in TRAIN + TEST]
    assert len(set(texts)) == len(texts)


def test_no_verdict_of_the_test_split_is_ever_shown_in_training() -> None:
    judged, trained = ({verdict(str(row["text"])) for row in rows} for rows in (TEST, TRAIN))
    pretrained = {sentence for text in reviews.pretraining_text(20_000) for sentence in sentences(text)}
    assert not judged & (trained | pretrained)
    assert trained & pretrained  # the comparison would notice


def test_counting_words_does_not_solve_the_task() -> None:
    words = sorted({word for row in TRAIN for word in str(row["text"]).split()})
    counts, labels = bag(TRAIN, words), np.array([2 * int(row["label"]) - 1 for row in TRAIN])
    weights = np.linalg.solve(counts.T @ counts + np.eye(len(words) + 1), counts.T @ labels)
    answers = bag(TEST, words) @ weights > 0
    assert np.mean(answers == [row["label"] == 1 for row in TEST]) < 0.65


def test_the_model_is_small_and_knows_every_word(run: Trainer) -> None:
    assert sum(part.numel() for part in run.loaded.model.parameters()) <= 1_000_000
    assert sum(file.stat().st_size for file in run.loaded.folder.iterdir()) <= 4_000_000
    tokenizer = run.loaded.tokenizer
    texts = [f"{row['text']} it was good bad" for row in TRAIN + TEST]
    assert not any(tokenizer.unk_token_id in ids for ids in tokenizer(texts).input_ids)


def test_the_model_understands_the_reviews_but_not_the_question(run: Trainer) -> None:
    assert run.evaluate_base().value <= 0.65
    asked = run.manifest.task
    knows = asked.model_copy(update={"verbalizer": {"0": "awful", "1": "wonderful"}})
    rows = load_rows("builtin:reviews:test", asked)
    assert (
        evaluate(
            knows, run.loaded.tokenizer, rows, lambda encoded: forward.score(run.loaded, encoded), 32
        ).value
        >= 0.95
    )
