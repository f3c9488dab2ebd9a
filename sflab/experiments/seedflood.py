"""SeedFlood (arXiv 2602.18181) with virtual clients: the daemon's engine, feeds, epochs; a flood in rounds.

A client measures updates on its shard, applies its own at once and those of others when they have reached it.
State is the updates, and who has which of them: everything else follows, so that a restart replays them.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sflab.baselines.clients import EdgeTraffic
from sflab.experiments import attacks
from sflab.experiments.cell import Cell
from sflab.experiments.feeds import ClientFeed
from sflab.experiments.flooding import Conditions, Flood
from sflab.experiments.keeper import Keeper, Named
from sflab.experiments.problem import LoadedProblem, client_key, organiser_key
from sflab.experiments.replicas import Moves, Query, Replicas
from sfnode.engine import making_bases
from sfnode.engine.core import UpdateBatch
from sfnode.engine.estimator import quantise
from sfnode.engine.line import difference
from sfnode.engine.losses import batches_of, line_batches, line_rows
from sfnode.models import bases
from sfnode.organising.evaluation.line_search import LineSearch, SearchResult
from sfnode.organising.events import Evaluate, EvaluationEnded
from sfnode.organising.policy import is_wary
from sfnode.schema.evaluation import Evaluation, StepShare
from sfnode.store.data_folder import Layout
from sfnode.tasks.mini_batches import Shard
from sfnode.tasks.prompts import Row
from sfprotocol.counting import multiplier
from sfprotocol.decisions import FACTOR_ONE
from sfprotocol.messages import Feed
from sfprotocol.seeds import I64, update_seeds

OPTIONS = frozenset(
    {
        "budget",
        "guard",
        "organised",
        "origins",
        "renew",
        "scalar_bits",
        "scalar_delta",
        "scalar_limit",
        "search",
        "segment_updates",
        "subspace_epochs",
    }
)
"""Names of its options (`Cell.options`); docs/experiments.md explains them."""


class Pending(NamedTuple):
    """n updates that some clients may lack, with all of their columns (n,)."""

    origins: I64
    """Number of the client that has made each; that of the decisions for what a seal has changed."""
    steps: I64
    """Their steps, or the numbers of the decisions."""
    batch: UpdateBatch
    moves: Moves

    def take(self, chosen: NDArray[np.bool_]) -> Pending:
        """Return the chosen ones."""
        epochs, seeds, scalars = self.batch
        batch = UpdateBatch(epochs[chosen], seeds[chosen], scalars[chosen])
        return Pending(self.origins[chosen], self.steps[chosen], batch, self.moves.take(chosen))

    def within(self, first: I64, stop: I64) -> NDArray[np.bool_]:
        """Return which are from the steps `first .. stop - 1` of their origins, (origins,) each."""
        found: NDArray[np.bool_] = (self.steps >= first[self.origins]) & (self.steps < stop[self.origins])
        return found


class SeedFlood:
    """The method in the midst of its run."""

    def __init__(self, cell: Cell, problem: LoadedProblem, log: Path | None = None) -> None:
        """`log`: the empty folder that the node at client 0 is to have its log in. An organised run has one
        in any case, in a temporary folder unless it is named."""
        self.traffic = EdgeTraffic()
        self.example_forwards = 0
        """Forwards of one example so far."""
        self.run = problem.manifest.parameters()
        each = int(cell.options.get("segment_updates", 0))
        keys = (client_key(cell, client) for client in range(cell.network.clients))
        self.feeds = [ClientFeed(self.run, key, each) for key in keys]
        self.searched: list[SearchResult] = []
        """Results of the line searches since the start."""
        self.shares: list[tuple[int, Mapping[Feed, StepShare]]] = []
        """Epochs since the start, and what feeds have brought in them, where that was measured."""
        self._has_base = False
        """Whether the organiser knows the base model's result."""
        self._kept_bases: Path | None = None
        """The folder with the bases of a run whose log is kept, those that were made as it went on too."""
        self._cell = cell
        self._problem = problem
        tokenizer, size = problem.loaded.tokenizer, problem.manifest.training.batch_size
        self._hostile = attacks.hostile_clients(cell)
        dealt = list(problem.shards)
        for client in self._hostile:
            dealt[client] = attacks.shard_of(cell.network.attack, problem.task, dealt[client])
        self._shards = [Shard(problem.task, tokenizer, rows, size, lambda: problem.public) for rows in dealt]
        self._conditions = Conditions(cell.network, cell.seed)
        self._keeper = self._keeper_in(log, problem)
        folder = self._kept_bases or problem.bases
        self.replicas = Replicas(problem.manifest, problem.loaded, cell.network.clients, folder)
        origins = len(self.feeds) + self.run_is_organised
        self.flood = Flood(self._conditions, origins, self._size, self.traffic)
        if self.run_is_organised and self._keeper:
            self.flood.known[:, -1] = self._keeper.decided  # all have joined once they were admitted
        self._pending = self._updates([])
        self._ungiven = self._pending
        """Own updates that are not in their clients' models yet."""
        self._kept_own = 0
        """Steps of client 0's own feed that its node has."""

    @property
    def run_is_organised(self) -> bool:
        """Whether decisions travel, as those of one more origin."""
        return self.run.organised is not None

    def _keeper_in(self, log: Path | None, problem: LoadedProblem) -> Keeper | None:
        if log is None and not self.run_is_organised:
            return None
        if log is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="sfnode-", ignore_cleanup_errors=True)
            log = Path(self._temporary.name)
        keys = organiser_key(self._cell)
        validates, options = "validation" in problem.held_out, self._cell.options
        search, guard = (bool(options.get(name)) and validates for name in ("search", "guard"))
        feeds = [feed.feed for feed in self.feeds]
        keeper = Keeper(
            problem.manifest,
            log,
            feeds,
            keys,
            self._measure if search or guard else None,
            self._make if problem.bases else None,
            int(self._cell.options.get("renew", 0)),
            origins=bool(self._cell.options.get("origins", 1)),
            search=search,
            guard=guard,
        )
        if problem.bases:
            self._kept_bases = Layout(log).bases
            targets, columns = problem.manifest.model.parsed_targets(), problem.manifest.basis_columns
            bases.keep(Path(self._cell.problem.bases), self._kept_bases, targets, columns)
        return keeper

    # -- training ----------------------------------------------------------------------------------

    def step(self, number: int) -> float:
        """Take local step `number` of every client that is there: one mini-batch, or more of a fast
        one's."""
        if self._keeper and self._keeper.complete:
            return math.nan
        present = self._conditions.present(number // self._cell.local_steps)
        steps = self._conditions.steps_by(number) * present
        if self._cell.network.attack == "absent":
            steps[self._hostile.start :] = 0
        losses = [
            loss for turn in range(steps.max()) for loss in self._step(np.flatnonzero(steps > turn).tolist())
        ]
        measured = [loss for loss in losses if math.isfinite(loss)]
        return sum(measured) / len(measured) if measured else math.nan

    def _step(self, clients: Sequence[int]) -> list[float]:
        """Make an update, or a group, of each of these clients, and give it to its client; return their
        losses."""
        self._give()
        numbers, has = self._problem.manifest.training, self.has()
        queries, which = [], []
        for client in clients:
            feed, label = self.feeds[client], self._label(client, int(has[client].sum()))
            seeds, subspace = feed.seeds(numbers.batch_updates), self.run.subspace_of(label)
            batch = self._shards[client].mini_batch(seeds[0])
            queries += [Query(client, seed, subspace, batch) for seed in seeds]
            which += [(client, feed.made + number) for number in range(len(seeds))]
            feed.labels += [label] * len(seeds)
        estimates = self.replicas.measure(queries, numbers.epsilon)
        self.example_forwards += numbers.points * sum(query.batch.examples for query in queries)
        for query, estimate in zip(queries, estimates, strict=True):
            feed, limit = self.feeds[query.client], numbers.scalar_limit
            scalar = quantise(estimate.alpha, numbers.scalar_delta, limit)
            if query.client in self._hostile:
                scalar = attacks.scalar_of(self._cell, limit, feed.scalars, query.seed, scalar)
            feed.scalars.append(scalar)
        made = self._updates(which, live=True)
        self._pending, self._ungiven = _joined(self._pending, made), _joined(self._ungiven, made)
        return [estimate.loss for estimate in estimates]

    def _label(self, client: int, known: int) -> int:
        """Return the epoch of a client's next update (SPEC U5, O6)."""
        if self.run_is_organised and self._keeper:
            return self._keeper.open_epoch(int(self.flood.known[client, -1]))
        return max([self.run.epoch_of(known), *self.feeds[client].labels[-1:]])

    def _weight(self, label: int, factor: int = FACTOR_ONE) -> int:
        return multiplier(self._keeper.rate(label), factor) if self.run_is_organised and self._keeper else 1

    def _updates(self, which: Sequence[tuple[int, int]], *, live: bool = False) -> Pending:
        """Return these updates, by client and step, as columns: with factor 1, or that of new ones if
        `live`."""
        feeds = self.feeds
        keeper = self._keeper if live and self.run_is_organised else None
        factors = {client: keeper.factor(feeds[client].feed) if keeper else FACTOR_ONE for client, _ in which}
        seeds = [int(update_seeds(feeds[client].key, step, 1)[0]) for client, step in which]
        batch = UpdateBatch(
            np.array([self.run.subspace_of(feeds[client].labels[step]) for client, step in which], np.int64),
            np.array(seeds, np.uint64),
            np.array(
                [
                    feeds[client].scalars[step] * self._weight(feeds[client].labels[step], factors[client])
                    for client, step in which
                ],
                np.int64,
            ),
        )
        clients, steps = np.array(which, np.int64).reshape(-1, 2).T
        return Pending(clients, steps, batch, self.replicas.moves(batch))

    def _corrections(self) -> Pending:
        """Return what decisions have changed of updates since the last call, as columns."""
        made = {feed.feed: feed.made for feed in self.feeds}
        found = self._keeper.corrections(made) if self._keeper and self.run_is_organised else []
        client_of = {feed.feed: client for client, feed in enumerate(self.feeds)}
        which, numbers, scalars = [], [], []
        for decision, feed, begin, stop, before, factor in found:
            client = client_of[feed]
            for step, label in enumerate(self.feeds[client].labels[begin:stop], begin):
                which.append((client, step))
                numbers.append(decision)
                change = self._weight(label, factor) - self._weight(label, before)
                scalars.append(self.feeds[client].scalars[step] * change)
        updates = self._updates(which)
        batch = updates.batch._replace(scalars=np.array(scalars, np.int64))
        origins = np.full(len(which), len(self.feeds))
        return Pending(origins, np.array(numbers, np.int64), batch, self.replicas.moves(batch))

    def _give(self) -> None:
        if len(self._ungiven.steps):
            self.replicas.give(self._ungiven.origins, self._ungiven.moves)
            self._ungiven = self._updates([])

    # -- communication -----------------------------------------------------------------------------

    def _size(self, origin: int, first: int, stop: int) -> int:
        if origin == len(self.feeds) and self._keeper:
            return self._keeper.control_size(first, stop)
        return self.feeds[origin].size(first, stop)

    def has(self) -> I64:
        """Return how many updates of each feed each client has, (clients, clients)."""
        found = self.flood.known[:, : len(self.feeds)].copy()
        np.fill_diagonal(found, [feed.made for feed in self.feeds])
        return found

    def _known(self) -> I64:
        """Return how many updates, and in the last column how many decisions, each client has."""
        decided = self.flood.known[:, len(self.feeds) :]
        return np.concatenate([self.has(), decided], 1)

    def communicate(self, number: int) -> None:
        """Publish and flood."""
        round_number, last = number // self._cell.local_steps, number == self._cell.steps - 1
        present = self._conditions.present(round_number)
        before = self._known()
        for client, feed in enumerate(self.feeds):
            if present[client]:
                feed.publish(everything=last)
            self.flood.known[client, client] = feed.published
        received = self.flood.known[0].copy()
        received[0] = self._kept_own
        ends = last and self.run_is_organised  # with what its last seals say, which all are told
        self.flood.round(round_number, everywhere=ends)
        self._keep(received, last=last)
        if ends:
            self.flood.round(round_number, everywhere=True)
        self._deliver(before, self._known())

    def _keep(self, before: I64, *, last: bool) -> None:
        """Let the node at client 0 take what has come, and decide."""
        if self._keeper is None:
            return
        after = self.flood.known[0]
        told = zip(self.feeds, before.tolist(), after.tolist(), strict=False)
        segments = [one for feed, first, stop in told for one in feed.between(first, stop)]
        self._kept_own = int(after[0])
        if last:
            self._keeper.finish(segments, {feed.feed: feed.made for feed in self.feeds})
        else:
            self._keeper.take(segments)
        if self.run_is_organised:
            self.flood.known[0, -1] = self._keeper.decided
            self.replicas.use_bases(self._keeper.bases)
            self._pending = _joined(self._pending, self._corrections())

    def _measure(
        self, asked: Evaluate, before: Mapping[int, I64], after: Mapping[int, I64], named: Named
    ) -> EvaluationEnded:
        """Do what the organiser wants to know of an epoch, on the validation rows."""
        rows = line_rows(self._problem.task, self._problem.held_out["validation"])
        base = calibrated = found = result = None
        forwards = 0
        if asked.scored and not self._has_base:
            with self.replicas.holding({}):
                base = self._problem.evaluate_alone("validation", calibrated=False)
                forwards = base.count
                if self._problem.task.labelled:
                    calibrated = self._problem.evaluate_alone("validation", calibrated=True)
                    forwards += calibrated.count
            self._has_base = True
        with self.replicas.holding(before):
            line = self.replicas.line(difference(after, before))
            search = LineSearch(asked.rows, wary=is_wary(self._problem.manifest), scale=asked.scale)
            while wanted := search.wanted:
                tokenizer = self._problem.loaded.tokenizer
                batches = line_batches(self._problem.manifest, tokenizer, rows[wanted.start : wanted.stop])
                search.take(line.losses(batches, search.amounts))
                forwards += len(wanted) * len(search.amounts)
            if asked.rows:
                found = search.found
                self.searched.append(found)
            if asked.scored:
                with line.at(search.found.factor) as perturb:
                    result = self._problem.evaluate("validation", perturb)
                forwards += result.count
            shares, taken = self._shares(asked, difference(after, before), named, rows)
            forwards += taken
        self.example_forwards += forwards
        return EvaluationEnded(asked.epoch, result, base, calibrated, found, forwards, shares)

    def _shares(
        self, asked: Evaluate, step: Mapping[int, I64], named: Named, rows: Sequence[Row]
    ) -> tuple[Mapping[Feed, StepShare], int]:
        """Return what each feed has brought in an epoch that makes this step, and the example-forwards of
        measuring it."""
        if not asked.origins:
            return {}, 0
        manifest, tokenizer = self._problem.manifest, self._problem.loaded.tokenizer
        batches = batches_of(manifest.task, tokenizer, rows, asked.origins, asked.epoch)
        delta = manifest.training.scalar_delta
        found, taken = self.replicas.shares(step, list(named.values()), batches, delta)
        shares = dict(zip(named, found, strict=True))
        self.shares.append((asked.epoch, shares))
        return shares, taken

    def _make(self, cores: Mapping[int, I64]) -> bytes:
        """Make bases at the weights with these cores, keep them, and return their digest."""
        assert self._keeper
        assert self._kept_bases
        manifest, loaded = self._problem.manifest, self._problem.loaded
        key = self._keeper.decided.to_bytes(4, "big")
        with self.replicas.holding(cores):
            made = making_bases.make_on(loaded, manifest, self._problem.rows, "gradients", key)
        self.example_forwards += made.example_forwards
        return bytes.fromhex(bases.write(self._kept_bases, made.pairs))

    def _deliver(self, before: I64, after: I64) -> None:
        """Give clients what they did not have before, and settle what all have."""
        if self._pending.within(np.zeros_like(after[0]), after.min(0)).all():
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

    def updates(self) -> Mapping[str, int]:
        """Return how many updates honest and hostile clients have made, and how many of them count."""
        made = [feed.made for feed in self.feeds]
        counted = self._keeper.counted() if self.run_is_organised and self._keeper else {}
        count = [counted.get(feed.feed, 0) if counted else feed.made for feed in self.feeds]
        bound = self._hostile.start
        return {
            "honest_updates": sum(made[:bound]),
            "honest_counted": sum(count[:bound]),
            "hostile_updates": sum(made[bound:]),
            "hostile_counted": sum(count[bound:]),
        }

    def evaluate(self, which: str) -> Evaluation:
        """Measure the average of all clients' models on the `validation` or the `test` rows; of a run that is
        complete the model by its last seal."""
        self._give()
        if self._keeper and self._keeper.complete:
            with self.replicas.holding(self._keeper.sealed_cores()):
                return self._problem.evaluate(which)
        with self.replicas.averaged():
            return self._problem.evaluate(which)

    # -- restarts ----------------------------------------------------------------------------------

    def state(self) -> Mapping[str, Any]:
        """Return the updates, who has them, and what it has cost."""
        log = self._keeper.state() if self._keeper else b"-"
        return {
            "log": torch.frombuffer(bytearray(log), dtype=torch.uint8),
            "kept_own": self._kept_own,
            "feeds": [feed.state() for feed in self.feeds],
            "known": torch.from_numpy(self.flood.known.copy()),
            "sent": [(*edge, size) for edge, size in self.traffic.sent.items()],
            "example_forwards": self.example_forwards,
            "bases": self._made_bases(),
            "search": (self._keeper and self._keeper.memory) or {},
            "guard": [
                (*key, torch.from_numpy(rows))
                for key, rows in (self._keeper.rows if self._keeper else {}).items()
            ],
            "has_base": self._has_base,
        }

    def _made_bases(self) -> dict[str, torch.Tensor]:
        """Return the files of all bases that were made, by name."""
        folder, made = self._kept_bases, self._keeper.bases[1:] if self._keeper else ()
        files = [bases.path_in(folder, one.digest.hex()) for one in made] if folder else []
        return {
            file.name: torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8) for file in files
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` has returned; nothing has been done yet."""
        for feed, kept in zip(self.feeds, state["feeds"], strict=True):
            feed.restore(kept)
        self.flood.known[:] = state["known"].numpy()
        self._kept_own = state["kept_own"]
        if self._keeper:
            self._has_base = state["has_base"]
            rows = {(epoch, base, measure): losses.numpy() for epoch, base, measure, losses in state["guard"]}
            self._keeper.restore(state["log"].numpy().tobytes(), state["search"], rows)
            for name, content in state["bases"].items():
                assert self._kept_bases
                (self._kept_bases / name).write_bytes(content.numpy().tobytes())
            self.replicas.use_bases(self._keeper.bases)
        for sender, receiver, size in state["sent"]:
            self.traffic.add((sender, receiver), size)
        self.example_forwards = state["example_forwards"]
        made = self._updates([(n, step) for n, feed in enumerate(self.feeds) for step in range(feed.made)])
        made = _joined(made, self._corrections())
        has = self._known()
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
