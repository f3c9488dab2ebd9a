"""Encodes rows as tensors, and computes losses, scores and metrics from log-probabilities.

Scoring and training follow MeZO (Malladi et al. 2023; princeton-nlp/MeZO, large_models/utils.py and run.py):
a candidate's score is the mean log-probability of its tokens, and classification is trained on the
cross-entropy over the candidates' scores. This module knows tokenizers and log-probabilities; it knows no
model and no update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfnode.errors import Code, UserError
from sfnode.manifest.task import PRIOR_ONE, Task
from sfnode.schema.measurements import ClassScore, EvaluationOfRows
from sfnode.tasks import metrics
from sfnode.tasks.prompts import Prompt, Row, RowText, length, render_row
from sfnode.tasks.tokenization import Example, example

LONG_ANSWER = 32
"""Threshold for the mean number of tokens of a completion's answers. Above it the metric is perplexity, as
for conversations, because no model is expected to write such long answers exactly."""

Prior = NDArray[np.float64]
"""Part of each answer's score, (K,), that does not depend on the row (`calibration.prior`)."""


@dataclass(frozen=True)
class Encoded:
    """A batch of B examples as S sequences of at most T tokens, padded on the right; all tensors on the CPU.

    If a candidate without its last token is a prefix of another candidate of the same example, the two share
    the sequence of the longer one. This is possible because in a causal model later tokens do not affect
    earlier ones.
    """

    input_ids: Tensor
    """(S, T) int64."""
    attention_mask: Tensor
    """(S, T) int64, 0 on padding."""
    token_type_ids: Tensor
    """(S, T) int64, the index (0 or 1) of each token's text in a pair of texts, for models that distinguish
    the two texts. 0 on padding, and everywhere if the tokenizer does not return such an index."""
    sequences: Tensor
    """(P,) int64, the index of the sequence whose output predicts each target. P is the number of targets."""
    columns: Tensor
    """(P,) int64, the column whose output predicts each target; 0 if the model has a single output for each
    sequence."""
    targets: Tensor
    """(P,) int64, the targets: the token (or class) to predict at each of the P positions."""
    slots: Tensor
    """(P,) int64, the candidate to which each target belongs, as a flat index into (B, K). K is the maximum
    number of candidates of an example."""
    tokens: Tensor
    """(B, K) float32, the number of targets of each candidate; 0 where an example has fewer than K
    candidates."""
    right: Tensor
    """(B, K) bool, whether each candidate is correct."""
    contrastive: bool
    """Whether the loss compares the candidates of an example. If not, it is the loss of the correct
    candidate's tokens alone."""
    centred: bool
    """Whether the mean of each candidate's scores over all examples is subtracted from them before the loss
    is computed (SPEC T5)."""
    prior: Prior | None
    """Prior, (K,), that a calibrated loss subtracts from the scores; None for other losses."""
    references: int
    """Number of examples that have no label, and so no loss. They are the last ones of the batch."""
    weights: Tensor | None = None
    """(B,) float32, factors of the examples' losses; None if all are 1."""

    @property
    def examples(self) -> int:
        """Number of examples, B."""
        return self.right.shape[0]

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of tokens of each example, summed over its sequences, (B,)."""
        tokens = self.attention_mask.sum(1).numpy()
        return np.bincount(self.owners(), tokens, minlength=self.examples).astype(np.int64)

    def owners(self) -> NDArray[np.int64]:
        """Return the index of the example to which each sequence belongs, (S,)."""
        found = np.zeros(len(self.input_ids), np.int64)
        found[self.sequences.numpy()] = self.slots.numpy() // self.tokens.shape[1]
        return found

    def part(self, rows: Sequence[int]) -> Encoded:
        """Return a batch of the examples with these indices, with no more padding than necessary. This batch
        must have no `references`, and its loss must not be centred."""
        options, numbers = self.tokens.shape[1], torch.tensor(rows)
        place = torch.full((self.examples,), -1).index_copy_(0, numbers, torch.arange(len(rows)))
        of_target = place[self.slots // options]
        chosen = of_target >= 0
        sequences, of_chosen = torch.unique(self.sequences[chosen], return_inverse=True)
        width = int(self.attention_mask[sequences].sum(1).max())
        return replace(
            self,
            input_ids=self.input_ids[sequences, :width],
            attention_mask=self.attention_mask[sequences, :width],
            token_type_ids=self.token_type_ids[sequences, :width],
            sequences=of_chosen,
            columns=self.columns[chosen],
            targets=self.targets[chosen],
            slots=of_target[chosen] * options + self.slots[chosen] % options,
            tokens=self.tokens[numbers],
            right=self.right[numbers],
            weights=None if self.weights is None else self.weights[numbers],
        )

    def scores(self, log_probs: Tensor, prior: Prior | None = None) -> Tensor:
        """Return each candidate's mean log-probability per token, (B, K) float32; -inf for a missing
        candidate.

        `log_probs`, (P,) float32, has the log-probability of each target. `prior` (`calibration.prior`) is
        subtracted from the scores.
        """
        tokens = self.tokens.to(log_probs.device)  # (B, K)
        sums = log_probs.new_zeros(tokens.numel())
        sums.index_add_(0, self.slots.to(log_probs.device), log_probs)
        scores = torch.where(tokens > 0, sums.view_as(tokens) / tokens, -math.inf)
        return scores if prior is None else scores - torch.from_numpy(prior).to(scores)

    def losses(self, log_probs: Tensor, prior: Prior | None = None) -> Tensor:
        """Return the loss of each example with a label, (B - references,) float32, from the log-probability
        of each target, (P,).

        If `contrastive`, the loss is the cross-entropy over the candidates' scores. Otherwise it is minus the
        mean log-probability of the tokens of the first correct answer. `prior` as for `scores`; if None, the
        prior of the batch is used.
        """
        scores = self.scores(log_probs, self.prior if prior is None else prior)  # (B, K)
        if self.centred:
            scores = scores - scores.mean(0)
        first = self.right.to(log_probs.device).int().argmax(1, keepdim=True)  # (B, 1)
        if self.contrastive:
            scores = scores.log_softmax(1)
        losses = -scores.gather(1, first).flatten()[: self.examples - self.references]
        return losses if self.weights is None else losses * self.weights.to(losses.device)


class Scored(NamedTuple):
    """Result of a forward pass over an `Encoded` batch."""

    log_probs: Tensor
    """(P,) float32, the log-probability of each target at its position."""
    greedy: Tensor
    """(P,) bool, whether the target is the likeliest token at its position."""


ScoredBatch = tuple[Encoded, Scored]
"""A batch with a model's scores."""


