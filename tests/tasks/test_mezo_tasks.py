"""The six tasks of the SeedFlood paper, checked by hand: MeZO's words, and its arithmetic on a small table.

The words are those of princeton-nlp/MeZO, large_models/templates.py. The arithmetic is that of utils.py
(`forward_wrap_with_option_len`) and run.py: the score of a candidate is the mean log-probability of its
tokens, the loss of a classification the cross-entropy over the scores, the prediction the candidate with the
highest score, and metrics.py counts a prediction that is one of several right answers as right.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sfnode.tasks.encoding import Encoded, Scored, encode, evaluate
from sfnode.tasks.presets import preset
from sfnode.tasks.prompts import Prompt, Row, problem, render_row
from sfnode.tasks.templates import join

SST2 = {"sentence": "hide new secretions from the parental units ", "label": 0, "idx": 0}
RTE = {
    "premise": "No Weapons of Mass Destruction Found in Iraq Yet.",
    "hypothesis": "Weapons of Mass Destruction Found in Iraq.",
    "label": 1,
    "idx": 0,
}
BOOLQ = {
    "passage": "Iran uses Persian -- Persian is one of its languages.",
    "question": "do iran and afghanistan speak the same language",
    "label": 1,
    "idx": 0,
}
WIC = {
    "word": "place",
    "sentence1": "Do you want to come over to my place later?",
    "sentence2": "A political system with no place for the less prominent groups.",
    "label": 0,
    "idx": 0,
}
MULTIRC = {
    "paragraph": "While this process moved along, diplomacy continued its rounds.",
    "question": "What did the high-level effort to persuade Pakistan include?",
    "answer": "Children, Gerd, or Dorian Popa",
    "label": 0,
    "idx": {"paragraph": 0, "question": 0, "answer": 0},
}
RECORD = {
    "passage": "Ann ran for the office.\n@highlight\nBo ran too\n@highlight\nCy was ill",
    "query": "In the end @placeholder won, and Cy cheered for @placeholder.",
    "entities": ["Ann", "Bo", "Cy"],
    "answers": ["Bo", "Ann"],
    "idx": {"passage": 0, "query": 0},
}
RTE_ASKED = (
    "No Weapons of Mass Destruction Found in Iraq Yet.\n"
    'Does this mean that "Weapons of Mass Destruction Found in Iraq." is true? Yes or No?\n'
)
BOOLQ_ASKED = (
    "Iran uses Persian -- Persian is one of its languages. Do iran and afghanistan speak the same language?\n"
)
WIC_ASKED = (
    'Does the word "place" have the same meaning in these two sentences? Yes, No?\n'
    "Do you want to come over to my place later?\n"
    "A political system with no place for the less prominent groups.\n"
)
MULTIRC_ASKED = (
    "While this process moved along, diplomacy continued its rounds.\n"
    "Question: What did the high-level effort to persuade Pakistan include?\n"
    'I found this answer "Children, Gerd, or Dorian Popa". Is that correct? Yes or No?\n'
)
RECORD_ASKED = "Ann ran for the office.\n- Bo ran too\n- Cy was ill\n- "

EXAMPLES: dict[str, tuple[Row, list[str], tuple[int, ...]]] = {
    "sst2": (
        SST2,
        [
            "hide new secretions from the parental units It was terrible",
            "hide new secretions from the parental units It was great",
        ],
        (0,),
    ),
    "rte": (RTE, [f"{RTE_ASKED}Yes", f"{RTE_ASKED}No"], (1,)),
    "boolq": (BOOLQ, [f"{BOOLQ_ASKED}No", f"{BOOLQ_ASKED}Yes"], (1,)),
    "wic": (WIC, [f"{WIC_ASKED}No", f"{WIC_ASKED}Yes"], (0,)),
    "multirc": (MULTIRC, [f"{MULTIRC_ASKED}No", f"{MULTIRC_ASKED}Yes"], (0,)),
    "record": (
        RECORD,
        [f"{RECORD_ASKED}In the end {who} won, and Cy cheered for {who}." for who in ("Ann", "Bo", "Cy")],
        (1, 0),
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_row_is_worded_as_mezo_words_it(name: str) -> None:
    task, (row, written, right) = preset(name).task, EXAMPLES[name]
    assert problem(task, row) is None
    words = render_row(task, row)
    assert isinstance(words, Prompt)
    assert [join(words.prompt, answer) for answer in words.answers] == written
    assert words.right == right


def word_tokenizer() -> Any:
    """Return a tokenizer with a token for every word, every line break, and any other text between white
    space."""
    texts = [text for _, written, _ in EXAMPLES.values() for text in written]
    splitter = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("\n", "isolated"), pre_tokenizers.Split(" ", "merged_with_next")]
    )
    pieces = {piece for text in texts for piece, _ in splitter.pre_tokenize_str(text)}
    vocabulary = {piece: n for n, piece in enumerate(["<pad>", "</s>", *sorted(pieces)])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    words.pre_tokenizer = splitter
    build: Any = PreTrainedTokenizerFast
    return build(tokenizer_object=words, pad_token="<pad>", bos_token="</s>")


TOKENIZER = word_tokenizer()


class Table:
    """A model that takes each token's probability from a small table of words; 1 for other words."""

    def __init__(self, **probabilities: float) -> None:
        self.probabilities = probabilities

    def __call__(self, encoded: Encoded) -> Scored:
        words = [word.strip() for word in TOKENIZER.convert_ids_to_tokens(encoded.targets.tolist())]
        chances = torch.tensor([self.probabilities.get(word, 1.0) for word in words])
        return Scored(chances.log(), chances > 0.5)


