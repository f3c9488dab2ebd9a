"""Runs a model: from sequences to the log-probabilities of their targets.

A batch is cut into passes, which limits padding and memory. The logits of a pass, its largest tensor, are
reduced to log-probabilities at once. This module knows neither updates nor losses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from sfnode.errors import Code, UserError
from sfnode.models.cuts import Head
from sfnode.models.kept_states import KeptStates, texts_of
from sfnode.models.loader import LoadedModel
from sfnode.models.perturbation import Directions, Perturbation
from sfnode.tasks.encoding import Encoded, Scored

CPU_PASS_ENTRIES = 3 << 19
"""Maximum product of a pass's tokens and the widest layer's outputs, on a CPU: 512 tokens if the widest layer
has 3,072 outputs, as in OPT-125M, or 1,536 tokens if it has 1,024. In a larger pass a token takes no less
time, and the activations no longer fit the processor's caches (docs/benchmarks.md)."""

LEAST_PASS_TOKENS = 256
"""Lower bound of the maximum number of tokens in a pass on a CPU, for models with very wide layers. With
fewer tokens, reading the weights would cost more time than the smaller pass saves."""

OTHER_PASS_TOKENS = 65_536
"""Maximum tokens of a pass on an accelerator. More tokens would be faster, but take too much memory."""

READING = 64
"""Overhead of a pass on a CPU for reading the weights, in tokens that could be computed in that time."""

INTERPRETING = 1 << 15
"""Overhead of a pass on a CPU for the Python interpreter, as a product of tokens and the widest layer's
outputs, since a token takes longer in wider layers. Together with READING it was measured as the time of 40
tokens (Llama, 2,048 outputs) to 200 tokens (256 outputs)."""

LAUNCHING = 4_096
"""Overhead of a pass on an accelerator for launching kernels, in tokens that could be computed in that time.
It is an estimate. With any value of some thousands nearly every batch is one pass."""

CPU_PASS_BYTES = 256 << 20
"""Maximum bytes, on a CPU, of a pass's logits in float32, and of the keys and values of texts' common
beginning. If every token is a target, nothing in a pass is larger than the logits: 200 MB for 1,024 tokens of
SmolLM2. A machine of 8 GiB has room for that beside a browser."""

PASS_BYTES, MEMORY_SHARE = 2 << 30, 16
"""The same limit as CPU_PASS_BYTES, but on a GPU: PASS_BYTES, or the GPU's memory divided by MEMORY_SHARE if
that is less. All of the GPU's memory counts, not only its free memory, so that the same rows are always cut
into the same passes, and rounded alike."""

LOGITS_AT_A_TIME = 1 << 24
"""Maximum number of logits that are in float32 at a time: 64 MiB."""

LEAST_SHARED = 16
"""Minimum number of common first tokens that are read once for all texts. Fewer tokens are not worth a
separate pass."""


class Batch(NamedTuple):
    """S sequences of T tokens and their P targets, as numpy arrays."""

    input_ids: NDArray[np.int64]
    """(S, T) token ids."""
    attention_mask: NDArray[np.int64]
    """(S, T), 0 on padding, which is on the right."""
    token_type_ids: NDArray[np.int64]
    """(S, T), the index (0 or 1) of the text that a token belongs to in a pair of texts."""
    sequences: NDArray[np.int64]
    """(P,), the sequence of each target."""
    columns: NDArray[np.int64]
    """(P,), the column whose output predicts each target."""
    targets: NDArray[np.int64]
    """(P,), the token (or class) to predict."""


class Pass(NamedTuple):
    """The input of one forward pass, on the model's device: R of a batch's sequences, padded to the longest
    of them (W tokens), and their p targets."""

    input_ids: Tensor
    """(R, W) token ids."""
    attention_mask: Tensor
    """(R, W), 0 on padding, which is on the right."""
    token_type_ids: Tensor
    """(R, W), the index (0 or 1) of the text that a token belongs to in a pair of texts."""
    rows: Tensor
    """(p,), the row of each target."""
    columns: Tensor
    """(p,), the column whose output predicts each target."""
    targets: Tensor
    """(p,), the token (or class) to predict."""

    def behind(self, tokens: int) -> Pass:
        """Return the pass without the first `tokens` tokens of each row. No target may be predicted at these
        tokens."""
        ids, mask, types = (part[:, tokens:] for part in self[:3])
        return Pass(ids, mask, types, self.rows, self.columns - tokens, self.targets)


