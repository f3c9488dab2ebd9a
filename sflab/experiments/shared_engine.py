"""One engine for all clients of a cell: one set of weights, and the integers of what each client has.

The engine of a client's node is a core: what was applied there. Whatever has to be measured, the weights are
brought to a core first, rebuilt from the base as a node's are before it exports; clients that have something
else are measured beside it in activation space. So weights are a function of integers alone at any time, and
all clients are measured in one batched forward. This module knows the engine, and neither nodes nor networks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sflab.experiments.problem import LoadedProblem
from sflab.simulator.world.engine import IntegerEngine, Result
from sfnode.engine import forward, making_bases
from sfnode.engine.core import UpdateBatch
from sfnode.engine.estimator import estimates, quantise
from sfnode.engine.line import difference
from sfnode.engine.trainer import Trainer
from sfnode.manifest import Manifest
from sfnode.models.loader import matrix
from sfnode.models.perturbation import Directions, Perturbation, through
from sfnode.models.targets import Form
from sfnode.schema.evaluation import Evaluation, StepShare
from sfnode.tasks.encoding import Encoded
from sfnode.tasks.mini_batches import Shard
from sfnode.tasks.public_files import typed
from sfprotocol.decisions import Bases, RateFrom
from sfprotocol.seeds import I64, coordinates

MOST_QUERIES = 64
"""Updates that are measured together: cores of their clients take 100 kB each in a small model, 300 kB in
OPT-125M, and a batched forward is cut into passes that hold the sequences of fewer anyway."""

Disclose = Callable[[Sequence[int], int, int], int]
"""Returns what a client sends that has sent these scalars, given an update's seed and what was measured."""


class Query(NamedTuple):
    """One update that is to be measured."""

    client: int
    seed: int
    subspace: int
    batch: Encoded


class Measured(NamedTuple):
    """The result of a query."""

    scalar: int
    loss: float
    examples: int
    """Rows of its mini-batch."""


class ClientEngine(IntegerEngine):
    """The engine of one client's node, as its engine thread knows one."""

    def __init__(
        self, manifest: Manifest, shared: SharedEngine, client: int, shard: Shard, disclose: Disclose
    ) -> None:
        super().__init__(manifest, client)
        self.shard, self.odds = shard, shard.odds
        self._shared, self._client, self._disclose = shared, client, disclose
        self.sent: list[int] = []
        """Scalars of these, as they were sent."""

    def use_bases(self, published: Sequence[Bases]) -> None:
        """Use these bases, if the client is the one that makes them and so knows of them first."""
        if self._client == 0:
            self._shared.use_bases(published)

    def apply(self, batch: UpdateBatch) -> None:
        self.core.add(batch)

    def cores(self) -> dict[int, I64]:
        return {subspace: core.copy() for subspace, core in self.core.cores().items()}

    def step(self, seeds: Sequence[int], epoch: int, rate: RateFrom | None = None) -> Result:
        """Return what was measured for these seeds, with all updates that clients are about to make."""
        found = self._shared.measured(seeds)
        self.made += len(seeds)
        for seed, one in zip(seeds, found, strict=True):
            self.sent.append(self._disclose(self.sent, seed, one.scalar))
        losses = [one.loss for one in found if math.isfinite(one.loss)]
        loss = sum(losses) / len(losses) if losses else math.nan
        return Result(tuple(self.sent[-len(seeds) :]), loss)  # a model that diverges is a result, too

    # -- what an organiser asks, whose forwards count ----------------------------------------------

    def evaluate(self, *asked: Any, **how: Any) -> Evaluation:
        return self._counted(self._trainer().evaluate(*asked, **how))

    def evaluate_base(self, *asked: Any, **how: Any) -> Evaluation:
        return self._counted(self._trainer().evaluate_base(*asked, **how))

    def evaluate_towards(self, *asked: Any) -> Evaluation:
        return self._counted(self._trainer().evaluate_towards(*asked))

    def search(self, *asked: Any) -> int:
        taken = self._trainer().search(*asked)
        self._shared.example_forwards += taken
        return taken

    def shares(self, *asked: Any) -> tuple[list[StepShare], int]:
        found, taken = self._trainer().shares(*asked)
        self._shared.example_forwards += taken
        return found, taken

    def make_bases(self, folder: Path) -> str:
        self._shared.example_forwards += making_bases.cost("gradients")
        return self._trainer().make_bases(folder)

    def _counted(self, found: Evaluation) -> Evaluation:
        self._shared.example_forwards += found.count
        return found

    def _trainer(self) -> Trainer:
        return self._shared.at(self.core.cores())


