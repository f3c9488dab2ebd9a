"""How members of a reward run are judged: measured gradients of a real model, simulated members.

    python -m benchmarks.reward_evidence run.toml [--data-dir FOLDER] [--keep FILE] [--seeds 100]

Answers are drawn to the mini-batches of some groups of updates, and to validation rows as for the worths that
an organiser signs; the gradients of their rewards in the run's dimensions are measured at the base model, or
at the last seal of a node's folder. Members' scalars are then slopes of such gradients along random signs
(bases of rank 1), judged by the policy that ships, with worths of other such gradients: SEEDS runs of each
kind, of which the table says how many honest members were revoked, how much of their work waits or never
counts, and how much of hostile work counts. `--keep` keeps the gradients, for other simulations: of several
files the first part of a run has the first one's, and so on.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfnode.cli import trained_model
from sfnode.engine import scalar_limit, slopes
from sfnode.engine.losses import line_rows
from sfnode.engine.reward_objective import Rewards
from sfnode.engine.trainer import Trainer
from sfnode.manifest import Manifest
from sfnode.manifest.training import Training
from sfnode.organising.evaluation.evidence import MembersEvidence
from sfnode.organising.evaluation.searching import ORIGIN_ROWS
from sfnode.tasks.encoding import Encoded
from sfprotocol.decisions import Worth
from tests.organising.evaluation.test_evidence import ATTACKS, Swarm, part

F64 = NDArray[np.float64]

RUNS = ((3, 1, 6), (9, 3, 3), (9, 3, 12), (30, 9, 12))
"""Members, hostile ones, and epochs in which each of them makes a group of updates."""


class Gradients(NamedTuple):
    """Gradients of the loss by the entries of cores, (.., dimensions) each."""

    groups: F64
    rows: F64


def measured(trainer: Trainer, groups: int) -> Gradients:
    """Return gradients of so many groups, and half as many of validation rows."""
    objective, epoch = trainer.objective, max(trainer.core.cores(), default=0)
    assert isinstance(objective, Rewards)
    trainer.rebuild(epoch)
    nothing = np.zeros((len(trainer.space.targets), 1, 1), np.int64)

    def gradient(batches: list[Encoded]) -> F64:
        scale = trainer.weights.scale
        found = slopes.measure(
            trainer.loaded, trainer.space, scale, {epoch: nothing}, batches, lambda: True, slopes.START
        )
        assert found
        return found.cores[epoch].mean(0).flatten()

    together = trainer.manifest.training.batch_updates
    seeds = scalar_limit.seeds_of(trainer, together * groups)[::together]
    of_groups = [gradient([objective.draw(trainer.mini_batch(seed), seed).encoded]) for seed in seeds]
    rows = line_rows(trainer.manifest.task, trainer.run_rows.held_out("validation").rows)
    of_rows = [gradient(objective.batches(rows, ORIGIN_ROWS, turn)) for turn in range(groups // 2)]
    return Gradients(np.array(of_groups), np.array(of_rows))


class Groups(Swarm):
    """Members who make a group of updates in each epoch."""

    def __init__(self, training: Training, members: int, hostile: int, attack: str, seed: int) -> None:
        super().__init__(members, 0.0, attack, seed)
        self.hostile, self.origins = hostile if attack else 0, MembersEvidence.of(training)
        self._updates = training.batch_updates

    def go(self, epochs: int, found: Sequence[Gradients]) -> Groups:
        for epoch in range(epochs):
            groups, rows = found[epoch * len(found) // epochs]
            shape = (len(self._rho), self._updates, groups.shape[1])
            signs = self._rng.choice([-1.0, 1.0], shape)
            told = np.einsum("mud,md->mu", signs, groups[self._rng.integers(len(groups), size=shape[0])])
            if self.hostile:
                told[: self.hostile] = ATTACKS[self._attack](told[: self.hostile], self._rng, self.epoch)
            products = told * (signs @ rows[self._rng.integers(len(rows))])
            parts = tuple(part(member, one) for member, one in enumerate(products))
            self.judge(Worth(self.epoch, ORIGIN_ROWS, parts))
        return self


def line(
    training: Training,
    members: int,
    hostile: int,
    epochs: int,
    attack: str,
    seeds: int,
    found: Sequence[Gradients],
) -> str:
    ran = [Groups(training, members, hostile, attack, seed).go(epochs, found) for seed in range(seeds)]
    revoked = [member >= one.hostile for one in ran for member in one.revoked()]
    honest = sum(members - one.hostile for one in ran)
    late, lost = (f"{np.mean([getattr(one, name) for one in ran]):.1%}" for name in ("late", "lost"))
    cells = [f"{members}, {epochs}", attack or "-", f"{revoked.count(True)} of {honest:,}", late, lost]
    if attack:
        counted = np.mean([one.counted_share for one in ran])
        cells += [f"{counted:.1%}", f"{revoked.count(False)} of {hostile * seeds}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--keep", type=Path, nargs="+", default=[Path("gradients.npz")])
    parser.add_argument("--seeds", type=int, default=100)
    given = parser.parse_args()
    manifest, (first, *_) = Manifest.from_toml(given.run), given.keep
    if not first.exists():
        began = time.monotonic()
        trainer, _ = scalar_limit.any_trainer(manifest, "cpu", "float32", given.run.parent)
        if given.data_dir:
            trainer.begin(trained_model.load(given.data_dir, None, "cpu", "auto").trainer.core.cores())
        np.savez(first, **measured(trainer, given.groups)._asdict())
        print(f"{given.groups} groups in {time.monotonic() - began:.0f} s")
    kept = [np.load(file) for file in given.keep]
    found = [Gradients(one["groups"], one["rows"]) for one in kept]
    for one in found:
        groups, rows = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in one)
        cosines = groups @ rows.T
        print(f"cosine of the gradients of a group and of rows: {cosines.mean():.2f}, sd {cosines.std():.2f}")
    print("| members, epochs | attack | honest revoked | waits | never counts | hostile counts | revoked |")
    print("|---" * 7 + "|")
    for members, hostile, epochs in RUNS:
        for attack in ("", "flip", "random"):
            print(line(manifest.training, members, hostile, epochs, attack, given.seeds, found), flush=True)


if __name__ == "__main__":
    main()