class Begun(NamedTuple):
    """Keys and values of the common beginning of some texts, computed at several points: with the weights
    perturbed in several ways."""

    tokens: int
    points: NDArray[np.int64]
    """Numbers of the points, ascending."""
    layers: Sequence[tuple[Tensor, Tensor]]
    """Keys and values of each layer, (points, heads, tokens, d) each."""

    def cache(self, points: NDArray[np.int64]) -> Any:
        """Return a cache with the keys and values of the beginning for each of R rows, given the points of
        the rows, (R,)."""
        found: Any = DynamicCache()
        places = np.searchsorted(self.points, points)
        for number, layer in enumerate(self.layers):
            chosen = torch.from_numpy(places).to(layer[0].device, non_blocking=True)
            parts = (
                part[chosen] if len(part) > 1 else part.expand(len(points), -1, -1, -1) for part in layer
            )
            found.update(*parts, number)
        return found


Perturb = Callable[[Pass], Perturbation]
"""Function that returns the perturbation of a pass."""

KeepGoing = Callable[[], bool]
"""Function that a long measurement calls from time to time. It returns whether the measurement should
continue."""


def always() -> bool:
    """Return True: as a `KeepGoing`, it lets a measurement continue to its end."""
    return True


def paused() -> UserError:
    """Return the error of a measurement that a pause of the node has interrupted."""
    return UserError(
        Code.PAUSED,
        "the node was paused while it measured the model",
        "Ask again; a node that is paused already measures all the same.",
    )


def score(loaded: LoadedModel, encoded: Encoded) -> Scored:
    """Score a batch that is small enough for one pass. Benchmarks compare the time of a step with the time of
    this function."""
    batch = batch_of(encoded)
    with torch.inference_mode():
        return _scored(loaded, batch, np.arange(len(batch.input_ids)), np.arange(len(batch.targets)))


def score_in_passes(loaded: LoadedModel, encoded: Encoded, perturb: Perturb | None = None) -> Scored:
    """Score a batch of any size, in passes that take no more memory than training does. With `perturb` the
    weights are perturbed."""
    batch = batch_of(encoded)
    found, numbers = [], []
    with torch.inference_mode():
        for sequences in passes(loaded, batch, np.arange(len(batch.input_ids))):
            targets = np.flatnonzero(np.isin(batch.sequences, sequences))
            found.append(_scored(loaded, batch, sequences, targets, perturb))
            numbers.append(targets)
        order = torch.from_numpy(np.argsort(np.concatenate(numbers)))
        return Scored(*(torch.cat(parts)[order] for parts in zip(*found, strict=True)))


def states(loaded: LoadedModel, encoded: Encoded) -> Tensor:
    """Return the hidden states that enter the head, (S, features), in the head's dtype. The model must be one
    of which only the head is trained."""
    assert loaded.kept is not None
    batch = batch_of(encoded)
    _keep(loaded, loaded.kept, batch, np.arange(len(batch.input_ids)))
    return loaded.kept.of(texts_of(*batch[:3]))[:, 0]


def log_probs(
    loaded: LoadedModel, this: Pass, perturbation: Perturbation | None, begun: int = 0, cache: Any = None
) -> Tensor:
    """Return the log-probability of each target of a pass, (p,) float32, still on the device. If there is a
    `cache`, it holds the keys and values of the first `begun` tokens of the pass's rows."""
    cached = {} if cache is None else {"past_key_values": cache}
    with loaded.perturber.applying(perturbation):
        return _log_probs(logits(loaded, this, begun, **cached), this.targets)


def shared(loaded: LoadedModel, batch: Batch, sequences: NDArray[np.int64]) -> int:
    """Return the number of first tokens that all these sequences of a batch have in common, up to the first
    column that predicts a target; 0 for a classifier."""
    if loaded.classifies:
        return 0
    ids = batch.input_ids[sequences]
    differing = np.flatnonzero((ids != ids[0]).any(0))
    return int(min([batch.columns[np.isin(batch.sequences, sequences)].min(), *differing[:1]]))


def families(loaded: LoadedModel, batch: Batch, begun: int) -> list[NDArray[np.int64]]:
    """Return the numbers of a batch's sequences, grouped into families. All sequences have the first `begun`
    tokens in common; the members of a family have at least LEAST_SHARED more in common. Sequences that belong
    to no family form one group."""
    if loaded.classifies:
        return [np.arange(len(batch.input_ids))]
    texts, numbers = np.unique(batch.input_ids, axis=0, return_inverse=True)  # in their order
    alike = (texts[1:] == texts[:-1]).cumprod(1).sum(1) >= begun + LEAST_SHARED  # two neighbours
    names = np.cumsum([0, *~alike])
    names[np.bincount(names)[names] == 1] = -1
    of_sequences = names[numbers.reshape(-1)]
    return [np.flatnonzero(of_sequences == name) for name in np.unique(of_sequences)]


