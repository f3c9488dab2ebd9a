"""SeedFlood (arXiv 2602.18181) with virtual clients: the daemon's engine, feeds and epochs, a flood in rounds.

A client measures updates on its shard, applies its own at once and those of others when they have reached it.
State is the updates, and who has which of them: everything else follows, so that a restart replays them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sfnode.baselines.method import Traffic
from sfnode.engine.core import UpdateBatch
from sfnode.engine.estimator import quantise
from sfnode.experiments.cell import Cell
from sfnode.experiments.feeds import ClientFeed
from sfnode.experiments.flooding import Flood
from sfnode.experiments.network import Conditions
from sfnode.experiments.problem import LoadedProblem, client_key
from sfnode.experiments.replicas import Moves, Query, Replicas
from sfnode.schema.evaluation import Evaluation
from sfnode.tasks.dataset import HeldOut
from sfnode.tasks.encoding import Encoded, encode
from sfprotocol.decisions import FACTOR_ONE
from sfprotocol.counting import multiplier
from sfprotocol.seeds import I64, batch_rows, update_seeds


OPTIONS = frozenset(
    {"organised", "scalar_bits", "scalar_delta", "scalar_limit", "segment_updates", "subspace_epochs"}
)
"""Names of its options (`Cell.options`); docs/experiments.md explains them."""


class Pending(NamedTuple):
    """n updates that some clients may lack, with all of their columns (n,)."""

    origins: I64
    """Number of the client that has made each."""
    steps: I64
    batch: UpdateBatch
    moves: Moves

    def take(self, chosen: NDArray[np.bool_]) -> Pending:
        """Return the chosen ones."""
        batch = UpdateBatch(*(column[chosen] for column in self.batch))
        return Pending(self.origins[chosen], self.steps[chosen], batch, self.moves.take(chosen))

    def within(self, first: I64, stop: I64) -> NDArray[np.bool_]:
        """Return which are from the steps `first .. stop - 1` of their origins, (origins,) each."""
        found: NDArray[np.bool_] = (self.steps >= first[self.origins]) & (self.steps < stop[self.origins])
        return found


class SeedFlood:
    """The method in the midst of its run."""

    def __init__(self, cell: Cell, problem: LoadedProblem) -> None:
        self.traffic = Traffic()
        self.example_forwards = 0
        """Forwards of one example so far."""
        self.run = problem.manifest.parameters()
        self.replicas = Replicas(problem.manifest, problem.loaded, cell.network.clients)
        each = int(cell.options.get("segment_updates", 0))
        keys = (client_key(cell, client) for client in range(cell.network.clients))
        self.feeds = [ClientFeed(self.run, key, each) for key in keys]
        self._cell = cell
        self._problem = problem
        self._conditions = Conditions(cell.network, cell.seed)
        self.flood = Flood(
            self._conditions, len(self.feeds), lambda origin, *steps: self.feeds[origin].size(*steps), self.traffic
        )
        self._weight = multiplier(self.run.rate, FACTOR_ONE) if self.run.organised else 1
        self._pending = self._updates([])
        self._ungiven = self._pending
        """Own updates that are not in their clients' models yet."""

    # -- training ----------------------------------------------------------------------------------

    def step(self, number: int) -> float:
        """Take local step `number` of every client that is there: one update, or more of a fast one's."""
        present = self._conditions.present(number // self._cell.local_steps)
        steps = self._conditions.steps_by(number) * present
        losses = [loss for turn in range(steps.max()) for loss in self._step(np.flatnonzero(steps > turn).tolist())]
        measured = [loss for loss in losses if math.isfinite(loss)]
        return sum(measured) / len(measured) if measured else math.nan

    def _step(self, clients: Sequence[int]) -> list[float]:
        """Make an update of each of these clients, and give it to its client; return their losses."""
        self._give()
        numbers, has = self._problem.manifest.training, self.has()
        queries = []
        for client in clients:
            feed, label = self.feeds[client], self._label(client, int(has[client].sum()))
            seed = feed.seed()
            queries.append(Query(client, seed, self.run.subspace_of(label), self._mini_batch(client, seed)))
            feed.labels.append(label)
        estimates = self.replicas.measure(queries, numbers.epsilon)
        self.example_forwards += 2 * sum(query.batch.examples for query in queries)
        for client, estimate in zip(clients, estimates, strict=True):
            scalar = quantise(estimate.alpha, numbers.scalar_delta, numbers.scalar_limit)
            self.feeds[client].scalars.append(scalar)
        made = self._updates([(client, self.feeds[client].made - 1) for client in clients])
        self._pending, self._ungiven = _joined(self._pending, made), _joined(self._ungiven, made)
        return [estimate.loss for estimate in estimates]

    def _label(self, client: int, known: int) -> int:
        """Return the epoch of a client's next update (SPEC U5)."""
        return max([self.run.epoch_of(known), *self.feeds[client].labels[-1:]])

    def _mini_batch(self, client: int, seed: int) -> Encoded:
        rows, size = self._problem.shards[client], self._problem.manifest.training.batch_size
        chosen = [rows[row] for row in batch_rows(seed, size, len(rows)).tolist()]
        return encode(self._problem.task, self._problem.loaded.tokenizer, chosen)

    def _updates(self, which: Sequence[tuple[int, int]]) -> Pending:
        """Return these updates, by client and step, as columns."""
        feeds = self.feeds
        seeds = [int(update_seeds(feeds[client].key, step, 1)[0]) for client, step in which]
        batch = UpdateBatch(
            np.array([self.run.subspace_of(feeds[client].labels[step]) for client, step in which], np.int64),
            np.array(seeds, np.uint64),
            np.array([feeds[client].scalars[step] * self._weight for client, step in which], np.int64),
        )
        clients, steps = np.array(which, np.int64).reshape(-1, 2).T
        return Pending(clients, steps, batch, self.replicas.moves(batch))

    def _give(self) -> None:
        if len(self._ungiven.steps):
            self.replicas.give(self._ungiven.origins, self._ungiven.moves)
            self._ungiven = self._updates([])

    # -- communication -----------------------------------------------------------------------------

    def has(self) -> I64:
        """Return how many updates of each feed each client has, (clients, clients)."""
        found = self.flood.known[:, : len(self.feeds)].copy()
        np.fill_diagonal(found, [feed.made for feed in self.feeds])
        return found

    def communicate(self, number: int) -> None:
        """Publish and flood."""
        round_number, last = number // self._cell.local_steps, number == self._cell.steps - 1
        present = self._conditions.present(round_number)
        before = self.has()
        for client, feed in enumerate(self.feeds):
            if present[client]:
                feed.publish(everything=last)
            self.flood.known[client, client] = feed.published
        self.flood.round(round_number)
        self._deliver(before, self.has())

    def _deliver(self, before: I64, after: I64) -> None:
        """Give clients what they did not have before, and settle what all have."""
        if (after == after[0]).all():
            self._ungiven = self._updates([])
            settled, self._pending = self._pending, self._ungiven
            self.replicas.settle(settled.batch, None)
            return
        self._give()
        for client, (first, stop) in enumerate(zip(before, after, strict=True)):
            if (chosen := self._pending.within(first, stop)).any():
                self.replicas.give(client, self._pending.moves.take(chosen))
        everywhere = self._pending.within(np.zeros_like(after[0]), after.min(0))
        settled, self._pending = self._pending.take(everywhere), self._pending.take(~everywhere)
        self.replicas.settle(settled.batch, settled.moves)

    # -- measurements ------------------------------------------------------------------------------

    def consensus(self) -> float:
        """Return the mean of ||x_i - mean x||^2 over clients."""
        self._give()
        return self.replicas.consensus()

    def evaluate(self, which: HeldOut) -> Evaluation:
        """Measure the average of all clients' models."""
        self._give()
        with self.replicas.averaged():
            return self._problem.evaluate(which)

    # -- restarts ----------------------------------------------------------------------------------

    def state(self) -> Mapping[str, Any]:
        """Return the updates, who has them, and what it has cost."""
        return {
            "feeds": [feed.state() for feed in self.feeds],
            "known": torch.from_numpy(self.flood.known.copy()),
            "sent": [(*edge, size) for edge, size in self.traffic.sent.items()],
            "example_forwards": self.example_forwards,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` has returned; nothing has been done yet."""
        for feed, kept in zip(self.feeds, state["feeds"], strict=True):
            feed.restore(kept)
        self.flood.known[:] = state["known"].numpy()
        for sender, receiver, size in state["sent"]:
            self.traffic.add((sender, receiver), size)
        self.example_forwards = state["example_forwards"]
        made = self._updates([(n, step) for n, feed in enumerate(self.feeds) for step in range(feed.made)])
        has = self.has()
        settled = made.within(np.zeros_like(has[0]), has.min(0))
        self.replicas.settle(made.take(settled).batch, None)
        self._pending = made.take(~settled)
        for client, stop in enumerate(has):
            if (chosen := self._pending.within(np.zeros_like(stop), stop)).any():
                self.replicas.give(client, self._pending.moves.take(chosen))


def _joined(one: Pending, other: Pending) -> Pending:
    batch = UpdateBatch(*(np.concatenate(parts) for parts in zip(one.batch, other.batch, strict=True)))
    moves = Moves(*(np.concatenate(parts) for parts in zip(one.moves, other.moves, strict=True)))
    steps = np.concatenate([one.steps, other.steps])
    return Pending(np.concatenate([one.origins, other.origins]), steps, batch, moves)
