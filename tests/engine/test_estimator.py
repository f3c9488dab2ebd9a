"""Estimates of slopes: hooks do what moved weights would do, and what is measured is the derivative."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sfnode.engine import forward
from sfnode.engine.estimator import Estimate, estimates, of_groups, quantise
from sfnode.engine.subspace import Subspace
from sfnode.engine.trainer import Trainer
from sfnode.models.loader import matrix
from sfnode.models.targets import Form, Selection
from sfnode.tasks.encoding import Encoded, WrittenAnswer, encode, encode_written
from sfprotocol.seeds import basis_signs, coordinates, update_seeds
from tests.engine.helpers import (
    ENCODERS,
    EVERYTHING,
    FAMILIES,
    ROWS,
    data_file,
    passes_seen,
    trainer,
    updates,
    whole_gradients,
)
from tests.engine.helpers import manifest as described

manifest = partial(described, name="engine-2")

SEEDS = [int(seed) for seed in update_seeds(3, 0, 3)]


VECTORS = json.loads((Path(__file__).parents[2] / "protocol/vectors/seeds.json").read_text())["groups"]


def batches(run: Trainer) -> list[Encoded]:
    """Three mini-batches of different sizes and lengths."""
    task = run.manifest.task
    return [encode(task, run.loaded.tokenizer, rows) for rows in (ROWS[:3], ROWS[3:4], ROWS[1:])]


def loss(run: Trainer, batch: Encoded) -> torch.Tensor:
    """Mean loss at the weights as they are."""
    ids, mask = (part.to(run.loaded.device) for part in (batch.input_ids, batch.attention_mask))
    logits = run.loaded.model(input_ids=ids, attention_mask=mask).logits.cpu()
    chosen = logits[batch.sequences] if run.loaded.classifies else logits[batch.sequences, batch.columns]
    return batch.losses(chosen.log_softmax(-1).gather(1, batch.targets[:, None]).flatten()).mean()


def written_directions(run: Trainer, seed: int, epoch: int) -> list[torch.Tensor]:
    """`s * u_i v_j^T` of every layer, from the integer rules alone."""
    targets, rank = run.manifest.model.parsed_targets(), run.manifest.training.rank
    drawn = coordinates(np.array([seed], np.uint64), len(targets), rank)
    moves = []
    for layer, target in enumerate(targets):
        u = basis_signs(run.manifest.run_id, epoch, layer, "U", target.out_features, rank)
        v = basis_signs(run.manifest.run_id, epoch, layer, "V", target.in_features, rank)
        row, column, sign = (int(part[0, layer]) for part in drawn)
        moves.append(torch.from_numpy(sign * np.outer(u[:, row], v[:, column])).float())
    return moves


@contextmanager
def hand_moved(run: Trainer, moves: list[torch.Tensor], by: float) -> Iterator[None]:
    kept = [matrix(site).clone() for site in run.loaded.sites]
    for site, move in zip(run.loaded.sites, moves, strict=True):
        matrix(site).add_(move.to(run.loaded.device), alpha=by)
    yield
    for site, weight in zip(run.loaded.sites, kept, strict=True):
        matrix(site).copy_(weight)


@pytest.mark.parametrize("selection", [Selection(), EVERYTHING], ids=["matrices", "everything"])
@pytest.mark.parametrize("family", [*FAMILIES, *ENCODERS])
def test_three_queries_at_once_give_the_losses_of_hand_moved_weights(
    family: str, selection: Selection
) -> None:
    run, epsilon, spread = trainer(manifest(family, selection=selection)), 0.02, []
    found = estimates(run.loaded, run.space.directions(SEEDS, 2), batches(run), epsilon)
    for seed, batch, estimate in zip(SEEDS, batches(run), found, strict=True):
        moves = written_directions(run, seed, epoch=2)
        with hand_moved(run, moves, epsilon):
            plus = float(loss(run, batch))
        with hand_moved(run, moves, -epsilon):
            minus = float(loss(run, batch))
        assert estimate.loss + epsilon * estimate.alpha == pytest.approx(plus, rel=1e-5)
        assert estimate.loss - epsilon * estimate.alpha == pytest.approx(minus, rel=1e-5)
        spread.append(abs(plus - minus) / plus)
    assert max(spread) > 1e-3


@pytest.mark.parametrize("selection", [Selection(), EVERYTHING], ids=["matrices", "everything"])
@pytest.mark.parametrize("family", ["llama", ENCODERS[0]])
def test_groups_give_the_losses_of_hand_moved_weights_less_the_mean_of_the_others(
    family: str, selection: Selection
) -> None:
    run, epsilon, spread = trainer(manifest(family, selection=selection)), 0.02, []
    shared = [batches(run)[0], batches(run)[2]]
    seeds = [*SEEDS, *(seed + 1 for seed in SEEDS)]
    each = [batch for batch in shared for _ in SEEDS]
    found = estimates(run.loaded, run.space.directions(seeds, 2), each, epsilon, group=len(SEEDS))
    for number, batch in enumerate(shared):
        group, losses = slice(3 * number, 3 * number + 3), []
        for seed in seeds[group]:
            with hand_moved(run, written_directions(run, seed, epoch=2), epsilon):
                losses.append(float(loss(run, batch)))
        mean = sum(losses) / 3
        for one, estimate in zip(losses, found[group], strict=True):
            others = (sum(losses) - one) / 2
            assert estimate.alpha * epsilon == pytest.approx(one - others, abs=1e-5 * mean)
            assert estimate.loss == pytest.approx(mean, rel=1e-5)
            spread.append(abs(one - others) / mean)
    assert max(spread) > 1e-3


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: str(vector["group"]))
def test_losses_of_a_group_become_the_scalars_of_the_vectors(vector: dict[str, Any]) -> None:
    losses = [torch.tensor(point, dtype=torch.float64) for point in vector["losses"]]
    found = of_groups(losses, vector["group"], vector["epsilon"])
    rule = vector["scalar_delta"], vector["scalar_limit"]
    assert [quantise(one.alpha, *rule) for one in found] == vector["scalars"]


def test_where_one_point_of_a_group_gives_no_number_none_of_the_group_does() -> None:
    rows = [torch.tensor([value, 1.0]).double() for value in (1.0, math.inf, 2.0, 1.0, 2.0, 3.0)]
    assert [one.failed for one in of_groups(rows, 3, 1e-3)] == [True] * 3 + [False] * 3


@pytest.mark.parametrize("secret", [b"", b"mine"], ids=["public", "private"])
def test_the_updates_of_a_group_are_measured_on_what_its_first_seed_draws(
    tmp_path: Path, secret: bytes
) -> None:
    described = manifest("opt", group=3, scalar_delta=1e-3)
    run = trainer(described, data_file(tmp_path), secret=secret)
    seeds = [*SEEDS, 77, 78, 79]
    found = run.step(seeds, 0)
    drawn = [run.mini_batch(seed) for seed in (SEEDS[0], 77) for _ in range(3)]
    expected = estimates(run.loaded, run.space.directions(seeds, 0), drawn, described.training.epsilon, 3)
    assert found.scalars == tuple(quantise(one.alpha, 1e-3, 32_767) for one in expected)
    assert run.step(seeds[3:], 0).scalars == pytest.approx(found.scalars[3:], abs=2)
    with pytest.raises(ValueError, match="whole groups"):
        run.step(seeds[:4], 0)


@pytest.mark.parametrize("family", [*FAMILIES, *ENCODERS])
def test_an_estimate_is_the_directional_derivative_with_its_sign(family: str) -> None:
    run, epsilon = trainer(manifest(family)), 2e-4  # its square is how far off the estimate is
    found = estimates(run.loaded, run.space.directions(SEEDS, 0), batches(run), epsilon)
    for seed, batch, estimate in zip(SEEDS, batches(run), found, strict=True):
        slope = sum(
            float((gradient * move).sum())
            for gradient, move in zip(
                whole_gradients(run, partial(loss, run, batch)), written_directions(run, seed, 0), strict=True
            )
        )
        assert estimate.alpha == pytest.approx(slope, rel=0.01, abs=0.01)


class Averages(NamedTuple):
    """What a run's coordinates are credited with, over many seeds on one mini-batch; all (layers, r, r)."""

    found: NDArray[np.float64]
    derivatives: NDArray[np.float64]
    """By automatic differentiation, along each u_i v_j^T."""
    error: float
    """The standard error of each of `found`."""


