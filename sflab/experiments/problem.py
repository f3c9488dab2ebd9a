"""The model, the rows, the shards and the network of a cell, for all methods.

Rows have the same sources as in `sfnode init` with the same options. Validation rows are taken out of the
training rows (SPEC R9). Test rows have their own source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from sflab.experiments.cell import Cell, CellNetwork, Place, Problem
from sflab.simulator.world.runs import ORGANISER, TOPOLOGIES, origin_of, signing_key
from sfnode.engine import forward
from sfnode.engine.loading import load_model, usable_device
from sfnode.engine.losses import EVALUATION_BATCH
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data
from sfnode.manifest.task import Task
from sfnode.models import bases
from sfnode.models.loader import LoadedModel
from sfnode.models.model_files import named_folder
from sfnode.preparing import manifest as manifests
from sfnode.schema.measurements import Evaluation
from sfnode.tasks import dataset
from sfnode.tasks.calibration import CALIBRATION_ROWS, measure
from sfnode.tasks.dataset import Row
from sfnode.tasks.encoding import Encoded, Scored
from sfnode.tasks.public_files import typed


@dataclass(frozen=True)
class LoadedProblem:
    """A cell's model and data, in memory. The model starts with the base weights."""

    manifest: Manifest
    loaded: LoadedModel
    shards: tuple[Sequence[Row], ...]
    """Rows of each client."""
    held_out: Mapping[str, Sequence[Row]]
    """Held-out rows under the keys `test` and, if the cell has some, `validation`."""
    bases: Path | None = None
    """Folder with published bases, if the cell uses some."""

    @property
    def task(self) -> Task:
        return self.manifest.task

    def score(self, encoded: Encoded) -> Scored:
        """Score a batch with the current weights."""
        return forward.score_in_passes(self.loaded, encoded)

    @cached_property
    def rows(self) -> list[Row]:
        """Training rows of all clients."""
        return [row for shard in self.shards for row in shard]

    @cached_property
    def public(self) -> Sequence[Row]:
        """Selection of all clients' training rows, with which models are calibrated. A shard that has only
        one class is completed with these rows."""
        return dataset.select(self.rows, CALIBRATION_ROWS)

    def evaluate(self, which: str) -> Evaluation:
        """Measure the current weights on the held-out rows `which`, with calibration if the task's loss is
        centred."""
        return self._measured(self.task, which)

    def evaluate_alone(self, which: str, *, calibrated: bool) -> Evaluation:
        """Measure the current weights on the held-out rows `which`, with calibration if `calibrated`,
        whatever the task's loss."""
        loss: Literal["plain", "centred"] = "centred" if calibrated else "plain"
        return self._measured(self.task.model_copy(update={"loss": loss}), which)

    def _measured(self, task: Task, which: str) -> Evaluation:
        rows = self.held_out[which]
        return measure(task, self.loaded.tokenizer, rows, self.public, self.score, EVALUATION_BATCH)


def load(cell: Cell, place: Place) -> LoadedProblem:
    """Load the model and the data of a cell. Raises UserError BAD_OPTION, MODEL_*, DATA_*, BASES_* and
    DEVICE."""
    device = usable_device(place.device)
    torch.set_num_threads(place.threads)
    manifest = manifest_of(cell)
    rows, held_out = _rows(manifest.data.model_dump_json(), manifest.task.model_dump_json())
    return LoadedProblem(
        manifest,
        load_model(manifest, named_folder(cell.problem.model), device, "float32"),
        tuple([rows[row] for row in shard] for shard in shards(cell, labels_of(manifest.task, rows))),
        held_out,
        _bases(cell.problem, manifest),
    )


@lru_cache(maxsize=4)
def _rows(written_data: str, written_task: str) -> tuple[list[Row], Mapping[str, Sequence[Row]]]:
    """Return the training rows and the held-out rows of a manifest with this data and this task, given as
    JSON. Each process reads them once, because most cells of a study have the same rows."""
    data, task = Data.model_validate_json(written_data), Task.model_validate_json(written_task)
    places = typed(data)
    held_out = {"test": dataset.held_out_rows(data, task, "test", places=places)}
    if data.withheld:
        held_out["validation"] = dataset.held_out_rows(data, task, "validation", places=places)
    return dataset.training_rows(data, task, places), held_out


def _bases(problem: Problem, manifest: Manifest) -> Path | None:
    """Return the folder with a cell's published bases. Their content is checked on use."""
    if not problem.bases:
        return None
    file = Path(problem.bases)
    if file.name != (name := bases.path_in(file.parent, manifest.training.bases).name):
        raise UserError(
            Code.BASES_UNUSABLE, f"{file} has a name that is not its digest's", f"Rename it to {name}."
        )
    return file.parent


