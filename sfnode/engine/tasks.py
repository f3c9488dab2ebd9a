"""From rows to tensors and from logits to losses, scores and metrics.

Scoring and training follow MeZO (Malladi et al. 2023; princeton-nlp/MeZO, large_models/utils.py and run.py):
a candidate's score is the mean log-probability of its tokens, and classification is trained on the
cross-entropy over the candidates' scores. This module knows tokenizers and logits; it knows no model and no
update.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfnode.config import Task
from sfnode.engine.template import join
from sfnode.engine.wording import Row, Wording, wording
from sfnode.errors import Code, UserError

CACHED_TOKENS = 4_000_000
"""How many tokens of seen examples each tokenizer keeps, at 4 to 20 bytes each. SST-2 fits whole."""

_I32 = NDArray[np.int32]


@dataclass(frozen=True)
class Encoded:
    """A batch of B examples as S sequences of at most T tokens, right-padded; all tensors on the CPU.

    Candidates of one example that differ only after a common beginning share its sequence: in a causal model
    what comes later changes nothing before it.
    """

    input_ids: Tensor
    """(S, T) int64."""
    attention_mask: Tensor
    """(S, T) int64, 0 on padding."""
    positions: Tensor
    """(P,) int64, flat indices into (S * T): the hidden state there predicts a target."""
    targets: Tensor
    """(P,) int64, the token predicted at each position."""
    slots: Tensor
    """(P,) int64, flat indices into (B, K): the candidate that each target belongs to."""
    tokens: Tensor
    """(B, K) float32, the number of targets of each candidate; 0 where an example has fewer candidates."""
    right: Tensor
    """(B, K) bool, the right candidates."""
    contrastive: bool
    """Whether the loss contrasts the candidates, or is that of the right one's tokens alone."""

    @property
    def examples(self) -> int:
        """B."""
        return self.right.shape[0]

    def scores(self, logits: Tensor) -> Tensor:
        """Mean log-probability of each candidate's tokens, (B, K) float32; -inf where there is no candidate.

        `logits`: (P, vocab) of any floating dtype, at `positions`.
        """
        chosen = logits.float().log_softmax(-1).gather(1, self._like(self.targets, logits)[:, None])  # (P, 1)
        tokens = self._like(self.tokens, logits)
        sums = torch.zeros(tokens.numel(), device=logits.device)
        sums.index_add_(0, self._like(self.slots, logits), chosen.flatten())
        return torch.where(tokens > 0, sums.view_as(tokens) / tokens, -math.inf)

    def losses(self, logits: Tensor) -> Tensor:
        """The loss of each example, (B,) float32, from logits (P, vocab).

        Contrastive: cross-entropy over the candidates' scores; else minus the mean log-probability of the
        tokens of the first right answer.
        """
        scores = self.scores(logits)  # (B, K)
        first = self._like(self.right, logits).int().argmax(1, keepdim=True)  # (B, 1)
        if self.contrastive:
            scores = scores.log_softmax(1)
        return -scores.gather(1, first).flatten()

    @staticmethod
    def _like(part: Tensor, logits: Tensor) -> Tensor:
        return part.to(logits.device)


class Evaluation(NamedTuple):
    """A measurement of a model on some rows."""

    metric: str
    """accuracy (classification, choice), exact_match (completion, greedily decoded) or perplexity (text)."""
    value: float
    loss: float
    """Mean loss of the rows, as trained on."""
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody wants here
    """Number of rows."""


class _Example(NamedTuple):
    """One row as token ids."""

    inputs: tuple[_I32, ...]
    """The sequences that are fed in."""
    targets: _I32
    """(P, 4): each target's sequence, the column whose hidden state predicts it, token and candidate."""
    right: tuple[int, ...]
    """The right candidates."""


class _Cache:
    """The examples that one tokenizer has encoded."""

    def __init__(self) -> None:
        self.examples: dict[tuple[Wording, int], _Example] = {}
        self.tokens = 0


_caches: WeakKeyDictionary[Any, _Cache] = WeakKeyDictionary()


def encode(task: Task, tokenizer: Any, rows: Sequence[Row], *, every_candidate: bool = False) -> Encoded:
    """The rows as tensors. Raises UserError DATA_MALFORMED when an answer alone is longer than max_tokens.

    For a `choice` task, as in MeZO, training needs the first right candidate only; `every_candidate` encodes
    all, to score them.
    """
    contrastive = task.kind == "classification"
    worded = [wording(task, row) for row in rows]
    if not contrastive and not every_candidate:
        worded = [Wording(w.prompt, (w.answers[w.right[0]],), (0,)) for w in worded]
    pad = tokenizer.pad_token_id
    return _collate([_example(tokenizer, w, task.max_tokens) for w in worded], pad or 0, contrastive)


def evaluate(
    task: Task,
    tokenizer: Any,
    rows: Sequence[Row],
    forward: Callable[[Encoded], Tensor],
    batch_size: int,
) -> Evaluation:
    """Score every row; `forward` maps an Encoded to logits (P, vocab)."""
    rows = sorted(rows, key=lambda row: _length(wording(task, row)))  # like lengths together, little padding
    hits = losses = surprise = tokens = 0.0
    for start in range(0, len(rows), batch_size):
        encoded = encode(task, tokenizer, rows[start : start + batch_size], every_candidate=True)
        logits = forward(encoded)
        loss = encoded.losses(logits).double().cpu()  # (B,)
        losses += float(loss.sum())
        if task.kind == "text":
            surprise += float((loss * encoded.tokens[:, 0]).sum())
            tokens += float(encoded.tokens.sum())
        else:
            hits += float(_hits(task, encoded, logits).sum())
    count = len(rows)
    if task.kind == "text":
        return Evaluation("perplexity", math.exp(min(surprise / tokens, 700.0)), losses / count, count)
    metric = "exact_match" if task.kind == "completion" else "accuracy"
    return Evaluation(metric, hits / count, losses / count, count)