Forward = Callable[[Encoded], Scored]
"""Function that runs a model on a batch, and returns the log-probabilities of the targets."""


class _Answers(NamedTuple):
    """A model's answers to some rows. All tensors are (B,) on the CPU."""

    losses: Tensor
    """float64, the loss of each row."""
    tokens: Tensor
    """float64, the number of targets of the first correct candidate."""
    chosen: Tensor
    """int64, the candidate with the highest score."""
    right: Tensor
    """int64, the first correct candidate."""
    hit: Tensor
    """bool, whether the row is answered correctly."""


def encode(
    task: Task,
    tokenizer: Any,
    rows: Sequence[Row],
    references: Sequence[Row] = (),
    *,
    every_candidate: bool = False,
) -> Encoded:
    """Encode rows as tensors. Raises UserError DATA_MALFORMED if a target does not fit into max_tokens
    tokens, BAD_OPTION for rows without answers.

    For training on a `choice` task, only the first correct candidate is encoded, as in MeZO. Scoring needs
    `every_candidate`, with which all candidates are encoded. `references` are rows without labels. A centred
    loss averages scores over them, too.
    """
    if task.kind == "reward":
        raise UserError(
            Code.BAD_OPTION,
            "the answers of a reward run are written, and not given: this measures losses of given ones",
            "Take another task (docs/rewards.md).",
        )
    texts = [render_row(task, row) for row in (*rows, *references)]
    if task.kind == "choice" and not every_candidate:
        texts = [_first_right(text) for text in texts]
    loss = "plain" if every_candidate else task.loss
    examples = [example(tokenizer, words, task.max_tokens) for words in texts]
    prior = prior_of(task) if loss == "calibrated" else None
    pad = tokenizer.pad_token_id or 0
    return _collate(examples, pad, task.labelled, loss == "centred", prior, len(references))


