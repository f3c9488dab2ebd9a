"""Statistics of the integer randomness (SPEC R1-R8). The vectors pin its values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfprotocol import seeds

RUN_ID = bytes(range(32))
U64 = st.integers(0, 2**64 - 1)


@given(U64, st.integers(0, 2**33), st.integers(1, 20), st.integers(0, 20))
def test_any_stretch_of_a_stream_can_be_drawn_alone(key: int, first: int, count: int, skip: int) -> None:
    whole = seeds.stream(key, first, skip + count)
    assert np.array_equal(whole[skip:], seeds.stream(key, first + skip, count))


def test_coordinates_do_not_depend_on_how_updates_are_batched() -> None:
    drawn = seeds.update_seeds(7, 0, 50)
    together = seeds.coordinates(drawn, layers=9, rank=16)
    alone = [seeds.coordinates(drawn[index : index + 1], layers=9, rank=16) for index in range(50)]
    for whole, *pieces in zip(together, *alone, strict=True):
        assert whole.shape == (50, 9)
        assert np.array_equal(whole, np.concatenate(pieces))


@pytest.mark.parametrize("rank", [1, 2, 32, 1024])
def test_rows_and_columns_are_spread_evenly_and_independently(rank: int) -> None:
    draws = 65_536
    row, column, _ = seeds.coordinates(seeds.update_seeds(99, 0, draws), layers=1, rank=rank)
    cells = min(rank, 32)  # of a coarser grid, so that every cell expects many
    counts = np.bincount((row * cells // rank * cells + column * cells // rank).ravel(), minlength=cells**2)
    expected = draws / cells**2
    assert counts.size == cells**2
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < cells**2 + 6 * (2 * cells**2) ** 0.5


def test_signs_are_balanced_and_independent_of_each_other() -> None:
    sign = seeds.coordinates(seeds.update_seeds(3, 0, 20_000), layers=8, rank=32).sign
    assert set(np.unique(sign)) == {-1, 1}
    correlation = sign.T @ sign / len(sign)  # (layers, layers)
    assert np.abs(correlation - np.eye(8)).max() < 6 / len(sign) ** 0.5
    assert np.abs(sign.mean(axis=0)).max() < 6 / len(sign) ** 0.5


@pytest.mark.parametrize("side", ["U", "V"])
def test_a_basis_has_entries_plus_and_minus_one_in_balance(side: str) -> None:
    basis = seeds.basis_signs(RUN_ID, epoch=0, layer=3, side=side, rows=4096, rank=32)
    assert basis.shape == (4096, 32)
    assert basis.dtype == np.int8
    assert set(np.unique(basis)) == {-1, 1}
    assert np.abs(basis.mean(axis=0)).max() < 6 / 4096**0.5
    gram = basis.T.astype(np.int64) @ basis.astype(np.int64) / 4096
    assert np.abs(gram - np.eye(32)).max() < 6 / 4096**0.5


@given(U64, st.integers(1, 64), st.integers(1, 10**9))
def test_a_batch_draws_rows_that_exist_and_longer_batches_begin_alike(
    seed: int, size: int, rows: int
) -> None:
    chosen = seeds.batch_rows(seed, size, rows)
    assert chosen.shape == (size,)
    assert 0 <= chosen.min() <= chosen.max() < rows
    assert np.array_equal(seeds.batch_rows(seed, size + 3, rows)[:size], chosen)


def test_batches_of_consecutive_updates_cover_the_data_evenly() -> None:
    drawn = [seeds.batch_rows(int(seed), 4, 100) for seed in seeds.update_seeds(5, 0, 5_000)]
    counts = np.bincount(np.concatenate(drawn), minlength=100)
    assert float(((counts - 200) ** 2 / 200).sum()) < 99 + 6 * (2 * 99) ** 0.5


SIZES = st.lists(st.integers(0, 10**6), min_size=1, max_size=6).filter(any)


@given(U64, st.integers(1, 64), SIZES)
def test_a_balanced_batch_has_each_class_equally_often_and_none_that_has_no_rows(
    seed: int, size: int, sizes: list[int]
) -> None:
    classes, rows = seeds.balanced_rows(seed, size, sizes)
    present = [one for one, count in enumerate(sizes) if count]
    times = [int((classes == one).sum()) for one in present]
    assert sum(times) == size
    assert max(times) - min(times) <= 1
    assert all(0 <= row < sizes[one] for one, row in zip(classes.tolist(), rows.tolist(), strict=True))


def test_in_batches_smaller_than_the_number_of_classes_each_has_its_turn_as_often() -> None:
    drawn = [seeds.balanced_rows(int(seed), 2, (5, 9, 1))[0] for seed in seeds.update_seeds(5, 0, 6_000)]
    counts = np.bincount(np.concatenate(drawn), minlength=3)
    assert float(((counts - 4_000) ** 2 / 4_000).sum()) < 2 + 6 * (2 * 2) ** 0.5


def test_the_order_of_the_classes_says_nothing_about_the_rows() -> None:
    seen = [seeds.balanced_rows(int(seed), 2, (2, 2)) for seed in seeds.update_seeds(5, 0, 4_000)]
    cells = np.bincount([4 * int(c[0]) + 2 * int(r[0]) + int(r[1]) for c, r in seen], minlength=8)
    assert float(((cells - 500) ** 2 / 500).sum()) < 7 + 6 * (2 * 7) ** 0.5
