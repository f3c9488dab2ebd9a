"""Weights follow the core: by small merges in between, exactly by a rebuild, in a bounded share of time."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import psutil
import pytest
import torch
from numpy.typing import NDArray

from sfnode.engine import merging
from sfnode.engine.core import UpdateBatch
from sfnode.engine.merging import MERGE_REST, MergedWeights
from sfnode.engine.trainer import Trainer
from sfnode.models import quantized
from sfnode.models.loader import matrix
from sfprotocol.seeds import basis_signs
from tests.engine.helpers import live, manifest, part, same, trainer, updates, weights

EPOCHS = (0, 0, 1, 3, 1)
"""Late updates of old epochs come between those of new ones."""


class Clock:
    """Stands still but while weights are merged: then `cost` seconds pass for every layer and epoch."""

    def __init__(self, run: Trainer) -> None:
        self.now = 0.0
        self.cost = 0.0
        self._run = run

    def __call__(self) -> float:
        return self.now

    def scale(self, epoch: int) -> float:
        """The trainer's scale; a merge asks for it once per layer and epoch."""
        self.now += self.cost
        return self._run.scale(epoch)


class Busy:
    """A clock of its own: each look takes 12 ms, and steps let time pass."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 0.012
        return self.now


def live_trainer(family: str) -> tuple[Trainer, Clock]:
    """Its learning rate falls from epoch to epoch, and is large enough to see in fp32."""
    run = trainer(manifest(family, schedule="linear", learning_rate=1e-3))
    clock = Clock(run)
    run.weights = MergedWeights(run.loaded, run.space, run.core, clock.scale, clock)
    return run, clock


def feed(run: Trainer, batches: Sequence[UpdateBatch], *, follow: bool) -> None:
    for batch in batches:
        run.apply(batch)
        if follow:
            run.weights.follow(int(batch.epochs.max()))


def written_weights(run: Trainer) -> list[torch.Tensor]:
    """Base minus the sum over epochs of rate * delta * U A V^T, in float64."""
    fresh = trainer(run.manifest)
    found = []
    for layer, site in enumerate(fresh.loaded.sites):
        weight = matrix(site).double()
        for epoch in run.core.epochs():
            u, v = (side.double() for side in run.space.basis.matrices(epoch, layer))
            a = torch.from_numpy(run.core.of(epoch)[layer].copy()).to(u)
            rate = run.manifest.training.rate(epoch) * run.manifest.training.scalar_delta
            weight = weight - rate * (u @ a @ v.t())
        found.append(weight.float())
    return found


def assert_close(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_many_small_folds_lead_where_one_rebuild_leads(family: str) -> None:
    run, _ = live_trainer(family)
    before = [weight.clone() for weight in live(run)]
    batch = updates(100, EPOCHS)
    feed(run, [part(batch, slice(n, n + 3)) for n in range(0, 100, 3)], follow=True)
    assert_close(live(run), written_weights(run))
    assert not torch.allclose(live(run)[0], before[0], atol=1e-3)
    run.weights.rebuild()
    assert_close(live(run), written_weights(run))


def test_an_epoch_that_begins_brings_rebuilds_that_undo_rounding_one_target_a_step() -> None:
    run, _ = live_trainer("opt")
    feed(run, [updates(1, (0,), key=n) for n in range(40)], follow=True)
    for weight in live(run):
        weight.add_(1.0)  # stands for the rounding errors of a very long epoch
    run.apply(updates(1, (1,)))
    for done in range(len(live(run)) + 1):
        wanted = written_weights(run)
        right = [torch.allclose(*pair, rtol=1e-5, atol=1e-5) for pair in zip(live(run), wanted, strict=True)]
        assert right == [number < done for number in range(len(right))]
        run.weights.follow(1)


def test_a_fold_rests_many_times_as_long_as_it_took() -> None:
    run, clock = live_trainer("opt")
    feed(run, [updates(1)], follow=True)  # the first ever: a rebuild
    clock.cost = 1.0
    feed(run, [updates(1, key=2)], follow=True)
    took, merged = clock.now, weights(run)
    feed(run, [updates(5, key=3)], follow=False)
    clock.now += MERGE_REST * took - 0.5
    run.weights.follow(0)
    assert took > 0
    assert same(weights(run), merged)
    clock.now += 0.5
    run.weights.follow(0)
    assert_close(live(run), written_weights(run))


def test_many_labels_are_merged_a_few_a_step_beginning_with_the_epoch_in_training() -> None:
    run, clock = live_trainer("opt")
    run.weights.follow(5)
    clock.cost = 2 * merging.MERGE_SECONDS
    run.apply(updates(30, range(10)))
    left = run.weights._pending.epochs()
    for merged in (5, 4, 6, 3, 7, 2, 8, 1, 9, 0):
        clock.now += 1e6  # long after
        run.weights.follow(5)
        left.remove(merged)
        assert run.weights._pending.epochs() == left
    assert_close(live(run), written_weights(run))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_when_an_epoch_is_over_it_is_merged_with_few_others_however_many_labels_there_are(dtype: str) -> None:
    run = trainer(manifest("opt"), dtype=dtype)
    run.weights = MergedWeights(run.loaded, run.space, run.core, run.scale, Busy())
    run.weights.follow(100)
    run.apply(updates(300, range(300)))
    merged: list[int] = []
    change = run.weights._change

    def counted(number: int, epoch: int) -> tuple[float, torch.Tensor, torch.Tensor]:
        merged.append(epoch)
        return change(number, epoch)

    run.weights._change = counted  # type: ignore[method-assign]
    run.weights.follow(200)  # rebuilds the first target: nothing of it is pending any more
    assert merged == []
    run.weights.follow(200)
    assert merged[0] == 100
    assert len(merged) == merging.PAST_EPOCHS
    assert all(abs(epoch - 200) <= merging.PAST_EPOCHS / 2 for epoch in merged[1:])
    assert 200 not in merged


def test_updates_that_wait_for_a_rebuild_are_folded_meanwhile() -> None:
    run, clock = live_trainer("opt")
    clock.cost = 1.0
    feed(run, [updates(5, (0,))], follow=True)  # a rebuild, at some cost
    clock.cost = 0.0
    feed(run, [updates(5, (1,), key=2), updates(5, (2,), key=3)], follow=True)  # no rebuild is due yet
    assert_close(live(run), written_weights(run))


def test_a_rebuild_on_demand_takes_in_what_waited_for_a_fold_and_only_once() -> None:
    run, _ = live_trainer("opt")
    feed(run, [updates(5, (0,))], follow=True)
    feed(run, [updates(5, (0,), key=2)], follow=False)
    run.weights.rebuild()
    run.weights.follow(0)
    assert_close(live(run), written_weights(run))


def test_looking_at_the_base_model_leaves_the_live_one_as_it_was() -> None:
    run, _ = live_trainer("llama")
    base = [weight.clone() for weight in live(run)]
    feed(run, [updates(30, EPOCHS)], follow=False)
    run.weights.rebuild()
    for _ in range(2):
        with run.weights.at_base():
            assert same(live(run), base)
        assert_close(live(run), written_weights(run))


def by_integers(run: Trainer, number: int) -> NDArray[np.float64]:
    """A target's weight in numpy alone: exact integers, then one float64 operation for each epoch."""
    numbers = run.manifest.training
    weight = run.loaded.base_weights.read(number).double().numpy().copy()
    for epoch in run.core.epochs():
        target, name = run.space.targets[number], run.manifest.run_id
        u = basis_signs(name, epoch, number, "U", target.out_features, numbers.rank).astype(np.int64)
        v = basis_signs(name, epoch, number, "V", target.in_features, numbers.rank).astype(np.int64)
        product = u @ run.core.of(epoch)[number] @ v.T  # (out, in) int64
        rate = float(np.float32(numbers.rate(epoch)))  # the last bits of a cosine differ between machines
        weight -= product.astype(np.float64) * (rate * numbers.scalar_delta)
    return weight


