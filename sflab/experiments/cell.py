"""A cell: one simulated training run of one method, and everything that its numbers follow from.

Two cells with equal fields have equal results, so that a cell's name is the hash of its fields and a study is
a list of cells. Where a cell runs (device, threads, folder) is not among them. What stands below a field is
also the help of its option. This module only describes.
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


# What hostile clients send: what they have measured with the sign of a coin (`random`), with the other sign
# (`flip`; `turncoat`: from half of their updates on), the largest scalar with either sign (`noise`, `scale`),
# their first scalar (`constant`) or every fourth (`lazy`) again and again, what they measure on rows that all
# have the label of one class (`target`); or nothing at all (`absent`), to compare with.
Attack = Literal["random", "flip", "scale", "noise", "target", "turncoat", "constant", "lazy", "absent"]


class CellSection(Section):
    """Fields of a cell; some are left out at their defaults, so that the names of older results hold."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Problem(CellSection):
    """The model and the data that clients share."""

    model: str = "builtin:tiny"
    """Base model, as `sfnode init --model` takes it."""
    task: str = "reviews"
    """Ready-made task (docs/tasks.md)."""
    train: str = ""
    """Source of the rows to train on, in place of the task's own."""
    test: str = ""
    """Source of the rows to test on, in place of the task's own."""
    objective: Literal["plain", "centred"] = Field(default="plain", exclude_if="plain".__eq__)
    """The loss: `centred` has balanced mini-batches, and compares scores less their means."""
    rows: int = Field(default=1024, ge=1)
    """Rows to train on, those of all clients together."""
    min_words: int = Field(default=0, ge=0)
    """Shorter rows are not trained on."""
    validation_rows: int = Field(default=500, ge=0)
    """Rows of the training data that validate; nobody trains on them."""
    test_rows: int = Field(default=1000, ge=0)
    """Rows to test on; 0: all that there are."""
    dirichlet: float = Field(default=0.0, ge=0)
    """Concentration of the classes in the clients' shards; 0: rows are dealt out evenly."""
    bases: str = Field(default="", exclude_if="".__eq__)
    """File with SeedFlood's published bases, DIGEST.bases; empty: they are random."""


class CellNetwork(CellSection):
    """Neighbours of each client, and what goes wrong between them. Shares are probabilities in a round."""

    topology: Topology = "ring"
    """Who is whose neighbour; `changing`: others in every round (baselines)."""
    clients: int = Field(default=16, ge=1, le=4096)
    """Virtual clients."""
    hops: int = Field(default=0, ge=0)
    """Links that an update travels in a round; 0: as many as it takes to reach all."""
    loss: float = Field(default=0.0, ge=0, lt=1)
    """Share of frames that are lost; nodes repair that. Baselines lose nothing."""
    churn: float = Field(default=0.0, ge=0, lt=1)
    """Share of clients that are away in a round."""
    speeds: float = Field(default=1.0, ge=1)
    """How many times as many steps as the slowest client the fastest one makes."""
    hostile: float = Field(default=0.0, ge=0, le=1, exclude_if=(0.0).__eq__)
    """Share of SeedFlood's clients, the last ones, that are admitted and harm."""
    attack: Attack = Field(default="random", exclude_if="random".__eq__)
    """What they do (docs/experiments.md); `absent`: nothing at all, to compare with."""


class Cell(CellSection):
    """One training run to simulate. Rates are per update, as everywhere in sfnode."""

    method: str = "seedflood"
    """How they train: seedflood, or a baseline (docs/experiments.md)."""
    problem: Problem = Problem()
    network: CellNetwork = CellNetwork()
    seed: int = Field(default=0, ge=0, lt=1 << 32)
    """All chance follows from it."""
    steps: int = Field(default=100, ge=1)
    """Local steps of a client."""
    local_steps: int = Field(default=5, ge=1)
    """Local steps between two rounds of communication."""
    batch_size: int = Field(default=4, ge=1)
    """Rows of a mini-batch."""
    group: int = Field(default=0, ge=0, le=MAX_GROUP, exclude_if=(0).__eq__)
    """SeedFlood's updates that share a mini-batch (docs/how-it-works.md): a local step then makes so many. 0:
    one."""
    learning_rate: float = Field(default=6e-6, gt=0)
    """Learning rate per update; of methods that average, per local step."""
    epsilon: float = Field(default=1e-3, gt=0)
    """Distance of the points of a zeroth-order estimate from the weights."""
    rank: int = Field(default=32, ge=1)
    """Rank of SeedFlood's subspaces, or of the adapters of a method with LoRA."""
    refresh: int = Field(default=1000, ge=1)
    """Local steps after which the subspace is a new one."""
    evaluate_every: int = Field(default=0, ge=0)
    """Local steps between two evaluations on validation rows; 0: only at the end."""
    options: dict[str, float] = Field(default_factory=dict)
    """Numbers that only this method has, such as the share of entries that ChocoSGD sends."""

    @property
    def name(self) -> str:
        """Name of the cell and of its results: 16 hex digits that follow from its fields."""
        fields = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.blake2b(fields.encode(), digest_size=8, person=b"sfnode-cell").hexdigest()


@dataclass(frozen=True)
class Place:
    """The place where a cell runs: its numbers should not depend on it, but for the last bits of floats."""

    device: str = "cpu"
    threads: int = 1
    """CPU threads of torch."""
