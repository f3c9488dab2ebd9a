"""Loads the parts of a trainer: a device of this machine, the base model and a node's rows.

A model is checked once, when it is loaded. Its targets must allow a perturbation row by row, and a language
model must be causal. A model's modules do not show how its code treats rows, so the check is an experiment:
one of a few short sequences is perturbed, and the outputs for the others must not change. This is done in two
batch shapes, because in one of them the number of rows that a layer sees may equal another number by
accident.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sfnode.engine import forward
from sfnode.engine.forward import Batch
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.models import loader
from sfnode.models.loader import LoadedModel
from sfnode.models.perturbation import Directions, Perturbation
from sfnode.models.targets import Form
from sfnode.tasks import dataset
from sfnode.tasks.public_files import Places


def load_model(
    manifest: Manifest, override: Path | None, device: torch.device, dtype: str
) -> loader.LoadedModel:
    """Load the manifest's base model and check that all targets can be perturbed.

    Raises UserError as `models.loader.load` does.
    """
    loaded = loader.load(manifest, override=override, device=device, dtype=dtype)
    problem = loader.with_user_errors(loaded.folder, lambda: target_problem(loaded))
    if problem:
        raise loader.unsupported(loaded.folder, problem)
    return loaded


def training_rows(
    manifest: Manifest,
    override: Path | None,
    shard: tuple[int, int] | None,
    places: Places,
    *,
    skip_bad: bool = False,
) -> tuple[list[dataset.Row], list[dataset.Row] | None]:
    """Return the rows that this node draws its mini-batches from, and the run's public training rows. These
    are None if they were not read."""
    if override is None:
        public = rows = dataset.training_rows(manifest.data, manifest.task, places)
    else:
        public = None
        least = manifest.data.train_min_words
        rows = dataset.own_rows(str(override), manifest.task, min_words=least, skip_bad=skip_bad)
    return dataset.shard(rows, *shard) if shard else rows, public


SHAPES = ((2, 3), (3, 5))
"""Numbers of sequences and of tokens in each check. A layer may see a row per sequence, token, position or
distance (DeBERTa sees two rows for each position). In at most one of these shapes the numbers of such rows
coincide."""

PREDICTED = 16
"""Number of tokens whose log-probabilities are compared to find out whether a model is causal. The
log-probability of a single token may agree by accident."""

DISTANCE = 0.05
"""Size of the first sequence's perturbation, large enough to show in half precision."""

TOLERANCE = 0.02
"""Maximum relative difference of log-probabilities that rounding alone may cause."""


def target_problem(loaded: LoadedModel) -> str | None:
    """Return why the model cannot be trained, or None if it can."""
    with torch.inference_mode():
        reasons = (_mixing(loaded, *shape) for shape in SHAPES)
        return next((reason for reason in reasons if reason), None) or _non_causal(loaded)


def _mixing(loaded: LoadedModel, sequences: int, tokens: int) -> str | None:
    """Return the reason why the targets cannot be perturbed sequence by sequence, in a batch of this
    shape."""
    this = _sequences(loaded, sequences, tokens)
    still = forward.log_probs(loaded, this, None)
    loaded.perturber.seen.clear()
    try:
        perturbed = forward.log_probs(loaded, this, _perturbation(loaded, this, range(len(loaded.sites))))
    except UserError as error:  # a target saw an unknown number of rows
        return error.what
    idle = _unseen(loaded)
    if idle:
        return f"{idle} is never called as a layer"
    if not _same(perturbed[1:], still[1:]):
        return f"{_culprit(loaded, this, still)} does not keep the rows of a batch apart"
    return None


def _sequences(loaded: LoadedModel, sequences: int, tokens: int) -> forward.Pass:
    """Return a pass of this many sequences, each with a target at its last position."""
    every = np.arange(sequences)
    ids = np.arange(sequences * tokens).reshape(sequences, tokens) % _vocabulary(loaded)
    columns = np.zeros_like(every) if loaded.classifies else np.full_like(every, tokens - 1)
    batch = Batch(ids, np.ones_like(ids), np.zeros_like(ids), every, columns, np.zeros_like(every))
    return forward.take(loaded, batch, every, every)


def _vocabulary(loaded: LoadedModel) -> int:
    """Return the size of the vocabulary. A model that also sees images has a separate configuration for
    text."""
    return int(loaded.model.config.get_text_config(decoder=True).vocab_size)


def _non_causal(loaded: LoadedModel) -> str | None:
    """Return, in words, the fault of a language model that sees the tokens it must predict, as an encoder
    does; None for any other model."""
    if loaded.classifies:
        return None
    _, tokens = SHAPES[0]
    ids = np.arange(tokens)[None].repeat(2, 0) % _vocabulary(loaded)
    ids[1, -1] = (ids[1, -1] + 1) % _vocabulary(loaded)
    rows = np.arange(2).repeat(PREDICTED)
    targets = np.arange(2 * PREDICTED) % PREDICTED % _vocabulary(loaded)
    batch = Batch(ids, np.ones_like(ids), np.zeros_like(ids), rows, np.zeros_like(rows), targets)
    this = forward.take(loaded, batch, np.arange(2), np.arange(len(targets)))
    first, second = forward.log_probs(loaded, this, None).chunk(2)  # both after the same token
    return None if _same(first, second) else "it reads both ways: what it predicts depends on what follows"


def _perturbation(loaded: LoadedModel, this: forward.Pass, numbers: range) -> Perturbation:
    """Return a perturbation of the first sequence alone, in these targets, along directions of ones."""
    sequences, tokens = this.input_ids.shape
    by = torch.zeros(sequences, 1, dtype=loaded.dtype, device=loaded.device)
    by[0] = DISTANCE
    directions = Directions(
        tuple(
            by.new_full((1, s.target.out_features), float(n in numbers)) for n, s in enumerate(loaded.sites)
        ),
        tuple(by.new_ones((s.target.in_features, 1)) for s in loaded.sites),
        live=0,
    )
    return Perturbation(directions, by.repeat_interleave(tokens, 0), by, by[this.rows])


def _unseen(loaded: LoadedModel) -> str | None:
    """Return the name of a target that no pass has reached; None if all were reached."""
    sites = enumerate(loaded.sites)
    names = (s.target.name for n, s in sites if s.form is not Form.VECTOR and n not in loaded.perturber.seen)
    return next(names, None)


def _culprit(loaded: LoadedModel, this: forward.Pass, still: Tensor) -> str:
    """Return the name of the first target whose perturbation for the first sequence changes the output for
    another sequence, too."""
    for number, site in enumerate(loaded.sites):
        perturbed = forward.log_probs(loaded, this, _perturbation(loaded, this, range(number, number + 1)))
        if not _same(perturbed[1:], still[1:]):
            return site.target.name
    return "the model"


def _same(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE)


def usable_device(name: str) -> torch.device:
    """Return the device with this name. Raises UserError DEVICE if a trial computation on it fails."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).add_(1).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            Code.DEVICE,
            f"the device {name!r} cannot be used here: {reason}",
            "Use --device cpu, or install a torch build that supports the device.",
        ) from error
    return device


def give_back(device: torch.device) -> None:
    """Return the memory that torch has reserved on a device to the system."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def no_room(device: torch.device) -> UserError:
    """Return the error of a model that no longer fits its device."""
    return UserError(
        Code.OUT_OF_MEMORY,
        f"there is no room for the model on {str(device)!r} any more",
        "See what else uses its memory. A node that was to go on after a pause tries again by itself.",
    )