@pytest.mark.parametrize("exact", [0, merging.EXACT], ids=["in float64", "in float32 where that is exact"])
@pytest.mark.parametrize("size", [1, 2**20], ids=["small entries", "entries beyond float32"])
@pytest.mark.parametrize(("family", "schedule"), [("gpt2", "linear"), ("llama", "cosine")])
def test_rebuilt_weights_are_those_of_integers_to_the_bit(
    family: str, schedule: str, size: int, exact: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "EXACT", exact)
    monkeypatch.setattr(quantized, "BLOCK_ENTRIES", 200)  # several blocks each, the last one smaller
    run = trainer(manifest(family, schedule=schedule, learning_rate=1e-2 / size))
    batch = updates(60, EPOCHS)
    run.apply(batch._replace(scalars=batch.scalars * size + 1))
    largest = max(np.abs(run.core.of(epoch)).sum((1, 2)).max() for epoch in run.core.epochs())
    assert (largest > 4 * 2**24) == (size > 1)
    run.weights.rebuild()
    for number, weight in enumerate(live(run)):
        wanted = torch.from_numpy(by_integers(run, number))
        assert torch.equal(weight.cpu(), wanted.float())
        assert not torch.equal(wanted, run.loaded.base_weights.read(number).double())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_cores_beyond_float64_are_exact_too(dtype: str) -> None:
    """Those of organised runs hold weights up to 2^36; the parts of a product are rounded once each."""
    run = trainer(manifest("llama"), dtype=dtype)
    run.weights = MergedWeights(run.loaded, run.space, run.core, lambda _: 2.0**-70, lambda: 0.0)
    batch = updates(60)
    run.apply(batch._replace(scalars=batch.scalars * 2**54 + 12_345_678_901))
    run.weights.rebuild()
    for number, weight in enumerate(live(run)):
        a = run.core.of(0)[number].astype(object)
        assert np.abs(a).sum() > 1 << 63  # beyond int64, too
        u, v = (side.cpu().numpy().astype(object) for side in run.space.basis.matrices(0, number))
        base = run.loaded.base_weights.read(number).double().numpy()
        high, low = a >> 32, a & 0xFFFF_FFFF
        halves = [
            (u @ half @ v.T).astype(np.float64) * unit for half, unit in ((high, 2.0**-38), (low, 2.0**-70))
        ]
        wanted = torch.from_numpy(base - halves[0] - halves[1])
        assert torch.equal(weight.cpu(), wanted.to(weight.dtype))