def prior_of(task: Task) -> Prior:
    """Return the manifest's prior, (K,) float64."""
    found: Prior = np.array(task.prior, np.float64) / PRIOR_ONE
    return found


class WrittenAnswer(NamedTuple):
    """A prompt, and the answer that a model has written to it, both as token ids."""

    prompt: Sequence[int]
    answer: Sequence[int]
    given: int
    """Number of tokens at the answer's beginning that are no targets. At least one token of the answer must
    be a target."""
    weight: float


def encode_written(written: Sequence[WrittenAnswer]) -> Encoded:
    """Encode answers that a model has written. The loss of an answer is minus the log-probability of all its
    targets, times its weight."""
    examples = []
    for prompt, answer, given, _ in written:
        fed = np.array([*prompt, *answer[:-1]], np.int32)  # the last token predicts nothing
        targets = [(0, len(prompt) - 1 + n, token, 0) for n, token in enumerate(answer) if n >= given]
        examples.append(Example((fed,), (np.zeros(len(fed), np.int8),), np.array(targets, np.int32), (0,)))
    found = _collate(examples, 0, False, False, None, 0)
    return replace(found, weights=torch.tensor([one.weight for one in written]) * found.tokens[:, 0])


def evaluate(
    task: Task,
    tokenizer: Any,
    rows: Sequence[Row],
    forward: Forward,
    batch_size: int,
    prior: Prior | None = None,
) -> EvaluationOfRows:
    """Measure a model on some rows. `forward` runs the model on `batch_size` rows at a time. `prior` as for
    `measure`."""
    return measure(task, scored_batches(task, tokenizer, rows, forward, batch_size), prior)


def scored_batches(
    task: Task, tokenizer: Any, rows: Sequence[Row], forward: Forward, batch_size: int
) -> Iterator[ScoredBatch]:
    """Yield the batches of `batches`, each with the result of `forward` for it."""
    for encoded in batches(task, tokenizer, rows, batch_size):
        yield encoded, forward(encoded)


def measure(task: Task, found: Iterable[ScoredBatch], prior: Prior | None = None) -> EvaluationOfRows:
    """Return the evaluation of a model, computed from its results on batches of rows.

    `prior` is subtracted from the scores of every row's answers. All rows must have as many answers as the
    prior.
    """
    each = [_answers(task, encoded, scored, prior) for encoded, scored in found]
    answers = _Answers(*map(torch.cat, zip(*each, strict=True)))
    metric, measured = _measured(task, answers)
    return EvaluationOfRows(
        metric=metric,
        **measured._asdict(),
        loss=float(answers.losses.mean()),
        count=len(answers.losses),
        calibrated=prior is not None,
        by_class=_by_class(task, answers) if task.labelled else (),
        losses=tuple(answers.losses.tolist()),
    )


def batches(task: Task, tokenizer: Any, rows: Sequence[Row], batch_size: int) -> Iterator[Encoded]:
    """Yield rows with all their candidates, `batch_size` at a time, ordered by length for little padding."""
    rows = sorted(rows, key=lambda row: length(render_row(task, row)))
    for start in range(0, len(rows), batch_size):
        yield encode(task, tokenizer, rows[start : start + batch_size], every_candidate=True)


def _first_right(words: RowText) -> RowText:
    assert isinstance(words, Prompt)
    return Prompt(words.prompt, (words.answers[words.right[0]],), (0,))