def manifest_of(cell: Cell) -> Manifest:
    """Return the manifest of the simulated run, with the cell's name.

    With the option `organised`, the run is organised and its key is `organiser_key`. Raises UserError as
    `manifest.build` does.
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


# -- shards ----------------------------------------------------------------------------------------------


def labels_of(task: Task, rows: Sequence[Row]) -> NDArray[np.int64]:
    """Return the class of each row, (rows,); zeros for a task without classes."""
    classes = {label: number for number, label in enumerate(task.verbalizer)}
    return np.array([classes.get(str(row.get(task.label_field)), 0) for row in rows], np.int64)


def shards(cell: Cell, labels: NDArray[np.int64]) -> list[list[int]]:
    """Return the row numbers of each client. The sizes of two shards differ by at most one row.

    IID shards are dealt out after a shuffle. With a `dirichlet` concentration each client draws the shares of
    its classes from a Dirichlet distribution around the shares in all rows. Then it draws its rows with these
    shares, without replacement (Hsu et al. 2019). Raises UserError BAD_OPTION if a shard would be smaller
    than a mini-batch.
    """
    clients, needed = cell.network.clients, cell.network.clients * cell.batch_size
    if len(labels) < needed:
        raise UserError(
            Code.BAD_OPTION,
            f"{len(labels)} rows cannot be dealt out to {clients} clients that take {cell.batch_size} a step",
            f"Take at least --rows {needed}, fewer --clients or a smaller --batch-size.",
        )
    random, order = Random(f"{cell.seed}/shards"), list(range(len(labels)))
    random.shuffle(order)
    if not cell.problem.dirichlet:
        return [order[client::clients] for client in range(clients)]
    return _by_classes(random, order, labels, clients, cell.problem.dirichlet)


def _by_classes(
    random: Random, order: list[int], labels: NDArray[np.int64], clients: int, concentration: float
) -> list[list[int]]:
    classes = range(int(labels.max()) + 1)
    left = [[row for row in order if labels[row] == label] for label in classes]
    common = [len(rows) for rows in left]
    found: list[list[int]] = []
    for client in range(clients):
        shapes = [concentration * rows / len(labels) for rows in common]
        wanted = [random.gammavariate(shape, 1.0) if shape else 0.0 for shape in shapes]
        if not any(wanted):  # all underflowed: one class takes everything
            wanted[random.choices(classes, common)[0]] = 1.0
        rows: list[int] = []
        for _ in range(len(range(client, len(labels), clients))):
            shares = [share if rest else 0.0 for share, rest in zip(wanted, left, strict=True)]
            if not any(shares):  # the client's classes are used up: it takes any rows left
                shares = [float(len(rest)) for rest in left]
            rows.append(left[random.choices(classes, shares)[0]].pop())
        found.append(rows)
    return found


# -- the network, round by round ----------------------------------------------------------------


Pair = tuple[int, int]


class Conditions:
    """A cell's network, round by round."""

    def __init__(self, network: CellNetwork, seed: int) -> None:
        self.network = network
        self._seed = seed
        self._fixed = None if network.topology == "changing" else self._pairs(0)

    def links(self, number: int) -> list[Pair]:
        """Return the links of round `number`, including those of absent clients."""
        return self._pairs(number) if self._fixed is None else self._fixed

    def edges(self, number: int) -> list[Pair]:
        """Return the links of round `number` between present clients."""
        there = self.present(number)
        return [(a, b) for a, b in self.links(number) if there[a] and there[b]]

    def present(self, number: int) -> NDArray[np.bool_]:
        """Return whether each client is present in round `number`, (clients,)."""
        random = Random(f"{self._seed}/away/{number}")
        return np.array([random.random() >= self.network.churn for _ in range(self.network.clients)])

    def steps_by(self, number: int) -> NDArray[np.int64]:
        """Return the number of steps that each client makes, (clients,), during step `number` of the slowest
        client.

        Speeds are spaced evenly from the slowest to the fastest client.
        """
        speeds = np.linspace(1.0, self.network.speeds, self.network.clients)
        made: NDArray[np.int64] = np.floor((number + 1) * speeds).astype(np.int64)
        return made - np.floor(number * speeds).astype(np.int64)

    def _pairs(self, number: int) -> list[Pair]:
        clients, topology = self.network.clients, self.network.topology
        if topology == "complete":
            return list(combinations(range(clients), 2))
        names = [str(client) for client in range(clients)]
        draw = TOPOLOGIES["random" if topology == "changing" else topology]
        pairs = draw(names, Random(f"{self._seed}/{topology}/{number}"))
        found = {(min(a, b), max(a, b)): None for a, b in ((int(a), int(b)) for a, b in pairs)}
        return [pair for pair in found if pair[0] != pair[1]]
