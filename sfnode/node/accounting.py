"""Computes the (epsilon, delta) of differential privacy that local noise gives, and the noise that an epsilon
needs, with Google's dp-accounting.

The assumptions are those of `engine.estimator` and `tasks.mini_batches`. Neighbouring shards differ in one
row (of the same class, where mini-batches are balanced). Each update draws `drawn` of `rows` rows with
replacement, in secret. One row changes the clipped scalar by at most 2 clip, however often it is drawn. (A
first-order run clips each row's gradient, and draws no row twice.) The library knows no sampling with
replacement, but its bound for sampling without replacement (Wang, Balle and Kasiviswanathan 2019) holds here,
too. Its proof needs two quantities: the probability that a row is drawn, which is at most drawn / rows, and
the sensitivity, which does not grow with the number of copies of a row. The privacy losses of the updates
compose.

Where every row is drawn, as for a head's gradients, all updates together are one Gaussian mechanism. Its
epsilon is known exactly (Balle and Wang 2018), and is 7 % less than the bound. Replacing one of n rows
changes the mean of clipped gradients by at most 2 clip / n. The maximum is reached if the two gradients are
opposite.

The `together` updates of a group share their rows. One row changes the vector of these updates by at most 2
clip times the root of their number. They count as one draw with noise divided by that root.
"""

from __future__ import annotations

import math
from typing import Any

from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.settings import Settings

DELTA = 1e-5
"""Default delta: the probability that the bound epsilon fails. It is small enough for shards of up to some
ten thousand rows."""


def library() -> Any:
    """Return the module dp_accounting. Raises UserError EXTRA_MISSING if it is not installed."""
    try:
        import dp_accounting.gaussian_mechanism
        import dp_accounting.rdp
    except ImportError as error:
        raise UserError(
            Code.EXTRA_MISSING,
            "local noise is accounted for by dp-accounting, which is not installed",
            'Install it: pip install "sfnode[privacy]".',
        ) from error
    return dp_accounting


def epsilon(
    multiplier: float, drawn: int, rows: int, updates: int, delta: float = DELTA, together: int = 1
) -> float:
    """Return the epsilon that a node has spent after `updates` updates; infinity if the noise multiplier
    `multiplier` is 0. Each mini-batch draws `drawn` of `rows` rows, and `together` updates share it. Takes a
    quarter of a second.

    Raises UserError EXTRA_MISSING.
    """
    dp = library()
    if updates <= 0:
        return 0.0
    if multiplier <= 0:
        return float("inf")
    draws, multiplier = math.ceil(updates / together), multiplier / math.sqrt(together)
    if drawn >= rows:
        return float(dp.gaussian_mechanism.get_epsilon_gaussian(multiplier / math.sqrt(draws), delta))
    noisy = dp.GaussianDpEvent(multiplier)
    one = dp.SampledWithoutReplacementDpEvent(rows, drawn, noisy)
    accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    accountant.compose(one, draws)
    return float(accountant.get_epsilon(delta))


EXACTNESS = 1e-3
"""Relative tolerance of a computed noise multiplier, by which it may exceed the smallest sufficient
multiplier."""


def multiplier(most: float, drawn: int, rows: int, updates: int, together: int = 1) -> float:
    """Return about the smallest noise multiplier that keeps epsilon within `most` for `updates` updates. The
    other parameters are those of `epsilon`. Takes some seconds. Raises UserError EXTRA_MISSING."""
    low, high = 0.0, 1.0
    while epsilon(high, drawn, rows, updates, together=together) > most:
        low, high = high, 2 * high
    while high - low > EXACTNESS * high:
        middle = (low + high) / 2
        enough = epsilon(middle, drawn, rows, updates, together=together) <= most
        low, high = (low, middle) if enough else (middle, high)
    return high


def most_updates(manifest: Manifest) -> int:
    """Return the maximum number of updates of a node that keeps to an epsilon. In an organised run this is
    the sum of the node's quotas over all epochs, but at most the run's update budget. In an open run it is
    the update budget."""
    numbers, organised = manifest.training, manifest.organised
    in_rounds = organised.quota * numbers.epochs if organised.organiser else numbers.update_budget
    return min(in_rounds, numbers.update_budget)


def multiplier_of(settings: Settings, manifest: Manifest, odds: tuple[int, int]) -> float:
    """Return the noise multiplier of a node. `odds` are the numbers of drawn rows and of all rows. Raises
    UserError EXTRA_MISSING."""
    if settings.noise:
        return settings.noise
    most, together = most_updates(manifest), manifest.training.batch_updates
    return multiplier(settings.noise_epsilon, *odds, most, together)
