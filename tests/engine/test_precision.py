"""Any precision: what is measured is right within it; what is shared and exported does not depend on it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from sfnode.engine.core import Core, UpdateBatch
from sfnode.engine.estimator import Estimate, estimates, quantise
from sfnode.engine.export import export_model
from sfnode.engine.merging import MergedWeights
from sfnode.engine.trainer import Trainer
from sfnode.manifest import Manifest
from sfnode.models import loader
from sfnode.tasks.encoding import Encoded, encode
from sfprotocol.seeds import I64, update_seeds
from tests.engine.helpers import (
    ROWS,
    data_file,
    held_weights,
    in_float64,
    model_folder,
    part,
    trainer,
    updates,
)
from tests.engine.helpers import manifest as described

manifest = partial(described, name="engine-2")

DTYPES = ("float32", "bfloat16", "float16", "int8")
CLUMSY = ("bfloat16", "float16", "int8")
"""Those in which an update is less than the rounding of a weight."""

SEEDS = update_seeds(3, 0, 16).tolist()

ROUNDINGS = 16
"""By how many units in the last place of 1.0, times the loss, the difference of two losses may be off, in any
precision; measured: at most 9 in float32 and 2.5 in half precision."""


def batches(run: Trainer) -> list[Encoded]:
    """One for each of the SEEDS."""
    rows = [ROWS[:3], ROWS[3:4], ROWS[1:], ROWS]
    return [encode(run.manifest.task, run.loaded.tokenizer, rows[n % 4]) for n in range(len(SEEDS))]


def measure(run: Trainer, epsilon: float, epoch: int = 0) -> list[Estimate]:
    return estimates(run.loaded, run.space.directions(SEEDS, epoch), batches(run), epsilon)


def alphas(found: list[Estimate]) -> Any:
    return np.array([estimate.alpha for estimate in found])


def rounded(epsilon: float, run: Trainer) -> float:
    return float(torch.tensor(epsilon, dtype=run.loaded.dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["opt", "llama", "bert"])
def test_a_scalar_is_that_of_float64_within_a_few_roundings_of_the_loss(family: str, dtype: str) -> None:
    run = trainer(manifest(family), dtype=dtype)
    unit, wide = torch.finfo(run.loaded.dtype).eps, in_float64(run)
    for epsilon in (1e-3, 1e-2):
        for one, other in zip(measure(run, epsilon), measure(wide, rounded(epsilon, run)), strict=True):
            assert one.alpha == pytest.approx(other.alpha, abs=ROUNDINGS * unit * other.loss / (2 * epsilon))
            assert one.loss == pytest.approx(other.loss, abs=ROUNDINGS * unit)


SHARES = {torch.float32: 1e-4, torch.float16: 0.02, torch.bfloat16: 0.15}
"""Shares of what is measured that are rounding, keyed by the dtype that layers compute in."""


@pytest.mark.parametrize("dtype", ["float32", "int8", "float16", "bfloat16"])
def test_rounding_is_a_small_part_of_what_is_measured_at_a_suitable_epsilon(dtype: str) -> None:
    run = trainer(manifest("opt"), dtype=dtype)
    share = SHARES[run.loaded.dtype]  # int8 computes in bfloat16 on an accelerator
    found, exact = alphas(measure(run, 1e-2)), alphas(measure(in_float64(run), rounded(1e-2, run)))
    assert np.sqrt(np.mean((found - exact) ** 2)) < share * np.sqrt(np.mean(exact**2))


def test_epsilon_is_that_which_half_precision_can_hold() -> None:
    run = trainer(manifest("opt"), dtype="bfloat16")
    epsilon = 0.02057  # halfway between two numbers 0.6 % apart
    held = rounded(epsilon, run)
    assert abs(held / epsilon - 1) > 0.002
    assert measure(run, epsilon) == measure(run, held)


def test_a_loss_of_half_precision_is_reduced_in_float32() -> None:
    run, epsilon = trainer(manifest("opt"), dtype="bfloat16"), 2.0**-7
    differences = alphas(measure(run, epsilon)) * 2 * epsilon
    steps = differences * 2**12  # a difference of bfloat16 numbers from 1/16 on is a whole number of these
    assert np.abs(steps - np.round(steps)).max() > 0.01


@dataclass(frozen=True)
class Drowned(Encoded):
    """The first example has a huge loss."""

    def losses(self, log_probs: torch.Tensor) -> torch.Tensor:
        return super().losses(log_probs).index_fill(0, torch.tensor([0]), 2.0**26)


def test_losses_are_subtracted_example_by_example() -> None:
    run = trainer(manifest("opt"))
    directions = run.space.directions(SEEDS[:1], 0)
    whole = encode(run.manifest.task, run.loaded.tokenizer, ROWS[:2])
    alone = encode(run.manifest.task, run.loaded.tokenizer, ROWS[1:2])
    (drowned,) = estimates(run.loaded, directions, [Drowned(**vars(whole))], 1e-2)
    (second,) = estimates(run.loaded, directions, [alone], 1e-2)
    assert drowned.alpha == pytest.approx(second.alpha / 2, rel=1e-3)


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "phi", "modernbert"])
def test_tables_that_are_no_weights_are_not_rounded(family: str) -> None:
    """At position 500 a rotary frequency in bfloat16 would be off by up to a radian."""
    exact = dict(trainer(manifest(family)).loaded.model.named_buffers())
    for dtype in ("bfloat16", "int8"):
        run = trainer(manifest(family), dtype=dtype)
        rotary = {name: held for name, held in run.loaded.model.named_buffers() if name.endswith("inv_freq")}
        assert rotary
        assert all(torch.equal(held, exact[name]) for name, held in rotary.items())


def follower(run: Manifest, dtype: str) -> Trainer:
    """Whose budgets always allow everything."""
    made = trainer(run, dtype=dtype)
    made.weights = MergedWeights(made.loaded, made.space, made.core, made.scale, lambda: 0.0)
    return made


def take_in(run: Trainer, batch: UpdateBatch, epoch: int = 0) -> None:
    """Hear of these updates before a step in `epoch`."""
    run.apply(batch)
    run.weights.follow(epoch)


def by_hand(run: Trainer, cores: list[dict[int, I64]], exact: Trainer | None = None) -> Trainer:
    """The same run in float64, where target n is its base minus the terms of cores[n], by epoch. It takes
    the place of `exact`, if given."""
    exact = exact or in_float64(run)
    for number, (site, terms) in enumerate(zip(exact.loaded.sites, cores, strict=True)):
        weight = run.loaded.base_weights.read(number).double()
        for epoch, core in terms.items():
            u, v = (side.cpu().double() for side in run.space.basis.matrices(epoch, number))
            scale = run.scale(epoch) * run.space.unit(number)
            weight = weight - scale * (u @ torch.from_numpy(core[number].copy()).double() @ v.t())
        loader.matrix(site).copy_(weight)
    return exact


def core_of(run: Trainer, *heard: UpdateBatch) -> dict[int, I64]:
    core = Core(len(run.loaded.sites), run.manifest.training.rank)
    for batch in heard:
        core.add(batch)
    return {epoch: core.of(epoch) for epoch in core.epochs()}


def losses(run: Trainer, epoch: int = 0) -> Any:
    return np.array([estimate.loss for estimate in measure(run, 1e-2, epoch)])


STRONG: dict[str, Any] = {"learning_rate": 5e-3}
"""So that an update matters more than half precision's rounding."""