def averages(count: int) -> Averages:
    """With rank 2, every coordinate is drawn by a quarter of the seeds."""
    run = trainer(manifest("gpt2", rank=2))
    batch, seeds = batches(run)[0], update_seeds(11, 0, count)
    drawn = coordinates(seeds, len(run.loaded.sites), 2)
    alphas = []
    for first in range(0, count, 40):
        some = slice(first, first + 40)
        directions = run.space.directions(seeds[some].tolist(), 0)
        found = estimates(run.loaded, directions, [batch] * len(directions.u[0]), 1e-3)
        alphas += [estimate.alpha for estimate in found]
    sums, times, derivatives = np.zeros((3, len(run.loaded.sites), 2, 2))
    for layer, gradient in enumerate(whole_gradients(run, partial(loss, run, batch))):
        u, v = (side.cpu().float() for side in run.space.basis.matrices(0, layer))
        derivatives[layer] = u.t() @ gradient @ v
        where = drawn.row[:, layer], drawn.column[:, layer]
        np.add.at(sums[layer], where, drawn.sign[:, layer] * alphas)
        np.add.at(times[layer], where, 1)
    return Averages(sums / times, derivatives, float(np.std(alphas)) / np.sqrt(count / 4))


def in_standard_errors(difference: NDArray[np.float64], error: float) -> float:
    return float(np.sqrt(np.mean(difference**2))) / error


