"""One engine for all clients of a cell: one set of weights, and a core for each client.

The engine of a client's node is only a core, to which the node applies updates. Before any measurement for a
client, the weights are rebuilt from the base and the client's core, as before an export. So weights always
depend on integers only. Clients with equal cores are measured together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sflab.experiments.problem import LoadedProblem
from sflab.simulator.world.engine import IntegerEngine, Result
from sfnode.engine import making_bases
from sfnode.engine.core import UpdateBatch
from sfnode.engine.estimator import estimates, quantise
from sfnode.engine.line import difference
from sfnode.engine.trainer import Trainer
from sfnode.models.loader import matrix
from sfnode.models.targets import Form
from sfnode.schema.measurements import Evaluation, StepShare
from sfnode.tasks.mini_batches import Shard
from sfnode.tasks.public_files import typed
from sfprotocol.decisions import Bases, RateFrom
from sfprotocol.seeds import I64

TOGETHER = 64
"""Maximum number of clients that are measured together. With more, directions take more memory and no time is
saved: a batched forward is cut into smaller passes anyway."""

Disclose = Callable[[Sequence[int], int, int], int]
"""Function that returns the next scalar that a client sends. It takes the client's scalars so far, the
update's seed and the measured scalar."""


class Measured(NamedTuple):
    """Measurement of an update."""

    scalar: int
    loss: float
    examples: int
    """Number of rows of the update's mini-batch."""


class ClientEngine(IntegerEngine):
    """Engine of one client's node, with the interface of the engine thread."""

    def __init__(self, shared: SharedEngine, shard: Shard, disclose: Disclose) -> None:
        super().__init__(shared.problem.manifest, 0)
        self.shard, self.odds = shard, shard.odds
        self._shared, self._disclose = shared, disclose
        self.sent: list[int] = []
        """Scalars that this client sent so far."""

    def prepare(self, seeds: Sequence[int]) -> None:
        """Record the seeds of the next `step`."""
        self._shared.ordered[self] = seeds

    def use_bases(self, published: Sequence[Bases]) -> None:
        """Use published bases in the shared trainer. Only client 0 does so, because it makes the bases and
        has them first."""
        if self is self._shared.clients[0]:
            self._shared.trainer.use_bases(published)

    def apply(self, batch: UpdateBatch) -> None:
        self.core.add(batch)

    def cores(self) -> dict[int, I64]:
        return {subspace: core.copy() for subspace, core in self.core.cores().items()}

    def step(self, seeds: Sequence[int], epoch: int, rate: RateFrom | None = None) -> Result:
        """Measure updates of these seeds with the client's model, and return the scalars to send."""
        found = self._shared.measured(self, seeds, epoch)
        self.made += len(seeds)
        for seed, one in zip(seeds, found, strict=True):
            self.sent.append(self._disclose(self.sent, seed, one.scalar))
        return Result(tuple(self.sent[-len(seeds) :]), found[0].loss)

    # -- measurements for the organiser, whose forwards are counted ---------------------------------

    def evaluate(self, *asked: Any, **how: Any) -> Evaluation:
        return self._counted(self._here().evaluate(*asked, **how))

    def evaluate_base(self, *asked: Any, **how: Any) -> Evaluation:
        return self._counted(self._here().evaluate_base(*asked, **how))

    def evaluate_towards(self, *asked: Any) -> Evaluation:
        return self._counted(self._here().evaluate_towards(*asked))

    def search(self, *asked: Any) -> int:
        taken = self._here().search(*asked)
        self._shared.example_forwards += taken
        return taken

    def shares(self, *asked: Any) -> tuple[list[StepShare], int]:
        found, taken = self._here().shares(*asked)
        self._shared.example_forwards += taken
        return found, taken

    def make_bases(self, folder: Path) -> str:
        self._shared.example_forwards += making_bases.cost("gradients")
        return self._here().make_bases(folder)

    def _counted(self, found: Evaluation) -> Evaluation:
        self._shared.example_forwards += found.count
        return found

    def _here(self) -> Trainer:
        return self._shared.at(self.core.cores())