def may_begin(loaded: LoadedModel, tokens: int, points: int, sequences: int, before: int = 0) -> bool:
    """Return whether it is possible, and pays, to read the first `tokens` tokens once for each point instead
    of once for each sequence. The keys and values of the first `before` of these tokens are there already."""
    if tokens - before < LEAST_SHARED or sequences < 2 * points:
        return False
    size: int = sum(part.nbytes for layer in kept_of_a_token(loaded) for part in (layer.keys, layer.values))
    return 0 < size * tokens * points <= pass_bytes(loaded.device)


def begin(
    loaded: LoadedModel,
    tokens: NDArray[np.int64],
    points: NDArray[np.int64],
    perturb: Callable[[Pass], Perturbation | None],
    before: Begun | None = None,
) -> Begun:
    """Return the keys and values of the tokens (T,) that texts begin with, at each of the `points`, which
    ascend. `perturb` returns the perturbation of a pass with one row for each point. Tokens in `before` are
    not computed again."""
    first = before.tokens if before else 0
    ids, every = np.tile(tokens, (len(points), 1)), np.arange(len(points))
    last = np.full(len(points), len(tokens) - 1)
    batch = Batch(ids, np.ones_like(ids), np.zeros_like(ids), every, last, np.zeros_like(every))
    cache: Any = before.cache(points) if before else DynamicCache()
    this = take(loaded, batch, every, every)
    with loaded.perturber.applying(perturb(this.behind(first))):
        logits(loaded, this, first, past_key_values=cache)
    nothing = torch.zeros(1, 1, 1, 1, device=loaded.device).expand(1, 1, len(tokens), 1)  # below a cut
    return Begun(
        len(tokens),
        points,
        [(nothing, nothing) if layer.keys is None else (layer.keys, layer.values) for layer in cache.layers],
    )


_KEPT: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
"""Results of `kept_of_a_token`, keyed by model, since each result takes a forward pass."""


def kept_of_a_token(loaded: LoadedModel) -> list[Any]:
    """Return the layers of a cache that holds a single token. The list is empty if the model keeps more of
    the past than keys and values, as state-space models and hybrids do."""
    if (known := _KEPT.get(loaded.model)) is not None:
        return known
    cache: Any = DynamicCache()
    one = np.zeros((1, 1), np.int64)
    first = np.zeros(1, np.int64)
    this = take(loaded, Batch(one, one + 1, one, first, first, first), first, first)
    layers: list[Any] = []
    # model code that expects another kind of cache fails with one of these errors
    with suppress(AttributeError, IndexError, KeyError, NotImplementedError, TypeError, ValueError):
        logits(replace(loaded, kept=None), this, past_key_values=cache)
        layers = list(cache.layers)
    usual = all(type(layer) is DynamicLayer and layer.keys is not None for layer in layers)
    return _KEPT.setdefault(loaded.model, layers if usual else [])


def mean_loss(
    loaded: LoadedModel, encoded: Encoded, perturb: Perturb | None = None, *, at_once: bool = False
) -> Tensor:
    """Return the mean loss of a mini-batch that is small enough for one pass. The result allows a backward
    pass if gradients are enabled. A common beginning of the texts is read once; with `at_once` each text is
    read as a whole instead."""
    batch = batch_of(encoded)
    every = np.arange(len(batch.input_ids))
    point = np.zeros_like(every)
    first = 0 if at_once else shared(loaded, batch, every)
    cache = None
    if may_begin(loaded, first, 1, len(every)):
        beginning = batch.input_ids[0, :first]
        cache = begin(loaded, beginning, point[:1], perturb or (lambda this: None)).cache(point)
    else:
        first = 0
    this = take(loaded, batch, every, np.arange(len(batch.targets)))
    perturbation = perturb(this.behind(first)) if perturb else None
    return encoded.losses(log_probs(loaded, this, perturbation, first, cache)).mean()


def batch_of(encoded: Encoded) -> Batch:
    """Return the parts of an encoded batch that a model sees, as numpy arrays."""
    return Batch(*(getattr(encoded, part).numpy() for part in Batch._fields))


