"""Tests of encoding: tensors, losses, scores and metrics equal MeZO's, with shared, cached, cut and padded
sequences."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from sfnode.errors import Code
from sfnode.manifest.task import Task
from sfnode.tasks import tokenizer_calls
from sfnode.tasks.dataset import load_rows
from sfnode.tasks.encoding import LONG_ANSWER, Encoded, Scored, encode, evaluate
from sfnode.tasks.presets import preset
from tests.engine.helpers import FAMILIES, ROWS, SHARED, TASK, WORDS, model_folder
from tests.refusals import refused

SST2, MINI = SHARED / "data" / "sst2" / "test.tsv", SHARED / "models" / "opt-mini-sst"
STORY = Task(kind="completion", template="{sentence} It was", completion="{more}")
STORIES = [{"sentence": "a film", "more": "great ."}, {"sentence": "a dull story .", "more": "bad"}]
TEXT = Task(kind="text", template="{sentence}")
CHOICE = Task(
    kind="choice",
    template="{sentence}",
    completion="It was {candidate}",
    candidates_field="options",
    label_field="answers",
)
CHOICES = [
    {"sentence": "a film", "options": ["bad", "great .", "good"], "answers": ["good", "great ."]},
    {"sentence": "a dull story", "options": ["bad .", "slow"], "answers": ["slow"]},
]


@cache
def tokenizer(bos: bool = True, adds: bool = False) -> Any:
    """Return a tokenizer with one token a word, and perhaps a beginning token, which it may add by itself."""
    words = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="the"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if adds:
        words.post_processor = processors.TemplateProcessing(
            single="<s> $A <s>", special_tokens=[("<s>", WORDS.index("<s>"))]
        )
    build: Any = PreTrainedTokenizerFast
    return build(tokenizer_object=words, pad_token="<pad>", bos_token="<s>" if bos else None)


def _loaded(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder).eval()  # type: ignore[no-untyped-call]


@cache
def language_model(family: str) -> Any:
    return _loaded(model_folder(family))


def scored(model: Any, encoded: Encoded) -> Scored:
    """Return the scores of a plain forward pass, by the definition of `Scored`."""
    with torch.inference_mode():
        logits = model(input_ids=encoded.input_ids, attention_mask=encoded.attention_mask).logits  # (S, T, V)
    head_positions = logits[encoded.sequences, encoded.columns].log_softmax(-1)  # (P, V)
    log_probs = head_positions.gather(1, encoded.targets[:, None]).flatten()
    return Scored(log_probs, head_positions.argmax(-1) == encoded.targets)


def forward(family: str) -> Callable[[Encoded], Scored]:
    return lambda encoded: scored(language_model(family), encoded)


def token_log_probabilities(family: str, text: str, answer: int) -> Tensor:
    """Return the log-probabilities of a text's last `answer` words, by one forward pass over the text,
    (answer,)."""
    ids = torch.tensor([[WORDS.index(word) for word in ["<s>", *text.split()]]])
    with torch.inference_mode():
        logits = language_model(family)(input_ids=ids).logits[0].log_softmax(-1)
    chosen: Tensor = logits[:-1].gather(1, ids[0, 1:, None])[-answer:, 0]
    return chosen


def assert_losses(encoded: Encoded, *answers: Tensor) -> None:
    """Require that each loss is minus the mean of these log-probabilities."""
    expected = torch.stack([-answer.mean() for answer in answers])
    found = encoded.losses(forward("opt")(encoded).log_probs)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def words_of(encoded: Encoded) -> list[str]:
    """Return the sequences as text, without padding."""
    pairs = zip(encoded.input_ids.tolist(), encoded.attention_mask.sum(1).tolist(), strict=True)
    return [" ".join(WORDS[token] for token in ids[:length]) for ids, length in pairs]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_candidate_scores_the_mean_log_probability_of_its_tokens(family: str) -> None:
    encoded = encode(TASK, tokenizer(), ROWS)
    scores = encoded.scores(forward(family)(encoded).log_probs)
    for row, found in zip(ROWS, scores, strict=True):
        prompt = f"{row['sentence']} It was"
        bad = token_log_probabilities(family, f"{prompt} terrible", 1).mean()
        good = token_log_probabilities(family, f"{prompt} great .", 2).mean()
        torch.testing.assert_close(found, torch.stack([bad, good]), rtol=1e-4, atol=1e-4)


def test_classification_is_trained_on_the_cross_entropy_over_the_scores() -> None:
    encoded = encode(TASK, tokenizer(), ROWS)
    log_probs = forward("opt")(encoded).log_probs
    labels = torch.tensor([int(row["label"]) for row in ROWS])
    expected = torch.nn.functional.cross_entropy(encoded.scores(log_probs), labels, reduction="none")
    torch.testing.assert_close(encoded.losses(log_probs), expected)


CENTRED = TASK.model_copy(update={"loss": "centred"})


@pytest.mark.parametrize("count", [len(ROWS), 2], ids=["rows alone", "with references"])
def test_a_centred_loss_compares_scores_less_their_means_over_rows_and_references(count: int) -> None:
    """References have no losses of their own."""
    encoded = encode(CENTRED, tokenizer(), ROWS[:count], ROWS[count:])
    log_probs = forward("opt")(encoded).log_probs
    scores = encoded.scores(log_probs)  # (B, K)
    labels = torch.tensor([int(row["label"]) for row in ROWS[:count]])
    centred = scores[:count] - scores.mean(0)
    expected = torch.nn.functional.cross_entropy(centred, labels, reduction="none")
    torch.testing.assert_close(encoded.losses(log_probs), expected)


def test_what_raises_an_answer_in_every_row_is_nothing_to_a_centred_loss() -> None:
    encoded = encode(CENTRED, tokenizer(), ROWS)
    log_probs = forward("opt")(encoded).log_probs
    raised = log_probs + 3.0 * (encoded.slots % 2)
    torch.testing.assert_close(encoded.losses(raised), encoded.losses(log_probs))
    plain = encode(TASK, tokenizer(), ROWS)
    assert (plain.losses(raised) - plain.losses(log_probs)).abs().min() > 0.1


def test_scores_of_an_evaluation_are_not_centred() -> None:
    """A batch of an evaluation is no random sample, because rows are ordered by length."""
    centred, plain = (encode(task, tokenizer(), ROWS, every_candidate=True) for task in (CENTRED, TASK))
    log_probs = forward("opt")(plain).log_probs
    assert torch.equal(centred.losses(log_probs), plain.losses(log_probs))


def test_candidates_share_a_sequence_as_far_as_they_agree() -> None:
    encoded = encode(TASK, tokenizer(), ROWS[:2])
    assert words_of(encoded) == ["<s> the film was bright . It was great", "<s> a dull story It was great"]
    assert encoded.tokens.tolist() == [[1.0, 2.0], [1.0, 2.0]]
    apart = TASK.model_copy(update={"verbalizer": {"0": "bad .", "1": "great ."}})
    assert len(words_of(encode(apart, tokenizer(), ROWS[:2]))) == 4


@pytest.mark.parametrize("adds", [False, True])
def test_a_sequence_begins_with_the_beginning_token_once_whoever_adds_it(adds: bool) -> None:
    (words,) = words_of(encode(TASK, tokenizer(adds=adds), ROWS[1:2]))
    assert words == "<s> a dull story It was great"


def test_a_tokenizer_without_a_beginning_token_gets_none() -> None:
    encoded = encode(TEXT, tokenizer(bos=False), [{"sentence": "a dull story"}])
    assert words_of(encoded) == ["a dull"]
    assert [WORDS[token] for token in encoded.targets] == ["dull", "story"]  # nothing predicts the first word


@given(max_tokens=st.integers(8, 24), length=st.integers(0, 40))
def test_a_long_prompt_loses_its_beginning_and_nothing_else(max_tokens: int, length: int) -> None:
    task = TASK.model_copy(update={"max_tokens": max_tokens})
    row = {"sentence": " ".join(["film"] * length), "label": "1"}
    encoded = encode(task, tokenizer(), [row])
    (words,) = words_of(encoded)
    kept = min(length, max_tokens - 5)  # beside the beginning token, "It was" and the longer answer
    assert words == " ".join(["<s>", *["film"] * kept, "It", "was", "great"])
    assert sorted(WORDS[token] for token in encoded.targets) == [".", "great", "terrible"]


def test_a_long_text_loses_its_end() -> None:
    task = TEXT.model_copy(update={"max_tokens": 8})
    encoded = encode(task, tokenizer(), [{"sentence": "the a film story was is dull bright slow good"}])
    assert words_of(encoded) == ["<s> the a film story was is"]
    assert WORDS[int(encoded.targets[-1])] == "dull"


def test_an_answer_that_does_not_fit_is_an_error_that_quotes_it() -> None:
    task = STORY.model_copy(update={"max_tokens": 8})
    with refused(Code.DATA_MALFORMED, "'good good good good good good good good'"):
        encode(task, tokenizer(), [{"sentence": "a", "more": " ".join(["good"] * 8)}])


def test_a_completion_loses_by_its_own_tokens_only() -> None:
    first = token_log_probabilities("opt", "a film It was great .", 2)
    second = token_log_probabilities("opt", "a dull story . It was bad", 1)
    assert_losses(encode(STORY, tokenizer(), STORIES), first, second)


def test_a_completion_is_right_when_greedy_decoding_would_write_it() -> None:
    prompt = torch.tensor([[WORDS.index(word) for word in ("<s>", "a", "film", "It", "was")]])
    written = language_model("opt").generate(prompt, do_sample=False, max_new_tokens=3, min_new_tokens=3)
    greedy = " ".join(WORDS[token] for token in written[0, -3:])
    other = " ".join([*greedy.split()[:2], "the" if greedy.split()[2] != "the" else "a"])
    rows = [{"sentence": "a film", "more": greedy}, {"sentence": "a film", "more": other}]
    measured = evaluate(STORY, tokenizer(), rows, forward("opt"), batch_size=2)
    assert (measured.metric, measured.value) == ("exact_match", 0.5)


def test_long_answers_are_measured_by_how_well_they_are_expected_as_nobody_writes_the_same_words() -> None:
    """The lengths of the right answers decide, and those of prompts do not."""
    short, long = "bad film", " ".join(["a film"] * (LONG_ANSWER // 2 + 1))
    for answer, metric in ((short, "exact_match"), (long, "perplexity")):
        rows = [{"sentence": f"a {word} film " * 9, "more": answer} for word in ("slow", "dull")]
        assert evaluate(STORY, tokenizer(), rows, forward("opt"), batch_size=2).metric == metric


def test_right_answers_are_counted_for_each_class_that_has_rows() -> None:
    three = TASK.model_copy(update={"verbalizer": {"0": "terrible", "1": "great .", "2": "dull"}})
    found = evaluate(three, tokenizer(), ROWS, forward("opt"), batch_size=2)
    assert [(one.name, one.count) for one in found.by_class] == [("0", 3), ("1", 2)]
    assert sum(one.right for one in found.by_class) == round(found.value * len(ROWS))
    assert evaluate(STORY, tokenizer(), STORIES, forward("opt"), 2).by_class == ()


def test_a_text_is_measured_by_its_perplexity_per_token() -> None:
    texts = ["the film was bright .", "a dull story"]
    measured = evaluate(TEXT, tokenizer(), [{"sentence": text} for text in texts], forward("opt"), 1)
    surprise = torch.cat([-token_log_probabilities("opt", text, len(text.split())) for text in texts])
    assert measured.metric == "perplexity"
    assert measured.value == pytest.approx(math.exp(float(surprise.mean())), rel=1e-4)


def test_a_choice_is_trained_on_its_first_right_answer_alone() -> None:
    encoded = encode(CHOICE, tokenizer(), CHOICES)
    assert words_of(encoded) == ["<s> a film It was", "<s> a dull story It was"]
    first = token_log_probabilities("opt", "a film It was good", 3)
    second = token_log_probabilities("opt", "a dull story It was slow", 3)
    assert_losses(encoded, first, second)


def test_a_choice_is_evaluated_on_all_candidates_and_any_right_one_counts() -> None:
    encoded = encode(CHOICE, tokenizer(), CHOICES, every_candidate=True)
    scores = encoded.scores(forward("opt")(encoded).log_probs)
    assert scores[1, 2] == -math.inf  # the second row has two candidates only
    torch.testing.assert_close(
        scores[0, 1], token_log_probabilities("opt", "a film It was great .", 4).mean(), rtol=1e-4, atol=1e-4
    )
    best = [CHOICES[0]["options"][int(scores[0].argmax())], CHOICES[1]["options"][int(scores[1].argmax())]]
    rows = [
        {**CHOICES[0], "answers": ["good", best[0]]},
        {**CHOICES[1], "answers": [option for option in CHOICES[1]["options"] if option != best[1]]},
    ]
    assert evaluate(CHOICE, tokenizer(), rows, forward("opt"), 2).value == 0.5


@given(order=st.permutations(range(len(ROWS))), batch_size=st.integers(1, 6))
def test_neither_order_nor_batch_size_changes_an_evaluation(order: list[int], batch_size: int) -> None:
    whole = evaluate(TASK, tokenizer(), ROWS, forward("llama"), len(ROWS))
    again = evaluate(TASK, tokenizer(), [ROWS[n] for n in order], forward("llama"), batch_size)
    assert again == whole.model_copy(update={"loss": again.loss, "losses": again.losses})
    assert (again.metric, again.count) == ("accuracy", len(ROWS))
    assert again.loss == pytest.approx(whole.loss, rel=1e-5)


def test_a_text_is_tokenised_once_however_often_its_row_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = AutoTokenizer.from_pretrained(model_folder("opt"))
    first = encode(TASK, counted, ROWS)
    with monkeypatch.context() as without:
        without.setattr(tokenizer_calls, "_process_of", None)
        again = encode(TASK, counted, [*ROWS[::-1], *ROWS])
    torch.testing.assert_close(again.right[len(ROWS) :], first.right)
    shorter = encode(TASK.model_copy(update={"max_tokens": 8}), counted, ROWS)
    assert shorter.input_ids.shape[1] < first.input_ids.shape[1]


@pytest.mark.skipif(not SST2.is_file(), reason="needs ../shared")
def test_mezo_scores_the_stand_in_for_a_hub_model_at_its_reference_accuracy() -> None:
    task = preset("sst2").task
    opt = _loaded(MINI)
    rows = load_rows(str(SST2), task)
    measured = evaluate(
        task, AutoTokenizer.from_pretrained(MINI), rows, lambda encoded: scored(opt, encoded), batch_size=32
    )
    assert round(measured.value, 3) == 0.533
