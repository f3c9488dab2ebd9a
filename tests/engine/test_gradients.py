"""First-order updates: gradients by all cells, as autograd has them for explicit cores."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sfnode.engine import drift, export, forward, gradients
from sfnode.engine.core import Core, UpdateBatch
from sfnode.engine.estimator import LocalNoise
from sfnode.engine.gradients import quantised
from sfnode.engine.head import HeadLosses
from sfnode.engine.line import Line
from sfnode.engine.losses import Held, Losses, line_batches, line_rows, losses_at
from sfnode.engine.reward_objective import Rewards
from sfnode.engine.trainer import ReplicatedTrainer, Trainer
from sfnode.manifest import Manifest
from sfnode.manifest.task import PRIOR_ONE
from sfnode.models import loader
from sfnode.models.targets import Selection
from sfnode.preparing.first_order import numbers_for, usual
from sfnode.tasks.encoding import Encoded
from sfnode.tasks.public_files import Places
from sfprotocol.decisions import RATE_ONE, RateFrom
from sfprotocol.seeds import update_seeds
from tests.engine.helpers import (
    HEADED_TASK,
    ROWS,
    data_file,
    held_weights,
    manifest,
    model_folder,
    trainer,
    whole_gradients,
)
from tests.engine.published import first_order
from tests.engine.test_reward_objective import run_of as reward_run

SEEDS = update_seeds(1, 0, 3).tolist()


def explicit(run: Trainer, seed: int) -> np.ndarray:
    """That of a seed's mini-batch, as `of_whole`."""
    return of_whole(run, run.mini_batch(seed))


def of_whole(run: Trainer, batch: Encoded) -> np.ndarray:
    """The gradient by every entry of X where weights are W + U X V^T, by autograd through whole matrices."""
    total = []
    for number, part in enumerate(whole_gradients(run, lambda: forward.mean_loss(run.loaded, batch))):
        u, v = (side.double() for side in run.space.matrices(0, number))
        total.append((u.t() @ part.to(u) @ v * run.space.unit(number)).flatten().numpy())
    return np.concatenate(total)


@pytest.mark.parametrize("family", ["opt", "llama", "gpt2"])
def test_a_gradient_is_that_of_explicit_cores(family: str, tmp_path: Path) -> None:
    run = first_order(family, tmp_path)
    with trainer(run, data_file(tmp_path), bases=tmp_path) as node:
        for seed, found in zip(SEEDS, node.gradients(SEEDS, 0), strict=True):
            assert found.cells == pytest.approx(explicit(node, seed), rel=1e-3, abs=1e-6)
            assert np.abs(found.cells).max() > 1e-3


def moved(run: Trainer, values: tuple[int, ...], rate: RateFrom) -> None:
    """Count an update as an organised run does."""
    weighed = np.array([values], np.int64) * (rate.rate * rate.unit >> 16)
    run.apply(UpdateBatch(np.zeros(1, np.int64), np.zeros(1, np.uint64), weighed))


def test_a_step_moves_the_weights_by_its_rate_times_its_gradient(tmp_path: Path) -> None:
    run = first_order("llama", tmp_path, scalar_bits=16, scalar_limit=32_767)
    with trainer(run, data_file(tmp_path), bases=tmp_path) as node:
        base = held_weights(node)
        rate = RateFrom(0, RATE_ONE // 8, unit=1 << 12, limit=10_000)
        (values,) = node.step(SEEDS[:1], 0, rate).scalars
        (found,) = node.gradients(SEEDS[:1], 0)
        assert np.array(values) * (2.0**-6 / 16) == pytest.approx(found.cells, abs=2.0**-11)
        moved(node, values, rate)
        node.rebuild()
        change = np.split(-np.array(values) * 2.0**-6 / 16 / 8, len(base))
        for number, (now, before) in enumerate(zip(held_weights(node), base, strict=True)):
            u, v = (side.double() for side in node.space.matrices(0, number))
            core = torch.from_numpy(change[number].reshape(4, 4))
            assert now.numpy() == pytest.approx(
                (before + u @ core @ v.t() * node.space.unit(number)).numpy(), abs=1e-6
            )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "int8"])