def take(loaded: LoadedModel, batch: Batch, sequences: NDArray[np.int64], targets: NDArray[np.int64]) -> Pass:
    """Return a pass with these sequences in this order. `targets`: the numbers of the targets of these
    sequences.

    Raises UserError MODEL_UNSUPPORTED for tokens that the model does not know. Without this check a GPU would
    report an error only later, and compute nothing afterwards.
    """
    width = int(batch.attention_mask[sequences].sum(1).max())
    row_of = np.zeros(len(batch.input_ids), np.int64)
    row_of[sequences] = np.arange(len(sequences))
    parts = (
        batch.input_ids[sequences, :width],
        batch.attention_mask[sequences, :width],
        batch.token_type_ids[sequences, :width],
        row_of[batch.sequences[targets]],
        batch.columns[targets],
        batch.targets[targets],
    )
    largest = max(int(parts[0].max()), int(parts[-1].max(initial=0)))
    if largest >= loaded.known_tokens:
        raise UserError(
            Code.MODEL_UNSUPPORTED,
            f"a row has the token {largest:,}, and the model knows {loaded.known_tokens:,}, numbered from 0",
            "Leave texts with such special tokens out of the data, or take a model that knows them.",
        )
    return Pass(*(torch.from_numpy(part).to(loaded.device, non_blocking=True) for part in parts))


def everywhere(directions: Directions, this: Pass) -> Perturbation:
    """Return the perturbation that moves the weights by 1 along each of these directions, for all rows of a
    pass."""
    one = directions.u[0].new_ones(1, 1)
    sequences, width = this.input_ids.shape
    tokens, rows, outputs = (
        one.expand(count, directions.u[0].shape[0])
        for count in (sequences * width, sequences, len(this.rows))
    )
    return Perturbation(directions, tokens, rows, outputs)


def passes(
    loaded: LoadedModel, batch: Batch, sequences: NDArray[np.int64], begun: int = 0
) -> Iterator[NDArray[np.int64]]:
    """Yield the numbers of these sequences of a batch, pass by pass. The first `begun` tokens of each
    sequence are in a cache already. There is a single pass if only the head remains to be computed."""
    if loaded.kept is not None and isinstance(loaded.kept.cut, Head):
        _keep(loaded, loaded.kept, batch, sequences)
        yield sequences
    else:  # each pass computes its own missing states: the states of all passes may not fit
        yield from _passes(loaded, batch, sequences, begun)


def _passes(
    loaded: LoadedModel, batch: Batch, sequences: NDArray[np.int64], begun: int = 0
) -> Iterator[NDArray[np.int64]]:
    lengths = batch.attention_mask[sequences].sum(1) - begun
    targets = np.bincount(batch.sequences, minlength=len(batch.input_ids))[sequences]
    outputs = 0 if loaded.classifies else loaded.model.config.get_text_config(decoder=True).vocab_size
    for group in groups(lengths, loaded.widest, loaded.device, targets * outputs):
        yield sequences[group]


