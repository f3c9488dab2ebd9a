"""The models of many virtual clients as one: the weights that all have in common, and what each has besides.

A client's model is base minus a sum over the updates that it has (DESIGN 3). Updates that every client has
are in the weights, rebuilt from the base as the daemon's are before it exports; the others are in a core of
integers for each client, which acts in activation space. So weights are a function of integers alone at any
time, and clients that differ are evaluated in one batched forward all the same. This module knows the engine,
and neither feeds nor networks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sfnode.engine import forward, slopes
from sfnode.engine.basis import PublishedBasis, basis_of
from sfnode.engine.core import Core, UpdateBatch
from sfnode.engine.estimator import Estimate, estimates
from sfnode.engine.line import Line, difference
from sfnode.engine.merging import MergedWeights
from sfnode.engine.subspace import Subspace
from sfnode.engine.trainable_model import scale_of
from sfnode.manifest import Manifest
from sfnode.models.loader import LoadedModel, matrix
from sfnode.models.perturbation import Directions, Perturbation, through
from sfnode.models.targets import Form
from sfnode.schema.evaluation import StepShare
from sfnode.tasks.encoding import Encoded
from sfprotocol.decisions import Bases
from sfprotocol.seeds import I64, coordinates

MOST_QUERIES = 64
"""Clients that are evaluated together: their cores take 100 kB each in a small model, 300 kB in OPT-125M, and
a batched forward is cut into passes that hold the sequences of fewer clients anyway."""


class Moves(NamedTuple):
    """n updates as moves of entries of cores."""

    subspaces: I64
    """(n,)."""
    entries: I64
    """(n, layers), places in a core of all layers, flat."""
    amounts: I64
    """(n, layers)."""

    def take(self, chosen: NDArray[np.bool_] | slice) -> Moves:
        """Return the chosen ones."""
        return Moves(self.subspaces[chosen], self.entries[chosen], self.amounts[chosen])


class Query(NamedTuple):
    """One update that is to be measured."""

    client: int
    seed: int
    subspace: int
    batch: Encoded


class Replicas:
    """The models of all clients."""

    def __init__(
        self, manifest: Manifest, loaded: LoadedModel, clients: int, bases: Path | None = None
    ) -> None:
        """`bases` is the folder with published bases, for a run that has them."""
        targets, rank = manifest.model.parsed_targets(), manifest.training.rank
        if any(site.form is Form.VECTOR for site in loaded.sites):
            raise ValueError("vectors are moved in place, and cannot differ between clients")
        self.loaded = loaded
        self.core = Core(len(targets), rank)
        """The updates that all clients have."""
        self._group, self._together = manifest.training.group, manifest.training.batch_updates
        self._scale = scale_of(manifest)
        self._clients = clients
        self._shape = (len(targets), rank, rank)
        self._basis = basis_of(manifest, bases, loaded.device)
        self._space = Subspace(self._basis, targets, (rank, rank), loaded.device, loaded.dtype)
        self._weights = MergedWeights(loaded, self._space, self.core, self._scale, clock=float)
        self._own: dict[int, I64] = {}
        """Cores of the updates that each client has besides, by subspace: (clients, layers, rank, rank)."""
        self._bases: dict[tuple[int, ...], Directions] = {}

    @property
    def equal(self) -> bool:
        """Whether no client has an update that another lacks."""
        return not self._own

    def use_bases(self, published: Sequence[Bases]) -> None:
        """Take the published bases of each subspace from here from now on, ascending from subspace 0.

        Those of subspaces with updates must stay the same.
        """
        if isinstance(self._basis, PublishedBasis):
            self._basis.follow(published)
            self._space.forget()
            self._bases.clear()

    # -- updates -----------------------------------------------------------------------------------

    def moves(self, batch: UpdateBatch) -> Moves:
        """Return updates as moves."""
        layers, rank, _ = self._shape
        row, column, sign = coordinates(batch.seeds, layers, rank)
        entries = row * rank + column + np.arange(layers) * rank * rank
        return Moves(batch.epochs, entries, sign * batch.scalars[:, None])

    def give(self, client: int | I64, moves: Moves) -> None:
        """Give updates to one client, or each of them to the client of the same number in an array."""
        for subspace in np.unique(moves.subspaces).tolist():
            chosen = moves.subspaces == subspace
            entries, amounts = moves.entries[chosen], moves.amounts[chosen]
            whose = client if isinstance(client, int) else client[chosen][:, None]
            size = self._shape[0] * self._shape[1] * self._shape[2]
            np.add.at(
                self._own_of(subspace).reshape(-1), (whose * size + entries).reshape(-1), amounts.reshape(-1)
            )

    def settle(self, batch: UpdateBatch, moves: Moves | None) -> None:
        """Move updates that all clients were given into the weights; `moves` are the same. None if with them
        all clients have everything."""
        if moves is None:
            self._own.clear()
        elif len(batch.seeds):
            common = Core(self._shape[0], self._shape[1])
            common.add(batch)
            for subspace in common.touched():
                own = self._own_of(subspace)
                own -= common.of(subspace)
            self._own = {subspace: own for subspace, own in self._own.items() if own.any()}
        self._weights.add(batch)
        self._weights.rebuild()

    def _own_of(self, subspace: int) -> I64:
        if subspace not in self._own:
            self._own[subspace] = np.zeros((self._clients, *self._shape), np.int64)
        return self._own[subspace]

    # -- measurements ------------------------------------------------------------------------------

    def measure(self, queries: Sequence[Query], epsilon: float) -> list[Estimate]:
        """Measure some clients' updates, each on its client's own model; those of a group one after
        another."""
        found: dict[int, Estimate] = {}
        together = MOST_QUERIES // self._together * self._together
        for subspace in sorted({query.subspace for query in queries}):
            numbers = [n for n, query in enumerate(queries) if query.subspace == subspace]
            for start in range(0, len(numbers), together):
                part = numbers[start : start + together]
                found |= zip(part, self._measure([queries[n] for n in part], subspace, epsilon), strict=True)
        return [found[n] for n in range(len(queries))]

    def _measure(self, queries: Sequence[Query], subspace: int, epsilon: float) -> list[Estimate]:
        directions = self._space.directions([query.seed for query in queries], subspace)
        apart = None if self.equal else self._apart(queries, subspace)
        batches = [query.batch for query in queries]
        return estimates(self.loaded, directions, batches, epsilon, self._group, apart)

    def _apart(self, queries: Sequence[Query], subspace: int) -> _Apart:
        blocks = tuple(sorted({subspace, *self._own}))
        cores = self._cores(np.array([query.client for query in queries]), blocks)
        seeds = np.array([query.seed for query in queries], np.uint64)
        row, column, sign = coordinates(seeds, *self._shape[:2])
        places = tuple(torch.from_numpy(part).to(self.loaded.device) for part in (column, row, sign))
        unit = self._space.unit(0)
        return _Apart(self._sides(blocks), cores, unit, blocks.index(subspace), *places)

    def _cores(self, clients: NDArray[np.int64], blocks: tuple[int, ...]) -> Tensor:
        """Return by how much clients' models differ from the weights in each of these subspaces: (clients,
        layers, blocks, rank, rank), columns of V by columns of U."""
        layers, rank, _ = self._shape
        found = torch.zeros(len(clients), layers, len(blocks), rank, rank)
        for number, subspace in enumerate(blocks):
            if subspace in self._own:
                change = self._own[subspace][clients] * -(
                    self._scale(subspace) * self._space.unit(0)
                )  # float64
                found[:, :, number] = torch.from_numpy(change).transpose(2, 3).float()
        return found.to(self.loaded.device)

    def _sides(self, blocks: tuple[int, ...]) -> Directions:
        """Return the bases of these subspaces side by side, as directions."""
        if blocks not in self._bases:
            columns = [self._space.columns(subspace) for subspace in blocks]
            out = [target.out_features for target in self._space.targets]
            into = [target.in_features for target in self._space.targets]
            dtype = self.loaded.dtype
            u = torch.split(torch.cat([side.u for side in columns]).to(dtype), out, 1)  # (k, out) each
            v = torch.split(torch.cat([side.v for side in columns]).to(dtype), into, 1)
            self._bases = {
                blocks: Directions(
                    tuple(part.contiguous() for part in u), tuple(part.t().contiguous() for part in v), 0
                )
            }
        return self._bases[blocks]

    # -- all clients together ----------------------------------------------------------------------

    def consensus(self) -> float:
        """Return the mean of ||x_i - mean x||^2 over clients, from cores and the products of bases."""
        if self.equal:
            return 0.0
        blocks = tuple(sorted(self._own))
        cores = self._cores(np.arange(self._clients), blocks).double()  # (clients, layers, blocks, r, r)
        cores -= cores.mean(0)
        total, shape = 0.0, cores.shape[2:4]
        sides = self._sides(blocks)
        for layer, (u, v) in enumerate(zip(sides.u, sides.v, strict=True)):
            u, v = u.double(), v.double()  # sums of squares of published entries are beyond float32
            left, right = v.t() @ v, (u @ u.t()).view(-1, *shape).transpose(0, 1)  # (k, k), (blocks, k, r)
            for core in cores[:, layer]:
                rows = through(core, left).reshape(*shape, -1)  # (blocks, r, k)
                total += float((rows @ right * core).sum())
        return total / self._clients

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Give the model the mean of all clients' weights within the block."""
        if self.equal:
            yield
            return
        blocks = tuple(sorted(self._own))
        mean = self._cores(np.arange(self._clients), blocks).double().mean(0)  # (layers, blocks, r, r)
        kept = [matrix(site).clone() for site in self.loaded.sites]
        try:
            for site, core, u, v in zip(self.loaded.sites, mean, *self._sides(blocks)[:2], strict=True):
                matrix(site).add_((through(core, v.double()) @ u.double()).t().to(self.loaded.dtype))
            yield
        finally:
            for site, weight in zip(self.loaded.sites, kept, strict=True):
                matrix(site).copy_(weight)

    @contextmanager
    def holding(self, cores: Mapping[int, I64]) -> Iterator[None]:
        """Give the model exactly these cores within the block, by subspace."""
        there = difference(cores, self.core.cores())
        self._weights.begin(there)
        self._weights.rebuild()
        try:
            yield
        finally:
            self._weights.begin({subspace: -core for subspace, core in there.items()})
            self._weights.rebuild()

    def shares(
        self,
        cores: Mapping[int, I64],
        updates: Sequence[slopes.Updates],
        batches: Sequence[Encoded],
        delta: float,
    ) -> tuple[list[StepShare], int]:
        """Return what `engine.slopes.shares` finds of updates in the step that these cores make from the
        weights as they are."""
        found = slopes.shares(
            self.loaded, self._space, self._scale, cores, updates, batches, delta, lambda: True
        )
        assert found is not None
        return found

    def line(self, cores: Mapping[int, I64]) -> Line:
        """Return the line from the weights as they are along these cores."""
        return Line(self.loaded, self._space, self._scale, cores)

    def cores_of(self, client: int) -> Mapping[int, I64]:
        """Return the cores of one client's model by subspace, (layers, rank, rank) each."""
        found = {subspace: self.core.of(subspace).copy() for subspace in self.core.epochs()}
        for subspace, own in self._own.items():
            found[subspace] = found.get(subspace, 0) + own[client]
        return {subspace: core for subspace, core in sorted(found.items()) if core.any()}


