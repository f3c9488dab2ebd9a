"""Makes bases to publish: directions along which the loss of a task falls, or along which inputs lie.

`gradients` takes the strongest directions of the mean gradient over some mini-batches (a few backward passes,
by one person, once), `activations` those of the layers' inputs (forward passes only). Neither ever holds a
gradient or a covariance: what a layer's input and the gradient at its output say is added to two sketches,
from which the strongest directions follow in one go (Tropp, Yurtsever, Udell, Cevher 2017, "Practical
sketching algorithms for low-rank matrix approximation", algorithm 4). So it takes hardly more memory than
inference. What comes out is published and need not be the same on another machine.

This module knows a model and encoded mini-batches; it knows neither files nor where the rows come from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfnode.engine import forward
from sfnode.engine.trainable_model import TrainableModel
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.training import PUBLISHED_UNIT
from sfnode.models import bases as published_bases
from sfnode.models.loader import LoadedModel
from sfnode.models.targets import Form
from sfnode.tasks import dataset, verifying
from sfnode.tasks.encoding import Encoded
from sfnode.tasks.mini_batches import Shard
from sfprotocol.seeds import derive_key, stream

I8 = NDArray[np.int8]

OVERSAMPLED = 4
"""A sketch has four times as many columns as the rank and this, and eight times as many rows: of AG News'
gradient in opt-mini-sst the two directions found then hold 96 % of what the two best ones do, and with half
as many 90 %."""

LARGEST_ENTRY = 127

TINY = torch.finfo(torch.float32).tiny
"""The least divisor, where something may be zero altogether."""

BATCHES, BATCH_ROWS = {"gradients": 32, "activations": 16}, 8
"""Mini-batches by kind, and rows of each: few at a time, as the activations of a backward pass are kept.
Of gradients together 256: what twice as many cost is better spent on bases made anew (docs/research-log.md).
Where inputs lie half as many rows show as well: each has many positions."""

POSITIONS = 64
"""Inputs of a layer that are looked at in a mini-batch, at most, drawn from all of its positions: those of a
row are much alike, and all of them made sketches as expensive as the passes themselves."""

Pairs = list[tuple[I8, I8]]
"""Per target U (out_features, rank) and V (in_features, rank) in units of PUBLISHED_UNIT."""

Advance = Callable[[int, int], None]
"""Told how many mini-batches are done, and of how many."""


def cost(kind: str) -> int:
    """Return the example-forwards of making bases of a kind; a backward pass counts as two forward passes."""
    return BATCHES[kind] * BATCH_ROWS * (3 if kind == "gradients" else 1)


class Made(NamedTuple):
    """Bases, and how they came about."""

    pairs: Pairs
    held: tuple[float, ...]
    """Share that the directions found hold of each linear layer's mean gradient, or inputs: of their squares;
    an estimate."""
    agreement: float
    """Cosine between what the odd and the even mini-batches say: near 0, the directions are mostly noise."""
    example_forwards: int
    """A backward pass counts as two forward passes."""


def make(model: TrainableModel, kind: str, advance: Advance = lambda done, total: None) -> Made:
    """Return bases at a model as of now, of kind `gradients` or `activations`.

    On mini-batches of the run's public training rows, as its loss draws them. Raises UserError DATA_* without
    such rows, and as `gradients`.
    """
    rows = model.run_rows.training()
    model.rebuild()
    return make_on(model.loaded, model.manifest, rows, kind, model.core.digest(), advance)


def make_bases(model: TrainableModel, folder: Path) -> str:
    """Make bases from gradients at the weights as of now, write them to a folder, and return their
    digest, in hex. Raises UserError as `make`, OSError."""
    return published_bases.write(folder, make(model, "gradients").pairs)


def make_on(
    loaded: LoadedModel,
    manifest: Manifest,
    rows: Sequence[dataset.Row],
    kind: str,
    key: bytes,
    advance: Advance = lambda done, total: None,
) -> Made:
    """Return bases at the weights as they are, on mini-batches of these rows that follow from `key`. Raises
    UserError as `verifying.require_slopes`."""
    verifying.require_slopes(manifest.task)
    shard = Shard(manifest.task, loaded.tokenizer, rows, BATCH_ROWS)
    seeds = stream(derive_key(b"sfnode bases", manifest.run_id, key), 0, BATCHES[kind])
    batches = [shard.mini_batch(seed) for seed in seeds.tolist()]
    found = {"gradients": gradients, "activations": activations}[kind]
    return found(loaded, batches, manifest.training.rank, advance=advance)


def gradients(
    loaded: LoadedModel,
    batches: Sequence[Encoded],
    rank: int,
    *,
    advance: Advance = lambda done, total: None,
) -> Made:
    """Return the strongest `rank` directions of every target's mean gradient at the weights as they are.

    The loss is that of training. Targets that are no linear layers get signs from a generator. Raises
    UserError BAD_OPTION for a quantised model or what is no finite number, OUT_OF_MEMORY.
    """
    if loaded.quantised:
        raise UserError(
            Code.BAD_OPTION,
            "gradients cannot be taken of quantised weights: each layer would be unpacked at once",
            "Make the bases with --dtype bfloat16 or float32; nodes may quantise all the same.",
        )
    sketches = _sketches(loaded, rank)

    def keep(number: int, given: Tensor, output: Tensor) -> None:
        if output.requires_grad:
            add: Any = lambda gradient: sketches[number].add(_rows(gradient), _rows(given))  # noqa: E731
            output.register_hook(add)  # type: ignore[no-untyped-call]

    try:
        with _watched(loaded, sketches, keep), _differentiable(loaded, sketches):
            for batch in _in_halves(batches, sketches, advance):
                forward.mean_loss(loaded, batch).backward()  # type: ignore[no-untyped-call]
    except torch.OutOfMemoryError as error:
        raise UserError(
            Code.OUT_OF_MEMORY,
            f"there is no room for a backward pass on {str(loaded.device)!r}",
            "Take a device with more memory, --dtype bfloat16, or bases from activations.",
        ) from error
    return _made(loaded, sketches, rank, 3 * sum(batch.examples for batch in batches))


def activations(
    loaded: LoadedModel,
    batches: Sequence[Encoded],
    rank: int,
    *,
    advance: Advance = lambda done, total: None,
) -> Made:
    """Return the strongest `rank` directions of every target's inputs as V; U are signs from a generator.

    The gradient of a linear layer lies in the span of its inputs, so that a V outside of it is wasted.
    Padding has no part in either.
    """
    sketches = _sketches(loaded, rank, of_inputs=True)
    squares = {number: torch.zeros((), device=loaded.device) for number in sketches}
    generator = torch.Generator().manual_seed(0)
    seen: Tensor  # (S, T), whether there is a token

    def take(number: int, given: Tensor, output: Tensor) -> None:
        inputs = given[seen] if given.shape[:-1] == seen.shape else _rows(given)
        inputs = inputs[torch.randperm(len(inputs), generator=generator)[:POSITIONS].to(inputs.device)]
        sketches[number].add(inputs, inputs)
        squares[number] += inputs.float().square().sum()

    with _watched(loaded, sketches, take), torch.no_grad():
        for batch in _in_halves(batches, sketches, advance):
            seen = batch.attention_mask.bool().to(loaded.device)
            forward.mean_loss(loaded, batch)
    return _made(loaded, sketches, rank, sum(batch.examples for batch in batches), squares)


# -- sketches --------------------------------------------------------------------------------------------


class _Sketch:
    """A matrix M (out, in) that is only ever added to, as M Omega and Psi M; float32."""

    def __init__(
        self, out: int, inner: int, rank: int, generator: torch.Generator, device: torch.device
    ) -> None:
        narrow, wide = (min(times * (rank + OVERSAMPLED), out, inner) for times in (4, 8))
        self._right = _normal((inner, narrow), generator, device)  # Omega
        self._left = _normal((out, wide), generator, device)  # Psi^T
        self._range = torch.zeros(out, narrow, device=device)
        self._corange = [torch.zeros(wide, inner, device=device) for _ in range(2)]
        """Those of the even and of the odd mini-batches."""
        self.parity = 0

    def add(self, gradients: Tensor, inputs: Tensor) -> None:
        """Add the sum over rows of gradient x input: (N, out) and (N, in)."""
        gradients, inputs = gradients.float(), inputs.float()
        self._range.addmm_(gradients.t(), inputs @ self._right)
        self._corange[self.parity].addmm_((gradients @ self._left).t(), inputs)

    def found(self, rank: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the strongest left and right singular vectors (out, rank), (in, rank) and the values."""
        base, _ = torch.linalg.qr(self._range)  # (out, narrow)
        solved = torch.linalg.lstsq(self._left.t() @ base, sum(self._corange)).solution  # (narrow, in)
        u, values, v = torch.linalg.svd(solved, full_matrices=False)
        return (base @ u)[:, :rank], v.t()[:, :rank], values[:rank]

    def held(self, right: Tensor) -> Tensor:
        """Return an estimate of the share of M's squares that lies along the columns of `right`."""
        mixed = self._corange[0] + self._corange[1]  # from M's rows: both sums err alike
        return (mixed @ right).square().sum() / mixed.square().sum().clamp_min(TINY)

    def is_finite(self) -> bool:
        return bool(torch.isfinite(self._corange[0] + self._corange[1]).all())

    def halves(self) -> tuple[float, float, float]:
        """Return estimates of the product of the two halves of M, and of the square of each."""
        even, odd = self._corange
        return float((even * odd).sum()), float(even.square().sum()), float(odd.square().sum())


