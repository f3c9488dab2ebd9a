"""Perturbs the layers of a model in activation space.

W + m u v^T acts on an input x as W x + m (v . x) u. Every target gets a `forward` that computes this. The
second term and the bias are computed first, and the layer's usual product is added to them. Each row of a
batch has its own m. So one pass can measure both points of an estimate for several queries, and no weight is
written. This module knows layers and directions, but neither seeds nor losses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sfnode.errors import Code, UserError
from sfnode.models.quantized import QuantisedLinear
from sfnode.models.targets import Form, PretrainedModel, TargetSite, view

Layer = Callable[[Tensor], Tensor]


class Directions(NamedTuple):
    """k rank-one directions u v^T per target: first the directions of the live core, then one for each of q
    queries."""

    u: tuple[Tensor, ...]
    """A tensor (k, out_features) for each target."""
    v: tuple[Tensor, ...]
    """A tensor (in_features, k) for each target."""
    live: int
    """Number of the k directions that belong to the live core, which acts on every row alike
    (`engine.subspace`). They come first."""

    @property
    def queries(self) -> int:
        """Number of queries, q."""
        return self.u[0].shape[0] - self.live


class Perturbation(NamedTuple):
    """Amounts by which the weights are moved along each of the k directions, for each row of one pass, in the
    directions' dtype. The pass has S sequences of T tokens and P targets."""

    directions: Directions
    tokens: Tensor
    """Amounts (S * T, k) for layers that see a row per token."""
    sequences: Tensor
    """Amounts (S, k) for layers that see a row per sequence, as a classification head does."""
    outputs: Tensor
    """Amounts (P, k) for the head of a language model, which sees `head_positions` only."""
    cores: tuple[Tensor, ...] = ()
    """A tensor of cores (S, blocks, c, r) for each target, which replaces the amounts along all directions
    but the live core's. Sequence s sees W plus the sum over blocks of u^T C^T v^T, where C is the sequence's
    core in a block, u are the block's r directions, and v its c directions. Every sequence may thus have
    cores of its own, in many subspaces."""
    rows: Tensor | None = None
    """(P,), the sequence of each of `head_positions`; needed with `cores`."""


class Perturber:
    """Perturbs the targets of one model during a pass."""

    def __init__(self, model: PretrainedModel, sites: Sequence[TargetSite]) -> None:
        """Replace the forward of every target of `model`, permanently."""
        self.head_positions: tuple[Tensor, Tensor] | None = None
        """(P,) sequence and (P,) column of the hidden states that the head sees; None: it sees all."""
        self._perturbation: Perturbation | None = None
        self.seen: set[int] = set()
        """Targets that were perturbed since this set was last cleared."""
        head = model.get_output_embeddings()
        for number, site in enumerate(sites):
            module: Any = site.module
            if site.form is Form.EMBEDDING:
                module.forward = _embedding(self, number, module)
            elif site.form is not Form.VECTOR:  # vectors are perturbed in place: `engine.estimator`
                module.forward = _linear(self, number, site, module is head)
        if head is not None:
            self._patch_head(head, sites)

    @contextmanager
    def applying(self, perturbation: Perturbation | None) -> Iterator[None]:
        """Apply a perturbation to every pass within the block."""
        self._perturbation = perturbation
        try:
            yield
        finally:
            self._perturbation = None

    def perturbation(self, number: int) -> Perturbation | None:
        """Return the current perturbation for target `number`, if any, and record that the target was
        reached."""
        if self._perturbation is not None:
            self.seen.add(number)
        return self._perturbation

    def _patch_head(self, head: nn.Module, sites: Sequence[TargetSite]) -> None:
        """Make the head compute only the outputs at `head_positions`. If the head is tied to an embedding,
        perturb both together."""
        for number, site in enumerate(sites):
            if site.form is Form.EMBEDDING and getattr(site.module, site.parameter) is head.weight:
                head.forward = _tied_head(self, number, head)
        forward: Layer = head.forward

        def at_positions(hidden: Tensor) -> Tensor:
            chosen = self.head_positions
            return forward(hidden if chosen is None else hidden[chosen])  # (S, T, d) -> (P, d)

        head.forward = at_positions


def through(cores: Tensor, along: Tensor) -> Tensor:
    """Return the projections `along` (.., T, blocks * c) times `cores` (.., blocks, c, r), block by block:
    (.., T, blocks * r). One dense product would grow with the square of the number of blocks."""
    parts = along.reshape(*along.shape[:-1], *cores.shape[-3:-1]).transpose(-3, -2)  # (.., blocks, T, r)
    return (parts @ cores).transpose(-3, -2).flatten(-2)