@pytest.mark.parametrize("dtype", CLUMSY)
@pytest.mark.parametrize("family", ["opt", "gpt2"])
def test_updates_since_the_last_rebuild_are_in_the_live_core(family: str, dtype: str) -> None:
    run, first, later = follower(manifest(family, **STRONG), dtype), updates(6), updates(9, key=3)
    take_in(run, first)
    held = held_weights(run)
    for n in range(9):
        take_in(run, part(later, slice(n, n + 1)))
    assert all(torch.equal(*pair) for pair in zip(held, held_weights(run), strict=True))
    exact = by_hand(run, [core_of(run, first, later)] * len(run.loaded.sites))
    before = by_hand(run, [core_of(run, first)] * len(run.loaded.sites))
    np.testing.assert_allclose(losses(run), losses(exact), atol=0.02)
    assert np.abs(losses(before) - losses(exact)).max() > 0.1  # else that would say nothing


@pytest.mark.parametrize("dtype", CLUMSY)
def test_a_stranger_who_names_the_last_epoch_hides_no_update_of_the_epoch_in_training(dtype: str) -> None:
    run, mine, later = follower(manifest("opt", **STRONG), dtype), updates(6), updates(9, key=3)
    take_in(run, mine)
    take_in(run, updates(1, (9,), key=5)._replace(scalars=np.ones(1, np.int64)))
    for n in range(9):
        take_in(run, part(later, slice(n, n + 1)))
    count = len(run.loaded.sites)
    exact, before = (by_hand(run, [core_of(run, *heard)] * count) for heard in ([mine, later], [mine]))
    np.testing.assert_allclose(losses(run), losses(exact), atol=0.02)
    assert np.abs(losses(before) - losses(exact)).max() > 0.1  # else that would say nothing


