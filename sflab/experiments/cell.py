"""A cell: one simulated training run of one method, and everything that its numbers follow from.

Two cells with equal fields have equal results, so that a cell's name is the hash of its fields and a study is
a list of cells. Where a cell runs (device, threads, folder) is not among them. This module only describes.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from sfnode.manifest.sections import Section
from sfnode.manifest.training import MAX_GROUP

Topology = Literal["ring", "grid", "random", "complete", "changing"]


Attack = Literal["random", "flip", "scale", "noise", "target", "turncoat", "constant", "lazy", "absent"]


class Problem(Section):
    """The model and the data that clients share."""

    model: str = "builtin:tiny"
    """Base model, as `sfnode init --model` takes it."""
    task: str = "reviews"
    """Name of a preset (`sfnode.tasks.presets`)."""
    train: str = ""
    """Source of the rows to train on, in place of the preset's."""
    test: str = ""
    """The same for the rows to test on."""
    objective: Literal["plain", "centred"] = Field(default="plain", exclude_if="plain".__eq__)
    """The task's loss (SPEC T5). Left out where it is plain, so that the names of older results hold."""
    rows: int = Field(default=1024, ge=1)
    """Rows to train on, those of all clients together."""
    min_words: int = Field(default=0, ge=0)
    """Shorter rows are not trained on."""
    validation_rows: int = Field(default=500, ge=0)
    """Rows by which learning rates are chosen; nobody trains on them."""
    test_rows: int = Field(default=1000, ge=0)
    """0: all that there are."""
    dirichlet: float = Field(default=0.0, ge=0)
    """Concentration of the classes in the clients' shards (Hsu et al. 2019); 0: rows are dealt out evenly."""
    bases: str = Field(default="", exclude_if="".__eq__)
    """File with SeedFlood's published bases, named by their digest; empty: they are random. Left out then, so
    that the names of older results hold."""


class CellNetwork(Section):
    """Neighbours of each client, and what goes wrong between them. Shares are probabilities in a round."""

    topology: Topology = "ring"
    clients: int = Field(default=16, ge=1, le=4096)
    hops: int = Field(default=0, ge=0)
    """Links that an update travels in one round of communication; 0: as many as it takes to reach all."""
    loss: float = Field(default=0.0, ge=0, lt=1)
    """Share of frames that are lost on a link between SeedFlood's nodes, which repair it."""
    churn: float = Field(default=0.0, ge=0, lt=1)
    """Share of clients that are away in a round: they neither train nor communicate."""
    speeds: float = Field(default=1.0, ge=1)
    """Steps of the fastest client for each step of the slowest one."""
    hostile: float = Field(default=0.0, ge=0, le=1, exclude_if=(0.0).__eq__)
    """Share of the clients, the last ones, that harm. Left out where there are none, so that the names of
    older results hold; as is `attack`."""
    attack: Attack = Field(default="random", exclude_if="random".__eq__)
    """Behaviour of these: they send what they have measured with the sign of a coin (`random`), with the
    other sign (`flip`; `turncoat`: from half of their updates on), the largest scalar with either sign
    (`noise`, `scale`), their first scalar (`constant`) or every fourth (`lazy`) again and again, what they
    measure on rows that all have the label of one class (`target`); or nothing at all (`absent`), to compare
    with."""


class Cell(Section):
    """One training run to simulate. Rates are per update, as everywhere in sfnode."""

    method: str = "seedflood"
    """Name in `sflab.experiments.runner`."""
    problem: Problem = Problem()
    network: CellNetwork = CellNetwork()
    seed: int = Field(default=0, ge=0, lt=1 << 32)
    """All chance follows from it: shards, mini-batches, directions, topologies, losses."""
    steps: int = Field(default=100, ge=1)
    """Local steps of a client (of the slowest one, where speeds differ)."""
    local_steps: int = Field(default=5, ge=1)
    """Local steps between two rounds of communication."""
    batch_size: int = Field(default=4, ge=1)
    group: int = Field(default=0, ge=0, le=MAX_GROUP, exclude_if=(0).__eq__)
    """SeedFlood's updates that share a mini-batch (SPEC U2): a local step then makes so many; 0: pairs. Left
    out then, so that the names of older results hold."""
    learning_rate: float = Field(default=6e-6, gt=0)
    epsilon: float = Field(default=1e-3, gt=0)
    rank: int = Field(default=32, ge=1)
    """Rank of the subspaces of SeedFlood, or of the adapters of a method with LoRA."""
    refresh: int = Field(default=1000, ge=1)
    """Local steps of a client after which the subspace is a new one."""
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
