"""Makes bases to publish: directions along which the loss of a task falls, or along which inputs lie.

There are two kinds of bases. `gradients` takes the strongest directions of the mean gradient over some
mini-batches. This takes a few backward passes, which one node computes once. `errors` takes the directions of
layers' inputs that correlate with errors of the model's output, from forward passes only. Neither keeps a
gradient in memory. Products of inputs with gradients, or with errors, are added to two sketches, which give
the strongest directions at the end (Tropp, Yurtsever, Udell, Cevher 2017, "Practical sketching algorithms for
low-rank matrix approximation", algorithm 4). This takes hardly more memory than inference. The bases are
published, so they may differ from one machine to another.

This module knows a model and encoded mini-batches. It knows neither files nor the origin of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from sfnode.engine import forward
from sfnode.engine.gradients import no_room
from sfnode.engine.reward_objective import Drawn, Rewards, alike
from sfnode.engine.trainable_model import TrainableModel
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Target
from sfnode.manifest.task import ANSWERS
from sfnode.manifest.training import PUBLISHED_UNIT, Training, units_of
from sfnode.models import bases as published_bases
from sfnode.models.cuts import hidden
from sfnode.models.loader import LoadedModel
from sfnode.models.targets import Form, blocks_of
from sfnode.tasks import dataset
from sfnode.tasks.encoding import Encoded
from sfnode.tasks.mini_batches import Shard
from sfprotocol.seeds import derive_key, stream

I8 = NDArray[np.int8]

OVERSAMPLED = 4
"""Number that is added to the rank to get the size of sketches. The sketch M Omega has four times this sum as
columns, and the sketch Psi M eight times this sum as rows. In a test with two directions (AG News,
opt-mini-sst) the directions found hold 96 % of what the best directions hold; with half the columns and rows
they hold 90 %."""

LARGEST_ENTRY = 127

TINY = torch.finfo(torch.float32).tiny
"""Minimum of a divisor that could be zero."""

BATCHES, BATCH_ROWS = {"gradients": 32, "errors": 16}, 8
"""Number of mini-batches, keyed by the kind of bases, and number of rows of each mini-batch. Mini-batches are
small, because a backward pass keeps activations. Bases from gradients use 256 rows in all; a further 256 rows
are better spent on new bases later in the run. Bases from errors of 512 rows were no better than bases from
128 rows (docs/research-log.md)."""

DRAWN_TOGETHER = 8
"""Number of a reward run's mini-batches whose answers are drawn together: a single one has only eight
answers."""

POSITIONS = 64
"""Maximum number of a mini-batch's positions whose errors are used. They are drawn at random from all
positions at which answers are read. The inputs of every layer at these positions are kept until the errors
are known."""

Pairs = list[tuple[I8, I8]]
"""U (out_features, columns) and V (in_features, columns) of each target, in their units (`units_of`)."""

Advance = Callable[[int, int], None]
"""Function that is called with the number of finished mini-batches, and the number of all mini-batches."""


def cost(kind: str) -> int:
    """Return the cost of making bases of a kind, in example-forwards: forward passes of one example. A
    backward pass counts as two forward passes."""
    return BATCHES[kind] * BATCH_ROWS * (3 if kind == "gradients" else 1)


class Made(NamedTuple):
    """Bases, and how they were made."""

    pairs: Pairs
    held: tuple[float, ...]
    """Estimated share of a matrix's squared entries that the found directions hold, for each linear layer.
    The matrix is the mean gradient, or the products of inputs with errors."""
    agreement: float
    """Cosine between the sketched matrices of the odd and of the even mini-batches, over all layers. Near 0
    the directions are mostly noise."""
    example_forwards: int
    """Cost in forward passes of one example; a backward pass counts as two."""


def make(model: TrainableModel, kind: str, advance: Advance = lambda done, total: None) -> Made:
    """Return bases of the kind `gradients` or `errors` at the current weights.

    They are made on mini-batches of the run's public training rows, drawn as in training. Raises UserError
    DATA_* without such rows, and as `gradients`.
    """
    rows = model.run_rows.training()
    model.rebuild()
    return make_on(model.loaded, model.manifest, rows, kind, model.core.digest(), advance)


def make_bases(model: TrainableModel, folder: Path) -> str:
    """Make bases from gradients at the current weights, write them to a folder, and return their digest in
    hex. Raises UserError as `make`, OSError."""
    return published_bases.write(folder, make(model, "gradients").pairs)


def make_on(
    loaded: LoadedModel,
    manifest: Manifest,
    rows: Sequence[dataset.Row],
    kind: str,
    key: bytes,
    advance: Advance = lambda done, total: None,
) -> Made:
    """Return bases at the current weights, made on mini-batches of these rows. `key` determines which rows
    are drawn. In a reward run the mini-batches are answers that the model writes to these rows."""
    seeds = stream(derive_key(b"sfnode bases", manifest.run_id, key), 0, BATCHES[kind]).tolist()
    if manifest.task.is_rewarded:
        batches = _rewarded(loaded, manifest, rows, seeds, lambda done, total: advance(done, 2 * total))
        told, advance = advance, lambda done, total: told(total + done, 2 * total)
    else:
        shard = Shard(manifest.task, loaded.tokenizer, rows, BATCH_ROWS)
        batches = [shard.mini_batch(seed) for seed in seeds]
    found = {"gradients": gradients, "errors": errors}[kind]
    return found(loaded, batches, manifest.training, advance=advance)


def _rewarded(
    loaded: LoadedModel,
    manifest: Manifest,
    rows: Sequence[dataset.Row],
    seeds: Sequence[int],
    advance: Advance,
) -> list[Encoded]:
    """Return mini-batches of answers that the model writes to these rows, one for each seed. Raises UserError
    REWARDS_ALIKE if no answer is better than another."""
    questions = BATCH_ROWS // ANSWERS
    training = manifest.training.model_copy(update={"batch_size": questions * DRAWN_TOGETHER})
    rewards = Rewards(manifest.model_copy(update={"training": training}), loaded, rows)
    batches: list[Encoded] = []
    drawn: list[Drawn] = []
    for seed in seeds[::DRAWN_TOGETHER]:
        drawn.append(rewards.draw(rewards.mini_batch(seed), seed))
        batches += [part.encoded for part in drawn[-1].parts(questions)]
        advance(len(batches), len(seeds))
    if not any(one.telling.any() for one in drawn):
        raise alike(drawn)
    return batches


def gradients(
    loaded: LoadedModel,
    batches: Sequence[Encoded],
    numbers: Training,
    *,
    advance: Advance = lambda done, total: None,
) -> Made:
    """Return bases made of the strongest directions of every target's mean gradient at the current weights.
    There are as many directions as the run's rank.

    The gradient is of the loss that training uses. Targets other than linear layers get random signs. Raises
    UserError BAD_OPTION for a gradient that is not finite, OUT_OF_MEMORY.
    """
    sketches = _Sketches(loaded, numbers.rank)

    def keep(number: int, given: Tensor, output: Tensor) -> None:
        if output.requires_grad:
            sketches.add_at(number, given, output)

    try:
        with _watched(loaded, keep), _differentiable(loaded):
            for batch in sketches.halves_of(batches, advance):
                forward.mean_loss(loaded, batch).backward()  # type: ignore[no-untyped-call]
    except torch.OutOfMemoryError as error:
        fix = "Take a device with more memory, --dtype bfloat16, or bases from errors."
        raise no_room(loaded, fix) from error
    return _made(loaded, sketches, numbers, 3 * sum(batch.examples for batch in batches), of_u=True)


def errors(
    loaded: LoadedModel,
    batches: Sequence[Encoded],
    numbers: Training,
    *,
    advance: Advance = lambda done, total: None,
) -> Made:
    """Return bases from forward passes. V are the directions of every target's inputs that correlate most
    with errors of the model's output; U are random signs.

    An error is the gradient of the loss with respect to the hidden states after the last block, at positions
    where answers are read. The output alone determines the error. Every block adds to these states, so the
    error approximates the gradient with respect to a block's own output: the cosine of the two is 0.4 to 0.7
    in the last fifth of a model, and 0.1 to 0.3 in its middle (docs/research-log.md). The mini-batch's mean
    is subtracted from errors and inputs, because the common part of inputs says nothing about the answer.
    Targets after the last block use their exact gradient.
    """
    sketches = _Sketches(loaded, numbers.rank)
    inputs: dict[int, Tensor] = {}
    places: Tensor  # (N,), used positions, among all of a mini-batch
    positions = 0

    def take(number: int, given: Tensor, output: Tensor) -> None:
        if output.requires_grad:
            sketches.add_at(number, given, output)
        elif len(rows := _rows(given)) == positions:
            inputs[number] = rows[places]

    with _watched(loaded, take), _read_out(loaded) as states:
        for batch in sketches.halves_of(batches, advance):
            places, positions = _answered(loaded, batch)
            forward.mean_loss(loaded, batch, at_once=True).backward()  # type: ignore[no-untyped-call]
            gradient = states[0].grad
            assert gradient is not None
            error = _rows(gradient)[places].float()
            told = error.any(1)
            error = error[told] - error[told].mean(0)
            for number, one in inputs.items():
                sketches.add(number, error, one[told])
    return _made(loaded, sketches, numbers, sum(batch.examples for batch in batches), of_u=False)


def _answered(loaded: LoadedModel, batch: Encoded) -> tuple[Tensor, int]:
    """Return up to POSITIONS positions of a mini-batch at which answers are read, (N,), and the number of all
    its positions. Positions are numbered through all sequences. A classifier reads the answer at a text's
    first or last token."""
    width = int(batch.attention_mask.sum(1).max())
    first = torch.arange(len(batch.input_ids)) * width
    if loaded.classifies:
        found = torch.cat([first, first + batch.attention_mask.sum(1) - 1])
    else:
        found = torch.unique(first[batch.sequences] + batch.columns)
    generator = torch.Generator().manual_seed(len(found))
    drawn = found[torch.randperm(len(found), generator=generator)[:POSITIONS]]
    return drawn.to(loaded.device), len(first) * width


# -- sketches --------------------------------------------------------------------------------------------


class _Sketch:
    """Sketch of a matrix M (out, in): the products M Omega and Psi M, in float32. M is a sum, and changes
    only by terms added to it."""

    def __init__(
        self, out: int, inner: int, rank: int, generator: torch.Generator, device: torch.device
    ) -> None:
        narrow, wide = (min(times * (rank + OVERSAMPLED), out, inner) for times in (4, 8))
        self._right = _normal((inner, narrow), generator, device)  # Omega
        self._left = _normal((out, wide), generator, device)  # Psi^T
        self._range = torch.zeros(out, narrow, device=device)
        self._corange = [torch.zeros(wide, inner, device=device) for _ in range(2)]
        """Psi M of the even and of the odd mini-batches."""

    def add(self, gradients: Tensor, inputs: Tensor, parity: int) -> None:
        """Add the sum over rows of gradient x input: (N, out) and (N, in)."""
        gradients, inputs = gradients.float(), inputs.float()
        self._range.addmm_(gradients.t(), inputs @ self._right)
        self._corange[parity].addmm_((gradients @ self._left).t(), inputs)

    def found(self, rank: int) -> tuple[Tensor, Tensor]:
        """Return M's strongest left and right singular vectors, (out, rank) and (in, rank), as far as the
        sketch shows them."""
        base, _ = torch.linalg.qr(self._range)  # (out, narrow)
        solved = torch.linalg.lstsq(self._left.t() @ base, sum(self._corange)).solution  # (narrow, in)
        u, _, v = torch.linalg.svd(solved, full_matrices=False)
        return (base @ u)[:, :rank], v.t()[:, :rank]

    def held(self, right: Tensor) -> Tensor:
        """Return the estimated share of M's squared entries that lies along the columns of `right`."""
        mixed = self._corange[0] + self._corange[1]  # from M's rows: both have the same error
        return (mixed @ right).square().sum() / mixed.square().sum().clamp_min(TINY)

    def is_finite(self) -> bool:
        return bool(torch.isfinite(self._corange[0] + self._corange[1]).all())

    def halves(self) -> tuple[float, float, float]:
        """Return three estimated inner products of M's halves: even with odd, even with even, odd with
        odd."""
        even, odd = self._corange
        return float((even * odd).sum()), float(even.square().sum()), float(odd.square().sum())