class SharedEngine:
    """The weights, and the clients whose models they stand for."""

    def __init__(self, problem: LoadedProblem, bases: Path | None = None) -> None:
        """`bases` is the folder with published bases, for a run that has them."""
        manifest, loaded = problem.manifest, problem.loaded
        if any(site.form is Form.VECTOR for site in loaded.sites):
            raise ValueError("vectors are moved in place, and cannot differ between clients")
        self.clients: list[ClientEngine] = []
        self.example_forwards = 0
        """Forwards of one example so far."""
        self.losses: list[float] = []
        """Losses of the updates that were measured since this was last cleared."""
        self.known: dict[int, Measured] = {}
        """Everything that was measured, by seed."""
        self._problem = problem
        self._trainer = Trainer(
            manifest, loaded, problem.rows, problem.rows, bases, places=typed(manifest.data)
        )
        self._expected: list[tuple[int, Sequence[int], int]] = []
        """Clients with the seeds of their next updates and the epochs of these."""
        self._sides_of: dict[tuple[int, ...], Directions] = {}

    def add(self, shard: Shard, disclose: Disclose) -> ClientEngine:
        """Return the engine of one more client."""
        self.clients.append(ClientEngine(self._problem.manifest, self, len(self.clients), shard, disclose))
        return self.clients[-1]

    def use_bases(self, published: Sequence[Bases]) -> None:
        """Use the published bases of each subspace from here from now on, ascending from subspace 0."""
        self._trainer.use_bases(published)
        self._sides_of.clear()

    def at(self, cores: Mapping[int, I64]) -> Trainer:
        """Return the trainer with exactly these cores, by subspace, in its weights."""
        there = difference(cores, self._trainer.core.cores())
        if there:
            self._trainer.begin(there)
        self._trainer.rebuild()
        return self._trainer

    def close(self) -> None:
        """End the trainer's threads."""
        self._trainer.close()

    # -- updates -----------------------------------------------------------------------------------

    def expect(self, client: int, seeds: Sequence[int], epoch: int) -> None:
        """Take note of what a client's node is about to ask for."""
        self._expected.append((client, seeds, epoch))

    def measured(self, seeds: Sequence[int]) -> list[Measured]:
        """Return the results of these updates; all that are expected are measured together first."""
        self._measure([one for one in self._expected if one[1][0] not in self.known])
        self._expected.clear()
        found = [self.known[seed] for seed in seeds]
        self.example_forwards += self._problem.manifest.training.points * sum(one.examples for one in found)
        self.losses += [one.loss for one in found if math.isfinite(one.loss)]
        return found

    def _measure(self, expected: Sequence[tuple[int, Sequence[int], int]]) -> None:
        numbers, queries = self._problem.manifest, []
        for client, seeds, epoch in expected:
            batch = self.clients[client].shard.mini_batch(seeds[0])
            subspace = self._trainer.run.subspace_of(epoch)
            queries += [Query(client, seed, subspace, batch) for seed in seeds]
        training = numbers.training
        together = MOST_QUERIES // training.batch_updates * training.batch_updates or len(queries)
        for subspace in sorted({query.subspace for query in queries}):
            chosen = [query for query in queries if query.subspace == subspace]
            for start in range(0, len(chosen), together):
                part = chosen[start : start + together]
                for query, alpha, loss in self._estimates(part, subspace):
                    scalar = quantise(alpha, training.scalar_delta, training.scalar_limit)
                    self.known[query.seed] = Measured(scalar, loss, query.batch.examples)

    def _estimates(self, queries: Sequence[Query], subspace: int) -> Iterator[tuple[Query, float, float]]:
        training, own = self._problem.manifest.training, self._apart()
        directions = self._trainer.space.directions([query.seed for query in queries], subspace)
        perturb = self._perturb(queries, subspace, own) if own else None
        batches, loaded = [query.batch for query in queries], self._trainer.loaded
        found = estimates(loaded, directions, batches, training.epsilon, training.group, perturb)
        for query, one in zip(queries, found, strict=True):
            yield query, one.alpha, one.loss

    # -- clients that differ -----------------------------------------------------------------------

    def _apart(self) -> dict[int, I64]:
        """Bring the weights to the first client's core; return by how much the cores of clients are more than
        that, by the subspaces in which some are: (clients, layers, rank, rank) each."""
        first = self.at(self.clients[0].core.cores()).core
        touched = sorted({subspace for client in self.clients for subspace in client.core.touched()})
        found = {}
        for subspace in touched:
            common = first.of(subspace)
            own = [client.core.of(subspace) for client in self.clients]
            if any(not np.array_equal(core, common) for core in own):
                found[subspace] = np.stack(own) - common
        return found

    def _perturb(self, queries: Sequence[Query], subspace: int, own: Mapping[int, I64]) -> _Apart:
        blocks = tuple(sorted({subspace, *own}))
        cores = self._cores(own, np.array([query.client for query in queries]), blocks)
        seeds = np.array([query.seed for query in queries], np.uint64)
        row, column, sign = coordinates(seeds, cores.shape[1], cores.shape[3])
        places = tuple(torch.from_numpy(part).to(cores.device) for part in (column, row, sign))
        unit = self._trainer.space.unit(0)
        return _Apart(self._sides(blocks), cores, unit, blocks.index(subspace), *places)

    def _cores(self, own: Mapping[int, I64], clients: NDArray[np.int64], blocks: tuple[int, ...]) -> Tensor:
        """Return by how much clients' models differ from the weights in each of these subspaces: (clients,
        layers, blocks, rank, rank), columns of V by columns of U."""
        layers, rank, _ = self._trainer.core.shape
        found = torch.zeros(len(clients), layers, len(blocks), rank, rank)
        units = np.array([self._trainer.space.unit(layer) for layer in range(layers)])[:, None, None]
        for number, subspace in enumerate(blocks):
            if subspace in own:
                change = own[subspace][clients] * (units * -self._trainer.scale(subspace))  # float64
                found[:, :, number] = torch.from_numpy(change).transpose(2, 3).float()
        return found.to(self._trainer.loaded.device)

    def _sides(self, blocks: tuple[int, ...]) -> Directions:
        """Return the bases of these subspaces side by side, as directions."""
        if blocks not in self._sides_of:
            space, dtype = self._trainer.space, self._trainer.loaded.dtype
            columns = [space.columns(subspace) for subspace in blocks]
            out = [target.out_features for target in space.targets]
            into = [target.in_features for target in space.targets]
            u = torch.split(torch.cat([side.u for side in columns]).to(dtype), out, 1)  # (k, out) each
            v = torch.split(torch.cat([side.v for side in columns]).to(dtype), into, 1)
            found = Directions(
                tuple(part.contiguous() for part in u), tuple(part.t().contiguous() for part in v), 0
            )
            self._sides_of = {blocks: found}
        return self._sides_of[blocks]

    def consensus(self) -> float:
        """Return the mean of ||x_i - mean x||^2 over clients, from cores and the products of bases."""
        own = self._apart()
        if not own:
            return 0.0
        blocks, clients = tuple(sorted(own)), len(self.clients)
        cores = self._cores(own, np.arange(clients), blocks).double()  # (clients, layers, blocks, r, r)
        cores -= cores.mean(0)
        total, shape = 0.0, cores.shape[2:4]
        sides = self._sides(blocks)
        for layer, (u, v) in enumerate(zip(sides.u, sides.v, strict=True)):
            u, v = u.double(), v.double()  # sums of squares of published entries are beyond float32
            left, right = v.t() @ v, (u @ u.t()).view(-1, *shape).transpose(0, 1)  # (k, k), (blocks, k, r)
            for core in cores[:, layer]:
                rows = through(core, left).reshape(*shape, -1)  # (blocks, r, k)
                total += float((rows @ right * core).sum())
        return total / clients

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Give the model the mean of all clients' weights within the block."""
        own = self._apart()
        if not own:
            yield
            return
        blocks, sites = tuple(sorted(own)), self._trainer.loaded.sites
        mean = self._cores(own, np.arange(len(self.clients)), blocks).double().mean(0)  # (layers, blocks,
        kept = [matrix(site).clone() for site in sites]  # r, r)
        try:
            for site, core, u, v in zip(sites, mean, *self._sides(blocks)[:2], strict=True):
                matrix(site).add_((through(core, v.double()) @ u.double()).t().to(matrix(site).dtype))
            yield
        finally:
            for site, weight in zip(sites, kept, strict=True):
                matrix(site).copy_(weight)


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