def _sketches(loaded: LoadedModel, rank: int, *, of_inputs: bool = False) -> dict[int, _Sketch]:
    """Return an empty sketch of each linear target's gradient, by number; of its inputs' products with
    themselves if `of_inputs`."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for number, site in enumerate(loaded.sites):
        if site.form in (Form.LINEAR, Form.CONV1D):
            shape = site.target.out_features, site.target.in_features
            out = shape[1] if of_inputs else shape[0]
            found[number] = _Sketch(out, shape[1], rank, generator, loaded.device)
    return found


def _in_halves(
    batches: Sequence[Encoded], sketches: Mapping[int, _Sketch], advance: Advance
) -> Iterator[Encoded]:
    """Yield the mini-batches; what sketches are given meanwhile counts for the half that each is in."""
    for done, batch in enumerate(batches, 1):
        for sketch in sketches.values():
            sketch.parity = done % 2
        yield batch
        advance(done, len(batches))


def _normal(shape: tuple[int, int], generator: torch.Generator, device: torch.device) -> Tensor:
    return torch.randn(shape, generator=generator).to(device)


# -- the model -------------------------------------------------------------------------------------------


@contextmanager
def _watched(
    loaded: LoadedModel, numbers: Iterable[int], see: Callable[[int, Tensor, Tensor], None]
) -> Iterator[None]:
    """Call `see` with number, input and output of these targets' layers while a pass goes through them."""

    def hook(number: int) -> Callable[[Any, tuple[Tensor, ...], Tensor], None]:
        def called(module: Any, given: tuple[Tensor, ...], output: Tensor) -> None:
            chosen = loaded.perturber.head_positions
            narrowed = chosen is not None and output.dim() < given[0].dim()  # the head, where targets are
            see(number, given[0][chosen].detach() if narrowed else given[0].detach(), output)

        return called

    handles = [loaded.sites[number].module.register_forward_hook(hook(number)) for number in numbers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _differentiable(loaded: LoadedModel, numbers: Iterable[int]) -> Iterator[None]:
    """Let gradients flow back to the first of these targets, though no parameter asks for one."""

    def ask(module: Any, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        first, *others = given
        return (first if first.requires_grad else first.detach().requires_grad_(), *others)

    handles = [loaded.sites[number].module.register_forward_pre_hook(ask) for number in numbers]
    try:
        with torch.enable_grad():
            yield
    finally:
        for handle in handles:
            handle.remove()


def _rows(values: Tensor) -> Tensor:
    """Return a tensor (..., n) as (N, n)."""
    return values.reshape(-1, values.shape[-1])


# -- what is published -----------------------------------------------------------------------------------


def _made(
    loaded: LoadedModel,
    sketches: Mapping[int, _Sketch],
    rank: int,
    cost: int,
    squares: Mapping[int, Tensor] | None = None,
) -> Made:
    """`squares` of the inputs, by target: the sketches are of their products with themselves, whose singular
    values are squares."""
    generator = torch.Generator().manual_seed(1)
    mixed = _hadamard(rank)
    pairs: Pairs = []
    held: list[float] = []
    halves = np.zeros(3)
    for number, site in enumerate(loaded.sites):
        u, v = (_signs(rows, rank, generator) for rows in (site.target.out_features, site.target.in_features))
        if number in sketches:
            sketch = sketches[number]
            if not sketch.is_finite():
                raise UserError(
                    Code.BAD_OPTION,
                    f"no bases can be made: what {site.target.name} shows is not finite in this format",
                    "Make them with --dtype float32; nodes may compute in another one all the same.",
                )
            left, right, values = sketch.found(rank)
            share = sketch.held(right) if squares is None else values.sum() / squares[number].clamp_min(TINY)
            held.append(min(1.0, float(share)))
            halves += sketch.halves()
            # Mixed, every pair of columns has a share in all directions: an update moves one pair.
            v = _filled(right, v) @ mixed
            u = _filled(left, u) @ mixed if squares is None else u
        pairs.append((quantised(u), quantised(v)))
    product, even, odd = halves
    agreement = product / math.sqrt(even * odd) if even and odd else 0.0
    return Made(pairs, tuple(held), agreement, cost)


def quantised(columns: Tensor) -> I8:
    """Return columns (n, rank) as integers in units of PUBLISHED_UNIT, each of root mean square 1.

    A column with an entry that would not fit is scaled down as a whole. A column of zeros stays one.
    """
    sizes = columns.square().mean(0).sqrt().clamp_min(torch.finfo(columns.dtype).tiny)
    scaled = columns / sizes / PUBLISHED_UNIT
    scaled *= (LARGEST_ENTRY / scaled.abs().amax(0).clamp_min(1.0)).clamp_max(1.0)
    found: I8 = scaled.round().to(torch.int8).cpu().numpy()
    return found


def _filled(columns: Tensor, others: Tensor) -> Tensor:
    """Return as many columns as `others` has, of length 1: those found, then, where a matrix has no more, of
    others."""
    lacking = others[:, columns.shape[1] :].float()
    return torch.cat([columns.cpu(), lacking / lacking.norm(dim=0)], 1)


def _signs(rows: int, rank: int, generator: torch.Generator) -> Tensor:
    return torch.randint(0, 2, (rows, rank), generator=generator).float() * 2 - 1


def _hadamard(rank: int) -> Tensor:
    """Return the Hadamard matrix of Sylvester's construction, (rank, rank), divided by its norm."""
    found = torch.ones(1, 1)
    while len(found) < rank:
        found = torch.cat([torch.cat([found, found], 1), torch.cat([found, -found], 1)])
    return found / math.sqrt(rank)