def _length(words: Wording) -> int:
    return len(words.prompt) + max(map(len, words.answers))


def _hits(task: Task, encoded: Encoded, logits: Tensor) -> Tensor:
    """Which examples are answered rightly, (B,) bool on the CPU.

    A completion is right when every token of it is the likeliest after those before it, which is when greedy
    decoding would write it.
    """
    if task.kind == "completion":
        wrong = (logits.argmax(-1).cpu() != encoded.targets).float()  # (P,)
        return torch.zeros(encoded.examples).index_add_(0, encoded.slots, wrong) == 0
    best = encoded.scores(logits).argmax(1, keepdim=True).cpu()  # (B, 1)
    return encoded.right.gather(1, best).flatten()


def _example(tokenizer: Any, words: Wording, max_tokens: int) -> _Example:
    """The tokens of an example; each distinct one is tokenised once per tokenizer."""
    cache = _caches.setdefault(tokenizer, _Cache())
    key = (words, max_tokens)
    example = cache.examples.get(key)
    if example is None:
        if cache.tokens > CACHED_TOKENS:
            cache.examples.clear()
            cache.tokens = 0
        example = cache.examples[key] = _tokenised(tokenizer, words, max_tokens)
        cache.tokens += sum(len(ids) for ids in example.inputs)
    return example


def _tokenised(tokenizer: Any, words: Wording, max_tokens: int) -> _Example:
    inputs: list[list[int]] = []
    targets = []
    whole = enumerate(_sequences(tokenizer, words, max_tokens))
    # The longest first, so that a sequence that another one begins with finds that other one.
    for candidate, (ids, first) in sorted(whole, key=lambda item: -len(item[1][0])):
        fed = ids[:-1]  # the last token predicts nothing
        home = next((n for n, other in enumerate(inputs) if other[: len(fed)] == fed), len(inputs))
        if home == len(inputs):
            inputs.append(fed)
        targets += [(home, column - 1, ids[column], candidate) for column in range(first, len(ids))]
    fed_in = tuple(np.array(ids, np.int32) for ids in inputs)
    return _Example(fed_in, np.array(targets, np.int32), words.right)


def _sequences(tokenizer: Any, words: Wording, max_tokens: int) -> list[tuple[list[int], int]]:
    """Per answer the token ids of prompt and answer, at most max_tokens, and the index of the answer's first.

    A prompt that is too long loses its beginning, the same for all answers; an answer without a prompt (a
    text) loses its end. Prompt and answer are tokenised as one piece, and the answer begins where that
    departs from the prompt's own tokens.
    """
    start = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    room = max_tokens - len(start)
    pieces = [_ids(tokenizer, join(words.prompt, answer)) for answer in words.answers]
    alone = _ids(tokenizer, words.prompt.rstrip(" ")) if words.prompt else []
    cut = max(0, max(map(len, pieces)) - room) if words.prompt else 0
    earliest = max(len(start), 1)  # the very first token of a sequence is predicted by nothing
    sequences = []
    for piece, answer in zip(pieces, words.answers, strict=True):
        ids = start + piece[cut:][:room]
        first = len(start) + _common(piece, alone) - cut if words.prompt else earliest
        if not earliest <= first < len(ids):
            raise _unfit(answer, max_tokens)
        sequences.append((ids, first))
    return sequences


def _ids(tokenizer: Any, text: str) -> list[int]:
    """The tokens of the text alone: some tokenizers add special ones in front, some behind, some none."""
    ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
    return ids


def _common(left: list[int], right: list[int]) -> int:
    """Length of the longest common beginning."""
    pairs = zip(left, right, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _collate(examples: Sequence[_Example], pad: int, contrastive: bool) -> Encoded:
    inputs = [ids for example in examples for ids in example.inputs]
    lengths = np.array([len(ids) for ids in inputs])
    width = int(lengths.max())  # T
    input_ids = np.full((len(inputs), width), pad, np.int64)
    for row, ids in zip(input_ids, inputs, strict=True):
        row[: len(ids)] = ids
    sequence, column, token, candidate = np.concatenate([e.targets for e in examples]).astype(np.int64).T
    counts = [len(example.targets) for example in examples]
    firsts = np.cumsum([0] + [len(example.inputs) for example in examples[:-1]])
    options = int(candidate.max()) + 1  # K
    slots = np.repeat(np.arange(len(examples)), counts) * options + candidate
    tokens = np.bincount(slots, minlength=len(examples) * options).astype(np.float32)
    return Encoded(
        input_ids=torch.from_numpy(input_ids),
        attention_mask=torch.from_numpy((np.arange(width) < lengths[:, None]).astype(np.int64)),
        positions=torch.from_numpy((np.repeat(firsts, counts) + sequence) * width + column),
        targets=torch.from_numpy(token),
        slots=torch.from_numpy(slots),
        tokens=torch.from_numpy(tokens.reshape(len(examples), options)),
        right=torch.tensor([[slot in example.right for slot in range(options)] for example in examples]),
        contrastive=contrastive,
    )


def _unfit(answer: str, max_tokens: int) -> UserError:
    return UserError(
        Code.DATA_MALFORMED,
        f"the answer {answer[:60]!r} cannot be predicted within max_tokens = {max_tokens}",
        "Raise max_tokens in the run's task, or leave such rows out of the data.",
    )