@pytest.mark.parametrize("count", [100, 800])
def test_averaged_over_seeds_every_coordinate_gets_its_own_derivative(count: int) -> None:
    found, derivatives, error = averages(count)
    assert 0.7 < in_standard_errors(found - derivatives, error) < 1.3
    assert in_standard_errors(derivatives, error) > 2.5 * np.sqrt(count / 1_600)


def test_queries_do_not_feel_each_other(tmp_path: Path) -> None:
    run = trainer(manifest("llama", scalar_delta=0.01), data_file(tmp_path))
    together = run.step(SEEDS, 1)
    alone = [run.step([seed], 1) for seed in SEEDS]
    assert [abs(a - b.scalars[0]) <= 1 for a, b in zip(together.scalars, alone, strict=True)] == [True] * 3
    assert together.loss == pytest.approx(sum(step.loss for step in alone) / 3, rel=1e-5)
    assert len(set(together.scalars)) == 3


@given(alpha=st.floats(-1e6, 1e6), limit=st.integers(1, 32_767))
def test_a_scalar_is_the_nearest_multiple_of_delta_within_the_limit(alpha: float, limit: int) -> None:
    q = quantise(alpha, 1 / 64, limit)
    assert abs(q) <= limit
    assert abs(q) == limit or abs(q / 64 - alpha) <= 1 / 128


def test_halves_are_rounded_to_even_and_what_is_not_finite_moves_nothing() -> None:
    assert [quantise(half, 1.0, 9) for half in (0.5, 1.5, 2.5, -0.5, -1.5)] == [0, 2, 2, 0, -2]
    assert [quantise(bad, 1.0, 9) for bad in (float("nan"), float("inf"), float("-inf"))] == [0, 0, 0]
    assert quantise(1e300, 1e-300, 9) == 9


