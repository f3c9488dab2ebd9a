"""Whitened coordinates let a head learn in a few steps at one rate, whatever its features; its gradient in
them is that of its rows, one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, nll_loss

from sfnode.engine import head
from sfnode.engine.head import Known, head_gradient
from sfnode.engine.probe import linear_probe
from sfnode.preparing import first_order
from sfnode.preparing.first_order import ROUNDS, STRENGTHS, rate_of

CLASSES, FEATURES = 3, 40


def data(rows: int, noise: float, seed: int) -> Known:
    """States around three centres far from zero, whose features' sizes differ by a factor of ten and go
    together."""
    draws = np.random.default_rng(seed)
    fixed = np.random.default_rng(0)
    centres, mixing = fixed.normal(size=(CLASSES, FEATURES)), fixed.normal(size=(FEATURES, FEATURES))
    labels = draws.integers(CLASSES, size=rows)
    states = (centres[labels] + noise * draws.normal(size=(rows, FEATURES))) @ mixing + 200
    scaled = (states * np.logspace(-0.5, 0.5, FEATURES)).astype(np.float32)
    return known(torch.from_numpy(scaled), torch.from_numpy(labels))


def known(states: Tensor, labels: Tensor) -> Known:
    return Known(states, labels, torch.zeros(len(labels), CLASSES))


def whitened(public: Known, validating: Known, columns: int = FEATURES) -> Tensor:
    entries, unit = first_order.whitening(public, validating, columns)
    return torch.from_numpy(entries).double() * unit


def outputs(rows: Known, v: Tensor, core: Tensor) -> Tensor:
    return rows.outputs + rows.states.double() @ v @ core.T


def trained(public: Known, validating: Known, v: Tensor) -> tuple[Tensor, float]:
    """The core at which the validating rows lose least within ROUNDS rounds, and what they lose."""
    core = torch.zeros(CLASSES, v.shape[1], dtype=torch.float64)
    best = core, math.inf
    for _ in range(ROUNDS + 1):
        loss = float(cross_entropy(outputs(validating, v, core).double(), validating.labels))
        best = (core.clone(), loss) if loss < best[1] else best
        now = public._replace(outputs=outputs(public, v, core))
        core -= rate_of(CLASSES) * torch.from_numpy(head_gradient(now, torch.eye(CLASSES), v)[0])
    return best


def largest_moment(rows: Known, v: Tensor) -> float:
    along = rows.states.double() @ v
    return float(torch.linalg.eigvalsh(along.T @ along / len(along))[-1])


# -- coordinates ---------------------------------------------------------------------------------------


def test_a_run_reaches_the_probe_in_them() -> None:
    public, validating, held = (data(rows, 2.5, seed) for seed, rows in enumerate((400, 200, 800)))
    v = whitened(public, validating)
    core, _ = trained(public, validating, v)
    probe = linear_probe(public.states, public.labels, CLASSES)(held.states)
    loss = float(cross_entropy(outputs(held, v, core), held.labels))
    assert loss < float(nll_loss(probe, held.labels)) + 0.01


def test_no_direction_of_the_rounded_coordinates_is_too_steep_for_the_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rounded without feeding errors forward, the mean state is longer than it should be."""
    public, validating = data(400, 2.5, 0), data(200, 2.5, 1)
    monkeypatch.setattr(first_order, "STRENGTHS", STRENGTHS[-1:])
    _, unit = first_order.whitening(public, validating, FEATURES)
    assert largest_moment(public, whitened(public, validating)) < 1.25
    exact = _unrounded(public, STRENGTHS[-1])
    assert largest_moment(public, exact) <= 1 + 1e-9
    assert largest_moment(public, (exact / unit).round() * unit) > 2


def _unrounded(rows: Known, strength: float) -> Tensor:
    x, spread = rows.states.double(), rows.states.double().std(0, correction=0)
    sizes, directions = torch.linalg.eigh((x / spread).T @ (x / spread) / len(x))
    found: Tensor = directions.flip(1) / (sizes.flip(0).clamp_min(0) + strength).sqrt() / spread[:, None]
    return found