class _Apart:
    """Perturbs a pass whose rows are of clients with models of their own."""

    def __init__(
        self,
        sides: Directions,
        cores: Tensor,
        unit: float,
        block: int,
        column: Tensor,
        row: Tensor,
        sign: Tensor,
    ) -> None:
        """`cores` (q, layers, blocks, r, r), the places (q, layers) in one `block` that queries move, and
        their signs; `unit` is the value of a product of entries of 1."""
        self._sides = sides
        self._cores = cores
        self._block = block
        self._column, self._row, self._sign, self._unit = column, row, sign, unit
        self._layers = torch.arange(cores.shape[1], device=cores.device)

    def __call__(
        self, queries: NDArray[np.int64], amounts: NDArray[np.floating], this: forward.Pass
    ) -> Perturbation:
        device = self._cores.device
        which, by = torch.from_numpy(queries).to(device), torch.from_numpy(amounts).to(device)
        cores = self._cores[which]  # (R, layers, blocks, r, r)
        rows = torch.arange(len(queries), device=device)[:, None]
        moved = (by[:, None] * self._sign[which] * self._unit).to(cores.dtype)
        cores[rows, self._layers, self._block, self._column[which], self._row[which]] += moved
        sequences = cores.new_empty(len(queries), 0)
        tokens = cores.new_empty(this.input_ids.numel(), 0)
        return Perturbation(self._sides, tokens, sequences, sequences, cores.unbind(1), this.rows)
