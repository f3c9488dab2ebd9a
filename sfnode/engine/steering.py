"""What the layers of a model do differently while a pass is steered: they move along directions (DESIGN 6).

W + m u v^T acts on an input x as W x + m (v . x) u. Every target gets a forward of its own that computes this
in the one product it makes anyway: the second term, with the bias, is what the product is added to. Rows of
a batch move by different m, so that both points of an estimate, for several queries at once, come out of one
pass, and no weight is written. Knows layers and directions; knows neither seeds nor losses nor cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from sfnode.engine.packed import PackedLinear
from sfnode.engine.targets import Form, Site, view

Network = Any
Layer = Callable[[Tensor], Tensor]


class Directions(NamedTuple):
    """k directions per target: for a step of q queries the last q, behind those that ride along."""

    u: tuple[Tensor, ...]
    """Per target (k, out_features)."""
    v: tuple[Tensor, ...]
    """Per target (in_features, k)."""
    riding: int
    """How many of the k belong to every row alike (`Subspace.ride`)."""

    @property
    def queries(self) -> int:
        """q."""
        return self.u[0].shape[0] - self.riding


class Motion(NamedTuple):
    """How far each row of one pass moves along each direction, in the dtype of the directions."""

    directions: Directions
    tokens: Tensor
    """(S * T, k), for layers that see a row per token."""
    sequences: Tensor
    """(S, k), for layers that see a row per sequence, as a classification head does."""
    outputs: Tensor
    """(P, k), for the head of a language model, which sees the picked positions only."""


class Steering:
    """The pass under way, as the layers of one model see it."""

    def __init__(self, model: Network, sites: Sequence[Site]) -> None:
        """Gives the targets among the layers of `model` their forward; done once, undone never."""
        self.picked: tuple[Tensor, Tensor] | None = None
        """(P,) sequence and (P,) column of the hidden states that the head is to see; None: all."""
        self._motion: Motion | None = None
        self.seen: set[int] = set()
        """The targets that have moved since this was last cleared."""
        head = model.get_output_embeddings()
        for number, site in enumerate(sites):
            _steer(self, number, site, head)
        if head is not None:
            self._steer_head(head, sites)

    @contextmanager
    def moving(self, motion: Motion | None) -> Iterator[None]:
        """Within the block the rows of a batch see every target moved."""
        self._motion = motion
        try:
            yield
        finally:
            self._motion = None

    def motion(self, number: int) -> Motion | None:
        """The motion under way, for target `number`."""
        if self._motion is not None:
            self.seen.add(number)
        return self._motion

    def _steer_head(self, head: nn.Module, sites: Sequence[Site]) -> None:
        """The head sees picked positions only; tied to an embedding that is a target, it moves with it."""
        for number, site in enumerate(sites):
            if site.form is Form.EMBEDDING and getattr(site.module, site.parameter) is head.weight:
                head.forward = _tied_head(self, number, head)
        forward: Layer = head.forward

        def picking(hidden: Tensor) -> Tensor:
            return forward(hidden if self.picked is None else hidden[self.picked])  # (S, T, d) -> (P, d)

        head.forward = picking


def _steer(steering: Steering, number: int, site: Site, head: nn.Module | None) -> None:
    module: Any = site.module
    if site.form is Form.EMBEDDING:
        module.forward = _embedding(steering, number, module)
    elif site.form is not Form.VECTOR:  # vectors are moved where they lie: `estimator`
        module.forward = _linear(steering, number, site, module is head)


def _linear(steering: Steering, number: int, site: Site, is_head: bool) -> Layer:
    module: Any = site.module
    plain: Layer = module.forward

    def forward(x: Tensor) -> Tensor:
        motion = steering.motion(number)
        if motion is None:
            return plain(x)
        u, v = motion.directions.u[number], motion.directions.v[number]
        rows = x.reshape(-1, v.shape[0])  # (N, in)
        by = motion.outputs if is_head else _rows_of(motion, rows.shape[0], site.target.name)
        weight = (
            module.dense() if isinstance(module, PackedLinear) else view(module.weight, site.form)
        )  # (out, in)
        return _moved(rows, weight.t(), module.bias, u, v, by).view(*x.shape[:-1], u.shape[1])

    return forward


def _tied_head(steering: Steering, number: int, head: Any) -> Layer:
    """The head's weight is the embedding's transposed, so that u and v change places."""
    plain: Layer = head.forward

    def forward(x: Tensor) -> Tensor:
        motion = steering.motion(number)
        if motion is None:
            return plain(x)
        u, v = motion.directions.u[number], motion.directions.v[number]  # (k, d), (vocab, k)
        rows = x.reshape(-1, u.shape[1])  # (P, d)
        y = _moved(rows, head.weight.t(), head.bias, v.t(), u.t(), motion.outputs)
        return y.view(*x.shape[:-1], v.shape[0])

    return forward


def _embedding(steering: Steering, number: int, module: Any) -> Layer:
    """A row of the table, moved by m v[id] u; positions come once for all sequences, and leave for each."""
    plain: Layer = module.forward
    scale = getattr(module, "embed_scale", 1.0)  # of transformers' scaled embeddings, which multiply last

    def forward(ids: Tensor) -> Tensor:
        motion = steering.motion(number)
        if motion is None:
            return plain(ids)
        u, v = motion.directions.u[number], motion.directions.v[number]
        by = motion.tokens.view(motion.sequences.shape[0], ids.shape[-1], -1)  # (S, T, k)
        along = v[ids] * by  # (S or 1, T, k) * (S, T, k)
        moved: Tensor = plain(ids) + (along @ u) * scale  # (S, T, d)
        return moved

    return forward


def _moved(x: Tensor, weight: Tensor, bias: Tensor | None, u: Tensor, v: Tensor, by: Tensor) -> Tensor:
    """x (N, in), weight (in, out), bias (out,) or None, u (k, out), v (in, k), by (N, k) -> (N, out).

    The rank-k term takes the place of the bias as what the product is added to: no further pass over y.
    """
    along = torch.mm(x, v).mul_(by)  # (N, k)
    if u.shape[0] == 1:  # an outer product is no work for a matrix product's machinery
        y = along * u if bias is None else torch.addcmul(bias, along, u)
    else:
        y = torch.mm(along, u) if bias is None else torch.addmm(bias, along, u)
    return y.addmm_(x, weight)


def _rows_of(motion: Motion, rows: int, name: str) -> Tensor:
    if rows == motion.tokens.shape[0]:
        return motion.tokens
    if rows == motion.sequences.shape[0]:
        return motion.sequences
    raise ValueError(f"{name} sees {rows} rows where the batch has {motion.tokens.shape[0]} tokens")
