"""Tests of sequence classification: a text or a pair of texts is one sequence with one output."""

from __future__ import annotations

from math import log
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertTokenizer, PreTrainedTokenizerFast

from sfnode.engine import forward as engine
from sfnode.engine.estimator import estimates
from sfnode.manifest.task import Task
from sfnode.tasks.encoding import Encoded, Scored, encode, evaluate
from tests.engine.helpers import manifest, trainer
from tests.models.families import MARKS
from tests.models.families import WORDS as BERT_WORDS

WORDS = ["[PAD]", "[CLS]", "[SEP]", "a", "dull", "fine", "film", "story", "it", "was"]
TASK = Task(
    kind="sequence-classification",
    template="{text}",
    verbalizer={"bad": "negative", "fair": "neutral", "good": "positive"},
    max_tokens=8,
)
PAIRS = TASK.model_copy(update={"template": "{text}{separator}{other}"})
ROWS = [{"text": "a fine film", "label": "good"}, {"text": "dull", "label": "bad"}]


def _tokenizer() -> Any:
    words = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="a"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    build: Any = PreTrainedTokenizerFast
    marks = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "bos_token": "[CLS]"}
    return build(tokenizer_object=words, **marks)


TOKENIZER = _tokenizer()


def read(encoded: Encoded) -> list[str]:
    """Return the sequences as text, with padding."""
    return [" ".join(WORDS[token] for token in ids) for ids in encoded.input_ids]


def test_a_text_gets_the_tokenizers_own_special_tokens() -> None:
    encoded = encode(TASK, TOKENIZER, ROWS)
    assert read(encoded) == ["[CLS] a fine film [SEP]", "[CLS] dull [SEP] [PAD] [PAD]"]
    assert encoded.attention_mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]


def test_a_pair_is_encoded_as_the_tokenizer_encodes_pairs() -> None:
    encoded = encode(PAIRS, TOKENIZER, [{"text": "a film", "other": "it was dull", "label": "bad"}])
    assert read(encoded) == ["[CLS] a film [SEP] it was dull [SEP]"]


def test_a_long_text_loses_its_end_but_no_special_token_and_of_a_pair_the_longer_one_first() -> None:
    long = "a fine film it was a fine fine story"
    assert read(encode(TASK, TOKENIZER, [{"text": long, "label": "good"}])) == [
        "[CLS] a fine film it was a [SEP]"
    ]
    pair = {"text": "dull story", "other": long, "label": "bad"}
    assert read(encode(PAIRS, TOKENIZER, [pair])) == ["[CLS] dull story [SEP] a fine film [SEP]"]


def test_every_class_is_predicted_by_the_one_output_of_its_rows_sequence() -> None:
    encoded = encode(TASK, TOKENIZER, ROWS)
    assert encoded.sequences.tolist() == [0, 0, 0, 1, 1, 1]
    assert encoded.columns.tolist() == [0] * 6
    assert encoded.targets.tolist() == [0, 1, 2] * 2
    assert encoded.tokens.tolist() == [[1.0] * 3] * 2
    assert encoded.right.tolist() == [[False, False, True], [True, False, False]]


BERT_PAIRS = Task(
    kind="sequence-classification", template="{text}{separator}{other}", verbalizer={"0": "no", "1": "yes"}
)
PAIR_ROWS = [
    {"text": "the film was bright", "other": "the story was dull .", "label": "0"},
    {"text": "a film", "other": "bad", "label": "1"},
]


def bert_tokenizer() -> Any:
    """Return a tokenizer of BERT's class, with the words of the tiny random models."""
    build: Any = BertTokenizer
    begin, end = MARKS
    return build(
        vocab={word: n for n, word in enumerate([*BERT_WORDS, *MARKS])},
        unk_token="the",
        pad_token="<pad>",
        cls_token=begin,
        sep_token=end,
        mask_token="the",
    )


def test_a_tokenizer_like_berts_says_which_text_of_a_pair_a_token_belongs_to() -> None:
    encoded = encode(BERT_PAIRS, bert_tokenizer(), PAIR_ROWS)
    assert encoded.token_type_ids.tolist() == [[0] * 6 + [1] * 6, [0] * 4 + [1] * 2 + [0] * 6]
    assert encoded.attention_mask.sum(1).tolist() == [12, 6]