def _answers(task: Task, encoded: Encoded, scored: Scored, prior: Prior | None) -> _Answers:
    scores = encoded.scores(scored.log_probs, prior).cpu()  # (B, K)
    chosen, right = scores.argmax(1), encoded.right.int().argmax(1)  # (B,)
    return _Answers(
        losses=encoded.losses(scored.log_probs, prior).double().cpu(),
        tokens=encoded.tokens.gather(1, right[:, None]).flatten().double(),
        chosen=chosen,
        right=right,
        hit=_written(encoded, scored)
        if task.kind == "completion"
        else encoded.right.gather(1, chosen[:, None]).flatten(),
    )


def _written(encoded: Encoded, scored: Scored) -> Tensor:
    """Return, for each example, whether greedy decoding would write its completion, (B,) bool. This is so if
    each token of the completion is the likeliest one at its position."""
    wrong = (~scored.greedy.cpu()).float()  # (P,)
    return torch.zeros(encoded.examples).index_add_(0, encoded.slots, wrong) == 0


def _by_class(task: Task, answers: _Answers) -> tuple[ClassScore, ...]:
    names = enumerate(task.verbalizer)
    hits = [(name, answers.hit[answers.right == number]) for number, name in names]
    return tuple(
        ClassScore(name=name, right=int(hit.sum()), count=len(hit)) for name, hit in hits if len(hit)
    )


def _measured(task: Task, answers: _Answers) -> tuple[str, metrics.MeasuredMetric]:
    """Return the name of the task's metric and its value."""
    long = task.kind == "completion" and float(answers.tokens.mean()) > LONG_ANSWER
    if task.kind in ("text", "chat") or long:
        surprises = answers.losses * answers.tokens  # (rows,), in nats
        return "perplexity", metrics.perplexity(surprises.numpy(), answers.tokens.numpy())
    if task.metric == "f1":
        classes = len(task.verbalizer)
        return "f1", metrics.macro_f1(answers.chosen.numpy(), answers.right.numpy(), classes)
    name = "exact_match" if task.kind == "completion" else "accuracy"
    return name, metrics.share(int(answers.hit.sum()), len(answers.hit))


def _collate(
    examples: Sequence[Example],
    pad: int,
    contrastive: bool,
    centred: bool,
    prior: Prior | None,
    references: int,
) -> Encoded:
    inputs = [ids for one in examples for ids in one.inputs]
    types = [ids for one in examples for ids in one.types]
    lengths = np.array([len(ids) for ids in inputs])
    width = int(lengths.max())  # T
    sequence, column, token, candidate = np.concatenate([one.targets for one in examples]).astype(np.int64).T
    counts = [len(one.targets) for one in examples]
    firsts = np.cumsum([0] + [len(one.inputs) for one in examples[:-1]])
    options = int(candidate.max()) + 1  # K
    slots = np.repeat(np.arange(len(examples)), counts) * options + candidate
    tokens = np.bincount(slots, minlength=len(examples) * options).astype(np.float32)
    return Encoded(
        input_ids=_padded(inputs, width, pad),
        attention_mask=torch.from_numpy((np.arange(width) < lengths[:, None]).astype(np.int64)),
        token_type_ids=_padded(types, width, 0),
        sequences=torch.from_numpy(np.repeat(firsts, counts) + sequence),
        columns=torch.from_numpy(np.ascontiguousarray(column)),
        targets=torch.from_numpy(np.ascontiguousarray(token)),
        slots=torch.from_numpy(slots),
        tokens=torch.from_numpy(tokens.reshape(len(examples), options)),
        right=torch.tensor([[slot in one.right for slot in range(options)] for one in examples]),
        contrastive=contrastive,
        centred=centred,
        prior=prior,
        references=references,
    )


def _padded(sequences: Sequence[NDArray[np.signedinteger]], width: int, pad: int) -> Tensor:
    """Return the sequences padded on the right, (S, width) int64."""
    found = np.full((len(sequences), width), pad, np.int64)
    for row, ids in zip(found, sequences, strict=True):
        row[: len(ids)] = ids
    return torch.from_numpy(found)
