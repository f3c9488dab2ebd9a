"""Difference between two seals of a run: whose updates, and by how much each matrix has changed.

From cores and bases alone: neither the base model nor data are needed, and no matrix is made.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch

from sfnode.engine import drift, line
from sfnode.engine.basis import PublishedBasis, basis_of
from sfnode.engine.decay import Decay
from sfnode.engine.subspace import Subspace
from sfnode.engine.trainer import scale_of
from sfnode.node.time_travel import Past
from sfnode.organising.reporting.run_history import parts
from sfnode.schema.history import DiffResult, LayerChange


def diff(past: Past, before: int, after: int, bases: Path) -> DiffResult:
    """Return what has changed from one seal to another; `bases` is the folder with published ones.

    Raises UserError as `Past.checkout`, BASES_MISSING, BASES_UNUSABLE.
    """
    states = [past.result(before), past.result(after)]
    one, other = (past.cores(past.counted(epoch)) for epoch in (before, after))
    targets = past.manifest.model.parsed_targets()
    fade = Decay(past.manifest.training.decay).faded
    step = line.difference(fade(other), fade(one))
    norms = drift.norms(subspace_of(past, bases), scale_of(past.manifest), step)
    layers = [
        LayerChange(name=t.name, norm=norm, per_weight=norm / math.sqrt(t.out_features * t.in_features))
        for t, norm in zip(targets, norms, strict=True)
    ]
    more = past.by_origin(after)
    more.subtract(past.by_origin(before))
    seals = past.history.epochs()
    first, last = sorted(past.history.seals[epoch].position for epoch in (before, after))
    return DiffResult(
        before=states[0],
        after=states[1],
        evaluations=[e for e in (seals[before].evaluation, seals[after].evaluation) if e],
        origins=parts(more, past.names),
        norm=math.hypot(*norms),
        layers=layers,
        entries=[entry for entry in past.history.entries() if first < (entry.position or 0) <= last],
    )


def subspace_of(past: Past, bases: Path) -> Subspace:
    """Return the bases of a run by the decisions that are here, on a CPU."""
    cpu, numbers = torch.device("cpu"), past.manifest.training
    basis = basis_of(past.manifest, bases, cpu)
    if isinstance(basis, PublishedBasis):
        basis.follow(past.latest.bases)
    return Subspace(basis, past.manifest.model.parsed_targets(), numbers.rank, cpu)