def losses(name: str, row: Row, table: Table) -> list[float]:
    encoded = encode(preset(name).task, TOKENIZER, [row])
    values: list[float] = encoded.losses(table(encoded).log_probs).tolist()
    return values


def accuracy(name: str, rows: Sequence[Row], table: Table) -> float:
    found = evaluate(preset(name).task, TOKENIZER, rows, table, batch_size=2)
    assert found.metric == "accuracy"
    return found.value


def test_sst2_is_a_choice_between_two_words() -> None:
    # P("terrible") = 0.2, P("great") = 0.6. Scores log 0.2 and log 0.6; softmax 0.2/0.8 and 0.6/0.8. The row
    # has label 0: loss -log 0.25. "great" is predicted: wrong for it, right for the same row with label 1.
    table = Table(terrible=0.2, great=0.6)
    assert losses("sst2", SST2, table) == pytest.approx([log(4)])
    assert losses("sst2", {**SST2, "label": 1}, table) == pytest.approx([-log(0.75)])
    rows = [SST2, {**SST2, "label": 1}, {**SST2, "label": "1"}]
    assert accuracy("sst2", rows, table) == pytest.approx(2 / 3)


YES = [("rte", RTE, 0), ("boolq", BOOLQ, 1), ("wic", WIC, 1), ("multirc", MULTIRC, 1)]
"""Tasks, each with a row and the label that means yes."""


@pytest.mark.parametrize(("name", "row", "yes_is"), YES)
def test_yes_or_no_is_scored_after_the_line_break_and_yes_means_what_it_means_in_the_data(
    name: str, row: Row, yes_is: int
) -> None:
    # P(Yes) = 0.3 and P(No) = 0.1 just behind the question: softmax 3/4 and 1/4.
    table = Table(Yes=0.3, No=0.1)
    assert losses(name, {**row, "label": yes_is}, table) == pytest.approx([-log(3 / 4)])
    assert losses(name, {**row, "label": 1 - yes_is}, table) == pytest.approx([-log(1 / 4)])
    both = [{**row, "label": yes_is}, {**row, "label": 1 - yes_is}, {**row, "label": 1 - yes_is}]
    assert accuracy(name, both, table) == pytest.approx(1 / 3)


def test_record_scores_the_whole_rest_of_the_sentence_for_every_entity() -> None:
    # "In the end X won, and Cy cheered for X." has 10 tokens, all certain but the names; "X." is one of them.
    #   Ann: 0.1 * 0.9 * 0.3 = 0.027, so the mean of the logarithms is log(0.027) / 10
    #   Bo:  0.4 * 0.9 * 0.2 = 0.072
    #   Cy:  0.9 * 0.9 * 0.5 = 0.405
    table = Table(**{"Ann": 0.1, "Ann.": 0.3, "Bo": 0.4, "Bo.": 0.2, "Cy": 0.9, "Cy.": 0.5})
    encoded = encode(preset("record").task, TOKENIZER, [RECORD], every_candidate=True)
    assert encoded.tokens.tolist() == [[10.0, 10.0, 10.0]]
    scores = encoded.scores(table(encoded).log_probs)[0].tolist()
    assert scores == pytest.approx([log(0.027) / 10, log(0.072) / 10, log(0.405) / 10])
    # Trained on the first right answer alone, as a language model: minus Bo's score.
    assert losses("record", RECORD, table) == pytest.approx([-log(0.072) / 10])
    # Cy is predicted, which is none of the answers; where Cy is one of them, the row counts.
    assert accuracy("record", [RECORD], table) == 0.0
    assert accuracy("record", [RECORD, {**RECORD, "answers": ["Ann", "Cy"]}], table) == 0.5


def test_a_longer_answer_is_not_worse_for_being_longer() -> None:
    # "terrible great": (log 0.5 + log 0.5) / 2 = log 0.5; "was": log 0.4. The mean prefers the first, the sum
    # (log 0.25) would not. Loss of label 0: -log(0.5 / 0.9).
    task = preset("sst2").task.model_copy(update={"verbalizer": {"0": "terrible great", "1": "was"}})
    table = Table(terrible=0.5, great=0.5, was=0.4)
    encoded = encode(task, TOKENIZER, [SST2])
    assert encoded.losses(table(encoded).log_probs).tolist() == pytest.approx([-log(0.5 / 0.9)])
    assert evaluate(task, TOKENIZER, [SST2], table, 1).value == 1.0


def test_the_loss_of_an_evaluation_is_the_mean_of_those_trained_on() -> None:
    table = Table(terrible=0.2, great=0.6)
    found = evaluate(preset("sst2").task, TOKENIZER, [SST2, {**SST2, "label": 1}], table, 2)
    assert exp(-2 * found.loss) == pytest.approx(0.25 * 0.75)


def test_f1_is_measured_instead_of_accuracy_where_the_task_says_so() -> None:
    # All is called "great": class 1 has 1 hit and 3 false alarms, F1 = 2/5; class 0 has 3 misses, F1 = 0.
    task = preset("sst2").task.model_copy(update={"metric": "f1"})
    rows = [SST2, SST2, SST2, {**SST2, "label": 1}]
    found = evaluate(task, TOKENIZER, rows, Table(terrible=0.2, great=0.6), 4)
    assert found.metric == "f1"
    assert found.value == pytest.approx(0.2)
    assert found.low < found.value < found.high