def test_vectors_of_a_packed_model_move_along_their_own_direction_and_follow_the_core() -> None:
    """The live core of its matrices does not concern them."""
    run = trainer(manifest("opt", selection=EVERYTHING, learning_rate=1e-3), dtype="int8")
    space = run.space
    plain = Subspace(
        space.basis, space.targets, space.columns_of, space.device, run.loaded.dtype, live_core=False
    )
    for seed in SEEDS:
        (live,) = estimates(run.loaded, space.directions([seed], 0), batches(run)[:1], 1e-2)
        (alone,) = estimates(run.loaded, plain.directions([seed], 0), batches(run)[:1], 1e-2)
        assert live.alpha == pytest.approx(alone.alpha, rel=1e-3, abs=1e-3)
    run.weights.follow(0)
    run.apply(updates(20))
    run.weights.follow(0)
    moved = [matrix(site).clone() for site in run.loaded.sites if site.form is Form.VECTOR]
    run.weights.rebuild()
    exact = [matrix(site) for site in run.loaded.sites if site.form is Form.VECTOR]
    assert len(exact) > 2
    for found, wanted in zip(moved, exact, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("family", "group"), [(family, group) for group in (0, 3) for family in FAMILIES])
def test_what_all_texts_begin_with_is_read_once_for_each_point(
    family: str, group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = described("llama").task.model_copy(
        update={"template": f"{'the film was good ' * 5}{{sentence}} it was"}
    )
    run = trainer(manifest(family).model_copy(update={"task": task}))
    each = [encode(task, run.loaded.tokenizer, rows) for rows in (ROWS[:3], ROWS[3:], ROWS[1:])]
    each = [each[0]] * 3 if group else each
    directions = run.space.directions(SEEDS, 2)
    seen = passes_seen(monkeypatch)
    found = estimates(run.loaded, directions, each, 0.02, group)
    points = 3 if group else 6
    tokens = seen[1][1]
    assert seen[:2] == [(1, 1), (points, tokens)]
    assert tokens >= 20
    assert max(width for _, width in seen[2:]) < tokens
    monkeypatch.setattr(forward, "LEAST_SHARED", 1 << 20)
    assert_same(found, estimates(run.loaded, directions, each, 0.02, group))


def assert_same(found: list[Estimate], wanted: list[Estimate]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.alpha == pytest.approx(other.alpha, rel=1e-3, abs=1e-4)
        assert one.loss == pytest.approx(other.loss, rel=1e-5)


@pytest.mark.parametrize("group", [0, 3])
def test_what_a_family_of_texts_begins_with_is_read_once_at_each_of_its_points(
    group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trainer(manifest("llama"))
    prompts = [[token] * length for token, length in ((4, 26), (5, 31), (6, 22))]
    answers = [
        WrittenAnswer(prompt, answer, 0, weight)
        for prompt in prompts
        for answer, weight in (((7, 8), 1.0), ((7, 9, 10), -1.0))
    ]
    every = encode_written([*answers, WrittenAnswer([3] * 20, (4,), 0, 1.0)])
    some = encode_written(answers[:2])
    each = [every] * 3 if group else [every, some, every]
    directions = run.space.directions(SEEDS, 2)
    seen = passes_seen(monkeypatch)
    found = estimates(run.loaded, directions, each, 0.02, group)
    beginnings = [(3, 25), (3, 30), (3, 21)] if group else [(6, 25), (4, 30), (4, 21)]
    assert {*beginnings} <= {*seen}
    whole = sum(int(part.attention_mask.sum()) for part in each) * (1 if group else 2)
    assert sum(rows * width for rows, width in seen) < 0.75 * whole
    monkeypatch.setattr(forward, "LEAST_SHARED", 1 << 20)
    assert_same(found, estimates(run.loaded, directions, each, 0.02, group))