def test_entries_use_the_range_and_have_no_entry_of_minus_128() -> None:
    entries, unit = first_order.whitening(data(400, 2.5, 0), data(200, 2.5, 1), FEATURES)
    assert 60 <= int(np.abs(entries.astype(int)).max()) <= 127
    assert np.log2(unit) == round(np.log2(unit))


def test_where_nothing_can_be_learnt_next_to_nothing_is() -> None:
    draws = np.random.default_rng(5)
    rows = [
        one._replace(labels=torch.from_numpy(draws.integers(CLASSES, size=len(one.labels))))
        for one in (data(300, 2.5, 0), data(200, 2.5, 1))
    ]
    _, loss = trained(rows[0], rows[1], whitened(rows[0], rows[1]))
    assert np.log(CLASSES) - 0.02 < loss <= np.log(CLASSES) + 1e-9


def test_fewer_rows_than_features_and_one_that_never_varies_do_no_harm() -> None:
    public, validating = data(30, 1.0, 0), data(60, 1.0, 1)
    for rows in (public, validating):
        rows.states[:, 7] = 3.0
    v = whitened(public, validating)
    assert trained(public, validating, v)[1] < 0.8 * np.log(CLASSES)
    assert largest_moment(public, v) < 2


def test_with_fewer_columns_it_keeps_the_directions_in_which_states_are_largest() -> None:
    public, validating = data(400, 1.0, 0), data(200, 1.0, 1)
    some, most = (whitened(public, validating, columns) for columns in (16, 2 * FEATURES))
    assert (some.shape, most.shape) == ((FEATURES, 16), (FEATURES, FEATURES))
    assert trained(public, validating, some)[1] < 0.8 * np.log(CLASSES)


def test_what_a_head_knows_already_it_need_not_learn() -> None:
    knowing = [
        rows._replace(outputs=20.0 * torch.eye(CLASSES)[rows.labels])
        for rows in (data(400, 2.5, 0), data(200, 2.5, 1))
    ]
    assert trained(knowing[0], knowing[1], whitened(knowing[0], knowing[1]))[1] < 1e-6


# -- the gradient --------------------------------------------------------------------------------------


def by_hand(rows: Known, u: Tensor, v: Tensor) -> tuple[Tensor, float]:
    """The gradient by all cells as torch finds it, for one row or more."""
    core = torch.zeros(u.shape[1], v.shape[1], dtype=torch.float64, requires_grad=True)
    moved = rows.outputs.double() + rows.states.double() @ v @ core.T @ u.T
    loss = cross_entropy(moved, rows.labels)
    loss.backward()  # type: ignore[no-untyped-call]
    assert core.grad is not None
    return core.grad, float(loss.detach())


def drawn(rows: int) -> tuple[Known, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    u, v, said = (
        torch.randn(shape, generator=generator, dtype=torch.float64)
        for shape in ((CLASSES, 2), (FEATURES, 8), (rows, CLASSES))
    )
    return data(rows, 1.0, 4)._replace(outputs=said), u, v


@pytest.mark.parametrize("block", [8, 8 * 7, head.PROJECTED])
def test_it_is_the_derivative_of_the_mean_loss_by_every_cell(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "PROJECTED", block)
    rows, u, v = drawn(50)
    found, loss = head_gradient(rows, u, v)
    expected, at = by_hand(rows, u, v)
    torch.testing.assert_close(torch.from_numpy(found), expected)
    assert loss == pytest.approx(at)


def test_a_long_gradient_of_a_row_is_cut_to_the_length_given() -> None:
    rows, u, v = drawn(50)
    each = [by_hand(Known(*(part[n : n + 1] for part in rows)), u, v)[0] for n in range(50)]
    longest = float(torch.stack([one.norm() for one in each]).median())
    expected = sum(one * min(1.0, longest / float(one.norm())) for one in each) / 50
    found, _ = head_gradient(rows, u, v, longest)
    np.testing.assert_allclose(found, expected)


def test_a_row_that_says_nothing_adds_nothing() -> None:
    rows, u, v = drawn(2)
    empty = rows._replace(states=torch.zeros_like(rows.states))
    assert not head_gradient(empty, u, v)[0].any()
    assert not head_gradient(empty, u, v, 1.0)[0].any()