class _Sketches:
    """Sketches of a model's linear targets, keyed by the target's number. A target that no pass has reached
    has no sketch."""

    def __init__(self, loaded: LoadedModel, rank: int) -> None:
        self._rank, self._device = rank, loaded.device
        self._generator = torch.Generator().manual_seed(0)
        self._parity = 0
        self.made: dict[int, _Sketch] = {}

    def add(self, number: int, gradients: Tensor, inputs: Tensor) -> None:
        """Add the sum over rows of gradient x input, (N, out) and (N, in), to a target's sketch."""
        if number not in self.made:
            shape = gradients.shape[1], inputs.shape[1]
            self.made[number] = _Sketch(*shape, self._rank, self._generator, self._device)
        self.made[number].add(gradients, inputs, self._parity)

    def add_at(self, number: int, given: Tensor, output: Tensor) -> None:
        """Add the product of a target's inputs with the gradient with respect to its layer's output, once a
        backward pass has computed that gradient."""
        add: Any = lambda gradient: self.add(number, _rows(gradient), _rows(given))  # noqa: E731
        output.register_hook(add)  # type: ignore[no-untyped-call]

    def halves_of(self, batches: Sequence[Encoded], advance: Advance) -> Iterator[Encoded]:
        """Yield the mini-batches, which belong to the odd and the even half in turn. What is added to
        sketches before the next mini-batch is yielded belongs to the half of the last one."""
        for done, batch in enumerate(batches, 1):
            self._parity = done % 2
            yield batch
            advance(done, len(batches))