@pytest.mark.parametrize(("largest", "count"), [(1, 2), (127 * 127, 4)])
def test_the_parts_of_a_large_core_are_that_core_and_small_enough_for_exact_products(
    largest: int, count: int
) -> None:
    ends = [-(2**63), 2**63 - 1, -1, 0, 1, -(2**32), 2**32 - 1]
    a = np.resize(np.array(ends, np.int64), (1024, 1024))  # the largest rank
    parts = merging._exact_parts(a, largest)
    assert len(parts) == count
    assert (sum(unit * part.astype(object) for unit, part in parts) == a.astype(object)).all()
    assert all(np.abs(part).astype(object).sum() * largest < 2**53 for _, part in parts)
    small = a & 0xFF
    ((unit, whole),) = merging._exact_parts(small, largest)
    assert unit == 1
    assert whole is small


def test_float32_beyond_its_bound_would_not_be_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "EXACT", 1 << 62)
    run, batch = trainer(manifest("gpt2", learning_rate=1e-8)), updates(60, EPOCHS)
    run.apply(batch._replace(scalars=batch.scalars * 2**20 + 1))
    run.weights.rebuild()
    wrong = [
        not torch.equal(weight.cpu(), torch.from_numpy(by_integers(run, number)).float())
        for number, weight in enumerate(live(run))
    ]
    assert any(wrong)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
def test_every_target_keeps_up_with_the_epochs_though_rebuilds_take_turns(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, clock, rebuilt = trainer(manifest("opt"), dtype=dtype), Busy(), set()
    run.weights = MergedWeights(run.loaded, run.space, run.core, run.scale, clock)
    rebuild = MergedWeights._rebuild
    targets = len(run.loaded.sites)

    def counted(self: MergedWeights, number: int) -> None:
        rebuilt.add(number)
        rebuild(self, number)

    run.weights.follow(0)
    monkeypatch.setattr(MergedWeights, "_rebuild", counted)
    for step in range(400):
        clock.now += 0.2
        run.apply(updates(1, (step // 50,), key=step))
        run.weights.follow(step // 50)
        if step % 50 >= targets:
            assert run.weights._live_epochs == [step // 50] * targets
            assert run.weights._pending.epochs() in ([], [step // 50])
    assert rebuilt == set(range(targets))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_is_far_below_the_rounding_of_a_weight_is_not_lost_when_its_epoch_is_over(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "REBUILD_REST", 10**12)
    run = trainer(manifest("opt"), dtype=dtype)
    base = [run.loaded.base_weights.read(number).double() for number in range(len(run.loaded.sites))]
    spacing = (
        torch.finfo(run.loaded.dtype).eps * torch.cat([weight.flatten() for weight in base]).abs().mean()
    )
    clock = Clock(run)
    clock.cost = 1.0
    rate = float(spacing) / 4 / 300  # the largest scalar moves a weight by a quarter of it
    run.weights = MergedWeights(
        run.loaded, run.space, run.core, lambda epoch: 0 * clock.scale(epoch) + rate, clock
    )
    everything = range(len(base))
    for epoch in range(40):
        run.apply(updates(1, (epoch,), key=epoch))
        for _ in everything:
            run.weights.follow(epoch)
    for _ in everything:
        run.weights.follow(40)
    along = norm = 0.0
    for number, (weight, start) in enumerate(zip(live(run), base, strict=True)):
        wanted = torch.zeros_like(start)
        for epoch in run.core.epochs():
            u, v = (side.double() for side in run.space.basis.matrices(epoch, number))
            wanted -= rate * (
                u.cpu() @ torch.from_numpy(run.core.of(epoch)[number].copy()).double() @ v.t().cpu()
            )
        moved = weight.cpu().double() - start.to(weight.dtype).double()
        along += float((moved * wanted).sum())
        norm += float((wanted * wanted).sum())
    assert along / norm == pytest.approx(1, abs=0.15)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the resident memory from /proc")
def test_memory_that_was_freed_goes_back_to_the_system_when_an_epoch_begins() -> None:
    run, _ = live_trainer("opt")
    run.weights.follow(0)
    blocks = [bytearray(b"x" * 65_536) for _ in range(2000)]
    del blocks[:-1]  # glibc keeps the pages of the others, which lie below the last one
    before = psutil.Process().memory_info().rss
    run.weights.follow(1)
    assert before - psutil.Process().memory_info().rss > 100 * 2**20