def _linear(perturber: Perturber, number: int, site: TargetSite, is_head: bool) -> Layer:
    """Return the forward of a linear layer."""
    module: Any = site.module
    plain: Layer = module.forward
    quantised = isinstance(module, QuantisedLinear)

    def forward(x: Tensor) -> Tensor:
        perturbation = perturber.perturbation(number)
        if perturbation is None:
            return plain(x)
        u, v = perturbation.directions.u[number], perturbation.directions.v[number]
        rows = x.reshape(-1, v.shape[0])  # (N, in)
        weighted = _weighing(perturbation, number, site.target.name, is_head)
        y = _along(rows, module.bias, u, v, weighted)
        if quantised and torch.is_grad_enabled():
            y = y + module.product(rows)
        else:
            weight = module.dense() if quantised else view(module.weight, site.form)  # (out, in)
            y.addmm_(rows, weight.t())
        return y.view(*x.shape[:-1], u.shape[1])

    return forward


def _tied_head(perturber: Perturber, number: int, head: Any) -> Layer:
    """Return the forward of a head whose weight is the embedding's transposed: u and v are exchanged."""
    plain: Layer = head.forward

    def forward(x: Tensor) -> Tensor:
        perturbation = perturber.perturbation(number)
        if perturbation is None:
            return plain(x)
        u, v = perturbation.directions.u[number], perturbation.directions.v[number]  # (k, d), (vocab, k)
        rows = x.reshape(-1, u.shape[1])  # (P, d)
        weighted = _weighing(perturbation, number, "the head", True, transposed=True)
        y = _along(rows, head.bias, v.t(), u.t(), weighted).addmm_(rows, head.weight.t())
        return y.view(*x.shape[:-1], v.shape[0])

    return forward


def _embedding(perturber: Perturber, number: int, module: Any) -> Layer:
    """Return the forward of an embedding table. It adds m v[id] u to the table's row `id`.

    Ids of positions are given once for all sequences, (1, T). Their rows are returned for each sequence, (S,
    T, d), because each sequence has its own m.
    """
    plain: Layer = module.forward
    scale = getattr(module, "embed_scale", 1.0)  # transformers' scaled embeddings multiply last

    def forward(ids: Tensor) -> Tensor:
        perturbation = perturber.perturbation(number)
        if perturbation is None:
            return plain(ids)
        u, v = perturbation.directions.u[number], perturbation.directions.v[number]
        if perturbation.cores:
            live = perturbation.directions.live
            moved = through(perturbation.cores[number], v[ids][..., live:])  # of (S or 1, T, k)
            along = torch.cat([v[ids][..., :live].expand(*moved.shape[:-1], -1), moved], -1)
        else:
            by = perturbation.tokens.view(perturbation.sequences.shape[0], ids.shape[-1], -1)  # (S, T, k)
            along = v[ids] * by  # (S or 1, T, k) * (S, T, k)
        rows: Tensor = plain(ids) + (along @ u) * scale  # (S, T, d)
        return rows

    return forward


def _along(x: Tensor, bias: Tensor | None, u: Tensor, v: Tensor, weighted: Layer) -> Tensor:
    """Return bias + weighted(x v) u, (N, out). The caller adds the layer's own product in place, which saves
    a pass over the outputs.

    x (N, in), bias (out,) or None, u (k, out), v (in, k).
    """
    along = weighted(torch.mm(x, v))  # (N, k)
    if u.shape[0] == 1:  # an outer product needs no matrix product
        return along * u if bias is None else torch.addcmul(bias, along, u)
    return torch.mm(along, u) if bias is None else torch.addmm(bias, along, u)


def _weighing(
    perturbation: Perturbation, number: int, name: str, is_head: bool, transposed: bool = False
) -> Layer:
    """Return a function from the projections (N, k) of a target's rows to amounts along u, (N, k).

    `transposed`: u and v are exchanged.
    """

    def by_amounts(along: Tensor) -> Tensor:
        rows = perturbation.outputs if is_head else _rows_of(perturbation, along.shape[0], name)
        return along.mul_(rows)

    def by_cores(along: Tensor) -> Tensor:
        cores = perturbation.cores[number].transpose(2, 3) if transposed else perturbation.cores[number]
        live, own = along[:, : perturbation.directions.live], along[:, perturbation.directions.live :]
        if is_head:
            moved = through(cores[perturbation.rows], own[:, None])[:, 0]  # of (P, 1, k)
        else:
            _rows_of(perturbation, along.shape[0], name)
            grouped = own.reshape(cores.shape[0], -1, own.shape[1])  # (S, T or 1, k)
            moved = through(cores, grouped).flatten(0, 1)
        return torch.cat([live, moved], 1) if live.shape[1] else moved

    return by_cores if perturbation.cores else by_amounts


def _rows_of(perturbation: Perturbation, rows: int, name: str) -> Tensor:
    """Return the amounts for a layer that sees this many rows. Raises UserError MODEL_UNSUPPORTED."""
    tokens, sequences = perturbation.tokens, perturbation.sequences
    if rows == tokens.shape[0]:
        return tokens
    if rows == sequences.shape[0]:
        return sequences
    raise UserError(
        Code.MODEL_UNSUPPORTED,
        f"{name} sees {rows} rows where the batch has {len(sequences)} sequences and {len(tokens)} tokens, "
        "as in a mixture of experts, or with a table of relative positions",
        "Choose other layers: model.target_modules of `sfnode init`.",
    )
