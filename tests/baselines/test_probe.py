"""The linear probe finds a linear boundary, chooses its penalty, and says when it has too few rows."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from sfnode.baselines.probe import linear_probe, mean_loss
from sfnode.errors import Code, UserError

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]

CLASSES, FEATURES = 3, 40


def data(rows: int, noise: float, seed: int) -> tuple[F32, I64]:
    """States around three centres, of features whose sizes differ by a factor of a million."""
    draws = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(CLASSES, FEATURES))
    labels = draws.integers(CLASSES, size=rows)
    states = centres[labels] + noise * draws.normal(size=(rows, FEATURES))
    return (states * np.logspace(-3, 3, FEATURES)).astype(np.float32), labels


def test_it_tells_classes_apart_whatever_the_sizes_of_features() -> None:
    states, labels = data(300, 1.0, 1)
    test, right = data(200, 1.0, 2)
    found = linear_probe(states, labels, test, CLASSES)
    assert found.shape == (200, CLASSES)
    np.testing.assert_allclose(found.sum(1), 1)
    assert (found.argmax(1) == right).mean() > 0.95


def test_where_nothing_can_be_learnt_it_says_little_instead_of_knowing_rows_by_heart() -> None:
    states, _ = data(300, 1.0, 1)
    labels = np.random.default_rng(5).integers(CLASSES, size=300)
    test, _ = data(200, 1.0, 2)
    found = linear_probe(states, labels, test, CLASSES)
    assert mean_loss(found, np.random.default_rng(6).integers(CLASSES, size=200)) < np.log(CLASSES) + 0.05


def test_the_same_rows_give_the_same_probabilities() -> None:
    states, labels = data(100, 3.0, 1)
    once, again = (linear_probe(states, labels, states[:9], CLASSES) for _ in range(2))
    np.testing.assert_array_equal(once, again)


def test_a_feature_that_never_varies_and_a_class_without_rows_do_no_harm() -> None:
    states, labels = data(100, 1.0, 1)
    states[:, 7] = 3.0
    found = linear_probe(states, labels, states, CLASSES + 1)
    assert np.isfinite(found).all()
    assert (found[:, CLASSES] == 0).all()


@pytest.mark.parametrize("labels", [[0] * 8, [0, 1, 0, 1, 0, 1, 0, 1], []])
def test_too_few_rows_are_an_error_with_a_fix(labels: list[int]) -> None:
    with pytest.raises(UserError) as caught:
        linear_probe(*data(len(labels), 1.0, 1)[:1], np.array(labels, np.int64), data(3, 1.0, 2)[0], 2)
    assert caught.value.code is Code.DATA_MALFORMED
    assert f"{len(labels)} rows" in caught.value.what