def _normal(shape: tuple[int, int], generator: torch.Generator, device: torch.device) -> Tensor:
    return torch.randn(shape, generator=generator).to(device)


# -- the model -------------------------------------------------------------------------------------------


def _linear(loaded: LoadedModel) -> Iterator[tuple[int, nn.Module]]:
    """Yield the number and the layer of every linear target."""
    for number, site in enumerate(loaded.sites):
        if site.form in (Form.LINEAR, Form.CONV1D):
            yield number, site.module


@contextmanager
def _hooked(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Enable gradients within the block. At its end remove the hooks that these handles belong to."""
    handles = list(handles)
    try:
        with torch.enable_grad():
            yield
    finally:
        for handle in handles:
            handle.remove()


def _watched(loaded: LoadedModel, see: Callable[[int, Tensor, Tensor], None]) -> AbstractContextManager[None]:
    """Call `see` with the number, input and output of each linear target's layer in every pass within the
    block."""

    def hook(number: int) -> Callable[[Any, tuple[Tensor, ...], Tensor], None]:
        def called(module: Any, given: tuple[Tensor, ...], output: Tensor) -> None:
            chosen = loaded.perturber.head_positions
            narrowed = chosen is not None and output.dim() < given[0].dim()  # the head, where targets are
            see(number, given[0][chosen].detach() if narrowed else given[0].detach(), output)

        return called

    return _hooked(module.register_forward_hook(hook(number)) for number, module in _linear(loaded))


def _differentiable(loaded: LoadedModel) -> AbstractContextManager[None]:
    """Let gradients flow back to the first linear target, although no parameter requires one."""

    def ask(module: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        first, *others = given
        return (first if first.requires_grad else first.detach().requires_grad_(), *others)

    return _hooked(module.register_forward_pre_hook(ask) for _, module in _linear(loaded))


@contextmanager
def _read_out(loaded: LoadedModel) -> Iterator[list[Tensor]]:
    """Let gradients flow back to the hidden states after the last block, and no farther. Yield a list that
    holds these states after a pass."""
    states: list[Tensor] = []

    def cut(module: Any, given: Any, output: Any) -> Any:
        states[:] = [hidden(output).detach().requires_grad_()]
        return (states[0], *output[1:]) if isinstance(output, tuple) else states[0]

    with _hooked(block.register_forward_hook(cut) for block in blocks_of(loaded.model)[-1:]):
        yield states


def _rows(values: Tensor) -> Tensor:
    """Return a tensor (..., n) as (N, n)."""
    return values.reshape(-1, values.shape[-1])


# -- what is published -----------------------------------------------------------------------------------


def _made(loaded: LoadedModel, sketches: _Sketches, numbers: Training, cost: int, *, of_u: bool) -> Made:
    """Return the bases that follow from sketches. Without `of_u` only V follows from the sketches, and U has
    random signs. `cost` is in example-forwards: forward passes of one example."""
    generator = torch.Generator().manual_seed(1)
    pairs: Pairs = []
    held: list[float] = []
    halves = np.zeros(3)
    for number, site in enumerate(loaded.sites):
        sizes, rank = (site.target.out_features, site.target.in_features), numbers.rank
        columns = site.target.core_shape(rank) if numbers.is_first_order else (rank, rank)
        u, v = (
            torch.randint(0, 2, shape, generator=generator).float() * 2 - 1
            for shape in zip(sizes, columns, strict=True)
        )
        if number in sketches.made:
            sketch = sketches.made[number]
            if not sketch.is_finite():
                raise UserError(
                    Code.BAD_OPTION,
                    f"no bases can be made: what {site.target.name} shows is not finite in this format",
                    "Make them with --dtype float32; nodes may compute in another one all the same.",
                )
            left, right = (side[:, :most] for side, most in zip(sketch.found(rank), columns, strict=True))
            held.append(min(1.0, float(sketch.held(right))))
            halves += sketch.halves()
            # An update moves one pair of columns. After mixing, every pair has a share in all directions.
            v = _mixed(_filled(right, v))
            u = _mixed(_filled(left, u)) if of_u else u
        units = _units(numbers, site.target)
        pairs.append((quantised(u, units[0]), quantised(v, units[1])))
    product, even, odd = halves
    agreement = product / math.sqrt(even * odd) if even and odd else 0.0
    return Made(pairs, tuple(held), agreement, cost)


def _units(numbers: Training, target: Target) -> tuple[float, float]:
    """Return the value of an entry 1 in U and in V, in units of a column's root mean square. In a first-order
    run columns have norm 1, so that the coordinates are orthonormal."""
    if not numbers.is_first_order:
        return PUBLISHED_UNIT, PUBLISHED_UNIT
    of_u, of_v = units_of(numbers, target)
    return of_u * math.sqrt(target.out_features), of_v * math.sqrt(target.in_features)


def quantised(columns: Tensor, unit: float) -> I8:
    """Return columns (n, rank), scaled to a root mean square of 1 each, as integers in units of `unit`.

    A column with an entry that would not fit is scaled down as a whole. A column of zeros stays zero.
    """
    sizes = columns.square().mean(0).sqrt().clamp_min(torch.finfo(columns.dtype).tiny)
    scaled = columns / sizes / unit
    scaled *= (LARGEST_ENTRY / scaled.abs().amax(0).clamp_min(1.0)).clamp_max(1.0)
    found: I8 = scaled.round().to(torch.int8).cpu().numpy()
    return found


def _filled(columns: Tensor, others: Tensor) -> Tensor:
    """Return `columns`, followed by the last of `others`, so that there are as many columns as in `others`.
    All have norm 1."""
    lacking = others[:, columns.shape[1] :].float()
    return torch.cat([columns.cpu(), lacking / lacking.norm(dim=0)], 1)


def _mixed(columns: Tensor) -> Tensor:
    """Return columns times the Hadamard matrix of Sylvester's construction, scaled to be orthogonal. Columns
    stay as they are if their number is no power of two."""
    count, found = columns.shape[1], torch.ones(1, 1)
    while len(found) < count:
        found = torch.cat([torch.cat([found, found], 1), torch.cat([found, -found], 1)])
    return columns @ (found / math.sqrt(count)) if len(found) == count else columns