def pass_bytes(device: torch.device) -> int:
    """Return the maximum bytes of a pass's logits in float32, which also limits a beginning's keys and
    values."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return CPU_PASS_BYTES
    return min(PASS_BYTES, torch.cuda.get_device_properties(device).total_memory // MEMORY_SHARE)


def pass_logits(device: torch.device) -> int:
    """Return the maximum number of logits of a pass."""
    return pass_bytes(device) // torch.float32.itemsize


def groups(
    lengths: NDArray[np.int64], width: int, device: torch.device, logits: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    """Cut sequences into groups of similar lengths, the longest first; each group is one pass.

    `lengths`: the number of tokens of each sequence; `width`: the number of outputs of the widest layer;
    `logits`: the number of logits for each sequence's targets. The cuts between lengths minimise the cost of
    padded tokens and of the passes' overhead. A group that is too large for one pass is cut into equal parts,
    each of which may exceed the limit by less than one sequence.
    """
    order = np.argsort(-lengths, kind="stable")
    descending, counts = np.unique(-lengths, return_counts=True)
    starts = np.concatenate([[0], np.cumsum(counts)])  # start of each length in `order`
    if device.type == "cpu":
        limit, overhead = max(CPU_PASS_ENTRIES // width, LEAST_PASS_TOKENS), READING + INTERPRETING / width
    else:
        limit, overhead = OTHER_PASS_TOKENS, LAUNCHING
    found = []
    for first, last in _cuts((-descending).tolist(), starts.tolist(), overhead):
        group = order[starts[first] : starts[last]]
        tokens, entries = len(group) * int(-descending[first]), len(group) * int(logits[group].max())
        parts = max(-(-tokens // limit), -(-entries // pass_logits(device)))
        found += np.array_split(group, min(parts, len(group)))
    return found


def _cuts(lengths: list[int], starts: list[int], overhead: float) -> list[tuple[int, int]]:
    """Return the ranges of the descending `lengths` whose passes together cost least (dynamic
    programming)."""
    cost, came = [0.0], [0]
    for last in range(1, len(lengths) + 1):
        costs = [
            cost[first] + overhead + lengths[first] * (starts[last] - starts[first]) for first in range(last)
        ]
        came.append(min(range(last), key=costs.__getitem__))
        cost.append(costs[came[-1]])
    ranges, last = [], len(lengths)
    while last:
        ranges.append((came[last], last))
        last = came[last]
    return ranges[::-1]


def _scored(
    loaded: LoadedModel,
    batch: Batch,
    sequences: NDArray[np.int64],
    targets: NDArray[np.int64],
    perturb: Perturb | None = None,
) -> Scored:
    """Score these targets of these sequences in one pass."""
    this = take(loaded, batch, sequences, targets)
    with loaded.perturber.applying(perturb(this) if perturb else None):
        found = logits(loaded, this)  # (p, vocab)
    chosen = found.gather(1, this.targets[:, None]).flatten()
    greedy = chosen >= found.amax(-1)  # ten times as fast as argmax on a CPU
    return Scored(_log_probs(found, this.targets).cpu(), greedy.cpu())


def logits(loaded: LoadedModel, this: Pass, begun: int = 0, **cached: Any) -> Tensor:
    """Return the logits of a pass's targets: (p, vocab) of a language model, (p, classes) of a classifier.

    `cached`: keyword arguments for a language model: a cache, which holds the first `begun` tokens of the
    pass, and what else the model needs to use it. Hidden states that are kept for a text are not computed
    again.

    A causal model is given no mask for padding on the right. No target can see that padding, and transformers
    spends time on a mask. (An accelerator waits at the start of a pass in either case, because transformers
    inspects the mask, or without one the positions.)

    Raises UserError MODEL_UNSUPPORTED for positions that the model's tables lack.
    """
    kept, rest = loaded.kept, this.behind(begun)
    if kept is None:
        found = _outputs(loaded, rest, **cached)
    else:
        texts = texts_of(*(part.cpu().numpy() for part in this[:3]))
        if lacking := kept.lacking(texts):
            rows = list(lacking.values())
            parts = {name: getattr(this, name)[rows] for name in Pass._fields[:3]}
            kept.fill(list(lacking), lambda: _outputs(loaded, this._replace(**parts)))
        found = kept.outputs(texts, begun, lambda: _outputs(loaded, rest, **cached))
    return found[this.rows] if loaded.classifies else found  # (R, classes) -> (p, classes)


def _outputs(loaded: LoadedModel, this: Pass, **cached: Any) -> Tensor:
    """Return the outputs for a pass: (p, vocab) of a language model, (R, classes) of a classifier."""
    network: Any = loaded.model
    if loaded.classifies:
        cached = {"attention_mask": this.attention_mask}
        if getattr(network.config, "type_vocab_size", 0) > 1:  # RoBERTa's one type is that of every token
            cached["token_type_ids"] = this.token_type_ids
    else:
        loaded.perturber.head_positions = this.rows, this.columns
        cached["use_cache"] = bool(cached)
    try:
        found: Tensor = network(input_ids=this.input_ids, **cached).logits
    except IndexError as error:
        if cached.get("use_cache"):
            raise  # the model cannot take such a cache
        raise UserError(
            Code.MODEL_UNSUPPORTED,
            f"the model cannot read a row of {this.input_ids.shape[1]} tokens: {error}",
            "It has fewer positions: make a run with a smaller max_tokens, or with another model.",
        ) from error
    finally:
        loaded.perturber.head_positions = None
    return found


def _keep(loaded: LoadedModel, kept: KeptStates, batch: Batch, sequences: NDArray[np.int64]) -> None:
    """Compute and keep the hidden states of those of these sequences whose states are not kept yet, once for
    each text."""
    texts = texts_of(*(part[sequences] for part in batch[:3]))
    places = kept.lacking(texts)
    lacking = sequences[list(places.values())]
    named = dict(zip(lacking.tolist(), places, strict=True))
    for group in _passes(loaded, batch, lacking) if named else ():
        this = take(loaded, batch, group, np.flatnonzero(np.isin(batch.sequences, group)))
        kept.fill([named[number] for number in group.tolist()], partial(_outputs, loaded, this))


def _log_probs(found: Tensor, targets: Tensor) -> Tensor:
    """Return each target's log-probability, (P,) float32 (or float64), from logits (P, vocab), in blocks."""
    dtype = torch.promote_types(found.dtype, torch.float32)
    block = max(1, LOGITS_AT_A_TIME // found.shape[1])
    parts = [
        -cross_entropy(part.to(dtype), wanted, reduction="none")
        for part, wanted in zip(torch.split(found, block), torch.split(targets, block), strict=True)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)
