"""The model, the rows and the shards of a cell, as all methods share them.

Rows come from where a run of `sfnode init` with the same options would take them. Validation rows are set
apart from the training rows (SPEC R9); test rows have a source of their own. This module knows no methods.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from sflab.experiments.cell import Cell, Place, Problem
from sflab.simulator.world.keys import origin_of, signing_key
from sflab.simulator.world.runs import ORGANISER
from sfnode.engine import forward
from sfnode.engine.devices import usable_device
from sfnode.engine.loading import load_model
from sfnode.engine.losses import EVALUATION_BATCH
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.task import Task
from sfnode.models import bases
from sfnode.models.files import named_folder
from sfnode.models.loader import LoadedModel
from sfnode.preparing import manifest as manifests
from sfnode.schema.evaluation import Evaluation
from sfnode.tasks import dataset
from sfnode.tasks.calibration import CALIBRATION_ROWS, measure
from sfnode.tasks.dataset import Row
from sfnode.tasks.encoding import Encoded, Scored
from sfnode.tasks.public_files import typed
from sfprotocol.seeds import derive_key, stream

UNIT = 2.0**-53
"""Spacing of uniform numbers from 64 bits."""


@dataclass(frozen=True)
class LoadedProblem:
    """A cell's model and data, in memory. The model holds the base weights at first."""

    manifest: Manifest
    loaded: LoadedModel
    shards: tuple[Sequence[Row], ...]
    """Rows of each client."""
    held_out: Mapping[str, Sequence[Row]]
    """Rows by `test` and `validation`. No validation rows if the cell has none."""
    bases: Path | None = None
    """The folder with published bases, if the cell has some."""

    @property
    def task(self) -> Task:
        return self.manifest.task

    def score(self, encoded: Encoded, perturb: forward.Perturb | None = None) -> Scored:
        """Run the model as it is now, perturbed if `perturb` is given."""
        return forward.score_in_passes(self.loaded, encoded, perturb)

    @cached_property
    def rows(self) -> list[Row]:
        """The training rows of all clients."""
        return [row for shard in self.shards for row in shard]

    @cached_property
    def public(self) -> Sequence[Row]:
        """Rows by which models are calibrated, and which serve a shard of one class: of all clients."""
        return dataset.select(self.rows, CALIBRATION_ROWS)

    def evaluate(self, which: str, perturb: forward.Perturb | None = None) -> Evaluation:
        """Measure the model as it is now on these rows, of which there are some, as the task's loss asks;
        `perturb`: as for `score`."""
        tokenizer, rows, score = (
            self.loaded.tokenizer,
            self.held_out[which],
            partial(self.score, perturb=perturb),
        )
        return measure(self.task, tokenizer, rows, self.public, score, EVALUATION_BATCH)

    def evaluate_alone(self, which: str, *, calibrated: bool) -> Evaluation:
        """Measure it with or without its prior, whatever the loss."""
        loss: Literal["plain", "centred"] = "centred" if calibrated else "plain"
        task = self.task.model_copy(update={"loss": loss})
        tokenizer, rows = self.loaded.tokenizer, self.held_out[which]
        return measure(task, tokenizer, rows, self.public, self.score, EVALUATION_BATCH)


def load(cell: Cell, place: Place) -> LoadedProblem:
    """Load what a cell is about. Raises UserError BAD_OPTION, MODEL_*, DATA_*, BASES_* and DEVICE."""
    device = usable_device(place.device)
    torch.set_num_threads(place.threads)
    manifest = manifest_of(cell)
    data, task, places = manifest.data, manifest.task, typed(manifest.data)
    rows = dataset.training_rows(data, task, places)
    held_out: dict[str, Sequence[Row]] = {"test": dataset.held_out_rows(data, task, "test", places=places)}
    if data.withheld:
        held_out["validation"] = dataset.held_out_rows(data, task, "validation", places=places)
    return LoadedProblem(
        manifest,
        load_model(manifest, named_folder(cell.problem.model), device, "float32"),
        tuple([rows[row] for row in shard] for shard in shards(cell, labels_of(manifest.task, rows))),
        held_out,
        _bases(cell.problem, manifest),
    )


def _bases(problem: Problem, manifest: Manifest) -> Path | None:
    """Return the folder with a cell's published bases; they are found right when they are used."""
    if not problem.bases:
        return None
    file = Path(problem.bases)
    if file.name != (name := bases.path_in(file.parent, manifest.training.bases).name):
        raise UserError(
            Code.BASES_UNUSABLE, f"{file} has a name that is not its digest's", f"Rename it to {name}."
        )
    return file.parent