class SharedEngine:
    """Weights that all clients share, and the clients' engines."""

    def __init__(self, problem: LoadedProblem, bases: Path | None = None) -> None:
        """`bases` is the folder with published bases, if the run has some."""
        manifest, loaded = problem.manifest, problem.loaded
        if any(site.form is Form.VECTOR for site in loaded.sites):
            raise ValueError("the mean of the clients' models is one of matrices")
        self.problem = problem
        self.clients: list[ClientEngine] = []
        self.example_forwards = 0
        """Number of example-forwards so far."""
        self.losses: list[float] = []
        """Losses of the updates measured since the list was last cleared."""
        self.known: dict[tuple[int, int], Measured] = {}
        """All measurements, keyed by seed and subspace."""
        self.ordered: dict[ClientEngine, Sequence[int]] = {}
        """Seeds of each client's next updates, keyed by the client's engine."""
        self.trainer = Trainer(
            manifest, loaded, problem.rows, problem.rows, bases, places=typed(manifest.data)
        )

    def add(self, shard: Shard, disclose: Disclose) -> ClientEngine:
        """Add a client, and return its engine."""
        self.clients.append(ClientEngine(self, shard, disclose))
        return self.clients[-1]

    def at(self, cores: Mapping[int, I64]) -> Trainer:
        """Rebuild the weights from exactly these cores, keyed by subspace, and return the trainer."""
        there = difference(cores, self.trainer.core.cores())
        if there:
            self.trainer.begin(there)
        self.trainer.rebuild()
        return self.trainer

    def measured(self, client: ClientEngine, seeds: Sequence[int], epoch: int) -> list[Measured]:
        """Return the measurements of a client's updates. Known measurements are not repeated."""
        subspace = self.trainer.run.subspace_of(epoch)
        if (seeds[0], subspace) not in self.known:
            digest = client.core.digest()
            alike = [one for one in self.ordered if one is not client and one.core.digest() == digest]
            others = {one: self.ordered.pop(one) for one in alike[: TOGETHER - 1]}
            self._measure({client: seeds, **others}, subspace)
        self.ordered.pop(client, None)
        found = [self.known[seed, subspace] for seed in seeds]
        points = self.problem.manifest.training.points
        self.example_forwards += points * sum(one.examples for one in found)
        self.losses += [one.loss for one in found if math.isfinite(one.loss)]
        return found

    def _measure(self, asked: Mapping[ClientEngine, Sequence[int]], subspace: int) -> None:
        """Measure updates of clients with equal cores."""
        training, trainer = self.problem.manifest.training, self.at(next(iter(asked)).core.cores())
        seeds = [seed for one in asked.values() for seed in one]
        drawn = [(client.shard.mini_batch(one[0]), len(one)) for client, one in asked.items()]
        batches = [batch for batch, count in drawn for _ in range(count)]
        directions = trainer.space.directions(seeds, subspace)
        found = estimates(trainer.loaded, directions, batches, training.epsilon, training.group)
        for seed, batch, one in zip(seeds, batches, found, strict=True):
            scalar = quantise(one.alpha, training.scalar_delta, training.scalar_limit)
            self.known[seed, subspace] = Measured(scalar, one.loss, batch.examples)

    # -- clients that differ -----------------------------------------------------------------------

    def consensus(self) -> float:
        """Return the mean of ||x_i - mean x||^2 over clients."""
        return self._mean()[1]

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Set the weights to the mean over all clients, within the block."""
        mean, apart = self._mean()
        for site, weight in zip(self.trainer.loaded.sites, mean, strict=True) if apart else ():
            matrix(site).copy_(weight)
        try:
            yield
        finally:
            self.trainer.weights.renew()
            self.trainer.rebuild()

    def _mean(self) -> tuple[list[Tensor], float]:
        """Return the mean of all clients' matrices, in float64, and the mean squared distance of the clients
        from it."""
        first, digest = self._matrices(self.clients[0]), self.clients[0].core.digest()
        sums, squares = [torch.zeros_like(weight) for weight in first], 0.0
        for client in [one for one in self.clients if one.core.digest() != digest]:
            for total, weight, common in zip(sums, self._matrices(client), first, strict=True):
                total += (apart := weight - common)
                squares += float(apart.square().sum())
        means = [total / len(self.clients) for total in sums]
        spread = squares / len(self.clients) - sum(float(mean.square().sum()) for mean in means)
        return [common + mean for common, mean in zip(first, means, strict=True)], spread

    def _matrices(self, client: ClientEngine) -> list[Tensor]:
        return [matrix(site).double() for site in self.at(client.core.cores()).loaded.sites]
