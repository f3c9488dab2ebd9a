"""A cell: the description of one simulated training run of one method.

Two cells with equal fields have equal results. So the name of a cell is the hash of its fields, and a study
is a list of cells. The place where a cell runs (device, threads, folder) is not part of it. The docstring of
a field is also the help of its option.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Literal

from pydantic import ConfigDict, Field

from sfnode.manifest.sections import Section
from sfnode.manifest.training import MAX_GROUP

Topology = Literal["ring", "grid", "random", "complete", "changing"]


Attack = Literal["random", "flip", "scale", "noise", "target", "turncoat", "constant", "lazy", "absent"]
"""Scalars of hostile clients. `random`: the measured absolute value with a random sign. `flip`: the opposite
sign. `turncoat`: the opposite sign in the second half of the client's updates. `noise`, `scale`: the largest
scalar, with a random or with the opposite sign. `constant`: the first scalar, repeated. `lazy`: every fourth
scalar, repeated. `target`: measured on rows that all have the label of one class. `absent`: no scalars, for
comparison."""


class CellSection(Section):
    """Fields of a cell. Newer fields are left out of the JSON at their defaults, so that older results keep
    their names."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Problem(CellSection):
    """Model and data that all clients share."""

    model: str = "builtin:tiny"
    """Base model, as `sfnode init --model` takes it."""
    task: str = "reviews"
    """Ready-made task (docs/tasks.md)."""
    train: str = ""
    """Source of the training rows, instead of the task's own."""
    test: str = ""
    """Source of the test rows, instead of the task's own."""
    objective: Literal["plain", "centred"] = Field(default="plain", exclude_if="plain".__eq__)
    """The loss. `centred` has balanced mini-batches, and compares scores less their means."""
    rows: int = Field(default=1024, ge=1)
    """Number of training rows of all clients together."""
    min_words: int = Field(default=0, ge=0)
    """Minimum number of words of a training row."""
    validation_rows: int = Field(default=500, ge=0)
    """Number of rows of the training data for validation. No client trains on them."""
    test_rows: int = Field(default=1000, ge=0)
    """Number of test rows; 0: all."""
    dirichlet: float = Field(default=0.0, ge=0)
    """Dirichlet concentration of the classes in the clients' shards; 0: classes are distributed evenly."""
    bases: str = Field(default="", exclude_if="".__eq__)
    """File with SeedFlood's published bases, DIGEST.bases; empty: random bases."""


class CellNetwork(CellSection):
    """Links between clients, and their faults. Shares are probabilities in a round."""

    topology: Topology = "ring"
    """Links between clients. With `changing` every round has new ones (baselines only)."""
    clients: int = Field(default=16, ge=1, le=4096)
    """Number of virtual clients."""
    hops: int = Field(default=0, ge=0)
    """Number of links that an update travels in a round; 0: as many as needed to reach all clients."""
    loss: float = Field(default=0.0, ge=0, lt=1)
    """Share of lost frames, which nodes repair. Baselines lose none."""
    churn: float = Field(default=0.0, ge=0, lt=1)
    """Share of clients that are absent in a round."""
    speeds: float = Field(default=1.0, ge=1)
    """Number of steps of the fastest client for each step of the slowest one."""
    hostile: float = Field(default=0.0, ge=0, le=1, exclude_if=(0.0).__eq__)
    """Share of SeedFlood's clients that are hostile although admitted: those with the highest numbers."""
    attack: Attack = Field(default="random", exclude_if="random".__eq__)
    """Attack of hostile clients (docs/experiments.md); `absent`: they do nothing, for comparison."""


class Cell(CellSection):
    """One training run to simulate. Rates are per update, as everywhere in sfnode."""

    method: str = "seedflood"
    """Training method: seedflood, or a baseline (docs/experiments.md)."""
    problem: Problem = Problem()
    network: CellNetwork = CellNetwork()
    seed: int = Field(default=0, ge=0, lt=1 << 32)
    """Seed of all random choices."""
    steps: int = Field(default=100, ge=1)
    """Number of local steps of each client."""
    local_steps: int = Field(default=5, ge=1)
    """Number of local steps between two rounds of communication."""
    batch_size: int = Field(default=4, ge=1)
    """Number of rows of a mini-batch."""
    group: int = Field(default=0, ge=0, le=MAX_GROUP, exclude_if=(0).__eq__)
    """Number of SeedFlood's updates that share a mini-batch and are all made in one local step
    (docs/how-it-works.md); 0: one update."""
    learning_rate: float = Field(default=6e-6, gt=0)
    """Learning rate per update. For methods that average clients: per local step."""
    epsilon: float = Field(default=1e-3, gt=0)
    """Distance of the points of a zeroth-order estimate from the weights."""
    rank: int = Field(default=32, ge=1)
    """Rank of SeedFlood's subspaces, or of the adapters of a method with LoRA."""
    refresh: int = Field(default=1000, ge=1)
    """Number of local steps between two subspaces."""
    evaluate_every: int = Field(default=0, ge=0)
    """Number of local steps between two evaluations on validation rows; 0: evaluate only at the end."""
    options: dict[str, float] = Field(default_factory=dict)
    """Numbers of this method alone, such as the share of entries that ChocoSGD sends."""

    @property
    def name(self) -> str:
        """Name of the cell and of its results: 16 hex digits, a hash of its fields."""
        fields = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(fields.encode(), digest_size=8, person=b"sfnode-cell").hexdigest()


@dataclass(frozen=True)
class Place:
    """Device and threads of a cell. They must not change the cell's results, except for the last bits of
    floats."""

    device: str = "cpu"
    threads: int = 1
    """torch's CPU threads."""