def manifest_of(cell: Cell) -> Manifest:
    """Return the manifest of the run that a cell simulates; its name is the cell's.

    Organised if option `organised` says so, with the key `organiser_key`. Raises UserError as
    `manifest.build`.
    """
    problem, network = cell.problem, cell.network
    a_step = math.ceil(network.clients * (1 + network.speeds) / 2) * max(1, cell.group)
    given: dict[str, Any] = {
        "name": f"simulated-{cell.name}",
        "model": problem.model,
        "preset": problem.task,
        "train_limit": problem.rows + problem.validation_rows,
        "train_min_words": problem.min_words,
        "validation_limit": problem.validation_rows,
        "test_limit": problem.test_rows,
        "rank": cell.rank,
        "epsilon": cell.epsilon,
        "learning_rate": cell.learning_rate,
        "schedule": "constant",
        "batch_size": cell.batch_size,
        "group": cell.group,
        "loss": problem.objective,
        "epoch_updates": a_step * cell.refresh,
        "update_budget": int(cell.options.get("budget", a_step * (cell.steps + cell.local_steps))),
        "scalar_bits": int(cell.options.get("scalar_bits", 16)),
        "scalar_delta": cell.options.get("scalar_delta", 1 / 64),
    }
    given["scalar_limit"] = int(cell.options.get("scalar_limit", (1 << (given["scalar_bits"] - 1)) - 1))
    if problem.bases:
        given |= {"basis": "published", "bases": bases.digest_of(Path(problem.bases))}
    given |= {key: value for key in ("train", "test") if (value := getattr(problem, key))}
    if cell.options.get("organised"):
        epochs = int(cell.options.get("subspace_epochs", 1))
        given["epoch_updates"] = max(1, given["epoch_updates"] // epochs)
        given |= {"organiser": origin_of(organiser_key(cell)).hex(), "subspace_epochs": epochs}
        given["quota"] = min(manifests.QUOTA_EPOCHS * given["epoch_updates"], 1 << 20)
    return manifests.build(given)


def organiser_key(cell: Cell) -> Ed25519PrivateKey:
    """Return the key of the organiser of a simulated run."""
    return signing_key(cell.seed, ORGANISER)


def _u64(number: int) -> bytes:
    return number.to_bytes(8, "big")


# -- shards ----------------------------------------------------------------------------------------------


def labels_of(task: Task, rows: Sequence[Row]) -> NDArray[np.int64]:
    """Return the class of each row, (rows,); 0 for all where a task has no classes."""
    classes = {label: number for number, label in enumerate(task.verbalizer)}
    return np.array([classes.get(str(row.get(task.label_field)), 0) for row in rows], np.int64)


def shards(cell: Cell, labels: NDArray[np.int64]) -> list[list[int]]:
    """Return the numbers of the rows of each client; every client has as many, up to one.

    IID: dealt out after a shuffle. With a `dirichlet` concentration each client draws the shares of its
    classes from a Dirichlet distribution around those of all rows, and its rows without replacement by these
    shares (Hsu et al. 2019). Raises UserError BAD_OPTION if there are fewer rows than a mini-batch for each.
    """
    clients, needed = cell.network.clients, cell.network.clients * cell.batch_size
    if len(labels) < needed:
        raise UserError(
            Code.BAD_OPTION,
            f"{len(labels)} rows cannot be dealt out to {clients} clients that take {cell.batch_size} a step",
            f"Take at least --rows {needed}, fewer --clients or a smaller --batch-size.",
        )
    draws = Draws(derive_key(b"sfnode shards", _u64(cell.seed)))
    order = draws.permutation(len(labels))
    if not cell.problem.dirichlet:
        return [order[client::clients].tolist() for client in range(clients)]
    return _by_classes(draws, order, labels, clients, cell.problem.dirichlet)


def _by_classes(
    draws: Draws, order: NDArray[np.int64], labels: NDArray[np.int64], clients: int, concentration: float
) -> list[list[int]]:
    left = [order[labels[order] == label].tolist() for label in range(int(labels.max()) + 1)]
    common = np.array([len(rows) for rows in left]) / len(labels)
    found: list[list[int]] = []
    for client in range(clients):
        wanted = np.array([draws.gamma(concentration * share) if share else 0.0 for share in common])
        rows: list[int] = []
        for _ in range(len(range(client, len(labels), clients))):
            open_shares = np.where([bool(rest) for rest in left], wanted, 0.0)
            if not open_shares.sum():  # its classes are used up: it takes what is left
                open_shares = np.array([float(len(rest)) for rest in left])
            bounds = np.cumsum(open_shares)
            label = int(np.searchsorted(bounds, draws.uniform() * bounds[-1], side="right"))
            rows.append(left[label].pop())
        found.append(rows)
    return found


class Draws:
    """Random numbers by counters (SPEC R2), one after another."""

    def __init__(self, key: int) -> None:
        self._key = key
        self._next = 0

    def uniform(self) -> float:
        """Return a number from 0 to 1, neither of them."""
        self._next += 1
        return (int(stream(self._key, self._next - 1, 1)[0] >> np.uint64(11)) + 0.5) * UNIT

    def permutation(self, count: int) -> NDArray[np.int64]:
        """Return the numbers below `count` in random order."""
        self._next += count
        order: NDArray[np.int64] = np.argsort(stream(self._key, self._next - count, count))
        return order

    def normal(self) -> float:
        """Return a standard normal number (Box and Muller 1958)."""
        return math.sqrt(-2 * math.log(self.uniform())) * math.cos(2 * math.pi * self.uniform())

    def gamma(self, shape: float) -> float:
        """Return a number of the gamma distribution with this shape and scale 1 (Marsaglia and Tsang
        2000)."""
        if shape < 1:
            # in logarithms: with a small shape the number is often below the least float
            power = math.log(self.uniform()) / shape
            return max(math.exp(max(math.log(self.gamma(shape + 1)) + power, -700.0)), 0.0)
        d = shape - 1 / 3
        while True:
            x = self.normal()
            v = (1 + x / math.sqrt(9 * d)) ** 3
            if v > 0 and math.log(self.uniform()) < x * x / 2 + d - d * v + d * math.log(v):
                return d * v
