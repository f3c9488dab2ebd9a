"""The trainer of a library and of a node: a model with its core, and what is asked of it as methods."""

from __future__ import annotations

from pathlib import Path

from sfnode.engine import drift, evaluation, export, line, making_bases, probe, slopes
from sfnode.engine.trainable_model import TrainableModel
from sfnode.manifest import Manifest


class Trainer(TrainableModel):
    """Trains a model without any network. Use `load` to make one from a manifest, and `close` or a `with`
    block to end its threads."""

    evaluate = evaluation.evaluate
    evaluate_base = evaluation.evaluate_base
    evaluate_towards = evaluation.evaluate_towards
    pass_at = evaluation.pass_at
    prior = evaluation.prior
    named_prior = evaluation.named_prior
    base_prior = evaluation.base_prior
    answer = evaluation.answer
    generate = evaluation.generate
    read_test_rows = evaluation.read_test_rows
    search = line.search
    shares = slopes.shares_towards
    baselines = probe.baselines
    probe = probe.probe
    drift = drift.drift
    make_bases = making_bases.make_bases
    export = export.export

    def like(self, manifest: Manifest, bases: Path | None) -> Trainer:
        """Return a trainer on the same model and rows for a manifest with other numbers, or bases."""
        return Trainer(manifest, self.loaded, self.rows, bases=bases, places=self.run_rows.places)