def test_a_tokenizer_that_does_not_say_so_leaves_all_tokens_alike() -> None:
    silent = _tokenizer()
    silent.model_input_names = ["input_ids", "attention_mask"]
    row = {"text": "a film", "other": "it was dull", "label": "bad"}
    assert not encode(PAIRS, silent, [row]).token_type_ids.any()


def test_berts_kind_is_scored_and_trained_as_everybody_else_uses_it() -> None:
    """Two swapped texts are another input, which users of an export would not give."""
    loaded, tokenizer = trainer(manifest("bert")).loaded, bert_tokenizer()
    encoded = encode(BERT_PAIRS, tokenizer, PAIR_ROWS)
    texts = [[row["text"], row["other"]] for row in PAIR_ROWS]
    with torch.inference_mode():
        given = tokenizer(texts, padding=True, return_tensors="pt").to(loaded.device)
        wanted = loaded.model(**given).logits.log_softmax(-1).flatten().cpu()
    for score in (engine.score, engine.score_in_passes):
        torch.testing.assert_close(score(loaded, encoded).log_probs, wanted, rtol=1e-5, atol=1e-5)


def test_both_points_of_a_step_tell_the_texts_of_a_pair_apart() -> None:
    run, tokenizer = trainer(manifest("bert")), bert_tokenizer()
    batches = [encode(BERT_PAIRS, tokenizer, [row]) for row in PAIR_ROWS]
    directions = run.space.directions([1, 2], 0)
    for found, one in zip(estimates(run.loaded, directions, batches, 1e-4), batches, strict=True):
        standing = one.losses(engine.score(run.loaded, one).log_probs).mean()
        assert found.loss == pytest.approx(float(standing), rel=1e-4)


def test_a_model_with_one_type_of_tokens_is_told_of_no_other() -> None:
    """RoBERTa's table of types has one row, so there is no second type."""
    loaded, tokenizer = trainer(manifest("roberta")).loaded, bert_tokenizer()
    encoded = encode(BERT_PAIRS, tokenizer, PAIR_ROWS)
    assert encoded.token_type_ids.any()
    loaded.model.config.type_vocab_size = 1
    embeddings = loaded.model.roberta.embeddings.token_type_embeddings
    embeddings.weight.data = embeddings.weight.data[:1]
    assert engine.score(loaded, encoded).log_probs.isfinite().all()


LOGITS = torch.tensor([[0.0, 1.0, 2.0], [0.5, 3.0, -1.0]])
"""Logits of the two rows, (sequences, classes)."""


def forward(encoded: Encoded) -> Scored:
    """Return the scores of a model with LOGITS for the sequences of ROWS, in any batch."""
    rows = LOGITS[[0 if "film" in text else 1 for text in read(encoded)]]  # (S, classes)
    log_probs = rows.log_softmax(-1)[encoded.sequences, encoded.targets]
    return Scored(log_probs, rows.argmax(-1)[encoded.sequences] == encoded.targets)


def test_the_loss_is_the_cross_entropy_over_the_classes() -> None:
    encoded = encode(TASK, TOKENIZER, ROWS)
    losses = encoded.losses(forward(encoded).log_probs)
    torch.testing.assert_close(
        losses, torch.nn.functional.cross_entropy(LOGITS, torch.tensor([2, 0]), reduction="none")
    )


def test_the_likeliest_class_is_the_prediction() -> None:
    # Row 0: class 2 is the likeliest, and right. Row 1: class 1, but the label is class 0.
    measured = evaluate(TASK, TOKENIZER, ROWS, forward, batch_size=1)
    assert (measured.metric, measured.value, measured.count) == ("accuracy", 0.5, 2)
    # Losses: log(1 + e + e^2) - 2 and log(e^0.5 + e^3 + e^-1) - 0.5.
    first, second = log(1 + 2.718282 + 7.389056) - 2, log(1.648721 + 20.085537 + 0.367879) - 0.5
    assert measured.loss == pytest.approx((first + second) / 2, rel=1e-5)


def test_the_same_text_for_a_language_model_is_another_example() -> None:
    """The cache of tokens must distinguish kinds of tasks."""
    text = Task(kind="text", template="{text}")
    assert read(encode(text, TOKENIZER, ROWS[:1])) == ["[CLS] a fine"]
    assert read(encode(TASK, TOKENIZER, ROWS[:1])) == ["[CLS] a fine film [SEP]"]