def test_formats_agree_on_the_gradient(dtype: str, tmp_path: Path) -> None:
    run = first_order("llama", tmp_path)
    data = data_file(tmp_path)
    with (
        trainer(run, data, bases=tmp_path) as exact,
        trainer(run, data, bases=tmp_path, dtype=dtype) as other,
    ):
        for site, weight in zip(exact.loaded.sites, held_weights(other), strict=True):
            loader.matrix(site).copy_(weight)
        for one, found in zip(exact.gradients(SEEDS, 0), other.gradients(SEEDS, 0), strict=True):
            cosine = one.cells @ found.cells / np.linalg.norm(one.cells) / np.linalg.norm(found.cells)
            assert cosine >= 0.98


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_gradient_is_taken_where_the_live_core_has_moved_the_weights(dtype: str, tmp_path: Path) -> None:
    """What is not merged yet acts on activations; the gradient is that at the merged weights."""
    run = first_order("llama", tmp_path)
    with trainer(run, data_file(tmp_path), bases=tmp_path, dtype=dtype) as node:
        start = node.gradients(SEEDS[:1], 0)[0]
        rate = RateFrom(0, RATE_ONE // 2, limit=1000)
        moved(node, node.step(SEEDS[:1], 0, rate).scalars[0], rate)
        node.weights.follow(0)
        live = node.gradients(SEEDS[:1], 0)[0]
        node.rebuild()
        merged = node.gradients(SEEDS[:1], 0)[0]
        assert live.loss < start.loss - 0.005
        assert live.loss == pytest.approx(merged.loss, abs=0.1 * (start.loss - merged.loss))


@pytest.mark.parametrize("limit", [40, 400])
def test_an_update_is_no_longer_than_its_limit(limit: int) -> None:
    cells = np.random.default_rng(0).normal(size=1344)
    rate = RateFrom(0, RATE_ONE, unit=1 << 15, limit=limit)
    values = quantised(cells, 1e-4, rate, 127)
    assert sum(one * one for one in values) <= limit**2
    assert rate.moves(values)
    assert np.corrcoef(cells, values)[0, 1] > (0.99 if limit == 400 else 0.0)


def test_what_is_no_number_moves_nothing() -> None:
    rate = RateFrom(0, RATE_ONE, limit=100)
    assert quantised(np.array([1.0, np.nan]), 1e-2, rate, 127) == (0, 0)
    assert not rate.moves((0, 0))


def test_rows_go_one_by_one_and_blocks_are_computed_again_where_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = first_order("llama", tmp_path)
    with trainer(run, data_file(tmp_path), bases=tmp_path) as node:
        whole = node.gradients(SEEDS, 0)
        room = gradients._ROOMS[node.loaded.model]
        parts = len(list(room.parts(node.mini_batch(SEEDS[0]))))
        while room.narrow(node.mini_batch(SEEDS[0])):
            pass
        narrow = list(room.parts(node.mini_batch(SEEDS[0])))
        assert (parts, len(narrow)) == (1, 3)
        assert room.recomputes(narrow[0])
        for one, other in zip(whole, node.gradients(SEEDS, 0), strict=True):
            assert other.cells == pytest.approx(one.cells, rel=1e-3, abs=1e-6)
            assert other.loss == pytest.approx(one.loss, rel=1e-5)


def test_not_even_a_first_mini_batch_takes_more_than_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row shows what a token takes, and the others go in parts."""
    monkeypatch.setattr(gradients, "LEAST_ROOM", 0)
    taken: list[int] = []
    whole = forward.mean_loss
    monkeypatch.setattr(
        forward, "mean_loss", lambda *a, **more: taken.append(a[1].examples) or whole(*a, **more)
    )
    run = first_order("llama", tmp_path)
    with trainer(run, data_file(tmp_path), bases=tmp_path) as node:
        (found,) = node.gradients(SEEDS[:1], 0)
        assert taken == [1, 1, 1]
        assert found.cells == pytest.approx(explicit(node, SEEDS[0]), rel=1e-3, abs=1e-6)


def test_a_calibrated_loss_is_less_the_manifests_prior_in_training_and_where_it_is_measured(
    tmp_path: Path,
) -> None:
    """A prior of two nats against an answer is as if all had these two nats more for it."""
    told = [0, -2 * PRIOR_ONE]
    plain = first_order("opt", tmp_path / "plain")
    task = plain.task.model_copy(update={"loss": "calibrated", "prior": tuple(told)})
    run = first_order("opt", tmp_path / "bases", task)
    data = data_file(tmp_path)
    with (
        trainer(plain, data, bases=tmp_path / "plain") as other,
        trainer(run, data, bases=tmp_path / "bases") as node,
    ):
        for one in (other, node):
            one.run_rows._held_out["test", 0] = Held("test", 0, ROWS)
        encoded = other.mini_batch(SEEDS[0])
        scores = encoded.scores(forward.score(other.loaded, encoded).log_probs) + torch.tensor([0.0, 2.0])
        wanted = torch.nn.functional.cross_entropy(scores, encoded.right.int().argmax(1))
        assert node.gradients(SEEDS[:1], 0)[0].loss == pytest.approx(float(wanted), abs=1e-5)
        raw, less = other.evaluate(), node.evaluate()
        assert (raw.calibrated, less.calibrated) == (False, True)
        assert node.prior().tolist() == [0.0, -2.0]
        lines = line_batches(run.task, node.loaded.tokenizer, ROWS)
        found = losses_at(node.loaded, lines, lambda this: None).mean()
        assert less.loss == pytest.approx(found, abs=1e-5)


def head(tmp_path: Path, **training: Any) -> Manifest:
    described = loader.describe(str(model_folder("llama")), "", Selection(modules=("score",)), 2)
    model = described.model_copy(update={"source": "tiny/llama"})
    plain = manifest("llama").model_copy(update={"model": model, "task": HEADED_TASK})
    return first_order(plain, tmp_path, rank=64, **training)


def test_the_gradient_of_a_head_is_products_of_states_and_the_same(tmp_path: Path) -> None:
    run = head(tmp_path, batch_size=64)
    with trainer(run, data_file(tmp_path), bases=tmp_path) as node:
        assert isinstance(node.objective, HeadLosses)
        (found,) = node.gradients(SEEDS[:1], 0)
        encoded = next(node.objective.shard.encoded(64))
        assert encoded.examples == len(ROWS), "all rows, each once"
        whole = gradients.gradient(node.loaded, node.space, 0, encoded)
        assert found.loss == pytest.approx(whole.loss, rel=1e-5)
        assert found.cells == pytest.approx(whole.cells, rel=1e-3, abs=1e-6)
        assert node.manifest.core_shape[1] == 2
        assert node.manifest.core_shape[2] > 2


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_head_learns_and_its_state_is_that_of_its_core(dtype: str, tmp_path: Path) -> None:
    run = head(tmp_path, batch_size=64)
    with trainer(run, data_file(tmp_path), bases=tmp_path, dtype=dtype) as node:
        rate = RateFrom(0, RATE_ONE // 2, limit=1000)
        before = node.gradients(SEEDS[:1], 0)[0].loss
        for _ in range(4):
            moved(node, node.step(SEEDS[:1], 0, rate).scalars[0], rate)
            node.weights.follow(0)
        live = node.gradients(SEEDS[:1], 0)[0].loss
        node.rebuild()
        assert node.gradients(SEEDS[:1], 0)[0].loss == pytest.approx(live, abs=0.02)
        assert live < before - 0.05


def test_worths_of_gradients_add_up_and_scores_are_cosines(tmp_path: Path) -> None:
    run = first_order("llama", tmp_path, learning_rate=0.05)
    with trainer(run, data_file(tmp_path), bases=tmp_path) as node:
        node.run_rows._held_out["validation", 0] = Held("validation", 0, ROWS)
        rate = RateFrom(0, RATE_ONE // 64, limit=1000)
        values = np.array(node.step(SEEDS, 0, rate).scalars)
        every = [
            UpdateBatch(np.zeros(1, np.int64), np.zeros(1, np.uint64), one[None])
            for one in (*values, -values[0])
        ]
        after = Core(*run.core_shape)
        weights = np.array([rate.rate * rate.unit >> 16])
        for one in every[:3]:
            after.add(one._replace(scalars=one.scalars * weights))
        found, _ = node.shares(after.cores(), [(one, weights) for one in every], 4, 0)
        line = Line(node.loaded, node.space, node.scale, after.cores())
        batches = node.objective.batches(line_rows(run.task, ROWS), 4, 0)
        losses = line.losses(batches, [0.0, 1.0]).mean(0)
        assert sum(one.worth for one in found[:3]) == pytest.approx(losses[0] - losses[1], rel=0.05)
        assert found[3].worth == pytest.approx(-found[0].worth)
        assert found[3].sum == pytest.approx(-found[0].sum)
        cells = math.sqrt(run.dimensions)
        assert all(abs(one.sum) <= cells and one.squares == 1 for one in found)
        assert max(one.sum for one in found) > 0.2 * cells


def test_a_heads_scores_say_no_more_than_the_rows_that_they_are_measured_on(tmp_path: Path) -> None:
    run = head(tmp_path, batch_size=64)
    with trainer(run, data_file(tmp_path), bases=tmp_path) as node:
        node.run_rows._held_out["validation", 0] = Held("validation", 0, ROWS)
        rate = RateFrom(0, RATE_ONE // 2, limit=1000)
        values = np.array(node.step(SEEDS[:1], 0, rate).scalars)
        one = UpdateBatch(np.zeros(1, np.int64), np.zeros(1, np.uint64), values)
        after, weights = Core(*run.core_shape), np.array([rate.rate * rate.unit >> 16])
        after.add(one._replace(scalars=values * weights))
        for sign in (1, -1):
            batch = one._replace(scalars=sign * values)
            (found,), _ = node.shares(after.cores(), [(batch, weights)], 4, 0)
            assert math.copysign(1, found.sum) == math.copysign(1, found.worth) == sign
            assert abs(found.sum) <= abs(found.worth) / found.error + 1e-9 < math.sqrt(run.dimensions)


def test_the_numbers_of_a_run_follow_from_its_usual_gradient(tmp_path: Path) -> None:
    run = first_order("llama", tmp_path)
    with trainer(run, data_file(tmp_path), bases=tmp_path) as node:
        numbers = numbers_for(float(np.linalg.norm(usual(node), axis=1).mean()), run.dimensions, 8)
        limit = numbers["norm_limit"]
        assert limit == round(16 * math.sqrt(run.dimensions))
        rate = RateFrom(0, RATE_ONE, limit=limit)
        norms = [
            np.linalg.norm(quantised(one.cells, numbers["scalar_delta"], rate, 127))
            for one in node.gradients(update_seeds(7, 0, 9).tolist(), 0)
        ]
        assert np.median(norms) == pytest.approx(limit / 2, rel=0.3)


def test_with_noise_each_row_is_cut_to_the_clip_and_no_row_is_drawn_twice(tmp_path: Path) -> None:
    run = first_order("llama", tmp_path)
    draws: list[tuple[float, float]] = []

    def draw(mean: float, deviation: float) -> float:
        draws.append((mean, deviation))
        return 0.0

    data = data_file(tmp_path)
    noise = LocalNoise(1.5, 0.25, draw)
    with (
        trainer(run, data, bases=tmp_path, secret=b"s", noise=noise) as plain,
        trainer(run, data, bases=tmp_path, secret=b"s", noise=noise) as node,
    ):
        seed = SEEDS[0]
        numbers = node.objective.shard.numbers(seed).tolist()
        assert len(set(numbers)) == 3
        (found,) = node.gradients([seed], 0)
        batch, rows = plain.mini_batch(seed), list[np.ndarray]()
        for row in range(3):
            cells = gradients.gradient(plain.loaded, plain.space, 0, batch.part([row])).cells
            rows.append(cells * min(1, 0.25 / np.linalg.norm(cells)))
        assert any(np.linalg.norm(row) == pytest.approx(0.25) for row in rows)
        assert found.cells == pytest.approx(sum(rows) / 3, rel=1e-3, abs=1e-6)
        assert draws == [(0.0, pytest.approx(2 * 0.25 * 1.5 / 3))] * run.dimensions


def test_a_row_that_does_not_fit_takes_nothing_of_what_others_are_hidden_by(tmp_path: Path) -> None:
    run, data = first_order("llama", tmp_path), data_file(tmp_path)
    with trainer(run, data, bases=tmp_path, secret=b"s") as node:
        losses, batch = node.objective, node.mini_batch(SEEDS[0])
        assert isinstance(losses, Losses)
        of_two = losses.gradient(node.space, 0, SEEDS[0], batch.part([0, 1]))
        alone = gradients.gradient(node.loaded, node.space, 0, batch.part([0, 1]))
        assert of_two.cells == pytest.approx(alone.cells * 2 / node.odds[0], abs=1e-6)


@pytest.mark.parametrize("noise", [None, LocalNoise(1.0, 0.25, lambda mean, deviation: deviation / 64)])
def test_several_devices_measure_what_one_does(tmp_path: Path, noise: LocalNoise | None) -> None:
    run, data = first_order("opt", tmp_path), data_file(tmp_path)
    own: dict[str, Any] = {"bases": tmp_path, "noise": noise}
    made = ReplicatedTrainer.load_on(
        ["cpu"] * 2, run, batch=1, model_override=model_folder("opt"), data_override=data, **own
    )
    rate = RateFrom(0, RATE_ONE // 8, unit=1 << 15, limit=300)
    with made, trainer(run, data, **own) as alone:
        for one in (made, alone):
            moved(one, alone.step(SEEDS[2:], 0, rate).scalars[0], rate)
            one.rebuild()
        assert made.step(SEEDS[:2], 0, rate).scalars == alone.step(SEEDS[:2], 0, rate).scalars


def test_answers_that_are_drawn_have_one_gradient(tmp_path: Path) -> None:
    run = first_order(reward_run(tmp_path, batch_size=4), tmp_path / "bases")
    with trainer(run, tmp_path / "rows.jsonl", bases=tmp_path / "bases", places=Places((tmp_path,))) as node:
        assert isinstance(node.objective, Rewards)
        for seed, found in zip(SEEDS, node.gradients(SEEDS, 0), strict=True):
            drawn = node.objective.draw(node.mini_batch(seed), seed)
            assert found.loss == drawn.loss
            assert found.cells == pytest.approx(of_whole(node, drawn.encoded), rel=1e-3, abs=1e-6)


def test_what_is_said_of_a_core_with_more_columns_than_rows_is_so(tmp_path: Path) -> None:
    run = head(tmp_path)
    with trainer(run, data_file(tmp_path), bases=tmp_path) as node:
        base = held_weights(node)[0]
        rate = RateFrom(0, RATE_ONE // 2, limit=1000)
        moved(node, node.step(SEEDS[:1], 0, rate).scalars[0], rate)
        node.rebuild()
        change = held_weights(node)[0] - base
        (norm,) = drift.norms(node.space, node.scale, node.core.cores())
        assert norm == pytest.approx(float(change.norm()), rel=1e-4)
        (found,), fit = export.factors(node)
        assert (found.b @ found.a).numpy() == pytest.approx(change.float().numpy(), abs=1e-6)
        assert fit.full <= 2
        line = Line(node.loaded, node.space, node.scale, node.core.cores())
        batches = node.objective.batches(line_rows(run.task, ROWS), 4, 0)
        along = line.losses(batches, [-1.0, 0.0])
        with node.weights.at_base():
            assert along[:, 0] == pytest.approx(losses_at(node.loaded, batches, lambda this: None), abs=1e-4)