def test_while_targets_wait_for_their_rebuild_each_lacks_only_the_new_epoch() -> None:
    run = follower(manifest("opt", **STRONG), "bfloat16")
    old, more, new = updates(6), updates(6, key=5), updates(24, (1,), key=7)
    take_in(run, old)
    take_in(run, more)
    run.apply(new)
    count, exact = len(run.loaded.sites), in_float64(run)
    for done in range(count + 1):
        cores = [core_of(run, old, more, *[new] * (n < done)) for n in range(count)]
        exact = by_hand(run, cores, exact)
        np.testing.assert_allclose(losses(run), losses(exact), atol=0.03)
        run.weights.follow(1)
    assert np.abs(losses(by_hand(run, [core_of(run, old, more)] * count)) - losses(exact)).max() > 0.1


@pytest.mark.parametrize("dtype", CLUMSY)
def test_a_rebuild_leaves_the_live_core_empty(dtype: str) -> None:
    run, batch = follower(manifest("opt", **STRONG), dtype), updates(20, (0, 1, 0))
    for n in range(20):
        take_in(run, part(batch, slice(n, n + 1)))
    run.weights.rebuild()
    other = follower(manifest("opt", **STRONG), dtype)
    other.apply(batch)
    other.weights.rebuild()
    assert measure(run, 1e-2) == measure(other, 1e-2)


def exported(run: Manifest, batch: UpdateBatch, out: Path, **options: Any) -> dict[str, torch.Tensor]:
    """What `sfnode export` writes of a run with these updates."""
    fresh = trainer(run, dtype=loader.STORED, **options)
    fresh.apply(batch)
    export_model(fresh, out)
    return load_file(out / "model.safetensors")


def test_nodes_of_different_precision_that_heard_the_same_export_the_same_files(tmp_path: Path) -> None:
    described, batch, found = manifest("llama", learning_rate=1e-3), updates(60, (0, 0, 1)), []
    digests = set()
    for shift, dtype in enumerate(DTYPES):  # each hears them in another order
        heard = part(batch, np.roll(np.arange(60), 13 * shift))
        node = trainer(described, dtype=dtype)
        for n in range(0, 60, 20):
            take_in(node, part(heard, slice(n, n + 20)))
        digests.add(node.core.digest())
        exported(described, heard, tmp_path / dtype)
        found.append((tmp_path / dtype / "model.safetensors").read_bytes())
    assert len(digests) == 1
    assert len(set(found)) == 1


def test_a_base_that_is_stored_in_bfloat16_is_exported_in_bfloat16(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(model_folder("opt"), tmp_path / "half"))
    tensors = load_file(folder / "model.safetensors")
    halves = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    save_file(halves, folder / "model.safetensors", {"format": "pt"})
    described = manifest("opt", learning_rate=1e-3)
    described = described.model_copy(update={"model": loader.describe(str(folder), "")})
    batch = updates(60)
    found = exported(described, batch, tmp_path / "out", model_override=folder)
    node = trainer(described, model_override=folder, dtype="float32")
    node.apply(batch)
    node.weights.rebuild()
    assert {tensor.dtype for tensor in found.values()} == {torch.bfloat16}
    for site, weight in zip(node.loaded.sites, held_weights(node), strict=True):
        name = f"{site.target.name}.weight"
        assert torch.equal(found[name], weight.float().bfloat16().cpu())
        assert not torch.equal(found[name], halves[name])


def test_a_node_measures_with_the_epsilon_of_its_own_format(tmp_path: Path) -> None:
    """Also who recomputes what others have said."""
    run = manifest("opt", epsilon=1e-3, epsilons={"bfloat16": 0.0625}, scalar_delta=1e-3)
    rows, numbers = data_file(tmp_path), run.training
    for dtype, epsilon in (("float32", 1e-3), ("bfloat16", 0.0625), ("float16", 1e-3), ("int8", 1e-3)):
        with trainer(run, rows, dtype=dtype) as measured:

            def scalars(distance: float, measured: Trainer = measured) -> tuple[int, ...]:
                found = measured.estimate(SEEDS[:4], 0, distance)
                return tuple(quantise(one.alpha, numbers.scalar_delta, numbers.scalar_limit) for one in found)

            assert measured.step(SEEDS[:4], 0).scalars == scalars(epsilon)
            assert measured.recompute(SEEDS[:4], 0).scalars == scalars(epsilon) != scalars(0.25)
